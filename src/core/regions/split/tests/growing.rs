//! Daemons of three or four regions that agree, are added and removed, and come back without their disks.

use proptest::prelude::*;

use super::*;

/// The list of regions that a daemon is configured with, and whether it has ever been started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Three,
    Four,
}

const WITH_D: [&str; 4] = ["a", "b", "c", "d"];

/// Daemons of four regions, the last of which may be missing in the lists of the others. All share alike.
struct Growing {
    /// How many processes began so far.
    lives: u64,
    /// Whether the process of a daemon may have spent something, and whether an earlier one may.
    spends: [bool; 4],
    spent: [bool; 4],
    now: Timestamp,
    nodes: [Option<Split>; 4],
    disks: [Option<Saved>; 4],
    said: [Vec<WeightsStatement>; 4],
    heard: [[usize; 4]; 4],
}

impl Growing {
    fn new() -> Self {
        Self {
            lives: 0,
            spends: [false; 4],
            spent: [false; 4],
            now: Timestamp(1_000_000_000),
            nodes: [const { None }; 4],
            disks: [const { None }; 4],
            said: [const { Vec::new() }; 4],
            heard: [[0; 4]; 4],
        }
    }

    fn name(place: usize) -> NodeName {
        NodeName { region: WITH_D[place].into(), node: "1".into() }
    }

    fn rule(list: List) -> SplitRule {
        let regions: Vec<String> = match list {
            List::Three => REGIONS.map(str::to_owned).into(),
            List::Four => WITH_D.map(str::to_owned).into(),
        };
        SplitRule { weights: Weights::new(&[], &[], &regions), ..rule([1; 3]) }
    }

    /// Starts a daemon, or starts it again with what it had on disk.
    fn start(&mut self, place: usize, list: List) {
        let rule = Self::rule(list);
        let regions: Vec<String> = rule.weights.regions().map(str::to_owned).collect();
        let mut split =
            Split::new(Self::name(place), self.disks[place].clone()).among(&RegionList::of(regions));
        self.lives += 1;
        self.spent[place] |= std::mem::take(&mut self.spends[place]);
        split = split.born(self.lives);
        split.handle_store(true);
        split.handle_rules(self.now, vec![rule]);
        self.nodes[place] = Some(split);
        self.heard[place] = [0; 4];
        self.say(place);
    }

    fn say(&mut self, place: usize) {
        let Some(split) = &mut self.nodes[place] else { return };
        let saved = split.saved();
        split.handle_saved(&saved);
        self.disks[place] = Some(split.saved());
        let word = split.word();
        if self.said[place].last() != Some(&word) {
            self.said[place].push(word);
        }
    }

    fn deliver(&mut self, from: usize, to: usize, words: usize) {
        self.heard[to][from] = (self.heard[to][from] + words).min(self.said[from].len());
        let members = (0..4).filter(|other| *other != to && self.heard[to][*other] > 0);
        let members: Vec<_> = members
            .map(|other| (Self::name(other), self.said[other].get(self.heard[to][other] - 1).copied()))
            .collect();
        let Some(split) = &mut self.nodes[to] else { return };
        split.handle_members(self.now, members);
        self.say(to);
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        for place in 0..4 {
            if let Some(split) = &mut self.nodes[place] {
                split.handle_timeout(self.now);
            }
            self.say(place);
        }
    }

    /// Those that take themselves for part of a first start although an earlier process of theirs may have
    /// spent something.
    fn deceived(&mut self) -> Vec<&'static str> {
        let shares = self.shares();
        for (spends, share) in self.spends.iter_mut().zip(shares) {
            *spends |= share > 0;
        }
        let first =
            |place: &usize| self.nodes[*place].as_ref().is_some_and(|one| one.first_start().is_some());
        (0..4).filter(first).filter(|place| self.spent[*place]).map(|place| WITH_D[place]).collect()
    }

    fn shares(&self) -> [u64; 4] {
        std::array::from_fn(|place| {
            let in_force =
                self.nodes[place].as_ref().and_then(|split| split.in_force(&Self::rule(List::Three).name));
            in_force.map_or(0, |in_force| in_force.of(LIMIT, WITH_D[place]))
        })
    }

    fn talk(&mut self) {
        for from in 0..4 {
            for to in 0..4 {
                self.deliver(from, to, usize::MAX / 8);
            }
        }
        self.pass(Span::from_millis(50));
    }

    fn settle(&mut self) {
        for _ in 0..8 {
            self.talk();
            self.pass(Span::from_secs(2));
        }
    }
}

#[test]
fn a_new_cluster_spends_as_soon_as_every_listed_region_has_said_the_same() {
    let mut world = Growing::new();
    for place in 0..2 {
        world.start(place, List::Three);
    }
    world.settle();
    assert_eq!(world.shares(), [0; 4], "nobody knows what c holds");
    let waiting = world.nodes[0].as_ref().unwrap().standings();
    assert!(waiting[0].waits && !waiting[0].settled, "{waiting:?}");
    assert_eq!(waiting[0].waiting_for, ["c"]);
    world.start(2, List::Three);
    for _ in 0..4 {
        world.talk();
    }
    assert_eq!(world.shares(), [34, 33, 33, 0], "without waiting for a window: nobody spent anything before");
}

#[test]
fn a_region_that_the_others_do_not_list_spends_nothing_and_holds_up_nobody() {
    let mut world = Growing::new();
    for place in 0..3 {
        world.start(place, List::Three);
    }
    world.settle();
    world.start(3, List::Four);
    world.settle();
    assert_eq!(world.shares(), [34, 33, 33, 0]);
    let waiting = world.nodes[3].as_ref().unwrap().standings();
    assert_eq!(waiting[0].waiting_for, ["a/1", "b/1", "c/1"]);
    world.disks[1] = None;
    world.start(1, List::Three);
    world.settle();
    assert_eq!(world.shares(), [34, 33, 33, 0], "also one that has lost its memory starts beside it");
    for place in 0..3 {
        world.start(place, List::Four);
        world.settle();
    }
    assert_eq!(world.shares(), [25; 4], "until all of them list it");
}

#[test]
fn a_first_share_waits_for_what_a_change_under_way_may_have_spent() {
    let mut world = Growing::new();
    for place in 0..3 {
        world.start(place, List::Three);
    }
    world.settle();
    world.now = Timestamp(world.now.micros() / 1_000_000 * 1_000_000 + 100_000);
    for place in 0..3 {
        world.start(place, List::Four);
    }
    world.start(3, List::Four);
    for _ in 0..4 {
        world.talk();
    }
    assert_eq!(world.shares(), [25, 25, 25, 0], "of this window the others may have used a third each");
    world.settle();
    assert_eq!(world.shares(), [25; 4]);
}

#[test]
fn an_agreement_outlives_the_process_and_new_rules_start_with_it() {
    let mut world = Growing::new();
    for place in 0..3 {
        world.start(place, List::Three);
    }
    world.settle();
    world.start(0, List::Three);
    assert_eq!(world.shares()[0], 34, "what was agreed on holds over a restart");
    let fresh = SplitRule {
        name: RuleName { domain: "default".into(), name: "fresh".into() },
        ..Growing::rule(List::Three)
    };
    let split = world.nodes[0].as_mut().unwrap();
    split.handle_rules(world.now, vec![Growing::rule(List::Three), fresh.clone()]);
    assert_eq!(split.in_force(&fresh.name).unwrap().of(LIMIT, "a"), 34, "regions have agreed already");
}

#[test]
fn a_first_start_is_one_for_all_and_whoever_comes_back_without_its_disk_is_not_part_of_one() {
    let mut world = Growing::new();
    for place in 0..3 {
        world.start(place, List::Three);
    }
    for _ in 0..6 {
        world.talk();
    }
    let first = |world: &Growing, place: usize| world.nodes[place].as_ref().unwrap().first_start();
    assert_eq!(world.shares(), [34, 33, 33, 0]);
    assert!(first(&world, 0).is_some() && (1..3).all(|place| first(&world, place) == first(&world, 0)));
    for without_disk in [true, false] {
        if without_disk {
            world.disks[0] = None;
        }
        world.start(0, List::Three);
        world.settle();
        assert_eq!((world.shares(), first(&world, 0)), ([34, 33, 33, 0], None), "{without_disk}");
    }
}

#[test]
fn a_daemon_whose_store_remembers_something_or_that_nobody_vouches_for_is_not_part_of_a_first_start() {
    let mut world = Growing::new();
    for place in 0..3 {
        world.start(place, List::Three);
    }
    world.nodes[1].as_mut().unwrap().handle_store(false);
    world.settle();
    assert_eq!(world.shares(), [34, 33, 33, 0], "they begin all the same");
    assert!((0..3).all(|place| world.nodes[place].as_ref().unwrap().first_start().is_none()));
    let alone = RegionList::of(vec!["a".to_owned()]);
    let mut split = Split::new(Growing::name(0), None).among(&alone).born(7);
    split.handle_store(true);
    split.handle_rules(
        world.now,
        vec![SplitRule { weights: Weights::among(&[], &[], &alone), ..rule([1; 3]) }],
    );
    split.handle_timeout(world.now);
    assert!(split.has_agreed() && split.first_start().is_none(), "it may have lost its disk");
}

#[derive(Debug, Clone)]
enum Move {
    Start(usize, List),
    Lose(usize),
    Deliver(usize, usize, usize),
    Pass(u64),
}

fn moves() -> impl Strategy<Value = Move> {
    let list = prop_oneof![Just(List::Three), Just(List::Four)];
    prop_oneof![
        1 => (0..1_usize).prop_map(Move::Lose),
        2 => (0..4_usize, list).prop_map(|(place, list)| Move::Start(place, if place == 3 { List::Four } else { list })),
        8 => (0..4_usize, 0..4_usize, 0..3_usize).prop_map(|(from, to, words)| Move::Deliver(from, to, words)),
        3 => (0..1_500_u64).prop_map(Move::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn in_no_order_of_starts_and_lists_is_more_spent_than_the_limit(steps in prop::collection::vec(moves(), 1..150)) {
        let mut world = Growing::new();
        for step in steps {
            match step {
                Move::Start(place, list) => world.start(place, list),
                Move::Lose(place) => world.disks[place] = None,
                Move::Deliver(from, to, words) => world.deliver(from, to, words),
                Move::Pass(millis) => world.pass(Span::from_millis(millis)),
            }
            let shares = world.shares();
            prop_assert!(shares.iter().sum::<u64>() <= LIMIT, "{shares:?}");
            // One of them loses its disk again and again.
            prop_assert_eq!(world.deceived(), Vec::<&str>::new());
        }
        for place in 0..4 {
            world.start(place, List::Four);
        }
        world.settle();
        prop_assert_eq!(world.shares(), [25; 4], "and all of it is used once all list all");
    }
}

impl Growing {
    /// A daemon that runs lists other regions from now on.
    fn relist(&mut self, place: usize, list: &RegionList) {
        let Some(split) = &mut self.nodes[place] else { return };
        split.handle_regions(list);
        let weights = Weights::among(&[], &[], list);
        split.handle_rules(self.now, vec![SplitRule { weights, ..rule([1; 3]) }]);
        self.say(place);
    }

    fn of_three() -> (Self, RegionList) {
        let mut world = Self::new();
        for place in 0..3 {
            world.start(place, List::Three);
        }
        world.settle();
        assert_eq!(world.shares(), [34, 33, 33, 0]);
        (world, RegionList::of(REGIONS.map(str::to_owned).into()))
    }
}

#[test]
fn a_region_is_drained_and_removed_while_daemons_run() {
    let (mut world, listed) = Growing::of_three();
    let drained = RegionList { drained: vec!["c".into()], ..listed };
    for place in 0..2 {
        world.relist(place, &drained);
        world.settle();
        assert_eq!(world.shares(), [34, 33, 33, 0], "c has not said that it gave its share up");
    }
    world.relist(2, &drained);
    assert_eq!(world.shares()[2], 0, "at once");
    world.settle();
    assert_eq!(world.shares(), [50, 50, 0, 0]);
    world.nodes[2] = None;
    let names = vec!["a".to_owned(), "b".to_owned()];
    let removed = RegionList { names, removed: vec!["c".into()], ..RegionList::default() };
    for place in 0..2 {
        world.relist(place, &removed);
        assert_eq!(world.shares(), [50, 50, 0, 0], "shares stay");
    }
    world.settle();
    assert!(world.nodes[0].as_ref().unwrap().standings()[0].settled, "and nobody waits for it");
}

#[test]
fn a_region_that_is_removed_as_soon_as_it_has_given_its_share_up_is_not_waited_for() {
    for heard_before in [true, false] {
        let (mut world, listed) = Growing::of_three();
        let drained = RegionList { drained: vec!["c".into()], ..listed };
        for place in 0..3 {
            world.relist(place, &drained);
        }
        if heard_before {
            world.talk();
        }
        world.nodes[2] = None;
        let names = vec!["a".to_owned(), "b".to_owned()];
        let removed = RegionList { names, removed: vec!["c".into()], ..RegionList::default() };
        for place in 0..2 {
            world.relist(place, &removed);
        }
        // What it has spent of its share counts until the window ends.
        assert_eq!(world.shares(), [34, 33, 0, 0]);
        world.settle();
        assert_eq!(world.shares(), [50, 50, 0, 0], "heard before: {heard_before}");
        let waiting = world.nodes[0].as_ref().unwrap().standings();
        assert!(waiting[0].settled && waiting[0].waiting_for.is_empty(), "{waiting:?}");
    }
}

#[test]
fn a_region_that_never_heard_that_it_has_no_share_is_waited_for() {
    let (mut world, listed) = Growing::of_three();
    world.nodes[2] = None;
    let drained = RegionList { drained: vec!["c".into()], ..listed };
    let names = vec!["a".to_owned(), "b".to_owned()];
    let removed = RegionList { names, removed: vec!["c".into()], ..RegionList::default() };
    for list in [drained, removed] {
        for place in 0..2 {
            world.relist(place, &list);
        }
        world.settle();
        assert_eq!(world.shares(), [34, 33, 0, 0], "it may spend its share still");
    }
}

#[test]
fn a_region_that_is_gone_with_its_share_is_not_waited_for() {
    let (mut world, _) = Growing::of_three();
    world.nodes[2] = None;
    let names = vec!["a".to_owned(), "b".to_owned()];
    let removed = RegionList { names, removed: vec!["c".into()], ..RegionList::default() };
    for place in 0..2 {
        world.relist(place, &removed);
    }
    world.settle();
    assert_eq!(world.shares(), [34, 33, 0, 0], "it may spend its share still");
    let gone = RegionList { gone: removed.removed.clone(), ..removed };
    for place in 0..2 {
        world.relist(place, &gone);
    }
    world.settle();
    assert_eq!(world.shares(), [50, 50, 0, 0]);
    // Should it come back and hear that, it spends nothing, and nobody else shrinks.
    world.start(2, List::Three);
    world.relist(2, &gone);
    world.settle();
    assert_eq!(world.shares(), [50, 50, 0, 0]);
}

#[test]
fn a_region_is_added_while_daemons_run() {
    let (mut world, listed) = Growing::of_three();
    let four = RegionList::of(WITH_D.map(str::to_owned).into());
    for place in 0..3 {
        world.relist(place, &four);
    }
    assert_eq!(world.shares(), [25, 25, 25, 0], "they make room at once");
    world.settle();
    world.start(3, List::Four);
    world.settle();
    assert_eq!(world.shares(), [25; 4]);
    assert_eq!(listed.state("d"), None);
}

#[test]
fn the_first_share_of_a_new_cluster_is_whole_for_every_limit() {
    let mut world = Growing::new();
    for place in 0..4 {
        world.start(place, List::Four);
    }
    world.settle();
    assert_eq!(world.shares(), [25; 4]);
    let in_force = world.nodes[0].as_ref().unwrap().in_force(&Growing::rule(List::Four).name).unwrap();
    let year = Limit { window: Span::from_secs(365 * 86_400), ..Growing::rule(List::Four).limit };
    assert_eq!(in_force.part(year, "a", world.now).permits, 25);
}
