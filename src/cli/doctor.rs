//! `tidegate doctor`: looks at the configuration of this machine and at a daemon that runs, and says what to
//! mend.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::{ConfigFile, Ended, Failure, Server, say, say_prose};
use crate::config::{Config, Flags, Source};
use crate::core::time::Timestamp;
use crate::daemon::{self, certificate};
use crate::engine::clock::Clock;

/// So long before a certificate ends it is worth a word, in seconds.
const SOON_SECONDS: i64 = 30 * 24 * 3_600;

/// Looks at the configuration and at a daemon that runs, and says what to mend. Exit code 1 where something
/// does not work; changes nothing.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    server: Server,
}

/// The state of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Fine,
    Attention,
    Broken,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Attention => "attention",
            Self::Broken => "broken",
        }
    }
}

/// The things that were looked at, each with a sentence.
#[derive(Debug, Default)]
struct Findings(Vec<(Verdict, &'static str, String)>);

impl Findings {
    fn add(&mut self, verdict: Verdict, what: &'static str, text: impl Into<String>) {
        self.0.push((verdict, what, text.into()));
    }

    fn worst(&self) -> Verdict {
        self.0.iter().map(|(verdict, ..)| *verdict).max().unwrap_or(Verdict::Fine)
    }

    fn as_json(&self) -> Value {
        let each = self.0.iter().map(|(verdict, what, text)| {
            serde_json::json!({ "verdict": verdict.word(), "about": what, "text": text })
        });
        serde_json::json!({ "verdict": self.worst().word(), "findings": each.collect::<Vec<_>>() })
    }

    fn told(&self) -> String {
        let line = |(verdict, what, text): &(Verdict, &str, String)| {
            format!("{:<10}{what:<15}{}", verdict.word(), text.replace('\n', "\n                         "))
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Doctor {
    /// Looks.
    pub(super) fn run(&self) -> Ended {
        let mut findings = Findings::default();
        match Config::load(self.file.config.as_deref(), super::environment(), &Flags::default()) {
            Ok(config) => configured(&config, Clock::System.now(), &mut findings),
            Err(problems) => {
                let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
                findings.add(Verdict::Broken, "configuration", lines.join("\n"));
            }
        }
        self.running(&mut findings);
        let worst = findings.worst();
        if self.server.json {
            say(findings.as_json());
        } else {
            say_prose(findings.told());
        }
        Ok(if worst == Verdict::Broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Looks at the daemon at `--server`.
    fn running(&self, findings: &mut Findings) {
        let ready = match self.server.get("/readyz") {
            Ok(ready) => ready.json,
            Err(Failure::Unreached(why)) => {
                findings.add(Verdict::Broken, "daemon", why);
                return;
            }
            Err(Failure::Failed(error) | Failure::Unfetched(error)) => {
                findings.add(Verdict::Broken, "daemon", format!("{error:#}"));
                return;
            }
            Err(Failure::Usage(why)) => {
                findings.add(Verdict::Broken, "daemon", why);
                return;
            }
        };
        self.readiness(&ready, findings);
        match self.server.get("/v1/regions") {
            Ok(regions) => servers(&regions.json, findings),
            Err(Failure::Failed(error) | Failure::Unfetched(error)) => {
                let text = format!("its servers and peers are not shown: {error:#}; give --token");
                findings.add(Verdict::Attention, "daemon", text);
            }
            Err(Failure::Unreached(why) | Failure::Usage(why)) => {
                findings.add(Verdict::Broken, "daemon", why);
            }
        }
    }

    fn readiness(&self, ready: &Value, findings: &mut Findings) {
        let (server, state) = (&self.server.server, ready["state"].as_str().unwrap_or("unknown"));
        let text = format!("{server} is {state}, with revision {} of the rules", ready["revision"]);
        let serves = ready["ready"].as_bool() == Some(true);
        findings.add(if serves { Verdict::Fine } else { Verdict::Broken }, "daemon", text);
        match ready["store"].as_str() {
            Some("ok") => findings.add(Verdict::Fine, "store", "it answers"),
            Some("down") => findings.add(Verdict::Broken, "store", "it does not answer"),
            _ => findings.add(Verdict::Attention, "store", "some of it does not answer"),
        }
        rules_of_daemon(&ready["rules"], findings);
        for (list, what) in [
            ("store_problems", "store"),
            ("warnings", "rules"),
            ("notices", "cluster"),
            ("tasks_missing", "tasks"),
        ] {
            for text in ready[list].as_array().into_iter().flatten().filter_map(Value::as_str) {
                findings.add(Verdict::Attention, what, text);
            }
        }
    }
}

/// Tells where a daemon's rules are not those that an operator gave it, or are not kept.
fn rules_of_daemon(rules: &Value, findings: &mut Findings) {
    let source = match rules["source"].as_str() {
        Some("postgres") => "PostgreSQL",
        Some("file") => "the rules file",
        _ => "the source of its rules",
    };
    let problem = rules["problem"].as_str();
    let refused = rules["refused_revision"].as_u64();
    match (rules["reachable"].as_bool(), problem, refused) {
        (Some(false), why, _) => {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            findings.add(Verdict::Broken, "rules", format!("{source} is away{why}"));
        }
        (_, Some(why), Some(revision)) => {
            let text = format!("the daemon refuses the newest ones, revision {revision}: {why}");
            findings.add(Verdict::Broken, "rules", text);
        }
        (_, Some(why), None) => findings.add(Verdict::Broken, "rules", why),
        (_, None, _) => {}
    }
    if let Some(why) = rules["unsaved"].as_str() {
        let text = format!(
            "those in force are not saved on the daemon's machine, so that it could not start with them \
             while {source} is away: {why}"
        );
        findings.add(Verdict::Broken, "rules", text);
    }
}

/// Tells of the store's servers, and of the peers that are linked.
fn servers(regions: &Value, findings: &mut Findings) {
    for server in regions.pointer("/store/servers").and_then(Value::as_array).into_iter().flatten() {
        let address = server["address"].as_str().unwrap_or("a server");
        for field in ["error", "warning"] {
            if let Some(text) = server[field].as_str() {
                findings.add(Verdict::Attention, "store", format!("{address}: {text}"));
            }
        }
    }
    let peers = regions["peers"].as_array().map_or(&[][..], Vec::as_slice);
    if !peers.is_empty() {
        let linked = peers.iter().filter(|peer| peer["connected"].as_bool() == Some(true)).count();
        let verdict = if linked == peers.len() { Verdict::Fine } else { Verdict::Attention };
        findings.add(verdict, "peers", format!("{linked} of {} are linked", peers.len()));
    }
}

/// Looks at the files that the configuration names.
fn configured(config: &Config, now: Timestamp, findings: &mut Findings) {
    findings.add(Verdict::Fine, "configuration", format!("region {}, node {}", config.region, config.node));
    match daemon::rules_of(config) {
        Ok(_) if config.rules.source == Source::Postgres => {
            findings.add(Verdict::Fine, "rules", "they are in PostgreSQL");
        }
        Ok(rules) if rules.is_empty() => {
            let text = "this configuration has none: a daemon with it lets everything pass";
            findings.add(Verdict::Attention, "rules", text);
        }
        Ok(rules) => findings.add(Verdict::Fine, "rules", format!("{} are valid", rules.len())),
        Err(problems) => findings.add(Verdict::Broken, "rules", problems.join("\n")),
    }
    let mut certificates: Vec<&Path> = Vec::new();
    for tls in
        [&config.listen.http_tls, &config.listen.grpc_tls, &config.listen.resp_tls].into_iter().flatten()
    {
        certificates.push(&tls.cert);
    }
    if let Some(tls) = &config.peers.tls {
        certificates.extend([tls.ca.as_path(), tls.cert.as_path()]);
    }
    for path in certificates {
        certificate_of(path, now, findings);
    }
    // Each by itself may be right, and a daemon refuse them together.
    let refused = daemon::check_files(config, now);
    for problem in refused.wrong.into_iter().chain(refused.missing) {
        findings.add(Verdict::Broken, problem.about, problem.text);
    }
    let listeners =
        [&config.listen.http_tls, &config.listen.grpc_tls, &config.listen.resp_tls].into_iter().flatten();
    let lists = listeners.filter_map(|tls| tls.revoked.as_deref());
    for path in lists.chain(config.peers.tls.as_ref().and_then(|tls| tls.revoked.as_deref())) {
        revoked_in(path, now, findings);
    }
}

/// A list of revoked certificates.
fn revoked_in(path: &Path, now: Timestamp, findings: &mut Findings) {
    let file = path.display();
    match certificate::read_lists(path, now) {
        Err(why) => findings.add(Verdict::Broken, "revoked", format!("{file}: {why}")),
        Ok(lists) if lists.overdue => {
            let text =
                format!("{file} revokes {}, and a newer list was to follow it by now", lists.certificates);
            findings.add(Verdict::Attention, "revoked", text);
        }
        Ok(lists) => findings.add(Verdict::Fine, "revoked", format!("{file} revokes {}", lists.certificates)),
    }
}

fn certificate_of(path: &Path, now: Timestamp, findings: &mut Findings) {
    let file = path.display();
    let ends = std::fs::read(path).map_err(|error| error.to_string());
    let ends = ends.and_then(|pem| certificate::ends(&pem).map_err(|error| error.to_string()));
    match ends {
        Err(why) => findings.add(Verdict::Broken, "certificate", format!("{file}: {why}")),
        Ok(ends) => {
            let left = ends.saturating_sub(i64::try_from(now.micros() / 1_000_000).unwrap_or(i64::MAX));
            let day = certificate::date(ends);
            let (verdict, verb) = match left {
                ..=0 => (Verdict::Broken, "ended on"),
                1..SOON_SECONDS => (Verdict::Attention, "ends on"),
                _ => (Verdict::Fine, "ends on"),
            };
            findings.add(verdict, "certificate", format!("{file} {verb} {day}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_of(rules: &Value) -> (Verdict, String) {
        let mut findings = Findings::default();
        rules_of_daemon(rules, &mut findings);
        (findings.worst(), findings.told())
    }

    #[test]
    fn rules_that_are_refused_not_saved_or_out_of_reach_are_broken() {
        let well = serde_json::json!({ "source": "file", "from": "file", "reachable": true });
        assert_eq!(told_of(&well), (Verdict::Fine, String::new()));
        for (field, value, said) in [
            ("problem", Value::from("rules.toml:3: no such key"), "no such key"),
            ("unsaved", Value::from("disk full"), "disk full"),
            ("reachable", Value::from(false), "the rules file is away"),
        ] {
            let mut ill = well.clone();
            ill[field] = value;
            let (verdict, told) = told_of(&ill);
            assert!(verdict == Verdict::Broken && told.contains(said), "{told}");
        }
    }

    #[test]
    fn the_worst_finding_is_the_verdict() {
        let mut findings = Findings::default();
        assert_eq!(findings.worst(), Verdict::Fine);
        findings.add(Verdict::Fine, "store", "it answers");
        findings.add(Verdict::Attention, "rules", "there are none");
        assert_eq!(findings.as_json()["verdict"], "attention");
        findings.add(Verdict::Broken, "configuration", "one\ntwo");
        assert_eq!(findings.worst(), Verdict::Broken);
        assert!(findings.told().ends_with("broken    configuration  one\n                         two"));
    }
}
