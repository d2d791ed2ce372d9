//! Reading one rule: every field against what the counting can carry out.

use std::net::IpAddr;

use ipnet::IpNet;

use super::answer::{RuleKind, read_answer, read_price};
use super::calendar::read_windows;
use super::penalty::{Punishing, read_penalty, read_warn_at};
use super::reserve::read_reservations;
use crate::core::algorithm::{
    Algorithm, CONCURRENCY_LIMIT_MAX, Counting, HOLD_MAX, HOLD_MIN, SLIDING_LOG_LIMIT_MAX,
};
use crate::core::calendar::Windows;
use crate::core::request::{ATTRIBUTES_MAX, TEXT_BYTES_MAX};
use crate::core::rule::{
    Action, Charging, Condition, DEBT_MAX, DOMAIN_DEFAULT, Debt, Global, Mode, OnFailure, OnPartition,
    PRIORITY_DEFAULT, Pattern, Rule,
};
use crate::core::time::Span;
use crate::core::written::{At, Fields, Problems, TreeEntry, TreeNode, Value, integer, suggestion, text};

/// Longest text of a denial, in bytes: it travels with every denied answer.
const MESSAGE_BYTES_MAX: usize = 4_096;
/// Most sub-keys of one key: where all of them deny, a check asks every one.
const SPLIT_KEYS_MAX: u32 = 64;
/// Longest delay that `throttle` may ask for: gateways hold a connection that long.
const MAX_DELAY_MAX: Span = Span::from_secs(3_600);

const ALGORITHMS: [(&str, Algorithm); 7] = [
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_window", Algorithm::SlidingWindow),
    ("sliding_log", Algorithm::SlidingLog),
    ("token_bucket", Algorithm::TokenBucket),
    ("leaky_bucket", Algorithm::LeakyBucket),
    ("gcra", Algorithm::Gcra),
    ("concurrency", Algorithm::Concurrency),
];
const ACTIONS: [(&str, Action); 5] = [
    ("reject", Action::Reject),
    ("throttle", Action::Throttle),
    ("log_only", Action::LogOnly),
    ("allow", Action::Allow),
    ("block", Action::Block),
];
const CHARGES: [(&str, Charging); 2] = [("admitted", Charging::Admitted), ("always", Charging::Always)];
const DEBTS: [(&str, Debt); 3] =
    [("carry", Debt::Carry { max: None }), ("forgive", Debt::Forgive), ("window", Debt::Window)];
const FAILURES: [(&str, OnFailure); 3] =
    [("local", OnFailure::Local), ("open", OnFailure::Open), ("closed", OnFailure::Closed)];
const MODES: [(&str, Mode); 3] = [("gossip", Mode::Gossip), ("split", Mode::Split), ("escrow", Mode::Escrow)];
const PARTITIONS: [(&str, OnPartition); 5] = [
    ("share", OnPartition::Share),
    ("freeze", OnPartition::Freeze),
    ("last_known", OnPartition::LastKnown),
    ("ignore", OnPartition::Ignore),
    ("deny", OnPartition::Deny),
];

/// The largest limit that an algorithm can hold.
pub(super) const fn limit_max(algorithm: Algorithm) -> u32 {
    match algorithm {
        Algorithm::SlidingLog => SLIDING_LOG_LIMIT_MAX,
        Algorithm::Concurrency => CONCURRENCY_LIMIT_MAX,
        _ => u32::MAX,
    }
}

/// Reads one rule. A rule without a name, or with no table to read, is `None`; with any other problem what
/// comes back is not to be used.
pub(super) fn read(node: &TreeNode, regions: &[String], problems: &mut Problems<'_>) -> Option<Rule> {
    let mut fields = Fields::open(node, problems)?;
    if !fields.has("name") {
        problems.report(fields.at, "name is missing: a rule needs one");
    }
    let name = fields.text("name", TEXT_BYTES_MAX, problems).map(str::to_owned);
    let domain = fields.text("domain", TEXT_BYTES_MAX, problems).unwrap_or(DOMAIN_DEFAULT).to_owned();
    let conditions = read_match(&mut fields, problems);
    let per = read_per(&mut fields, problems);
    let action = fields.word("action", &ACTIONS, problems).unwrap_or(Action::Reject);
    let counted = read_limit(&mut fields, action, problems);
    let max_delay = read_max_delay(&mut fields, action, counted.algorithm, problems);
    let kind = RuleKind { action, algorithm: counted.algorithm, max_delay };
    let answer = read_answer(&mut fields, kind, problems);
    let price = read_price(&mut fields, kind, problems);
    let group = fields.text("group", TEXT_BYTES_MAX, problems).map(str::to_owned);
    let priority = fields.integer("priority", i64::from(i32::MIN), i64::from(i32::MAX), problems);
    let priority = priority.and_then(|priority| i32::try_from(priority).ok()).unwrap_or(PRIORITY_DEFAULT);
    let status = fields.integer("status", 400, 599, problems).and_then(|status| u16::try_from(status).ok());
    let status = status.unwrap_or(if action == Action::Block { 403 } else { 429 });
    let message = fields.text("message", MESSAGE_BYTES_MAX, problems).map(str::to_owned);
    let on_failure = fields.word("on_failure", &FAILURES, problems);
    let exact = fields.boolean("exact", problems).unwrap_or(false);
    let enabled = fields.boolean("enabled", problems).unwrap_or(true);
    let global = read_global(&mut fields, action, regions, problems);
    refuse_gossip(&mut fields, counted.algorithm, global.as_ref(), problems);
    let escrowed = global.as_ref().is_some_and(|global| global.mode == Mode::Escrow);
    if let (true, Some(OnFailure::Open | OnFailure::Local), Some(entry)) =
        (escrowed, on_failure, fields.take("on_failure"))
    {
        let sentence = "a rule with mode = \"escrow\" is never exceeded, so it can only be closed while its store does not \
                        answer: remove on_failure or write \"closed\"";
        problems.report(&entry.node.at, sentence);
    }
    let split_keys = read_split_keys(&mut fields, action, &counted, global.is_some(), problems);
    let counts = RuleCounts { kind, several: global.is_some() || split_keys > 1 };
    let (charge, debt) = read_charge(&mut fields, counts, problems);
    let waits = global.as_ref().is_some_and(|global| global.wait > Span::ZERO);
    let names_another = answer.as_ref().is_some_and(|answer| answer.use_instead.is_some());
    if let (true, Some(entry)) = (waits && names_another, fields.take("on_deny")) {
        let sentence = "on_deny and wait exclude each other: what is to be used instead is told at once";
        problems.report(&entry.node.at, sentence);
    }
    let punishing = Punishing { kind, charge, split_keys, window: counted.windows.length(), waits };
    let penalty = read_penalty(&mut fields, punishing, problems);
    let warn_at = read_warn_at(&mut fields, kind, problems);
    let reservations = read_reservations(&mut fields, kind, problems);
    fields.finish(problems);
    let Counted { algorithm, limit, windows, burst } = counted;
    let name = name?;
    Some(Rule {
        name,
        domain,
        conditions,
        per,
        algorithm,
        limit,
        window: windows.length(),
        calendar: windows.calendar(),
        burst,
        group,
        priority,
        action,
        max_delay,
        status,
        message,
        on_failure,
        exact,
        enabled,
        global,
        split_keys,
        charge,
        debt,
        reservations,
        answer,
        price,
        penalty,
        warn_at,
    })
}

/// The kind of a rule, and whether several counts make up one bucket.
#[derive(Clone, Copy)]
struct RuleCounts {
    kind: RuleKind,
    /// True if several counts make up one bucket.
    several: bool,
}

/// Reads which calls are charged, and what becomes of what exceeds the limit.
fn read_charge(
    fields: &mut Fields<'_>,
    RuleCounts { kind: RuleKind { action, algorithm, .. }, several }: RuleCounts,
    problems: &mut Problems<'_>,
) -> (Charging, Debt) {
    let charge = fields.word("charge", &CHARGES, problems).unwrap_or_default();
    let debt = fields.word("debt", &DEBTS, problems).unwrap_or(Debt::Carry { max: None });
    let most = if algorithm == Algorithm::SlidingLog { SLIDING_LOG_LIMIT_MAX } else { DEBT_MAX };
    let max = fields.integer("debt_max", 0, i64::from(most), problems);
    let max = max.and_then(|max| u32::try_from(max).ok());
    let mut refuse = |name: &'static str, why: &str| {
        if let Some(entry) = fields.take(name) {
            problems.report(&entry.node.at, format!("{name} {why}"));
        }
    };
    for name in ["charge", "debt", "debt_max"] {
        if !action.counts() {
            refuse(name, "belongs to rules that count; allow and block charge nothing");
        } else if algorithm == Algorithm::Concurrency {
            refuse(name, "does not go with concurrency, whose places are held and given back, not charged");
        }
    }
    if charge == Charging::Always && action == Action::Throttle {
        let why =
            "does not go with action = \"throttle\": what is reported has happened, and cannot be delayed";
        refuse("charge", &format!("= \"always\" {why}"));
    }
    match debt {
        Debt::Carry { .. } => return (charge, Debt::Carry { max }),
        Debt::Forgive => {
            refuse("debt_max", "does not go with debt = \"forgive\", which lets nothing be owed");
        }
        Debt::Window => {
            refuse("debt_max", "does not go with debt = \"window\", which lets nothing be owed");
            if action.counts() && algorithm != Algorithm::FixedWindow {
                refuse("debt", "= \"window\" belongs to algorithm = \"fixed_window\"");
            } else if several {
                refuse(
                    "debt",
                    "= \"window\" does not go with global or split_keys: several counts do not know what exceeds \
                     the limit of all",
                );
            }
        }
    }
    (charge, debt)
}

fn read_split_keys(
    fields: &mut Fields<'_>,
    action: Action,
    counted: &Counted,
    worldwide: bool,
    problems: &mut Problems<'_>,
) -> u32 {
    let parts = fields.integer("split_keys", 1, i64::from(SPLIT_KEYS_MAX), problems);
    let parts = parts.and_then(|parts| u32::try_from(parts).ok()).unwrap_or(1);
    let Some(entry) = fields.take("split_keys").filter(|_| parts > 1) else { return parts };
    let at = &entry.node.at;
    if !action.counts() {
        problems.report(at, "split_keys belongs to rules that count; allow and block have no keys");
    } else if worldwide {
        problems.report(at, "split_keys does not go with [rules.global]: the world counts each key as one");
    } else if counted.algorithm == Algorithm::Concurrency {
        problems
            .report(at, "split_keys does not go with concurrency: a place is given back where it was taken");
    } else if counted.algorithm == Algorithm::LeakyBucket || action == Action::Throttle {
        problems
            .report(at, "split_keys does not go with leaky_bucket or throttle: parts cannot keep one pace");
    } else if counted.limit > 0 && counted.limit.min(counted.burst) < parts {
        let limit = counted.limit.min(counted.burst);
        let sentence = format!(
            "split_keys must be at most the limit and burst ({limit}), so that each part has a permit"
        );
        problems.report(at, sentence);
    }
    parts
}

/// The limit of a rule: what it admits, and how it counts.
struct Counted {
    algorithm: Algorithm,
    limit: u32,
    windows: Windows,
    burst: u32,
}

fn read_limit(fields: &mut Fields<'_>, action: Action, problems: &mut Problems<'_>) -> Counted {
    let has_calendar = fields.has("calendar");
    let written = fields.word("algorithm", &ALGORITHMS, problems);
    let usual = if has_calendar { Algorithm::FixedWindow } else { Algorithm::SlidingWindow };
    let algorithm = written.unwrap_or(usual);
    if action.counts() {
        if !fields.has("limit") {
            problems.report(fields.at, "limit is missing: a rule that counts needs one");
        }
        if algorithm != Algorithm::Concurrency && !fields.has("window") && !has_calendar {
            problems.report(fields.at, "window is missing: a rule that counts needs one, such as \"1m\"");
        }
    }
    let limit = read_permits(fields, algorithm, problems).unwrap_or(0);
    if algorithm == Algorithm::Concurrency {
        let hold = read_hold(fields, action, problems);
        return Counted { algorithm, limit, windows: hold.into(), burst: limit };
    }
    let sentence = "hold belongs to algorithm = \"concurrency\", whose places are held; what is charged over time has a window";
    fields.refuse("hold", sentence, problems);
    let windows = read_windows(fields, written, problems);
    let written = fields.count("burst", 1, problems);
    if algorithm.counting() == Counting::Window
        && let Some(entry) = fields.take("burst")
        && written.is_some_and(|burst| burst != limit)
    {
        let sentence = "burst has no effect on windows, which admit limit at once: remove it, or write algorithm = \
                        \"token_bucket\", \"leaky_bucket\" or \"gcra\"";
        problems.report(&entry.node.at, sentence);
    }
    let burst = match algorithm.counting() {
        Counting::Window => limit,
        Counting::Level | Counting::Concurrency => written.unwrap_or(limit),
    };
    Counted { algorithm, limit, windows, burst }
}

/// The time for which a place of a `concurrency` rule is held without renewing.
fn read_hold(fields: &mut Fields<'_>, action: Action, problems: &mut Problems<'_>) -> Span {
    if action.counts() && !fields.has("hold") {
        let why = "for how long a holder that is never heard of again keeps its place, such as \"30s\"";
        problems.report(fields.at, format!("hold is missing: a concurrency rule says {why}"));
    }
    let hold = fields.span("hold", HOLD_MIN, HOLD_MAX, problems).unwrap_or(Span::from_secs(1));
    let no_window = "window does not go with concurrency, which counts what is held now: write hold instead";
    fields.refuse("window", no_window, problems);
    for name in ["calendar", "time_zone", "starts_on"] {
        let sentence =
            format!("{name} does not go with concurrency, which counts what is held now: write hold instead");
        fields.refuse(name, &sentence, problems);
    }
    fields.refuse(
        "burst",
        "burst does not go with concurrency: limit is the most places held at once",
        problems,
    );
    hold
}

/// Places that are held elsewhere cannot be told soon enough to be counted here.
fn refuse_gossip(
    fields: &mut Fields<'_>,
    algorithm: Algorithm,
    global: Option<&Global>,
    problems: &mut Problems<'_>,
) {
    let gossips = global.is_some_and(|global| global.mode == Mode::Gossip);
    if let (true, true, Some(entry)) = (algorithm == Algorithm::Concurrency, gossips, fields.take("global")) {
        let sentence = "mode = \"gossip\" does not go with concurrency, of which a late count would admit too many for as \
                        long as requests last: write \"escrow\" (exact) or \"split\"";
        problems.report(&entry.node.at, sentence);
    }
}

fn read_permits(fields: &mut Fields<'_>, algorithm: Algorithm, problems: &mut Problems<'_>) -> Option<u32> {
    let node = &fields.take("limit")?.node;
    let limit = u32::try_from(integer(node, "limit", 0, i64::from(u32::MAX), problems)?).ok()?;
    let max = limit_max(algorithm);
    if limit > max {
        let (what, why) = match algorithm {
            Algorithm::Concurrency => ("concurrency rule", "every holder is remembered"),
            _ => ("sliding_log", "the log remembers every admission; sliding_window takes any limit"),
        };
        problems.report(&node.at, format!("limit of a {what} must be at most {max}, not {limit}: {why}"));
        return None;
    }
    Some(limit)
}

fn read_max_delay(
    fields: &mut Fields<'_>,
    action: Action,
    algorithm: Algorithm,
    problems: &mut Problems<'_>,
) -> Span {
    let max_delay = fields.span("max_delay", Span::from_millis(1), MAX_DELAY_MAX, problems);
    if action != Action::Throttle {
        if let (Some(_), Some(entry)) = (max_delay, fields.take("max_delay")) {
            let sentence = "max_delay belongs to action = \"throttle\": no other action delays a request";
            problems.report(&entry.node.at, sentence);
        }
        return Span::ZERO;
    }
    if !fields.has("max_delay") {
        let hint = "throttle needs the longest delay that a request may get, such as \"500ms\"";
        problems.report(fields.at, format!("max_delay is missing: {hint}"));
    }
    if algorithm.counting() != Counting::Level {
        let at = fields.take("action").map_or(fields.at, |entry| &entry.node.at);
        problems.report(at, "action = \"throttle\" needs algorithm token_bucket, leaky_bucket or gcra: only these keep a pace");
    }
    max_delay.unwrap_or(Span::ZERO)
}

fn read_per(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Vec<String> {
    let per = fields.texts("per", TEXT_BYTES_MAX, problems).unwrap_or_default();
    if per.len() > ATTRIBUTES_MAX {
        problems.report(
            fields.at,
            format!("per must name at most {ATTRIBUTES_MAX} attributes, not {}", per.len()),
        );
    }
    per
}

fn read_match(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Vec<Condition> {
    let Some(table) = fields.table("match", problems) else { return Vec::new() };
    if table.entries().len() > ATTRIBUTES_MAX {
        let len = table.entries().len();
        problems.report(table.at, format!("match must name at most {ATTRIBUTES_MAX} attributes, not {len}"));
    }
    table.entries().iter().filter_map(|entry| read_condition(entry, problems)).collect()
}

fn read_condition(entry: &TreeEntry, problems: &mut Problems<'_>) -> Option<Condition> {
    let attribute = entry.key.clone();
    if attribute.is_empty() || attribute.len() > TEXT_BYTES_MAX {
        problems.report(&entry.at, format!("an attribute's name must have 1 to {TEXT_BYTES_MAX} bytes"));
    }
    let what = "a value to match";
    let any_of: Vec<Pattern> = match &entry.node.value {
        Value::List(items) => {
            if items.is_empty() {
                problems.report(&entry.node.at, "an empty list matches nothing: list at least one value");
            }
            items.iter().filter_map(|item| read_pattern(&attribute, item, what, problems)).collect()
        }
        Value::Text(_) => read_pattern(&attribute, &entry.node, what, problems).into_iter().collect(),
        other => {
            let kind = other.kind();
            problems.report(
                &entry.node.at,
                format!("{what} must be a text in quotes or a list of them, not {kind}"),
            );
            return None;
        }
    };
    Some(Condition { attribute, any_of })
}

fn read_pattern(
    attribute: &str,
    node: &TreeNode,
    what: &str,
    problems: &mut Problems<'_>,
) -> Option<Pattern> {
    let text = text(node, what, TEXT_BYTES_MAX, problems)?;
    if attribute == "ip" && text != "*" {
        return read_network(text, &node.at, problems).map(Pattern::Network);
    }
    Some(if text.contains('*') { Pattern::Glob(text.to_owned()) } else { Pattern::Exact(text.to_owned()) })
}

fn read_network(text: &str, at: &At, problems: &mut Problems<'_>) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address.to_canonical())),
        Err(_) => text.parse::<IpNet>().ok(),
    };
    if network.is_none() {
        let expected = "an address, a network such as \"10.0.0.0/8\", or \"*\"";
        let glob = if text.contains('*') { ": globs do not apply to addresses" } else { "" };
        problems.report(at, format!("ip must be {expected}, not {text:?}{glob}"));
    }
    network
}

fn read_global(
    fields: &mut Fields<'_>,
    action: Action,
    regions: &[String],
    problems: &mut Problems<'_>,
) -> Option<Global> {
    let mut global = fields.table("global", problems)?;
    if !action.counts() {
        problems.report(global.at, "global belongs to rules that count; allow and block need none");
    }
    let mode = global.word("mode", &MODES, problems).unwrap_or(Mode::Gossip);
    let shares = read_shares(&mut global, regions, problems);
    let minimums = read_minimums(&mut global, regions, mode, problems);
    if mode != Mode::Gossip && shares.is_empty() && regions.is_empty() {
        let hint = "write shares here, or list the regions in peers.regions of tidegate.toml";
        problems.report(
            global.at,
            format!("mode = \"{}\" does not say which regions share the limit: {hint}", word_of(mode)),
        );
    }
    let on_partition = global.word("on_partition", &PARTITIONS, problems).unwrap_or_default();
    if mode != Mode::Gossip
        && on_partition != OnPartition::Share
        && let Some(entry) = global.take("on_partition")
    {
        let mode = word_of(mode);
        let sentence = format!(
            "on_partition belongs to mode = \"gossip\": with \"{mode}\" each side of a cut spends what it holds"
        );
        problems.report(&entry.node.at, sentence);
    }
    let wait = read_wait(&mut global, mode, problems);
    global.finish(problems);
    Some(Global { mode, shares, minimums, on_partition, wait })
}

/// Longest `wait`: a gateway does not hold a request back for longer.
const WAIT_MAX: Span = Span::from_secs(5);

fn read_wait(global: &mut Fields<'_>, mode: Mode, problems: &mut Problems<'_>) -> Span {
    let wait = global.span("wait", Span::ZERO, WAIT_MAX, problems).unwrap_or(Span::ZERO);
    if let (true, Some(entry)) = (mode != Mode::Escrow, global.take("wait")) {
        problems
            .report(&entry.node.at, "wait belongs to mode = \"escrow\": only there rights are on their way");
    }
    wait
}

/// The word for a mode.
fn word_of(mode: Mode) -> &'static str {
    MODES.iter().find(|(_, known)| *known == mode).map_or("", |(word, _)| word)
}

fn read_shares(
    global: &mut Fields<'_>,
    regions: &[String],
    problems: &mut Problems<'_>,
) -> Vec<(String, u32)> {
    let Some(table) = global.table("shares", problems) else { return Vec::new() };
    let (mut shares, mut sum) = (Vec::new(), 0_u64);
    for entry in table.entries() {
        check_region(entry, regions, problems);
        let weight = integer(&entry.node, "a share", 0, i64::from(u32::MAX), problems).unwrap_or(1);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        sum += u64::from(weight);
        shares.push((entry.key.clone(), weight));
    }
    if sum == 0 {
        problems.report(table.at, "shares must give at least one region a weight above 0");
    }
    shares
}

fn check_region(entry: &TreeEntry, regions: &[String], problems: &mut Problems<'_>) {
    if !regions.is_empty() && !regions.contains(&entry.key) {
        let near = suggestion(&entry.key, regions.iter().map(String::as_str));
        let near = near.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
        problems.report(&entry.at, format!("region {:?} is not one of peers.regions{near}", entry.key));
    }
}

fn read_minimums(
    global: &mut Fields<'_>,
    regions: &[String],
    mode: Mode,
    problems: &mut Problems<'_>,
) -> Vec<(String, u32)> {
    let Some(table) = global.table("minimums", problems) else { return Vec::new() };
    if mode != Mode::Split {
        problems.report(
            table.at,
            "minimums belong to mode = \"split\"; the other modes move what a region may spend",
        );
    }
    let mut minimums = Vec::new();
    for entry in table.entries() {
        check_region(entry, regions, problems);
        let percent =
            integer(&entry.node, "a minimum in percent of the limit", 0, 100, problems).unwrap_or(0);
        minimums.push((entry.key.clone(), u32::try_from(percent).unwrap_or(100)));
    }
    let sum: u32 = minimums.iter().map(|(_, percent)| percent).sum();
    if sum > 100 {
        problems.report(
            table.at,
            format!("minimums must not add up to more than 100 percent, and these are {sum}"),
        );
    }
    minimums
}
