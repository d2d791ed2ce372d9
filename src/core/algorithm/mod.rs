//! The seven ways to count. Each file is one pure state machine on integer time and exact integer amounts.
//!
//! All of them share these promises. A denied check consumes nothing. A report is charged whatever is left,
//! up to a bound. A cost of zero (a peek) changes nothing. A refund stops at zero usage. A `now` before an
//! earlier call's is read as that earlier instant: nothing refills twice and nothing is forgotten. No limit,
//! cost, window or instant makes the arithmetic overflow or drift.

use super::calendar::{Calendar, Windows};
pub use super::counted_charge::CountedCharge;
use super::hold::{Hold, Holder};
use super::request::{Cost, ReportedCost};
use super::time::{Span, Timestamp};

mod aligned;
mod allowance;
mod brought_back;
mod concurrency;
mod fixed_window;
mod gcra;
mod in_force;
mod leaky_bucket;
mod level;
#[cfg(test)]
mod oracle;
mod packed;
#[cfg(test)]
mod reports;
mod restored;
mod sliding_log;
mod sliding_window;
mod token_bucket;

pub(crate) use aligned::weighted;
pub use allowance::{Allowance, LevelAllowance, WindowAllowance};
pub use concurrency::{CONCURRENCY_LIMIT_MAX, Concurrency, HOLD_MAX, HOLD_MIN, PLACES_PER_HOLDER_MAX};
pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub use in_force::{LEVEL_SPEAKS, LEVEL_TOLD, remembered};
pub use leaky_bucket::LeakyBucket;
pub use restored::RegionUse;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;

/// Shortest window a rule may name.
pub const WINDOW_MIN: Span = Span(10_000);
/// Longest window a rule may name: 366 days.
pub const WINDOW_MAX: Span = Span(366 * 24 * 3_600 * 1_000_000);
/// Largest limit of a `sliding_log`, whose memory grows with it.
pub const SLIDING_LOG_LIMIT_MAX: u32 = 1_000_000;

/// Which state machine counts a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// One count per aligned window.
    FixedWindow,
    /// The running window's count plus the fading part of the one before.
    SlidingWindow,
    /// Every admission's time.
    SlidingLog,
    /// A bucket that refills.
    TokenBucket,
    /// A queue that drains at a constant pace.
    LeakyBucket,
    /// One theoretical arrival time.
    Gcra,
    /// Who holds places now.
    Concurrency,
}

impl Algorithm {
    /// All that count costs: each but `concurrency`, which counts places.
    pub const OF_COSTS: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Gcra,
    ];

    /// Returns what it counts.
    #[must_use]
    pub const fn counting(self) -> Counting {
        match self {
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingLog => Counting::Window,
            Self::TokenBucket | Self::LeakyBucket | Self::Gcra => Counting::Level,
            Self::Concurrency => Counting::Concurrency,
        }
    }
}

/// What an algorithm counts. What a region may use of a limit, and how rights move between regions, differs
/// by this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counting {
    /// Permits by the windows, aligned to the epoch, in which they were admitted: `fixed_window`,
    /// `sliding_window` and `sliding_log`.
    Window,
    /// One level that rises by what is admitted and drains at the limit's rate: `token_bucket`,
    /// `leaky_bucket` and `gcra`.
    Level,
    /// The places that somebody holds now: `concurrency`.
    Concurrency,
}

/// What one bucket may admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Permits per window; of `concurrency` places that may be held at once.
    pub permits: u32,
    /// The window; from [`WINDOW_MIN`] to [`WINDOW_MAX`]. Of `concurrency` the hold: how long places are kept
    /// without renewing. Of a calendar, the length of its longest window.
    pub window: Span,
    /// Whose windows these are, if they are no windows of one length; only `fixed_window` counts by it.
    pub calendar: Option<&'static Calendar>,
    /// Capacity of `token_bucket`, `leaky_bucket` and `gcra`, in permits; the others do not read it.
    pub burst: u32,
    /// Permits that `token_bucket`, `leaky_bucket` and `gcra` may admit beyond `burst`, with the delay that
    /// keeps the rate (the `throttle` action); zero for none.
    pub queue: u32,
}

impl Limit {
    /// The same limit for a request that nobody can hold back: it is admitted in time or not at all.
    #[must_use]
    pub fn without_queue(&self, algorithm: Algorithm) -> Self {
        // A leaky bucket without a queue of its own queues its whole burst.
        let queue = if algorithm == Algorithm::LeakyBucket { self.queue.min(1) } else { 0 };
        Self { queue, ..*self }
    }

    /// Its windows.
    #[must_use]
    pub const fn windows(&self) -> Windows {
        Windows::new(self.window, self.calendar)
    }

    /// Permits that one bucket holds at most, as this algorithm counts: those of a window, or of a full
    /// bucket.
    #[must_use]
    pub fn capacity(&self, algorithm: Algorithm) -> u64 {
        match algorithm {
            Algorithm::TokenBucket | Algorithm::Gcra => level::capacity(self),
            Algorithm::LeakyBucket => leaky_bucket::capacity(self),
            Algorithm::FixedWindow
            | Algorithm::SlidingWindow
            | Algorithm::SlidingLog
            | Algorithm::Concurrency => u64::from(self.permits),
        }
    }

    /// How long a level takes to drain that holds so many permits.
    #[must_use]
    pub fn time_to_drain(&self, permits: u64) -> Span {
        level::time_to_drain(level::amount_of(permits, self), self)
    }
}

/// The answer of one bucket to one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// True if the cost fits.
    pub admitted: bool,
    /// Permits that would still be admitted at once, after this one if it is admitted.
    pub remaining: u64,
    /// Until the bucket is unused again if nothing more comes. `fixed_window`: until the window ends.
    /// `sliding_window`: until as much may be asked for again; the window's end where that may be at once.
    pub reset: Span,
    /// When denied: until this cost would be admitted if nothing else comes; `None` if it never can be.
    pub retry: Option<Span>,
    /// When admitted: how long the request should be held back to keep the pace; zero for most.
    pub delay: Span,
}

impl Verdict {
    /// Until more than [`Self::remaining`] permits are free, if nothing else comes: [`Self::reset`] where
    /// that is the next time that any are. A level that takes longer to drain than a span can say is told
    /// of by [`Self::retry`], which may be later.
    #[must_use]
    pub fn until_more(&self, algorithm: Algorithm, limit: &Limit) -> Span {
        let capacity = limit.capacity(algorithm);
        if algorithm.counting() != Counting::Level || self.remaining >= capacity || limit.permits == 0 {
            return self.reset;
        }
        if self.reset == Span(u64::MAX) {
            return self.retry.unwrap_or(self.reset);
        }
        // Before a bucket is empty of use, one permit after the other has become free.
        let later = u128::from(capacity - self.remaining - 1) * u128::from(limit.window.0);
        let later = u64::try_from(later / u128::from(limit.permits)).unwrap_or(u64::MAX);
        let more = Span(self.reset.0.saturating_sub(later).max(1));
        self.retry.map_or(more, |retry| more.min(retry))
    }

    /// Tells of waits that begin only when a clock that was set back has caught up.
    pub fn wait_for_clock(&mut self, behind: Span) {
        if behind > Span::ZERO {
            self.retry = self.retry.map(|retry| Span(retry.0.saturating_add(behind.0)));
            if self.reset > Span::ZERO {
                self.reset = Span(self.reset.0.saturating_add(behind.0));
            }
        }
    }
}

/// The state of one bucket, whichever way it counts: 24 bytes, plus the log's entries and the holders.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum State {
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
    /// See [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// See [`SlidingLog`].
    SlidingLog(SlidingLog),
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`LeakyBucket`].
    LeakyBucket(LeakyBucket),
    /// See [`Gcra`].
    Gcra(Gcra),
    /// See [`Concurrency`].
    Concurrency(Concurrency),
}

/// Calls the same method on whichever machine it is.
macro_rules! each {
    ($state:expr, $machine:ident => $call:expr) => {
        match $state {
            State::FixedWindow($machine) => $call,
            State::SlidingWindow($machine) => $call,
            State::SlidingLog($machine) => $call,
            State::TokenBucket($machine) => $call,
            State::LeakyBucket($machine) => $call,
            State::Gcra($machine) => $call,
            State::Concurrency($machine) => $call,
        }
    };
}

impl CountedCharge {
    /// Returns what of a level cannot have drained by `now`, whatever came after it.
    fn undrained(&self, limit: &Limit, now: Timestamp) -> level::LevelAmount {
        let drained = u128::from(now.since(self.at).0) * u128::from(limit.permits);
        level::amount_of(self.used, limit).saturating_sub(drained)
    }

    /// Returns the same in whole permits.
    #[must_use]
    pub fn left(&self, limit: &Limit, now: Timestamp) -> u64 {
        level::permits_in(self.undrained(limit, now), limit)
    }
}

/// What of an earlier charge was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GivenBack {
    /// Whole permits.
    pub whole: u64,
    /// The same, a started permit counted.
    pub started: u64,
}

impl State {
    /// An unused bucket.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::default()),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::default()),
            Algorithm::LeakyBucket => Self::LeakyBucket(LeakyBucket::default()),
            Algorithm::Gcra => Self::Gcra(Gcra::default()),
            Algorithm::Concurrency => Self::Concurrency(Concurrency::default()),
        }
    }

    /// Returns what a check of `cost` permits (zero: a peek) would be answered at `now`. Changes nothing.
    ///
    /// `view` narrows the limit to what a worldwide rule leaves this region; `None` is a limit of this region
    /// alone.
    #[must_use]
    pub fn check(&self, limit: &Limit, view: Option<&Allowance>, now: Timestamp, cost: u64) -> Verdict {
        let window = Allowance::window_of(view);
        let mut verdict = match self {
            Self::FixedWindow(machine) => machine.check(limit, window, now, cost),
            Self::SlidingWindow(machine) => machine.check(limit, window, now, cost),
            Self::SlidingLog(machine) => machine.check(limit, window, now, cost),
            Self::TokenBucket(machine) => machine.check(limit, view, now, cost),
            Self::LeakyBucket(machine) => machine.check(limit, view, now, cost),
            Self::Gcra(machine) => machine.check(limit, view, now, cost),
            Self::Concurrency(machine) => machine.check(limit, now, cost),
        };
        verdict.wait_for_clock(self.instant(now).since(now));
        verdict
    }

    /// Returns what a holder's step would be answered at `now`. Changes nothing. Other machines know no
    /// holders: to them an acquisition is a charge.
    #[must_use]
    pub fn check_hold(&self, limit: &Limit, now: Timestamp, hold: &Hold) -> Verdict {
        match self {
            Self::Concurrency(machine) => machine.check_hold(limit, now, hold),
            _ => self.check(limit, None, now, Cost::Hold(*hold).taken()),
        }
    }

    /// Returns the places that this holder has at `now`; `None`: none, or no places are counted.
    #[must_use]
    pub fn places_of(&self, holder: Holder, now: Timestamp) -> Option<u64> {
        match self {
            Self::Concurrency(machine) => machine.places_of(holder, now),
            _ => None,
        }
    }

    /// Carries out a step that [`Self::check_hold`] has just admitted with the same arguments. Returns the
    /// places that it newly took, kept or gave back.
    pub fn step(&mut self, limit: &Limit, now: Timestamp, hold: &Hold) -> u64 {
        match self {
            Self::Concurrency(machine) => machine.step(limit, now, hold),
            _ => 0,
        }
    }

    /// Returns who holds how many places at `now`, as far as it is known who.
    #[must_use]
    pub fn holders(&self, now: Timestamp) -> Vec<(Holder, u64)> {
        match self {
            Self::Concurrency(machine) => machine.known(now),
            _ => Vec::new(),
        }
    }

    /// Takes `cost` permits that [`Self::check`] has just admitted with the same arguments.
    pub fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        each!(self, machine => machine.take(limit, now, cost));
    }

    /// Charges what was used already, whatever is left. What exceeds the limit is owed: a window begins with
    /// it already used, a level drains it, and the log's entries leave as usual. What exceeds
    /// [`ReportedCost::debt_max`] beyond the limit is not charged. Returns the permits charged. `concurrency`
    /// charges nothing: its places are held by somebody. So does a limit of zero, which admits nothing that
    /// could pay, unless nothing is owed ([`ReportedCost::COUNTED_BEYOND`]).
    pub fn report(
        &mut self,
        limit: &Limit,
        view: Option<&Allowance>,
        now: Timestamp,
        report: &ReportedCost,
    ) -> u64 {
        if self.can_pay(limit.permits, report) { self.report_beyond(limit, view, now, report) } else { 0 }
    }

    /// True if a report is charged under a limit of so many permits.
    #[must_use]
    pub const fn can_pay(&self, permits: u32, report: &ReportedCost) -> bool {
        let owes = !matches!(self, Self::FixedWindow(_)) || report.debt_max != ReportedCost::COUNTED_BEYOND;
        permits > 0 || !owes
    }

    /// Charges a report as [`Self::report`] does, also where nothing is left here of a limit that is not
    /// zero: what could pay may come back.
    pub fn report_beyond(
        &mut self,
        limit: &Limit,
        view: Option<&Allowance>,
        now: Timestamp,
        report: &ReportedCost,
    ) -> u64 {
        let window = Allowance::window_of(view);
        match self {
            Self::FixedWindow(machine) => machine.report(limit, window, now, report),
            Self::SlidingWindow(machine) => machine.report(limit, window, now, report),
            Self::SlidingLog(machine) => machine.report(limit, now, report),
            Self::TokenBucket(machine) => machine.report(limit, view, now, report),
            Self::LeakyBucket(machine) => machine.report(limit, view, now, report),
            Self::Gcra(machine) => machine.report(limit, view, now, report),
            Self::Concurrency(_) => 0,
        }
    }

    /// Before a bucket that owes is charged or given back to: pays from what `view` leaves in the window of
    /// `now`. Only windows keep what is owed apart. Returns what the window counts more for it.
    #[inline]
    pub fn settle(&mut self, limit: &Limit, view: Option<&Allowance>, now: Timestamp) -> u64 {
        let window = Allowance::window_of(view);
        match self {
            Self::FixedWindow(machine) if machine.debt() > 0 => machine.settle(limit, window, now),
            Self::SlidingWindow(machine) if machine.debt() > 0 => machine.settle(limit, window, now),
            _ => 0,
        }
    }

    /// Permits that are owed beyond what the windows count. A level and a log count all at once.
    #[must_use]
    pub const fn debt(&self) -> u32 {
        match self {
            Self::FixedWindow(machine) => machine.debt(),
            Self::SlidingWindow(machine) => machine.debt(),
            _ => 0,
        }
    }

    /// Permits that could be given back at `now`, a started one of a level counted: else nobody could give
    /// back what has begun to drain. `view` says how fast a debt is paid.
    #[must_use]
    pub fn returnable(&self, limit: &Limit, view: Option<&Allowance>, now: Timestamp) -> u64 {
        let window = Allowance::window_of(view);
        match self {
            Self::FixedWindow(machine) => machine.returnable(limit, window, now),
            Self::SlidingWindow(machine) => machine.returnable(limit, window, now),
            _ => self.used(limit, now),
        }
    }

    /// Gives `cost` permits back; usage stops at zero. Returns how many were really given back.
    pub fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        each!(self, machine => machine.refund(limit, now, cost))
    }

    /// Gives `permits` of an earlier charge back, as far as that charge still counts at `now`: so that the
    /// bucket counts on as if so much less had been charged then, or more. Returns how many were given back.
    pub fn give_back(
        &mut self,
        limit: &Limit,
        now: Timestamp,
        charge: CountedCharge,
        permits: u64,
    ) -> GivenBack {
        let returned = match self {
            Self::FixedWindow(_) | Self::SlidingWindow(_) => {
                let window = self.window_at(limit, now);
                if limit.windows().index(charge.at) == window { self.refund(limit, now, permits) } else { 0 }
            }
            Self::SlidingLog(machine) => machine.give_back(limit, now, charge.at, permits),
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::Gcra(_) => {
                let left = charge.undrained(limit, now);
                let back = self.drain(limit, now, level::amount_of(permits, limit).min(left));
                let (whole, started) = (level::permits_in(back, limit), level::permits_in_up(back, limit));
                return GivenBack { whole, started };
            }
            Self::Concurrency(_) => 0,
        };
        GivenBack { whole: returned, started: returned }
    }

    /// Gives back as another process says that it did: whole permits, and of a level a `part` of one, in
    /// 1/window permits.
    pub fn take_back(&mut self, limit: &Limit, now: Timestamp, whole: u64, part: u64) {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::Gcra(_) => {
                self.drain(limit, now, level::amount_of(whole, limit) + u128::from(part));
            }
            _ if whole > 0 => {
                self.refund(limit, now, whole);
            }
            _ => {}
        }
    }

    /// Takes an amount out of a level. Returns what came out.
    fn drain(&mut self, limit: &Limit, now: Timestamp, amount: level::LevelAmount) -> level::LevelAmount {
        match self {
            Self::TokenBucket(machine) => machine.take_back(limit, now, amount),
            Self::LeakyBucket(machine) => machine.take_back(limit, now, amount),
            Self::Gcra(machine) => machine.take_back(limit, now, amount),
            _ => 0,
        }
    }

    /// The instant that a charge at `now` counts at: never one before an earlier charge's.
    #[must_use]
    pub fn instant(&self, now: Timestamp) -> Timestamp {
        match self {
            Self::FixedWindow(machine) => machine.instant(now),
            Self::SlidingWindow(machine) => machine.instant(now),
            Self::SlidingLog(machine) => machine.instant(now),
            Self::TokenBucket(machine) => machine.instant(now),
            Self::LeakyBucket(machine) => machine.instant(now),
            Self::Gcra(machine) => machine.instant(now),
            Self::Concurrency(_) => now,
        }
    }

    /// Whole permits in use at `now`, a started one not counted; only of a level, zero of all others.
    #[must_use]
    pub fn level_at(&self, limit: &Limit, now: Timestamp) -> u64 {
        match self {
            Self::TokenBucket(machine) => machine.whole(limit, now),
            Self::LeakyBucket(machine) => machine.whole(limit, now),
            Self::Gcra(machine) => machine.whole(limit, now),
            _ => 0,
        }
    }

    /// Charges what another region admitted, beyond the limit if need be. Only `token_bucket`, `leaky_bucket`
    /// and `gcra` take such debts (they pay them back with time); the others are told by their [`Allowance`].
    pub fn debit(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        match self {
            Self::TokenBucket(machine) => machine.debit(limit, now, cost),
            Self::LeakyBucket(machine) => machine.debit(limit, now, cost),
            Self::Gcra(machine) => machine.debit(limit, now, cost),
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {}
        }
    }

    /// Counts as at least `permits` in use. Only `token_bucket`, `leaky_bucket` and `gcra` do.
    pub fn raise(&mut self, limit: &Limit, now: Timestamp, permits: u64) {
        match self {
            Self::TokenBucket(machine) => machine.raise(limit, now, permits),
            Self::LeakyBucket(machine) => machine.raise(limit, now, permits),
            Self::Gcra(machine) => machine.raise(limit, now, permits),
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {}
        }
    }

    /// The index of the window that a charge at `now` counts in: for `fixed_window` never one before a
    /// charge's already made.
    #[must_use]
    pub fn window_at(&self, limit: &Limit, now: Timestamp) -> u64 {
        match self {
            Self::FixedWindow(machine) => machine.window_at(limit, now),
            Self::SlidingWindow(machine) => limit.windows().index(machine.instant(now)),
            _ => limit.windows().index(now),
        }
    }

    /// Returns what of a region's `budget` in a window is used, what is owed included. Only of
    /// `fixed_window`, whose rights move by the window.
    #[must_use]
    pub fn used_of(&self, limit: &Limit, view: Option<&Allowance>, window: u64, budget: u64) -> u64 {
        match self {
            Self::FixedWindow(machine) => machine.used_of(limit, Allowance::window_of(view), window, budget),
            _ => 0,
        }
    }

    /// Permits in use at `now`, rounded up.
    #[must_use]
    pub fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        each!(self, machine => machine.used(limit, now))
    }

    /// True if the bucket holds all that is in use: nothing is owed.
    #[must_use]
    pub fn owes_nothing(&self, limit: &Limit, view: Option<&Allowance>, now: Timestamp) -> bool {
        let capacity = match self {
            Self::TokenBucket(_) | Self::Gcra(_) => level::capacity(limit),
            Self::LeakyBucket(_) => leaky_bucket::capacity(limit),
            _ => u64::from(limit.permits),
        };
        let holds = capacity.saturating_add(Allowance::kept_of(view));
        holds > 0 && self.used(limit, now) <= holds
    }

    /// From when on this bucket answers like an unused one, so that it may be forgotten.
    #[must_use]
    pub fn expiry(&self, limit: &Limit) -> Timestamp {
        each!(self, machine => machine.expiry(limit))
    }

    /// Bytes on the heap beyond this value itself (the log's entries, the holders).
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::SlidingLog(log) => log.heap_bytes(),
            Self::Concurrency(machine) => machine.heap_bytes(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> impl Iterator<Item = Algorithm> {
        Algorithm::OF_COSTS.into_iter().chain([Algorithm::Concurrency])
    }

    fn limits() -> impl Strategy<Value = Limit> {
        (any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>(), 0..4_u8).prop_map(
            |(permits, window, burst, queue, kind)| {
                let window = [WINDOW_MIN.0, WINDOW_MAX.0, window % WINDOW_MAX.0, window][usize::from(kind)];
                Limit {
                    calendar: None,
                    permits: if kind == 1 { u32::MAX } else { permits },
                    window: Span(window),
                    burst,
                    queue,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn no_numbers_at_all_make_the_arithmetic_overflow(
            steps in proptest::collection::vec((limits(), any::<u64>(), any::<u64>(), any::<(u64, u32, u32, u64, u64)>(), 0..6_u8), 1..12),
        ) {
            for algorithm in all() {
                let mut state = State::new(algorithm);
                for (limit, now, cost, (window, budget, next_budget, others, others_before), act) in &steps {
                    let index = Timestamp(*now).window_index(limit.window);
                    let window = if *act == 0 { *window } else { index };
                    let (budget, next_budget, others) = (*budget, *next_budget, *others);
                    let view = match (algorithm.counting(), others % 3) {
                        (Counting::Window | Counting::Concurrency, _) => Allowance::Window(WindowAllowance {
                            window, budget, next_budget, others, others_before: *others_before
                        }),
                        (Counting::Level, 0) => Allowance::Kept { permits: others % 9 },
                        (Counting::Level, _) => Allowance::Level(LevelAllowance {
                            since: Timestamp(window), held_back: others, growth: next_budget,
                            held_back_max: budget, capacity: next_budget,
                        }),
                    };
                    let (now, cost) = (Timestamp(*now), if *act == 1 { *cost } else { *cost % (1 << 33) });
                    let verdict = state.check(limit, Some(&view), now, cost);
                    prop_assert!(u64::from(limit.permits) > 0 || !verdict.admitted);
                    match act {
                        3 => { state.refund(limit, now, cost); }
                        2 => state.debit(limit, now, cost),
                        4 | 5 => {
                            let report = ReportedCost { permits: cost, debt_max: budget };
                            let charged = state.report(limit, Some(&view).filter(|_| *act == 4), now, &report);
                            prop_assert!(charged <= cost);
                        }
                        _ if verdict.admitted => state.take(limit, now, cost),
                        _ => {}
                    }
                    let _ = (state.used(limit, now), state.expiry(limit));
                }
            }
        }
    }

    #[test]
    fn a_raised_limit_takes_effect_at_once_for_a_bucket_that_was_at_the_old_one() {
        let old = Limit { calendar: None, permits: 3, window: Span::from_secs(60), burst: 3, queue: 0 };
        let new = Limit { permits: 5, burst: 5, ..old };
        let now = Timestamp(1_790_000_000_000_000);
        for algorithm in all() {
            let mut state = State::new(algorithm);
            state.take(&old, now, 3);
            assert!(!state.check(&old, None, now, 1).admitted, "{algorithm:?}");
            assert!(state.check(&new, None, now, 2).admitted, "{algorithm:?}");
            assert!(!state.check(&new, None, now, 3).admitted, "{algorithm:?}");
        }
    }

    #[test]
    fn a_state_stays_within_24_bytes() {
        assert!(size_of::<State>() <= 24, "{} bytes", size_of::<State>());
    }
}
