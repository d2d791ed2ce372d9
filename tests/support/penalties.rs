//! A rule with a penalty, and what tests ask of it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use serde_json::Value;

use super::daemon::Daemon;

/// A rule that begins a penalty with the second denial. Its own limit is not used up by that.
pub(crate) fn rules(cool_down: &str, multipliers: &str) -> String {
    format!(
        "[[rules]]\nname = \"polite\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 100\n\
         window = \"365d\"\n[rules.penalty]\nthreshold = 2\nwindow = \"1h\"\ncool_down = \"{cool_down}\"\n\
         multipliers = {multipliers}\n"
    )
}

/// Asks for more than the rule ever admits.
pub(crate) fn deny(daemon: &Daemon, user: &str) -> Value {
    let denied = daemon.check_cost(&[("user", user)], 1_000);
    assert_eq!(denied["allowed"], false, "{denied}");
    denied
}

/// What a decision says of the penalty of its first rule.
pub(crate) fn penalty(decision: &Value) -> &Value {
    &decision["rules"][0]["penalty"]
}

/// The sum of a metric over its labels.
pub(crate) fn metric(daemon: &Daemon, name: &str) -> f64 {
    let text = daemon.metrics();
    let prefix = format!("tidegate_{name}{{");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&prefix)).collect();
    assert!(!lines.is_empty(), "no {name} in\n{text}");
    lines.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
