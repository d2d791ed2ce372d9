//! Requests by time: the last hour in steps of ten seconds, and the last day in minutes.
//!
//! Whoever decides keeps sums that only grow. They are read about once a second, and the difference of two
//! readings is spread evenly over the time between them. Each step knows how much of its time was seen, so
//! that a step which has just begun, or one with a pause, still has a true rate.

use crate::time::{Span, Timestamp};

/// Longest time between two readings of which anything is told. A longer one is a pause of the machine, or
/// its clock was set: nobody knows when the requests in between came.
const UNSEEN_MIN: Span = Span::from_secs(60);

/// Sums of requests. Each request counts once, however many rules decided it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestSums {
    /// Requests decided, those that were denied included.
    pub requests: u64,
    /// Requests among them that were denied.
    pub denied: u64,
    /// Requests among them that a failure policy answered, since the store did not answer or had no room.
    pub degraded: u64,
    /// Permits that were charged for them.
    pub cost: u64,
}

impl RequestSums {
    /// Adds others. Sums that only grow may wrap; [`Self::since`] is right all the same.
    #[inline]
    pub const fn add(&mut self, other: Self) {
        self.requests = self.requests.wrapping_add(other.requests);
        self.denied = self.denied.wrapping_add(other.denied);
        self.degraded = self.degraded.wrapping_add(other.degraded);
        self.cost = self.cost.wrapping_add(other.cost);
    }

    /// Returns by how much the same sums grew since an `earlier` reading.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests.wrapping_sub(earlier.requests),
            denied: self.denied.wrapping_sub(earlier.denied),
            degraded: self.degraded.wrapping_sub(earlier.degraded),
            cost: self.cost.wrapping_sub(earlier.cost),
        }
    }

    /// Raises each sum to that of `other` where it is less, and returns by how much each rose. What the rules
    /// say of one request is told so, one after the other: the highest of it counts.
    #[inline]
    pub const fn raise(&mut self, other: Self) -> Self {
        let rose = Self {
            requests: other.requests.saturating_sub(self.requests),
            denied: other.denied.saturating_sub(self.denied),
            degraded: other.degraded.saturating_sub(self.degraded),
            cost: other.cost.saturating_sub(self.cost),
        };
        self.add(rose);
        rose
    }

    /// Returns what of these, spread evenly over `whole`, belongs to its first `passed`.
    fn within(self, passed: Span, whole: Span) -> Self {
        let part = |value: u64| {
            let product = u128::from(value) * u128::from(passed.micros());
            let part = product.checked_div(u128::from(whole.micros()));
            part.and_then(|part| u64::try_from(part).ok()).unwrap_or(value)
        };
        Self {
            requests: part(self.requests),
            denied: part(self.denied),
            degraded: part(self.degraded),
            cost: part(self.cost),
        }
    }
}

/// A time up to now, of which the sums of each step are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateSpan {
    /// The last hour, in steps of ten seconds.
    Hour,
    /// The last day, in steps of a minute.
    Day,
}

impl RateSpan {
    /// Every one, as the API spells it.
    pub const ALL: [(&'static str, Self); 2] = [("hour", Self::Hour), ("day", Self::Day)];

    /// Returns the spelling of the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// The length of one step.
    #[must_use]
    pub const fn step(self) -> Span {
        match self {
            Self::Hour => Span::from_secs(10),
            Self::Day => Span::from_secs(60),
        }
    }

    /// The number of steps, the present one included.
    #[must_use]
    pub const fn steps(self) -> usize {
        match self {
            Self::Hour => 360,
            Self::Day => 1_440,
        }
    }
}

/// The sums of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RatePoint {
    /// The part of the step that was seen: sums divided by it are rates.
    pub seen: Span,
    /// The requests of that time.
    pub sums: RequestSums,
}

/// The steps of a time up to now, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateSeries {
    /// Begin of the first step.
    pub from: Timestamp,
    /// The length of each step.
    pub step: Span,
    /// The steps, up to the present one. `None`: nothing of the step was seen.
    pub points: Vec<Option<RatePoint>>,
}

/// A step, and which one it is.
#[derive(Debug, Clone, Copy, Default)]
struct KeptStep {
    index: u64,
    point: RatePoint,
}

/// The steps of one span. Each has the place that its index names, and takes it from the step of a span ago.
#[derive(Debug)]
struct StepRing {
    step: Span,
    kept: Box<[KeptStep]>,
}

impl StepRing {
    fn new(span: RateSpan) -> Self {
        Self { step: span.step(), kept: vec![KeptStep::default(); span.steps()].into() }
    }

    fn len(&self) -> u64 {
        u64::try_from(self.kept.len()).unwrap_or(u64::MAX)
    }

    fn place(&self, index: u64) -> usize {
        usize::try_from(index.checked_rem(self.len()).unwrap_or(0)).unwrap_or(0)
    }

    /// Spreads sums evenly over the time from `from` to `to`.
    fn spread(&mut self, from: Timestamp, to: Timestamp, sums: RequestSums) {
        let whole = to.since(from);
        let (mut at, mut told) = (from, RequestSums::default());
        while at < to {
            let index = at.window_index(self.step);
            let end = Timestamp::window_start(index.saturating_add(1), self.step).min(to);
            let within = sums.within(end.since(from), whole);
            self.add(index, end.since(at), within.since(told));
            (at, told) = (end, within);
        }
    }

    fn add(&mut self, index: u64, seen: Span, sums: RequestSums) {
        let place = self.place(index);
        let Some(kept) = self.kept.get_mut(place) else { return };
        if kept.index != index {
            *kept = KeptStep { index, point: RatePoint::default() };
        }
        kept.point.seen = kept.point.seen + seen;
        kept.point.sums.add(sums);
    }

    fn series(&self, now: Timestamp) -> RateSeries {
        let next = now.window_index(self.step).saturating_add(1);
        let first = next.saturating_sub(self.len());
        let point = |index: u64| {
            let kept = self.kept.get(self.place(index))?;
            // A clock that was set back left steps of a time to come.
            (kept.index == index && kept.point.seen > Span::ZERO).then_some(kept.point)
        };
        RateSeries {
            from: Timestamp::window_start(first, self.step),
            step: self.step,
            points: (first..next).map(point).collect(),
        }
    }
}

/// Sums by step of the last hour and the last day, from readings of sums that only grow.
#[derive(Debug)]
pub struct Rates {
    /// The newest reading, and when it was taken.
    newest: (Timestamp, RequestSums),
    hour: StepRing,
    day: StepRing,
}

impl Rates {
    /// Begins at `began`, when all sums were zero.
    #[must_use]
    pub fn new(began: Timestamp) -> Self {
        let newest = (began, RequestSums::default());
        Self { newest, hour: StepRing::new(RateSpan::Hour), day: StepRing::new(RateSpan::Day) }
    }

    /// Takes a reading. About one a second is wanted; how even they come does not matter.
    pub fn read(&mut self, now: Timestamp, sums: RequestSums) {
        let (before, known) = self.newest;
        if now == before {
            return;
        }
        self.newest = (now, sums);
        // A clock that was set back tells nothing of the time in between, either.
        if now < before || now.since(before) > UNSEEN_MIN {
            return;
        }
        for ring in [&mut self.hour, &mut self.day] {
            ring.spread(before, now, sums.since(known));
        }
    }

    /// The steps of a span up to `now`.
    #[must_use]
    pub fn series(&self, span: RateSpan, now: Timestamp) -> RateSeries {
        match span {
            RateSpan::Hour => self.hour.series(now),
            RateSpan::Day => self.day.series(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins an hour.
    const START: Timestamp = Timestamp(1_800_000_000_000_000);

    fn after(millis: u64) -> Timestamp {
        START + Span::from_millis(millis)
    }

    fn sums(requests: u64) -> RequestSums {
        RequestSums { requests, denied: requests / 2, degraded: 0, cost: 3 * requests }
    }

    /// The sums of all steps, and how much of them was seen.
    fn whole(series: &RateSeries) -> RatePoint {
        let mut whole = RatePoint::default();
        for point in series.points.iter().flatten() {
            whole.seen = whole.seen + point.seen;
            whole.sums.add(point.sums);
        }
        whole
    }

    #[test]
    fn a_steady_rate_is_steady_however_unevenly_it_is_read() {
        let mut rates = Rates::new(START);
        let (mut at, mut wait) = (0, 700);
        while at < 3 * 3_600_000 {
            // From 0.7 to 2.9 seconds; 200 requests a second.
            wait = 700 + (wait * 37) % 2_200;
            at += wait;
            rates.read(after(at), sums(at / 5));
        }
        for span in [RateSpan::Hour, RateSpan::Day] {
            let series = rates.series(span, after(at));
            assert_eq!(series.points.len(), span.steps());
            assert_eq!(series.step, span.step());
            let known: Vec<RatePoint> = series.points.iter().copied().flatten().collect();
            assert_eq!(known.len(), if span == RateSpan::Hour { 360 } else { 3 * 60 + 1 }, "{span:?}");
            for point in known {
                let expected = point.seen.micros() / 5_000;
                assert!(point.sums.requests.abs_diff(expected) <= 2, "{point:?} of {span:?}");
            }
        }
    }

    #[test]
    fn nothing_is_lost_between_steps_and_nothing_is_told_of_before() {
        let mut rates = Rates::new(after(3_000));
        rates.read(after(9_500), sums(7));
        rates.read(after(31_000), sums(1_001));
        for span in [RateSpan::Hour, RateSpan::Day] {
            let series = rates.series(span, after(31_000));
            let expected = RatePoint { seen: Span::from_millis(28_000), sums: sums(1_001) };
            assert_eq!(whole(&series), expected, "{span:?}");
        }
        let series = rates.series(RateSpan::Hour, after(31_000));
        let known: Vec<bool> = series.points.iter().map(Option::is_some).collect();
        assert_eq!(known[356..], [true; 4], "the steps that begin after 0, 10, 20 and 30 s");
        assert!(known[..356].iter().all(|known| !known));
        assert_eq!(series.from, START + Span::from_secs(30) - Span::from_secs(3_590));
        let first = series.points[356].unwrap();
        assert_eq!(first.seen, Span::from_millis(7_000), "it was seen in part");
    }

    #[test]
    fn a_step_that_nobody_saw_is_unknown_and_one_without_requests_is_none() {
        let mut rates = Rates::new(START);
        rates.read(after(10_000), sums(5));
        rates.read(after(20_000), sums(5));
        // The machine slept.
        rates.read(after(200_000), sums(90));
        rates.read(after(201_000), sums(92));
        let series = rates.series(RateSpan::Hour, after(201_000));
        let of = |place: usize| series.points[360 - 21 + place].map(|point| point.sums.requests);
        assert_eq!((of(0), of(1), of(2), of(19), of(20)), (Some(5), Some(0), None, None, Some(2)));
    }

    #[test]
    fn a_clock_that_is_set_shows_no_time_to_come_and_goes_on() {
        let mut rates = Rates::new(START);
        rates.read(after(10_000), sums(10));
        rates.read(after(7_230_000), sums(20));
        rates.read(after(7_231_000), sums(21));
        // Back to where it was.
        rates.read(after(12_000), sums(30));
        rates.read(after(13_000), sums(34));
        let series = rates.series(RateSpan::Hour, after(13_000));
        assert_eq!(
            whole(&series),
            RatePoint {
                seen: Span::from_millis(11_000),
                sums: RequestSums { requests: 14, denied: 7, degraded: 0, cost: 42 },
            }
        );
    }

    #[test]
    fn sums_that_wrap_have_a_right_difference_and_old_steps_make_room() {
        let mut rates = Rates::new(START);
        let near_end = RequestSums { requests: u64::MAX - 2, ..RequestSums::default() };
        rates.read(after(1_000), near_end);
        let mut beyond = near_end;
        beyond.add(RequestSums { requests: 5, ..RequestSums::default() });
        rates.read(after(100_000_000), beyond);
        rates.read(after(100_001_000), RequestSums { requests: beyond.requests + 7, ..beyond });
        let series = rates.series(RateSpan::Day, after(100_001_000));
        assert_eq!(whole(&series).sums.requests, 7, "the first minute is more than a day old");
        let mut rates = Rates::new(START);
        rates.read(after(1_000), near_end);
        rates.read(after(2_000), beyond);
        assert_eq!(whole(&rates.series(RateSpan::Hour, after(2_000))).sums, beyond);
    }

    #[test]
    fn a_request_that_several_rules_decide_counts_once_with_the_highest_of_each() {
        let mut told = RequestSums::default();
        let one = |denied, cost| RequestSums { requests: 1, denied, degraded: 0, cost };
        let mut all = RequestSums::default();
        for said in [one(0, 3), one(1, 0), one(1, 5), one(0, 4)] {
            all.add(told.raise(said));
        }
        assert_eq!((all, told), (one(1, 5), one(1, 5)));
    }
}
