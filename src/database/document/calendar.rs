//! Reading the windows of a rule: of one length, or of a calendar.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::core::algorithm::{Algorithm, WINDOW_MAX, WINDOW_MIN};
use crate::core::calendar::{Calendar, CalendarName, CalendarPeriod, NoCalendar, Windows};
use crate::core::time::Span;
use crate::core::written::{Fields, Problems};

/// Most calendars that one process works out: each is kept for good, in up to 70 kilobytes.
const CALENDARS_MAX: usize = 1_000;
/// The zone of a calendar that names none.
const ZONE_DEFAULT: &str = "UTC";
/// Longest name of a zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// A calendar's words in rules.
pub(super) const PERIODS: [(&str, CalendarPeriod); 6] = [
    ("hour", CalendarPeriod::Hour),
    ("day", CalendarPeriod::Day),
    ("week", CalendarPeriod::Week),
    ("month", CalendarPeriod::Month),
    ("quarter", CalendarPeriod::Quarter),
    ("year", CalendarPeriod::Year),
];
/// The days of a week, as [`CalendarName::starts_on`] counts them.
pub(super) const WEEKDAYS: [(&str, u8); 7] = [
    ("monday", 1),
    ("tuesday", 2),
    ("wednesday", 3),
    ("thursday", 4),
    ("friday", 5),
    ("saturday", 6),
    ("sunday", 7),
];

/// The calendars that rules have named so far. A rule that is read again counts by the same one, and what
/// decides copies no more than its address.
static KNOWN: LazyLock<Mutex<HashMap<CalendarName, &'static Calendar>>> = LazyLock::new(Mutex::default);

/// Reads `window`, or `calendar` with what belongs to it.
pub(super) fn read_windows(
    fields: &mut Fields<'_>,
    algorithm: Option<Algorithm>,
    problems: &mut Problems<'_>,
) -> Windows {
    let at = fields.take("calendar").map(|entry| entry.node.at.clone());
    let period = fields.word("calendar", &PERIODS, problems);
    let Some(at) = at else {
        for name in ["time_zone", "starts_on"] {
            fields.refuse(
                name,
                &format!("{name} belongs to calendar: write calendar = \"month\" or another"),
                problems,
            );
        }
        let window = fields.span("window", WINDOW_MIN, WINDOW_MAX, problems);
        return window.unwrap_or(Span::from_secs(1)).into();
    };
    let sentence =
        "window does not go with calendar, which says how long its windows are: remove one of them";
    fields.refuse("window", sentence, problems);
    if algorithm.is_some_and(|algorithm| algorithm != Algorithm::FixedWindow) {
        let sentence = "calendar goes with algorithm = \"fixed_window\" alone, which counts each window \
                        from zero: remove algorithm, or write window in the place of calendar";
        problems.report(&at, sentence);
    }
    let time_zone = fields.text("time_zone", ZONE_BYTES_MAX, problems).unwrap_or(ZONE_DEFAULT).to_owned();
    let zone_at = fields.take("time_zone").map_or(at.clone(), |entry| entry.node.at.clone());
    let starts_on = period.and_then(|period| read_starts_on(fields, period, problems));
    let (Some(period), Some(starts_on)) = (period, starts_on) else { return Span::from_secs(1).into() };
    match known(CalendarName { period, time_zone, starts_on }) {
        Ok(calendar) => calendar.into(),
        Err(problem) => {
            problems.report(&zone_at, problem);
            Span::from_secs(1).into()
        }
    }
}

/// On which day a period begins. `None`: what is written cannot be.
fn read_starts_on(
    fields: &mut Fields<'_>,
    period: CalendarPeriod,
    problems: &mut Problems<'_>,
) -> Option<u8> {
    if !fields.has("starts_on") {
        return Some(u8::from(period.starts_on_max() > 0));
    }
    match period {
        CalendarPeriod::Hour | CalendarPeriod::Day => {
            let sentence =
                "starts_on does not go with hours and days: it names a day of a week, or of a month";
            fields.refuse("starts_on", sentence, problems);
            None
        }
        CalendarPeriod::Week => fields.word("starts_on", &WEEKDAYS, problems),
        CalendarPeriod::Month | CalendarPeriod::Quarter | CalendarPeriod::Year => {
            let most = i64::from(period.starts_on_max());
            fields.integer("starts_on", 1, most, problems).and_then(|day| u8::try_from(day).ok())
        }
    }
}

/// The calendar of this name, worked out when it is first asked for.
fn known(name: CalendarName) -> Result<&'static Calendar, String> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(calendar) = known.get(&name) {
        return Ok(calendar);
    }
    if known.len() >= CALENDARS_MAX {
        return Err(format!(
            "this would be more than {CALENDARS_MAX} different calendars since the daemon began: \
             use fewer, or restart it"
        ));
    }
    let calendar = Calendar::new(name.clone()).map_err(|problem: NoCalendar| problem.to_string())?;
    // Several spellings of a zone are one calendar.
    let calendar = match known.get(calendar.name()) {
        Some(calendar) => *calendar,
        None => &*Box::leak(Box::new(calendar)),
    };
    known.insert(calendar.name().clone(), calendar);
    Ok(calendar)
}

#[cfg(test)]
mod tests {
    use crate::core::algorithm::Algorithm;
    use crate::core::time::{Span, Timestamp};
    use crate::database::document::{RuleDoc, from_toml, rule_from_json};

    fn problems(lines: &str) -> Vec<String> {
        let text = format!("[[rules]]\nname = \"r\"\nlimit = 5\n{lines}");
        let told = from_toml("rules.toml", &text, &[]).map(|_| ()).unwrap_err();
        told.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_calendar_is_read_and_shown_as_it_was_written() {
        let written = [
            serde_json::json!({"calendar": "hour", "time_zone": "Asia/Kolkata"}),
            serde_json::json!({"calendar": "day", "time_zone": "UTC"}),
            serde_json::json!({"calendar": "week", "time_zone": "Europe/Berlin", "starts_on": "sunday"}),
            serde_json::json!({"calendar": "month", "time_zone": "Europe/Berlin", "starts_on": 31}),
            serde_json::json!({"calendar": "quarter", "time_zone": "America/New_York"}),
            serde_json::json!({"calendar": "year", "time_zone": "Pacific/Apia", "starts_on": 15}),
        ];
        for fields in written {
            let mut json = serde_json::json!({"name": "r", "limit": 5});
            json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let rule = rule_from_json(&json, &[]).unwrap();
            assert_eq!(rule.algorithm, Algorithm::FixedWindow);
            let shown = serde_json::to_value(RuleDoc::from(&rule)).unwrap();
            for name in ["calendar", "time_zone", "starts_on", "window"] {
                assert_eq!(shown[name], fields[name], "{name} of {shown}");
            }
            let again = rule_from_json(&shown, &[]).unwrap();
            assert_eq!(again, rule);
            assert!(std::ptr::eq(again.calendar.unwrap(), rule.calendar.unwrap()));
        }
    }

    #[test]
    fn a_month_in_berlin_from_the_15th_begins_at_midnight_there() {
        let json = serde_json::json!({
            "name": "r", "limit": 5, "calendar": "month", "time_zone": "europe/berlin", "starts_on": 15
        });
        let windows = rule_from_json(&json, &[]).unwrap().windows();
        // 2026-03-20 12:00 UTC: since the 15th at 00:00 CET, until the 15th of April at 00:00 CEST.
        let index = windows.index(Timestamp(1_774_008_000_000_000));
        assert_eq!(windows.start(index), Timestamp(1_773_529_200_000_000));
        assert_eq!(windows.length_of(index), Span::from_secs(31 * 86_400 - 3_600));
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_the_reason() {
        for (lines, expected) in [
            ("calendar = \"fortnight\"", "calendar must be one of hour, day, week, month, quarter, year"),
            ("calendar = \"day\"\nwindow = \"1d\"", "5:1: window does not go with calendar"),
            (
                "calendar = \"day\"\nalgorithm = \"gcra\"",
                "4:12: calendar goes with algorithm = \"fixed_window\" alone",
            ),
            ("calendar = \"day\"\nalgorithm = \"sliding_window\"", "4:12: calendar goes with"),
            (
                "calendar = \"day\"\ntime_zone = \"Europe/Atlantis\"",
                "5:13: there is no time zone \"Europe/Atlantis\"",
            ),
            ("calendar = \"day\"\nstarts_on = 3", "5:1: starts_on does not go with hours and days"),
            ("calendar = \"week\"\nstarts_on = \"mnday\"", "starts_on must be one of monday"),
            ("calendar = \"month\"\nstarts_on = 32", "starts_on must be"),
            ("window = \"1d\"\ntime_zone = \"UTC\"", "5:1: time_zone belongs to calendar"),
            ("window = \"1d\"\nstarts_on = 1", "5:1: starts_on belongs to calendar"),
            (
                "algorithm = \"concurrency\"\nhold = \"5s\"\ncalendar = \"day\"",
                "6:1: calendar does not go with concurrency",
            ),
        ] {
            let told = problems(lines);
            assert!(told.len() == 1 && told[0].contains(expected), "{lines}: {told:?}");
        }
    }
}
