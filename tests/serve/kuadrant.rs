//! Kuadrant's rate limit service, as its gateway plug-in calls it.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use serde_json::json;
use tonic::Code;

use super::support::daemon::Daemon;
use super::support::eventually;
use super::support::reservations::{ALGORITHMS, remaining, rules};
use super::support::rls::{Client, descriptor};

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
struct ReserveRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    amount: u64,
    #[prost(message, optional, tag = "4")]
    ttl: Option<Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReserveResponse {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    reservation_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CommitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RateLimitDescriptor>,
    #[prost(string, tag = "3")]
    reservation_id: String,
    #[prost(uint64, tag = "4")]
    actual_amount: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CommitResponse {
    #[prost(bool, tag = "1")]
    reservation_released: bool,
}

fn of(how: &str, user: &str) -> Vec<RateLimitDescriptor> {
    vec![descriptor(&[("how", how), ("user", user)])]
}

fn hits(descriptors: Vec<RateLimitDescriptor>, hits_addend: u32) -> RateLimitRequest {
    RateLimitRequest { domain: "default".to_owned(), descriptors, hits_addend }
}

fn reserving(descriptors: Vec<RateLimitDescriptor>, amount: u64) -> ReserveRequest {
    ReserveRequest { domain: "default".to_owned(), descriptors, amount, ttl: None }
}

fn committing(descriptors: Vec<RateLimitDescriptor>, id: &str, actual: u64) -> CommitRequest {
    CommitRequest {
        domain: "default".to_owned(),
        descriptors,
        reservation_id: id.to_owned(),
        actual_amount: actual,
    }
}

fn checked(client: &Client, descriptors: Vec<RateLimitDescriptor>) -> i32 {
    // The hits of a check are passed over, as the plug-in's own service does.
    client.kuadrant::<RateLimitResponse>("CheckRateLimit", &hits(descriptors, 77)).unwrap().overall_code
}

fn reserved(client: &Client, request: &ReserveRequest) -> ReserveResponse {
    client.kuadrant("Reserve", request).unwrap()
}

fn committed(client: &Client, request: &CommitRequest) -> bool {
    client.kuadrant::<CommitResponse>("Commit", request).unwrap().reservation_released
}

#[test]
fn a_check_charges_nothing_and_a_report_all_of_it() {
    let daemon = Daemon::with_rules(&rules());
    let client = daemon.rls();
    for how in ALGORITHMS {
        let report = |used| client.kuadrant::<RateLimitResponse>("Report", &hits(of(how, "ann"), used));
        assert_eq!((0..3).map(|_| checked(&client, of(how, "ann"))).collect::<Vec<_>>(), [OK; 3], "{how}");
        assert_eq!(remaining(&daemon, (how, "ann")), 100, "{how}");
        for used in [40, 40] {
            assert_eq!(report(used).unwrap().overall_code, OK, "{how}");
        }
        assert_eq!(report(0).unwrap().overall_code, OK, "zero hits mean one");
        let left = remaining(&daemon, (how, "ann"));
        assert!((19..=20).contains(&left), "{how}: {left}");
        // The response was sent: that it did not fit is nothing that a gateway could act on.
        assert_eq!(report(40).unwrap().overall_code, OK, "{how}");
        assert_eq!(checked(&client, of(how, "ann")), OVER_LIMIT, "{how}");
        let bucket = daemon.get(&format!("/v1/buckets?rule={how}&user=ann")).json();
        assert!(bucket["used"].as_u64() >= Some(120), "{how}: {bucket}");
    }
}

#[test]
fn what_is_reserved_is_held_and_a_commit_releases_the_rest_once() {
    let daemon = Daemon::with_rules(&rules());
    let client = daemon.rls();
    for how in ALGORITHMS {
        let who = (how, "bob");
        let made: Vec<_> = (0..7).map(|_| reserved(&client, &reserving(of(how, "bob"), 20))).collect();
        let codes: Vec<i32> = made.iter().map(|made| made.code).collect();
        assert_eq!(codes, [OK, OK, OK, OK, OK, OVER_LIMIT, OVER_LIMIT], "{how}");
        assert!(made.iter().all(|made| (made.code == OK) != made.reservation_id.is_empty()), "{made:?}");
        let one = committing(of(how, "bob"), &made[0].reservation_id, 5);
        assert!(committed(&client, &one), "{how}");
        assert!(!committed(&client, &one), "{how}: a second time");
        let left = remaining(&daemon, who);
        assert!((14..=15).contains(&left), "{how}: {left}");
        // By HTTP it is the same reservation.
        let done = daemon.post("/v1/cancel", &json!({ "reservation": made[1].reservation_id })).json();
        assert_eq!(done["committed"], true, "{how}: {done}");
        assert!(!committed(&client, &committing(of(how, "bob"), &made[1].reservation_id, 20)), "{how}");
        let left = remaining(&daemon, who);
        assert!((34..=35).contains(&left), "{how}: {left}");
    }
}

#[test]
fn what_nobody_knows_or_has_lapsed_is_charged_by_the_descriptors() {
    let daemon = Daemon::with_rules(&rules());
    let client = daemon.rls();
    for how in ALGORITHMS {
        let who = (how, "eve");
        for id in ["", "nothing", "AAAA", "\u{e9}"] {
            assert!(!committed(&client, &committing(of(how, "eve"), id, 10)), "{how}: {id}");
        }
        let left = remaining(&daemon, who);
        assert!((59..=61).contains(&left), "{how}: {left}");
        let short = Some(Duration { seconds: 0, nanos: 200_000_000 });
        let made = reserved(&client, &ReserveRequest { ttl: short, ..reserving(of(how, "eve"), 59) });
        assert_eq!(made.code, OK, "{how}");
        eventually("the lapse", || {
            let next = reserved(&client, &reserving(of(how, "eve"), 20));
            (next.code == OK).then_some(())
        });
        assert!(!committed(&client, &committing(of(how, "eve"), &made.reservation_id, 7)), "{how}");
        let left = remaining(&daemon, who);
        assert!((32..=34).contains(&left), "{how}: {left}");
    }
}

#[test]
fn several_descriptors_are_reserved_all_or_none_and_settled_together() {
    let daemon = Daemon::with_rules(&rules());
    let client = daemon.rls();
    let both = || [of("gcra", "both"), of("fixed_window", "both")].concat();
    let held = reserved(&client, &reserving(both(), 50));
    assert_eq!(held.code, OK);
    assert_eq!(reserved(&client, &reserving(of("gcra", "both"), 30)).code, OK);
    // Of the second there is enough, of the first there is not.
    assert_eq!(reserved(&client, &reserving(both(), 30)).code, OVER_LIMIT);
    assert_eq!(remaining(&daemon, ("fixed_window", "both")), 50);
    assert!(committed(&client, &committing(both(), &held.reservation_id, 10)));
    assert_eq!(remaining(&daemon, ("fixed_window", "both")), 90);
    let left = remaining(&daemon, ("gcra", "both"));
    assert!((59..=60).contains(&left), "{left}");
}

#[test]
fn what_no_rule_counts_passes_with_nothing_to_commit() {
    let daemon = Daemon::with_rules(&rules());
    let client = daemon.rls();
    let nobody = || vec![descriptor(&[("color", "blue")])];
    assert_eq!(checked(&client, nobody()), OK);
    let made = reserved(&client, &reserving(nobody(), 5));
    assert_eq!((made.code, made.reservation_id.as_str()), (OK, ""));
    assert!(!committed(&client, &committing(nobody(), "", 5)));
}

#[test]
fn what_makes_no_sense_is_an_invalid_argument_and_what_is_too_much_is_over_limit() {
    let daemon = Daemon::with_rules(&rules());
    let client = daemon.rls();
    let refused = |call, request: &ReserveRequest| {
        client.kuadrant::<ReserveResponse>(call, request).map_err(|status| status.code())
    };
    let with = |ttl| ReserveRequest { ttl: Some(ttl), ..reserving(of("gcra", "bad"), 1) };
    for request in [
        reserving(vec![], 1),
        ReserveRequest { domain: String::new(), ..reserving(of("gcra", "bad"), 1) },
        with(Duration { seconds: 0, nanos: 0 }),
        with(Duration { seconds: -1, nanos: 0 }),
        with(Duration { seconds: i64::MIN, nanos: i32::MIN }),
    ] {
        assert_eq!(refused("Reserve", &request), Err(Code::InvalidArgument), "{request:?}");
    }
    for call in ["CheckRateLimit", "Report", "Commit"] {
        assert_eq!(refused(call, &reserving(vec![], 0)), Err(Code::InvalidArgument), "{call}");
    }
    assert_eq!(refused("Refund", &reserving(of("gcra", "bad"), 1)), Err(Code::Unimplemented));
    // However large the amount is, one request holds at most half of a limit.
    for (amount, left) in [(51, 50), (1 << 32, 0)] {
        assert_eq!(reserved(&client, &reserving(of("fixed_window", "half"), amount)).code, OK, "{amount}");
        assert_eq!(remaining(&daemon, ("fixed_window", "half")), left, "{amount}");
    }
    for amount in [1, 1 << 63, u64::MAX] {
        assert_eq!(
            reserved(&client, &reserving(of("fixed_window", "half"), amount)).code,
            OVER_LIMIT,
            "{amount}"
        );
    }
    let wide: Vec<(&str, &str)> = vec![("how", "gcra"); 65];
    assert_eq!(reserved(&client, &reserving(vec![descriptor(&wide)], 1)).code, OVER_LIMIT);
    assert_eq!(remaining(&daemon, ("gcra", "bad")), 100);
    // An amount of nothing holds nothing: the same check, and a commit that charges it all.
    let nothing = reserved(&client, &reserving(of("fixed_window", "none"), 0));
    assert_eq!((nothing.code, nothing.reservation_id.as_str()), (OK, ""));
    assert_eq!(remaining(&daemon, ("fixed_window", "none")), 100);
    committed(&client, &committing(of("fixed_window", "none"), &nothing.reservation_id, 30));
    assert_eq!(remaining(&daemon, ("fixed_window", "none")), 70);
    assert_eq!(reserved(&client, &reserving(of("fixed_window", "half"), 0)).code, OVER_LIMIT, "used up");
    // However much it was, one whole limit is owed at most.
    assert!(!committed(&client, &committing(of("fixed_window", "bad"), "", u64::MAX)));
    let bucket = daemon.get("/v1/buckets?rule=fixed_window&user=bad").json();
    assert_eq!(bucket["used"], 200, "{bucket}");
}

#[test]
fn health_and_reflection_know_the_service() {
    let daemon = Daemon::with_rules(&rules());
    let client = daemon.rls();
    let name = "kuadrant.service.ratelimit.v1.RateLimitService";
    assert_eq!(client.health(name).unwrap(), 1);
    assert!(client.reflected().unwrap().iter().any(|known| known == name));
    for symbol in [name, "kuadrant.service.ratelimit.v1.ReserveRequest"] {
        assert!(client.described(symbol).unwrap() > 0, "{symbol}");
    }
}
