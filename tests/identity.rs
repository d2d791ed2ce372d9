//! Who is asking, with a database that the tests play: what is looked up, how long a decision waits, what is
//! refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate::core::decision::Decision;
use tidegate::core::identity::{ApiKey, Block, User, UserLimit};
use tidegate::core::regions::NodeName;
use tidegate::core::request::{Cost, Request};
use tidegate::core::time::Timestamp;
use tidegate::database::document;
use tidegate::engine::Engine;
use tidegate::engine::clock::Clock;
use tidegate::engine::identity::lookups::Lookups;
use tidegate::engine::identity::secret::{NewKey, new_key};
use tidegate::engine::identity::{Fact, IdentityName, Kind, LookupSettings, Shelf, Source, Unreachable};
use tidegate::engine::port::Later;
use tidegate::store::memory::MemoryStore;
use tidegate::telemetry::Metrics;
use tokio_util::sync::CancellationToken;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
const RULES: &str = r#"
    [[rules]]
    name = "free"
    match = { tier = "free" }
    per = ["user"]
    limit = 5
    window = "1h"
    [[rules]]
    name = "pro"
    match = { tier = "pro" }
    per = ["user"]
    limit = 100
    window = "1h"
    [[rules]]
    name = "by-key"
    per = ["api_key"]
    limit = 7
    window = "1h"
"#;

/// A database whose content, speed and presence the test chooses.
#[derive(Default)]
struct Database {
    facts: Mutex<HashMap<IdentityName, Fact>>,
    calls: AtomicUsize,
    names: AtomicUsize,
    delay_ms: AtomicU64,
    away: AtomicBool,
}

impl Database {
    fn put(&self, name: &IdentityName, fact: Fact) {
        self.facts.lock().unwrap().insert(name.clone(), fact);
    }
    fn user(&self, id: &str, change: impl FnOnce(&mut User)) -> IdentityName {
        let mut user = User { id: id.to_owned(), tier: None, overrides: vec![], blocked: None };
        change(&mut user);
        let name = IdentityName { kind: Kind::User, id: id.into() };
        self.put(&name, Fact::User(Some(Arc::new(user))));
        name
    }
    fn key(&self, new: &NewKey, change: impl FnOnce(&mut ApiKey)) -> IdentityName {
        let mut key = ApiKey {
            id: new.id.clone(),
            salt: new.salt,
            hash: new.hash,
            user: None,
            tier: None,
            overrides: vec![],
            active: true,
            expires: None,
            revoked: false,
        };
        change(&mut key);
        let name = IdentityName { kind: Kind::Key, id: new.id.as_str().into() };
        self.put(&name, Fact::Key(Some(Arc::new(key))));
        name
    }
    fn asked(&self) -> usize {
        self.names.load(Ordering::Relaxed)
    }
}

impl Source for Database {
    fn load<'a>(
        &'a self,
        names: &'a [IdentityName],
    ) -> Later<'a, Result<Vec<(IdentityName, Fact)>, Unreachable>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.names.fetch_add(names.len(), Ordering::Relaxed);
            // What is there when the question arrives is the answer, however long it takes.
            let found: Vec<_> = {
                let facts = self.facts.lock().unwrap();
                names.iter().filter_map(|name| Some((name.clone(), facts.get(name)?.clone()))).collect()
            };
            tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))).await;
            if self.away.load(Ordering::Relaxed) {
                return Err(Unreachable("the test took the database away".to_owned()));
            }
            Ok(found)
        })
    }
}

/// A shelf that can be made deaf to changes.
#[derive(Default)]
struct Board(Mutex<HashMap<String, Option<Vec<u8>>>>, AtomicBool);

impl Shelf for Board {
    fn fetch<'a>(&'a self, names: &'a [String]) -> Later<'a, Vec<Option<Vec<u8>>>> {
        let board = self.0.lock().unwrap();
        let found = names.iter().map(|name| board.get(name).cloned().flatten()).collect();
        Box::pin(async move { found })
    }
    fn keep<'a>(&'a self, facts: &'a [(String, Vec<u8>)], _: Duration) -> Later<'a, ()> {
        let mut board = self.0.lock().unwrap();
        for (name, fact) in facts {
            board.entry(name.clone()).or_insert_with(|| Some(fact.clone()));
        }
        Box::pin(async {})
    }
    fn bar<'a>(&'a self, names: &'a [String], _: Duration) -> Later<'a, bool> {
        let hears = !self.1.load(Ordering::Relaxed);
        if hears {
            let mut board = self.0.lock().unwrap();
            names.iter().for_each(|name| drop(board.insert(name.clone(), None)));
        }
        Box::pin(async move { hears })
    }
}

/// A daemon's engine over a database.
struct Daemon {
    engine: Engine,
    lookups: Arc<Lookups>,
    stop: CancellationToken,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Daemon {
    fn over(database: &Arc<Database>) -> Self {
        Self::with(
            database,
            None,
            LookupSettings { timeout: Duration::from_secs(2), ..LookupSettings::default() },
        )
    }

    fn with(database: &Arc<Database>, shelf: Option<Arc<dyn Shelf>>, settings: LookupSettings) -> Self {
        let name = NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
        let metrics = Metrics::new();
        let store = Arc::new(MemoryStore::new(10_000));
        let engine = Engine::new(name, Clock::Manual(NOW.0.into()), store, Arc::clone(&metrics));
        let loaded = document::from_toml("rules.toml", RULES, &[]).unwrap();
        engine.load(loaded.rules, vec![], false).unwrap();
        engine.set_tier_default("free");
        let stop = CancellationToken::new();
        let lookups = Lookups::start(settings, Arc::clone(database) as _, shelf, &metrics, stop.clone());
        engine.look_up_in(Arc::clone(&lookups));
        Self { engine, lookups, stop }
    }

    async fn ask(&self, attributes: &[(&str, &str)]) -> Decision {
        let attributes = attributes.iter().copied().collect();
        let request = [Request::new("default", attributes, Cost::Peek)];
        self.engine.decide(&request).get().await.remove(0)
    }

    async fn rule(&self, attributes: &[(&str, &str)]) -> String {
        let decision = self.ask(attributes).await;
        decision.tightest.map_or_else(String::new, |index| decision.rules[index].rule.to_string())
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(10), "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn pro(user: &mut User) {
    user.tier = Some("pro".to_owned());
}

#[tokio::test]
async fn a_tier_is_looked_up_before_the_first_decision_and_held_for_the_next() {
    let database = Arc::new(Database::default());
    database.user("u", pro);
    let daemon = Daemon::over(&database);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "pro");
    assert_eq!(daemon.rule(&[("user", "nobody")]).await, "free");
    assert_eq!(daemon.rule(&[("user", "u"), ("tier", "free")]).await, "free");
    for _ in 0..100 {
        assert_eq!(daemon.rule(&[("user", "u")]).await, "pro");
        assert_eq!(daemon.rule(&[("user", "nobody")]).await, "free");
    }
    assert_eq!(database.asked(), 2, "both answers are held, the negative one too");
}

#[tokio::test]
async fn a_slow_database_delays_one_decision_by_the_timeout_and_no_other() {
    let database = Arc::new(Database::default());
    database.delay_ms.store(300, Ordering::Relaxed);
    database.user("u", pro);
    let daemon = Daemon::with(&database, None, LookupSettings::default());
    let began = Instant::now();
    assert_eq!(daemon.rule(&[("user", "u")]).await, "free", "the default decides");
    let first = began.elapsed();
    assert!(first < Duration::from_millis(100), "waited {first:?}");
    let began = Instant::now();
    for id in 0..200 {
        daemon.rule(&[("user", &format!("v{id}"))]).await;
    }
    let rest = began.elapsed();
    assert!(rest < Duration::from_millis(100), "200 others waited {rest:?} together");
    eventually("the answer arrives", async || daemon.rule(&[("user", "u")]).await == "pro").await;
}

#[tokio::test]
async fn a_database_that_is_away_delays_nothing_and_is_asked_again() {
    let database = Arc::new(Database::default());
    database.user("known", pro);
    database.user("u", pro);
    let daemon = Daemon::over(&database);
    assert_eq!(daemon.rule(&[("user", "known")]).await, "pro");
    database.away.store(true, Ordering::Relaxed);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "free");
    let began = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(daemon.rule(&[("user", "u")]).await, "free");
        assert_eq!(daemon.rule(&[("user", "known")]).await, "pro");
    }
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    assert!(database.calls.load(Ordering::Relaxed) < 10, "a database that is away is not asked all the time");
    database.away.store(false, Ordering::Relaxed);
    eventually("it is found again", async || daemon.rule(&[("user", "u")]).await == "pro").await;
}

#[tokio::test]
async fn many_who_ask_for_one_user_at_once_cause_one_lookup() {
    let database = Arc::new(Database::default());
    database.delay_ms.store(10, Ordering::Relaxed);
    database.user("u", pro);
    let daemon = Daemon::over(&database);
    let asked: Vec<_> = (0..500).map(|_| daemon.rule(&[("user", "u")])).collect();
    let rules = futures_util::future::join_all(asked).await;
    assert!(rules.iter().all(|rule| rule == "pro"));
    assert_eq!(database.asked(), 1);
}

#[tokio::test]
async fn a_change_takes_effect_while_the_former_fact_stays_in_use() {
    let database = Arc::new(Database::default());
    let name = database.user("u", pro);
    let daemon = Daemon::over(&database);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "pro");
    database.delay_ms.store(150, Ordering::Relaxed);
    database.user("u", |user| {
        user.blocked = Some(Block { reason: Some("spam".to_owned()), until: None });
    });
    daemon.lookups.changed(name);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "pro", "not the default for a moment");
    eventually("the block", async || daemon.rule(&[("user", "u")]).await == "user_blocked").await;
    let decision = daemon.ask(&[("user", "u")]).await;
    assert_eq!((decision.allowed, decision.status, decision.message.as_deref()), (false, 403, Some("spam")));
}

#[tokio::test]
async fn a_change_during_a_lookup_is_not_lost() {
    let database = Arc::new(Database::default());
    let name = database.user("u", |_| {});
    database.delay_ms.store(80, Ordering::Relaxed);
    let daemon = Daemon::over(&database);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "free");
    // The lookup has read the former row and is on its way back.
    database.user("u", pro);
    daemon.lookups.changed(name);
    eventually("the change", async || daemon.rule(&[("user", "u")]).await == "pro").await;
}

#[tokio::test]
async fn a_change_that_could_not_be_read_is_read_when_the_database_is_back() {
    let database = Arc::new(Database::default());
    let name = database.user("u", pro);
    let daemon = Daemon::over(&database);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "pro");
    database.away.store(true, Ordering::Relaxed);
    database.user("u", |user| user.blocked = Some(Block { reason: None, until: None }));
    daemon.lookups.changed(name);
    eventually("a call that fails", async || database.asked() > 1).await;
    for _ in 0..1_000 {
        assert_eq!(daemon.rule(&[("user", "u")]).await, "pro", "the former one stays in use");
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    let calls = database.calls.load(Ordering::Relaxed);
    assert!((3..20).contains(&calls), "a database that is away is not asked all the time: {calls}");
    database.away.store(false, Ordering::Relaxed);
    eventually("it is read, though nobody asks", async || daemon.lookups.held().look_ups == 0).await;
    assert_eq!(daemon.rule(&[("user", "u")]).await, "user_blocked");
}

#[tokio::test]
async fn a_change_during_a_lookup_that_fails_is_not_lost() {
    let database = Arc::new(Database::default());
    let name = database.user("u", pro);
    let settings = LookupSettings {
        timeout: Duration::from_secs(2),
        fresh: Duration::from_millis(500),
        ..LookupSettings::default()
    };
    let daemon = Daemon::with(&database, None, settings);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "pro");
    tokio::time::sleep(Duration::from_millis(550)).await;
    database.delay_ms.store(100, Ordering::Relaxed);
    database.away.store(true, Ordering::Relaxed);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "pro");
    eventually("the lookup of what is no longer fresh", async || database.asked() == 2).await;
    database.user("u", |user| user.blocked = Some(Block { reason: None, until: None }));
    daemon.lookups.changed(name);
    eventually("it fails, and is made again", async || database.asked() > 2).await;
    database.away.store(false, Ordering::Relaxed);
    eventually("it is read, though nobody asks", async || daemon.lookups.held().look_ups == 0).await;
    assert_eq!(daemon.rule(&[("user", "u")]).await, "user_blocked");
}

#[tokio::test]
async fn after_a_change_of_anybody_everybody_is_looked_up_again() {
    let database = Arc::new(Database::default());
    database.user("u", |_| {});
    let daemon = Daemon::over(&database);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "free");
    database.user("u", pro);
    assert_eq!(daemon.rule(&[("user", "u")]).await, "free");
    daemon.lookups.all_changed();
    assert_eq!(daemon.rule(&[("user", "u")]).await, "pro");
}

#[tokio::test]
async fn a_key_brings_its_user_tier_and_limits_and_shows_its_name_alone() {
    let database = Arc::new(Database::default());
    let new = new_key().unwrap();
    database.user("owner", |user| user.tier = Some("free".to_owned()));
    database.key(&new, |key| {
        key.user = Some("owner".to_owned());
        key.tier = Some("pro".to_owned());
        key.overrides = vec![UserLimit { rule: "by-key".to_owned(), permits: 3, burst: 3 }];
    });
    let daemon = Daemon::over(&database);
    let decision = daemon.ask(&[("api_key", &new.text)]).await;
    let limits: Vec<_> = decision.rules.iter().map(|ruled| (&*ruled.rule, ruled.limit)).collect();
    assert_eq!(limits, [("by-key", 3), ("pro", 100)]);
    let request = Request::new("default", [("api_key", new.text.as_str())].into_iter().collect(), Cost::Peek);
    let bucket = daemon.engine.bucket("by-key", &request).await.unwrap();
    assert_eq!(bucket.identity, [("api_key".to_owned(), new.id.clone())], "no secret in a bucket's name");
    let bucket = daemon.engine.bucket("pro", &request).await.unwrap();
    assert_eq!(bucket.identity, [("user".to_owned(), "owner".to_owned())]);
}

#[tokio::test]
async fn a_wrong_secret_stands_for_nobody_and_costs_the_owner_nothing() {
    let database = Arc::new(Database::default());
    let (new, other) = (new_key().unwrap(), new_key().unwrap());
    database.key(&new, |key| key.tier = Some("pro".to_owned()));
    let daemon = Daemon::over(&database);
    let secret = other.text.rsplit_once('_').unwrap().1;
    for wrong in
        [format!("{}_{secret}", new.id), new.id.clone(), other.text.clone(), format!("{}x", new.text)]
    {
        let decision = daemon.ask(&[("api_key", &wrong), ("user", "u")]).await;
        let rules: Vec<_> = decision.rules.iter().map(|ruled| &*ruled.rule).collect();
        assert_eq!(rules, ["free"], "{wrong}");
    }
}

#[tokio::test]
async fn keys_that_are_revoked_expired_or_switched_off_are_refused() {
    let database = Arc::new(Database::default());
    let new = new_key().unwrap();
    let daemon = Daemon::over(&database);
    for (name, change) in [
        ("by-key", (|_| {}) as fn(&mut ApiKey)),
        ("key_revoked", |key| key.revoked = true),
        ("key_expired", |key| key.expires = Some(NOW)),
        ("key_inactive", |key| key.active = false),
        ("by-key", |key| key.expires = Some(Timestamp(NOW.0 + 1))),
    ] {
        let changed = database.key(&new, change);
        daemon.lookups.changed(changed);
        eventually(name, async || daemon.rule(&[("api_key", &new.text)]).await == name).await;
    }
}

#[tokio::test]
async fn a_blocked_owner_refuses_his_keys_until_the_end_of_the_block() {
    let database = Arc::new(Database::default());
    let new = new_key().unwrap();
    database.key(&new, |key| key.user = Some("owner".to_owned()));
    let until = Some(Timestamp(NOW.0 + 90_000_000));
    database.user("owner", |user| user.blocked = Some(Block { reason: None, until }));
    let daemon = Daemon::over(&database);
    let decision = daemon.ask(&[("api_key", &new.text)]).await;
    assert_eq!(&*decision.rules[0].rule, "user_blocked");
    assert_eq!(decision.rules[0].retry.unwrap().micros(), 90_000_000);
}

#[tokio::test]
async fn a_refused_request_charges_no_other_of_its_call() {
    let database = Arc::new(Database::default());
    database.user("bad", |user| user.blocked = Some(Block { reason: None, until: None }));
    let daemon = Daemon::over(&database);
    let request = |user, cost| Request::new("default", [("user", user)].into_iter().collect(), cost);
    let decisions =
        daemon.engine.decide(&[request("good", Cost::Take(1)), request("bad", Cost::Take(1))]).get().await;
    assert_eq!(decisions.iter().map(|decision| decision.allowed).collect::<Vec<_>>(), [true, false]);
    let left = daemon.engine.decide(&[request("good", Cost::Peek)]).get().await;
    assert_eq!(left[0].rules[0].remaining, 5);
}

#[tokio::test]
async fn daemons_share_what_lies_on_the_shelf_but_not_after_a_change() {
    let database = Arc::new(Database::default());
    let shelf: Arc<dyn Shelf> = Arc::new(Board::default());
    let settings = LookupSettings { timeout: Duration::from_secs(2), ..LookupSettings::default() };
    let one = Daemon::with(&database, Some(Arc::clone(&shelf)), settings.clone());
    let two = Daemon::with(&database, Some(shelf), settings);
    let name = database.user("u", pro);
    assert_eq!(one.rule(&[("user", "u")]).await, "pro");
    eventually("the second finds it on the shelf", async || two.rule(&[("user", "u")]).await == "pro").await;
    assert_eq!(database.asked(), 1);
    database.user("u", |_| {});
    one.lookups.changed(name.clone());
    eventually("the first", async || one.rule(&[("user", "u")]).await == "free").await;
    two.lookups.changed(name);
    eventually("the second", async || two.rule(&[("user", "u")]).await == "free").await;
    assert_eq!(database.asked(), 3);
}

#[tokio::test]
async fn a_shelf_that_does_not_hear_of_a_change_is_not_trusted_after_it() {
    let database = Arc::new(Database::default());
    let board = Arc::new(Board::default());
    let settings = LookupSettings { timeout: Duration::from_secs(2), ..LookupSettings::default() };
    let shelf: Arc<dyn Shelf> = Arc::clone(&board) as _;
    let one = Daemon::with(&database, Some(Arc::clone(&shelf)), settings.clone());
    let two = Daemon::with(&database, Some(shelf), settings);
    let name = database.user("u", pro);
    assert_eq!(one.rule(&[("user", "u")]).await, "pro");
    eventually("it lies there", async || board.0.lock().unwrap().values().any(Option::is_some)).await;
    board.1.store(true, Ordering::Relaxed);
    database.user("u", |user| user.blocked = Some(Block { reason: None, until: None }));
    // The second does not hold the user: it only clears the shelf.
    two.lookups.changed(name);
    assert_eq!(two.rule(&[("user", "u")]).await, "user_blocked");
    assert!(board.0.lock().unwrap().values().any(Option::is_some), "the former fact lies there still");
}

#[tokio::test]
async fn the_cache_holds_no_more_than_its_bytes() {
    let database = Arc::new(Database::default());
    let settings = LookupSettings { cache_bytes: 50_000, ..LookupSettings::default() };
    let daemon = Daemon::with(&database, None, settings);
    for id in 0..5_000 {
        daemon.rule(&[("user", &format!("user-{id}"))]).await;
    }
    eventually("all have landed", async || daemon.lookups.held().look_ups == 0).await;
    let held = daemon.lookups.held();
    assert!(held.bytes <= 50_000 && held.entries > 100, "{held:?}");
}
