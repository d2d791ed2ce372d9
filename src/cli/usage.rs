//! `tidegate usage`: sums of decisions, and what a user or key has left.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::client::query;
use super::table::{Rows, plain, span, table};
use super::{Ended, Server, say, whole};
use crate::core::identity::parse_key;

/// How long a step of time is.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    Minute,
    Hour,
    Day,
    Month,
}

/// What each row is the sum of.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Group {
    Time,
    Rule,
    User,
    Key,
    Path,
    Region,
}

/// Shows sums of decisions: by time, rule, user, key, path or region; and what a user or key has left.
#[derive(Debug, Args)]
pub(super) struct Usage {
    /// Of this user; also shows what the user has left.
    #[arg(long)]
    user: Option<String>,
    /// Of this API key, by its public name or its fingerprint; also shows what the key has left.
    #[arg(long, conflicts_with = "user")]
    key: Option<String>,
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
    /// The step of time, in UTC. Default: hour; of keys day, since their sums are kept by day.
    #[arg(long, value_enum)]
    by: Option<By>,
    /// What each row is the sum of.
    #[arg(long, value_enum, default_value = "time")]
    group: Group,
    /// From when on: a moment such as 2026-12-01T00:00:00Z, or how long ago, such as 24h. Default: an hour, a
    /// day, 30 days or a year ago, by the step of time.
    #[arg(long)]
    from: Option<String>,
    /// Until when.
    #[arg(long)]
    to: Option<String>,
    /// Most rows.
    #[arg(long, value_parser = whole::<u32>)]
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
        // The secret part of a key stays here.
        let key = self.key.map(|key| parse_key(&key).map(|shown| shown.id.to_owned()).unwrap_or(key));
        let reply = self.server.get(&query(
            "/v1/usage",
            &[
                ("user", self.user.clone()),
                ("key", key.clone()),
                ("rule", self.rule),
                ("domain", self.domain),
                ("path", self.path),
                ("region", self.region),
                ("by", self.by.map(word)),
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
        if let Some(note) = left_out(&reply.json, &group) {
            say(note);
        }
        if let Some(whose) = self.user.or(key) {
            show_quotas(&reply.json, &whose);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Shows the quotas of the user or key that was asked for; of a key also those of its user.
fn show_quotas(answer: &Value, whose: &str) {
    let quotas = answer["quotas"].as_array().map_or(&[][..], Vec::as_slice);
    let of_owner = |quota: &&Value| answer["owner"].is_string() && quota["identity"]["api_key"].is_null();
    let (theirs, own): (Vec<&Value>, Vec<&Value>) = quotas.iter().partition(of_owner);
    if !own.is_empty() {
        say(format_args!("\nLeft for {whose} now, in this region:"));
        say(quota_table(&own));
    }
    if !theirs.is_empty() {
        let owner = text(&answer["owner"]);
        say(format_args!("\nLeft for {owner}, whose key it is, whichever key asks:"));
        say(quota_table(&theirs));
    }
    if quotas.iter().any(|quota| quota["degraded"] == true) {
        say("\nThe store did not answer: this is only what the daemon knows by itself.");
    }
    if let Some(refused) = answer["refused"].as_str() {
        say(format_args!("\nEvery request of {whose} is refused now, whatever is left: {refused}."));
    }
    if answer["quotas_more"] == true {
        say("More rules apply: name one with --rule, or a domain with --domain.");
    }
}

/// Within 80 columns: domains only where there are several, and moments without their fractions.
fn quota_table(quotas: &[&Value]) -> Rows {
    let domains = quotas.iter().any(|quota| quota["domain"] != "default");
    let worldwide = quotas.iter().any(|quota| quota.get("used_worldwide").is_some());
    let mut headings = vec!["rule", "limit", "used", "left", "until reset", "resets at"];
    let mut right = vec![1, 2, 3, 4];
    if worldwide {
        drop(headings.splice(2..3, ["used here", "worldwide"]));
        right.push(5);
    }
    if domains {
        headings.insert(1, "domain");
        right.iter_mut().for_each(|column| *column += 1);
    }
    let mut shown = table(&headings, &right);
    for quota in quotas {
        let reset = quota["reset_ms"].as_u64().filter(|millis| *millis > 0);
        let mut cells = vec![
            text(&quota["rule"]),
            text(&quota["limit"]),
            text(&quota["used"]),
            text(&quota["remaining"]),
            reset.map_or_else(|| "-".to_owned(), span),
            whole_seconds(&text(&quota["resets_at"])),
        ];
        if worldwide {
            let used = quota.get("used_worldwide");
            let unknown = |used: &Value| if used.is_null() { "-".to_owned() } else { text(used) };
            cells.insert(3, used.map(unknown).unwrap_or_default());
        }
        if domains {
            cells.insert(1, text(&quota["domain"]));
        }
        shown.add_row(cells);
    }
    shown
}

/// A moment without the fraction of its second.
pub(super) fn whole_seconds(moment: &str) -> String {
    match moment.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => moment.to_owned(),
    }
}

fn show_rows(answer: &Value, group: &str) {
    let rows = answer["rows"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.is_empty() {
        say(if answer["allowed_sample"].is_null() {
            "This daemon remembers no decisions: it has no database, or audit is off."
        } else {
            "No decisions were recorded for this question."
        });
        return;
    }
    let name = if group == "time" { "at" } else { group };
    let timed = rows.iter().any(|row| !row["latency_us"].is_null());
    // Few rules delay or block: a column without a number would only make the others narrow.
    let is_told = |count: &&str| rows.iter().any(|row| row[*count].as_u64().is_some_and(|many| many > 0));
    let mut counts = vec!["allowed"];
    counts.extend(Some("throttled").filter(is_told));
    counts.push("denied");
    counts.extend(Some("blocked").filter(is_told));
    let mut headings = vec![name];
    headings.extend(&counts);
    headings.push("permits");
    if timed {
        headings.extend(["p50", "p95", "p99"]);
    }
    let mut shown = table(&headings, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for row in rows {
        let mut cells = vec![text(&row[name])];
        cells.extend(counts.iter().map(|count| text(&row[*count])));
        cells.push(text(&row["cost"]));
        if timed {
            cells.extend(["p50", "p95", "p99"].map(|at| micros(&row["latency_us"][at])));
        }
        shown.add_row(cells);
    }
    say(shown);
}

/// Says what the sums of a group leave out; nothing where there are none.
fn left_out(answer: &Value, group: &str) -> Option<&'static str> {
    // A daemon that remembers nothing has said so.
    let remembers = !answer["allowed_sample"].is_null();
    (remembers && group == "path")
        .then_some("A commit knows no path: permits are those that were asked for or reserved.")
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
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::left_out;

    #[test]
    fn a_list_says_what_it_leaves_out() {
        let answer = json!({ "allowed_sample": 0.01, "rows": [] });
        assert!(left_out(&answer, "path").is_some_and(|note| note.contains("commit")));
        assert_eq!(left_out(&answer, "user"), None);
        assert_eq!(left_out(&json!({ "rows": [] }), "path"), None);
    }
}
