//! `tidegate regions add`, `drain` and `remove`: which regions share limits, for all daemons at once.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::people::{escape, plain, print};
use crate::cli::{Ended, Failure, Server, say};
use crate::core::region_list::{RegionState, hex};
use crate::core::written::suggestion;
use crate::daemon::operator::OperatorKey;
use crate::daemon::read_span;
use crate::engine::clock::Clock;
use crate::telemetry::log;

/// Time between two looks whether the others hold their new shares.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A change of the regions that share limits. Any daemon may be asked: it tells all others what an operator
/// signed.
#[derive(Debug, Subcommand)]
pub(super) enum Change {
    /// Lists a region, so that it may hold shares.
    Add {
        /// It is meant, although no daemon of it was ever seen: nobody is asked.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        whom: Whom,
    },
    /// Takes a region's shares of all split and escrow rules away, and gives them to the others.
    Drain(Whom),
    /// Takes a drained region, whose daemons were stopped, out of the list.
    Remove {
        /// It was lost with its shares, and its daemons surely run no more: the others take them over.
        #[arg(long)]
        gone: bool,
        #[command(flatten)]
        whom: Whom,
    },
}

/// Which region, and how to change it.
#[derive(Debug, clap::Args)]
pub(super) struct Whom {
    /// Its name.
    region: String,
    /// Why, for the record.
    #[arg(long)]
    reason: Option<String>,
    /// The folder of an operator's certificate (`tidegate cert operator`), to sign the change for all
    /// daemons. Without it only the daemon that is asked takes it.
    #[arg(long, value_name = "DIR", env = "TIDEGATE_OPERATOR")]
    operator: Option<PathBuf>,
    /// Waits at most so long (30s, 5m) until every region holds its new share.
    #[arg(long, value_name = "TIME")]
    wait: Option<String>,
    #[command(flatten)]
    server: Server,
}

impl Change {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::Add { yes, whom } => whom.add(yes),
            Self::Drain(whom) => whom.put("drained"),
            Self::Remove { gone: false, whom } => whom.put("removed"),
            Self::Remove { gone: true, whom } => whom.put("gone"),
        }
    }
}

impl Whom {
    /// Lists it. A name that is mistyped would make all others shrink their shares and wait for it.
    fn add(self, yes: bool) -> Ended {
        if !yes && let Some(doubt) = doubt(&self.server.get("/v1/regions")?.json, &self.region) {
            confirm(&doubt)?;
        }
        self.put("listed")
    }

    fn put(self, state: &str) -> Ended {
        let wait = self.wait.as_deref().map(read_span).transpose().map_err(Failure::Usage)?;
        let mut body = json!({ "state": state });
        if let Some(reason) = &self.reason {
            body["reason"] = json!(reason);
        }
        if let Some(folder) = &self.operator {
            body["signed"] = signed(folder, &self.region, state)?;
        }
        let route = format!("/v1/regions/{}", escape(&self.region));
        let reply = self.server.ask("PUT", &route, Some(&body))?;
        let ended = print(&self.server, &reply, |changed| say(told(changed)))?;
        match wait {
            Some(wait) => self.wait_for_shares(wait.to_std()),
            None => Ok(ended),
        }
    }

    /// Waits until nothing of the shares is being changed any more, as this daemon sees it.
    fn wait_for_shares(&self, most: Duration) -> Ended {
        let mut looks = most.as_millis() / LOOK_INTERVAL.as_millis();
        loop {
            let regions = self.server.get("/v1/regions")?.json;
            let changing = regions["changing"].as_array().cloned().unwrap_or_default();
            if changing.is_empty() {
                if !self.server.json {
                    say("Every region holds its new share.");
                }
                return Ok(ExitCode::SUCCESS);
            }
            if looks == 0 {
                let rules: Vec<String> = changing.iter().map(|rule| plain(&rule["rule"])).collect();
                return Err(Failure::Failed(anyhow::anyhow!(
                    "the new shares of {} are not held everywhere yet: `tidegate regions` says who is waited for",
                    rules.join(", ")
                )));
            }
            looks -= 1;
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// Returns why a region may not be the one that is meant: nobody has heard of it.
fn doubt(regions: &Value, region: &str) -> Option<String> {
    let listed = ["configured", "drained", "removed"].map(|list| regions[list].as_array());
    let listed = listed.into_iter().flatten().flatten();
    let peers = regions["peers"].as_array().into_iter().flatten().map(|peer| &peer["region"]);
    let known: Vec<&str> =
        listed.chain(peers).chain([&regions["region"]]).filter_map(Value::as_str).collect();
    if known.contains(&region) {
        return None;
    }
    let begins_alike = |other: &&str| region.starts_with(*other) || other.starts_with(region);
    let near = suggestion(region, known.iter().copied())
        .or_else(|| known.iter().copied().find(begins_alike))
        .map_or_else(|| ".".to_owned(), |near| format!("; did you mean {near:?}?"));
    Some(format!(
        "no daemon of region {region:?} was ever seen here{near} Once it is listed all others make room, and wait for it"
    ))
}

/// Has somebody say that it is meant.
fn confirm(doubt: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("{doubt}. Say --yes if it is meant.")));
    }
    log::say(format_args!("{doubt}.\nIs it meant? [y/N]"));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(anyhow::Error::from)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Usage("nothing was changed".to_owned())),
    }
}

/// Returns what an operator's key says of a change that is made now.
fn signed(folder: &Path, region: &str, state: &str) -> Result<Value, Failure> {
    let key = OperatorKey::read(folder).map_err(anyhow::Error::from)?;
    let stamp = Clock::System.now().micros();
    let state = RegionState::named(state).unwrap_or(RegionState::Listed);
    let signed = key.sign(region, state, stamp).map_err(anyhow::Error::from)?;
    let (certificate, signature) = (hex(&signed.certificate), hex(&signed.signature));
    Ok(json!({ "stamp": stamp, "certificate": certificate, "signature": signature }))
}

/// The change in words, and the next step.
fn told(changed: &Value) -> String {
    let region = plain(&changed["region"]);
    let names =
        |field: &str| -> Vec<String> { changed[field].as_array().into_iter().flatten().map(plain).collect() };
    let state = plain(&changed["state"]);
    let mut lines = vec![match state.as_str() {
        "listed" => format!("Region {region} is listed: start its daemons, if they do not run yet."),
        "drained" => format!(
            "Region {region} is drained: the others take its shares over. When `tidegate regions` waits for\n\
             nobody, stop its daemons, then `tidegate regions remove {region}`."
        ),
        _ => format!(
            "Region {region} is removed. Take it out of peers.regions and peers.join of every configuration,\n\
             and out of the shares of rules, when it suits you."
        ),
    }];
    if changed["before"] == changed["state"] {
        lines = vec![match changed["signed_by"].as_str() {
            Some(_) => format!(
                "Region {region} was {state} already; it is signed by {} now, for all daemons.",
                plain(&changed["signed_by"])
            ),
            None => format!("Region {region} was {state} already."),
        }];
    }
    let without = names("without_share");
    if !without.is_empty() {
        lines.push(format!(
            "These rules have shares of their own, and give it none: {}. `tidegate quota set` gives it one.",
            without.join(", ")
        ));
    }
    let waiting = names("waiting_for");
    if changed["signed_by"].is_null() {
        lines.push(
            "Nobody signed it, so only this daemon takes it. For all at once sign it with --operator\n\
             (`tidegate cert operator` makes the key); else ask each daemon."
                .to_owned(),
        );
        if !waiting.is_empty() {
            lines.push(format!("Not known to {}.", waiting.join(", ")));
        }
    } else if !waiting.is_empty() {
        lines.push(format!(
            "Not known yet to {}: they hear of it when they can be reached.",
            waiting.join(", ")
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{doubt, told};

    #[test]
    fn a_region_that_nobody_has_heard_of_is_doubted() {
        let regions = json!({
            "region": "eu", "configured": ["ap", "eu"], "drained": [], "removed": ["old"],
            "peers": [{ "region": "sa" }],
        });
        for known in ["ap", "eu", "old", "sa"] {
            assert_eq!(doubt(&regions, known), None);
        }
        for mistyped in ["ap-sooth", "app"] {
            assert!(doubt(&regions, mistyped).unwrap().contains("did you mean \"ap\"?"), "{mistyped}");
        }
        assert!(doubt(&regions, "mars").unwrap().contains("was ever seen here. Once"));
    }

    #[test]
    fn a_signature_of_what_stood_so_already_is_told() {
        let mut changed = json!({ "region": "sa", "before": "listed", "state": "listed", "signed_by": null });
        assert!(told(&changed).starts_with("Region sa was listed already.\n"), "{}", told(&changed));
        changed["signed_by"] = json!("ann");
        let said = "Region sa was listed already; it is signed by ann now, for all daemons.";
        assert_eq!(told(&changed), said);
    }
}
