//! Users who ask seldom, of buckets without windows that refill in about a second, while a daemon begins
//! anew.

use super::lost_store::TestedStore;
use super::*;

/// Two regions; a user asks in one of them each 1.4 s. The other one's daemon begins anew, and he asks there
/// too, first so long after that, and then each two seconds. Returns how many of his requests there were
/// refused in half a minute.
fn refused_after_a_restart(
    (rule, user, seed): (&WorldRule, &str, u64),
    first: Span,
    shared_store: bool,
) -> (u64, u64) {
    let names = ["eu", "us"].map(|region| name(region, "1"));
    let mut cluster = GossipCluster::seeded(seed, &[], rule);
    (cluster.shared_store, cluster.suppresses_reports) = (shared_store, true);
    names.iter().for_each(|who| cluster.start(who, rule));
    cluster.meet();
    cluster.run(Span::from_secs(4));
    let mut stores = names.each_ref().map(|who| TestedStore::of(rule, who, user));
    let turn = |cluster: &mut GossipCluster, stores: &mut [TestedStore; 2], tick: u64, us: Option<u64>| {
        let mut refused = 0;
        if tick.is_multiple_of(140) {
            stores[0].ask(cluster, 1);
        }
        if us.is_some_and(|since| since.is_multiple_of(200)) {
            refused = 1 - stores[1].ask(cluster, 1);
        }
        cluster.run(Span::from_millis(10));
        stores.iter_mut().for_each(|store| store.hear(cluster));
        refused
    };
    // Both are asked for a while, as before the restart.
    for tick in 0..1_000 {
        turn(&mut cluster, &mut stores, tick, Some(tick + 70));
    }
    cluster.run(Span::from_millis(100));
    cluster.start(&names[1], rule);
    if !shared_store {
        stores[1].empty();
    }
    cluster.meet();
    let (mut refused, mut asked, first) = (0, 0, first.0 / 10_000);
    for tick in 0..3_000_u64 {
        let since = tick.checked_sub(first);
        asked += u64::from(since.is_some_and(|since| since.is_multiple_of(200)));
        refused += turn(&mut cluster, &mut stores, tick, since);
    }
    (refused, asked)
}

#[test]
fn who_asks_seldom_is_not_refused_after_a_restart_while_nothing_is_used() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        for shared_store in [false, true] {
            let rule = rule(algorithm, 10, Span::from_secs(1), OnPartition::default());
            let mut worst = (0, 0);
            for user in 0..16 {
                let first = Span::from_millis(250 * user);
                let result = refused_after_a_restart((&rule, &format!("u{user}"), user), first, shared_store);
                worst = worst.max(result);
            }
            assert!(worst.0 <= 1, "{algorithm:?}, shared {shared_store}: {worst:?} were refused");
        }
    }
}

#[test]
fn no_restart_admits_a_permit_more_of_a_level_that_is_used_up() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        for permits in [1, 2, 5, 10, 100] {
            let rule = rule(algorithm, permits, Span::from_secs(30 * 86_400), OnPartition::default());
            let names = ["a", "b", "c"].map(|region| name(region, "1"));
            let mut cluster = GossipCluster::new(&[], &rule);
            cluster.suppresses_reports = true;
            names.iter().for_each(|who| cluster.start(who, &rule));
            cluster.meet();
            cluster.run(Span::from_secs(4));
            let mut stores = names.each_ref().map(|who| TestedStore::of(&rule, who, "u"));
            let mut admitted = 0;
            let mut ask =
                |cluster: &mut GossipCluster, stores: &mut [TestedStore; 3], who: usize, times: u32| {
                    for _ in 0..times {
                        admitted += stores[who].ask(cluster, 1);
                        for _ in 0..5 {
                            cluster.run(TICK);
                            stores.iter_mut().for_each(|store| store.hear(cluster));
                        }
                    }
                    admitted
                };
            let used = ask(&mut cluster, &mut stores, 0, permits + 20);
            for (nth, who) in [0, 1, 0, 1, 0, 1].into_iter().enumerate() {
                cluster.run(Span::from_secs(1));
                cluster.start(&names[who], &rule);
                stores[who].empty();
                cluster.meet();
                for _ in 0..600 {
                    cluster.run(TICK);
                    stores.iter_mut().for_each(|store| store.hear(&mut cluster));
                }
                let all = ask(&mut cluster, &mut stores, who, 20);
                assert!(
                    all <= u64::from(permits),
                    "{algorithm:?}: {used} of {permits} before, {all} after restart {nth}"
                );
            }
        }
    }
}
