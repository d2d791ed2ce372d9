//! What others say, how often daemons come and go, and clocks that are set: none of it stops a daemon, or fills it.

use super::*;

const HOUR: Span = Span::from_secs(3_600);

fn told_by_b(at: Timestamp, label: u64, user: &str, window: u64, admitted: u64) -> Report {
    let good = report(Scope::Region("b".to_owned()), "1", at);
    let subject = good.subject.map(|subject| Subject { identity: key(user).identity, ..subject });
    Report {
        label,
        subject,
        window,
        amounts: std::iter::once(Amount { admitted, returned: 0 }).collect(),
        ..good
    }
}

fn listening(keys_max: usize, rule: WorldRule) -> Replica {
    let mut config = ReplicaConfig::new(name("a", "1"), 1);
    config.regions = ["a", "b"].map(str::to_owned).to_vec();
    config.keys_max = keys_max;
    let mut replica = Replica::new(config);
    replica.handle_rules(START, 1, vec![rule]);
    replica
}

#[test]
fn of_a_bucket_without_windows_the_first_claim_is_believed_no_further_than_any_other() {
    let rule = rule(Algorithm::TokenBucket, 100, Span::from_secs(1), OnPartition::default());
    let mut replica = listening(100, rule);
    let claim = told_by_b(START, 1, "u", 0, 100_000_000_000);
    assert_eq!(replica.handle_frame(START, &name("b", "1"), frame(vec![claim])), Ok(()));
    let mut charged = 0;
    while let Some(effect) = replica.poll_effect() {
        if let Effect::Debit { permits, .. } = effect {
            charged += permits;
        }
    }
    assert_eq!(charged, 200, "twice what the bucket holds");
    assert_eq!(replica.tally().beyond, 1);
}

#[test]
fn buckets_that_only_others_ask_for_make_room_for_those_that_are_asked_for_here() {
    let (rule, window) = minute();
    let mut replica = listening(200, rule);
    let claims = (0..200).map(|user| told_by_b(START, user + 1, &format!("theirs{user}"), window, 1_000));
    assert_eq!(replica.handle_frame(START, &name("b", "1"), frame(claims.collect())), Ok(()));
    assert_eq!(replica.status(START).keys_len, 200);
    let ours = (0..100).map(|user| format!("ours{user}"));
    let followed = ours.filter(|user| {
        let touched = Touched { key: key(user), window, offered: 1, admitted: 1, returned: 0, refused: 0 };
        replica.handle_touched(START, &touched);
        replica.bucket(START, &key(user)).is_some()
    });
    assert_eq!(followed.count(), 100);
}

#[test]
fn a_daemon_is_spoken_with_however_many_came_and_went_before_it() {
    let (rule, _) = minute();
    let mut replica = listening(100, rule);
    let member = |node: &str, live| Member { name: name("b", node), incarnation: 1, live, draining: false };
    for n in 0..LINKS_MAX + 10 {
        let node = format!("n{n}");
        replica.handle_members(START, &[member(&node, true)]);
        let peers = replica.status(START).peers;
        assert!(peers.len() <= LINKS_MAX && peers.iter().any(|peer| peer.live && peer.name.node == node));
        replica.handle_members(START, &[member(&node, false)]);
    }
    // As many as there is room for stay: no newcomer takes the place of one that is there.
    let all: Vec<Member> = (0..LINKS_MAX + 10).map(|n| member(&format!("n{n}"), true)).collect();
    replica.handle_members(START, &all);
    assert_eq!(replica.status(START).peers.iter().filter(|peer| peer.live).count(), LINKS_MAX);
}

#[test]
fn a_clock_that_is_set_back_stops_nobody_from_telling() {
    let rule = rule(Algorithm::FixedWindow, 1_000, HOUR, OnPartition::default());
    let window = START.window_index(HOUR);
    let mut table = Table::new(&[("a", "1"), ("b", "1")], &rule);
    table.admit(&name("a", "1"), "u", window, 30);
    table.run(Span::from_millis(300));
    table.now = Timestamp(table.now.0 - 8_000_000);
    table.flying.clear();
    table.run(Span::from_millis(300));
    table.admit(&name("a", "1"), "u", window, 5);
    table.run(Span::from_millis(300));
    assert_eq!(table.believed(&name("b", "1"), "u", window), regions(&[("a", 35)]));
    let status = table.replicas[&name("b", "1")].status(table.now);
    assert!(status.regions.iter().all(|region| !region.cut_off));
}

#[test]
fn a_larger_burst_is_there_at_once() {
    let minutely = |burst| {
        let plain = rule(Algorithm::TokenBucket, 1, Span::from_secs(60), OnPartition::default());
        WorldRule { limit: Limit { burst, ..plain.limit }, ..plain }
    };
    let a = name("a", "1");
    let mut table = Table::new(&[("a", "1"), ("b", "1")], &minutely(10));
    table.admit(&a, "u", 0, 1);
    table.run(Span::from_millis(500));
    for replica in table.replicas.values_mut() {
        replica.handle_rules(table.now, 2, vec![minutely(1_000)]);
    }
    table.admit(&a, "u", 0, 1);
    table.run(Span::from_millis(500));
    let held = table.views[&a].get(&key("u")).map_or(0, |view| view.others);
    assert!(held < 600, "{held} of a thousand are kept for others, where two were used");
}
