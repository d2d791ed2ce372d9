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
        share: None,
        whole: &rule.limit,
        first: None,
        cost: Cost::Take(cost),
        enforced: true,
    }
}

async fn decide(store: &RedisStore, charges: &[Charge<'_>]) -> Outcome {
    let outcome = store.decide(charges, Intent::Charge, WINDOW_BEGINS).await;
    assert!(outcome.counted.iter().all(|counted| !counted.degraded), "{outcome:?}");
    outcome
}

/// Has a check of `{user, ip}` denied by the ip; while its servers do not answer, `later` passes and another
/// daemon takes some of the user. Returns how many the user is admitted at that instant.
fn admitted_beside_an_undo(
    place: &Place<'_>,
    (user_rule, ip_rule): (&Compiled, &Compiled),
    (user, after): (&str, Span),
) -> u64 {
    let (one, other, clock) = (&place.stores[0], &place.stores[1], &place.clock);
    let (user, ip) = (key(user_rule, user), key(ip_rule, user));
    clock.set(WINDOW_BEGINS + Span(900_000));
    runtime().block_on(async {
        assert!(decide(one, &[charge(ip_rule, &ip, 1)]).await.admitted);
        let both = [charge(user_rule, &user, 60), charge(ip_rule, &ip, 1)];
        place.signal("-STOP");
        let denied = decide(one, &both);
        let meanwhile = async {
            tokio::time::sleep(UNDER_WAY).await;
            clock.set(WINDOW_BEGINS + Span(900_000) + after);
            let others = [charge(user_rule, &user, 40)];
            let taken = decide(other, &others);
            let goes_on = async {
                tokio::time::sleep(UNDER_WAY).await;
                place.signal("-CONT");
            };
            tokio::join!(taken, goes_on).0
        };
        let (denied, taken) = tokio::join!(denied, meanwhile);
        assert!(!denied.admitted, "{denied:?}");
        let mut admitted = if taken.admitted { 40 } else { 0 };
        for cost in [20, 10, 5, 1, 1, 1, 1, 1, 60, 20, 10, 1] {
            admitted += if decide(one, &[charge(user_rule, &user, cost)]).await.admitted { cost } else { 0 };
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

fn nothing_passes_beside_an_undo(place: &Place<'_>) {
    let ips = |name: &str, shape| {
        let limit = Limit { window: Span::from_secs(3_600), ..per_second(1) };
        let mut rule = compiled(name, Algorithm::FixedWindow, limit, shape);
        rule.rule.per = vec!["ip".to_owned()];
        rule
    };
    let split = Global::new(Mode::Split);
    let all = [
        (Algorithm::FixedWindow, None),
        (Algorithm::SlidingWindow, None),
        (Algorithm::SlidingLog, None),
        (Algorithm::TokenBucket, None),
        (Algorithm::LeakyBucket, None),
        (Algorithm::Gcra, None),
        (Algorithm::FixedWindow, Some(gossip())),
        (Algorithm::FixedWindow, Some(split)),
    ];
    for (series, (algorithm, mode)) in (0_u32..).zip(all) {
        // Half a second later a level has drained by half, and what is undone has too.
        for (turn, after, least) in [(1, 50_000, 100), (2, 150_000, 0), (3, 1_000_000, 0)] {
            let turn = turn + 8 * series;
            let mut rule = compiled(&format!("u{turn}"), algorithm, per_second(100), turn * 2);
            rule.rule.global = mode.clone();
            let ip = ips(&format!("i{turn}"), turn * 2 + 1);
            for user in ["ann", "bob"] {
                let admitted = admitted_beside_an_undo(place, (&rule, &ip), (user, Span(after)));
                let of = format!("{algorithm:?} {:?} {after}: {admitted}", rule.rule.global);
                assert!(admitted <= 100, "too lax: {of}");
                assert!(admitted >= least, "a denied check consumed: {of}");
            }
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
