//! Envoy's rate limit quota service as a stream sees it, and the test of what the daemon does about each
//! thing that Envoy 1.40 was seen to do.

use std::collections::BTreeMap;
use std::sync::mpsc;

use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;
use tonic::Status;
use tonic::transport::Endpoint;

use super::support::daemon::Daemon;
use super::support::{SOON, eventually};

const CORE: &str = include_str!("../../src/core/quota_assignments/tests/mod.rs");
const PLAYED: &str = include_str!("../../src/core/quota_assignments/tests/played.rs");
const USAGE: &str = include_str!("../../src/core/quota_assignments/tests/usage.rs");
const ENVOY: &str = include_str!("../envoy/quotas.rs");
const HERE: &str = include_str!("quota_rows.rs");

/// Things that Envoy does, with the test of what follows for a daemon.
const ROWS: &[(u8, &str, &str, &str)] = &[
    (1, "reports a bucket at its first request, then all", HERE, "each_bucket_is_answered_as_its_rules_say"),
    (1, "goes on to report idle ones", PLAYED, "buckets_that_nobody_has_any_more_are_forgotten"),
    (2, "names the domain in every message", HERE, "a_stream_keeps_to_one_domain"),
    (3, "may have a second stream", HERE, "two_streams_of_a_bucket_are_both_spent"),
    (3, "may be reloaded", ENVOY, "a_limit_in_redis_holds_over_a_killed_daemon_and_a_reloaded_envoy"),
    (4, "loses its counters with a stream", HERE, "two_streams_of_a_bucket_are_both_spent"),
    (
        5,
        "spends on without a stream",
        ENVOY,
        "three_stock_envoys_use_a_limit_and_never_exceed_it_with_a_kill_and_a_connection_that_stands_still",
    ),
    (6, "takes an assignment by its whole id", HERE, "each_bucket_is_answered_as_its_rules_say"),
    (7, "says nothing of a receipt", CORE, "a_receipt_is_overdue_only_where_an_assignment_is_under_way"),
    (8, "reads whole seconds to live", HERE, "each_bucket_is_answered_as_its_rules_say"),
    (8, "may lose a report", CORE, "an_assignment_outlives_two_lost_reports"),
    (9, "knows three strategies", HERE, "each_bucket_is_answered_as_its_rules_say"),
    (9, "lets all pass by a number by time unit", ENVOY, "settings_that_the_manual_warns_of_do_what_it_says"),
    (10, "divides by an interval below a second", HERE, "each_bucket_is_answered_as_its_rules_say"),
    (
        10,
        "has such a fallback without a limit",
        ENVOY,
        "fallbacks_of_a_lapsed_assignment_do_what_the_manual_says",
    ),
    (11, "compares buckets by their tokens", CORE, "terms_that_differ_are_told_apart_by_their_tokens"),
    (12, "keeps the ratio of what is left", PLAYED, "the_limit_is_never_exceeded"),
    (13, "falls back after a lapse", ENVOY, "fallbacks_of_a_lapsed_assignment_do_what_the_manual_says"),
    (14, "has a default before the first", ENVOY, "settings_that_the_manual_warns_of_do_what_it_says"),
    (15, "ends by a token bucket as the default", ENVOY, "settings_that_the_manual_warns_of_do_what_it_says"),
    (15, "ends by it after a lapse", ENVOY, "fallbacks_of_a_lapsed_assignment_do_what_the_manual_says"),
    (16, "words the denial", ENVOY, "a_stock_envoy_spends_what_it_was_assigned_and_asks_nobody"),
    (17, "reports what is only previewed", HERE, "each_bucket_is_answered_as_its_rules_say"),
    (18, "leaves out an empty value", ENVOY, "settings_that_the_manual_warns_of_do_what_it_says"),
    (19, "counts each request as one", HERE, "each_bucket_is_answered_as_its_rules_say"),
    (
        20,
        "reports in an interval of its own",
        USAGE,
        "every_window_is_used_where_demand_is_as_high_as_the_limit",
    ),
];

const RULES: &str = r#"
[[rules]]
name = "ann"
match = { user = "ann", path = "/x" }
algorithm = "fixed_window"
limit = 1000
window = "24h"

[[rules]]
name = "shared"
match = { kind = "shared" }
algorithm = "fixed_window"
limit = 400
window = "24h"

[[rules]]
name = "slow"
match = { kind = "slow" }
algorithm = "token_bucket"
limit = 100
window = "1s"

[[rules]]
name = "costly"
match = { kind = "costly" }
algorithm = "fixed_window"
limit = 100
window = "1h"
charge = "always"

[[rules]]
name = "quiet"
match = { kind = "quiet" }
algorithm = "fixed_window"
limit = 1
window = "1h"
action = "log_only"

[[rules]]
name = "blocked"
match = { kind = "blocked" }
action = "block"
"#;

/// A bucket's id.
type Id = BTreeMap<String, String>;

/// What a gateway is told of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Allow,
    Deny,
    /// A token bucket that holds so many.
    Bucket(u32),
    Abandon,
}

/// An open stream.
struct Stream {
    reports: tokio::sync::mpsc::UnboundedSender<RateLimitQuotaUsageReports>,
    told: mpsc::Receiver<Result<RateLimitQuotaResponse, Status>>,
    _runtime: tokio::runtime::Runtime,
}

impl Stream {
    fn open(daemon: &Daemon) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", daemon.grpc)).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        let (reports, receiver) = tokio::sync::mpsc::unbounded_channel();
        let outgoing = futures_util::stream::unfold(
            receiver,
            |mut receiver: tokio::sync::mpsc::UnboundedReceiver<RateLimitQuotaUsageReports>| async move {
                receiver.recv().await.map(|report| (report, receiver))
            },
        );
        let (tell, told) = mpsc::channel();
        runtime.spawn(async move {
            let mut client = RateLimitQuotaServiceClient::new(channel);
            let mut answers = match client.stream_rate_limit_quotas(outgoing).await {
                Ok(answers) => answers.into_inner(),
                Err(status) => return drop(tell.send(Err(status))),
            };
            while let Some(answer) = answers.message().await.transpose() {
                let is_last = answer.is_err();
                if tell.send(answer).is_err() || is_last {
                    return;
                }
            }
        });
        Self { reports, told, _runtime: runtime }
    }

    /// Reports buckets at their first request.
    fn report(&self, domain: &str, buckets: &[&[(&str, &str)]]) {
        let usage = |pairs: &&[(&str, &str)]| BucketQuotaUsage {
            bucket_id: Some(BucketId {
                bucket: pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            }),
            time_elapsed: Some(ProtoDuration { seconds: 0, nanos: 0 }),
            num_requests_allowed: 0,
            num_requests_denied: 1,
        };
        let bucket_quota_usages = buckets.iter().map(usage).collect();
        self.reports
            .send(RateLimitQuotaUsageReports { domain: domain.to_owned(), bucket_quota_usages })
            .unwrap();
    }

    /// The last that it is told of so many buckets.
    fn told(&self, buckets: usize) -> BTreeMap<Id, Told> {
        let mut all = BTreeMap::new();
        while all.len() < buckets {
            let answer = self.told.recv_timeout(SOON).unwrap().unwrap();
            for action in answer.bucket_action {
                let id: Id = action.bucket_id.unwrap().bucket.into_iter().collect();
                all.insert(id, told(action.bucket_action.unwrap()));
            }
        }
        all
    }

    fn refusal(&self) -> Status {
        self.told.recv_timeout(SOON).unwrap().unwrap_err()
    }
}

/// Reads an action, and holds it to what Envoy bears.
fn told(action: BucketAction) -> Told {
    let BucketAction::QuotaAssignmentAction(action) = action else { return Told::Abandon };
    let ttl = action.assignment_time_to_live.unwrap();
    assert!(ttl.seconds >= 10 && ttl.nanos == 0, "row 8: {ttl:?}");
    match action.rate_limit_strategy.unwrap().strategy.unwrap() {
        Strategy::BlanketRule(rule) if rule == i32::from(BlanketRule::AllowAll) => Told::Allow,
        Strategy::BlanketRule(_) => Told::Deny,
        Strategy::TokenBucket(bucket) => {
            let interval = bucket.fill_interval.unwrap();
            assert!(interval.seconds >= 1 && interval.nanos == 0, "row 10: {interval:?}");
            assert!(bucket.tokens_per_fill.unwrap().value > 0, "row 10");
            Told::Bucket(bucket.max_tokens)
        }
        other => panic!("row 9: {other:?}"),
    }
}

fn id(pairs: &[(&str, &str)]) -> Id {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn used(daemon: &Daemon, rule: &str, bucket: &str) -> u64 {
    daemon.get(&format!("/v1/buckets?rule={rule}{bucket}")).json()["used"].as_u64().unwrap()
}

#[test]
fn each_bucket_is_answered_as_its_rules_say() {
    let daemon = Daemon::with_rules(RULES);
    let stream = Stream::open(&daemon);
    let ann: &[(&str, &str)] = &[("path", "/x"), ("user", "ann")];
    let kinds = [
        ("slow", Told::Deny, "row 19: a level refills after it was assigned"),
        ("costly", Told::Deny, "row 19: its requests have costs"),
        ("quiet", Told::Allow, "row 17: it only logs"),
        ("blocked", Told::Deny, "a block"),
        ("other", Told::Allow, "no rule is for it"),
    ];
    let named = kinds.map(|(kind, ..)| [("kind", kind)]);
    let buckets: Vec<&[(&str, &str)]> = std::iter::once(ann).chain(named.iter().map(|id| &id[..])).collect();
    stream.report("default", &buckets);
    let told = stream.told(buckets.len());
    for (kind, expected, why) in kinds {
        assert_eq!(told[&id(&[("kind", kind)])], expected, "{kind}: {why}");
    }
    let Told::Bucket(tokens) = told[&id(ann)] else { panic!("row 9: {told:?}") };
    assert!(
        tokens > 0 && u64::from(tokens) <= used(&daemon, "ann", ""),
        "{tokens} are spent when they are sent"
    );
    // What a shadow rule counts is not taken: nothing of it was assigned.
    assert_eq!(used(&daemon, "quiet", ""), 0, "row 17");
}

#[test]
fn a_stream_keeps_to_one_domain() {
    let daemon = Daemon::with_rules(RULES);
    let nameless = Stream::open(&daemon);
    nameless.report("", &[&[("kind", "other")]]);
    assert!(nameless.refusal().message().contains("a report names a domain"), "row 2");
    let stream = Stream::open(&daemon);
    stream.report("default", &[&[("kind", "other")]]);
    assert_eq!(stream.told(1).len(), 1);
    stream.report("", &[&[("kind", "blocked")]]);
    assert_eq!(stream.told(1)[&id(&[("kind", "blocked")])], Told::Deny, "row 2: the first domain goes on");
    stream.report("elsewhere", &[&[("kind", "other")]]);
    assert!(stream.refusal().message().contains("keeps to the domain of its first report"), "row 2");
}

#[test]
fn two_streams_of_a_bucket_are_both_spent() {
    let daemon = Daemon::with_rules(RULES);
    let shared: &[(&str, &str)] = &[("kind", "shared")];
    let tokens = |stream: &Stream| {
        stream.report("default", &[shared]);
        let told = stream.told(1);
        let Told::Bucket(tokens) = told[&id(shared)] else { panic!("{told:?}") };
        u64::from(tokens)
    };
    let (one, other) = (Stream::open(&daemon), Stream::open(&daemon));
    let assigned = tokens(&one) + tokens(&other);
    assert!((2..=400).contains(&assigned), "row 3: {assigned}");
    assert!(used(&daemon, "shared", "") >= assigned, "row 3");
    drop(one);
    eventually("the stream is seen to end", || {
        (daemon.metric("tidegate_quota_streams") == Some(1.0)).then_some(())
    });
    assert!(used(&daemon, "shared", "") >= assigned, "row 4: nothing comes back of a stream that broke");
    let third = Stream::open(&daemon);
    let assigned = assigned + tokens(&third);
    assert!(assigned <= used(&daemon, "shared", "") && assigned <= 400, "rows 3, 4: {assigned}");
}

#[test]
fn each_row_has_a_test() {
    for (row, what, source, test) in ROWS {
        assert!(source.contains(&format!("fn {test}(")), "row {row}, {what}: there is no test {test}");
    }
    let rows: Vec<u8> = (1..=20).filter(|row| !ROWS.iter().any(|(own, ..)| own == row)).collect();
    assert!(rows.is_empty(), "no test is named for the rows {rows:?}");
}
