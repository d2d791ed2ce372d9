//! Windows as people name them: the day in Berlin, the month that begins on the 15th.
//!
//! A calendar is worked out once, when its rule is read: where each period begins, from 1970 to 2200, by the
//! zone data that is compiled in. A decision only searches in it. Each period has an index, one more than the
//! period before it, which is the same in every daemon of this version.
//!
//! A period begins at the first instant at which the zone's clock reads its first moment or more. So a day on
//! which clocks are set has 23 or 25 hours, midnights that do not exist cost nothing, and time never goes
//! back into an earlier period. An hour has 60 minutes on such days too, unless the clock is set by a part of
//! an hour: then one hour is longer or shorter, so that the next one begins when the clock reads a whole
//! hour.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::time::{Span, Timestamp};

#[cfg(test)]
mod tests;

const SECOND: u64 = 1_000_000;
const DAY_S: i64 = 86_400;
/// From this year on every period is as long as the last one before it.
const YEAR_END: i16 = 2200;

/// Stretches that [`Calendar::around`] tells of before and after the present one.
const STRETCHES_BEFORE: usize = 12;
const STRETCHES_AFTER: usize = 3;

/// The kind of a calendar's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalendarPeriod {
    /// Hours of the zone's clock.
    Hour,
    /// From midnight to midnight.
    Day,
    /// Seven days.
    Week,
    /// Months.
    Month,
    /// Three months, from January, April, July and October.
    Quarter,
    /// Years, from January.
    Year,
}

impl CalendarPeriod {
    /// The largest number that [`CalendarName::starts_on`] may be; zero where a period has no such day.
    #[must_use]
    pub const fn starts_on_max(self) -> u8 {
        match self {
            Self::Hour | Self::Day => 0,
            Self::Week => 7,
            Self::Month | Self::Quarter | Self::Year => 31,
        }
    }
}

/// The name of a calendar, which tells it from others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CalendarName {
    /// Unit of the windows, such as a day or a month.
    pub period: CalendarPeriod,
    /// The zone whose clock counts, by its IANA name.
    pub time_zone: String,
    /// On which day a period begins: of a week 1 for Monday to 7 for Sunday; of months, quarters and years
    /// the day of their first month, the last one where that month is shorter. Zero for hours and days.
    pub starts_on: u8,
}

/// The reasons for which there is no such calendar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCalendar {
    /// The zone is not in the data.
    #[error("there is no time zone {0:?}: write an IANA name such as \"Europe/Berlin\" or \"UTC\"")]
    UnknownZone(String),
    /// The day is none of the period's.
    #[error("a {0:?} cannot start on {1}")]
    StartsOn(CalendarPeriod, u8),
}

/// The windows of one calendar.
pub struct Calendar {
    name: CalendarName,
    /// Stretches of windows of one length. None is empty, the first begins at the epoch, and behind the last
    /// one is a mark at the end of time.
    stretches: Vec<Stretch>,
    /// Place of the stretch that was sought last.
    latest: AtomicUsize,
    longest: Span,
    shortest: Span,
}

/// Windows of one length. The last one ends where the next stretch begins, and may be longer or shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    /// Begin of its first window, in microseconds since the epoch.
    start: u64,
    /// The index of its first window.
    first: u64,
    /// Length of each of its windows, in microseconds.
    step: u64,
    /// Its windows behind the first one.
    last: u64,
}

/// A window that no calendar has.
const NEVER_ENDS: CalendarWindow = CalendarWindow { index: 0, start: 0, end: u64::MAX };

/// Windows of one length, as [`Calendar::around`] tells of them. The last one ends where the next stretch
/// begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarStretch {
    /// Its begin, in microseconds since the epoch.
    pub start: u64,
    /// The index of its first window.
    pub first: u64,
    /// The length of its windows, in microseconds.
    pub step: u64,
}

/// A window of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarWindow {
    /// Number of the window among all of its calendar; grows by one from each to the next.
    pub index: u64,
    /// Its begin, in microseconds since the epoch.
    pub start: u64,
    /// End of the window, in microseconds since the epoch; after `start`.
    pub end: u64,
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Calendar {}

impl std::hash::Hash for Calendar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Calendar {
    /// Works it out: less than a millisecond, and up to 70 kilobytes.
    ///
    /// # Errors
    /// The zone is not known, or the period has no such day.
    pub fn new(name: CalendarName) -> Result<Self, NoCalendar> {
        let from = u8::from(name.period.starts_on_max() > 0);
        if !(from..=name.period.starts_on_max()).contains(&name.starts_on) {
            return Err(NoCalendar::StartsOn(name.period, name.starts_on));
        }
        let zone = TimeZoneDatabase::bundled().get(&name.time_zone).ok();
        let zone = zone.filter(|zone| !zone.is_unknown());
        let zone = zone.ok_or_else(|| NoCalendar::UnknownZone(name.time_zone.clone()))?;
        let time_zone = zone.iana_name().map_or(name.time_zone, str::to_owned);
        let name = CalendarName { time_zone, ..name };
        let mut drawn = Drawn::default();
        match Steps::of(&name) {
            Some(steps) => steps.draw(&Offsets::of(&zone, name.period), &mut drawn),
            None => draw_months(&name, &Offsets::of(&zone, name.period), &mut drawn),
        }
        Ok(drawn.finish(name))
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &CalendarName {
        &self.name
    }

    /// The length of its longest window.
    #[must_use]
    pub const fn longest(&self) -> Span {
        self.longest
    }

    /// The length of its shortest window.
    #[must_use]
    pub const fn shortest(&self) -> Span {
        self.shortest
    }

    /// The window that holds `at`.
    #[must_use]
    #[inline]
    pub fn at(&self, at: Timestamp) -> CalendarWindow {
        match self.pair(self.latest.load(Ordering::Relaxed)) {
            Some((stretch, next)) if stretch.start <= at.0 && at.0 < next.start => stretch.at(at.0, next),
            _ => self.search(at.0),
        }
    }

    /// The window of this index.
    #[must_use]
    pub fn of(&self, index: u64) -> CalendarWindow {
        let place = self.stretches.partition_point(|stretch| stretch.first <= index).saturating_sub(1);
        match self.pair(place.min(self.stretches.len().saturating_sub(2))) {
            Some((stretch, next)) => {
                stretch.window(index.saturating_sub(stretch.first).min(stretch.last), next)
            }
            None => NEVER_ENDS,
        }
    }

    /// Seeks the stretch that holds an instant, and remembers it: nearly always it holds the next one too.
    #[cold]
    fn search(&self, at: u64) -> CalendarWindow {
        let place = self.place(at);
        self.latest.store(place, Ordering::Relaxed);
        self.pair(place).map_or(NEVER_ENDS, |(stretch, next)| stretch.at(at, next))
    }

    /// Returns which stretch holds an instant; never the mark behind the last one.
    fn place(&self, at: u64) -> usize {
        let after = self.stretches.partition_point(|stretch| stretch.start <= at);
        after.min(self.stretches.len().saturating_sub(1)).saturating_sub(1)
    }

    /// A stretch, and the one behind it.
    fn pair(&self, place: usize) -> Option<(&Stretch, &Stretch)> {
        match self.stretches.get(place..)? {
            [stretch, next, ..] => Some((stretch, next)),
            _ => None,
        }
    }

    /// The stretches around `at`, for whoever searches in them elsewhere: that of `at`, 12 before and three
    /// after it.
    pub fn around(&self, at: Timestamp) -> impl Iterator<Item = CalendarStretch> + '_ {
        let place = self.place(at.0);
        let from = place.saturating_sub(STRETCHES_BEFORE);
        let all = self.stretches.len().saturating_sub(1);
        let until = (place + STRETCHES_AFTER + 1).min(all);
        let stretches = self.stretches.get(from..until).unwrap_or_default();
        stretches.iter().map(|one| CalendarStretch { start: one.start, first: one.first, step: one.step })
    }
}

impl Stretch {
    /// The window that holds `at`, which is not before this stretch; `next` comes behind it.
    #[inline]
    fn at(&self, at: u64, next: &Self) -> CalendarWindow {
        self.window((at.saturating_sub(self.start) / self.step).min(self.last), next)
    }

    /// The window of this number among its own. None of them begins beyond the end of time.
    #[inline]
    fn window(&self, number: u64, next: &Self) -> CalendarWindow {
        let start = self.start + number * self.step;
        let end = if number == self.last { next.start } else { start.saturating_add(self.step) };
        CalendarWindow { index: self.first + number, start, end }
    }
}

/// Windows of any kind: of one length, aligned to the epoch, or of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Windows {
    length: Span,
    calendar: Option<&'static Calendar>,
}

impl From<Span> for Windows {
    fn from(length: Span) -> Self {
        Self { length, calendar: None }
    }
}

impl From<&'static Calendar> for Windows {
    fn from(calendar: &'static Calendar) -> Self {
        Self { length: calendar.longest, calendar: Some(calendar) }
    }
}

impl Windows {
    /// Returns the windows of a calendar, or else windows of this length.
    #[must_use]
    pub const fn new(length: Span, calendar: Option<&'static Calendar>) -> Self {
        Self { length, calendar }
    }

    /// The length of a window; of a calendar, that of its longest one.
    #[must_use]
    pub const fn length(self) -> Span {
        self.length
    }

    /// The length of the shortest window.
    #[must_use]
    pub fn shortest(self) -> Span {
        self.calendar.map_or(self.length, Calendar::shortest)
    }

    /// The calendar, if they are of one.
    #[must_use]
    pub const fn calendar(self) -> Option<&'static Calendar> {
        self.calendar
    }

    /// The index of the window that holds `at`; see [`Timestamp::window_index`].
    #[must_use]
    pub fn index(self, at: Timestamp) -> u64 {
        match self.calendar {
            None => at.window_index(self.length),
            Some(calendar) => calendar.at(at).index,
        }
    }

    /// The begin of the window of this index.
    #[must_use]
    pub fn start(self, index: u64) -> Timestamp {
        match self.calendar {
            None => Timestamp::window_start(index, self.length),
            Some(calendar) => Timestamp(calendar.of(index).start),
        }
    }

    /// The end of the window of this index: the next one begins there.
    #[must_use]
    pub fn end(self, index: u64) -> Timestamp {
        match self.calendar {
            None => Timestamp::window_start(index.saturating_add(1), self.length),
            Some(calendar) => Timestamp(calendar.of(index).end),
        }
    }

    /// The length of the window of this index.
    #[must_use]
    pub fn length_of(self, index: u64) -> Span {
        self.calendar.map_or(self.length, |calendar| {
            let window = calendar.of(index);
            Span(window.end.saturating_sub(window.start))
        })
    }

    /// The length of the window that holds `at`.
    #[must_use]
    pub fn length_at(self, at: Timestamp) -> Span {
        self.calendar.map_or(self.length, |calendar| {
            let window = calendar.at(at);
            Span(window.end.saturating_sub(window.start))
        })
    }
}

/// The distance of a zone's clock from UTC, in seconds: from an instant on, until the next one.
struct Offsets(Vec<(i64, i64)>);

impl Offsets {
    fn of(zone: &TimeZone, period: CalendarPeriod) -> Self {
        // Hours know the clock's minutes only.
        let offset = |seconds: i32| match period {
            CalendarPeriod::Hour => i64::from(seconds).rem_euclid(3_600),
            _ => i64::from(seconds),
        };
        let end = midnight(YEAR_END, 1, 1);
        let mut offsets = vec![(i64::MIN / 2, offset(zone.to_offset(jiff::Timestamp::UNIX_EPOCH).seconds()))];
        for change in zone.following(jiff::Timestamp::UNIX_EPOCH) {
            let at = change.timestamp().as_second();
            if at >= end {
                break;
            }
            offsets.push((at, offset(change.offset().seconds())));
        }
        Self(offsets)
    }

    /// From the one of `place` on: the first instant at which the clock reads `local` or more, and the place
    /// of the offset that is in force then.
    fn first_at(&self, local: i64, mut place: usize) -> (i64, usize) {
        loop {
            let (from, offset) = self.0.get(place).copied().unwrap_or_default();
            let at = (local - offset).max(from);
            match self.0.get(place + 1) {
                Some((next, _)) if at >= *next => place += 1,
                _ => return (at, place),
            }
        }
    }

    /// Returns until when the offset of `place` is in force.
    fn until(&self, place: usize) -> i64 {
        self.0.get(place + 1).map_or(i64::MAX / 2, |(next, _)| *next)
    }
}

/// Periods that have one length by the zone's clock, in seconds.
struct Steps {
    /// Instant at which one of them begins by that clock.
    phase: i64,
    step: i64,
}

impl Steps {
    fn of(name: &CalendarName) -> Option<Self> {
        match name.period {
            CalendarPeriod::Hour => Some(Self { phase: 0, step: 3_600 }),
            CalendarPeriod::Day => Some(Self { phase: 0, step: DAY_S }),
            // The epoch was a Thursday.
            CalendarPeriod::Week => {
                Some(Self { phase: (i64::from(name.starts_on) - 4) * DAY_S, step: 7 * DAY_S })
            }
            CalendarPeriod::Month | CalendarPeriod::Quarter | CalendarPeriod::Year => None,
        }
    }

    fn draw(&self, offsets: &Offsets, drawn: &mut Drawn) {
        let end = midnight(YEAR_END, 1, 1);
        let mut local = self.phase - 2 * self.step;
        let mut place = 0;
        while local < end {
            let (at, now) = offsets.first_at(local, place);
            place = now;
            let (_, offset) = offsets.0.get(place).copied().unwrap_or_default();
            // The number of those that begin before the clock is set again.
            let regular = at == local - offset;
            let until = offsets.until(place).min(end);
            let count = if regular { ((until - at).max(1) + self.step - 1) / self.step } else { 1 };
            drawn.add(at, self.step, count);
            local += count * self.step;
        }
    }
}

/// Months, or several in one.
fn draw_months(name: &CalendarName, offsets: &Offsets, drawn: &mut Drawn) {
    let months = match name.period {
        CalendarPeriod::Quarter => 3,
        CalendarPeriod::Year => 12,
        _ => 1,
    };
    let begin = |number: i64| {
        let (year, month) = (number.div_euclid(12), number.rem_euclid(12) + 1);
        let year = i16::try_from(year).unwrap_or(YEAR_END);
        midnight(year, i8::try_from(month).unwrap_or(1), i8::try_from(name.starts_on).unwrap_or(1))
    };
    let mut place = 0;
    // Two years before the epoch, so that one begins before it whatever the zone and the day.
    let mut number = 12 * 1968;
    while number < 12 * i64::from(YEAR_END) {
        let (at, now) = offsets.first_at(begin(number), place);
        place = now;
        let step = begin(number + months) - begin(number);
        drawn.add(at, step, 1);
        number += months;
    }
}

/// Midnight of a date by a clock without a zone, in seconds since the epoch; of a month that has no such day,
/// of its last one.
fn midnight(year: i16, month: i8, day: i8) -> i64 {
    let date =
        Date::new(year, month, 1).and_then(|first| Date::new(year, month, day.min(first.days_in_month())));
    date.and_then(|date| date.to_zoned_datetime(TimeZone::UTC))
        .map_or(0, |begin| begin.timestamp().as_second())
}

/// Stretches while they are found, in seconds, in order.
#[derive(Default)]
struct Drawn {
    /// Begin, length of the windows and number of windows of each run.
    runs: Vec<(i64, i64, i64)>,
}

impl Drawn {
    fn add(&mut self, at: i64, step: i64, count: i64) {
        // The clock skipped the period before this one as a whole.
        if let Some((start, length, before)) = self.runs.last_mut()
            && *start + (*before - 1) * *length == at
        {
            *before -= 1;
            if *before == 0 {
                self.runs.pop();
            }
        }
        match self.runs.last_mut() {
            Some((start, same, before)) if *same == step && *start + *before * step == at => *before += count,
            _ => self.runs.push((at, step, count)),
        }
    }

    /// Leaves out what ends before the epoch: the window that holds it is the first, and begins there.
    fn since_the_epoch(&self) -> Vec<(i64, i64, i64)> {
        let mut runs = Vec::with_capacity(self.runs.len() + 1);
        for (number, (start, step, count)) in self.runs.iter().copied().enumerate() {
            let end = self.runs.get(number + 1).map_or(i64::MAX, |(next, ..)| *next);
            if start >= 0 {
                runs.push((start, step, count));
            } else if end > 0 {
                let before = (-start / step).min(count - 1);
                let first_end = if before == count - 1 { end } else { start + (before + 1) * step };
                runs.push((0, first_end, 1));
                if before + 1 < count {
                    runs.push((first_end, step, count - before - 1));
                }
            }
        }
        runs
    }

    fn finish(self, name: CalendarName) -> Calendar {
        let micros = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(SECOND).max(1);
        let runs = self.since_the_epoch();
        let mut stretches = Vec::with_capacity(runs.len() + 1);
        let (mut first, mut longest, mut shortest) = (0_u64, 1, i64::MAX);
        for (number, (start, step, count)) in runs.iter().copied().enumerate() {
            let (step_us, end) = (micros(step), runs.get(number + 1).map(|(next, ..)| *next));
            let last = match end {
                Some(_) => u64::try_from(count - 1).unwrap_or(0),
                // The number that time has room for.
                None => (u64::MAX - micros(start)) / step_us,
            };
            let of_last = end.map_or(step, |end| end - start - (count - 1) * step);
            if number > 0 {
                longest = longest.max(of_last).max(if count > 1 { step } else { 0 });
                shortest = shortest.min(of_last).min(if count > 1 { step } else { i64::MAX });
            }
            let start = u64::try_from(start).unwrap_or(0).saturating_mul(SECOND);
            stretches.push(Stretch { start, first, step: step_us, last });
            first = first.saturating_add(last).saturating_add(1);
        }
        let (longest, shortest) = (Span(micros(longest)), Span(micros(shortest.min(longest))));
        stretches.push(Stretch { start: u64::MAX, first: u64::MAX, step: 1, last: 0 });
        Calendar { name, stretches, latest: AtomicUsize::new(0), longest, shortest }
    }
}
