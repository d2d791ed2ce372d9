//! Limits that a bucket has in place of its rule's: every region divides by the one that holds.

use super::*;
use crate::wire::OwnLimit;

const SECOND: Span = Span::from_secs(1);

const fn own(permits: u32) -> Option<OwnLimit> {
    Some(OwnLimit { permits, burst: permits, queue: 0 })
}

/// Several regions whose stores decide by the limits that they know.
struct Played {
    cluster: GossipCluster,
    used: BTreeMap<(NodeName, u64), u64>,
    levels: BTreeMap<NodeName, (Timestamp, u64)>,
}

impl Played {
    fn new(regions: &[&str]) -> Self {
        let rule = rule(Algorithm::FixedWindow, 20, SECOND, OnPartition::default());
        let names: Vec<_> = regions.iter().map(|region| (*region, "1")).collect();
        Self { cluster: GossipCluster::new(&names, &rule), used: BTreeMap::new(), levels: BTreeMap::new() }
    }

    /// A region is asked for one permit. Whether it was there.
    fn ask(&mut self, region: &str, own: Option<OwnLimit>) -> bool {
        let (who, window) = (name(region, "1"), self.cluster.now.window_index(SECOND));
        let limit = own.map_or(20, |own| own.permits);
        let budget =
            self.cluster.views[&who].get(&key("u")).map_or(limit, |view| match window_of(view).window {
                known if known == window => window_of(view).budget.min(limit),
                known if known + 1 == window => window_of(view).next_budget.min(limit),
                _ => limit,
            });
        let used = self.used.entry((who.clone(), window)).or_default();
        let admitted = u64::from(*used < u64::from(budget));
        *used += admitted;
        let (key, refused) = (key("u"), 1 - admitted);
        self.cluster.touch(
            &who,
            &Touched {
                key,
                window,
                offered: 1,
                admitted,
                returned: 0,
                refused,
                largest: 1,
                own,
                without_allowance: false,
            },
        );
        admitted > 0
    }

    /// For so many windows each of these regions is asked for so many permits in each tick. The most and the
    /// fewest that were admitted in one of them, but for the first two.
    fn windows(&mut self, count: u64, asked: &[(&str, u64, Option<OwnLimit>)]) -> (u64, u64) {
        let next = self.cluster.now.window_index(SECOND) + 1;
        while self.cluster.now.window_index(SECOND) < next + count {
            for &(region, times, own) in asked {
                (0..times).for_each(|_| {
                    self.ask(region, own);
                });
            }
            self.cluster.run(TICK);
        }
        let all = |window| {
            self.used.iter().filter(|((_, of), _)| *of == window).map(|(_, used)| *used).sum::<u64>()
        };
        let seen: Vec<u64> = (next + 2..next + count).map(all).collect();
        (seen.iter().copied().max().unwrap_or(0), seen.iter().copied().min().unwrap_or(0))
    }
}

#[test]
fn a_raised_limit_is_held_and_used_wherever_it_is_asked_for() {
    for asked in [&["a"][..], &["a", "b", "c"]] {
        let mut played = Played::new(&["a", "b", "c"]);
        let asked: Vec<_> = asked.iter().map(|region| (*region, 6, own(300))).collect();
        let (most, fewest) = played.windows(8, &asked);
        assert!(most <= 306 && fewest >= 290, "{fewest} to {most} of 300 from {asked:?}");
        for replica in played.cluster.replicas.values() {
            assert_eq!(replica.status(played.cluster.now).tally.beyond, 0);
        }
    }
}

#[test]
fn a_lowered_limit_is_held_in_all_regions_together() {
    let mut played = Played::new(&["a", "b", "c"]);
    let asked = ["a", "b", "c"].map(|region| (region, 2, own(6)));
    let (most, fewest) = played.windows(8, &asked);
    assert!(most <= 6 && fewest >= 5, "{fewest} to {most} of 6");
}

#[test]
fn a_limit_that_changes_is_held_while_only_one_region_is_asked_and_others_know_the_one_before() {
    let mut played = Played::new(&["a", "b"]);
    played.windows(4, &[("a", 2, own(300)), ("b", 2, own(300))]);
    // One has it sooner than the other.
    let (most, _) = played.windows(4, &[("a", 4, own(60)), ("b", 2, own(300))]);
    assert!(most <= 303, "{most} of 300, the larger");
    let (most, fewest) = played.windows(6, &[("a", 4, own(60)), ("b", 2, own(60))]);
    assert!(most <= 62 && fewest >= 55, "{fewest} to {most} of 60");
    let (most, fewest) = played.windows(6, &[("a", 4, None)]);
    assert!(most <= 20 && fewest >= 18, "{fewest} to {most} of the rule's 20");
    let (most, fewest) = played.windows(6, &[("b", 4, own(200))]);
    assert!(most <= 204 && fewest >= 180, "{fewest} to {most} of 200");
    for replica in played.cluster.replicas.values() {
        let above: u64 = replica.status(played.cluster.now).overshoot.iter().map(|(_, above)| above).sum();
        assert!(above <= 10, "{above} permits above a limit");
    }
}

#[test]
fn whom_nobody_asked_divides_by_what_the_others_say() {
    let mut played = Played::new(&["a", "b"]);
    played.windows(3, &[("a", 4, own(300))]);
    let window = played.cluster.now.window_index(SECOND);
    let budgets: u32 = ["a", "b"]
        .map(|region| played.cluster.views[&name(region, "1")][&key("u")])
        .map(|view| *window_of(&view))
        .iter()
        .map(|view| if view.window == window { view.budget } else { view.next_budget })
        .sum();
    assert_eq!(budgets, 300);
}

#[test]
fn a_bucket_without_windows_is_filled_and_drained_by_its_own_limit() {
    let rule = rule(Algorithm::TokenBucket, 20, SECOND, OnPartition::default());
    let mut played = Played::new(&["a", "b"]);
    played.cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    let mut admitted = 0_u64;
    for tick in 0..1_000 {
        for region in ["a", "b"] {
            let (who, now) = (name(region, "1"), played.cluster.now);
            let debts = played.cluster.debits.remove(&who).unwrap_or_default();
            // In millionths of a permit.
            let (at, used) = played.levels.entry(who.clone()).or_insert((now, 0));
            *used = used.saturating_sub(now.since(*at).0 * 300) + debts * 1_000_000;
            *at = now;
            let held = played.cluster.views[&who].get(&key("u")).map_or(0, |view| {
                let view = level(view);
                let grown = u64::from(view.growth) * now.since(view.since).0;
                (view.held_back * 1_000_000 + grown).min(u64::from(view.held_back_max) * 1_000_000)
            });
            let taken = (300_000_000_u64.saturating_sub(*used + held) / 1_000_000).min(4);
            *used += taken * 1_000_000;
            admitted += if tick >= 300 { taken } else { 0 };
            let (key, refused) = (key("u"), u64::from(taken < 4));
            let own = own(300);
            let touched = Touched {
                key,
                window: 0,
                offered: 4,
                admitted: taken,
                returned: 0,
                refused,
                largest: 1,
                own,
                without_allowance: false,
            };
            played.cluster.touch(&who, &touched);
        }
        played.cluster.run(TICK);
    }
    assert!((1_950..=2_130).contains(&admitted), "{admitted} in seven seconds of 300 a second");
}
