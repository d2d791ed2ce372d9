//! Decisions under concurrency, the ports that the layers around it implement, and the only clock.
//!
//! The engine holds the rule set in force, matches each request, has its buckets charged in one atomic call
//! to the store, and puts the outcome into words. Its counts for worldwide limits wait in [`world::Tallies`]
//! until the protocol between regions asks for them; a decision never waits for that.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use metrics::Counter;
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use crate::core::algorithm::{Algorithm, Limit};
use crate::core::identity::{Refusal, User, Who};
use crate::core::key::{Key, identity_values};
use crate::core::region_list::RegionList;
use crate::core::regions::escrow::{StepRequest, StepResult};
use crate::core::regions::gossip::uncertainty::BucketAnswer;
use crate::core::regions::{Effect, NodeName, StoreSeen, Touched, WorldRule};
use crate::core::request::Request;
use crate::core::rule::{Global, Mode, Rule};
use crate::core::ruleset::{Compiled, Conflict, People, Reason, RuleSet, Shapes};
use crate::core::time::{Span, Timestamp};
use crate::core::wire::OwnLimit;
use crate::telemetry::Metrics;
use crate::telemetry::traces::Tracer;

pub mod admin;
pub mod assignable;
pub mod audit;
mod bound;
mod caller_id;
pub mod clock;
mod crossings;
pub mod decide;
pub mod difference;
mod each;
mod estimate;
pub mod events;
mod excess;
mod footprint;
pub mod history;
pub mod hold;
pub mod hot;
pub mod identity;
mod lapses;
pub mod loaded;
pub mod names;
pub mod notices;
mod owed;
pub mod pace;
mod partition;
pub mod port;
pub mod quotas;
mod rates;
mod refusal;
pub mod region_listing;
pub mod reserve;
pub mod rulebook;
mod split;
pub mod status;
pub mod tasks;
mod turns;
mod unmatched;
mod wait;
pub mod warnings;
pub mod why;
pub mod world;

use clock::{Clock, Stopwatch};
use excess::Excesses;
use hold::Holds;
use identity::lookups::Lookups;
use identity::sightings::Sightings;
use identity::{Directory, Inquiry, Persons, rewritten, shows_key};
use loaded::Loaded;
use pace::Pacing;
use port::{Answer, HeldLimit, Store};
use reserve::Reservations;
use rulebook::RulesStatus;
use split::Shares;
use status::{BucketReset, BucketStatus, Explanation, WorldStatus};
use tasks::Tasks;
use wait::Waits;
use world::Tallies;

/// One decision in this many is timed: a histogram costs more than a decision.
const SAMPLE: u32 = 16;

/// Decides. Shared by every server of one daemon.
pub struct Engine {
    name: NodeName,
    clock: Clock,
    store: Arc<dyn Store>,
    loaded: ArcSwap<Loaded>,
    shapes: Mutex<Shapes>,
    tallies: Tallies,
    shares: Shares,
    others: bound::Others,
    waits: Waits,
    pacing: Pacing,
    owed: owed::OwedBuckets,
    holds: Holds,
    reservations: Reservations,
    world: ArcSwap<WorldStatus>,
    rules_status: ArcSwap<RulesStatus>,
    warnings: warnings::NewestWarnings,
    unknown_domains: unmatched::Unknown,
    notices: notices::PublishedNotices,
    excess: Excesses,
    hot: hot::HotCounts,
    hot_metrics: hot::HotMetrics,
    rates: rates::RateReadings,
    warned: crossings::Warned,
    metrics: Arc<Metrics>,
    degraded: [Counter; 3],
    refused: [Counter; 4],
    /// Permits of reports that were not charged, by reason.
    uncharged: [Counter; 3],
    lookups: OnceLock<Arc<Lookups>>,
    sightings: Arc<Sightings>,
    tier_default: OnceLock<Box<str>>,
    audit: Option<Arc<audit::Queue>>,
    events: Arc<events::EventQueue>,
    tasks: Tasks,
    tracer: Option<Arc<Tracer>>,
    /// Rules are on their way, and none were there yet.
    awaits_rules: AtomicBool,
    /// Paths and hosts come to rules as they were sent.
    raw_values: AtomicBool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine with no rules: everything passes until [`Self::load`].
    #[must_use]
    pub fn new(name: NodeName, clock: Clock, store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        let degraded = ["local", "open", "closed"]
            .map(|policy| metrics.counter("degraded_decisions_total", "policy", policy));
        let refused = Refusal::ALL.map(|why| metrics.counter("identity_refused_total", "reason", why.name()));
        let uncharged = ["debt_max", "forgiven", "store"]
            .map(|reason| metrics.counter("reports_uncharged_permits_total", "reason", reason));
        let empty = Loaded::new(RuleSet::default(), 0, false, &metrics);
        let shares = Shares::new(name.clone(), RegionList::NOBODY, None);
        let began = clock.now();
        let events = events::EventQueue::new(&metrics);
        let sightings = Arc::new(Sightings::new(metrics.sightings_lost.clone()));
        Self {
            name,
            clock,
            store,
            loaded: ArcSwap::from_pointee(empty),
            shapes: Mutex::default(),
            tallies: Tallies::default(),
            shares,
            others: bound::Others::default(),
            waits: Waits::new(&metrics),
            pacing: Pacing::new(&metrics),
            owed: owed::OwedBuckets::default(),
            holds: Holds::new(&metrics),
            reservations: Reservations::new(&metrics),
            world: ArcSwap::default(),
            rules_status: ArcSwap::default(),
            warnings: warnings::NewestWarnings::default(),
            unknown_domains: unmatched::Unknown::new(&metrics),
            notices: notices::PublishedNotices::default(),
            excess: Excesses::default(),
            hot: hot::HotCounts::new(began),
            hot_metrics: hot::HotMetrics::new(&metrics),
            rates: rates::RateReadings::new(began),
            warned: crossings::Warned::new(&metrics),
            metrics,
            degraded,
            refused,
            uncharged,
            audit: None,
            events,
            lookups: OnceLock::new(),
            sightings,
            tier_default: OnceLock::new(),
            tasks: Tasks::default(),
            tracer: None,
            awaits_rules: AtomicBool::new(false),
            raw_values: AtomicBool::new(false),
        }
    }

    /// True if nothing has to be waited for, but for people who are looked up and rights on their way.
    #[must_use]
    pub fn answers_at_once(&self) -> bool {
        self.store.answers_at_once()
    }

    /// Looks people up from now on, rather than finding them beside the rules. Once; later calls change
    /// nothing.
    pub fn look_up_in(&self, lookups: Arc<Lookups>) {
        let _ = self.lookups.set(lookups);
    }

    /// Returns what looks people up, if anything does.
    #[must_use]
    pub fn lookups(&self) -> Option<&Arc<Lookups>> {
        self.lookups.get()
    }

    /// Returns when users and API keys were last seen, as far as nobody has written it down yet.
    #[must_use]
    pub const fn sightings(&self) -> &Arc<Sightings> {
        &self.sightings
    }

    /// The tier of requests that bring none and of whom no other is known. Once; later calls change nothing.
    pub fn set_tier_default(&self, tier: &str) {
        let _ = self.tier_default.set(tier.into());
    }

    /// The tier of those who have none of their own.
    pub(crate) fn tier_default(&self) -> Option<&str> {
        self.tier_default.get().map(|tier| &**tier)
    }

    /// Returns what is known at once of those who ask; `soon` gets what would be worth a short wait.
    #[inline]
    fn persons(
        &self,
        set: &RuleSet,
        requests: &[Request<'_>],
        soon: &mut SmallVec<[CancellationToken; 2]>,
    ) -> Persons {
        match self.lookups.get() {
            Some(lookups) => Directory::Lookups(set, lookups).persons(requests, Inquiry::Decision, soon),
            None if set.knows_anybody() || requests.iter().any(shows_key) => {
                Directory::Rules(set).persons(requests, Inquiry::Decision, soon)
            }
            None => Persons::new(),
        }
    }

    /// Returns what is known of those who ask, after a wait within the deadline of a decision.
    async fn find(&self, set: &RuleSet, requests: &[Request<'_>]) -> Persons {
        match self.lookups.get() {
            Some(lookups) => lookups.find(set, requests, Inquiry::Decision).await,
            None => self.persons(set, requests, &mut SmallVec::new()),
        }
    }

    /// The same for an operator, who may call keys by their public names.
    async fn find_for(&self, inquiry: Inquiry, set: &RuleSet, requests: &[Request<'_>]) -> Persons {
        match self.lookups.get() {
            Some(lookups) => lookups.find(set, requests, inquiry).await,
            None => Directory::Rules(set).persons(requests, inquiry, &mut SmallVec::new()),
        }
    }

    /// Looks up whoever of these is not known at once, together, within the deadline of one decision.
    async fn look_ahead(&self, requests: &[Request<'_>]) {
        let loaded = self.loaded.load_full();
        let mut soon = SmallVec::new();
        let _ = self.persons(&loaded.set, requests, &mut soon);
        if !soon.is_empty() {
            let _ = self.find(&loaded.set, requests).await;
        }
    }

    /// The same engine, beside these background tasks.
    #[must_use]
    pub fn with_tasks(self, tasks: Tasks) -> Self {
        Self { tasks, ..self }
    }

    /// Says that rules are on their way: until the first set takes force nothing can be decided.
    pub fn await_rules(&self) {
        self.awaits_rules.store(true, Ordering::Relaxed);
    }

    /// True if no set of rules was there yet, and one is on its way.
    #[must_use]
    pub fn awaits_rules(&self) -> bool {
        self.awaits_rules.load(Ordering::Relaxed)
    }

    /// The background tasks of its daemon.
    #[must_use]
    pub const fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The same engine, with what takes spans.
    #[must_use]
    pub fn with_tracer(self, tracer: Option<Arc<Tracer>>) -> Self {
        Self { tracer, ..self }
    }

    /// The tracer that takes spans; `None`: nobody is told any.
    #[must_use]
    pub const fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.tracer.as_ref()
    }

    /// The same engine, leaving records of its decisions in this queue.
    #[must_use]
    pub fn with_audit(mut self, queue: Arc<audit::Queue>) -> Self {
        self.audit = Some(queue);
        self
    }

    /// Compiles `rules` and puts them in force at once for every following decision. Buckets of rules that
    /// keep their shape are kept. Returns the new revision.
    ///
    /// # Errors
    /// What is wrong with the set as a whole; the set before stays in force.
    pub fn load(&self, rules: Vec<Rule>, users: Vec<User>, shadow: bool) -> Result<u64, Vec<Conflict>> {
        self.load_as(rules, users, shadow, None)
    }

    /// The same under a revision that the rules' source gave it; `None`: the next one. `people` may have API
    /// keys too.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_as(
        &self,
        rules: Vec<Rule>,
        people: impl Into<People>,
        shadow: bool,
        revision: Option<u64>,
    ) -> Result<u64, Vec<Conflict>> {
        let mut shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        let set = RuleSet::compile_with_people(rules, people.into(), &mut shapes)?;
        let revision = revision.unwrap_or_else(|| self.loaded.load().revision + 1);
        self.enforce(set, &shapes, |set| Loaded::new(set, revision, shadow, &self.metrics));
        Ok(revision)
    }

    /// Puts the set in force that has `put` besides the rules of today, but none of today's with a name in
    /// `names`: work for those, and little for the others. Returns how many rules it has. Not for sets that
    /// have users or keys beside them: those are not carried over.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_changed(
        &self,
        names: &[String],
        put: Vec<Rule>,
        shadow: bool,
        revision: u64,
    ) -> Result<usize, Vec<Conflict>> {
        let mut shapes = self.shapes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.loaded();
        let touched: BTreeSet<&str> =
            names.iter().map(String::as_str).chain(put.iter().map(|rule| rule.name.as_str())).collect();
        let touched: Vec<String> = touched.into_iter().map(str::to_owned).collect();
        let set = before.set.changed(names, put, &mut shapes)?;
        let many = set.rules().len();
        self.enforce(set, &shapes, |set| before.changed(set, &touched, revision, shadow, &self.metrics));
        Ok(many)
    }

    /// Puts a set in force. The caller holds the shapes, so that sets take force in the order they were made
    /// in.
    fn enforce(&self, set: RuleSet, shapes: &Shapes, load: impl FnOnce(RuleSet) -> Loaded) {
        let mut split = self.shares.machine();
        self.note_limits(&set);
        self.foresee(&set, shapes);
        split.handle_rules(self.clock.now(), self.shares.rules(&set));
        let loaded =
            load(set).sharing(&split, &self.name.region, &self.shares.regions().names, self.shares.lends);
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        {
            self.metrics.rules_revision.set(loaded.revision as f64);
            self.metrics.rules_count.set(loaded.set.rules().len() as f64);
        }
        for compiled in loaded.set.worldwide() {
            // An alarm must be there before it is needed.
            let mode = compiled.rule.global.as_ref().map(|global| global.mode);
            if mode.is_some_and(|mode| mode != Mode::Split) {
                self.metrics.overshoot(&compiled.rule.name).increment(0);
            }
        }
        // The machine is still locked here, or a share that grows meanwhile would be lost.
        self.loaded.store(Arc::new(loaded));
        self.awaits_rules.store(false, Ordering::Relaxed);
    }

    /// Remembers what the limits of `escrow` rules were before those of `set`.
    fn note_limits(&self, set: &RuleSet) {
        for compiled in set.worldwide() {
            let name = &compiled.rule.name;
            let loaded = self.loaded.load();
            let before = loaded.set.by_name(name).map(|before| before.limit.permits);
            if let Some(before) = before.filter(|before| *before != compiled.limit.permits) {
                self.excess.change(self.clock.now(), name, before.into());
            }
        }
    }

    /// The rule set in force.
    #[must_use]
    pub fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }

    /// This daemon's region and node.
    #[must_use]
    pub const fn name(&self) -> &NodeName {
        &self.name
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Moves a clock that is moved by hand, as in simulations; the machine's is left alone.
    pub fn set_now(&self, now: Timestamp) {
        self.clock.set(now);
    }

    /// This daemon's metrics.
    #[must_use]
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The store, for upkeep.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The other daemons, as last published.
    #[must_use]
    pub fn world(&self) -> Arc<WorldStatus> {
        self.world.load_full()
    }

    /// Returns how it stands with the rules, as last published.
    #[must_use]
    pub fn rules_status(&self) -> Arc<RulesStatus> {
        self.rules_status.load_full()
    }

    /// Publishes how it stands with the rules.
    pub fn publish_rules(&self, status: RulesStatus) {
        self.metrics.rules_source_up.set(if status.reachable { 1.0 } else { 0.0 });
        self.metrics.rules_unsaved.set(if status.unsaved.is_some() { 1.0 } else { 0.0 });
        self.metrics.rules_refused.set(if status.refused_revision.is_some() { 1.0 } else { 0.0 });
        self.rules_status.store(Arc::new(status));
    }

    /// Publishes what is known of the other daemons.
    pub fn publish(&self, status: WorldStatus) {
        self.world.store(Arc::new(status));
    }

    /// Returns why `request` is decided as it is, with at most so many rules. Charges nothing. Looks at every
    /// rule of the domain: not for threads that decide.
    pub async fn explain(&self, request: &Request<'_>, rules_max: usize) -> Option<Explanation> {
        let loaded = self.loaded.load_full();
        let asked = std::slice::from_ref(request);
        let persons = self.find(&loaded.set, asked).await;
        let rewritten = rewritten(asked, &persons);
        let [known] = rewritten.as_deref().unwrap_or(asked) else { return None };
        let mut considered = loaded.set.explain_of(known, &self.who(&persons));
        let all = considered.len();
        // Who reads the first lines of very many reads of those that decide.
        considered.sort_by_key(|(_, why)| (!why.matches(), *why != Reason::Decides));
        considered.truncate(rules_max);
        let considered: Vec<_> =
            considered.into_iter().map(|(rule, reason)| (rule.rule.name.clone(), reason)).collect();
        let decision = self.ask(asked).get().await.into_iter().next()?;
        Some(Explanation { decision, left_out: all - considered.len(), considered })
    }

    /// Returns what stands in for what a single request does not bring.
    fn who<'a>(&'a self, persons: &'a Persons) -> Who<'a> {
        let nobody = Who { tier: self.tier_default(), ..Who::default() };
        persons.first().map_or(nobody, |person| person.who(self.tier_default()))
    }

    /// Returns what the bucket of rule `name` for these attributes holds; `None` if there is no such counting
    /// rule or the attributes lack one that its `per` names.
    pub async fn bucket(&self, name: &str, request: &Request<'_>) -> Option<BucketStatus> {
        let loaded = self.loaded.load_full();
        let persons = self.find_for(Inquiry::Operator, &loaded.set, std::slice::from_ref(request)).await;
        self.bucket_and_key(&loaded, name, (request, &persons)).await.map(|(status, _)| status)
    }

    /// The same of somebody who was looked up, and what names the bucket here.
    async fn bucket_and_key(
        &self,
        loaded: &Loaded,
        name: &str,
        (request, persons): (&Request<'_>, &Persons),
    ) -> Option<(BucketStatus, Key)> {
        let asked = std::slice::from_ref(request);
        let rewritten = rewritten(asked, persons);
        let [known] = rewritten.as_deref().unwrap_or(asked) else { return None };
        let found = loaded.set.bucket_of(name, known, &self.who(persons))?;
        let now = self.clock.now();
        // A user's own limit, or this region's share, says what is left.
        let (whole, held) = (found.whole, loaded.held_to(found.rule, found.limit, now));
        let (compiled, key, limit) = (found.rule, found.key?, held.limit);
        let mut info = self.store.bucket(compiled, &key, held, now).await;
        let told = info.and_then(|info| info.view);
        let first = loaded.first_of(compiled, &limit, self.regions_known());
        if let Some(info) = &mut info {
            info.hold_to(first, compiled.rule.algorithm, &limit, now);
        }
        let error_bound = compiled.rule.global.as_ref().map_or(0, |global| {
            // Nothing is known of a bucket that is not there.
            let answered = info.map_or_else(BucketAnswer::default, |info| BucketAnswer {
                used: info.used,
                remaining: info.verdict.remaining,
                view: told,
                error_bound: info.error_bound,
            });
            let elsewhere = self.elsewhere_of(info.is_some_and(|info| info.degraded));
            bound::of_bucket(global.mode, compiled.rule.algorithm, (&whole, &limit), &answered, elsewhere)
        });
        let reset = info.map_or(Span::ZERO, |info| info.verdict.reset);
        let reset_at = match compiled.rule.algorithm {
            Algorithm::FixedWindow => Some(quotas::end_of_window(limit.windows(), now, reset)),
            _ => (reset > Span::ZERO).then(|| now + reset),
        };
        let status = BucketStatus {
            rule: compiled.rule.name.clone(),
            identity: identity_of(compiled, &key),
            limit: bound::shown_limit(&compiled.rule, &whole, &limit),
            // What it holds ends with its requests: a time here would read as a rate.
            window: match compiled.rule.algorithm {
                Algorithm::Concurrency => Span::ZERO,
                _ => limit.windows().length_at(now),
            },
            mode: compiled.rule.global.as_ref().map(|global| global.mode),
            used: info.map_or(0, |info| info.used),
            remaining: info.map_or_else(
                || first.map_or_else(|| limit.capacity(compiled.rule.algorithm), u64::from),
                |info| info.verdict.remaining,
            ),
            reset: reset_at.map_or(Span::ZERO, |at| at.since(now)),
            reset_at,
            view: info.and_then(|info| info.view),
            by_region: loaded.world_key(&key).and_then(|key| {
                let world = self.world();
                world.buckets.iter().find(|(known, _)| *known == key).map(|(_, others)| others.clone())
            }),
            error_bound,
            degraded: info.is_some_and(|info| info.degraded),
            penalty: info.and_then(|info| info.penalty),
        };
        Some((status, key))
    }

    /// Has the bucket of rule `name` for these attributes count from zero; `None` as for [`Self::bucket`]. It
    /// forgets what this region used of a worldwide limit. Under `gossip` the other regions give that back.
    pub async fn reset(&self, name: &str, request: &Request<'_>) -> Option<BucketReset> {
        let loaded = self.loaded.load_full();
        let asked = std::slice::from_ref(request);
        let persons = self.find_for(Inquiry::Operator, &loaded.set, asked).await;
        let rewritten = rewritten(asked, &persons);
        let [known] = rewritten.as_deref().unwrap_or(asked) else { return None };
        let found = loaded.set.bucket_of(name, known, &self.who(&persons))?;
        let (compiled, key) = (found.rule, found.key?);
        let existed = self.store.reset(compiled, &key).await;
        if existed == Some(true) {
            self.tell_reset((compiled, &key), &found.whole);
        }
        Some(BucketReset { rule: compiled.rule.name.clone(), identity: identity_of(compiled, &key), existed })
    }

    /// Tells the protocol between regions that a bucket was reset: what was used of it is given back.
    fn tell_reset(&self, (rule, key): (&Compiled, &Key), whole: &Limit) {
        let gossiped = |global: &Global| global.mode == Mode::Gossip;
        if !rule.rule.global.as_ref().is_some_and(gossiped) {
            return;
        }
        let window = world::window_of(rule.rule.algorithm, rule.rule.windows(), self.clock.now());
        let store = StoreSeen { reset: true, ..StoreSeen::default() };
        let (limit, is_own) = (Some(OwnLimit::of(whole)), *whole != rule.limit);
        if !self.tallies.add(key, world::Tally { window, store, limit, is_own, ..world::Tally::default() }) {
            self.metrics.tallies_dropped.increment(1);
        }
    }

    /// The worldwide rules in force and their revision, for the protocol between regions.
    #[must_use]
    pub fn world_rules(&self) -> (u64, Vec<WorldRule>) {
        let loaded = self.loaded.load();
        (loaded.revision, loaded.world_rules())
    }

    /// Takes out what decisions did to worldwide limits since the last call.
    pub fn drain_touched(&self, into: &mut Vec<Touched>) {
        let loaded = self.loaded.load();
        self.tallies.drain(|key, tally| {
            // A rule that a reload took away has no one left to tell.
            if let Some(key) = loaded.world_key(key) {
                let world::Tally { window, offered, admitted, returned, refused, largest, .. } = tally;
                let own = tally.limit.filter(|_| tally.is_own);
                into.push(Touched {
                    key,
                    window,
                    offered,
                    admitted,
                    returned,
                    refused,
                    largest,
                    own,
                    store: tally.store,
                });
            }
        });
    }

    /// Carries out what the protocol between regions asks of the store.
    pub fn apply(&self, effect: &Effect) {
        let loaded = self.loaded.load();
        let now = self.clock.now();
        let (Effect::View { key, .. } | Effect::Debit { key, .. } | Effect::Restore { key, .. }) = effect;
        let Some((compiled, local)) = loaded.local_key(key) else { return };
        match effect {
            Effect::View { view, error_bound, .. } => {
                self.store.set_allowance(compiled, &local, *view, *error_bound, now);
            }
            Effect::Restore { known, own, .. } => {
                let limit = own.map_or(compiled.limit, |own| own.in_place_of(compiled.limit));
                self.store.restore(compiled, &local, limit, *known, now);
            }
            Effect::Debit { permits, own, .. } => {
                let limit = own.map_or(compiled.limit, |own| own.in_place_of(compiled.limit));
                self.store.debit(compiled, &local, limit, *permits, now);
            }
        }
    }

    /// Carries out a step on the rights of an `escrow` rule's bucket. `None`: the rule is gone, or the store
    /// has no answer.
    pub fn rights<'a>(&'a self, ask: &'a StepRequest) -> Answer<'a, Option<StepResult>> {
        let loaded = self.loaded.load_full();
        let now = self.clock.now();
        {
            let Some((compiled, key)) = loaded.local_key(&ask.key) else { return Answer::Now(None) };
            if loaded.waits(compiled) {
                return Answer::Now(None);
            }
            let held = held(&loaded, compiled, ask, now);
            if let Answer::Now(balance) = self.store.rights(compiled, &key, held, ask, now) {
                return Answer::Now(balance);
            }
        }
        Answer::Later(Box::pin(async move {
            let (compiled, key) = loaded.local_key(&ask.key)?;
            let held = held(&loaded, compiled, ask, now);
            self.store.rights(compiled, &key, held, ask, now).get().await
        }))
    }

    /// A stopwatch for one decision in [`SAMPLE`].
    fn sample(&self) -> Option<Stopwatch> {
        thread_local!(static TURN: Cell<u32> = const { Cell::new(0) });
        let turn = TURN.get().wrapping_add(1);
        TURN.set(turn);
        turn.is_multiple_of(SAMPLE).then(Stopwatch::start)
    }
}

/// Returns what a charge of a bucket would be given here.
fn held(loaded: &Loaded, compiled: &Compiled, ask: &StepRequest, now: Timestamp) -> HeldLimit {
    let limit = ask.own.map_or(compiled.limit, |own| own.in_place_of(compiled.limit));
    loaded.held_to(compiled, limit, now)
}

/// Names and values of a bucket's identity.
fn identity_of(compiled: &Compiled, key: &Key) -> Vec<(String, String)> {
    let values = identity_values(key.identity()).unwrap_or_default();
    compiled.rule.per.iter().cloned().zip(values.into_iter().map(str::to_owned)).collect()
}
