//! Rules that come to one region later than to the others, or go everywhere and come back.

use super::lost_store::TestedStore;
use super::*;
use crate::regions::compared::{Digest, Digests};

/// As long as membership takes to tell which rules a daemon has.
const TOLD_WITHIN: Span = Span::from_millis(700);
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three regions that have the rule, with their stores of one user's bucket.
struct Rollout {
    rule: WorldRule,
    cluster: GossipCluster,
    names: [NodeName; 3],
    stores: [TestedStore; 3],
    revision: u64,
    incarnation: u64,
}

impl Rollout {
    fn new(algorithm: Algorithm) -> Self {
        let rule = rule(algorithm, 12, Span::from_secs(86_400), OnPartition::default());
        let names = NAMES.map(|region| name(region, "1"));
        let mut cluster = GossipCluster::new(&[], &rule);
        cluster.suppresses_reports = true;
        names.iter().for_each(|who| cluster.start(who, &rule));
        cluster.meet();
        let stores = names.each_ref().map(|who| TestedStore::of(&rule, who, "u"));
        let mut rollout = Self { rule, cluster, names, stores, revision: 1, incarnation: 1 };
        (0..3).for_each(|region| rollout.tell_digests(region, true));
        rollout.run(Span::from_secs(5));
        rollout
    }

    /// A region gets the rule, or loses it; the others hear of that by membership a little later.
    fn set_rule(&mut self, region: usize, holds: bool) {
        self.set_rule_untold(region, holds);
        self.run(TOLD_WITHIN);
        self.tell_digests(region, holds);
    }

    fn set_rule_untold(&mut self, region: usize, holds: bool) {
        self.revision += 1;
        let now = self.cluster.now();
        let rules = if holds { vec![self.rule.clone()] } else { Vec::new() };
        self.cluster.replica_mut(&self.names[region]).handle_rules(now, self.revision, rules);
    }

    fn tell_digests(&mut self, region: usize, holds: bool) {
        let RuleName { domain, name } = &self.rule.name;
        let rule = (Digest::of_rule(domain, name), Digest::default().number(self.rule.algorithm as u64));
        let digests = Digests::of(holds.then_some(rule));
        let (now, who) = (self.cluster.now(), self.names[region].clone());
        for other in self.names.clone().iter().filter(|other| **other != who) {
            self.cluster.replica_mut(other).handle_rules_of(now, (&who, self.incarnation), &digests);
        }
    }

    /// A region is asked for a permit so many times, each fifth of a second. Returns the permits admitted.
    fn ask(&mut self, region: usize, times: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += self.stores[region].ask(&mut self.cluster, 1);
            self.run(Span::from_millis(200));
        }
        admitted
    }

    fn run(&mut self, length: Span) {
        for _ in 0..length.0.div_ceil(TICK.0) {
            self.cluster.run(TICK);
            self.stores.iter_mut().for_each(|store| store.hear(&mut self.cluster));
        }
    }
}

#[test]
fn a_region_that_gets_a_rule_later_is_told_what_the_others_used() {
    for algorithm in Algorithm::OF_COSTS {
        let mut rollout = Rollout::new(algorithm);
        rollout.set_rule(2, false);
        let used = rollout.ask(0, 20);
        assert!((11..=12).contains(&used), "{algorithm:?}: the first region is given {used} of 12");
        rollout.run(Span::from_secs(5));
        assert!(rollout.cluster.replica(&rollout.names[2]).tally().unknown_rules > 0);
        rollout.set_rule(2, true);
        rollout.run(Span::from_secs(1));
        let more = rollout.ask(2, 30);
        assert!(used + more <= 12, "{algorithm:?}: {used} of 12 before the rule came, {more} after");
    }
}

#[test]
fn a_process_that_gets_its_rules_a_moment_after_it_begins_is_told_what_it_passed_over() {
    for algorithm in Algorithm::OF_COSTS {
        let mut rollout = Rollout::new(algorithm);
        rollout.set_rule_untold(2, false);
        let used = rollout.ask(0, 20);
        rollout.run(Span::from_secs(5));
        // It says of its rules what the process before it said.
        rollout.incarnation += 1;
        rollout.set_rule(2, true);
        rollout.run(Span::from_secs(1));
        let more = rollout.ask(2, 30);
        assert!(used >= 11 && used + more <= 12, "{algorithm:?}: {used} of 12 before, {more} after");
    }
}

#[test]
fn a_region_that_changes_the_algorithm_later_is_told_what_the_others_used() {
    for (from, to) in [
        (Algorithm::FixedWindow, Algorithm::SlidingWindow),
        (Algorithm::SlidingWindow, Algorithm::SlidingLog),
        (Algorithm::TokenBucket, Algorithm::Gcra),
    ] {
        let mut rollout = Rollout::new(from);
        let rule = WorldRule { algorithm: to, ..rollout.rule.clone() };
        let names = rollout.names.clone();
        let change = |rollout: &mut Rollout, region: usize| {
            rollout.rule = rule.clone();
            rollout.stores[region] = TestedStore::of(&rule, &names[region], "u");
            rollout.set_rule(region, true);
        };
        change(&mut rollout, 0);
        change(&mut rollout, 1);
        let used = rollout.ask(0, 20);
        rollout.cluster.replica_mut(&names[2]).poll_crowded();
        change(&mut rollout, 2);
        // Until it is told it may admit of its share.
        rollout.run(Span::from_secs(1));
        let more = rollout.ask(2, 30);
        assert!(used + more <= 12, "{from:?} to {to:?}: {used} of 12 before, {more} after");
    }
}

#[test]
fn a_rule_that_is_taken_away_everywhere_and_put_back_goes_on_from_what_was_used() {
    for (algorithm, pause) in Algorithm::OF_COSTS.into_iter().flat_map(|one| [(one, 0), (one, 5)]) {
        let mut rollout = Rollout::new(algorithm);
        let used: u64 =
            [(0, 5), (1, 4), (2, 20)].map(|(region, times)| rollout.ask(region, times)).iter().sum();
        assert!((10..=12).contains(&used), "{algorithm:?}: {used} of 12 are used");
        rollout.run(Span::from_secs(1));
        (0..3).for_each(|region| rollout.set_rule(region, false));
        rollout.run(Span::from_secs(1));
        rollout.set_rule(0, true);
        rollout.set_rule(1, true);
        rollout.run(Span::from_secs(pause));
        rollout.set_rule(2, true);
        let more: u64 = [2, 0, 1].map(|region| rollout.ask(region, 20)).iter().sum();
        assert!(used + more <= 12, "{algorithm:?}: {used} of 12, and {more} after {pause} s more");
    }
}

#[test]
fn a_rule_that_others_told_of_keeps_to_the_share_until_they_had_the_time_to_tell_again() {
    let mut rollout = Rollout::new(Algorithm::FixedWindow);
    let c = rollout.names[2].clone();
    rollout.set_rule(2, false);
    rollout.ask(0, 12);
    rollout.cluster.replica_mut(&c).poll_crowded();
    rollout.set_rule(2, true);
    assert_eq!(rollout.cluster.replica_mut(&c).poll_crowded(), Some(vec![rollout.rule.name.clone()]));
    rollout.run(Span::from_secs(2));
    assert_eq!(rollout.cluster.replica_mut(&c).poll_crowded(), None);
    rollout.run(Span::from_secs(1));
    assert_eq!(rollout.cluster.replica_mut(&c).poll_crowded(), Some(Vec::new()));
    // Nobody told of it meanwhile, so there is nothing to wait for.
    rollout.set_rule(2, false);
    rollout.set_rule(2, true);
    assert_eq!(rollout.cluster.replica_mut(&c).poll_crowded(), Some(Vec::new()));
}

#[test]
fn what_is_kept_of_rules_that_are_gone_is_bounded_and_ends_with_its_windows() {
    let (rule, window) = minute();
    let config = ReplicaConfig::new(name("a", "1"), START.0 / 1_000);
    let mut replica = Replica::new(ReplicaConfig { keys_max: 10, ..config });
    let other = WorldRule { name: RuleName { domain: "d".to_owned(), name: "s".to_owned() }, ..rule.clone() };
    replica.handle_rules(START, 1, vec![rule.clone()]);
    (0..8).for_each(|user| replica.handle_touched(START, &touched(&user.to_string(), window, 900, 900)));
    replica.handle_rules(START, 2, vec![other.clone()]);
    assert_eq!(replica.keys_len(), 8);
    for user in 0..6_u32 {
        let touched = touched(&user.to_string(), window, 1, 1);
        let key = WorldKey { rule: other.name.clone(), ..touched.key };
        replica.handle_touched(START, &Touched { key, ..touched });
        assert!(replica.keys_len() <= 10, "{} beside {user}", replica.keys_len());
    }
    replica.handle_rules(START, 3, vec![rule.clone(), other]);
    assert_eq!(replica.admitted(&key("7"), window).map(|(own, _)| own), Some(900));
    replica.handle_rules(START, 4, Vec::new());
    assert!(replica.keys_len() > 0);
    replica.handle_timeout(START + Span::from_secs(3_600));
    assert_eq!(replica.keys_len(), 0);
}
