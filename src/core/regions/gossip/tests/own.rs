//! Limits that a bucket has in place of its rule's: every region divides by the one that holds.

use super::*;
use crate::regions::gossip::own_limit::Own;
use crate::regions::membership::Regions;
use crate::wire::OwnLimit;

const SECOND: Span = Span::from_secs(1);

fn decided(permits: u32) -> DecidedBy {
    own(permits).map_or(DecidedBy::Rule, DecidedBy::Own)
}

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
        let (who, window) = (name(region, "1"), self.cluster.now().window_index(SECOND));
        let limit = own.map_or(20, |own| own.permits);
        let budget =
            self.cluster.views(&who).get(&key("u")).map_or(limit, |view| match window_of(view).window {
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
                store: StoreSeen::default(),
            },
        );
        admitted > 0
    }

    /// For so many windows each of these regions is asked for so many permits in each tick. The most and the
    /// fewest that were admitted in one of them, but for the first two.
    fn windows(&mut self, count: u64, asked: &[(&str, u64, Option<OwnLimit>)]) -> (u64, u64) {
        let next = self.cluster.now().window_index(SECOND) + 1;
        while self.cluster.now().window_index(SECOND) < next + count {
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
        for (_, replica) in played.cluster.replicas() {
            assert_eq!(replica.status(played.cluster.now()).tally.beyond, 0);
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

/// A frame as it comes over a link of the older wire version, which has no word for what is not known.
pub(super) fn in_older_version(frame: &Frame) -> Frame {
    let mut bytes = Vec::new();
    compact::write(WireVersion::PREVIOUS, frame, &mut bytes);
    compact::read(WireVersion::PREVIOUS, &bytes).unwrap()
}

#[test]
fn with_a_region_of_the_older_wire_version_limits_of_their_own_are_held_as_well() {
    let among = |limit: u32, times: u64| {
        let mut played = Played::new(&["a", "b", "c"]);
        played.cluster.set_older("b");
        let (most, fewest) = played.windows(8, &["a", "b", "c"].map(|region| (region, times, own(limit))));
        let (only_b, _) = played.windows(6, &[("b", 3 * times, own(limit))]);
        let (rules, fewest_of_rule) = played.windows(8, &["a", "b", "c"].map(|region| (region, times, None)));
        assert!(rules <= 21 && fewest_of_rule >= 18, "{fewest_of_rule} to {rules} of the rule's 20");
        (most.max(only_b), fewest)
    };
    let (most, fewest) = among(300, 6);
    assert!(most <= 306 && fewest >= 290, "{fewest} to {most} of 300");
    let (most, fewest) = among(6, 2);
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
    for (_, replica) in played.cluster.replicas() {
        let above: u64 = replica.status(played.cluster.now()).overshoot.iter().map(|(_, above)| above).sum();
        assert!(above <= 10, "{above} permits above a limit");
    }
}

#[test]
fn whom_nobody_asked_divides_by_what_the_others_say() {
    let mut played = Played::new(&["a", "b"]);
    played.windows(3, &[("a", 4, own(300))]);
    let window = played.cluster.now().window_index(SECOND);
    let budgets: u32 = ["a", "b"]
        .map(|region| played.cluster.views(&name(region, "1"))[&key("u")])
        .map(|view| *window_of(&view))
        .iter()
        .map(|view| if view.window == window { view.budget } else { view.next_budget })
        .sum();
    assert_eq!(budgets, 300);
}

#[test]
fn a_limit_outlasts_what_others_pass_on_who_do_not_know_it_and_ends_where_its_own_daemons_say_so() {
    // A daemon speaks of region a, which decides by an own limit of 6.
    let said = |from: NodeName, scope: Scope, decided_by: DecidedBy| {
        let rule = rule(Algorithm::FixedWindow, 20, SECOND, OnPartition::default());
        let mut cluster = GossipCluster::new(&[("a", "1"), ("a", "2"), ("b", "1")], &rule);
        let (here, window) = (name("a", "1"), cluster.now().window_index(SECOND));
        cluster.touch(&here, &Touched { own: own(6), ..touched("u", window, 3, 1) });
        cluster.set_clocks(cluster.now() + Span::from_millis(500));
        let now = cluster.now();
        let mut passed_on = report(scope, "2", now);
        passed_on.window = window;
        passed_on.subject.as_mut().unwrap().decided_by = decided_by;
        let heard = Frame { sent: now, incarnation: u64::MAX, ..frame(vec![passed_on]) };
        let replica = cluster.replica_mut(&here);
        replica.handle_frame(now, &from, heard).unwrap();
        let id = replica.keys.find(&key("u")).unwrap();
        replica.keys.get(id).unwrap().own_limit()
    };
    let of_a = || Scope::Region("a".into());
    assert_eq!(said(name("b", "1"), of_a(), DecidedBy::Unknown), own(6), "another region passes it on");
    assert_eq!(said(name("a", "2"), of_a(), DecidedBy::Unknown), own(6), "so does another daemon of a");
    assert_eq!(said(name("a", "2"), Scope::Node, DecidedBy::Rule), None, "a daemon of a decides otherwise");
}

#[test]
fn a_daemon_says_by_which_limit_its_region_decides_where_it_knows() {
    let mut known = Own::default();
    let (here, there) = (Regions::OWN, Regions::OWN + 1);
    let rules = Limit { calendar: None, permits: 20, window: SECOND, burst: 20, queue: 0 };
    assert_eq!(
        [known.said_by(here, true), known.said_by(here, false)],
        [DecidedBy::Rule, DecidedBy::Unknown]
    );
    assert_eq!(known.said_by(there, true), DecidedBy::Unknown, "it does not know what another region knows");
    known.hear((START, START), there, own(6), (&rules, &rules));
    assert_eq!([here, there].map(|id| known.said_by(id, true)), [DecidedBy::Unknown, decided(6)]);
    known.hear((START, START), here, own(6), (&rules, &rules));
    assert_eq!([here, there].map(|id| known.said_by(id, true)), [decided(6), DecidedBy::Unknown]);
    known.hear((START, START), here, None, (&rules, &rules));
    assert_eq!(known.said_by(here, true), DecidedBy::Rule, "it has no limit of its own any more");
}

#[test]
fn a_bucket_without_windows_is_filled_and_drained_by_its_own_limit() {
    let rule = rule(Algorithm::TokenBucket, 20, SECOND, OnPartition::default());
    let mut played = Played::new(&["a", "b"]);
    played.cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    let mut admitted = 0_u64;
    for tick in 0..1_000 {
        for region in ["a", "b"] {
            let (who, now) = (name(region, "1"), played.cluster.now());
            let debts = played.cluster.take_debits(&who);
            // In millionths of a permit.
            let (at, used) = played.levels.entry(who.clone()).or_insert((now, 0));
            *used = used.saturating_sub(now.since(*at).0 * 300) + debts * 1_000_000;
            *at = now;
            let held = played.cluster.views(&who).get(&key("u")).map_or(0, |view| {
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
                store: StoreSeen::default(),
            };
            played.cluster.touch(&who, &touched);
        }
        played.cluster.run(TICK);
    }
    assert!((1_950..=2_130).contains(&admitted), "{admitted} in seven seconds of 300 a second");
}
