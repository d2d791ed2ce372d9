//! Three daemons, a network that is late, crashes, and changes of mind: the shares in force must never add up
//! to too much.

use proptest::prelude::*;

use super::*;

mod growing;

const REGIONS: [&str; 3] = ["a", "b", "c"];
const WINDOW: Span = Span::from_secs(1);
const LIMIT: u64 = 100;

fn rule(weights: [u32; 3]) -> SplitRule {
    let shares: Vec<_> =
        REGIONS.iter().zip(weights).map(|(region, weight)| ((*region).to_owned(), weight)).collect();
    SplitRule {
        recall: Span::ZERO,
        name: RuleName { domain: "default".into(), name: "r".into() },
        weights: Weights::new(&shares, &[], &[]),
        algorithm: Algorithm::FixedWindow,
        limit: Limit { calendar: None, permits: 100, window: WINDOW, burst: 100, queue: 0 },
    }
}

fn name(place: usize) -> NodeName {
    NodeName { region: REGIONS[place].into(), node: "1".into() }
}

/// Three daemons, what each last said, and what each has heard of the others' sayings.
struct SplitWorld {
    now: Timestamp,
    nodes: Vec<Split>,
    disks: Vec<Saved>,
    files: Vec<[u32; 3]>,
    /// Everything that each has ever said, so that the network may deliver it late, though never out of
    /// order.
    said: Vec<Vec<WeightsStatement>>,
    heard: Vec<Vec<usize>>,
}

impl SplitWorld {
    fn new(weights: [u32; 3]) -> Self {
        let mut world = Self {
            now: Timestamp(1_000_000_000),
            nodes: (0..3).map(|place| Split::new(name(place), None)).collect(),
            disks: vec![Saved::default(); 3],
            files: vec![weights; 3],
            said: vec![Vec::new(); 3],
            heard: vec![vec![0; 3]; 3],
        };
        for place in 0..3 {
            world.load(place, weights);
        }
        world
    }

    fn load(&mut self, place: usize, weights: [u32; 3]) {
        self.files[place] = weights;
        self.nodes[place].handle_rules(self.now, vec![rule(weights)]);
        self.say(place);
    }

    fn say(&mut self, place: usize) {
        self.disks[place] = self.nodes[place].saved();
        let word = self.nodes[place].word();
        if self.said[place].last() != Some(&word) {
            self.said[place].push(word);
        }
    }

    fn restart(&mut self, place: usize) {
        self.nodes[place] = Split::new(name(place), Some(self.disks[place].clone()));
        self.heard[place] = vec![0; 3];
        self.load(place, self.files[place]);
    }

    /// `to` hears some more of what `from` has said.
    fn deliver(&mut self, from: usize, to: usize, words: usize) {
        self.heard[to][from] = (self.heard[to][from] + words).min(self.said[from].len());
        let members = (0..3).filter(|other| *other != to && self.heard[to][*other] > 0);
        let members: Vec<_> = members
            .map(|other| (name(other), self.said[other].get(self.heard[to][other] - 1).copied()))
            .collect();
        self.nodes[to].handle_members(self.now, members);
        self.say(to);
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        for place in 0..3 {
            self.nodes[place].handle_timeout(self.now);
            self.say(place);
        }
    }

    fn share(&self, place: usize) -> u64 {
        self.nodes[place].in_force(&rule([1; 3]).name).unwrap().of(LIMIT, REGIONS[place])
    }

    fn shares(&self) -> Vec<u64> {
        (0..3).map(|place| self.share(place)).collect()
    }

    /// Returns what each may spend of as many permits in so long a window.
    fn parts(&self, window: Span) -> Vec<u64> {
        let limit = Limit { window, ..rule([1; 3]).limit };
        let part = |place: usize| {
            let in_force = self.nodes[place].in_force(&rule([1; 3]).name).unwrap();
            u64::from(in_force.part(limit, REGIONS[place], self.now).permits)
        };
        (0..3).map(part).collect()
    }

    fn settle(&mut self) {
        for _ in 0..6 {
            for from in 0..3 {
                for to in 0..3 {
                    self.deliver(from, to, usize::MAX / 2);
                }
            }
            self.pass(Span::from_secs(2));
        }
    }
}

#[test]
fn a_larger_share_waits_until_everybody_holds_the_same_weights() {
    let mut world = SplitWorld::new([60, 40, 0]);
    world.settle();
    assert_eq!(world.shares(), [60, 40, 0]);
    world.load(1, [20, 40, 40]);
    world.load(0, [20, 40, 40]);
    assert_eq!(world.shares(), [20, 40, 0], "shrinking is at once");
    world.settle();
    assert_eq!(world.shares(), [20, 40, 0], "c still holds the old weights");
    let waiting = world.nodes[0].standings();
    assert_eq!(waiting[0].waiting_for, ["c/1"]);
    world.load(2, [20, 40, 40]);
    world.settle();
    assert_eq!(world.shares(), [20, 40, 40]);
    assert!(world.nodes.iter().all(|node| node.standings()[0].settled));
}

#[test]
fn growth_begins_with_a_window() {
    let mut world = SplitWorld::new([50, 50, 0]);
    world.settle();
    for place in 0..3 {
        world.load(place, [40, 60, 0]);
    }
    world.now = Timestamp(world.now.micros() / 1_000_000 * 1_000_000 + 500_000);
    for _ in 0..2 {
        for from in 0..3 {
            for to in 0..3 {
                world.deliver(from, to, 9);
            }
        }
    }
    // The one after next, and one more: another region's clock may be two seconds ahead.
    world.pass(Span::from_millis(2_499));
    assert_eq!(world.shares(), [40, 50, 0]);
    world.pass(Span::from_millis(1));
    assert_eq!(world.shares(), [40, 60, 0]);
}

#[test]
fn of_a_limit_that_counts_for_longer_the_smaller_share_is_in_force_until_it_does_not() {
    const HOUR: Span = Span::from_secs(3_600);
    let mut world = SplitWorld::new([50, 50, 0]);
    world.now = Timestamp::window_start(7, HOUR) + Span::from_secs(60);
    world.settle();
    for place in 0..3 {
        world.load(place, [20, 80, 0]);
    }
    world.settle();
    assert_eq!(world.shares(), [20, 80, 0]);
    assert_eq!(world.parts(WINDOW), [20, 80, 0]);
    assert_eq!(world.parts(HOUR), [20, 50, 0], "half may have been spent by a in this hour");
    world.restart(1);
    assert_eq!(world.parts(HOUR), [20, 50, 0], "also after a restart");
    world.now = Timestamp::window_start(8, HOUR);
    assert_eq!(world.parts(HOUR), [20, 80, 0]);
    // As often as it changes within an hour, the least that each had is in force.
    for turn in 0..2 * FORMER_MAX {
        for place in 0..3 {
            world.load(place, if turn % 2 == 0 { [70, 30, 0] } else { [40, 60, 0] });
        }
        world.settle();
    }
    assert_eq!(world.shares(), [40, 60, 0]);
    assert_eq!(world.parts(HOUR), [20, 30, 0]);
    let settled = world.nodes[0].saved();
    assert!(settled.rules[0].former.len() <= FORMER_MAX);
    world.now = Timestamp::window_start(9, HOUR);
    assert_eq!(world.parts(HOUR), [40, 60, 0]);
}

#[test]
fn a_clock_that_goes_back_gives_back_what_it_has_not_yet_come_to() {
    let mut world = SplitWorld::new([50, 50, 0]);
    world.settle();
    for place in 0..3 {
        world.load(place, [40, 60, 0]);
    }
    world.settle();
    assert_eq!(world.shares(), [40, 60, 0]);
    let now = world.now;
    world.now = Timestamp(now.micros() - 20_000_000);
    world.pass(Span::ZERO);
    assert_eq!(world.shares(), [40, 50, 0]);
    world.load(1, [30, 70, 0]);
    assert_eq!(world.shares(), [40, 50, 0], "also while the next change is under way");
    world.load(0, [30, 70, 0]);
    world.load(2, [30, 70, 0]);
    world.now = now;
    world.settle();
    assert_eq!(world.shares(), [30, 70, 0]);
}

#[test]
fn a_region_that_nobody_has_heard_of_keeps_the_smaller_share_in_force() {
    let mut split = Split::new(name(0), None);
    split.handle_rules(Timestamp(5), vec![rule([10, 90, 0])]);
    split.handle_rules(Timestamp(6), vec![rule([90, 10, 0])]);
    split.handle_members(Timestamp(7), []);
    assert!(!split.handle_timeout(Timestamp(9_000_000_000)));
    let in_force = split.in_force(&rule([1; 3]).name).unwrap();
    assert_eq!(in_force.of(LIMIT, "a"), 10);
    assert_eq!(["a", "b"].map(|region| in_force.grows(LIMIT, region)), [true, false]);
}

#[test]
fn more_changes_than_are_kept_leave_nothing_rather_than_too_much() {
    let mut split = Split::new(name(0), None);
    for weight in 1..30 {
        split.handle_rules(Timestamp(u64::from(weight)), vec![rule([weight, 100, 0])]);
    }
    assert_eq!(split.in_force(&rule([1; 3]).name).unwrap().of(LIMIT, "a"), 0);
}

#[derive(Debug, Clone)]
enum SplitAct {
    Load(usize, [u32; 3]),
    Deliver(usize, usize, usize),
    Restart(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = SplitAct> {
    let choices = [[60, 40, 0], [40, 60, 0], [20, 20, 60], [60, 40, 0]];
    prop_oneof![
        3 => (0..3_usize, prop::sample::select(choices.to_vec())).prop_map(|(place, to)| SplitAct::Load(place, to)),
        6 => (0..3_usize, 0..3_usize, 0..3_usize).prop_map(|(from, to, words)| SplitAct::Deliver(from, to, words)),
        1 => (0..3_usize).prop_map(SplitAct::Restart),
        2 => (0..1_500_u64).prop_map(SplitAct::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_shares_in_force_never_add_up_to_more_than_the_limit(steps in prop::collection::vec(step(), 1..120)) {
        const LONG: Span = Span::from_secs(20);
        let mut world = SplitWorld::new([60, 40, 0]);
        let (mut window, mut spent) = (0, vec![0; 3]);
        for step in steps {
            match step {
                SplitAct::Load(place, weights) => world.load(place, weights),
                SplitAct::Deliver(from, to, words) => world.deliver(from, to, words),
                SplitAct::Restart(place) => world.restart(place),
                SplitAct::Pass(millis) => world.pass(Span::from_millis(millis)),
            }
            let shares = world.shares();
            prop_assert!(shares.iter().sum::<u64>() <= LIMIT, "{shares:?}");
            // Of a limit with a longer window everybody spends at once whatever it may.
            if world.now.window_index(LONG) > window {
                (window, spent) = (world.now.window_index(LONG), vec![0; 3]);
            }
            let parts = world.parts(LONG);
            spent = spent.iter().zip(parts).map(|(spent, part)| part.max(*spent)).collect();
            prop_assert!(spent.iter().sum::<u64>() <= LIMIT, "{spent:?} in one long window");
        }
        for place in 0..3 {
            world.load(place, [20, 20, 60]);
        }
        world.settle();
        prop_assert_eq!(world.shares(), [20, 20, 60], "and all of it is used once all agree");
    }
}
