//! Calendars against another reading of the zone data: each period is worked out anew from the date that the
//! zone's clock shows.

use chrono::{DateTime, Datelike, Duration, LocalResult, NaiveDate, NaiveDateTime, Offset, TimeZone, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use proptest::prelude::*;

use super::CalendarPeriod as Period;
use super::*;

const HOUR_S: i64 = 3_600;
const FROM: i64 = 631_152_000;
const UNTIL: i64 = 4_102_444_800;

/// Zones whose clocks the two data sets, of different dates, set differently, and until when they agree.
const CHANGED_SINCE: [(&str, i64); 16] = [
    ("Africa/Casablanca", IN_2022),
    ("Africa/El_Aaiun", IN_2022),
    // Of May 1992 they give different days.
    ("America/Bogota", FROM),
    ("America/Edmonton", IN_2022),
    ("America/Havana", IN_2022),
    ("America/Inuvik", IN_2022),
    ("America/Rainy_River", IN_2022),
    ("America/Vancouver", IN_2022),
    ("America/Winnipeg", IN_2022),
    ("America/Yellowknife", IN_2022),
    ("Canada/Central", IN_2022),
    ("Canada/Mountain", IN_2022),
    ("Canada/Pacific", IN_2022),
    ("Cuba", IN_2022),
    ("Europe/Chisinau", IN_2022),
    ("Europe/Tiraspol", IN_2022),
];
/// 2022-01-01.
const IN_2022: i64 = 1_640_995_200;
/// Days in the longest period, and some.
const PERIOD_DAYS: i64 = 400;

fn calendar(period: Period, time_zone: &str, starts_on: u8) -> Calendar {
    Calendar::new(CalendarName { period, time_zone: time_zone.to_owned(), starts_on }).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp(u64::try_from(second).unwrap() * SECOND)
}

fn local(zone: Tz, second: i64) -> NaiveDateTime {
    DateTime::<Utc>::from_timestamp(second, 0).unwrap().with_timezone(&zone).naive_local()
}

fn offset(zone: Tz, second: i64) -> i64 {
    let utc = DateTime::<Utc>::from_timestamp(second, 0).unwrap().naive_utc();
    i64::from(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc())
}

/// The first second at which the zone's clock shows `date` or a later one.
fn first_of(zone: Tz, date: NaiveDate) -> i64 {
    let mut wanted = date.and_hms_opt(0, 0, 0).unwrap();
    loop {
        match zone.from_local_datetime(&wanted) {
            LocalResult::Single(found) => return found.timestamp(),
            LocalResult::Ambiguous(first, _) => return first.timestamp(),
            LocalResult::None => wanted += Duration::minutes(1),
        }
    }
}

fn clipped(year: i32, month: u32, day: u8) -> NaiveDate {
    (1..=u32::from(day)).rev().find_map(|day| NaiveDate::from_ymd_opt(year, month, day)).unwrap()
}

/// The dates on which the period that `date` lies in begins, and the one after it.
fn period_of(period: Period, starts_on: u8, date: NaiveDate) -> (NaiveDate, NaiveDate) {
    let months = match period {
        Period::Hour | Period::Day => return (date, date.succ_opt().unwrap()),
        Period::Week => {
            let passed = (date.weekday().number_from_monday() + 7 - u32::from(starts_on)) % 7;
            let begin = date - Duration::days(i64::from(passed));
            return (begin, begin + Duration::days(7));
        }
        Period::Month => 1,
        Period::Quarter => 3,
        Period::Year => 12,
    };
    let begin = |number: i32| {
        clipped(number.div_euclid(12), u32::try_from(number.rem_euclid(12)).unwrap() + 1, starts_on)
    };
    let number = date.year() * 12 + i32::try_from(date.month0()).unwrap();
    let number = number - number.rem_euclid(months);
    let number = if begin(number) > date { number - months } else { number };
    (begin(number), begin(number + months))
}

/// Judges the window that holds `second`.
fn judge(calendar: &Calendar, zone: Tz, second: i64) -> Result<(), TestCaseError> {
    let name = calendar.name();
    let window = calendar.at(at(second));
    let seconds = |micros: u64| i64::try_from(micros / SECOND).unwrap();
    let (start, end) = (seconds(window.start), seconds(window.end));
    prop_assert!(start <= second && second < end, "{name:?} at {second}: {window:?}");
    prop_assert_eq!(calendar.of(window.index), window);
    let next = calendar.of(window.index + 1);
    prop_assert_eq!((next.index, next.start), (window.index + 1, window.end));
    prop_assert_eq!(calendar.at(Timestamp(window.end)), next);
    prop_assert_eq!(calendar.at(Timestamp(window.end - 1)), window);
    let length = Span(window.end - window.start);
    prop_assert!(calendar.shortest() <= length && length <= calendar.longest());
    if name.period == Period::Hour {
        let length = end - start;
        prop_assert!((HOUR_S / 2..=HOUR_S * 3 / 2).contains(&length), "{name:?} at {second}: {length}");
        let whole = |second: i64| (offset(zone, second) - offset(zone, second + 3 * HOUR_S)) % HOUR_S == 0;
        if whole(second - 3 * HOUR_S) && whole(second) {
            prop_assert_eq!(length, HOUR_S);
            prop_assert_eq!((start + offset(zone, start)).rem_euclid(HOUR_S), 0);
        }
        return Ok(());
    }
    let (begin, after) = period_of(name.period, name.starts_on, local(zone, second).date());
    let (mut expected, mut until) = (first_of(zone, begin), first_of(zone, after));
    if second >= until {
        // The clock was set back over midnight: the next period has begun.
        let (begin, after) = period_of(name.period, name.starts_on, after);
        (expected, until) = (first_of(zone, begin), first_of(zone, after));
    }
    prop_assert_eq!((start, end), (expected, until), "{:?} at {}", name, second);
    Ok(())
}

/// The seconds from which on a zone's clock is set otherwise, each found by halving a week.
fn changes(zone: Tz, end: i64) -> Vec<i64> {
    let mut found = Vec::new();
    let week = 7 * DAY_S;
    let mut from = FROM;
    while from < end {
        let (mut low, mut high) = (from, (from + week).min(end));
        if offset(zone, low) != offset(zone, high) {
            while high - low > 1 {
                let middle = i64::midpoint(low, high);
                if offset(zone, low) == offset(zone, middle) { low = middle } else { high = middle }
            }
            found.push(high);
        }
        from += week;
    }
    found
}

/// Until when the data sets agree on every period of a zone.
fn until(zone: Tz) -> i64 {
    let changed = CHANGED_SINCE.iter().find(|(name, _)| *name == zone.name());
    changed.map_or(UNTIL, |(_, until)| until - PERIOD_DAYS * DAY_S)
}

#[test]
fn the_zones_that_are_left_out_are_those_that_the_data_sets_differ_in() {
    // Far from the year in which both of them end.
    let end = UNTIL - 40 * DAY_S;
    let differs = |zone: &Tz| {
        let other = TimeZoneDatabase::bundled().get(zone.name()).unwrap();
        let from = jiff::Timestamp::from_second(FROM).unwrap();
        let mut before = i64::from(other.to_offset(from).seconds());
        let mut theirs = Vec::new();
        for change in other.following(from) {
            let (at, after) = (change.timestamp().as_second(), i64::from(change.offset().seconds()));
            if at >= end {
                break;
            }
            if std::mem::replace(&mut before, after) != after {
                theirs.push((at, after));
            }
        }
        let ours: Vec<(i64, i64)> =
            changes(*zone, end).into_iter().map(|at| (at, offset(*zone, at))).collect();
        let early = |changes: &[(i64, i64)]| {
            changes.iter().copied().filter(|(at, _)| *at < until(*zone)).collect::<Vec<_>>()
        };
        assert_eq!(early(&ours), early(&theirs), "{zone}");
        ours != theirs
    };
    let differing: Vec<&str> = TZ_VARIANTS.into_iter().filter(differs).map(|zone| zone.name()).collect();
    assert_eq!(differing, CHANGED_SINCE.map(|(zone, _)| zone));
}

#[test]
fn every_zone_is_known_and_its_days_begin_at_every_change_as_its_clock_says() {
    let mut judged = 0;
    for zone in TZ_VARIANTS {
        let day = calendar(Period::Day, zone.name(), 0);
        let hour = calendar(Period::Hour, zone.name(), 0);
        let week = calendar(Period::Week, zone.name(), 7);
        for (number, change) in changes(zone, until(zone)).into_iter().enumerate() {
            for second in [change - DAY_S, change - 1, change, change + 1, change + DAY_S] {
                judge(&day, zone, second).unwrap();
                if number % 8 == 0 {
                    judge(&hour, zone, second).unwrap();
                    judge(&week, zone, second).unwrap();
                }
                judged += 1;
            }
        }
    }
    assert!(judged > 100_000, "judged {judged}");
}

#[test]
fn every_leap_day_and_every_end_of_a_month_is_its_own() {
    let mut judged = 0;
    for zone in TZ_VARIANTS.into_iter().step_by(7) {
        let months: Vec<Calendar> =
            [28, 29, 30, 31].map(|day| calendar(Period::Month, zone.name(), day)).into();
        for year in (1992..2100).step_by(4) {
            let leap = first_of(zone, clipped(year, 2, 29));
            if leap + 32 * DAY_S > until(zone) {
                continue;
            }
            for days in -32..32 {
                for month in &months {
                    judge(month, zone, leap + days * DAY_S).unwrap();
                    judged += 1;
                }
            }
        }
    }
    assert!(judged > 100_000, "judged {judged}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn a_window_is_what_the_clock_of_its_zone_says(
        zone in proptest::sample::select(TZ_VARIANTS.to_vec()),
        period in proptest::sample::select(vec![
            Period::Hour, Period::Day, Period::Week, Period::Month, Period::Quarter, Period::Year,
        ]),
        day in 1..=31_u8,
        seconds in proptest::collection::vec(FROM..UNTIL, 4),
    ) {
        let most = period.starts_on_max();
        let calendar = calendar(period, zone.name(), if most == 0 { 0 } else { (day - 1) % most + 1 });
        for second in seconds.into_iter().filter(|second| *second < until(zone)) {
            judge(&calendar, zone, second)?;
        }
    }
}

proptest! {
    #[test]
    fn no_instant_and_no_index_is_out_of_reach(at in any::<u64>(), index in any::<u64>()) {
        for period in [Period::Hour, Period::Day] {
            let calendar = calendar(period, "America/St_Johns", 0);
            let window = calendar.at(Timestamp(at));
            prop_assert!(window.start <= at && (at < window.end || window.end == u64::MAX));
            let other = calendar.of(index);
            prop_assert!(other.start <= other.end);
            prop_assert!(calendar.at(Timestamp(0)).index == 0);
        }
    }
}

#[test]
fn days_are_as_long_as_in_the_zone() {
    let berlin = calendar(Period::Day, "Europe/Berlin", 0);
    let hours = |second: i64| {
        let window = berlin.at(at(second));
        (window.end - window.start) / SECOND / 3_600
    };
    // 2026-03-29, 2026-10-25 and a day between.
    assert_eq!([hours(1_774_780_000), hours(1_792_900_000), hours(1_785_000_000)], [23, 25, 24]);
    assert_eq!([berlin.shortest(), berlin.longest()], [23, 25].map(|hours| Span::from_secs(hours * 3_600)));
}

#[test]
fn a_zone_or_a_day_that_there_is_not_is_refused() {
    let new = |period, zone: &str, starts_on| {
        Calendar::new(CalendarName { period, time_zone: zone.to_owned(), starts_on })
    };
    for zone in ["Europe/Atlantis", "", "Etc/Unknown", "../etc/passwd"] {
        assert_eq!(new(Period::Day, zone, 0), Err(NoCalendar::UnknownZone(zone.to_owned())));
    }
    for (period, day) in [(Period::Week, 8), (Period::Week, 0), (Period::Month, 32), (Period::Day, 1)] {
        assert_eq!(new(period, "UTC", day), Err(NoCalendar::StartsOn(period, day)));
    }
    assert_eq!(new(Period::Day, "europe/berlin", 0).unwrap().name().time_zone, "Europe/Berlin");
}

#[test]
fn a_calendar_stays_small() {
    for period in [Period::Hour, Period::Day, Period::Month] {
        let most = u8::from(period.starts_on_max() > 0);
        let calendar = calendar(period, "Africa/Casablanca", most);
        let bytes = calendar.stretches.capacity() * size_of::<Stretch>();
        assert!(bytes < 90_000, "{period:?}: {bytes} bytes");
    }
}
