//! Facts near at hand: a bounded cache, and what happens when somebody is not in it.
//!
//! A decision waits for a fact at most [`LookupSettings::timeout`], and not at all while lookups are known to
//! be slow or to fail. A fact that was changed stays in use until the new one is there, which is a matter of
//! milliseconds while the database answers; so nobody falls back to the default for a moment because an
//! operator changed something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use smallvec::SmallVec;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::pending_look_ups::{FLIGHTS_MAX, Joined, LookUps};
use super::person::{Inquiry, KeyShown, Person, Persons};
use super::{BAR_TIME, Fact, IdentityName, Kind, LookupSettings, NameRef, SHELF_TIME, secret};
use crate::core::identity::{ApiKey, User, UserLimit, is_key_like, is_key_name, parse_key};
use crate::core::request::{API_KEY, Request};
use crate::core::ruleset::RuleSet;
use crate::engine::clock::{Deadline, Stopwatch};
use crate::telemetry::{IdentityMetrics, Metrics};

/// The attribute that names the user.
const USER: &str = "user";
/// A fact that could not be looked up again is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);
/// A request needs the key, then the key's user, and one look more to gather both.
const ROUNDS_MAX: usize = 3;
/// Time for which an operator's question waits for a fact.
const OPERATOR_WAIT: Duration = Duration::from_secs(1);
/// Timers are that coarse: a wait ends by so much later.
const TIMER: Duration = Duration::from_millis(1);
/// The memory that an entry takes in the cache besides its texts, in bytes: measured with
/// `tests/bench/identity.rs`.
const ENTRY_BYTES: usize = 208;
/// The generation of a fact that is outdated by itself.
const OUTDATED: u64 = u64::MAX;

/// Looks people up. Shared by every decision of a daemon.
pub struct Lookups {
    cache: Cache<IdentityName, Arc<KeptFact>, Bytes>,
    pub(super) look_ups: LookUps,
    queue: mpsc::Sender<Wanted>,
    pub(super) settings: LookupSettings,
    started: Stopwatch,
    /// Facts of an earlier generation may all be outdated.
    generation: AtomicU64,
    /// Milliseconds since the start; until then the shelf may hold what is outdated.
    shelf_barred_until: AtomicU64,
    /// Lookups take longer than a decision may wait, or fail.
    slow: AtomicBool,
    pub(super) metrics: IdentityMetrics,
}

impl std::fmt::Debug for Lookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookups").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct KeptFact {
    fact: Fact,
    generation: AtomicU64,
    /// Milliseconds since the start; from then on it is looked up again.
    fresh_until: AtomicU64,
}

/// Weighs entries by the memory that they take.
#[derive(Clone)]
struct Bytes;

impl Weighter<IdentityName, Arc<KeptFact>> for Bytes {
    fn weight(&self, name: &IdentityName, kept: &Arc<KeptFact>) -> u64 {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let limits = |limits: &[UserLimit]| -> usize {
            limits.iter().map(|own| own.rule.len() + size_of::<UserLimit>()).sum()
        };
        let own = match &kept.fact {
            Fact::User(Some(user)) => {
                let block = user.blocked.as_ref().map_or(0, |block| text(&block.reason));
                160 + user.id.len() + text(&user.tier) + limits(&user.overrides) + block
            }
            Fact::Key(Some(key)) => {
                240 + key.id.len() + text(&key.user) + text(&key.tier) + limits(&key.overrides)
            }
            Fact::User(None) | Fact::Key(None) => 0,
        };
        u64::try_from(ENTRY_BYTES + name.id.len() + own).unwrap_or(u64::MAX)
    }
}

/// The work that is to be done.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Look this one up.
    Look(IdentityName),
    /// The same, past the shelf: there was a change.
    Again(IdentityName),
    /// Only clear the shelf of it: there was a change of somebody who is not held here.
    Bar(IdentityName),
}

/// The answer of the cache for one identity.
pub(super) enum Near {
    /// The fact.
    Fact(Fact),
    /// Not there, or outdated, but it may be worth a short wait.
    Soon(CancellationToken, Option<Fact>),
    /// Not there, or outdated, and not to be waited for.
    Without(Option<Fact>),
}

/// The fill of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Number of facts that the cache holds.
    pub entries: usize,
    /// Memory that the facts take, in bytes.
    pub bytes: u64,
    /// Number of look-ups that are under way.
    pub look_ups: usize,
}

impl Lookups {
    /// Knows nobody yet. Beside it comes the queue of those who are to be looked up.
    pub(super) fn new(settings: LookupSettings, metrics: &Metrics) -> (Arc<Self>, mpsc::Receiver<Wanted>) {
        // Room for every flight, and as many changes.
        let (queue, wanted) = mpsc::channel(2 * FLIGHTS_MAX);
        let entries = usize::try_from(settings.cache_bytes).unwrap_or(usize::MAX) / ENTRY_BYTES;
        let lookups = Arc::new(Self {
            cache: Cache::with_weighter(entries, settings.cache_bytes, Bytes),
            look_ups: LookUps::default(),
            queue,
            settings,
            started: Stopwatch::start(),
            generation: AtomicU64::new(0),
            shelf_barred_until: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            metrics: metrics.identity(),
        });
        (lookups, wanted)
    }

    /// Says that somebody changed, appeared or went: the fact is looked up again, at once if it is held.
    pub fn changed(&self, name: IdentityName) {
        self.metrics.changes.increment(1);
        let tainted = self.look_ups.taint(&name);
        let held = self.cache.contains_key(&name.as_ref());
        let joined = (held && !tainted).then(|| self.look_ups.join(name.as_ref(), self.now()));
        let wanted = match joined {
            Some(Joined::New(_)) => Wanted::Again(name.clone()),
            Some(Joined::Full) => {
                // No room to look it up now: whoever uses it next does.
                self.outdate(&name);
                Wanted::Bar(name.clone())
            }
            Some(Joined::Already(..)) | None => Wanted::Bar(name.clone()),
        };
        let again = matches!(wanted, Wanted::Again(_));
        if self.queue.try_send(wanted).is_err() {
            // Better to know nothing than what was true before.
            self.cache.remove(&name.as_ref());
            if again {
                self.look_ups.fail(&name);
            }
        }
    }

    /// Says that anybody may have changed: every fact is looked up again before it is used, as far as a
    /// decision may wait.
    pub fn all_changed(&self) {
        self.metrics.changes.increment(1);
        // Before the generation: whoever reads under the new one must not trust the shelf.
        self.distrust_shelf();
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.look_ups.taint_all();
    }

    /// Says that the shelf may hold outdated facts, for as long as any lies there that is on its way now.
    pub(super) fn distrust_shelf(&self) {
        let until = millis(self.now() + SHELF_TIME + BAR_TIME);
        self.shelf_barred_until.fetch_max(until, Ordering::AcqRel);
    }

    /// True unless the shelf may hold outdated facts.
    pub(super) fn trusts_shelf(&self) -> bool {
        millis(self.now()) >= self.shelf_barred_until.load(Ordering::Acquire)
    }

    /// Makes a fact outdated: it stays in use, and whoever uses it next has it looked up again. `false` if
    /// none is held.
    pub(super) fn outdate(&self, name: &IdentityName) -> bool {
        let kept = self.cache.get(&name.as_ref());
        kept.map(|kept| kept.generation.store(OUTDATED, Ordering::Release)).is_some()
    }

    /// Returns how full it is.
    #[must_use]
    pub fn held(&self) -> Held {
        Held { entries: self.cache.len(), bytes: self.cache.weight(), look_ups: self.look_ups.len() }
    }

    /// Publishes how full it is. Called about once a second.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    pub fn upkeep(&self) {
        let held = self.held();
        self.metrics.entries.set(held.entries as f64);
        self.metrics.bytes.set(held.bytes as f64);
        self.metrics.look_ups.set(held.look_ups as f64);
    }

    /// Waits for what is known of those who ask, within the deadline of a decision; for operators longer.
    pub(in crate::engine) async fn find(
        &self,
        set: &RuleSet,
        requests: &[Request<'_>],
        inquiry: Inquiry,
    ) -> Persons {
        let deadline = Deadline::after(match inquiry {
            Inquiry::Decision | Inquiry::Glance => self.settings.timeout.saturating_sub(TIMER),
            Inquiry::Operator => OPERATOR_WAIT.max(self.settings.timeout),
        });
        let mut rounds = 0;
        loop {
            let mut soon = SmallVec::new();
            let persons = Directory::Lookups(set, self).persons(requests, inquiry, &mut soon);
            rounds += 1;
            if soon.is_empty() || rounds > ROUNDS_MAX {
                return persons;
            }
            for landed in &soon {
                if deadline.wait(landed.cancelled()).await.is_ok() {
                    continue;
                }
                if inquiry != Inquiry::Operator {
                    self.slow.store(true, Ordering::Relaxed);
                    self.metrics.timed_out.increment(1);
                }
                return persons;
            }
        }
    }

    /// Returns what is near at hand.
    fn look(&self, name: NameRef<'_>, inquiry: Inquiry) -> Near {
        let kept = self.cache.get(&name);
        if let Some(kept) = &kept
            && kept.generation.load(Ordering::Acquire) == self.generation.load(Ordering::Acquire)
        {
            self.metrics.hits.increment(1);
            self.refresh(name, kept);
            return Near::Fact(kept.fact.clone());
        }
        self.metrics.misses.increment(1);
        let outdated = kept.map(|kept| kept.fact.clone());
        let now = self.now();
        let (landed, began) = match self.look_ups.join(name, now) {
            Joined::New(landed) => {
                if !self.send(Wanted::Look(name.to_owned())) {
                    return Near::Without(outdated);
                }
                (landed, now)
            }
            Joined::Already(landed, began) => (landed, began),
            Joined::Full => {
                self.metrics.dropped.increment(1);
                return Near::Without(outdated);
            }
        };
        let is_late =
            || self.slow.load(Ordering::Relaxed) || now.saturating_sub(began) >= self.settings.timeout;
        if inquiry != Inquiry::Operator && is_late() {
            return Near::Without(outdated);
        }
        Near::Soon(landed, outdated)
    }

    /// Looks up again what is no longer fresh, while it is still used.
    fn refresh(&self, name: NameRef<'_>, kept: &KeptFact) {
        let now = self.now();
        let due = kept.fresh_until.load(Ordering::Relaxed);
        if millis(now) < due {
            return;
        }
        let next = millis(now + RETRY);
        let mine = kept.fresh_until.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine && let Joined::New(_) = self.look_ups.join(name, now) {
            self.send(Wanted::Look(name.to_owned()));
        }
    }

    /// Sends a flight off; where there is no room it ends.
    pub(super) fn send(&self, wanted: Wanted) -> bool {
        match self.queue.try_send(wanted) {
            Ok(()) => true,
            Err(error) => {
                self.metrics.dropped.increment(1);
                match error.into_inner() {
                    Wanted::Look(name) => self.look_ups.fail(&name),
                    Wanted::Again(name) => {
                        self.outdate(&name);
                        self.look_ups.fail(&name);
                    }
                    Wanted::Bar(_) => {}
                }
                false
            }
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes up a fact that was read while `generation` held.
    pub(super) fn keep(&self, name: IdentityName, fact: Fact, generation: u64) {
        let fresh = if fact.is_somebody() { self.settings.fresh } else { self.settings.fresh_absent };
        let fresh_until = AtomicU64::new(millis(self.now() + fresh));
        let generation = AtomicU64::new(generation);
        self.cache.insert(name, Arc::new(KeptFact { fact, generation, fresh_until }));
    }

    /// Notes how long the last lookup took; `None`: it failed.
    pub(super) fn took(&self, time: Option<Duration>) {
        self.slow.store(time.is_none_or(|time| time >= self.settings.timeout), Ordering::Relaxed);
    }
}

/// Returns what is written beside the rules.
fn written(set: &RuleSet, name: NameRef<'_>) -> Fact {
    match name.kind {
        Kind::User => Fact::User(set.user(name.id).cloned()),
        Kind::Key => Fact::Key(set.key(name.id).cloned()),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The source from which people are known.
#[derive(Clone, Copy)]
pub(in crate::engine) enum Directory<'a> {
    /// The people who are written beside the rules.
    Rules(&'a RuleSet),
    /// The same, and a database for whoever is not there.
    Lookups(&'a RuleSet, &'a Lookups),
}

impl Directory<'_> {
    /// Returns what is known of those who ask; `soon` gets what would be worth a short wait.
    pub(in crate::engine) fn persons(
        self,
        requests: &[Request<'_>],
        inquiry: Inquiry,
        soon: &mut SmallVec<[CancellationToken; 2]>,
    ) -> Persons {
        requests.iter().map(|request| self.person(request, inquiry, soon)).collect()
    }

    fn person(
        self,
        request: &Request<'_>,
        inquiry: Inquiry,
        soon: &mut SmallVec<[CancellationToken; 2]>,
    ) -> Person {
        if request.forms.texts_alone {
            return Person::default();
        }
        let mut users = request.values(USER).filter(|user| !user.is_empty());
        let named = users.next();
        let mut person = self.holder(request.attribute(API_KEY), named, inquiry, soon);
        let is_name = |text: &str| is_key_name(text) && request.forms.credentials.is_empty();
        if person.shown == KeyShown::Foreign && request.attribute(API_KEY).is_some_and(is_name) {
            person.shown = KeyShown::Worthless;
        }
        let mut beside: Vec<_> = users.filter_map(|id| self.user(id, inquiry, soon)).collect();
        person.beside.append(&mut beside);
        for credential in &request.forms.credentials {
            person.others.push(self.holder(Some(credential), named, inquiry, soon));
        }
        person
    }

    /// The holder of one credential. `named`: the user whom the request names.
    fn holder(
        self,
        credential: Option<&str>,
        named: Option<&str>,
        inquiry: Inquiry,
        soon: &mut SmallVec<[CancellationToken; 2]>,
    ) -> Person {
        let mut person = Person::default();
        if let Some(text) = credential.filter(|text| is_key_like(text)) {
            (person.shown, person.key) = self.key(text, inquiry, soon);
        }
        let owner = person.key.as_deref().and_then(|key| key.user.as_deref());
        if let Some(id) = named.or(owner) {
            person.user = self.user(id, inquiry, soon);
        }
        if let Some(id) = owner.filter(|owner| named.is_some_and(|named| named != *owner)) {
            person.beside.extend(self.user(id, inquiry, soon));
        }
        person
    }

    /// Looks up a key that claims to be one of ours.
    fn key(
        self,
        text: &str,
        inquiry: Inquiry,
        soon: &mut SmallVec<[CancellationToken; 2]>,
    ) -> (KeyShown, Option<Arc<ApiKey>>) {
        let named = inquiry != Inquiry::Decision && is_key_name(text);
        let (id, secret) = match parse_key(text) {
            Some(shown) => (Some(shown.id), Some(shown.secret)),
            None => (named.then_some(text), None),
        };
        if let Some(id) = id {
            match self.look(NameRef { kind: Kind::Key, id }, inquiry, soon) {
                Some(Fact::Key(Some(key)))
                    if secret.is_none_or(|secret| secret::is_secret_of(&key, secret)) =>
                {
                    return (KeyShown::Name, Some(key));
                }
                Some(_) => {}
                // Nobody could say. Its limits hold all the same.
                None => return (KeyShown::Name, None),
            }
        }
        (KeyShown::Foreign, None)
    }

    fn user(
        self,
        id: &str,
        inquiry: Inquiry,
        soon: &mut SmallVec<[CancellationToken; 2]>,
    ) -> Option<Arc<User>> {
        match self.look(NameRef { kind: Kind::User, id }, inquiry, soon) {
            Some(Fact::User(user)) => user,
            _ => None,
        }
    }

    fn look(
        self,
        name: NameRef<'_>,
        inquiry: Inquiry,
        soon: &mut SmallVec<[CancellationToken; 2]>,
    ) -> Option<Fact> {
        match self {
            Self::Rules(set) => Some(written(set, name)),
            Self::Lookups(set, _) if set.knows_anybody() && written(set, name).is_somebody() => {
                Some(written(set, name))
            }
            Self::Lookups(_, lookups) => match lookups.look(name, inquiry) {
                Near::Fact(fact) => Some(fact),
                Near::Soon(landed, outdated) => {
                    soon.push(landed);
                    outdated
                }
                Near::Without(outdated) => outdated,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_not_fresh_where_there_is_no_room_to_look_it_up_again() {
        let (lookups, _wanted) = Lookups::new(LookupSettings::default(), &Metrics::new());
        let name = |id: &str| NameRef { kind: Kind::User, id }.to_owned();
        let is_fresh = |id: &str| {
            matches!(lookups.look(NameRef { kind: Kind::User, id }, Inquiry::Decision), Near::Fact(_))
        };
        lookups.keep(name("u"), Fact::absent(Kind::User), lookups.generation());
        assert!(is_fresh("u"));
        while lookups.send(Wanted::Bar(name("other"))) {}
        assert!(!lookups.send(Wanted::Again(name("u"))), "the queue is full");
        assert!(!is_fresh("u"), "it changed, and was not looked up again");

        let (lookups, _wanted) = Lookups::new(LookupSettings::default(), &Metrics::new());
        lookups.keep(name("u"), Fact::absent(Kind::User), lookups.generation());
        for id in 0..FLIGHTS_MAX {
            drop(lookups.look_ups.join(name(&id.to_string()).as_ref(), Duration::ZERO));
        }
        lookups.changed(name("u"));
        let near = lookups.look(NameRef { kind: Kind::User, id: "u" }, Inquiry::Decision);
        assert!(matches!(near, Near::Without(Some(_))), "it stays in use, outdated");
    }
}
