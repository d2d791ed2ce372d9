//! `tidegate changes`: what operators changed besides rules and quotas.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::client::query;
use super::table::table;
use super::usage::text;
use super::{Ended, Server, say};

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
    #[arg(long, value_name = "ID")]
    before: Option<u64>,
    /// At most so many.
    #[arg(long, default_value_t = 20)]
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
                text(&change["action"]),
                text(&change["target"]),
                text(&change["reason"]),
            ]);
        }
        say(rows);
        Ok(ExitCode::SUCCESS)
    }
}
