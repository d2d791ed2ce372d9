//! The common part of the commands of users, keys and tiers.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::client::Reply;
use super::table::{self, table};
use super::usage::whole_seconds;
use super::{Ended, Failure, Server, say};

/// Limits of somebody's own.
#[derive(Debug, Args)]
pub(super) struct OwnLimits {
    /// A limit of its own for a rule, as RULE=LIMIT or RULE=LIMIT/BURST; an empty LIMIT takes it away. May be
    /// repeated.
    #[arg(long = "limit", value_name = "RULE=LIMIT")]
    limits: Vec<String>,
}

/// A block.
#[derive(Debug, Args)]
pub(super) struct BlockTerms {
    /// Told to the user, and recorded.
    #[arg(long)]
    reason: Option<String>,
    /// Its end: 2026-12-01T00:00:00Z, or a length of time such as 24h. Without it, until it is lifted.
    #[arg(long, visible_alias = "for")]
    until: Option<String>,
}

impl BlockTerms {
    /// The body of the request.
    pub(super) fn body(self) -> Value {
        let mut body = Map::new();
        for (field, value) in [("reason", self.reason), ("until", self.until)] {
            value.map(|value| body.insert(field.to_owned(), value.into()));
        }
        body.into()
    }
}

impl OwnLimits {
    /// A body with these limits, for somebody new.
    pub(super) fn fresh(&self) -> Result<Map<String, Value>, Failure> {
        self.over(Map::new())
    }

    /// A body with these limits over those that `route` has now.
    pub(super) fn body(
        &self,
        server: &Server,
        route: &str,
        what: &str,
    ) -> Result<Map<String, Value>, Failure> {
        if self.limits.is_empty() {
            return Ok(Map::new());
        }
        let now = match server.ask("GET", route, None) {
            Ok(reply) => reply.json[what]["overrides"].as_object().cloned().unwrap_or_default(),
            // A user who is not there yet has no limits.
            Err(Failure::Failed(error)) if error.to_string().contains("404") => Map::new(),
            Err(failure) => return Err(failure),
        };
        self.over(now)
    }

    fn over(&self, mut limits: Map<String, Value>) -> Result<Map<String, Value>, Failure> {
        for text in &self.limits {
            let wrong =
                || Failure::Usage(format!("`{text}` is no limit: write RULE=LIMIT, as in search-free=500"));
            let (rule, limit) = text.rsplit_once('=').ok_or_else(wrong)?;
            if limit.is_empty() {
                limits.remove(rule);
                continue;
            }
            let (limit, burst) =
                limit.split_once('/').map_or((limit, None), |(limit, burst)| (limit, Some(burst)));
            let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
            let mut own = json!({ "limit": number(limit)? });
            if let Some(burst) = burst {
                own["burst"] = number(burst)?.into();
            }
            limits.insert(rule.to_owned(), own);
        }
        let mut body = Map::new();
        if !self.limits.is_empty() {
            body.insert("overrides".to_owned(), limits.into());
        }
        Ok(body)
    }
}

/// Prints an answer: as it came, or for people.
pub(super) fn print(server: &Server, reply: &Reply, show: impl FnOnce(&Value)) -> Ended {
    if server.json {
        say(reply.text.trim_end());
    } else {
        show(&reply.json);
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks for one, or changes it, and shows what it is then.
pub(super) fn one(
    server: &Server,
    method: &str,
    route: &str,
    body: Option<Value>,
    show: impl FnOnce(&Value),
) -> Ended {
    let reply = server.ask(method, route, body.as_ref())?;
    print(server, &reply, show)
}

/// Removes one.
pub(super) fn removed(server: &Server, route: &str) -> Ended {
    let reply = server.ask("DELETE", route, None)?;
    print(server, &reply, |json| say(format_args!("removed {}", plain(&json["removed"]))))
}

/// A table of names and values; what is empty is left out.
pub(super) fn show_fields(fields: &Map<String, Value>) {
    let mut rows = table(&["field", "value"], &[]);
    for (field, value) in fields {
        let text = plain(value);
        if !text.is_empty() {
            rows.add_row([field.clone(), text]);
        }
    }
    say(rows);
}

/// Says that there is another page.
pub(super) fn more(json: &Value) {
    if let Some(next) = json["next"].as_str() {
        say(format_args!("\nThere may be more: --after {next}"));
    }
}

/// Limits of somebody's own in one line.
pub(super) fn overrides(overrides: &Value) -> String {
    let each = overrides.as_object().into_iter().flatten().map(|(rule, own)| {
        let burst = if own["burst"] == own["limit"] { String::new() } else { format!("/{}", own["burst"]) };
        format!("{rule}={}{burst}", own["limit"])
    });
    each.collect::<Vec<_>>().join(" ")
}

/// A query of the pairs that are there.
pub(super) fn query(pairs: &[(&str, Option<String>)]) -> String {
    let given =
        pairs.iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(value.as_deref()?))));
    let given: Vec<_> = given.collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

/// A name as a segment of a path, or a value of a query.
pub(super) fn escape(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// When somebody was last seen, which is known to the minute.
pub(super) fn last_seen(record: &Value) -> String {
    record["last_seen_at"].as_str().map_or_else(|| "-".to_owned(), whole_seconds)
}

/// A value as people read it.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => table::plain(text),
        other => other.to_string(),
    }
}
