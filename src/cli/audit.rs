//! `tidegate audit`: single decisions, newest first; and the archive of old ones.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::client::query;
use super::table::table;
use super::usage::text;
use super::{ConfigFile, Ended, Server, say, usage as problems};
use crate::config::{Config, Flags};
use crate::daemon;

/// What became of a request.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Outcome {
    Allowed,
    Denied,
    ShadowDenied,
}

/// Shows single decisions, newest first; moves old months to the archive.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Audit {
    #[command(subcommand)]
    command: Option<AuditCommand>,
    #[command(flatten)]
    filters: Filters,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Moves months that are older than audit.retain to the archive. Daemons do so by themselves; this does
    /// it now.
    Archive(Archive),
}

#[derive(Debug, Args)]
struct Filters {
    /// Of this user.
    #[arg(long)]
    user: Option<String>,
    /// Of this API key, by its public name or its fingerprint.
    #[arg(long)]
    key: Option<String>,
    /// From this address.
    #[arg(long)]
    address: Option<String>,
    /// By this rule.
    #[arg(long)]
    rule: Option<String>,
    /// In this region.
    #[arg(long)]
    region: Option<String>,
    /// With this outcome.
    #[arg(long, value_enum)]
    outcome: Option<Outcome>,
    /// From when on: a moment such as 2026-12-01T00:00:00Z, or how long ago. Default: 24h.
    #[arg(long)]
    from: Option<String>,
    /// Until when.
    #[arg(long)]
    to: Option<String>,
    /// Most rows.
    #[arg(long)]
    limit: Option<u32>,
    /// What an earlier answer ended with, to see what follows.
    #[arg(long)]
    after: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Archive {
    /// Only says which months would go.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    file: ConfigFile,
}

impl Audit {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self.command {
            None => self.filters.show(),
            Some(AuditCommand::Archive(archive)) => archive.run(),
        }
    }
}

impl Filters {
    fn show(self) -> Ended {
        let outcome = self.outcome.and_then(|outcome| outcome.to_possible_value());
        let reply = self.server.get(&query(
            "/v1/audit",
            &[
                ("user", self.user),
                ("key", self.key),
                ("address", self.address),
                ("rule", self.rule),
                ("region", self.region),
                ("outcome", outcome.map(|outcome| outcome.get_name().to_owned())),
                ("from", self.from),
                ("to", self.to),
                ("limit", self.limit.map(|limit| limit.to_string())),
                ("after", self.after),
            ],
        ))?;
        if self.server.json {
            say(reply.text.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        let decisions = reply.json["decisions"].as_array().map_or(&[][..], Vec::as_slice);
        if decisions.is_empty() {
            say("No decisions were recorded for this question.");
            return Ok(ExitCode::SUCCESS);
        }
        let headings =
            ["at", "region", "outcome", "rule", "user", "address", "path", "used", "limit", "status"];
        let mut rows = table(&headings, &[7, 8, 9]);
        for decision in decisions {
            let cell = |name: &str| text(&decision[name]);
            rows.add_row([
                cell("at"),
                cell("region"),
                cell("outcome"),
                cell("rule"),
                who(decision),
                cell("ip"),
                cell("path"),
                cell("count"),
                cell("limit"),
                cell("status"),
            ]);
        }
        say(rows);
        if let Some(next) = reply.json["next"].as_str() {
            say(format_args!("There may be more: add --after {next}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn who(decision: &Value) -> String {
    match (&decision["user"], &decision["api_key"]) {
        (Value::Null, Value::String(key)) => format!("key {key}"),
        (user, _) => text(user),
    }
}

impl Archive {
    fn run(self) -> Ended {
        let config = Config::load(self.file.config.as_deref(), super::environment(), &Flags::default())
            .map_err(problems)?;
        let months = daemon::archive_audit(&config, self.dry_run)?;
        if months.is_empty() {
            say("No month of the audit log is due for the archive.");
            return Ok(ExitCode::SUCCESS);
        }
        let about = if self.dry_run { "about rows" } else { "rows" };
        let mut rows =
            table(&["month", about, "bytes", if self.dry_run { "would go to" } else { "went to" }], &[1, 2]);
        for month in months {
            rows.add_row([month.month, month.rows.to_string(), month.bytes.to_string(), month.location]);
        }
        say(rows);
        Ok(ExitCode::SUCCESS)
    }
}
