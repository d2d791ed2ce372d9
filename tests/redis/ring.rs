//! Independent servers on a consistent-hash ring: who joins or leaves moves its own share, and nobody else's
//! counters.

use crate::redis_servers::Server;
use crate::redis_store::{compiled, key, runtime, settings, store};
use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::request::Cost;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Store};
use tidegate::store::redis::{RedisStore, Topology};

const USERS: usize = 400;
const USED: u64 = 3;

fn rule() -> Compiled {
    let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(86_400), burst: 10, queue: 0 };
    compiled("r", Algorithm::FixedWindow, limit, 8)
}

fn ring(servers: &[&Server]) -> RedisStore {
    store(settings(Topology::Ring, servers.iter().map(|server| server.url()).collect()), 1)
}

/// What each user is known to have used.
fn used(store: &RedisStore) -> Vec<u64> {
    let rule = rule();
    let info = |user| {
        let key = key(&rule, &format!("u{user}"));
        let info = runtime().block_on(store.bucket(&rule, &key, rule.limit.into(), Clock::System.now()));
        info.map_or(0, |info| {
            assert!(!info.degraded);
            info.used
        })
    };
    (0..USERS).map(info).collect()
}

fn use_some(store: &RedisStore) {
    let rule = rule();
    for user in 0..USERS {
        let key = key(&rule, &format!("u{user}"));
        let charge = Charge {
            rule: &rule,
            key: &key,
            limit: rule.limit,
            share: None,
            whole: &rule.limit,
            first: None,
            cost: Cost::Take(USED),
            enforced: true,
        };
        assert!(runtime().block_on(store.decide(&[charge], Intent::Charge, Clock::System.now())).admitted);
    }
}

fn kept(used: &[u64]) -> usize {
    assert!(used.iter().all(|used| *used == 0 || *used == USED), "a counter is whole or new: {used:?}");
    used.iter().filter(|used| **used == USED).count()
}

#[test]
fn a_server_that_joins_or_leaves_moves_only_its_own_share() {
    let servers = [Server::start(&[]), Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let [a, b, c, d] = &servers;
    let three = ring(&[a, b, c]);
    use_some(&three);
    assert_eq!(kept(&used(&three)), USERS);
    assert_eq!(kept(&used(&ring(&[c, a, b]))), USERS, "the order in which they are listed does not matter");

    // A fourth takes about a quarter, from all three; the rest stays where it is.
    let four = ring(&[a, b, c, d]);
    let after = used(&four);
    let moved = USERS - kept(&after);
    println!("of {USERS} counters {moved} moved to the server that joined");
    assert!((USERS / 8..USERS / 2).contains(&moved), "{moved} moved");
    use_some(&four);
    let keys = |server: &Server| -> usize {
        let keys = server.command(&["KEYS", "tg:{user=*"]).unwrap_or_default();
        keys.lines().next().unwrap_or_default().trim_start_matches('*').parse().expect("a number")
    };
    assert_eq!(keys(d), moved, "what moved lies on the new server");

    // One leaves: its own counters are gone, all others are as they were.
    let own = keys(c);
    let two = ring(&[a, b]);
    let left = used(&two);
    let lost = left.iter().filter(|used| **used == 0).count();
    println!("of {USERS} counters {lost} were the leaving server's {own}");
    assert_eq!(lost, own, "only those of the server that left begin anew");
}
