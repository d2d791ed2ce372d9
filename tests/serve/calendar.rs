//! Windows of a calendar, as clients see them: by a real daemon whose clock says when.

use serde_json::{Value, json};

use super::support::command::faketime;
use super::support::daemon::{Daemon, Launch};
use super::support::{http, not_judged};

const RULES: &str = r#"
[[rules]]
name = "daily"
match = { path = "/day" }
per = ["user"]
limit = 3
calendar = "day"
time_zone = "Europe/Berlin"

[[rules]]
name = "monthly"
match = { path = "/month" }
limit = 3
calendar = "month"
time_zone = "America/New_York"
starts_on = 31

[[users]]
id = "vip"
overrides = { daily = { limit = 5 } }
"#;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A daemon that begins at this instant, in UTC.
fn daemon_at(clock: &'static str) -> Daemon {
    Daemon::launch(Launch { clock_ahead: Some(clock), ..Launch::default() }, RULES, "", &[])
}

fn number(decision: &Value, name: &str) -> u64 {
    decision["rules"][0][name].as_u64().unwrap_or_else(|| panic!("{name} of {decision}"))
}

/// What is left of a window at its beginning, but for what the test took.
fn about(left: u64, expected: u64) -> bool {
    (expected.saturating_sub(120_000)..=expected).contains(&left)
}

#[test]
fn a_day_on_which_clocks_are_set_and_a_month_from_its_last_day_end_when_they_end_there() {
    if faketime().is_none() {
        not_judged("libfaketime is not installed; tests/run installs it");
        return;
    }
    for (clock, path, window_ms, left) in [
        // 2026-03-29 in Berlin has 23 hours; from 00:30 UTC, which is 01:30 there, 21.5 are left.
        ("@2026-03-29 00:30:00", "/day", 23 * HOUR_MS, 43 * HOUR_MS / 2),
        // 2026-10-25 in Berlin has 25; at 00:30 UTC it is 02:30 for the first time.
        ("@2026-10-25 00:30:00", "/day", 25 * HOUR_MS, 45 * HOUR_MS / 2),
        ("@2026-10-26 00:30:00", "/day", 24 * HOUR_MS, 45 * HOUR_MS / 2),
        // From the 31st of January to the 29th of February of a leap year, at midnight in New York.
        ("@2028-02-28 05:00:00", "/month", 29 * DAY_MS, DAY_MS),
        // From that day on to the 31st of March, an hour of which is skipped.
        ("@2028-03-31 03:00:00", "/month", 31 * DAY_MS - HOUR_MS, HOUR_MS),
    ] {
        let daemon = daemon_at(clock);
        let asked = [("path", path), ("user", "u")];
        let first = daemon.check(&asked);
        assert_eq!(number(&first, "window_ms"), window_ms, "{clock}: {first}");
        assert!(about(number(&first, "reset_ms"), left), "{clock}: {first}");
        assert_eq!(daemon.admitted(&asked, 4), 2);
        let denied = daemon.check(&asked);
        assert!(about(number(&denied, "retry_after_ms"), left), "{clock}: {denied}");
        let headers = [("x-forwarded-uri", path), ("x-tidegate-user", "u")];
        let reply = http::get(daemon.http, "/v1/authorize", &headers);
        let header = |name: &str| reply.header(name).unwrap_or_default().to_owned();
        assert_eq!(reply.status, 429, "{clock}");
        let policy = header("ratelimit-policy");
        assert!(policy.ends_with(&format!(";w={}", window_ms / 1_000)), "{clock}: {policy}");
        let retry: u64 = header("retry-after").parse().unwrap();
        assert!(about(retry * 1_000 - 1_000, left), "{clock}: {retry}");
    }
}

#[test]
fn usage_says_when_a_quota_resets_on_days_on_which_clocks_are_set() {
    if faketime().is_none() {
        not_judged("libfaketime is not installed; tests/run installs it");
        return;
    }
    for (clock, hours, resets) in [
        ("@2026-03-29 00:30:00", 23, "2026-03-29T22:00:00Z"),
        ("@2026-10-25 00:30:00", 25, "2026-10-25T23:00:00Z"),
        ("@2028-02-29 00:30:00", 24, "2028-02-29T23:00:00Z"),
    ] {
        let daemon = daemon_at(clock);
        for used in 0..3 {
            // Without a database there are no sums; what is left is in the buckets.
            let usage = daemon.get("/v1/usage?user=vip").json();
            let quota = &usage["quotas"][0];
            assert_eq!((&usage["rows"], &usage["allowed_sample"]), (&json!([]), &Value::Null), "{usage}");
            assert_eq!((&quota["limit"], &quota["used"]), (&json!(5), &json!(used)), "{clock}: {usage}");
            assert_eq!((&quota["resets_at"], &quota["remaining"]), (&json!(resets), &json!(5 - used)));
            assert_eq!(quota["window_ms"], hours * HOUR_MS, "{clock}: {usage}");
            daemon.check(&[("path", "/day"), ("user", "vip")]);
        }
        let ran = daemon.run(&["usage", "--user", "vip"]);
        assert!(ran.code == 0 && ran.out.contains(resets), "{}", ran.both());
        assert!(ran.out.contains("it has no database"), "{}", ran.both());
    }
    assert_eq!(daemon_at("@2026-03-29 00:30:00").get("/v1/usage").status, 409, "sums alone are refused");
}

#[test]
fn a_new_window_begins_at_midnight_of_the_zone() {
    if faketime().is_none() {
        not_judged("libfaketime is not installed; tests/run installs it");
        return;
    }
    // Midnight in Berlin is 22:00 UTC in summer. A starved machine may miss it, and then nothing is judged.
    let daemon = daemon_at("@2026-07-01 21:59:40");
    let day = [("path", "/day"), ("user", "u")];
    let first = daemon.check(&day);
    if number(&first, "reset_ms") > 20_000 {
        not_judged("the daemon took longer than 20 s to start");
        return;
    }
    assert_eq!(daemon.admitted(&day, 4), 2);
    let left = number(&daemon.check(&day), "retry_after_ms");
    std::thread::sleep(std::time::Duration::from_millis(left + 50));
    let next = daemon.check(&day);
    assert_eq!((next["allowed"].as_bool(), number(&next, "remaining")), (Some(true), 2), "{next}");
    assert!(about(number(&next, "reset_ms"), DAY_MS), "{next}");
    // A user's own limit counts in the rule's windows.
    let own = [("path", "/day"), ("user", "vip")];
    assert!(about(number(&daemon.check(&own), "reset_ms"), DAY_MS));
    assert_eq!(daemon.admitted(&own, 9), 4);
}

#[test]
fn the_command_line_shows_a_calendar_and_refuses_one_that_cannot_be() {
    let daemon = Daemon::with_rules(RULES);
    let shown = daemon.run(&["rules", "list"]).out;
    assert!(shown.contains("3 / month from 31, America/New_York"), "{shown}");
    let file = daemon.folder().join("wrong.toml");
    std::fs::write(&file, RULES.replace("Europe/Berlin", "Europe/Atlantis")).unwrap();
    let refused = daemon.run(&["rules", "validate", file.to_str().unwrap()]);
    assert!(format!("{}{}", refused.out, refused.err).contains("there is no time zone \"Europe/Atlantis\""));
}
