//! A region's store forgets what the region used, or was never charged for a part of it.

use super::*;
use crate::algorithm::State;
use crate::request::ReportedCost;

/// One region's store, as far as one user's bucket goes.
pub(super) struct TestedStore {
    rule: WorldRule,
    who: NodeName,
    user: String,
    state: State,
    told: Option<Allowance>,
}

impl TestedStore {
    fn new(rule: &WorldRule, who: &NodeName) -> Self {
        Self::of(rule, who, "u")
    }

    pub(super) fn of(rule: &WorldRule, who: &NodeName, user: &str) -> Self {
        let (state, told) = (State::new(rule.algorithm), None);
        Self { rule: rule.clone(), who: who.clone(), user: user.to_owned(), state, told }
    }

    /// Everything in it is lost.
    pub(super) fn empty(&mut self) {
        (self.state, self.told) = (State::new(self.rule.algorithm), None);
    }

    /// Asks for permits as a decision does. Returns those admitted.
    pub(super) fn ask(&mut self, cluster: &mut GossipCluster, permits: u64) -> u64 {
        let (limit, view) = self.terms(cluster);
        let fits = self.state.check(&limit, view.as_ref(), cluster.now(), permits).admitted;
        let paid = self.state.settle(&limit, view.as_ref(), cluster.now());
        let admitted = if fits { permits } else { 0 };
        if fits {
            self.state.take(&limit, cluster.now(), admitted);
        }
        self.tell(cluster, view, (permits, admitted + paid, permits - admitted));
        admitted
    }

    /// Says what was used already.
    pub(super) fn report(&mut self, cluster: &mut GossipCluster, permits: u64) {
        let (limit, view) = self.terms(cluster);
        let report = ReportedCost { permits, debt_max: 1_000 };
        let fits = self.state.check(&limit, view.as_ref(), cluster.now(), permits).admitted;
        let before = self.state.debt();
        let charged = self.state.report(&limit, view.as_ref(), cluster.now(), &report);
        // What is owed is told when it is paid.
        let counted = charged + u64::from(before) - u64::from(self.state.debt());
        self.tell(cluster, view, (permits, counted, if fits { 0 } else { permits }));
    }

    /// The limit that a decision is held to, and what the world leaves of it.
    fn terms(&self, cluster: &GossipCluster) -> (Limit, Option<Allowance>) {
        let (mut limit, now) = (self.rule.limit, cluster.now());
        let mut first = Some(limit.permits / 3);
        // A daemon that has just begun keeps to its share.
        if cluster.replica(&self.who).is_beginning() {
            (limit.permits, limit.burst) = (limit.permits / 2, limit.burst / 2);
            first = None;
        }
        (limit, Allowance::in_force(self.told.as_ref(), first, self.rule.algorithm, &limit, now))
    }

    /// Tells its daemon what was offered, admitted and refused.
    fn tell(
        &mut self,
        cluster: &mut GossipCluster,
        view: Option<Allowance>,
        (offered, admitted, refused): (u64, u64, u64),
    ) {
        let (limit, now) = (self.rule.limit, cluster.now());
        let store = StoreSeen {
            used: Some(self.state.used(&limit, now)),
            without_allowance: !Allowance::is_told(view.as_ref(), self.told.as_ref()) || view.is_none(),
            reset: false,
        };
        let window = match self.rule.counting() {
            Counting::Window => limit.windows().index(now),
            _ => 0,
        };
        let touched = Touched { refused, store, ..touched(&self.user, window, offered, admitted) };
        cluster.touch(&self.who, &touched);
    }

    /// Takes in what the daemon told it.
    pub(super) fn hear(&mut self, cluster: &mut GossipCluster) {
        let (limit, now) = (self.rule.limit, cluster.now());
        for known in cluster.take_restored(&self.who) {
            self.state.restore(&limit, now, &known);
        }
        self.state.debit(&limit, now, cluster.take_debits(&self.who));
        self.told = cluster.views(&self.who).get(&key(&self.user)).copied();
    }
}

/// Three regions that use a limit up; then something happens to the store of the first, and all go on asking
/// for as long again. Returns what all admitted before and after.
fn played(algorithm: Algorithm, happens: impl Fn(&mut TestedStore, &mut GossipCluster)) -> (u64, u64) {
    let rule = rule(algorithm, 3_000, Span::from_secs(600), OnPartition::default());
    let names = ["a", "b", "c"].map(|region| name(region, "1"));
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.shared_store = true;
    cluster.suppresses_reports = true;
    names.iter().for_each(|who| cluster.start(who, &rule));
    cluster.meet();
    cluster.run(Span::from_secs(1));
    let mut stores = names.each_ref().map(|who| TestedStore::new(&rule, who));
    let ask_all = |stores: &mut [TestedStore; 3], cluster: &mut GossipCluster| {
        let mut admitted = 0;
        for _ in 0..400 {
            for store in stores.iter_mut() {
                admitted += store.ask(cluster, 5);
            }
            cluster.run(TICK);
            stores.iter_mut().for_each(|store| store.hear(cluster));
        }
        admitted
    };
    let before = ask_all(&mut stores, &mut cluster);
    happens(&mut stores[0], &mut cluster);
    (before, ask_all(&mut stores, &mut cluster))
}

/// Returns what refills while the story is told.
fn refilled(algorithm: Algorithm) -> u64 {
    if algorithm.counting() == Counting::Level { 50 } else { 0 }
}

#[test]
fn a_store_that_lost_its_data_is_told_with_the_first_decision_what_its_region_had_used() {
    for algorithm in Algorithm::OF_COSTS {
        let (before, after) = played(algorithm, |store, _| store.empty());
        assert!(before >= 2_900, "{algorithm:?}: {before} of 3000 were used");
        // What passes before the first word is there.
        let most = 10 + refilled(algorithm);
        assert!(after <= most, "{algorithm:?}: {after} were admitted once more");
    }
}

#[test]
fn a_store_that_was_restored_from_an_older_copy_counts_what_its_region_used_since() {
    for algorithm in Algorithm::OF_COSTS {
        let (_, after) = played(algorithm, |store, _| {
            // A third of its region's use is lost; its view is as old, and still speaks of this window.
            store.state = State::new(algorithm);
            store.state.take(&store.rule.limit, Timestamp(START.0 + 1_000_000), 600);
        });
        let most = 150 + refilled(algorithm);
        assert!(after <= most, "{algorithm:?}: {after} were admitted once more");
    }
}

#[test]
fn what_a_daemon_granted_while_its_store_was_silent_admits_no_more_and_no_more() {
    for algorithm in Algorithm::OF_COSTS {
        let (_, after) = played(algorithm, |store, cluster| {
            // Twenty permits that the store was never charged for: with every further grant the budget grew
            // by as much.
            let window = match store.rule.counting() {
                Counting::Window => store.rule.limit.windows().index(cluster.now()),
                _ => 0,
            };
            cluster.touch(&store.who, &touched("u", window, 20, 20));
        });
        let most = 40 + refilled(algorithm);
        assert!(after <= most, "{algorithm:?}: {after} were admitted beside them");
    }
}

#[test]
fn what_is_given_back_is_no_loss() {
    let (rule, window) = minute();
    let a = name("a", "1");
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.shared_store = true;
    ["a", "b"].iter().for_each(|region| cluster.start(&name(region, "1"), &rule));
    cluster.meet();
    let mut used = 0;
    for turn in 0..100 {
        // Ten are reserved, five come back, as reservations do.
        let (admitted, returned) = if turn % 2 == 0 { (10, 0) } else { (0, 5) };
        used += admitted;
        used -= returned;
        let store = StoreSeen { used: Some(used), ..StoreSeen::default() };
        cluster.touch(&a, &Touched { returned, store, ..touched("u", window, admitted, admitted) });
        cluster.run(TICK);
    }
    assert_eq!(cluster.take_restored(&a), []);
}

#[test]
fn a_bucket_that_an_operator_reset_is_given_back_in_all_regions_and_not_restored() {
    let (rule, window) = minute();
    let (a, b) = (name("a", "1"), name("b", "1"));
    let mut cluster = GossipCluster::new(&[], &rule);
    cluster.shared_store = true;
    [&a, &b].into_iter().for_each(|who| cluster.start(who, &rule));
    cluster.meet();
    cluster.admit(&a, "u", window, 600);
    cluster.run(Span::from_secs(1));
    let store = StoreSeen { reset: true, used: Some(0), ..StoreSeen::default() };
    cluster.touch(&a, &Touched { store, ..touched("u", window, 0, 0) });
    for used in 1..100 {
        let store = StoreSeen { used: Some(used), ..StoreSeen::default() };
        cluster.touch(&a, &Touched { store, ..touched("u", window, 1, 1) });
        cluster.run(TICK);
    }
    cluster.run(Span::from_secs(1));
    assert_eq!(cluster.believed(&b, "u", window), regions(&[("a", 99)]));
    assert_eq!(cluster.take_restored(&a), []);
}

#[test]
fn what_goes_back_at_one_daemon_is_no_loss_to_those_that_share_its_store() {
    for algorithm in Algorithm::OF_COSTS {
        let rule = rule(algorithm, 100, Span::from_secs(86_400), OnPartition::default());
        let window = if rule.counting() == Counting::Window { rule.limit.windows().index(START) } else { 0 };
        // Whoever of them owns the bucket, and whichever of them gives back.
        for (user, turn) in ["u", "v", "w", "x"].into_iter().flat_map(|user| (0..3).map(move |at| (user, at)))
        {
            let mut nodes = ["1", "2", "3"].map(|node| name("a", node));
            nodes.rotate_left(turn);
            let [first, second, third] = &nodes;
            let b = name("b", "1");
            let mut cluster = GossipCluster::new(&[], &rule);
            (cluster.shared_store, cluster.suppresses_reports) = (true, true);
            nodes.iter().chain([&b]).for_each(|who| cluster.start(who, &rule));
            cluster.meet();
            cluster.run(Span::from_secs(1));
            let seen = |used| StoreSeen { used: Some(used), ..StoreSeen::default() };
            let touch = |cluster: &mut GossipCluster, who: &NodeName, (in_, out, used): (u64, u64, u64)| {
                let all = touched(user, window, in_, in_);
                cluster.touch(who, &Touched { returned: out, store: seen(used), ..all });
            };
            touch(&mut cluster, first, (60, 0, 60));
            touch(&mut cluster, third, (1, 0, 61));
            cluster.run(Span::from_secs(1));
            touch(&mut cluster, second, (0, 60, 1));
            for used in 2..40 {
                touch(&mut cluster, if used % 2 == 0 { first } else { third }, (u64::from(used == 2), 0, 2));
                cluster.run(Span::from_millis(50));
            }
            for who in &nodes {
                assert_eq!(cluster.take_restored(who), [], "{algorithm:?} {user} {turn}: {who:?}");
            }
            for who in nodes.iter().chain([&b]) {
                let known = cluster.believed(who, user, window).get("a").copied().unwrap_or(0);
                assert!(known <= 2, "{algorithm:?} {user} {turn}: {who:?} holds {known} for used");
            }
        }
    }
}

#[test]
fn what_goes_back_of_a_level_is_told_by_a_region_of_one_daemon() {
    for algorithm in Algorithm::OF_COSTS {
        let rule = rule(algorithm, 100, Span::from_secs(86_400), OnPartition::default());
        let window = if rule.counting() == Counting::Window { rule.limit.windows().index(START) } else { 0 };
        let (a, b) = (name("a", "1"), name("b", "1"));
        let mut cluster = GossipCluster::new(&[], &rule);
        cluster.suppresses_reports = true;
        [&a, &b].into_iter().for_each(|who| cluster.start(who, &rule));
        cluster.meet();
        cluster.admit(&a, "u", window, 60);
        cluster.run(Span::from_secs(1));
        assert_eq!(cluster.believed(&b, "u", window), regions(&[("a", 60)]));
        cluster.touch(&a, &Touched { returned: 60, ..touched("u", window, 0, 0) });
        cluster.run(Span::from_secs(1));
        assert_eq!(cluster.believed(&b, "u", window), regions(&[]), "{algorithm:?}");
    }
}
