//! A check over several slots that is denied gives back what it took, in the window in which it took it, or
//! nothing: also where the undo is held back, and others are charged before it comes.

use std::sync::Arc;
use std::time::Duration;

use crate::redis_servers::{Cluster, Server};
use crate::redis_store::{Key, compiled, gossip, key, per_second, runtime, settings, store};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::request::Cost;
use tidegate::core::rule::{Global, Mode};
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Outcome, Store};
use tidegate::store::redis::{RedisSettings, RedisStore, Topology};

const WINDOW_BEGINS: Timestamp = Timestamp(1_790_000_000_000_000);
/// For what is asked to reach a server that does not read it yet.
const UNDER_WAY: Duration = Duration::from_millis(60);

fn charge<'a>(rule: &'a Compiled, key: &'a Key, cost: u64) -> Charge<'a> {
    Charge {
        rule,
        key,
        limit: rule.limit,
        // All of its rights are minted here.
        share: is_escrowed(rule).then_some(rule.limit.permits).filter(|_| counts_fixed_windows(rule)),
        whole: &rule.limit,
        first: None,
        cost: Cost::Take(cost),
        enforced: true,
    }
}

fn is_escrowed(rule: &Compiled) -> bool {
    rule.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow)
}

fn counts_fixed_windows(rule: &Compiled) -> bool {
    rule.rule.algorithm == Algorithm::FixedWindow
}

async fn decide(store: &RedisStore, charges: &[Charge<'_>]) -> Outcome {
    let outcome = store.decide(charges, Intent::Charge, WINDOW_BEGINS).await;
    assert!(outcome.counted.iter().all(|counted| !counted.degraded), "{outcome:?}");
    outcome
}

/// Costs of what is asked beside an undo.
#[derive(Debug, Clone, Copy)]
struct Costs {
    denied: u64,
    other: u64,
    then: &'static [u64],
}

const WHOLE: Costs = Costs { denied: 60, other: 40, then: &[20, 10, 5, 1, 1, 1, 1, 1, 60, 20, 10, 1] };
/// For a limit in four parts of 25: none of them is left with less than a cost.
const IN_PARTS: Costs = Costs { denied: 20, other: 20, then: &[5; 24] };

/// Has a check of `{user, ip}` denied by the ip; while its servers do not answer, `after` passes and another
/// daemon takes some of the user. Returns how many the user is admitted at that instant.
fn admitted_beside_an_undo(place: &Place<'_>, play: &Play, user: &str) -> u64 {
    let Play { user: user_rule, ip: ip_rule, after, costs, .. } = play;
    let (one, other, clock) = (&place.stores[0], &place.stores[1], &place.clock);
    let (user, ip) = (key(user_rule, user), key(ip_rule, user));
    clock.set(WINDOW_BEGINS + Span(900_000));
    runtime().block_on(async {
        assert!(decide(one, &[charge(ip_rule, &ip, 1)]).await.admitted);
        let both = [charge(user_rule, &user, costs.denied), charge(ip_rule, &ip, 1)];
        place.signal("-STOP");
        let denied = decide(one, &both);
        let meanwhile = async {
            tokio::time::sleep(UNDER_WAY).await;
            clock.set(WINDOW_BEGINS + Span(900_000) + *after);
            let others = [charge(user_rule, &user, costs.other)];
            let taken = decide(other, &others);
            let goes_on = async {
                tokio::time::sleep(UNDER_WAY).await;
                place.signal("-CONT");
            };
            tokio::join!(taken, goes_on).0
        };
        let (denied, taken) = tokio::join!(denied, meanwhile);
        assert!(!denied.admitted, "{denied:?}");
        let mut admitted = if taken.admitted { costs.other } else { 0 };
        for cost in costs.then {
            admitted +=
                if decide(one, &[charge(user_rule, &user, *cost)]).await.admitted { *cost } else { 0 };
        }
        admitted
    })
}

struct Place<'a> {
    servers: Vec<&'a Server>,
    stores: [RedisStore; 2],
    clock: Arc<Clock>,
}

impl<'a> Place<'a> {
    fn new(topology: Topology, urls: Vec<String>, servers: &'a [Server]) -> Self {
        let clock = Arc::new(Clock::Manual(0.into()));
        let timeout = Duration::from_secs(30);
        let settings = settings(topology, urls);
        let settings = RedisSettings { clock: Some(Arc::clone(&clock)), timeout, ..settings };
        let stores = [(); 2].map(|()| store(settings.clone(), 2));
        Self { servers: servers.iter().collect(), stores, clock }
    }

    fn signal(&self, signal: &str) {
        self.servers.iter().for_each(|server| server.signal(signal));
    }
}

/// One way to count, and how much later the undo comes.
struct Play {
    user: Compiled,
    ip: Compiled,
    after: Span,
    costs: Costs,
    /// Permits that are admitted at least: else a denied check has consumed some.
    least: u64,
}

impl Play {
    fn new(
        turn: u32,
        (algorithm, mode): (Algorithm, Option<Global>),
        parts: u32,
        (after, least): (u64, u64),
    ) -> Self {
        let mut user = compiled(&format!("u{turn}"), algorithm, per_second(100), turn * 2);
        (user.rule.global, user.rule.split_keys) = (mode, parts);
        let hour = Limit { window: Span::from_secs(3_600), ..per_second(1) };
        let mut ip = compiled(&format!("i{turn}"), Algorithm::FixedWindow, hour, turn * 2 + 1);
        ip.rule.per = vec!["ip".to_owned()];
        let costs = if parts > 1 { IN_PARTS } else { WHOLE };
        Self { user, ip, after: Span(after), costs, least }
    }
}

/// Without others and without parts all is played, three times; the same ways of counting under each mode,
/// and in parts, once in the same window and once over its end.
fn plays() -> Vec<Play> {
    // Half a second later a level has drained by half, and what is undone has too.
    const ALL: [(u64, u64); 3] = [(50_000, 100), (150_000, 0), (1_000_000, 0)];
    // What drained meanwhile of four parts is rounded in each.
    const SOME: [(u64, u64); 2] = [(50_000, 80), (150_000, 0)];
    let modes = [gossip(), Global::new(Mode::Split), Global::new(Mode::Escrow)];
    let mut ways = Vec::new();
    for algorithm in Algorithm::OF_COSTS {
        ways.extend(ALL.map(|when| ((algorithm, None), 1, when)));
        for mode in &modes {
            ways.extend(SOME.map(|when| ((algorithm, Some(mode.clone())), 1, when)));
        }
        // Parts cannot keep one pace.
        if algorithm != Algorithm::LeakyBucket {
            ways.extend(SOME.map(|when| ((algorithm, None), 4, when)));
        }
    }
    (0_u32..).zip(ways).map(|(turn, (counted, parts, when))| Play::new(turn, counted, parts, when)).collect()
}

fn nothing_passes_beside_an_undo(place: &Place<'_>) {
    let plays = plays();
    // Servers that were seen long before the window remember all of it, and mint its rights.
    place.clock.set(WINDOW_BEGINS - Span::from_secs(3_000));
    for play in plays.iter().filter(|play| is_escrowed(&play.user)) {
        for user in ["ann", "bob"] {
            let key = key(&play.user, user);
            for store in &place.stores {
                let _ = runtime().block_on(decide(store, &[charge(&play.user, &key, 1)]));
            }
        }
    }
    for play in &plays {
        let users = if play.user.rule.global.is_none() { &["ann", "bob"][..] } else { &["ann"] };
        for user in users {
            let admitted = admitted_beside_an_undo(place, play, user);
            let rule = &play.user.rule;
            let of = format!(
                "{:?} {:?} in {}, {:?} later: {admitted}",
                rule.algorithm, rule.global, rule.split_keys, play.after
            );
            assert!(admitted <= 100, "too lax: {of}");
            assert!(admitted >= play.least, "a denied check consumed: {of}");
        }
    }
}

#[test]
fn an_undo_that_comes_late_takes_nothing_off_another_window_of_a_cluster() {
    let cluster = Cluster::start_patient();
    nothing_passes_beside_an_undo(&Place::new(Topology::Cluster, cluster.urls(), &cluster.servers));
}

#[test]
fn an_undo_that_comes_late_takes_nothing_off_another_window_of_a_ring() {
    let servers = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let urls = servers.iter().map(Server::url).collect();
    nothing_passes_beside_an_undo(&Place::new(Topology::Ring, urls, &servers));
}
