//! `tidegate why`: why a client is limited, for people. `tidegate top` shows the same of one bucket.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::ask::{self, Ask, awaited, because, penalty_of};
use super::client::query;
use super::table::{plain, span, table};
use super::usage::text;
use super::{Ended, Failure, say, say_prose};
use crate::core::written::parse_moment;

/// The client that is asked about.
#[derive(Debug, Args)]
pub(super) struct Why {
    #[command(flatten)]
    ask: Ask,
}

impl Why {
    /// Shows what `GET /v1/why` says.
    pub(super) fn run(&self) -> Ended {
        let attributes = self.ask.subject.pairs()?;
        if attributes.is_empty() {
            return Err(Failure::Usage("say of whom, by attributes such as user=u_42".to_owned()));
        }
        let cost = self.ask.cost.to_string();
        let reply = self.ask.server.get(&route(&self.ask.subject.domain, Some(cost), &attributes))?;
        if !reply.json["limited"].is_boolean() {
            return Err(self.ask.server.is_no_daemon());
        }
        if self.ask.server.json {
            say(reply.text.trim_end());
        } else {
            let mut lines = told(&reply.json);
            if let Some(awaited) = awaited(&self.ask.server, &reply.json["decision"]) {
                lines.insert(1, awaited);
            }
            say_prose(lines.join("\n"));
            if let Some(records) = reply.json["records"].as_array().filter(|records| !records.is_empty()) {
                say(format_args!("\nThe newest denials in the audit log:\n{}", recorded(records)));
            }
            say("\nNothing was charged.");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The route that asks of these attributes.
pub(super) fn route(domain: &str, cost: Option<String>, attributes: &[(&str, &str)]) -> String {
    let mut parameters = vec![("domain", Some(domain.to_owned())), ("cost", cost)];
    parameters.extend(attributes.iter().map(|(name, value)| (*name, Some((*value).to_owned()))));
    query("/v1/why", &parameters)
}

/// The answer for people, line by line.
pub(super) fn told(why: &Value) -> Vec<String> {
    let mut lines = vec![verdict(why)];
    if let Some(message) = why["decision"]["message"].as_str() {
        lines.push(format!("  {}", plain(message)));
    }
    let buckets = why["buckets"].as_array().map_or(&[][..], Vec::as_slice);
    for bucket in buckets {
        lines.push(String::new());
        tell_bucket(&mut lines, bucket, why["at"].as_str());
    }
    if buckets.is_empty() && why["decision"]["rule"].is_null() {
        lines
            .push("  No rule counts these attributes, and no bucket of theirs was denied lately.".to_owned());
        lines.push("  Give the attributes that the gateway sends, and its --domain.".to_owned());
    }
    lines
}

fn verdict(why: &Value) -> String {
    let decision = &why["decision"];
    let rule = plain(decision["rule"].as_str().unwrap_or("a rule"));
    if decision["allowed"].as_bool() != Some(true) {
        let when = ask::until(decision, "free").map(|when| format!("; {when}")).unwrap_or_default();
        let because = because(decision).map(|because| format!(": {because}")).unwrap_or_default();
        return format!("Limited now: {rule} denies with status {}{when}{because}.", decision["status"]);
    }
    if let Some(named) = decision["use"].as_str() {
        let when =
            ask::until(&diverting(decision), "free").map(|when| format!("; {when}")).unwrap_or_default();
        return format!(
            "Over the limit of {rule}: the next request passes, and is told to use {}{when}.",
            plain(named)
        );
    }
    if why["limited"].as_bool() == Some(true) {
        return "These attributes may pass, but a bucket of the same client is used up.".to_owned();
    }
    match decision["remaining"].as_u64() {
        Some(left) => {
            format!(
                "Not limited now: the next request passes and leaves {left} of {} ({rule}).",
                decision["limit"]
            )
        }
        None => "Not limited now: no rule limits these attributes.".to_owned(),
    }
}

/// The answer of the rule that names something to use instead.
fn diverting(decision: &Value) -> Value {
    let mut rules = decision["rules"].as_array().into_iter().flatten();
    rules.find(|rule| rule["rule"] == decision["rule"]).cloned().unwrap_or_default()
}

fn tell_bucket(lines: &mut Vec<String>, bucket: &Value, at: Option<&str>) {
    let flag = |name: &str| bucket[name].as_bool() == Some(true);
    let said = because(bucket);
    let state = match (flag("denies"), flag("shadow"), bucket["remaining"].as_u64()) {
        (true, true, _) => "would deny (shadow)",
        (true, false, _) if bucket["use"].is_string() => "over its limit, told to use something else",
        (true, false, _) if bucket["penalty"].is_object() => "shut out",
        (true, false, _) if bucket["cause"].is_string() && bucket["cause"] != "used_up" => {
            said.as_deref().unwrap_or("denies")
        }
        (true, false, Some(0)) => "used up",
        (true, false, _) => "denies",
        (false, ..) => "has room",
    };
    let found = if flag("matches") { "" } else { ", found by what it denied lately" };
    lines.push(format!(
        "{} for {}: {state}{found}",
        plain(bucket["rule"].as_str().unwrap_or_default()),
        identity(&bucket["identity"])
    ));
    let window = bucket["window_ms"].as_u64().filter(|millis| *millis > 0);
    let window = window.map(|millis| format!(" per {}", span(millis))).unwrap_or_default();
    // Nobody knows what would be asked of a bucket that does not count the request.
    let free = match (flag("matches"), bucket["reset_ms"].as_u64()) {
        (false, Some(reset)) => Some(format!("resets in {}", span(reset))),
        _ => ask::until(bucket, "free"),
    };
    let free = free.map(|free| format!("; {free}")).unwrap_or_default();
    let degraded = if flag("degraded") { "; the store does not answer" } else { "" };
    lines.push(format!(
        "  used {} here, limit {}{window}, {} left{free}{degraded}{}",
        bucket["used"],
        bucket["limit"],
        bucket["remaining"],
        penalty_of(bucket)
    ));
    tell_regions(lines, bucket);
    let lately = &bucket["lately"];
    if lately.is_null() {
        lines.push("  not among the buckets that this daemon counts".to_owned());
        return;
    }
    let ago = |name: &str| since(at, lately[name].as_str());
    if let (Some(first), Some(last)) = (ago("denied_since"), ago("denied_last")) {
        lines.push(format!("  denied since {first}, last {last}"));
    }
    lines.extend(counted(lately).map(|counted| format!("  {counted}")));
}

/// Says what was counted of a bucket; `None` where nothing is left of it. Counts halve every 30 seconds, so
/// they are no sums.
fn counted(lately: &Value) -> Option<String> {
    let counts = [("requests", "requests"), ("denied", "denied"), ("cost", "permits charged")];
    let counts = counts.iter().filter_map(|(name, what)| {
        let count = lately[*name].as_u64().filter(|count| *count > 0)?;
        Some(format!("{count} {what}"))
    });
    let counts: Vec<String> = counts.collect();
    let counted = || format!("in the last minute or so about {}; older ones count less", counts.join(", "));
    (!counts.is_empty()).then(counted)
}

/// By whom it was used up, where others share it.
fn tell_regions(lines: &mut Vec<String>, bucket: &Value) {
    let world = &bucket["world"];
    let used_by = bucket["used_by"].as_object().filter(|used| used.len() > 1);
    let bound = world["error_bound"].as_u64().unwrap_or(0);
    let is_known = used_by.is_some() || !world["others_used"].is_null();
    if bucket["mode"] == "escrow" || (world.is_object() && !is_known) {
        // Nobody tells what others spent of their rights, and of a level that it is theirs.
        lines.push("  used by other regions: not known".to_owned());
    } else if let Some(used_by) = used_by {
        let each: Vec<String> =
            used_by.iter().map(|(region, used)| format!("{} {used}", plain(region))).collect();
        lines.push(format!("  used by region: {} (may be off by {bound})", each.join(", ")));
    } else if world.is_object() {
        lines.push(format!("  used by other regions: {} (may be off by {bound})", world["others_used"]));
    } else if let Some(mode) = bucket["mode"].as_str() {
        lines.push(format!("  a worldwide limit ({mode}); nothing is known here of other regions' use"));
    }
}

/// Names and values of a bucket, in one line.
pub(super) fn identity(identity: &Value) -> String {
    let pairs = identity.as_object().into_iter().flatten();
    let pairs = pairs.map(|(name, value)| format!("{}={}", plain(name), plain(&text(value))));
    let line = pairs.collect::<Vec<_>>().join(" ");
    if line.is_empty() { "everybody".to_owned() } else { line }
}

/// Returns how long before `at` that was, as in `3 min ago`.
pub(super) fn since(at: Option<&str>, moment: Option<&str>) -> Option<String> {
    let (at, moment) = (parse_moment(at?)?, parse_moment(moment?)?);
    Some(match at.since(moment).micros() / 1_000_000 {
        0 => "just now".to_owned(),
        seconds => format!("{} ago", span(seconds * 1_000)),
    })
}

fn recorded(records: &[Value]) -> String {
    let mut rows = table(&["at", "region", "rule", "path", "used", "limit"], &[4, 5]);
    for record in records {
        let cell = |name: &str| plain(&text(&record[name]));
        rows.add_row(["at", "region", "rule", "path", "count", "limit"].map(cell));
    }
    rows.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_limited_client_reads_which_rule_who_since_when_and_until_when() {
        let why = json!({
            "at": "2026-12-01T00:03:20Z", "limited": true,
            "decision": { "allowed": false, "rule": "search", "status": 429, "retry_after_ms": 31_000, "message": "Too many." },
            "buckets": [{
                "rule": "search", "identity": { "user": "u_42" }, "matches": true, "denies": true, "shadow": false,
                "limit": 100, "window_ms": 60_000, "used": 60, "remaining": 0, "retry_after_ms": 31_000,
                "used_by": { "eu": 60, "us": 40 }, "world": { "others_used": 40, "error_bound": 3 },
                "lately": { "requests": 512, "denied": 412, "cost": 100,
                            "denied_since": "2026-12-01T00:00:20Z", "denied_last": "2026-12-01T00:03:18Z" },
            }],
        });
        let told = told(&why).join("\n");
        for line in [
            "Limited now: search denies with status 429; free in 31 s.",
            "Too many.",
            "search for user=u_42: used up",
            "used 60 here, limit 100 per 1 min, 0 left; free in 31 s",
            "used by region: eu 60, us 40 (may be off by 3)",
            "denied since 3 min ago, last 2 s ago",
            "in the last minute or so about 512 requests, 412 denied, 100 permits charged",
        ] {
            assert!(told.contains(line), "{line} is not in\n{told}");
        }
    }

    #[test]
    fn who_is_told_to_use_something_else_is_not_denied() {
        let why = json!({
            "limited": true,
            "decision": { "allowed": true, "rule": "budget", "remaining": 0, "limit": 5, "use": "small-model",
                "rules": [{ "rule": "budget", "allowed": false, "retry_after_ms": 31_000, "use": "small-model" }] },
        });
        let expected = "Over the limit of budget: the next request passes, and is told to use small-model; free in 31 s.";
        assert_eq!(told(&why)[0], expected);
    }

    #[test]
    fn counts_that_have_faded_are_not_told_as_none() {
        let told = |lately: &Value| counted(lately).unwrap_or_default();
        assert_eq!(told(&json!({ "requests": 0, "denied": 0, "cost": 0 })), "");
        let denied = told(&json!({ "requests": 3, "denied": 3, "cost": 0 }));
        assert!(denied.contains("about 3 requests, 3 denied;") && !denied.contains("permits"), "{denied}");
    }

    #[test]
    fn who_is_not_limited_reads_so_and_what_clients_send_moves_no_cursor() {
        let free = json!({ "limited": false, "decision": { "allowed": true, "rule": "a", "remaining": 3, "limit": 5 } });
        assert_eq!(told(&free)[0], "Not limited now: the next request passes and leaves 3 of 5 (a).");
        let nothing = json!({ "limited": false, "decision": { "allowed": true }, "buckets": [] });
        assert!(told(&nothing).join("\n").contains("No rule counts these attributes"));
        assert_eq!(identity(&json!({ "user": "a\u{1b}[2J" })), "user=a·[2J");
        assert_eq!(identity(&json!({})), "everybody");
    }
}
