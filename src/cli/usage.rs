//! `tidegate usage`: sums of decisions, and what a user has left.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::client::query;
use super::table::{span, table};
use super::{Ended, Server, say};

/// How long a step of time is.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    Minute,
    Hour,
    Day,
}

/// What each row is the sum of.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Group {
    Time,
    Rule,
    User,
    Path,
    Region,
}

/// Shows sums of decisions: by time, rule, user, path or region; and what a user has left.
///
/// Top violators of a rule today: tidegate usage --rule NAME --group user --by day --from 0d
#[derive(Debug, Args)]
pub(super) struct Usage {
    /// Of this user; also shows what the user has left.
    #[arg(long)]
    user: Option<String>,
    /// Of this rule.
    #[arg(long)]
    rule: Option<String>,
    /// What is left by rules of this domain alone.
    #[arg(long)]
    domain: Option<String>,
    /// Of this path.
    #[arg(long)]
    path: Option<String>,
    /// In this region.
    #[arg(long)]
    region: Option<String>,
    /// The step of time.
    #[arg(long, value_enum, default_value = "hour")]
    by: By,
    /// What each row is the sum of.
    #[arg(long, value_enum, default_value = "time")]
    group: Group,
    /// From when on: a moment such as 2026-12-01T00:00:00Z, or how long ago, such as 24h. Default: an hour, a
    /// day or 30 days ago, by the step of time.
    #[arg(long)]
    from: Option<String>,
    /// Until when.
    #[arg(long)]
    to: Option<String>,
    /// Most rows.
    #[arg(long)]
    limit: Option<u32>,
    #[command(flatten)]
    server: Server,
}

fn word<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Usage {
    /// Shows what `GET /v1/usage` says.
    pub(super) fn run(self) -> Ended {
        let group = word(self.group);
        let reply = self.server.get(&query(
            "/v1/usage",
            &[
                ("user", self.user.clone()),
                ("rule", self.rule),
                ("domain", self.domain),
                ("path", self.path),
                ("region", self.region),
                ("by", Some(word(self.by))),
                ("group", Some(group.clone())),
                ("from", self.from),
                ("to", self.to),
                ("limit", self.limit.map(|limit| limit.to_string())),
            ],
        ))?;
        if self.server.json {
            say(reply.text.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        show_rows(&reply.json, &group);
        if let Some(quotas) = reply.json["quotas"].as_array().filter(|quotas| !quotas.is_empty()) {
            say(format_args!("\nLeft for {} now, in this region:", self.user.unwrap_or_default()));
            let mut rows = table(&["rule", "domain", "limit", "used", "left", "until reset"], &[2, 3, 4, 5]);
            for quota in quotas {
                let reset = quota["reset_ms"].as_u64().unwrap_or(0);
                rows.add_row([
                    text(&quota["rule"]),
                    text(&quota["domain"]),
                    text(&quota["limit"]),
                    text(&quota["used"]),
                    text(&quota["remaining"]),
                    span(reset),
                ]);
            }
            say(rows);
            if reply.json["quotas_more"] == true {
                say("More rules apply: name one with --rule, or a domain with --domain.");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show_rows(answer: &Value, group: &str) {
    let rows = answer["rows"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.is_empty() {
        say("No decisions were recorded for this question.");
        return;
    }
    let name = if group == "time" { "at" } else { group };
    let timed = rows.iter().any(|row| !row["latency_us"].is_null());
    let mut headings = vec![name, "allowed", "denied", "permits"];
    if timed {
        headings.extend(["p50", "p95", "p99"]);
    }
    let mut shown = table(&headings, &[1, 2, 3, 4, 5, 6]);
    for row in rows {
        let mut cells =
            vec![text(&row[name]), text(&row["allowed"]), text(&row["denied"]), text(&row["cost"])];
        if timed {
            cells.extend(["p50", "p95", "p99"].map(|at| micros(&row["latency_us"][at])));
        }
        shown.add_row(cells);
    }
    say(shown);
}

fn micros(value: &Value) -> String {
    match value.as_u64() {
        None => "-".to_owned(),
        Some(micros @ 0..10_000) => format!("{micros} µs"),
        Some(micros) => format!("{} ms", micros / 1_000),
    }
}

/// A value as a cell says it.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
