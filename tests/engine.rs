//! The engine with the store in memory and a clock moved by hand: what is charged, what is answered, what is
//! told on.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use proptest::prelude::*;
use tidegate::core::algorithm::{Algorithm, Allowance, WindowAllowance};
use tidegate::core::decision::Decision;
use tidegate::core::denial_cause::DenialCause;
use tidegate::core::regions::gossip::uncertainty::OtherStores;
use tidegate::core::regions::{Effect, NodeName};
use tidegate::core::request::{Cost, LimitOverride, Request};
use tidegate::core::rule::Rule;
use tidegate::core::ruleset::Reason;
use tidegate::core::time::{Span, Timestamp};
use tidegate::database::document;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::decide::Decisions;
use tidegate::engine::port::{Answer, Store as _};
use tidegate::engine::status::WorldStatus;
use tidegate::engine::world::WorldPort;
use tidegate::store::memory::MemoryStore;
use tidegate::telemetry::Metrics;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn rules(text: &str) -> Vec<Rule> {
    document::from_toml("rules.toml", text, &[]).unwrap().rules
}

fn engine(text: &str) -> Engine {
    engine_with(text, false)
}

fn engine_with(text: &str, shadow: bool) -> Engine {
    let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
    let clock = Clock::Manual(NOW.0.into());
    let engine = Engine::new(name, clock, Arc::new(MemoryStore::new(10_000)), Metrics::new());
    engine.load(rules(text), Vec::new(), shadow).unwrap();
    engine
}

fn request<'a>(attributes: &[(&'a str, &'a str)], cost: i64) -> Request<'a> {
    Request::new("default", attributes.iter().copied().collect(), Cost::from_signed(cost))
}

fn together(engine: &Engine, requests: &[Request<'_>]) -> Decisions {
    match engine.decide(requests) {
        Answer::Now(decisions) => decisions,
        Answer::Later(_) => panic!("memory answers at once"),
    }
}

fn decide(engine: &Engine, attributes: &[(&str, &str)], cost: i64) -> Decision {
    together(engine, &[request(attributes, cost)]).remove(0)
}

fn left(decision: &Decision, rule: &str) -> u64 {
    decision.rules.iter().find(|ruled| &*ruled.rule == rule).unwrap().remaining
}

const TWO: &str = r#"
    [[rules]]
    name = "user"
    per = ["user"]
    algorithm = "fixed_window"
    limit = 3
    window = "1m"
    [[rules]]
    name = "all"
    algorithm = "fixed_window"
    limit = 4
    window = "1m"
    message = "Everyone together has had enough."
"#;

#[test]
fn where_one_rule_denies_none_is_charged() {
    let engine = engine(TWO);
    for _ in 0..3 {
        assert!(decide(&engine, &[("user", "a")], 1).allowed);
    }
    let denied = decide(&engine, &[("user", "a")], 1);
    assert!(!denied.allowed);
    assert_eq!(&*denied.rules[denied.tightest.unwrap()].rule, "user");
    assert_eq!((left(&denied, "user"), left(&denied, "all")), (0, 1));
    // The permit that the denied request did not take is still there for another user.
    let last = decide(&engine, &[("user", "b")], 1);
    assert!(last.allowed);
    assert_eq!(&*last.rules[last.tightest.unwrap()].rule, "all");
    let denied = decide(&engine, &[("user", "b")], 1);
    assert_eq!((denied.allowed, denied.status), (false, 429));
    assert_eq!(denied.message.as_deref(), Some("Everyone together has had enough."));
    assert_eq!(left(&denied, "user"), 2);
}

#[test]
fn where_one_request_of_a_call_is_denied_none_is_charged() {
    let engine = engine(TWO);
    let both = [request(&[("user", "a")], 1), request(&[("user", "b")], 4)];
    let decisions = together(&engine, &both);
    assert_eq!((decisions[0].allowed, decisions[1].allowed), (true, false));
    assert_eq!(left(&decide(&engine, &[("user", "a")], 0), "user"), 3);
    assert_eq!(left(&decide(&engine, &[("user", "a")], 0), "all"), 4);
}

#[test]
fn two_requests_of_a_call_on_one_bucket_are_added() {
    let engine = engine(TWO);
    let decisions = together(&engine, &[request(&[("user", "a")], 2), request(&[("user", "a")], 2)]);
    assert!(!decisions[1].allowed);
    assert_eq!(left(&decide(&engine, &[("user", "a")], 0), "user"), 3);
    let decisions = together(&engine, &[request(&[("user", "a")], 2), request(&[("user", "a")], 1)]);
    assert!(decisions.iter().all(|decision| decision.allowed));
    assert_eq!(left(&decide(&engine, &[("user", "a")], 0), "user"), 0);
}

#[test]
fn a_refund_makes_room_and_a_peek_changes_nothing() {
    let engine = engine(TWO);
    assert!(decide(&engine, &[("user", "a")], 3).allowed);
    assert!(!decide(&engine, &[("user", "a")], 0).allowed);
    assert!(decide(&engine, &[("user", "a")], -2).allowed);
    let peek = decide(&engine, &[("user", "a")], 0);
    assert_eq!((peek.allowed, left(&peek, "user"), left(&peek, "all")), (true, 2, 3));
}

#[test]
fn a_block_denies_and_charges_nothing() {
    let engine = engine(&format!(
        "{TWO}\n[[rules]]\nname = \"bad\"\nmatch = {{ user = \"mallory\" }}\naction = \"block\"\nmessage = \"Go away.\"\n"
    ));
    let blocked = decide(&engine, &[("user", "mallory")], 1);
    assert_eq!((blocked.allowed, blocked.status), (false, 403));
    assert_eq!(blocked.message.as_deref(), Some("Go away."));
    assert_eq!(left(&decide(&engine, &[("user", "a")], 0), "all"), 4);
    let decisions = together(&engine, &[request(&[("user", "a")], 1), request(&[("user", "mallory")], 1)]);
    assert_eq!((decisions[0].allowed, decisions[1].allowed), (true, false));
    assert_eq!(left(&decide(&engine, &[("user", "a")], 0), "all"), 4);
}

#[test]
fn an_allow_that_stands_alone_exempts() {
    let engine = engine(&format!(
        "{TWO}\n[[rules]]\nname = \"staff\"\nmatch = {{ user = \"root\" }}\naction = \"allow\"\n"
    ));
    for _ in 0..10 {
        let decision = decide(&engine, &[("user", "root")], 1);
        assert!(decision.allowed && decision.tightest.is_none());
    }
    assert_eq!(left(&decide(&engine, &[("user", "a")], 0), "all"), 4);
}

#[test]
fn a_shadow_rule_says_no_and_lets_pass() {
    let text = r#"
        [[rules]]
        name = "trial"
        algorithm = "fixed_window"
        limit = 1
        window = "1m"
        action = "log_only"
    "#;
    let engine = engine(text);
    assert!(decide(&engine, &[], 1).rules[0].allowed);
    let second = decide(&engine, &[], 1);
    assert!(second.allowed && second.tightest.is_none());
    assert!(!second.rules[0].allowed && second.rules[0].shadow);
    assert!(
        engine
            .metrics()
            .render()
            .contains(r#"tidegate_decisions_total{rule="trial",outcome="shadow_denied"} 1"#)
    );
}

#[test]
fn the_global_shadow_switch_denies_nothing_and_still_counts() {
    let engine = engine_with(TWO, true);
    for _ in 0..6 {
        assert!(decide(&engine, &[("user", "a")], 1).allowed);
    }
    assert!(!decide(&engine, &[("user", "a")], 1).rules[1].allowed);
}

#[test]
fn without_a_rule_everything_passes() {
    let engine = engine(TWO);
    let elsewhere = Request { domain: "elsewhere", ..request(&[("user", "a")], 1) };
    let decision = together(&engine, &[elsewhere]).remove(0);
    assert!(decision.allowed && decision.rules.is_empty() && decision.tightest.is_none());
}

#[test]
fn a_limit_of_the_requests_own_replaces_the_rules() {
    let engine = engine(TWO);
    let own = |permits, window| Request {
        limit: Some(LimitOverride { permits, window }),
        ..request(&[("user", "a")], 1)
    };
    let minute = Span::from_secs(60);
    for expected in [true, true, true, true, true, false] {
        assert_eq!(together(&engine, &[own(5, minute)])[0].allowed, expected);
    }
    // Another window is another count, and the rule's own limit holds where the request brings none.
    assert!(together(&engine, &[own(5, Span::from_secs(1))])[0].allowed);
    assert!(!decide(&engine, &[("user", "a")], 1).allowed);
}

#[test]
fn there_is_hope_for_a_cost_that_other_regions_can_send_what_is_missing_for() {
    let text = "[[rules]]\nname = \"r\"\nalgorithm = \"token_bucket\"\nlimit = 12\nwindow = \"1s\"\n\
                [rules.global]\nmode = \"escrow\"\nshares = { here = 1, there = 1 }\n";
    let with = |others| {
        let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
        let store = Arc::new(MemoryStore::new(100));
        let engine = Engine::new(name, Clock::Manual(NOW.0.into()), store, Metrics::new()).lending(others);
        engine.load(rules(text), Vec::new(), false).unwrap();
        engine
    };
    let engine = with(true);
    // Six are here, and five of the six there could come.
    let retry = |cost| decide(&engine, &[], cost).rules[0].retry;
    assert_eq!([7, 11, 12].map(retry), [Some(Span::from_secs(1)), Some(Span::from_secs(1)), None]);
    assert_eq!(decide(&with(false), &[], 7).rules[0].retry, None, "nobody is there who could send them");
    let own = LimitOverride { permits: 4, window: Span::from_secs(1) };
    // Of a limit of one's own two are here, and one of the two there could come.
    let retry =
        |cost| together(&engine, &[Request { limit: Some(own), ..request(&[], cost) }])[0].rules[0].retry;
    assert_eq!([3, 4].map(retry), [Some(Span::from_secs(1)), None]);
}

#[test]
fn what_other_regions_may_have_used_is_what_this_one_does_not_hold() {
    let text = "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"ALGORITHM\"\nlimit = 12\nwindow = \"1m\"\n\
                [rules.global]\nmode = \"MODE\"\nshares = { here = 1, there = 2 }\n\
                [[users]]\nid = \"big\"\noverrides = { r = { OWN } }\n";
    let bound = |mode: &str, algorithm: &str, user: &str| {
        let own = if algorithm == "token_bucket" { "limit = 120, burst = 240" } else { "limit = 120" };
        let text = text.replace("MODE", mode).replace("ALGORITHM", algorithm).replace("OWN", own);
        let engine = engine("");
        let read = document::from_toml("rules.toml", &text, &[]).unwrap();
        engine.load(read.rules, read.users, false).unwrap();
        let global = decide(&engine, &[("user", user)], 1).rules[0].global.unwrap();
        assert_eq!(global.believed_used, None, "{mode}: no region tells what it used");
        if algorithm == "fixed_window" {
            assert_eq!(global.used_here, Some(1), "{mode}");
        }
        global.error_bound
    };
    for mode in ["split", "escrow"] {
        for algorithm in ["fixed_window", "token_bucket"] {
            assert_eq!(bound(mode, algorithm, "ann"), 8, "{mode} {algorithm}");
        }
        assert_eq!(bound(mode, "fixed_window", "big"), 80);
        assert_eq!(bound(mode, "token_bucket", "big"), 160, "{mode}: of the burst");
    }
    assert_eq!(bound("escrow", "sliding_window", "ann"), 8);
}

#[tokio::test]
async fn a_bucket_says_what_each_other_region_is_known_to_have_admitted() {
    let engine = engine(
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 12\nwindow = \"1m\"\n\
         [rules.global]\nmode = \"gossip\"\n",
    );
    decide(&engine, &[("user", "ann")], 1);
    let mut touched = Vec::new();
    engine.drain_touched(&mut touched);
    let others = std::collections::BTreeMap::from([("there".to_owned(), 5)]);
    let buckets = vec![(touched.remove(0).key, others.clone())];
    engine.publish(WorldStatus { buckets, ..WorldStatus::default() });
    let by_region = async |user| engine.bucket("r", &request(&[("user", user)], 1)).await.unwrap().by_region;
    assert_eq!(by_region("ann").await, Some(others));
    assert_eq!(by_region("bob").await, None);
}

#[test]
fn a_store_that_lost_its_memory_holds_no_rights_and_says_so() {
    let text = "[[rules]]\nname = \"r\"\nalgorithm = \"fixed_window\"\nlimit = 12\nwindow = \"1m\"\n\
                [rules.global]\nmode = \"escrow\"\nshares = { here = 1, there = 2 }\n";
    let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
    let store = Arc::new(MemoryStore::new(100).begun(NOW));
    let engine = Engine::new(name, Clock::Manual(NOW.0.into()), store, Metrics::new());
    engine.load(rules(text), Vec::new(), false).unwrap();
    let decision = decide(&engine, &[], 1);
    assert!(!decision.allowed);
    assert_eq!(decision.rules[0].global.map(|global| global.error_bound), Some(12));
}

#[test]
fn a_reload_keeps_buckets_and_a_raised_limit_takes_effect() {
    let engine = engine(TWO);
    assert!(decide(&engine, &[("user", "a")], 3).allowed);
    assert!(!decide(&engine, &[("user", "a")], 1).allowed);
    engine.load(rules(&TWO.replace("limit = 3", "limit = 4")), Vec::new(), false).unwrap();
    assert_eq!(engine.loaded().revision, 2);
    assert!(decide(&engine, &[("user", "a")], 1).allowed);
    assert!(!decide(&engine, &[("user", "a")], 1).allowed);
}

#[tokio::test]
async fn explain_says_why_and_charges_nothing() {
    let engine = engine(&TWO.replace("name = \"user\"", "name = \"user\"\nmatch = { path = \"/api/*\" }"));
    let asked = request(&[("user", "a"), ("path", "/other")], 1);
    let explanation = engine.explain(&asked, 100).await.unwrap();
    assert!(explanation.decision.allowed);
    let reason = |name: &str| explanation.considered.iter().find(|(rule, _)| rule == name).unwrap().1.clone();
    assert_eq!(reason("all"), Reason::Decides);
    assert!(
        matches!(reason("user"), Reason::Differs { attribute, value } if attribute == "path" && value == "/other")
    );
    assert_eq!(left(&decide(&engine, &[], 0), "all"), 4);
}

#[tokio::test]
async fn a_bucket_says_what_it_holds() {
    let engine = engine(TWO);
    assert!(decide(&engine, &[("user", "a")], 2).allowed);
    let bucket = engine.bucket("user", &request(&[("user", "a")], 1)).await.unwrap();
    assert_eq!((bucket.used, bucket.remaining, bucket.limit), (2, 1, 3));
    assert_eq!(bucket.identity, [("user".to_owned(), "a".to_owned())]);
    let unused = engine.bucket("user", &request(&[("user", "b")], 1)).await.unwrap();
    assert_eq!((unused.used, unused.remaining), (0, 3));
    assert!(engine.bucket("user", &request(&[], 1)).await.is_none());
    assert!(engine.bucket("nobody", &request(&[], 1)).await.is_none());
}

#[test]
fn what_a_worldwide_rule_did_is_told_on_once() {
    let engine = engine(
        r#"
        [[rules]]
        name = "world"
        per = ["user"]
        algorithm = "fixed_window"
        limit = 3
        window = "1m"
        [rules.global]
        mode = "gossip"
        "#,
    );
    for cost in [2, 2, -1, 0] {
        decide(&engine, &[("user", "a")], cost);
    }
    let mut touched = Vec::new();
    engine.drain_touched(&mut touched);
    assert_eq!(touched.len(), 1);
    let told = &touched[0];
    assert_eq!((told.key.rule.domain.as_str(), told.key.rule.name.as_str()), ("default", "world"));
    assert_eq!(told.window, NOW.window_index(Span::from_secs(60)));
    assert_eq!((told.offered, told.admitted, told.returned), (4, 2, 1));
    touched.clear();
    engine.drain_touched(&mut touched);
    assert!(touched.is_empty());
}

/// Of many users whose logs grow, or who hold many places, no more is kept than the store has room for; one
/// alone keeps all that its limit asks for.
#[test]
fn what_buckets_keep_is_bounded_in_bytes() {
    const ROOM: usize = 1 << 20;
    const PERMITS: u64 = 2_000;
    let text = "[[rules]]\nname = \"log\"\nper = [\"user\"]\nalgorithm = \"sliding_log\"\nlimit = 2000\nwindow = \"1h\"\non_failure = \"closed\"\n";
    let store = Arc::new(MemoryStore::new(1_024));
    let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
    let engine = Engine::new(name, Clock::Manual(NOW.0.into()), Arc::clone(&store) as _, Metrics::new());
    engine.load(rules(text), Vec::new(), false).unwrap();
    let mut now = NOW;
    let mut ask = |user: &str| {
        now = now + Span(1);
        engine.set_now(now);
        decide(&engine, &[("user", user)], 1)
    };
    // A log at its limit is not forgotten, whatever comes.
    assert_eq!((0..PERMITS + 5).filter(|_| ask("first").allowed).count() as u64, PERMITS);
    let users: Vec<String> = (0..100).map(|user| format!("u{user}")).collect();
    let (mut most, mut admitted, mut degraded) = (0, 0, 0);
    for _ in 0..PERMITS + 5 {
        for user in &users {
            let decision = ask(user);
            admitted += u64::from(decision.allowed);
            degraded += u64::from(decision.rules.iter().any(|ruled| ruled.degraded));
        }
        most = most.max(store.heap_bytes());
    }
    // Each entry has 16 bytes, so that all of them would have 3 MiB and more.
    assert!(most <= ROOM + 16 * 4_096 && most > ROOM / 2, "{most} bytes");
    assert!(admitted > 0 && store.len().evicted > 0, "{admitted} admitted, {:?}", store.len());
    assert_eq!(degraded > 0, store.len().full > 0);
    assert!(!ask("first").allowed, "it was at its limit");

    // One log that is larger than all of the room for many.
    let alone = engine_with(&text.replace("2000", "200000"), false);
    let mut at = NOW;
    for permit in 0..200_001_u32 {
        at = at + Span(1);
        alone.set_now(at);
        assert_eq!(decide(&alone, &[("user", "ann")], 1).allowed, permit < 200_000, "{permit}");
    }
}

/// A rule that counts users of one kind.
fn of_kind(kind: &str, more: &str) -> String {
    format!("[[rules]]\nname = \"{kind}\"\nmatch = {{ kind = \"{kind}\" }}\nper = [\"user\"]\n{more}\n")
}

#[test]
fn every_denial_says_its_cause() {
    const COUNTS: &str = "algorithm = \"fixed_window\"\nlimit = 12\nwindow = \"1m\"";
    let global = |mode: &str| {
        let shares = if mode == "gossip" { "" } else { "shares = { here = 1, there = 2 }" };
        format!("{COUNTS}\n[rules.global]\nmode = \"{mode}\"\n{shares}")
    };
    let text = [
        of_kind("plain", COUNTS),
        of_kind("blocks", "action = \"block\""),
        of_kind("split", &global("split")),
        of_kind("escrow", &global("escrow")),
        of_kind("nothing", &COUNTS.replace("12", "0")),
        of_kind("drained", &global("split").replace("here = 1", "here = 0")),
        of_kind(
            "punishes",
            &format!("{COUNTS}\n[rules.penalty]\nthreshold = 1\nwindow = \"1m\"\ncool_down = \"1h\""),
        ),
    ];
    let engine = engine(&text.concat());
    let cause = |kind: &str, cost: i64| {
        let decision = decide(&engine, &[("kind", kind), ("user", "ann")], cost);
        assert_eq!(decision.allowed, decision.cause().is_none(), "{decision:?}");
        assert_eq!(decision.allowed, decision.rules[0].cause.is_none(), "{decision:?}");
        decision.cause()
    };
    for (kind, share) in [("plain", 12), ("split", 4)] {
        assert_eq!(cause(kind, share + 1), Some(DenialCause::TooLarge), "{kind}");
        assert_eq!(cause(kind, share), None);
        // Of a limit that is split the others have eight, and may have used none of them.
        let used = if kind == "split" { DenialCause::Elsewhere } else { DenialCause::UsedUp };
        assert_eq!(cause(kind, 1), Some(used), "{kind}");
        assert_eq!(cause(kind, 0), Some(used), "{kind}: a look");
    }
    assert_eq!([1, 5].map(|cost| cause("nothing", cost)), [Some(DenialCause::UsedUp); 2]);
    assert_eq!(cause("drained", 1), Some(DenialCause::UsedUp), "its share is nothing");
    assert_eq!(cause("drained", 13), Some(DenialCause::TooLarge), "for every region");
    assert_eq!(cause("blocks", 1), Some(DenialCause::Blocked));
    assert_eq!(cause("escrow", 13), Some(DenialCause::TooLarge));
    assert_eq!(cause("escrow", 4), None);
    assert_eq!(cause("escrow", 1), Some(DenialCause::Elsewhere), "eight are there");
    let mut touched = Vec::new();
    engine.drain_touched(&mut touched);
    let key = &touched.iter().find(|touched| touched.key.rule.name == "escrow").unwrap().key;
    engine.dry(key, NOW.window_index(Span::from_secs(60)));
    assert_eq!(cause("escrow", 1), Some(DenialCause::UsedUp), "nobody has any");
    WorldPort::elsewhere(&engine, OtherStores { stores: 1, regions: 2, cut_off: true, ..Default::default() });
    assert_eq!(cause("escrow", 1), Some(DenialCause::CutOff), "but one that was not asked");
    assert_eq!(cause("split", 1), Some(DenialCause::Elsewhere), "whoever is cut off");
    assert_eq!(cause("plain", 1), Some(DenialCause::UsedUp), "what no other region bears on");
    assert_eq!(cause("punishes", 13), Some(DenialCause::Penalty));
    assert_eq!(cause("punishes", 1), Some(DenialCause::Penalty));
    let page = engine.metrics().render();
    for line in [
        "tidegate_denials_total{rule=\"plain\",cause=\"used_up\"} 3",
        "tidegate_denials_total{rule=\"split\",cause=\"too_large\"} 1",
        "tidegate_denials_total{rule=\"blocks\",cause=\"blocked\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[test]
fn what_the_store_forgot_and_what_it_has_no_room_for_are_causes() {
    for (algorithm, cause) in [
        ("fixed_window", DenialCause::Burnt),
        ("sliding_window", DenialCause::Burnt),
        ("sliding_log", DenialCause::Burnt),
    ] {
        let text = format!(
            "[[rules]]\nname = \"r\"\nalgorithm = \"{algorithm}\"\nlimit = 12\nwindow = \"1m\"\n\
             [rules.global]\nmode = \"escrow\"\nshares = {{ here = 1, there = 2 }}\n"
        );
        let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
        let store = Arc::new(MemoryStore::new(100).begun(NOW));
        let clock = Clock::Manual(NOW.0.into());
        let engine = Engine::new(name, clock, store, Metrics::new()).lending(true);
        engine.load(rules(&text), Vec::new(), false).unwrap();
        let denied = decide(&engine, &[], 1);
        assert_eq!(denied.cause(), Some(cause), "{algorithm}");
        // The other region's rights of a window may come. What slides is shut until its windows are over.
        let soon = denied.rules[0].retry.unwrap() <= Span::from_secs(1);
        assert_eq!(soon, algorithm == "fixed_window", "{denied:?}");
        let mut touched = Vec::new();
        engine.drain_touched(&mut touched);
        engine.dry(&touched[0].key, NOW.window_index(Span::from_secs(60)));
        let retry = decide(&engine, &[], 1).rules[0].retry.unwrap();
        assert!(retry > Span::from_secs(1), "{algorithm}: nobody has any, and it says {retry:?}");
    }
    let text =
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\nlimit = 1\nwindow = \"1m\"\non_failure = \"closed\"\n";
    let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
    let store = Arc::new(MemoryStore::new(64));
    let engine = Engine::new(name, Clock::Manual(NOW.0.into()), store, Metrics::new());
    engine.load(rules(text), Vec::new(), false).unwrap();
    let first_denied = (0..10_000).find_map(|user| {
        let user = format!("u{user}");
        let first = decide(&engine, &[("user", &user)], 1);
        // At its limit a bucket is not forgotten.
        decide(&engine, &[("user", &user)], 1);
        first.cause()
    });
    assert_eq!(first_denied, Some(DenialCause::Degraded));
}

#[test]
fn under_gossip_a_cause_says_whether_the_world_has_room() {
    let text = "[[rules]]\nname = \"r\"\nalgorithm = \"fixed_window\"\nlimit = 12\nwindow = \"1m\"\n\
                [rules.global]\nmode = \"gossip\"\n";
    let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
    let store = Arc::new(MemoryStore::new(100));
    let engine = Engine::new(name, Clock::Manual(NOW.0.into()), Arc::clone(&store) as _, Metrics::new());
    engine.load(rules(text), Vec::new(), false).unwrap();
    decide(&engine, &[], 1);
    let mut touched = Vec::new();
    engine.drain_touched(&mut touched);
    let others = |cut_off, silence| {
        let known = OtherStores { stores: 2, regions: 3, cut_off, silence, ..OtherStores::default() };
        WorldPort::elsewhere(&engine, known);
    };
    let told = |others: u64| {
        let window = NOW.window_index(Span::from_secs(60));
        let view = WindowAllowance { window, budget: 1, next_budget: 1, others, others_before: 0 };
        let key = touched[0].key.clone();
        engine.apply(&Effect::View { key, view: Allowance::Window(view), error_bound: 0 });
        let denied = decide(&engine, &[], 1);
        (denied.cause().unwrap(), denied.rules[0].retry.unwrap() <= Span::from_secs(1))
    };
    others(false, Span::ZERO);
    assert_eq!(told(10), (DenialCause::Elsewhere, true));
    assert_eq!(told(11), (DenialCause::UsedUp, false));
    others(true, Span::from_secs(3));
    assert_eq!(told(10), (DenialCause::CutOff, false), "in a cut its part is all that it has");
    // The bound goes by the longest silence for a while yet; whoever is heard leaves more at once.
    others(false, Span::from_secs(3));
    assert_eq!(told(10), (DenialCause::Elsewhere, true));
}

/// A length of time between ten milliseconds and a year, short ones as often as long ones.
fn windows() -> impl Strategy<Value = Span> {
    (4.0..13.5_f64).prop_map(|digits| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within a year")]
        let millis = (10_f64.powf(digits) / 1_000.0) as u64;
        Span::from_millis(millis.clamp(10, 365 * 86_400_000))
    })
}

proptest! {
    /// Of every refusal: who waits as long as it says, alone, is admitted. Where the world may have room it
    /// says at most a round trip.
    #[test]
    fn who_waits_as_told_alone_is_admitted(
        algorithm in proptest::sample::select(Algorithm::OF_COSTS.to_vec()),
        mode in proptest::sample::select(vec!["", "gossip", "split", "escrow"]),
        permits in prop_oneof![3..10_u32, 10..100_000_u32],
        window in windows(),
        phase in 0..1_000_000_000_u64,
        asks in proptest::collection::vec((0..1_000_u64, prop_oneof![Just(1_u64), 1..400_u64]), 1..40),
    ) {
        let global = match mode {
            "" => String::new(),
            "gossip" => "[rules.global]\nmode = \"gossip\"\n".to_owned(),
            mode => format!("[rules.global]\nmode = \"{mode}\"\nshares = {{ here = 1, there = 2 }}\n"),
        };
        let written = serde_json::to_value(algorithm).unwrap();
        let text = format!(
            "[[rules]]\nname = \"r\"\nalgorithm = {written}\nlimit = {permits}\nwindow = \"{}ms\"\n{global}",
            window.0 / 1_000
        );
        let engine = engine(&text);
        let mut now = NOW + Span(phase);
        for (pause, thousandths) in asks {
            now = now + Span(window.0 / 1_000 * pause / 8);
            engine.set_now(now);
            let cost = i64::try_from((u64::from(permits) * thousandths / 1_000).max(1)).unwrap();
            let denied = decide(&engine, &[], cost);
            if denied.allowed {
                continue;
            }
            let (cause, retry) = (denied.cause().unwrap(), denied.rules[0].retry);
            match retry {
                None => prop_assert_eq!(cause, DenialCause::TooLarge),
                // Nobody is there who could send what is missing.
                Some(_) if cause == DenialCause::Elsewhere && mode != "split" => {
                    prop_assert_eq!(mode, "escrow");
                }
                Some(retry) => {
                    now = now + retry;
                    engine.set_now(now);
                    let again = decide(&engine, &[], cost);
                    prop_assert!(again.allowed, "{text}\nafter {retry:?}: {again:?}\nbefore: {denied:?}");
                }
            }
        }
    }
}
