//! How far a worldwide count may be off, and what was admitted above a limit in the end: what is said of it
//! is true.

use super::*;

#[test]
fn what_closed_windows_had_above_the_limit_is_told_in_every_region() {
    let second = Span::from_secs(1);
    let rule = rule(Algorithm::FixedWindow, 100, second, OnPartition::default());
    for (each, above) in [(50, None), (60, Some(20))] {
        let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
        cluster.run(Span::from_millis(1_500));
        let window = cluster.now().window_index(second);
        // At once, so that neither can know of the other.
        for who in ["a", "b"] {
            cluster.admit(&name(who, "1"), "u", window, each);
        }
        cluster.run(Span::from_secs(6));
        for (who, replica) in cluster.replicas() {
            let told: Vec<u64> =
                replica.status(cluster.now()).overshoot.iter().map(|(_, above)| *above).collect();
            assert_eq!(told.into_iter().find(|above| *above > 0), above, "{who:?}, {each} each");
        }
    }
}

#[test]
fn in_a_cut_no_more_is_admitted_than_the_error_bound_says() {
    let second = Span::from_secs(1);
    let limit = 90;
    let rule = rule(Algorithm::FixedWindow, limit, second, OnPartition::Share);
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    let names = cluster.names();
    let mut used = BTreeMap::<(NodeName, u64), u64>::new();
    // Everybody asks for more than there is, and admits what its store would.
    let mut step = |cluster: &mut GossipCluster| {
        let window = cluster.now().window_index(second);
        for who in &names {
            let own = used.entry((who.clone(), window)).or_default();
            let budget = cluster.views(who).get(&key("u")).map_or(u64::from(limit), |view| {
                let view = window_of(view);
                u64::from(if view.window == window { view.budget } else { view.next_budget })
            });
            let admitted = budget.saturating_sub(*own).min(4);
            *own += admitted;
            cluster.touch(
                who,
                &Touched {
                    key: key("u"),
                    window,
                    offered: 4,
                    admitted,
                    returned: 0,
                    refused: 4 - admitted,
                    largest: 1,
                    own: None,
                    store: StoreSeen::default(),
                },
            );
        }
        let truth: u64 = names.iter().filter_map(|who| used.get(&(who.clone(), window))).sum();
        let off = names.iter().map(|who| {
            let believed: u64 = cluster.believed(who, "u", window).values().sum();
            let bound = cluster.replica(who).status(cluster.now()).error_bounds[0].1;
            (who.region.clone(), truth.saturating_sub(believed), bound)
        });
        let off: Vec<_> = off.collect();
        cluster.run(TICK);
        off
    };
    for _ in 0..300 {
        step(&mut cluster);
    }
    cluster.cut(&["b"]);
    // Until it is noticed.
    for _ in 0..100 {
        step(&mut cluster);
    }
    let cut_off = |who: &str| cluster.replica(&name(who, "1")).status(cluster.now()).regions;
    assert!(["a", "b"].iter().all(|who| cut_off(who).iter().any(|region| region.cut_off)));
    let mut worst = 0;
    for _ in 0..300 {
        for (region, off, bound) in step(&mut cluster) {
            assert!(off <= bound && bound <= u64::from(limit), "{region}: off by {off}, said to be {bound}");
            worst = worst.max(off);
        }
    }
    assert_eq!(worst, 45, "what one side admits the other does not hear of");
}

/// Everybody but the last asks for `asked` in each step and admits what its store would; the truth, and what
/// each believes of the window with its bound.
fn play(
    cluster: &mut GossipCluster,
    limit: u64,
    asked: u64,
    used: &mut BTreeMap<(NodeName, u64), u64>,
) -> Vec<[u64; 3]> {
    let names = cluster.names();
    let window = cluster.now().window_index(Span::from_secs(1));
    for who in names.iter().rev().skip(1) {
        let own = used.entry((who.clone(), window)).or_default();
        let budget = cluster.views(who).get(&key("u")).map_or(limit, |view| {
            match window.checked_sub(window_of(view).window) {
                Some(0) => u64::from(window_of(view).budget),
                Some(1) => u64::from(window_of(view).next_budget),
                _ => limit,
            }
        });
        let admitted = budget.saturating_sub(*own).min(asked);
        *own += admitted;
        cluster.touch(who, &touched("u", window, asked, admitted));
    }
    let truth: u64 = names.iter().filter_map(|who| used.get(&(who.clone(), window))).sum();
    let seen = names.iter().map(|who| {
        let believed: u64 = cluster.believed(who, "u", window).values().sum();
        let bound =
            cluster.replica(who).bucket(cluster.now(), &key("u")).map_or(u64::MAX, |known| known.error_bound);
        [truth, believed, bound]
    });
    let seen = seen.collect();
    cluster.run(TICK);
    seen
}

#[test]
fn regions_that_burst_at_once_use_no_more_than_the_error_bound_says() {
    let limit = 400;
    let rule = rule(Algorithm::FixedWindow, limit, Span::from_secs(1), OnPartition::Share);
    let names = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")];
    let mut cluster = GossipCluster::new(&names, &rule);
    let (mut used, mut least) = (BTreeMap::new(), u64::MAX);
    for step in 0..2_000_u64 {
        // Nothing for long, then a burst in three of the four regions; at last they go on.
        let asked = if step < 1_000 || step % 150 < 10 || step > 1_700 { 20 } else { 0 };
        for [truth, believed, bound] in play(&mut cluster, limit.into(), asked, &mut used) {
            assert!(
                truth <= believed.saturating_add(bound),
                "{truth} at step {step}: {believed} and {bound}"
            );
            least = least.min(bound);
        }
    }
    assert!(cluster.replicas().all(|(_, replica)| replica.elsewhere().settled));
    assert!(least <= 20, "never less than {least}");
}

#[test]
fn what_is_lost_makes_all_that_others_may_use_uncertain_for_ten_seconds() {
    let rule = rule(Algorithm::FixedWindow, 100, Span::from_secs(1), OnPartition::Share);
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    let settled =
        |cluster: &GossipCluster| cluster.replicas().all(|(_, replica)| replica.elsewhere().settled);
    cluster.run(Span::from_secs(3));
    assert!(!settled(&cluster), "it has just begun");
    cluster.run(Span::from_secs(9));
    assert!(settled(&cluster));
    cluster.weather().loss = 0.5;
    cluster.run(Span::from_millis(1_500));
    cluster.weather().loss = 0.0;
    assert!(!settled(&cluster));
    cluster.run(Span::from_secs(9));
    assert!(!settled(&cluster));
    cluster.run(Span::from_secs(3));
    assert!(settled(&cluster));
}
