//! Where counts are kept: in Redis, which several daemons share, and worldwide.

use super::asked::{StandIn, rules};
use super::cases::{folder, play};
use super::redis_servers::Server;
use super::rows::ROWS;
use super::support::authority::Authority;
use super::support::{eventually, free_udp};

/// Not so soon that a busy machine counts as one whose Redis is away.
const PATIENT: (&str, &str) = ("REDIS_TIMEOUT", "10s");

#[test]
fn every_row_is_answered_alike_where_redis_counts() {
    let redis = Server::start(&[]);
    let url = format!("127.0.0.1:{}", redis.port);
    let environment = [("REDIS_URL", url.as_str()), ("REDIS_SOCKET_TYPE", "tcp"), PATIENT];
    let daemon = StandIn::with(&folder(ROWS), &environment);
    play(&daemon, ROWS);
}

#[test]
fn daemons_share_what_redis_counts_unless_their_prefixes_differ() {
    let redis = Server::start(&[]);
    let url = format!("127.0.0.1:{}", redis.port);
    let limits = [("d".to_owned(), rules(&["k 5/day"]))];
    let start = |prefix: &str| {
        StandIn::with(&limits, &[("REDIS_URL", url.as_str()), PATIENT, ("CACHE_KEY_PREFIX", prefix)])
    };
    let (one, other, apart) = (start("a:"), start("a:"), start("b:"));
    assert_eq!(one.call("d", "[k=v h=6]"), "OVER | OVER 5 0");
    assert_eq!(other.call("d", "[k=v h=0]"), "OVER | OVER 5 0", "what exceeds a limit is known to all");
    assert_eq!(apart.call("d", "[k=v]"), "OK | OK 5 4");
}

#[test]
fn redis_counts_over_its_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock").display().to_string();
    let redis = Server::start(&["--unixsocket", &socket]);
    let limits = [("d".to_owned(), rules(&["k 5/day"]))];
    // As the reference service has it where nobody says otherwise.
    let environment = [("REDIS_SOCKET_TYPE", "unix"), ("REDIS_URL", socket.as_str()), PATIENT];
    let (one, other) = (StandIn::with(&limits, &environment), StandIn::with(&limits, &environment));
    assert_eq!(one.call("d", "[k=v h=3]"), "OK | OK 5 2");
    assert_eq!(other.call("d", "[k=v h=3]"), "OVER | OVER 5 0");
    assert!(redis.command(&["DBSIZE"]).is_some_and(|size| size.trim() != ":0"), "Redis counts");
    assert_eq!(one.get("/readyz").json()["store"], "ok");
}

#[test]
fn two_regions_hold_one_limit_by_one_variable() {
    let authority = Authority::new();
    let peers = [free_udp().to_string(), free_udp().to_string()];
    let lines = &["k 40/day", "exact 40/day", "part 40/day"];
    let limits = [("d".to_owned(), rules(lines))];
    let start = |region: &str, own: &str, other: &str| {
        let node = format!("{region}-1");
        authority.issue(region, &node);
        let file = |name: &str| authority.folder().join(name).display().to_string();
        let (ca, cert, key) =
            (file("ca/ca.pem"), file(&format!("{node}/node.pem")), file(&format!("{node}/node.key")));
        StandIn::with(
            &limits,
            &[
                ("TIDEGATE_GLOBAL_MODE", "d.exact=escrow,d.part=split,gossip"),
                ("TIDEGATE_REGION", region),
                ("TIDEGATE_NODE", &node),
                ("TIDEGATE_LISTEN__PEER", own),
                ("TIDEGATE_PEERS__JOIN", other),
                ("TIDEGATE_PEERS__REGIONS", "eu,us"),
                ("TIDEGATE_PEERS__TLS__CA", &ca),
                ("TIDEGATE_PEERS__TLS__CERT", &cert),
                ("TIDEGATE_PEERS__TLS__KEY", &key),
            ],
        )
    };
    let (eu, us) = (start("eu", &peers[0], &peers[1]), start("us", &peers[1], &peers[0]));
    eventually("the regions know each other", || {
        let told = eu.get("/v1/regions").body;
        told.contains("us-1").then_some(())
    });
    // One region uses it up; the other hears of it.
    eventually("the limit is used up in one region", || {
        eu.call("d", "[k=v h=5]").starts_with("OVER").then_some(())
    });
    eventually("the other region denies", || us.call("d", "[k=v]").starts_with("OVER").then_some(()));
    let mut passed = 0;
    for _ in 0..60 {
        passed += [&eu, &us].iter().filter(|daemon| daemon.call("d", "[exact=v]").starts_with("OK")).count();
    }
    assert!((20..=40).contains(&passed), "an exact limit of 40 passed {passed}");
    // Shares of `split` never move: each region admits its own half.
    for daemon in [&eu, &us] {
        eventually("the region has its share", || {
            daemon.call("d", "[part=other]").starts_with("OK").then_some(())
        });
        let passed = (0..60).filter(|_| daemon.call("d", "[part=v]").starts_with("OK")).count();
        assert_eq!(passed, 20, "a half of a limit of 40");
    }
}
