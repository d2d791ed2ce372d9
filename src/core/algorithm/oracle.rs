//! A naive judge for all machines but `concurrency`: it keeps every event and counts anew from the definition
//! each time, in exact wide integers. Random histories are played to a machine and to the judge, and every
//! answer is compared. Tests only.

use proptest::prelude::*;

use super::{Algorithm, Allowance, Limit, State, Verdict, WindowAllowance};
use crate::request::ReportedCost;
use crate::rule::DEBT_MAX;
use crate::time::{Span, Timestamp};

/// Something that was charged, or given back (negative).
#[derive(Debug, Clone, Copy)]
struct PastCharge {
    at: u64,
    /// Permits; never above what a `u64` holds.
    permits: i128,
    /// Permits a window when it happened: what drained since the event before.
    rate: u32,
}

/// Every event of one bucket.
#[derive(Debug, Clone)]
pub(super) struct Judge {
    algorithm: Algorithm,
    events: Vec<PastCharge>,
    newest: u64,
    /// Reported beyond what was free, where windows count: as of the newest instant.
    owed: i128,
}

fn wide(number: u64) -> i128 {
    i128::from(number)
}

impl Judge {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, events: Vec::new(), newest: 0, owed: 0 }
    }

    fn counts_by_level(&self) -> bool {
        matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra)
    }

    fn counts_by_windows(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
    }

    /// The same at `now`, if nothing came meanwhile: window after window has paid what it could of what is
    /// owed.
    fn caught_up(&self, limit: &Limit, view: Option<&Allowance>, now: u64) -> Self {
        let mut judge = self.clone();
        let (window, permits) = (limit.window.0, i128::from(limit.permits));
        let (mut index, target) = (self.newest / window, now / window);
        if judge.owed == 0 || index >= target {
            return judge;
        }
        if view.is_none() {
            let counted = judge.sum(|at| at / window == index);
            judge.pay(self.newest, permits - counted, limit.permits);
        }
        let each =
            Allowance::window_of(view).map_or(permits, |view| i128::from(view.next_budget).min(permits));
        index += 1;
        while index < target && judge.owed > 0 && each > 0 {
            let alike = i128::from(target - index - 1).min(judge.owed / each - 2);
            if alike > 0 {
                // As many windows that all pay as much as they can.
                judge.owed -= alike * each;
                index += u64::try_from(alike).unwrap();
            }
            judge.pay(index * window, each, limit.permits);
            index += 1;
        }
        judge
    }

    /// Counts what is owed at `at`, as far as there is room.
    fn pay(&mut self, at: u64, room: i128, rate: u32) {
        let permits = self.owed.min(room).max(0);
        self.owed -= permits;
        self.events.push(PastCharge { at, permits, rate });
    }

    /// How many permits, what is owed put aside, still fit at `now`.
    fn room(&self, limit: &Limit, view: Option<&Allowance>, now: u64) -> i128 {
        let without = Self { owed: 0, ..self.clone() };
        let (mut fits, mut too_many) = (0_u64, self.capacity(limit) + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if without.fits(limit, view, now, middle) { fits = middle } else { too_many = middle }
        }
        wide(fits)
    }

    pub(super) fn settle(&mut self, limit: &Limit, view: Option<&Allowance>, now: u64) {
        if self.owed > 0 {
            *self = self.caught_up(limit, view, now.max(self.newest));
            self.newest = self.newest.max(now);
            self.pay(self.newest, self.room(limit, view, self.newest), limit.permits);
        }
    }

    /// Charges what was used already. Returns what was charged.
    pub(super) fn report(
        &mut self,
        limit: &Limit,
        view: Option<&Allowance>,
        now: u64,
        report: &ReportedCost,
    ) -> u64 {
        let (cost, debt_max) = (wide(report.permits), i128::from(report.debt_max));
        let now = now.max(self.newest);
        if limit.permits == 0 {
            return 0;
        }
        if self.counts_by_windows() {
            self.settle(limit, view, now);
            self.newest = now;
            let (before, room) = (self.owed, self.room(limit, view, now));
            self.owed += cost;
            self.pay(now, room, limit.permits);
            let lost = self.owed - self.owed.min(debt_max.max(before - before.min(room)));
            self.owed -= lost;
            return u64::try_from(cost - lost).unwrap();
        }
        let window = wide(limit.window.0);
        let most = (wide(self.capacity(limit)) + debt_max) * window;
        let most = if self.counts_by_level() { most.min(i128::from(u32::MAX) * window) } else { most };
        let room = (most - self.usage(limit, now).0).max(0) / window;
        let charged = u64::try_from(cost.min(room)).unwrap();
        self.take(limit, None, now, charged);
        charged
    }

    /// Permits of the events that `wanted` picks by their time.
    fn sum(&self, wanted: impl Fn(u64) -> bool) -> i128 {
        self.events.iter().filter(|event| wanted(event.at)).map(|event| event.permits).sum()
    }

    /// A level that drains and stops at zero is the largest of all sums of its latest changes.
    fn level(&self, limit: &Limit, now: u64) -> i128 {
        let window = wide(limit.window.0);
        let mut drained_until = now;
        let mut rate = limit.permits;
        let (mut sum, mut largest) = (0_i128, 0_i128);
        for event in self.events.iter().rev() {
            sum -= wide(drained_until - event.at) * i128::from(rate);
            sum += event.permits * window;
            largest = largest.max(sum);
            (drained_until, rate) = (event.at, event.rate);
        }
        largest
    }

    /// Own usage in 1/window permits, and the part of it that lies in the running window.
    fn usage(&self, limit: &Limit, now: u64) -> (i128, i128) {
        let window = limit.window.0;
        let index = now / window;
        let left = wide(window - now % window);
        let current = self.sum(|at| at / window == index) + self.owed;
        let before = self.sum(|at| at / window + 1 == index);
        let usage = match self.algorithm {
            Algorithm::FixedWindow => current * wide(window),
            Algorithm::SlidingWindow => (current + before * left / wide(window)) * wide(window),
            Algorithm::SlidingLog => self.sum(|at| now - at < window) * wide(window),
            _ => self.level(limit, now),
        };
        (usage, current)
    }

    pub(super) fn capacity(&self, limit: &Limit) -> u64 {
        let whole = |permits: u64| if limit.permits == 0 { 0 } else { permits.min(u64::from(u32::MAX)) };
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::Gcra => {
                whole(u64::from(limit.burst) + u64::from(limit.queue))
            }
            Algorithm::LeakyBucket if limit.queue == 0 => whole(limit.burst.into()),
            Algorithm::LeakyBucket => whole(limit.burst.min(limit.queue).into()),
            _ => limit.permits.into(),
        }
    }

    /// True if `cost` permits would be admitted at `now`, by the definition.
    pub(super) fn fits(&self, limit: &Limit, view: Option<&Allowance>, now: u64, cost: u64) -> bool {
        let now = now.max(self.newest);
        let capacity = self.capacity(limit);
        if cost > capacity {
            return false;
        }
        if self.owed > 0 && self.newest / limit.window.0 < now / limit.window.0 {
            let judge = self.caught_up(limit, view, now);
            return Self { newest: now, ..judge }.fits(limit, view, now, cost);
        }
        let window = wide(limit.window.0);
        let (usage, current) = self.usage(limit, now);
        let (Some(view), false) = (Allowance::window_of(view), self.counts_by_level()) else {
            return usage + wide(cost) * window <= wide(capacity) * window;
        };
        let index = now / limit.window.0;
        let left = wide(limit.window.0 - now % limit.window.0);
        let (budget, others, others_before) = if view.window == index {
            (view.budget, view.others, view.others_before)
        } else if view.window.checked_add(1) == Some(index) {
            (view.next_budget, 0, view.others)
        } else {
            (limit.permits, 0, 0)
        };
        let budget = i128::from(budget.min(limit.permits));
        match self.algorithm {
            Algorithm::FixedWindow => current + wide(cost) <= budget,
            Algorithm::SlidingWindow => {
                let before = self.sum(|at| at / limit.window.0 + 1 == index) + wide(others_before);
                let free = wide(capacity) - before * left / window;
                (current + wide(cost)) * wide(capacity) <= budget * free
            }
            _ => {
                let faded = (wide(others_before) * left + window - 1) / window;
                let in_use = usage / window + faded + wide(others);
                in_use + wide(cost) <= wide(capacity) && usage / window + wide(cost) <= budget
            }
        }
    }

    pub(super) fn take(&mut self, limit: &Limit, view: Option<&Allowance>, now: u64, cost: u64) {
        if cost > 0 {
            self.settle(limit, view, now);
            self.newest = self.newest.max(now);
            self.events.push(PastCharge { at: self.newest, permits: wide(cost), rate: limit.permits });
        }
    }

    /// Gives back from the newest events in reach.
    pub(super) fn refund(&mut self, limit: &Limit, now: u64, cost: u64) -> u64 {
        let now = now.max(self.newest);
        let window = limit.window.0;
        if self.counts_by_level() {
            let returned = self.level(limit, now).min(wide(cost) * wide(window));
            if returned > 0 {
                self.newest = now;
                self.events.push(PastCharge { at: now, permits: -wide(cost), rate: limit.permits });
            }
            return u64::try_from(returned / wide(window)).unwrap();
        }
        let owed = self.owed.min(wide(cost));
        self.owed -= owed;
        let mut left = wide(cost) - owed;
        for event in self.events.iter_mut().rev() {
            let reach = match self.algorithm {
                Algorithm::FixedWindow => event.at / window == now / window,
                Algorithm::SlidingWindow => event.at / window + 1 >= now / window,
                _ => now - event.at < window,
            };
            let back = if reach { event.permits.min(left) } else { 0 };
            event.permits -= back;
            left -= back;
        }
        let returned = u64::try_from(wide(cost) - left).unwrap();
        if returned > 0 || (self.algorithm == Algorithm::SlidingLog && cost > 0) {
            self.newest = now;
        }
        returned
    }

    pub(super) fn used(&self, limit: &Limit, now: u64) -> u64 {
        let (window, now) = (wide(limit.window.0), now.max(self.newest));
        let usage = self.caught_up(limit, None, now).usage(limit, now).0;
        u64::try_from((usage + window - 1) / window).unwrap()
    }
}

/// One step of a history, as raw numbers that are read by what has happened so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrawnStep {
    move_kind: u8,
    move_by: u16,
    act: u8,
    amount: u64,
    view: Option<(u8, u16, u16, u16, u16)>,
    limit: Option<(usize, usize, usize)>,
}

const PERMITS: [u32; 10] = [0, 1, 2, 3, 7, 100, 1_000, 65_537, u32::MAX - 1, u32::MAX];
const WINDOWS: [u64; 6] =
    [10_000, 1_000_000, 7_919_123, 3_600_000_000, 86_400_000_000, 366 * 24 * 3_600_000_000];
const YEAR: u64 = 365 * 86_400_000_000;

pub(super) fn limits() -> impl Strategy<Value = Limit> {
    (0..PERMITS.len(), 0..WINDOWS.len(), 0..8_usize, 0..8_usize).prop_map(
        |(permits, window, burst, queue)| {
            let base = Limit {
                calendar: None,
                permits: PERMITS[permits],
                window: Span(WINDOWS[window]),
                burst: PERMITS[permits],
                queue: 0,
            };
            bursts(base, burst, queue)
        },
    )
}

fn bursts(limit: Limit, burst: usize, queue: usize) -> Limit {
    let burst = [limit.permits, limit.permits, limit.permits, 0, 1, 5, 1_000, u32::MAX][burst];
    Limit { burst, queue: [0, 0, 0, 0, 1, 10, limit.permits, u32::MAX][queue], ..limit }
}

pub(super) fn histories() -> impl Strategy<Value = Vec<DrawnStep>> {
    let view = proptest::option::weighted(0.3, any::<(u8, u16, u16, u16, u16)>());
    let limit = proptest::option::weighted(0.05, (0..PERMITS.len(), 0..8_usize, 0..8_usize));
    let step = (0..16_u8, 0..1_000_u16, 0..16_u8, any::<u64>(), view, limit).prop_map(
        |(move_kind, move_by, act, amount, view, limit)| DrawnStep {
            move_kind,
            move_by,
            act,
            amount,
            view,
            limit,
        },
    );
    proptest::collection::vec(step, 1..50)
}

impl DrawnStep {
    /// Returns where this step takes the clock.
    pub(super) fn moved(&self, limit: &Limit, now: u64, retry_at: u64) -> u64 {
        let window = limit.window.0;
        let part = window / 1_000 * u64::from(self.move_by);
        match self.move_kind {
            0..4 => now,
            4 | 5 => now + u64::from(self.move_by % 50),
            6..9 => now + part / 10,
            9 => now + part * 3,
            10 => now.saturating_sub(part),
            11 => now.saturating_sub(u64::from(self.move_by)),
            12 => (now / window + 1) * window,
            // Some usage takes longer to drain than time lasts.
            13 if retry_at < u64::MAX / 2 => retry_at.max(now),
            14 => now + YEAR / 1_000 * u64::from(self.move_by) * 30,
            _ => (now / window + 1) * window - 1,
        }
    }

    fn permits(&self, limit: &Limit, remaining: u64) -> u64 {
        match self.amount % 8 {
            0..4 => self.amount / 8 % 3 + 1,
            4 => u64::from(limit.permits) * (self.amount / 8 % 1_200) / 1_000,
            5 => remaining,
            6 => remaining / 2 + 1,
            _ => self.amount,
        }
    }

    /// A view that may be of this window, the last, the next or none of them.
    fn view(&self, limit: &Limit, now: u64) -> Option<Allowance> {
        let (turn, budget, next_budget, others, others_before) = self.view?;
        let of_limit = |part: u16| u64::from(limit.permits) * u64::from(part) / 50_000;
        let short = |part: u16| u32::try_from(of_limit(part)).unwrap_or(u32::MAX);
        let index = now / limit.window.0;
        Some(Allowance::Window(WindowAllowance {
            window: [index, index, index.saturating_sub(1), index.saturating_sub(2), index + 1]
                [usize::from(turn % 5)],
            budget: if turn < 60 { limit.permits } else { short(budget) },
            next_budget: if turn > 200 { limit.permits } else { short(next_budget) },
            others: if others < 9_000 { 0 } else { of_limit(others) },
            others_before: if others_before < 9_000 { 0 } else { of_limit(others_before) },
        }))
    }

    /// The limit in force from this step on; the window stays, since another one makes other buckets.
    fn limit(&self, limit: Limit) -> Limit {
        self.limit.map_or(limit, |(permits, burst, queue)| {
            bursts(Limit { permits: PERMITS[permits], ..limit }, burst, queue)
        })
    }
}

/// Plays a history to a machine and to the judge and compares all they say.
pub(super) fn compare(algorithm: Algorithm, mut limit: Limit, start: u64, history: &[DrawnStep]) {
    let (mut state, mut judge) = (State::new(algorithm), Judge::new(algorithm));
    let (mut now, mut retry_at) = (start, start);
    for step in history {
        limit = step.limit(limit);
        now = step.moved(&limit, now, retry_at);
        let at = Timestamp(now);
        // What a view holds back of a level is played against the real stores, in tests/redis/store.rs.
        let view = step.view(&limit, now).filter(|_| !judge.counts_by_level());
        let peek = state.check(&limit, view.as_ref(), at, 0);
        let cost = step.permits(&limit, peek.remaining);
        match step.act {
            0 => assert_verdict(&judge, &state, &limit, view.as_ref(), now, 0),
            1..10 => {
                let verdict = state.check(&limit, view.as_ref(), at, cost);
                assert_verdict(&judge, &state, &limit, view.as_ref(), now, cost);
                if verdict.admitted {
                    // A charge of nothing pays nothing that is owed.
                    if cost > 0 {
                        state.settle(&limit, view.as_ref(), at);
                    }
                    state.take(&limit, at, cost);
                    judge.take(&limit, view.as_ref(), now, cost);
                    assert_eq!(verdict.remaining, state.check(&limit, view.as_ref(), at, 0).remaining);
                } else {
                    retry_at = verdict.retry.map_or(now, |retry| now.saturating_add(retry.0));
                    retry_at = if step.amount % 3 == 0 { retry_at.saturating_sub(1) } else { retry_at };
                }
            }
            10 | 11 => {
                let permits = u64::from(limit.permits);
                let most = [0, 1, permits / 2, permits, permits * 3 + 5][usize::from(step.move_by % 5)];
                let report = ReportedCost {
                    permits: cost,
                    debt_max: u32::try_from(most).unwrap_or(DEBT_MAX).min(DEBT_MAX),
                };
                assert_eq!(
                    state.report(&limit, view.as_ref(), at, &report),
                    judge.report(&limit, view.as_ref(), now, &report),
                    "{report:?} to {state:?}"
                );
                let verdict = state.check(&limit, view.as_ref(), at, 1);
                retry_at = verdict.retry.map_or(now, |retry| now.saturating_add(retry.0));
            }
            12 | 13 => {
                state.settle(&limit, view.as_ref(), at);
                judge.settle(&limit, view.as_ref(), now);
                assert_eq!(
                    state.refund(&limit, at, cost),
                    judge.refund(&limit, now, cost),
                    "refund of {cost}"
                );
            }
            _ if judge.counts_by_level() => {
                let debt = step.amount % 5_000;
                if judge.used(&limit, now) + debt < u64::from(u32::MAX) {
                    state.debit(&limit, at, debt);
                    judge.take(&limit, None, now, debt);
                }
            }
            _ => {
                let before = state.clone();
                state.debit(&limit, at, cost);
                assert_eq!(state, before);
            }
        }
        assert_eq!(state.used(&limit, at), judge.used(&limit, now), "used");
        assert_expiry(algorithm, &state, &limit, now);
    }
}

fn assert_verdict(
    judge: &Judge,
    state: &State,
    limit: &Limit,
    view: Option<&Allowance>,
    now: u64,
    cost: u64,
) {
    let verdict = state.check(limit, view, Timestamp(now), cost);
    let asked = cost.max(1);
    let context = format!("{limit:?} {view:?} at {now} cost {cost}: {verdict:?} of {state:?}");
    assert_eq!(verdict.admitted, judge.fits(limit, view, now, asked), "admitted: {context}");
    // At a past instant it says the same as at the newest, but waits begin when the clock is there.
    let behind = Span(judge.newest.saturating_sub(now));
    let now = now.max(judge.newest);
    let told = verdict;
    let verdict = state.check(limit, view, Timestamp(now), cost);
    let mut from_now = verdict;
    from_now.wait_for_clock(behind);
    assert_eq!(told, from_now, "a past instant: {context}");
    let mut after = judge.clone();
    if verdict.admitted {
        after.take(limit, view, now, cost);
    }
    let remaining = verdict.remaining;
    assert!(remaining == 0 || after.fits(limit, view, now, remaining), "remaining too high: {context}");
    assert!(!after.fits(limit, view, now, remaining + 1), "remaining too low: {context}");
    if judge.counts_by_level() && limit.permits > 0 && remaining < judge.capacity(limit) {
        assert_more(&after, limit, now, &verdict, &context);
    }
    assert_reset(&after, &OracleQuestion { limit, view, now, permits: asked }, &verdict, &context);
    if verdict.admitted {
        assert_eq!(verdict.retry, None, "{context}");
        assert_delay(judge, limit, now, cost, &verdict, &context);
    } else {
        assert_eq!(verdict.delay, Span::ZERO, "{context}");
        assert_retry(judge, &OracleQuestion { limit, view, now, permits: asked }, &verdict, &context);
    }
}

/// More than what is left is free when the verdict says so, to the microsecond.
fn assert_more(after: &Judge, limit: &Limit, now: u64, verdict: &Verdict, context: &str) {
    let Span(more) = verdict.until_more(after.algorithm, limit);
    let Some(then) = now.checked_add(more).filter(|then| *then < u64::MAX / 2) else { return };
    let fits = |at: u64| after.fits(limit, None, at, verdict.remaining + 1);
    assert!(fits(then), "more is free later than {more}: {context}");
    // Two lengths of time are rounded, and what no span can say is bounded by the wait for what was asked.
    let bounded = verdict.reset == Span(u64::MAX);
    assert!(more < 2 || bounded || !fits(then - 2), "more is free sooner than {more}: {context}");
    assert!(verdict.retry.is_none_or(|retry| more <= retry.0), "{context}");
}

/// One question, as the machine was asked it.
struct OracleQuestion<'a> {
    limit: &'a Limit,
    view: Option<&'a Allowance>,
    now: u64,
    permits: u64,
}

fn assert_retry(judge: &Judge, asked: &OracleQuestion<'_>, verdict: &Verdict, context: &str) {
    let OracleQuestion { limit, view, now, permits: asked } = *asked;
    let Some(Span(retry)) = verdict.retry else {
        assert!(asked > judge.capacity(limit), "never: {context}");
        return;
    };
    assert!(asked <= judge.capacity(limit) && retry > 0, "{context}");
    if now.checked_add(retry).is_none_or(|then| then == u64::MAX) {
        return;
    }
    if view.is_some() && judge.owed > 0 {
        // How fast a debt is paid in windows to come is only as good as a guess at what they leave.
        return;
    }
    let window_end = limit.window.0 - now % limit.window.0;
    let latest = match judge.algorithm {
        _ if view.is_none() => None,
        Algorithm::FixedWindow => Some(window_end),
        Algorithm::SlidingWindow => Some(window_end + limit.window.0),
        _ => None,
    };
    if latest != Some(retry) {
        assert!(judge.fits(limit, view, now + retry, asked), "too early: {context}");
    }
    assert!(latest.is_none_or(|latest| retry <= latest), "{context}");
    // A view of a window to come may take back what fits now; the log promises only that the instant before
    // does not fit.
    let samples = if judge.algorithm == Algorithm::SlidingLog && view.is_some() { 0 } else { 16 };
    for sample in 0..samples {
        let earlier = now + u64::try_from(u128::from(retry) * sample / 16).unwrap();
        assert!(!judge.fits(limit, view, earlier, asked), "late, {earlier} fits: {context}");
    }
    assert!(!judge.fits(limit, view, now + retry - 1, asked), "a microsecond late: {context}");
}

fn assert_reset(after: &Judge, asked: &OracleQuestion<'_>, verdict: &Verdict, context: &str) {
    let OracleQuestion { limit, view, now, permits: asked } = *asked;
    let reset = verdict.reset.0;
    let owes = after.owed > 0 && verdict.remaining == 0 && limit.permits > 0;
    let again = if asked > limit.permits.into() { 1 } else { asked };
    match after.algorithm {
        _ if owes && view.is_some() => {}
        // As with the time to retry: windows to come leave what is only guessed.
        Algorithm::FixedWindow if after.owed > 0 && view.is_some() => {}
        // A client that owes is told when as much is free again.
        Algorithm::FixedWindow if owes && after.caught_up(limit, None, now).owed > 0 => {
            let Some(end) = now.checked_add(reset).filter(|end| *end < u64::MAX) else { return };
            assert!(after.fits(limit, None, end, again), "reset too early: {context}");
            assert!(!after.fits(limit, None, end - 1, again), "reset too late: {context}");
        }
        Algorithm::FixedWindow => {
            assert_eq!((now + reset) % limit.window.0, 0, "{context}");
            assert!(reset > 0 && reset <= limit.window.0, "{context}");
        }
        Algorithm::SlidingWindow => {
            let left = limit.window.0 - now % limit.window.0;
            // A debt may fill more windows than these two.
            assert!(reset > 0 && (after.owed > 0 || reset <= left + limit.window.0), "{context}");
            assert!(verdict.retry.is_none_or(|retry| retry == verdict.reset), "{context}");
            // What a window to come is told of others is not known yet.
            let known = view.is_none() && limit.permits > 0;
            let Some(then) = now.checked_add(reset).filter(|then| known && *then < u64::MAX) else { return };
            assert!(after.fits(limit, None, then, again), "reset too early: {context}");
            let early = || !after.fits(limit, None, then - 1, again);
            assert!(reset == left || early(), "reset too late: {context}");
        }
        _ if limit.permits == 0 && after.counts_by_level() => {
            assert!(reset == 0 || reset == limit.window.0, "{context}");
        }
        _ => {
            // Longer than time itself: said as the longest there is.
            let Some(end) = now.checked_add(reset).filter(|end| *end < u64::MAX) else { return };
            assert_eq!(after.used(limit, end), 0, "reset too early: {context}");
            assert!(reset == 0 || after.used(limit, now + reset - 1) > 0, "reset too late: {context}");
        }
    }
}

/// What conforms only later is delayed until it does, to the microsecond.
fn assert_delay(judge: &Judge, limit: &Limit, now: u64, cost: u64, verdict: &Verdict, context: &str) {
    let delay = verdict.delay.0;
    if delay == u64::MAX {
        return;
    }
    let window = wide(limit.window.0);
    let in_the_way = match judge.algorithm {
        _ if cost == 0 => 0,
        Algorithm::LeakyBucket => judge.level(limit, now),
        Algorithm::TokenBucket | Algorithm::Gcra => {
            judge.level(limit, now) + (wide(cost) - i128::from(limit.burst)) * window
        }
        _ => 0,
    };
    let drained = |time: u64| wide(time) * i128::from(limit.permits);
    assert!(drained(delay) >= in_the_way, "delay too short: {context}");
    assert!(delay == 0 || drained(delay - 1) < in_the_way, "delay too long: {context}");
}

/// At its expiry a bucket cannot be told from a new one.
fn assert_expiry(algorithm: Algorithm, state: &State, limit: &Limit, now: u64) {
    let expiry = state.expiry(limit).max(Timestamp(now));
    if expiry.0 == u64::MAX {
        return;
    }
    let fresh = State::new(algorithm);
    for cost in [0, 1, u64::from(limit.permits), u64::from(limit.burst), u64::MAX] {
        let mut verdicts = [state.check(limit, None, expiry, cost), fresh.check(limit, None, expiry, cost)];
        if limit.permits == 0 {
            verdicts[0].reset = verdicts[1].reset;
        }
        assert_eq!(verdicts[0], verdicts[1], "{state:?} at its expiry {expiry:?}");
    }
}

/// Returns who was admitted when, of a history in which the limit stays and nothing is given back.
pub(super) fn admissions(
    algorithm: Algorithm,
    limit: &Limit,
    start: u64,
    history: &[DrawnStep],
) -> Vec<(u64, u64, u64)> {
    let mut state = State::new(algorithm);
    let (mut now, mut newest, mut admitted) = (start, 0, Vec::new());
    for step in history {
        now = step.moved(limit, now, now);
        let remaining = state.check(limit, None, Timestamp(now), 0).remaining;
        let cost = step.permits(limit, remaining);
        let verdict = state.check(limit, None, Timestamp(now), cost);
        if verdict.admitted && cost > 0 {
            state.take(limit, Timestamp(now), cost);
            newest = newest.max(now);
            admitted.push((newest, cost, newest.saturating_add(verdict.delay.0)));
        }
    }
    admitted
}

/// Every run of admissions, as how long it lasted and how much it took.
pub(super) fn runs(admitted: &[(u64, u64, u64)]) -> impl Iterator<Item = (u64, u128)> {
    admitted.iter().enumerate().flat_map(move |(first, (from, ..))| {
        admitted[first..].iter().scan(0_u128, move |sum, (at, cost, _)| {
            *sum += u128::from(*cost);
            Some((at - from, *sum))
        })
    })
}

/// An instant of our days that begins no window.
pub(super) const START: u64 = 1_790_000_000_123_456;

macro_rules! judged {
    ($name:ident, $algorithm:ident) => {
        proptest! {
            #[test]
            fn $name(limit in limits(), history in histories(), at_zero in proptest::bool::weighted(0.1)) {
                compare(Algorithm::$algorithm, limit, if at_zero { 0 } else { START }, &history);
            }
        }
    };
}

judged!(a_fixed_window_answers_as_the_judge_does, FixedWindow);
judged!(a_sliding_window_answers_as_the_judge_does, SlidingWindow);
judged!(a_sliding_log_answers_as_the_judge_does, SlidingLog);
judged!(a_token_bucket_answers_as_the_judge_does, TokenBucket);
judged!(a_leaky_bucket_answers_as_the_judge_does, LeakyBucket);
judged!(gcra_answers_as_the_judge_does, Gcra);
