//! Load on a store while something happens to its Redis, and what is required of the answers.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::request::Cost;
use tidegate::core::rule::OnFailure;
use tidegate::core::ruleset::Compiled;
use tidegate::core::time::Span;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Outcome, Store};
use tidegate::store::redis::{RedisSettings, RedisStore, Topology};

use super::redis_servers::now;
use super::redis_store::{compiled, key, runtime, settings, with_policy};

/// For one decision, as in the manual.
pub const TIMEOUT: Duration = Duration::from_millis(20);
/// What a machine that also runs the servers and other tests may add to the deadline of 99 answers in 100.
const MOSTLY_LATE: Duration = Duration::from_millis(30);
/// What it may add to any deadline.
const LATE: Duration = Duration::from_millis(60);
/// How soon Redis must decide again once it can.
pub const BACK_MAX: Duration = Duration::from_secs(3);

pub fn quick(topology: Topology, nodes: Vec<String>) -> RedisSettings {
    RedisSettings { timeout: TIMEOUT, ..settings(topology, nodes) }
}

pub async fn ask(store: &RedisStore, rule: &Compiled, user: &str) -> Outcome {
    let key = key(rule, user);
    let charge = Charge {
        rule,
        key: &key,
        limit: rule.limit,
        share: None,
        whole: &rule.limit,
        first: None,
        cost: Cost::Take(1),
        enforced: true,
    };
    store.decide(std::slice::from_ref(&charge), Intent::Charge, Clock::System.now()).await
}

pub fn ask_now(store: &RedisStore, rule: &Compiled, user: &str) -> Outcome {
    runtime().block_on(ask(store, rule, user))
}

/// The same limit a day under each failure policy.
pub struct Policies(pub [Arc<Compiled>; 3]);

impl Policies {
    pub fn new(permits: u32, algorithm: Algorithm) -> Self {
        let limit =
            Limit { calendar: None, permits, window: Span::from_secs(86_400), burst: permits, queue: 0 };
        let policies = [OnFailure::Local, OnFailure::Open, OnFailure::Closed];
        let rule = |(index, policy): (u32, OnFailure)| {
            let name = format!("{policy:?}").to_lowercase();
            Arc::new(with_policy(compiled(&name, algorithm, limit, index * 8), policy))
        };
        Self([0, 1, 2].map(|index| rule((index, policies[index as usize]))))
    }

    /// Waits until Redis decides again for everyone, at most three seconds.
    pub fn enforced_again(&self, store: &RedisStore, users: usize) {
        let start = now();
        let users = (0..users).map(|user| format!("u{user}"));
        let mut left: Vec<_> =
            self.0.iter().flat_map(|rule| users.clone().map(move |user| (rule, user))).collect();
        // Looked at one by one: that of two hundred answers in a row none is late is no matter of recovery.
        while !left.is_empty() {
            left.retain(|(rule, user)| ask_now(store, rule, user).counted[0].degraded);
            let servers = store.health().servers;
            assert!(
                start.elapsed() < BACK_MAX,
                "{} not decided by redis for {BACK_MAX:?}: {servers:?}",
                left.len()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a load has seen of one policy.
#[derive(Debug, Default)]
struct Seen {
    /// Of answers while the fault lasted.
    waits: Vec<Duration>,
    by_redis: usize,
    by_policy: usize,
    degraded: usize,
    answered: usize,
}

/// Asks for some users under each policy until told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    fault: Arc<AtomicBool>,
    tasks: Vec<(usize, tokio::task::JoinHandle<Seen>)>,
    users: usize,
    permits: usize,
    deadline: Duration,
}

/// How often what Redis knew was lost while the load ran, and how often this daemon had to decide alone.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// Lives of the counters: one, and one more each time they were lost.
    pub lives: usize,
    /// Outages.
    pub outages: usize,
    /// Charges that a replica may not have heard of when it took over.
    pub unheard: usize,
}

impl Story {
    pub const ONE_OUTAGE: Self = Self { lives: 1, outages: 1, unheard: 0 };
}

impl Load {
    pub fn start(store: &Arc<RedisStore>, policies: &Policies, users: usize) -> Self {
        let (stop, fault) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let turn = Arc::new(AtomicUsize::new(0));
        let task = |task: usize| {
            let (store, rule) = (Arc::clone(store), Arc::clone(&policies.0[task % 3]));
            let (stop, fault, turn) = (Arc::clone(&stop), Arc::clone(&fault), Arc::clone(&turn));
            let run = async move {
                let mut seen = Seen::default();
                while !stop.load(Ordering::Relaxed) {
                    let user = turn.fetch_add(1, Ordering::Relaxed) / 3 % users;
                    let (start, in_fault) = (now(), fault.load(Ordering::Relaxed));
                    let outcome = ask(&store, &rule, &format!("u{user}")).await;
                    if in_fault {
                        seen.waits.push(start.elapsed());
                    }
                    let degraded = outcome.counted[0].degraded;
                    seen.answered += 1;
                    seen.degraded += usize::from(degraded);
                    seen.by_redis += usize::from(outcome.admitted && !degraded);
                    seen.by_policy += usize::from(outcome.admitted && degraded);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                seen
            };
            (task % 3, runtime().spawn(run))
        };
        let tasks = (0..6).map(task).collect();
        let permits = policies.0[0].limit.permits as usize;
        Self { stop, fault, tasks, users, permits, deadline: TIMEOUT }
    }

    /// The same on a store whose answers have another deadline than [`TIMEOUT`].
    pub fn within(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Says that the fault begins, or is over. How long answers take is looked at in between.
    pub fn fault(&self, lasts: bool) {
        self.fault.store(lasts, Ordering::Relaxed);
    }

    /// Ends it, and holds what was answered against the bounds that the manual states. Gives back how many
    /// answers were degraded.
    pub fn finish(self, story: Story) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let mut all: [Seen; 3] = Default::default();
        for (policy, task) in self.tasks {
            let seen = runtime().block_on(task).expect("the load runs");
            let own = &mut all[policy];
            own.waits.extend(seen.waits);
            own.by_redis += seen.by_redis;
            own.by_policy += seen.by_policy;
            own.degraded += seen.degraded;
            own.answered += seen.answered;
        }
        let Story { lives, outages, unheard } = story;
        let limit = self.users * self.permits;
        let mut waits: Vec<Duration> = all.iter().flat_map(|seen| seen.waits.iter().copied()).collect();
        waits.sort_unstable();
        let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or_default();
        let most = waits.last().copied().unwrap_or_default();
        println!("{} answers in the fault: p99 {p99:?}, slowest {most:?}; the limit is {limit}", waits.len());
        for (seen, policy) in all.iter().zip(["local", "open", "closed"]) {
            let Seen { by_redis, by_policy, degraded, answered, .. } = seen;
            println!(
                "{policy}: {answered} answered, {degraded} degraded, admitted {by_redis} by redis, {by_policy} without"
            );
            assert!(
                *by_redis <= limit * lives + unheard,
                "redis admitted {by_redis} of {limit} under {policy}"
            );
        }
        let [local, open, closed] = &all;
        assert!(local.by_policy <= limit * outages, "local admitted {} of {limit}", local.by_policy);
        assert_eq!(open.by_policy, open.degraded, "open lets everything pass");
        assert_eq!(closed.by_policy, 0, "closed lets nothing pass");
        assert!(p99 < self.deadline + MOSTLY_LATE, "p99 {p99:?}");
        assert!(most < self.deadline + LATE, "slowest {most:?}");
        all.iter().map(|seen| seen.degraded).sum()
    }
}
