//! Rights in the memory store: what an `escrow` rule may admit here, and how that changes while a window
//! runs.
//!
//! Its buckets are never forgotten before they end, what this process cannot know is not admitted, and a
//! clock that steps back changes nothing. The steps themselves are those of each ledger ([`WindowLedger`],
//! [`LevelTerms`], [`PlacesTerms`]), the same as in `lua/rights.lua`.

use std::borrow::Cow;

use super::escrowed::{gathered, lends, moving};
use super::memory_part::MemoryPart;
use super::slot::{KeySlot, Named};
use crate::core::algorithm::{
    Algorithm, Allowance, Counting, Limit, PLACES_PER_HOLDER_MAX, State, Verdict, WindowAllowance,
};
use crate::core::calendar::Windows;
use crate::core::key::Key;
use crate::core::regions::escrow::level::{LevelLedger, LevelStep, LevelTerms, MESSAGE_LIFE};
use crate::core::regions::escrow::places::{Margins, PlacesLedger, PlacesStep, PlacesTerms, counted_for};
use crate::core::regions::escrow::window::{WindowLedger, WindowStep, is_known};
use crate::core::regions::escrow::{Ledger, RECOVERY_MARGIN, Step, StepRequest, StepResult};
use crate::core::ruleset::Compiled;
use crate::core::table::{TablePlace, WEIGHT_KEPT};
use crate::core::time::{Span, Timestamp};
use crate::engine::port::HeldLimit;

/// The time that a cost larger than a region's capacity takes to gather, as far as a store can say: a few
/// ways between regions.
pub(super) const GATHERING: Span = Span::from_secs(1);

/// Time after which to ask again of a store that was taken down for the next process.
const SEALED: Span = Span::from_secs(1);

/// The limit that a charge of an escrowed rule is held to, and the instant that it counts at.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChargeTerms {
    pub(super) view: Option<Allowance>,
    pub(super) now: Timestamp,
    /// Rest of the recovery window, in which nothing is admitted.
    pub(super) recovery: Option<Span>,
    /// Limit that the charge is counted against.
    pub(super) limit: Limit,
    /// Permits that would fit if all that can come from other regions were here, and when they may.
    pub(super) most: (u64, Span),
}

impl ChargeTerms {
    /// Denies while it must, and has hope where what other regions have would do.
    pub(super) fn hold(&self, verdict: &mut Verdict, asked: u64) {
        if !verdict.admitted && verdict.retry.is_none() && asked <= self.most.0 {
            verdict.retry = Some(self.most.1);
        }
        if let Some(left) = self.recovery {
            *verdict = Verdict { admitted: false, remaining: 0, retry: Some(left), ..*verdict };
        }
    }
}

/// Returns what a region may use in a window, and what it mints in later ones.
fn view_of(window: u64, budget: u64, minted: u64) -> Allowance {
    let budget = u32::try_from(budget).unwrap_or(u32::MAX);
    let next_budget = u32::try_from(minted).unwrap_or(0);
    Allowance::Window(WindowAllowance { window, budget, next_budget, ..WindowAllowance::default() })
}

impl KeySlot {
    /// Returns what a charge is held to, for an escrowed rule.
    pub(super) fn terms(
        &self,
        rule: &Compiled,
        (held, whole): (&HeldLimit, &Limit),
        named: Named<'_>,
        now: Timestamp,
    ) -> ChargeTerms {
        let limit = &held.limit;
        let now = now.max(self.newest);
        let recovery = self.is_sealed.then_some(SEALED);
        let terms = ChargeTerms { view: None, now, recovery, limit: *limit, most: (0, Span::ZERO) };
        if moving(rule) == Some(Counting::Level) {
            let ledger = self.ledger(named).and_then(Ledger::as_level);
            let most = (gathered(rule, named.key, held, whole), GATHERING);
            return ChargeTerms { view: LevelTerms::view(ledger, now), most, ..terms };
        }
        if moving(rule) == Some(Counting::Concurrency) {
            let algorithm = rule.rule.algorithm;
            // The time for which what was admitted still counts.
            let matters = counted_for(algorithm, limit.window);
            let begun = self.known(named.key);
            let known = begun + matters + RECOVERY_MARGIN;
            let recovers = begun > Timestamp(0) && self.safety.doubt_is_burnt;
            let recovery = recovers.then(|| known.since(now)).filter(|left| left.0 > 0).or(recovery);
            let moves = lends(rule, named.key, held, whole);
            let ledger = self.ledger(named).and_then(Ledger::as_places);
            let held_to = self.places(rule, held, named.key).limit(limit, ledger, now);
            let limit = match (moves, ledger) {
                (true, _) => held_to,
                // Permits that are lent all the same are not here.
                (false, Some(_)) => Limit { permits: held.own().min(held_to.permits), ..*limit },
                (false, None) => Limit { permits: held.own(), ..*limit },
            };
            let most = match algorithm {
                _ if !moves => 0,
                Algorithm::Concurrency => u64::from(whole.permits).min(PLACES_PER_HOLDER_MAX),
                _ => u64::from(whole.permits),
            };
            return ChargeTerms { recovery, limit, most: (most, matters), ..terms };
        }
        let place = self.find(named);
        let counted =
            self.state(place).map_or_else(|| limit.windows().index(now), |state| state.window_at(limit, now));
        let ledger = self.ledger(named).and_then(Ledger::as_window);
        let window = counted.max(ledger.map_or(0, |ledger| ledger.window));
        let minted = self.minted(held, named, window);
        let budget = match ledger.filter(|ledger| ledger.window == window) {
            Some(ledger) if ledger.minted > minted => WindowLedger { minted, ..ledger.clone() }.budget(),
            Some(ledger) => ledger.budget(),
            None => minted,
        };
        let view = view_of(window, budget, minted);
        let now = now.max(limit.windows().start(window));
        ChargeTerms { view: Some(view), now, ..terms }
    }

    /// Returns what is noted of a bucket's rights.
    fn ledger(&self, named: Named<'_>) -> Option<&Ledger> {
        self.rights.get(self.rights.find(named.hash, named.key.bytes())?)
    }

    fn earlier(&self, key: &Key) -> Option<&MemoryPart> {
        self.earlier.as_ref()?.iter().find(|part| part.knows(key.shape()))
    }

    /// True if the memory that counts a bucket knows all that happened in one of its windows.
    pub(super) fn knows(&self, key: &Key, window: u64, windows: Windows) -> bool {
        is_known(window, windows, self.known(key))
            && self.earlier(key).is_none_or(|part| !part.breaks.cover(window, windows))
    }

    /// The memory that counts a bucket: when it began, and since when it knows of all.
    fn memory(&self, key: &Key) -> (Timestamp, Timestamp) {
        let part = self.earlier(key);
        part.map_or((self.begun, self.known), |part| (part.begun, part.known))
    }

    pub(super) fn known(&self, key: &Key) -> Timestamp {
        self.memory(key).1
    }

    fn places(&self, rule: &Compiled, held: &HeldLimit, key: &Key) -> PlacesTerms {
        let share = u64::from(held.own());
        let hold = counted_for(rule.rule.algorithm, held.limit.window);
        PlacesTerms { share, hold, begun: self.known(key), margins: Margins::USUAL, safety: self.safety }
    }

    /// Returns what this region mints in a window: its share, or less where not all of the window is known.
    fn minted(&self, held: &HeldLimit, named: Named<'_>, window: u64) -> u64 {
        let windows = held.limit.windows();
        let known = self.knows(named.key, window, windows);
        self.minted_by_marks(u64::from(held.own()), known, named, (window, windows))
    }

    fn level(&self, rule: &Compiled, limit: &Limit, key: &Key) -> LevelTerms {
        let algorithm = rule.rule.algorithm;
        LevelTerms { algorithm, limit: *limit, begun: self.known(key), safety: self.safety }
    }

    /// A bucket that is not there.
    pub(super) fn fresh(&self, (rule, limit): (&Compiled, &Limit), key: &Key, now: Timestamp) -> State {
        match moving(rule) {
            Some(Counting::Level) => self.level(rule, limit, key).fresh(now),
            _ => State::new(rule.rule.algorithm),
        }
    }

    /// A bucket as it counts at `now`: what is charged to its capacity included.
    pub(super) fn counted<'s>(
        &self,
        charge: (&Compiled, &Limit),
        named: Named<'_>,
        now: Timestamp,
        state: Option<&'s State>,
    ) -> Cow<'s, State> {
        match (self.raised(charge, named, now, state), state) {
            (Some(raised), _) => Cow::Owned(raised),
            (None, Some(state)) => Cow::Borrowed(state),
            (None, None) => Cow::Owned(self.fresh(charge, named.key, now)),
        }
    }

    /// The same if it differs from what is kept.
    #[inline]
    pub(super) fn raised(
        &self,
        charge: (&Compiled, &Limit),
        named: Named<'_>,
        now: Timestamp,
        state: Option<&State>,
    ) -> Option<State> {
        match moving(charge.0) {
            Some(Counting::Level) => self.raised_level(charge, named, now, state),
            _ => None,
        }
    }

    /// Permits that a bucket counts and no charge here has taken: see [`LevelTerms::unreturnable`].
    pub(super) fn unreturnable(
        &self,
        rule: &Compiled,
        limit: &Limit,
        named: Named<'_>,
        now: Timestamp,
    ) -> u64 {
        if moving(rule) != Some(Counting::Level) {
            return 0;
        }
        let ledger = self.ledger(named).and_then(Ledger::as_level);
        self.level(rule, limit, named.key).unreturnable(ledger, now)
    }

    fn raised_level(
        &self,
        (rule, limit): (&Compiled, &Limit),
        named: Named<'_>,
        now: Timestamp,
        state: Option<&State>,
    ) -> Option<State> {
        let terms = self.level(rule, limit, named.key);
        let ledger = self.ledger(named).and_then(Ledger::as_level);
        let charged = terms.least(ledger, now) > 0;
        charged.then(|| {
            let mut state = state.cloned().unwrap_or_else(|| terms.fresh(now));
            terms.raise(&mut state, ledger, now);
            state
        })
    }

    /// Before a bucket is charged in a window that its ledger does not know yet: closes the one before.
    pub(super) fn turn(
        &mut self,
        held: &HeldLimit,
        named: Named<'_>,
        window: u64,
        place: Option<TablePlace>,
    ) {
        let Some(at) = self.rights.find(named.hash, named.key.bytes()) else { return };
        let minted = self.minted(held, named, window);
        let Some(Ledger::Window(ledger)) = self.rights.get(at) else { return };
        let used = self.used_in(&held.limit, (ledger.window, minted), at, place);
        if let Some(Ledger::Window(ledger)) = self.rights.get_mut(at) {
            ledger.enter(window, minted, used);
        }
    }

    /// Returns what is used of what its ledger at `at` says of a window; later ones mint `minted`.
    fn used_in(
        &self,
        limit: &Limit,
        (window, minted): (u64, u64),
        at: TablePlace,
        place: Option<TablePlace>,
    ) -> u64 {
        let budget = self.rights.get(at).map_or(minted, Ledger::budget);
        let view = view_of(window, budget, minted);
        self.state(place).map_or(0, |state| state.used_of(limit, Some(&view), window, budget))
    }

    /// Carries out one step. `None`: the rule's rights do not move so, or there is no room to remember the
    /// step.
    pub(super) fn rights(
        &mut self,
        rule: &Compiled,
        held: &HeldLimit,
        named: Named<'_>,
        ask: &StepRequest,
        now: Timestamp,
    ) -> Option<StepResult> {
        if self.is_sealed {
            return None;
        }
        match (moving(rule)?, &ask.step) {
            (Counting::Window, Step::Read) => self.window_rights(rule, held, named, None, now),
            (Counting::Window, Step::Window { window, step }) => {
                self.window_rights(rule, held, named, Some((*window, step)), now)
            }
            (Counting::Level, Step::Read) => self.level_rights(rule, &held.limit, named, None, now),
            (Counting::Level, Step::Level(step)) => {
                self.level_rights(rule, &held.limit, named, Some(step), now)
            }
            (Counting::Concurrency, Step::Read) => self.lent(rule, held, named, None, now),
            (Counting::Concurrency, Step::Places { heard, step }) => {
                self.lent(rule, held, named, Some((*heard, step)), now)
            }
            _ => None,
        }
    }

    /// Carries out one step on the rights of a window, or only looks.
    fn window_rights(
        &mut self,
        rule: &Compiled,
        held: &HeldLimit,
        named: Named<'_>,
        step: Option<(u64, &WindowStep)>,
        now: Timestamp,
    ) -> Option<StepResult> {
        let limit = &held.limit;
        let terms = self.terms(rule, (held, limit), named, now);
        let window = terms.view.as_ref().and_then(Allowance::as_window).map_or(0, |view| view.window);
        let (key, place) = (named.key.bytes(), self.find(named));
        let at = match self.rights.find(named.hash, key) {
            Some(at) => at,
            None => {
                self.newest = self.newest.max(now);
                let session = self.memory(named.key).0.0.max(1);
                let mut ledger = WindowLedger { session, ..WindowLedger::default() };
                ledger.enter(window, self.minted(held, named, window), 0);
                let kept = Ledger::Window(ledger.clone());
                match self.rights.insert(named.hash, key, kept, now, |_| false) {
                    Ok(inserted) => inserted.place,
                    Err(_) if step.is_none() => {
                        let (budget, view) = (ledger.budget(), terms.view);
                        let used = self
                            .state(place)
                            .map_or(0, |state| state.used_of(limit, view.as_ref(), window, budget));
                        return Some(StepResult { ledger: Ledger::Window(ledger), used });
                    }
                    Err(_) => return None,
                }
            }
        };
        self.turn(held, named, window, place);
        let minted = self.minted(held, named, window);
        let used = self.used_in(limit, (window, minted), at, place);
        if let Some((of, WindowStep::Give(giving))) = step
            && of == window
            && self.marks.is_some()
        {
            // What leaves is spent, too. A step that cannot be noted finds no room.
            let free = self.rights.get(at).map_or(0, Ledger::budget).saturating_sub(used);
            let spent = used.saturating_add(giving.permits.min(free));
            if !self.cover(held, named, (window, spent), now.max(limit.windows().start(window))) {
                return None;
            }
        }
        let safety = self.safety;
        let Some(Ledger::Window(ledger)) = self.rights.get_mut(at) else { return None };
        if let Some((of, step)) = step {
            ledger.carry_out(of, step, used, &safety);
        }
        let ledger = ledger.clone();
        // Rights that came pay what is owed, before anything is admitted.
        if let Some(state) = place.and_then(|place| self.buckets.get_mut(place)) {
            let begun = limit.windows().start(window);
            state.settle(limit, Some(&view_of(window, ledger.budget(), minted)), now.max(begun));
        }
        let used = self.used_in(limit, (window, minted), at, place);
        if let Some((_, WindowStep::Take(_))) = step
            && self.marks.is_some()
        {
            self.uncover(held, named, (window, used));
        }
        // It says how its window ended until the next one ends.
        self.rights.rate(at, limit.windows().start(window.saturating_add(2)), WEIGHT_KEPT);
        Some(StepResult { ledger: Ledger::Window(ledger), used })
    }

    /// Carries out one step on places that are lent, or on capacity of what slides, or only looks.
    fn lent(
        &mut self,
        rule: &Compiled,
        held_to: &HeldLimit,
        named: Named<'_>,
        step: Option<(Timestamp, &PlacesStep)>,
        now: Timestamp,
    ) -> Option<StepResult> {
        let now = now.max(self.newest);
        let (terms, limit) = (self.places(rule, held_to, named.key), &held_to.limit);
        if !terms.is_settled(now) {
            return None;
        }
        let at = match self.rights.find(named.hash, named.key.bytes()) {
            Some(at) => at,
            None => {
                self.newest = self.newest.max(now);
                let ledger = Ledger::Places(PlacesLedger::new(now.0.max(1)));
                self.rights.insert(named.hash, named.key.bytes(), ledger, now, |_| false).ok()?.place
            }
        };
        let known = self.rights.get(at).and_then(Ledger::as_places);
        let held = terms.limit(limit, known, now);
        let used = self.state(self.find(named)).map_or(0, |state| state.used(&held, now));
        let Some(Ledger::Places(ledger)) = self.rights.get_mut(at) else { return None };
        terms.carry_out(ledger, used, step, now);
        let (ledger, kept) = (ledger.clone(), terms.kept(ledger));
        self.rights.rate(at, now + kept, WEIGHT_KEPT);
        Some(StepResult { ledger: Ledger::Places(ledger), used })
    }

    /// Carries out one step on the permits of a level, or only looks.
    fn level_rights(
        &mut self,
        rule: &Compiled,
        limit: &Limit,
        named: Named<'_>,
        step: Option<&LevelStep>,
        now: Timestamp,
    ) -> Option<StepResult> {
        let now = now.max(self.newest);
        let terms = self.level(rule, limit, named.key);
        if !terms.is_settled(now) {
            return None;
        }
        let key = named.key.bytes();
        let at = match self.rights.find(named.hash, key) {
            Some(at) => at,
            None => {
                self.newest = self.newest.max(now);
                let ledger = Ledger::Level(LevelLedger::new(now));
                self.rights.insert(named.hash, key, ledger, now, |_| false).ok()?.place
            }
        };
        let place = match self.find(named) {
            Some(place) => place,
            None => self.insert(terms.fresh(now), named, now, |_| false)?,
        };
        let (ledger, state) = self.rights.get_mut(at).zip(self.buckets.get_mut(place))?;
        let Ledger::Level(ledger) = ledger else { return None };
        terms.carry_out(state, ledger, step, now);
        let (used, ledger) = (terms.used(state, ledger, now), ledger.clone());
        let expiry = state.expiry(limit);
        self.buckets.rate(place, expiry, WEIGHT_KEPT);
        // Nothing that was sent from this ledger may arrive after it is forgotten.
        self.rights.rate(at, now + MESSAGE_LIFE + MESSAGE_LIFE, WEIGHT_KEPT);
        Some(StepResult { ledger: Ledger::Level(ledger), used })
    }
}
