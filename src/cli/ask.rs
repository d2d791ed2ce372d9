//! `tidegate check` and `tidegate explain`: what a daemon answers to one request; acquisitions ask and are
//! shown alike.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::table::{span, table};
use super::{DENIED, Ended, Failure, Server, say, whole};
use crate::core::denial_cause::DenialCause;

/// Outcomes of rules that match a request, in the words of `POST /v1/explain`.
const MATCHING: [&str; 4] = ["decides", "outranked", "exempted", "holds_only"];
/// Rules that are shown where none matches.
const OTHERS_SHOWN: usize = 10;

/// The client, and its domain.
#[derive(Debug, Args)]
pub(super) struct Subject {
    /// Attributes of the request, as name=value: user=u_42 path=/search
    #[arg(value_name = "NAME=VALUE")]
    attributes: Vec<String>,
    /// The gateway's namespace of rules.
    #[arg(long, default_value = "default")]
    pub(super) domain: String,
}

/// One request.
#[derive(Debug, Args)]
pub(super) struct Ask {
    #[command(flatten)]
    pub(super) subject: Subject,
    /// Permits it asks for; 0 only asks, a negative number gives back.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = whole::<i64>)]
    pub(super) cost: i64,
    #[command(flatten)]
    pub(super) server: Server,
}

/// One request, and how many of the domain's rules to tell of.
#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    ask: Ask,
    /// Lists the rules that do not match, too.
    #[arg(long)]
    all: bool,
}

/// One request, asked or reported.
#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    ask: Ask,
    /// Reports the cost as used already: it is charged in full, whatever is left.
    #[arg(long)]
    report: bool,
    /// Names the report: under one id a cost is charged once, however often it is said.
    #[arg(long, requires = "report")]
    id: Option<String>,
}

impl Check {
    /// Asks and charges.
    pub(super) fn check(&self) -> Ended {
        let ask = &self.ask;
        let route = if self.report { "/v1/report" } else { "/v1/check" };
        let mut body = ask.body()?;
        if let Some(id) = &self.id {
            body["id"] = id.as_str().into();
        }
        let reply = ask.server.post(route, &body)?;
        if !reply.json["allowed"].is_boolean() {
            return Err(ask.server.is_no_daemon());
        }
        ask.subject.tell(&ask.server, &reply.text, &reply.json);
        Ok(ending(&reply.json))
    }
}

impl Subject {
    pub(super) fn body(&self) -> Result<Value, Failure> {
        let pairs = self.pairs()?.into_iter();
        let attributes: Map<String, Value> =
            pairs.map(|(name, value)| (name.to_owned(), value.into())).collect();
        Ok(json!({ "domain": self.domain, "attributes": attributes }))
    }

    /// The attributes as they were given.
    ///
    /// # Errors
    /// One that is no attribute, or given twice.
    pub(super) fn pairs(&self) -> Result<Vec<(&str, &str)>, Failure> {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for pair in &self.attributes {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(Failure::Usage(format!(
                    "`{pair}` is no attribute: write name=value, as in user=u_42"
                )));
            };
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(Failure::Usage(format!("the attribute `{name}` is given twice")));
            }
            pairs.push((name, value));
        }
        Ok(pairs)
    }

    /// Prints a decision.
    pub(super) fn tell(&self, server: &Server, text: &str, decision: &Value) {
        if server.json {
            return say(text.trim_end());
        }
        show(decision);
        if let Some(awaited) = awaited(server, decision) {
            say(awaited);
        }
        if decision["rules"].as_array().is_some_and(Vec::is_empty) {
            self.name_domains(server);
        }
    }

    /// Says which domains have rules, where the one that was asked for has none.
    fn name_domains(&self, server: &Server) {
        // A client that may not see the rules has the answer all the same.
        let Ok(reply) = server.get("/v1/rules") else { return };
        let rules = reply.json["rules"].as_array().map_or(&[][..], Vec::as_slice);
        let domains: BTreeSet<&str> =
            rules.iter().map(|rule| rule["domain"].as_str().unwrap_or("default")).collect();
        if !domains.contains(self.domain.as_str()) {
            say(no_domain(&self.domain, &domains));
        }
    }
}

impl Ask {
    pub(super) fn body(&self) -> Result<Value, Failure> {
        let mut body = self.subject.body()?;
        body["cost"] = self.cost.into();
        Ok(body)
    }
}

impl Explain {
    /// Asks why; charges nothing.
    pub(super) fn run(&self) -> Ended {
        let Ask { subject, server, .. } = &self.ask;
        let reply = server.post("/v1/explain", &self.ask.body()?)?;
        if server.json {
            say(reply.text.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        show(&reply.json["decision"]);
        if let Some(awaited) = awaited(server, &reply.json["decision"]) {
            say(awaited);
        }
        let considered = reply.json["considered"].as_array().map_or(&[][..], Vec::as_slice);
        if considered.is_empty() {
            say(format_args!("\nThe domain `{}` has no rules.", subject.domain));
            subject.name_domains(server);
            return Ok(ExitCode::SUCCESS);
        }
        let left_out = reply.json["left_out"].as_u64().unwrap_or(0);
        say(format_args!("\n{}\nNothing was charged.", self.considered(considered, left_out)));
        Ok(ExitCode::SUCCESS)
    }

    /// The rules that were considered: those that match, else a few that do not, so that one sees why.
    fn considered(&self, considered: &[Value], left_out: u64) -> String {
        let is_listed =
            |rule: &&Value| self.all || MATCHING.iter().any(|outcome| rule["outcome"] == **outcome);
        let mut listed: Vec<&Value> = considered.iter().filter(is_listed).collect();
        let matching = listed.len();
        if listed.is_empty() {
            listed = considered.iter().take(OTHERS_SHOWN).collect();
        }
        let mut rows = table(&["rule considered", "outcome", "why"], &[]);
        for rule in &listed {
            rows.add_row([text(&rule["rule"]), text(&rule["outcome"]), text(&rule["why"])]);
        }
        let hidden = considered.len().saturating_sub(listed.len());
        let others = u64::try_from(hidden).unwrap_or(u64::MAX).saturating_add(left_out);
        let rules = if others == 1 { "rule of the domain does" } else { "rules of the domain do" };
        let all = if hidden > 0 { " (--all)" } else { "" };
        match others {
            0 => rows.to_string(),
            _ if self.all => format!("{rows}\n{left_out} further rules of the domain are not listed."),
            _ if matching > 0 => format!("{rows}\n{others} other {rules} not match{all}."),
            _ => format!("{rows}\nNo rule matches: {others} other {rules} not either{all}."),
        }
    }
}

/// A sentence for a domain without rules; it names at most ten that have some.
fn no_domain(domain: &str, known: &BTreeSet<&str>) -> String {
    if known.is_empty() {
        return "  There are no rules at all.".to_owned();
    }
    let named: Vec<&str> = known.iter().copied().take(10).collect();
    let more = if known.len() > named.len() { " and others" } else { "" };
    format!("  No rule has domain {domain:?}; rules are in: {}{more}", named.join(", "))
}

/// The exit code of a decision.
pub(super) fn ending(decision: &Value) -> ExitCode {
    if decision["allowed"].as_bool() == Some(true) { ExitCode::SUCCESS } else { ExitCode::from(DENIED) }
}

/// Prints a decision for people.
pub(super) fn show(decision: &Value) {
    let allowed = decision["allowed"].as_bool() == Some(true);
    let by = decision["rule"].as_str();
    say(match (allowed, by) {
        (true, None) => "allowed: no rule limits it".to_owned(),
        (true, Some(rule)) if decision["use"].is_string() => {
            format!("allowed, but to use {}: {rule} has nothing left for it", text(&decision["use"]))
        }
        (true, Some(rule)) => {
            let tightest =
                decision["rules"].as_array().and_then(|all| all.iter().find(|one| one["rule"] == rule));
            let unit = tightest.map(unit).unwrap_or_default();
            format!("allowed: {}{unit} left of {} ({rule})", decision["remaining"], decision["limit"])
        }
        (false, rule) => {
            let said = [until(decision, "retry"), because(decision).map(Cow::into_owned)];
            let said = said.into_iter().flatten().collect::<Vec<_>>().join("; ");
            format!("denied by {} with status {}: {said}", rule.unwrap_or("a rule"), decision["status"])
        }
    });
    if decision["degraded"].as_bool() == Some(true) {
        say(
            "  degraded: the store did not answer, so this is what on_failure of the rules decides; see `tidegate regions`",
        );
    }
    if let Some(message) = decision["message"].as_str() {
        say(format_args!("  {message}"));
    }
    let rules = decision["rules"].as_array().map_or(&[][..], Vec::as_slice);
    if rules.is_empty() {
        return;
    }
    let mut headings = vec!["rule", "answer", "limit", "window", "left", "resets in"];
    let is_exact = |rule: &Value| rule["global"]["mode"] == "escrow" || rule["global"]["mode"] == "split";
    let worldwide: Vec<&Value> = rules.iter().filter(|rule| rule["global"].is_object()).collect();
    if !worldwide.is_empty() {
        headings.push(match worldwide.iter().filter(|rule| is_exact(rule)).count() {
            0 => "used worldwide (may be off by)",
            exact if exact == worldwide.len() => "used here (others may hold)",
            _ => "used worldwide (may be off by), exact: here (others may hold)",
        });
    }
    let mut rows = table(&headings, &[2, 3, 4, 5, 6]);
    for rule in rules {
        let answer = match (rule["allowed"].as_bool() == Some(true), rule["shadow"].as_bool() == Some(true)) {
            (true, _) => "allowed",
            (false, false) if rule["use"].is_string() => "use something else",
            (false, false) => "denied",
            (false, true) => "would deny (shadow)",
        };
        let asides = asides(rule);
        let global = &rule["global"];
        let worldwide = global.is_object().then(|| {
            let used = global["believed_used"].as_u64().or_else(|| global["used_here"].as_u64());
            let used = used.map_or_else(|| "not known".to_owned(), |used| used.to_string());
            format!("{used} ({})", global["error_bound"].as_u64().unwrap_or(0))
        });
        let counts = counts(rule);
        let counted = |text: String| if counts { text } else { "-".to_owned() };
        let mut row = vec![
            text(&rule["rule"]),
            format!("{answer}{asides}"),
            counted(format!("{}{}", rule["limit"], unit(rule))),
            rule["window_ms"].as_u64().filter(|millis| *millis > 0).map(span).unwrap_or_default(),
            counted(rule["remaining"].to_string()),
            counted(rule["reset_ms"].as_u64().map(span).unwrap_or_default()),
        ];
        row.extend(worldwide);
        rows.add_row(row);
    }
    say(rows);
}

/// Returns what stands behind a rule's answer, each thing once: a cause may be what is said besides.
fn asides(rule: &Value) -> String {
    let flag = |name: &str| rule[name].as_bool() == Some(true);
    let penalty = penalty_of(rule);
    let cause = rule["cause"].as_str().filter(|cause| match DenialCause::from_text(cause) {
        Some(DenialCause::Degraded) => !flag("degraded"),
        Some(DenialCause::Penalty) => penalty.is_empty(),
        _ => true,
    });
    let cause = cause.map(|cause| format!(", {cause}")).unwrap_or_default();
    let degraded = if flag("degraded") { ", degraded" } else { "" };
    let warning = if flag("warning") { ", warning" } else { "" };
    let cost = rule["cost"].as_i64().map(|cost| format!(", cost {cost}")).unwrap_or_default();
    format!("{cause}{degraded}{penalty}{warning}{cost}")
}

/// True if a rule counts: one that blocks or exempts has no limit, and nothing is left of none.
fn counts(rule: &Value) -> bool {
    let is_zero = |name: &str| rule[name].as_u64() == Some(0);
    let exempts = rule["allowed"] == true && ["limit", "window_ms", "reset_ms"].into_iter().all(is_zero);
    !exempts && rule["cause"] != DenialCause::Blocked.as_str()
}

/// Returns when a denial ends, `retry` or `free` being the word for it; nothing where no time ends it.
pub(super) fn until(told: &Value, word: &str) -> Option<String> {
    let cause = told["cause"].as_str().and_then(DenialCause::from_text);
    match (cause, told["retry_after_ms"].as_u64()) {
        // It lasts until all have agreed: who asks again after that time may be denied as before.
        (Some(DenialCause::NotAgreed), _) => None,
        (Some(DenialCause::Blocked), None) => Some("until somebody lifts it".to_owned()),
        (_, None) => Some("it can never pass".to_owned()),
        (_, Some(0)) => Some(format!("{word} now")),
        (_, Some(millis)) => Some(format!("{word} in {}", span(millis))),
    }
}

/// Says whom a rule waits for that denies because the regions have not agreed.
pub(super) fn awaited(server: &Server, decision: &Value) -> Option<String> {
    if decision["cause"] != DenialCause::NotAgreed.as_str() {
        return None;
    }
    // A client that may not see the regions has the answer all the same.
    let regions = server.get("/v1/regions").ok()?.json;
    let changing = regions["changing"].as_array()?;
    let rule = changing.iter().find(|changing| changing["rule"] == decision["rule"])?;
    let names: Vec<&str> = rule["waiting_for"].as_array()?.iter().filter_map(Value::as_str).collect();
    let names = if names.is_empty() { "what was spent before".to_owned() } else { names.join(", ") };
    Some(format!("  waiting for {names}"))
}

/// Returns why it is denied, in a sentence without its end; nothing where that is not said.
pub(super) fn because(told: &Value) -> Option<Cow<'static, str>> {
    let cause = DenialCause::from_text(told["cause"].as_str()?)?;
    Some(match (cause, told["remaining"].as_u64()) {
        // It asked for more than that.
        (DenialCause::UsedUp, Some(left @ 1..)) => Cow::Owned(format!("only {left} left")),
        (DenialCause::TooLarge, _) => too_large(told).map_or(Cow::Borrowed(cause.sentence()), Cow::Owned),
        _ => Cow::Borrowed(cause.sentence()),
    })
}

/// Returns which cost is larger than which limit; nothing where that is not known.
fn too_large(told: &Value) -> Option<String> {
    let rules = told["rules"].as_array().into_iter().flatten();
    // Of a rule with prices its own cost.
    let priced = rules.filter(|rule| rule["rule"] == told["rule"]).find_map(|rule| rule["cost"].as_u64());
    let cost = priced.or_else(|| told["cost"].as_u64())?;
    let limit = told["limit"].as_u64().filter(|limit| cost > *limit)?;
    Some(format!("it asks for {cost}, and {limit} is the most that can ever pass"))
}

/// The penalty in force, behind an answer; empty for none.
pub(super) fn penalty_of(told: &Value) -> String {
    let penalty = &told["penalty"];
    let ends = penalty["ends_ms"].as_u64();
    ends.map(|millis| format!(", penalty x{} for {}", penalty["multiplier"], span(millis)))
        .unwrap_or_default()
}

/// Returns what a rule counts, behind a number.
fn unit(rule: &Value) -> String {
    rule["unit"].as_str().map(|unit| format!(" {unit}")).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{asides, because, counts, until};

    #[test]
    fn what_a_cause_says_is_not_said_again() {
        let degraded = json!({ "allowed": false, "cause": "degraded", "degraded": true });
        assert_eq!(asides(&degraded), ", degraded");
        let penalty = json!({ "cause": "penalty", "penalty": { "multiplier": 1, "ends_ms": 5_000 } });
        assert_eq!(asides(&penalty), ", penalty x1 for 5 s");
        let other = json!({ "cause": "used_up", "degraded": true, "warning": true, "cost": 3 });
        assert_eq!(asides(&other), ", used_up, degraded, warning, cost 3");
        assert_eq!(asides(&json!({ "allowed": true })), "");
    }

    #[test]
    fn a_denial_says_when_it_ends_only_where_time_ends_it() {
        let denial = |cause: &str, retry: Value| json!({ "cause": cause, "retry_after_ms": retry });
        let ends = |cause: &str, retry: Value| until(&denial(cause, retry), "retry").unwrap_or_default();
        assert_eq!(ends("used_up", json!(3_000)), "retry in 3 s");
        assert_eq!(ends("not_agreed", json!(1_000)), "");
        assert_eq!(ends("blocked", Value::Null), "until somebody lifts it");
        assert_eq!(ends("too_large", Value::Null), "it can never pass");
    }

    #[test]
    fn a_cost_that_is_too_large_is_told_beside_the_limit() {
        let mut denial =
            json!({ "cause": "too_large", "rule": "a", "cost": 1_000, "limit": 20, "remaining": 20 });
        let said = |denial: &Value| because(denial).unwrap().into_owned();
        assert_eq!(said(&denial), "it asks for 1000, and 20 is the most that can ever pass");
        denial["rules"] = json!([{ "rule": "a", "cost": 3_000 }]);
        assert_eq!(said(&denial), "it asks for 3000, and 20 is the most that can ever pass");
        denial["limit"] = json!(5_000);
        assert_eq!(said(&denial), "it asks for more than can ever pass");
    }

    #[test]
    fn a_block_and_an_exemption_have_no_limit() {
        let rule = |allowed: bool, cause: Value, limit: u32| json!({ "allowed": allowed, "cause": cause, "limit": limit, "window_ms": 0, "reset_ms": 0 });
        assert!(!counts(&rule(false, json!("blocked"), 0)));
        assert!(!counts(&rule(true, Value::Null, 0)));
        assert!(counts(&rule(false, json!("used_up"), 0)));
        assert!(counts(&rule(true, Value::Null, 5)));
    }
}
