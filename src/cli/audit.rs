//! `tidegate audit`: single decisions, newest first; and the archive of old ones.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::client::{Reply, query};
use super::table::{plain, table};
use super::usage::text;
use super::{ConfigFile, Ended, Failure, Server, say, try_say, usage as problems, whole};
use crate::config::{Config, Flags};
use crate::core::denial_cause::DenialCause;
use crate::daemon;
use crate::telemetry::log;

/// The exit code of an archive run beside another one: months may be due, and it did nothing.
const ELSEWHERE: u8 = 6;
/// Time between two looks of `--follow`.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// The time that each look goes back: a daemon may record a decision so much later.
const FOLLOW_BACK: &str = "30s";
/// Most decisions of one look.
const FOLLOW_ROWS: u32 = 1_000;

/// What became of a request.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Outcome {
    /// It passed at once.
    Allowed,
    /// It passed, after the delay of a rule that throttles.
    Throttled,
    /// A limit denied it.
    Denied,
    /// A rule that blocks denied it, or its user is blocked, or its key does not hold.
    Blocked,
    /// It passed, and a rule that only logs would have denied it.
    ShadowDenied,
    /// It passed, and was told to use something else, since a rule had nothing left for it.
    Diverted,
    /// A cost was told afterwards: by the commit of a reservation, less what it had reserved, or by a
    /// report that was denied and is charged all the same.
    Committed,
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
    /// Moves months that are older than audit.retain to the archive, and removes files there that are older
    /// than audit.retain_archive. Daemons do so by themselves; this does it now.
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
    /// With this outcome, or one of several: denied,blocked.
    #[arg(long, value_enum, value_delimiter = ',')]
    outcome: Vec<Outcome>,
    /// Denied for this cause, such as used_up or burnt.
    #[arg(long, value_parser = PossibleValuesParser::new(DenialCause::WORDS))]
    cause: Option<String>,
    /// On the request that its gateway named so (X-Request-Id).
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// From when on: a moment such as 2026-12-01T00:00:00Z, or how long ago. Default: 24h.
    #[arg(long)]
    from: Option<String>,
    /// Until when.
    #[arg(long)]
    to: Option<String>,
    /// Most rows.
    #[arg(long, value_parser = whole::<u32>)]
    limit: Option<u32>,
    /// What an earlier answer ended with, to see what follows.
    #[arg(long)]
    after: Option<String>,
    /// Shows decisions as they are recorded, oldest first, until it is stopped.
    #[arg(long, conflicts_with_all = ["from", "to", "limit", "after"])]
    follow: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
struct Archive {
    /// Only says which months and files would go.
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

/// The part of the log to look at.
struct Part {
    from: Option<String>,
    to: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

impl Filters {
    fn ask(&self, part: Part) -> Result<Reply, Failure> {
        let outcomes = self.outcome.iter().filter_map(|outcome| outcome.to_possible_value());
        let outcomes: Vec<String> = outcomes.map(|outcome| outcome.get_name().to_owned()).collect();
        self.server.get(&query(
            "/v1/audit",
            &[
                ("user", self.user.clone()),
                ("key", self.key.clone()),
                ("address", self.address.clone()),
                ("rule", self.rule.clone()),
                ("region", self.region.clone()),
                ("outcome", Some(outcomes.join(",")).filter(|outcomes| !outcomes.is_empty())),
                ("cause", self.cause.clone()),
                ("request_id", self.request_id.clone()),
                ("from", part.from),
                ("to", part.to),
                ("limit", part.limit.map(|limit| limit.to_string())),
                ("after", part.after),
            ],
        ))
    }

    /// Shows each decision once, soon after it was recorded.
    fn follow(&self) -> Ended {
        // Older decisions are shown without `--follow`.
        let mut shown = Shown::default();
        let mut first = true;
        loop {
            let part =
                Part { from: Some(FOLLOW_BACK.to_owned()), to: None, limit: Some(FOLLOW_ROWS), after: None };
            let reply = self.ask(part)?;
            let decisions = reply.json["decisions"].as_array().map_or(&[][..], Vec::as_slice);
            for decision in shown.new_of(decisions) {
                if first {
                    continue;
                }
                if !(if self.server.json { try_say(decision) } else { try_say(line(decision)) }) {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            if reply.json["next"].is_string() && !first {
                log::say(format_args!(
                    "more than {FOLLOW_ROWS} decisions in {FOLLOW_BACK}: some are not shown; narrow the question"
                ));
            }
            first = false;
            std::thread::sleep(FOLLOW_EVERY);
        }
    }

    fn show(mut self) -> Ended {
        if self.follow {
            return self.follow();
        }
        let part =
            Part { from: self.from.take(), to: self.to.take(), limit: self.limit, after: self.after.take() };
        let reply = self.ask(part)?;
        if self.server.json {
            say(reply.text.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        let decisions = reply.json["decisions"].as_array().map_or(&[][..], Vec::as_slice);
        if decisions.is_empty() {
            say("No decisions were recorded for this question.");
            return Ok(ExitCode::SUCCESS);
        }
        let headings = [
            "at", "region", "outcome", "cause", "rule", "user", "address", "path", "used", "limit", "status",
        ];
        let mut rows = table(&headings, &[8, 9, 10]);
        for decision in decisions {
            let cell = |name: &str| text(&decision[name]);
            rows.add_row([
                cell("at"),
                cell("region"),
                cell("outcome"),
                cell("cause"),
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

/// Decisions that were shown already, of the last [`FOLLOW_BACK`].
#[derive(Debug, Default)]
struct Shown {
    known: HashSet<u64>,
}

impl Shown {
    /// Returns those of the newest decisions that were not shown yet, oldest first. Records that are no
    /// longer among the newest are forgotten.
    fn new_of<'a>(&mut self, newest: &'a [Value]) -> Vec<&'a Value> {
        // Decisions alike to the microsecond are told apart by how many there are.
        let mut alike: HashMap<String, u64> = HashMap::new();
        let mut known = HashSet::with_capacity(newest.len());
        let mut new = Vec::new();
        for decision in newest.iter().rev() {
            let text = decision.to_string();
            let number = alike.entry(text.clone()).or_default();
            *number = number.saturating_add(1);
            let mut hasher = DefaultHasher::new();
            (&text, *number).hash(&mut hasher);
            let name = hasher.finish();
            if !self.known.contains(&name) {
                new.push(decision);
            }
            known.insert(name);
        }
        self.known = known;
        new
    }
}

/// One decision on one line.
fn line(decision: &Value) -> String {
    let cell = |name: &str| text(&decision[name]);
    let used = format!("{}/{}", cell("count"), cell("limit"));
    let cause = decision["cause"].as_str().unwrap_or_default().to_owned();
    let words =
        [cell("at"), cell("region"), cell("outcome"), cause, cell("rule"), who(decision), cell("path"), used];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ")
}

fn who(decision: &Value) -> String {
    match (&decision["user"], &decision["api_key"]) {
        (Value::Null, Value::String(key)) => format!("key {}", plain(key)),
        (user, _) => text(user),
    }
}

impl Archive {
    fn run(self) -> Ended {
        let config = Config::load(self.file.config.as_deref(), super::environment(), &Flags::default())
            .map_err(problems)?;
        let run = match daemon::archive_audit(&config, self.dry_run) {
            Err(error) if daemon::archives_elsewhere(&error) => {
                log::say(format_args!("{error}"));
                return Ok(ExitCode::from(ELSEWHERE));
            }
            run => run?,
        };
        if run.archived.is_empty() {
            say("No month of the audit log is due for the archive.");
        } else {
            let about = if self.dry_run { "about rows" } else { "rows" };
            show_months(run.archived, [about, if self.dry_run { "would go to" } else { "went to" }]);
        }
        if !run.removed.is_empty() {
            let removed = if self.dry_run { "would be removed" } else { "removed" };
            say("\nOlder than audit.retain_archive:");
            show_months(run.removed, ["rows", removed]);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show_months(months: Vec<daemon::Archived>, [rows, location]: [&str; 2]) {
    let mut shown = table(&["month", rows, "bytes", location], &[1, 2]);
    for month in months {
        shown.add_row([month.month, month.rows.to_string(), month.bytes.to_string(), month.location]);
    }
    say(shown);
}
