//! `tidegate changes`: what operators changed besides rules and quotas.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::client::query;
use super::table::table;
use super::usage::text;
use super::{Ended, Server, say, whole};

/// Shows what operators changed besides rules, newest first: users, keys, tiers, resets of buckets.
///
/// Changes of rules and quotas are in `tidegate rules history`.
#[derive(Debug, Args)]
pub(super) struct Changes {
    /// Only changes of this, such as a user's id.
    #[arg(long)]
    target: Option<String>,
    /// Only this, such as user.block or bucket.reset.
    #[arg(long)]
    action: Option<String>,
    /// Only those before this one.
    #[arg(long, value_name = "ID", value_parser = whole::<u64>)]
    before: Option<u64>,
    /// At most so many.
    #[arg(long, default_value_t = 20, value_parser = whole::<u32>)]
    limit: u32,
    #[command(flatten)]
    server: Server,
}

impl Changes {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        let before = self.before.map(|id| id.to_string());
        let parameters = [
            ("target", self.target),
            ("action", self.action),
            ("before", before),
            ("limit", Some(self.limit.to_string())),
        ];
        let reply = self.server.get(&query("/v1/changes", &parameters))?;
        if self.server.json {
            say(reply.text.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        let changes = reply.json["changes"].as_array().map_or(&[][..], Vec::as_slice);
        if changes.is_empty() {
            say("No such changes are recorded. Changes of rules and quotas: tidegate rules history");
            return Ok(ExitCode::SUCCESS);
        }
        let mut rows = table(&["id", "at", "who", "from", "what", "of", "why"], &[0]);
        for change in changes {
            let from = match &change["source"] {
                Value::Null => "unix socket".to_owned(),
                address => text(address),
            };
            rows.add_row([
                text(&change["id"]),
                text(&change["at"]).split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned(),
                text(&change["actor"]),
                from,
                done(change),
                text(&change["target"]),
                text(&change["reason"]),
            ]);
        }
        say(rows);
        Ok(ExitCode::SUCCESS)
    }
}

/// The action, and of a region also the state that it was put into, and who signed that.
fn done(change: &Value) -> String {
    let action = text(&change["action"]);
    if change["action"] != "region.put" || !change["after"]["state"].is_string() {
        return action;
    }
    let after = &change["after"];
    let signed = match &after["signed_by"] {
        Value::Null => String::new(),
        operator => format!(", signed by {}", text(operator)),
    };
    format!("{action} {}{signed}", text(&after["state"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::done;

    #[test]
    fn a_change_of_a_region_says_which() {
        let put = |after: serde_json::Value| done(&json!({ "action": "region.put", "after": after }));
        assert_eq!(put(json!({ "state": "drained" })), "region.put drained");
        assert_eq!(put(json!({ "state": "listed", "signed_by": "ann" })), "region.put listed, signed by ann");
        assert_eq!(done(&json!({ "action": "user.block", "after": { "state": "x" } })), "user.block");
    }
}
