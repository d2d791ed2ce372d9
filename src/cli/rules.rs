//! `tidegate rules`: what is in force, whether a file would be, and changes.

mod change;
mod people;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

pub(super) use change::changed;

use super::server_tls::ServerTls;
use super::table::table;
use super::{Ended, Failure, Server, say, say_prose, usage, whole};
use crate::config::{Config, Flags};
use crate::daemon;

/// Looks at rules and changes them.
#[derive(Debug, Subcommand)]
pub(super) enum Rules {
    /// Lists the rules in force, in the order in which they decide.
    List {
        /// Prints them as a rules file.
        #[arg(long, conflicts_with = "json")]
        toml: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Shows one rule.
    Show {
        /// The rule's name.
        name: String,
        #[command(flatten)]
        server: Server,
    },
    /// Shows how a file differs from the rules in force; changes nothing.
    Diff {
        /// The file.
        file: PathBuf,
        /// Counts rules that the file lacks as removed.
        #[arg(long)]
        prune: bool,
        /// Ends with exit code 5 where the file differs.
        #[arg(long)]
        exit_code: bool,
        #[command(flatten)]
        server: Server,
    },
    /// Makes the rules what a file says, all at once, and shows the difference.
    Apply {
        /// The file.
        file: PathBuf,
        /// Removes rules that the file lacks.
        #[arg(long)]
        prune: bool,
        /// Why; kept in the history.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        server: Server,
    },
    /// Deletes one rule.
    Delete {
        /// The rule's name.
        name: String,
        /// Why; kept in the history.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        server: Server,
    },
    /// Shows who changed what and when, newest first.
    History {
        /// Only what changed this rule.
        name: Option<String>,
        /// At most so many revisions.
        #[arg(long, default_value_t = 20, value_parser = whole::<u32>)]
        limit: u32,
        #[command(flatten)]
        server: Server,
    },
    /// Goes back to the rules of a revision; that is a new revision.
    Rollback {
        /// The revision, as `tidegate rules history` shows it.
        #[arg(value_parser = whole::<u64>)]
        revision: u64,
        /// Why; kept in the history.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        server: Server,
    },
    /// Says whether a rules file is right, or every problem with file:line:column.
    Validate {
        /// The file.
        file: PathBuf,
        /// Checks the regions that it names against those of this daemon, too.
        #[arg(long, value_name = "URL", conflicts_with_all = ["regions", "config"])]
        server: Option<String>,
        /// Checks them against these, which no daemon need be asked for: `eu,us,ap`.
        #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "config")]
        regions: Vec<String>,
        /// Checks them against those of this configuration file.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// What shows the daemon who asks.
        #[arg(long, env = "TIDEGATE_TOKEN", hide_env_values = true)]
        token: Option<String>,
        #[command(flatten)]
        tls: ServerTls,
        /// Prints the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints the rules of another rate limiter as ours, and what cannot be expressed.
    Import {
        /// The one whose files these are: `envoy` is the reference rate limit service, `kong` its declarative
        /// files with `rate-limiting` plug-ins, `limitador` its limits, `nginx` its `limit_req` and
        /// `limit_conn`.
        #[arg(long)]
        from: From,
        /// Its files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

/// Other rate limiters whose files are read.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum From {
    /// The Envoy rate limit service.
    Envoy,
    /// `rate-limiting` and `rate-limiting-advanced` in declarative files of Kong.
    Kong,
    /// Limits of Limitador.
    Limitador,
    /// `limit_req` and `limit_conn` of nginx.
    Nginx,
}

impl Rules {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::List { toml: true, server } => list_as_file(&server),
            Self::List { toml: false, server } => list(&server),
            Self::Show { name, server } => show(&name, &server),
            Self::Diff { file, prune, exit_code, server } => change::diff(&file, prune, exit_code, &server),
            Self::Apply { file, prune, reason, server } => change::apply(&file, prune, &reason, &server),
            Self::Delete { name, reason, server } => change::delete(&name, &reason, &server),
            Self::History { name, limit, server } => change::history(name.as_deref(), limit, &server),
            Self::Rollback { revision, reason, server } => change::rollback(revision, &reason, &server),
            Self::Validate { file, server, regions, config, token, tls, json } => {
                let regions = match (server, config) {
                    (Some(server), _) => Some(Server { server, token, tls, json }.configured_regions()?),
                    (None, Some(config)) => Some(regions_of(&config)?),
                    (None, None) => Some(regions).filter(|regions| !regions.is_empty()),
                };
                validate(&file, regions.as_deref(), json)
            }
            Self::Import { from: From::Envoy, files } => import(daemon::import_envoy(&files)),
            Self::Import { from: From::Kong, files } => import(daemon::import_kong(&files)),
            Self::Import { from: From::Limitador, files } => import(daemon::import_limitador(&files)),
            Self::Import { from: From::Nginx, files } => import(daemon::import_nginx(&files)),
        }
    }
}

/// Prints the rules in force as `rules apply` reads them.
fn list_as_file(server: &Server) -> Ended {
    let reply = server.get("/v1/rules")?;
    let (tiers, users, keys) = people::written(server)?;
    if keys > 0 {
        say(format_args!(
            "# Without the API keys of this daemon ({keys}): it tells their hashes to nobody. `tidegate keys list` shows them."
        ));
    }
    say(file_of(&reply.json, tiers, users)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// The rules file that says what a daemon answered.
fn file_of(answer: &Value, tiers: Vec<Value>, users: Vec<Value>) -> Result<String, Failure> {
    let rules = answer["rules"].as_array().into_iter().flatten().map(without_nulls).collect::<Vec<_>>();
    let mut file = serde_json::json!({ "rules": rules });
    for (list, entries) in [("tiers", tiers), ("users", users)] {
        if !entries.is_empty() {
            file[list] = entries.into();
        }
    }
    let text = toml::to_string(&file);
    text.map_err(|error| Failure::Failed(anyhow::anyhow!("the rules cannot be written as TOML: {error}")))
}

/// The same without what has no value, which TOML cannot say.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, field)| !field.is_null())
            .map(|(name, field)| (name.clone(), without_nulls(field)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

fn list(server: &Server) -> Ended {
    let reply = server.get("/v1/rules")?;
    if server.json {
        say(reply.text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let rules = reply.json["rules"].as_array().map_or(&[][..], Vec::as_slice);
    if rules.is_empty() {
        let source = server.get("/readyz").map(|ready| ready.json["rules"]["source"].clone());
        let remedy = match source.as_ref().map(Value::as_str) {
            Ok(Some("postgres")) => {
                "Send some with `tidegate rules apply rules.toml`: every daemon of the database gets them."
            }
            Ok(Some("file")) => {
                "Write some into this daemon's rules file (rules.file or --rules), which it reads again by itself."
            }
            _ => "Give the daemon some: `tidegate serve --rules rules.toml`.",
        };
        say(format_args!("No rules are in force: everything passes. {remedy}"));
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["rule", "domain", "match", "per", "limit", "how", "group", "priority", "action"];
    let mut rows = table(&headings, &[4, 7]).usual(&[(1, "default"), (7, "100"), (8, "reject")]);
    for rule in rules {
        let limit = match (&rule["limit"], windows(rule).as_deref(), rule["hold"].as_str()) {
            (Value::Number(limit), Some(window), _) => {
                let unit = rule["unit"].as_str().map(|unit| format!(" {unit}")).unwrap_or_default();
                format!("{limit}{unit} / {window}")
            }
            (Value::Number(limit), None, Some(hold)) => format!("{limit} at once, held {hold}"),
            _ => String::new(),
        };
        let how = [rule["algorithm"].as_str(), rule.pointer("/global/mode").and_then(Value::as_str)];
        let action = if rule["enabled"].as_bool() == Some(false) {
            "off"
        } else {
            rule["action"].as_str().unwrap_or("reject")
        };
        rows.add_row([
            plain(&rule["name"]),
            rule["domain"].as_str().unwrap_or("default").to_owned(),
            conditions(&rule["match"]),
            rule["per"].as_array().into_iter().flatten().map(plain).collect::<Vec<_>>().join(", "),
            limit,
            how.into_iter().flatten().collect::<Vec<_>>().join(", "),
            plain(&rule["group"]),
            rule["priority"].as_i64().unwrap_or(100).to_string(),
            action.to_owned(),
        ]);
    }
    say(format_args!("{rows}\nRevision {}", reply.json["revision"]));
    Ok(ExitCode::SUCCESS)
}

fn conditions(conditions: &Value) -> String {
    let each = conditions.as_object().into_iter().flatten().map(|(name, value)| match value {
        Value::Array(any) => format!("{name}={}", any.iter().map(plain).collect::<Vec<_>>().join("|")),
        one => format!("{name}={}", plain(one)),
    });
    each.collect::<Vec<_>>().join(" ")
}

fn show(name: &str, server: &Server) -> Ended {
    let reply = server.get(&format!("/v1/rules/{}", escape(name)))?;
    if server.json {
        say(reply.text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let rule = if reply.json["rule"].is_object() { &reply.json["rule"] } else { &reply.json };
    let mut rows = table(&["field", "value"], &[]);
    for (field, value) in rule.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        rows.add_row([field.clone(), plain(value)]);
    }
    say(rows);
    Ok(ExitCode::SUCCESS)
}

/// The rules go to standard output, what they lack to standard error; it ends as failed where they lack
/// something.
fn import(read: Result<daemon::Foreign, Vec<String>>) -> Ended {
    let foreign = read.map_err(|problems| Failure::Usage(problems.join("\n")))?;
    for note in &foreign.notes {
        say(format_args!("# {note}"));
    }
    say(foreign.toml.trim_end());
    if foreign.inexact.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let many = foreign.inexact.len();
    Err(Failure::Failed(anyhow::anyhow!(
        "not expressed, or not exactly: {many}\n{}",
        foreign.inexact.join("\n")
    )))
}

fn regions_of(config: &std::path::Path) -> Result<Vec<String>, Failure> {
    let config = Config::load(Some(config), super::environment(), &Flags::default()).map_err(usage)?;
    daemon::regions_of(&config).map_err(Failure::Usage)
}

fn validate(file: &std::path::Path, regions: Option<&[String]>, json: bool) -> Ended {
    let checked = match regions {
        Some(regions) => daemon::check_rules(file, regions),
        None => daemon::check_rules_alone(file),
    };
    match checked {
        Ok(checked) => {
            let (count, warnings) = (checked.rules.len(), checked.warnings);
            let others = [("tiers", checked.tiers), ("users", checked.users), ("keys", checked.keys)];
            let others = others.iter().filter(|(_, many)| *many > 0);
            if json {
                let problems: [&str; 0] = [];
                let mut said = serde_json::json!({
                    "valid": true, "rules": count, "problems": problems, "warnings": warnings
                });
                others.for_each(|(list, many)| said[*list] = (*many).into());
                say(said);
            } else {
                for warning in &warnings {
                    say_prose(format_args!("warning: {warning}"));
                }
                let sum = if warnings.is_empty() { "all right" } else { "valid" };
                let others: String = others.map(|(list, many)| format!(", {list}: {many}")).collect();
                say(format_args!("{}: {sum}, rules: {count}{others}", file.display()));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) if json => {
            say(serde_json::json!({ "valid": false, "problems": problems }));
            Ok(ExitCode::from(2))
        }
        Err(problems) => Err(Failure::Usage(problems.join("\n"))),
    }
}

/// A name as a segment of a path.
pub(super) fn escape(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns what a rule's limit is counted in: `1m`, or `month from 15, Europe/Berlin`.
fn windows(rule: &Value) -> Option<String> {
    let Some(calendar) = rule["calendar"].as_str() else { return rule["window"].as_str().map(str::to_owned) };
    let from = match &rule["starts_on"] {
        Value::Null => String::new(),
        day => format!(" from {}", plain(day)),
    };
    Some(format!("{calendar}{from}, {}", rule["time_zone"].as_str().unwrap_or("UTC")))
}
