//! Buckets with limits of their own: rights of them move as those of the rule's limit do.

use super::*;

const fn own(permits: u32) -> Option<OwnLimit> {
    Some(OwnLimit { permits, burst: permits, queue: 0 })
}

impl EscrowWorld {
    /// Every region in `places` is asked for so many permits in each tick, for so many windows. The most and
    /// the fewest permits admitted in one of them but the first two.
    fn windows(&mut self, count: u64, places: &[usize], each: usize) -> (u64, u64) {
        let next = self.now().window_index(self.limit.window) + 1;
        while self.now().window_index(self.limit.window) < next + count {
            for &place in places {
                (0..each).for_each(|_| {
                    self.request(place, 1);
                });
            }
            self.tick();
        }
        let seen = || (next + 2..next + count).map(|window| self.admitted.get(&window).copied().unwrap_or(0));
        (seen().max().unwrap_or(0), seen().min().unwrap_or(0))
    }

    fn is_quiet(&self) -> bool {
        let over = |event: &Event| matches!(event, Event::Closed { used, limit, .. } if used > limit);
        !self.events().any(over) && self.regions().all(|region| region.machine.tally().beyond == 0)
    }
}

#[test]
fn a_raised_limit_is_used_in_one_region_and_in_all() {
    for places in [&[1][..], &[0, 1, 2]] {
        let mut world = EscrowWorld::new(3, 20, CALM, EscrowSafety::ALL);
        world.own = own(300);
        let (most, fewest) = world.windows(8, places, 6);
        assert!(most <= 300 && fewest >= 285, "{fewest} to {most} of 300 in {places:?}");
        assert!(world.is_quiet());
    }
}

#[test]
fn a_lowered_limit_is_never_exceeded_and_moves_too() {
    for places in [&[1][..], &[0, 1, 2]] {
        let mut world = EscrowWorld::new(3, 300, CALM, EscrowSafety::ALL);
        world.own = own(6);
        let (most, fewest) = world.windows(8, places, 2);
        assert!(most <= 6 && fewest >= 5, "{fewest} to {most} of 6 in {places:?}");
        assert!(world.is_quiet());
    }
}

#[test]
fn a_limit_that_changes_is_never_above_the_larger_and_settles_at_the_new_one() {
    let mut world = EscrowWorld::new(3, 20, CALM, EscrowSafety::ALL);
    world.own = own(300);
    world.windows(5, &[0], 6);
    let mut before = 300;
    for permits in [own(60), own(200), None] {
        let limit = permits.map_or(20, |own| u64::from(own.permits));
        world.own = permits;
        let from = world.now().window_index(world.limit.window);
        world.windows(4, &[0, 2], 4);
        let highest = world.admitted.range(from..).map(|(_, used)| *used).max();
        assert!(highest <= Some(limit.max(before)), "{highest:?} of {limit} after {before}");
        let (most, fewest) = world.windows(6, &[0, 2], 4);
        assert!(most <= limit && fewest >= limit * 9 / 10, "{fewest} to {most} of {limit}");
        before = limit;
    }
    assert!(world.is_quiet());
}

#[test]
fn permits_of_a_raised_bucket_without_windows_flow_and_stay_below_its_curve() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
        let mut world = EscrowWorld::of(algorithm, 3, 20, CALM, EscrowSafety::ALL);
        world.own = own(300);
        world.limit = Limit { permits: 300, burst: 300, ..world.limit };
        world.reference = (300_000_000, START);
        world.press(1, 6, 1_000);
        assert_eq!(world.check(), Ok(()));
        let used = world.admitted.values().sum::<u64>();
        assert!(used >= 2_800, "{used} of 3,300 with {algorithm:?}");
        assert!(world.is_quiet());
    }
}

#[test]
fn a_limit_of_ones_own_stays_when_the_rule_that_had_the_same_gets_another() {
    let mut world = EscrowWorld::new(3, 20, CALM, EscrowSafety::ALL);
    world.own = own(20);
    world.windows(4, &[0], 2);
    let now = world.now();
    for place in 0..3 {
        let machine = world.machine_mut(place);
        let rules: Vec<WorldRule> = machine.rules.values().map(|rule| rule.rule.clone()).collect();
        let larger = |rule: WorldRule| WorldRule { limit: Limit { permits: 300, ..rule.limit }, ..rule };
        machine.handle_rules(now, &rules.into_iter().map(larger).collect::<Vec<_>>());
        let id = *machine.index.values().next().expect("the bucket is followed");
        let bucket = machine.bucket(id).expect("it is there");
        assert_eq!(bucket.own_limit(), own(20), "region {place} was asked: {}", place == 0);
    }
}
