//! `tidegate quota`: what each region may spend of a worldwide rule's limit.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::rules::{changed, escape};
use super::table::table;
use super::{Ended, Failure, Server, say};

/// Shows and sets what each region may spend of a rule's limit.
#[derive(Debug, Subcommand)]
pub(super) enum Quota {
    /// Shows a rule's shares: weights, minimums, and what they come to in permits.
    Show {
        /// The rule's name.
        rule: String,
        #[command(flatten)]
        server: Server,
    },
    /// Sets a rule's shares: these regions and no others.
    Set {
        /// The rule's name.
        rule: String,
        /// What each region weighs, as REGION=WEIGHT.
        #[arg(required = true, value_name = "REGION=WEIGHT")]
        shares: Vec<String>,
        /// A part of the limit that a region never has less of, as REGION=PERCENT; may be repeated.
        #[arg(long = "min", value_name = "REGION=PERCENT", num_args = 1..)]
        minimums: Vec<String>,
        /// Why; kept in the history.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        server: Server,
    },
}

impl Quota {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::Show { rule, server } => show(&rule, &server),
            Self::Set { rule, shares, minimums, reason, server } => {
                let body = json!({ "shares": pairs(&shares)?, "minimums": pairs(&minimums)? });
                let reason =
                    if reason.is_empty() { String::new() } else { format!("?reason={}", escape(&reason)) };
                let reply = server.put(&format!("/v1/quotas/{}{reason}", escape(&rule)), &body, None)?;
                changed(&reply, &server)
            }
        }
    }
}

fn pairs(written: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut pairs = Map::new();
    for text in written {
        let number =
            text.split_once('=').and_then(|(region, number)| Some((region, number.parse::<u32>().ok()?)));
        let Some((region, number)) = number.filter(|(region, _)| !region.is_empty()) else {
            return Err(Failure::Usage(format!("{text:?} must be REGION=NUMBER, such as eu-west=40")));
        };
        if pairs.insert(region.to_owned(), json!(number)).is_some() {
            return Err(Failure::Usage(format!("region {region:?} is named twice")));
        }
    }
    Ok(pairs)
}

fn show(rule: &str, server: &Server) -> Ended {
    let reply = server.get(&format!("/v1/quotas/{}", escape(rule)))?;
    if server.json {
        say(reply.text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let of = |table: &str, region: &str| match &reply.json[table][region] {
        Value::Null => String::new(),
        number => number.to_string(),
    };
    let mut rows = table(&["region", "weight", "minimum %", "permits"], &[1, 2, 3]);
    for region in reply.json["shares"].as_object().into_iter().flatten().map(|(region, _)| region) {
        rows.add_row([region.clone(), of("shares", region), of("minimums", region), of("permits", region)]);
    }
    let mode = reply.json["mode"].as_str().unwrap_or_default();
    say(format_args!(
        "{rows}\nLimit {}, mode {mode}, revision {}",
        reply.json["limit"], reply.json["revision"]
    ));
    Ok(ExitCode::SUCCESS)
}
