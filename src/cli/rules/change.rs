//! `tidegate rules diff|apply|delete|history|rollback`: what a change would do, and doing it.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::escape;
use super::people::{self, EntryChange};
use crate::cli::client::Reply;
use crate::cli::table::table;
use crate::cli::{Ended, Failure, Server, say};
use crate::daemon;
use crate::engine::difference::differences;

/// Most fields of one change in a line of the history.
const DIFFERENCES_TOLD: usize = 3;

/// The exit code of `diff --exit-code` where the file differs: no code that a failure has.
const DIFFERS: u8 = 5;

/// Makes the rules what the file says.
pub(super) fn apply(file: &Path, prune: bool, reason: &str, server: &Server) -> Ended {
    let (mut reply, entries) = put(file, prune, reason, false, server)?;
    for entry in &entries {
        entry.make(server)?;
    }
    tell(&mut reply, &entries);
    changed(&reply, server)
}

/// Tells of changed tiers, users and keys as of changed rules.
fn tell(reply: &mut Reply, entries: &[EntryChange]) {
    if entries.is_empty() {
        return;
    }
    if let Some(changes) = reply.json["changes"].as_array_mut() {
        changes.extend(entries.iter().map(EntryChange::told));
    }
    reply.text = reply.json.to_string();
}

/// Shows what [`apply`] would change.
pub(super) fn diff(file: &Path, prune: bool, exit_code: bool, server: &Server) -> Ended {
    let (mut reply, entries) = put(file, prune, "", true, server)?;
    tell(&mut reply, &entries);
    let differs = reply.json["changes"].as_array().is_some_and(|changes| !changes.is_empty());
    let shown = finish(&reply, server, true);
    Ok(if exit_code && differs { ExitCode::from(DIFFERS) } else { shown })
}

/// Puts the rules, and returns what else of the file differs.
fn put(
    file: &Path,
    prune: bool,
    reason: &str,
    dry_run: bool,
    server: &Server,
) -> Result<(Reply, Vec<EntryChange>), Failure> {
    let regions = server.configured_regions()?;
    let written =
        daemon::read_rules(file, &regions).map_err(|problems| Failure::Usage(problems.join("\n")))?;
    if !server.json {
        for warning in &written.warnings {
            say(format_args!("warning: {warning}"));
        }
    }
    // A file that is refused there is refused before anything is changed.
    let entries = people::changes(&written.people, reason, server)?;
    let rules: Vec<Value> = written.rules.into_iter().map(|(_, rule)| rule).collect();
    let query = if dry_run { "?dry_run=true".to_owned() } else { reason_query(reason) };
    // The daemon merges with what the place of the rules holds, which is not always what it decides by.
    let merge = match (prune, query.is_empty()) {
        (true, _) => "",
        (false, true) => "?merge=true",
        (false, false) => "&merge=true",
    };
    Ok((server.put(&format!("/v1/rules{query}{merge}"), &json!({ "rules": rules }), None)?, entries))
}

pub(super) fn delete(name: &str, reason: &str, server: &Server) -> Ended {
    let reply = server.delete(&format!("/v1/rules/{}{}", escape(name), reason_query(reason)))?;
    changed(&reply, server)
}

pub(super) fn rollback(revision: u64, reason: &str, server: &Server) -> Ended {
    let reply = server
        .post(&format!("/v1/rules/rollback{}", reason_query(reason)), &json!({ "revision": revision }))?;
    changed(&reply, server)
}

pub(super) fn history(name: Option<&str>, limit: u32, server: &Server) -> Ended {
    let rule = name.map(|name| format!("&rule={}", escape(name))).unwrap_or_default();
    let reply = server.get(&format!("/v1/rules/history?limit={limit}{rule}"))?;
    if server.json {
        say(reply.text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let revisions = reply.json["history"].as_array().map_or(&[][..], Vec::as_slice);
    if revisions.is_empty() {
        say("No changes are recorded: a file's history begins with the first change made through a daemon.");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = table(&["revision", "at", "who", "from", "what", "changes", "why"], &[0]);
    for revision in revisions {
        let text = |field: &str| revision[field].as_str().unwrap_or_default().to_owned();
        let changes = revision["changes"].as_array().map_or(&[][..], Vec::as_slice);
        let mut told: Vec<String> = changes.iter().take(3).map(told).collect();
        let total = revision["changes_total"].as_u64().unwrap_or(0);
        if total > 3 {
            told.push(format!("{} more", total - 3));
        }
        let is_long = told.iter().any(|change| change.contains('('));
        rows.add_row([
            revision["revision"].to_string(),
            text("at"),
            text("actor"),
            text("source"),
            text("action"),
            told.join(if is_long { "\n" } else { ", " }),
            text("reason"),
        ]);
    }
    say(rows);
    Ok(ExitCode::SUCCESS)
}

fn reason_query(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!("?reason={}", escape(reason)) }
}

/// One change in a word.
fn short(change: &Value) -> String {
    let sign = match (change["before"].is_null(), change["after"].is_null()) {
        (true, _) => '+',
        (_, true) => '-',
        _ => '~',
    };
    let region = change["region"].as_str().map(|region| format!(" in {region}")).unwrap_or_default();
    format!("{sign}{}{region}", change["rule"].as_str().unwrap_or_default())
}

/// One change in a line: of a rule that was there and stays, what is other than before.
fn told(change: &Value) -> String {
    let short = short(change);
    if !short.starts_with('~') {
        return short;
    }
    let differences = differences(&change["before"], &change["after"]);
    let mut told: Vec<&str> = differences.iter().take(DIFFERENCES_TOLD).map(String::as_str).collect();
    if differences.len() > told.len() {
        told.push("…");
    }
    if told.is_empty() { short } else { format!("{short} ({})", told.join(", ")) }
}

/// Prints what a change did, and who needs it besides.
pub(in crate::cli) fn changed(reply: &Reply, server: &Server) -> Ended {
    let code = finish(reply, server, false);
    let any = reply.json["changes"].as_array().is_some_and(|changes| !changes.is_empty());
    // With a file each daemon has rules of its own.
    let of_file = |ready: Reply| ready.json["rules"]["source"] == "file";
    if !server.json && any && server.get("/readyz").is_ok_and(of_file) && has_others(server) {
        say("These rules are a file of this daemon alone: the other daemons need the same change.");
    }
    Ok(code)
}

/// True if other daemons are seen, or listed, or if that cannot be asked.
fn has_others(server: &Server) -> bool {
    server.get("/v1/regions").map_or(true, |reply| {
        let regions = reply.json;
        let many = |list: &str, least: usize| regions[list].as_array().is_some_and(|all| all.len() >= least);
        many("peers", 1) || many("configured", 2) || regions["store"]["daemons"].as_u64() > Some(1)
    })
}

/// Prints what a change did, or would do.
fn finish(reply: &Reply, server: &Server, dry_run: bool) -> ExitCode {
    if server.json {
        say(reply.text.trim_end());
        return ExitCode::SUCCESS;
    }
    let changes = reply.json["changes"].as_array().map_or(&[][..], Vec::as_slice);
    let revision = &reply.json["revision"];
    if changes.is_empty() {
        say(format_args!("No difference. Revision {revision}"));
        return ExitCode::SUCCESS;
    }
    for change in changes {
        say(short(change));
        for line in differences(&change["before"], &change["after"]) {
            say(format_args!("    {line}"));
        }
    }
    let many = changes.len();
    if dry_run {
        say(format_args!("\n{many} to change. Revision {revision} stays"));
    } else {
        say(format_args!("\n{many} changed. Revision {revision}"));
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_in_a_word() {
        assert_eq!(short(&json!({ "rule": "r", "before": null, "after": {} })), "+r");
        assert_eq!(short(&json!({ "rule": "r", "region": "eu", "before": {}, "after": {} })), "~r in eu");
        let shares = |eu: u32| json!({ "global": { "mode": "split", "shares": { "eu": eu, "us": 1 } } });
        let change = json!({ "rule": "world", "before": shares(40), "after": shares(60) });
        assert_eq!(told(&change), "~world (global.shares.eu: 40 → 60)");
        assert_eq!(told(&json!({ "rule": "r", "before": null, "after": { "limit": 1 } })), "+r");
    }
}
