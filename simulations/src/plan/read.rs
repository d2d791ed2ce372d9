//! Reads a scenario file. Every problem is told at once, each with its line and column.

use tidegate::core::algorithm::{Algorithm, WINDOW_MIN};
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;
use tidegate::core::written::{Fields, Problem, Problems, TreeNode, Value, parse_span, suggestion};

use super::{Demand, Fault, FaultKind, GatewayKind, Plan, Region, RulePlan, StoreKind, Way};
use crate::number::index;
use crate::pattern::Pattern;
use crate::virtual_world::{Dice, Weather};

/// Longest text.
const TEXT_MAX: usize = 2_000;
const REGIONS_MAX: usize = 50;
const DAY: Span = Span::from_secs(86_400);

const ALGORITHMS: [(&str, Algorithm); 6] = [
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_window", Algorithm::SlidingWindow),
    ("sliding_log", Algorithm::SlidingLog),
    ("token_bucket", Algorithm::TokenBucket),
    ("leaky_bucket", Algorithm::LeakyBucket),
    ("gcra", Algorithm::Gcra),
];
const PARTITIONS: [(&str, OnPartition); 5] = [
    ("share", OnPartition::Share),
    ("freeze", OnPartition::Freeze),
    ("last_known", OnPartition::LastKnown),
    ("ignore", OnPartition::Ignore),
    ("deny", OnPartition::Deny),
];

/// The faults, by the words of scenario files.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Cut,
    Crash,
    StoreLost,
    ClockStep,
    Limit,
    Weights,
    Storm,
    Slow,
    Stop,
    Restart,
    Roll,
    PrimaryLost,
    Failover,
    StoreFlushed,
    DatabaseLost,
    DatabaseFrozen,
    DatabaseReadOnly,
    StoreFull,
    StoreFrozen,
    DiskFull,
    GatewayLost,
    LogLost,
    Certificates,
    CertificatesEnd,
    Leave,
    Join,
    Renamed,
}

const KINDS: [(&str, Kind); 27] = [
    ("cut", Kind::Cut),
    ("crash", Kind::Crash),
    ("store-lost", Kind::StoreLost),
    ("clock-step", Kind::ClockStep),
    ("limit", Kind::Limit),
    ("weights", Kind::Weights),
    ("storm", Kind::Storm),
    ("slow", Kind::Slow),
    ("stop", Kind::Stop),
    ("restart", Kind::Restart),
    ("roll", Kind::Roll),
    ("primary-lost", Kind::PrimaryLost),
    ("failover", Kind::Failover),
    ("store-flushed", Kind::StoreFlushed),
    ("database-lost", Kind::DatabaseLost),
    ("database-frozen", Kind::DatabaseFrozen),
    ("database-read-only", Kind::DatabaseReadOnly),
    ("store-full", Kind::StoreFull),
    ("store-frozen", Kind::StoreFrozen),
    ("disk-full", Kind::DiskFull),
    ("gateway-lost", Kind::GatewayLost),
    ("log-lost", Kind::LogLost),
    ("certificates", Kind::Certificates),
    ("certificates-end", Kind::CertificatesEnd),
    ("leave", Kind::Leave),
    ("join", Kind::Join),
    ("renamed", Kind::Renamed),
];

/// The words of all faults.
#[cfg(test)]
pub(crate) fn fault_words() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(word, _)| *word)
}

/// Reads a scenario. `file` is how problems name it.
///
/// # Errors
/// Every problem, in the order of the text.
pub(crate) fn read(file: &str, text: &str) -> Result<Plan, Vec<Problem>> {
    let mut problems = Problems::new(file, text);
    let root = match TreeNode::from_toml(text) {
        Ok(root) => root,
        Err((at, message)) => {
            problems.report(&at, message);
            return Err(problems.into_list());
        }
    };
    match whole(&root, &mut problems) {
        Some(plan) if problems.is_empty() => Ok(plan),
        _ => Err(problems.into_list()),
    }
}

fn whole(root: &TreeNode, problems: &mut Problems<'_>) -> Option<Plan> {
    let mut fields = Fields::open(root, problems)?;
    let name = fields.text("name", 100, problems).unwrap_or("scenario").to_owned();
    let about = fields.text("about", TEXT_MAX, problems).unwrap_or_default().to_owned();
    let length = fields.span("length", Span::from_millis(100), DAY, problems).unwrap_or(Span::from_secs(60));
    let step = fields.span("step", Span::from_millis(1), Span::from_secs(1), problems);
    let seed = fields.integer("seed", 0, i64::MAX, problems).map_or(1, i64::unsigned_abs);
    let interval = fields.span("interval", Span::from_millis(10), Span::from_secs(60), problems);
    let shared_store = fields.boolean("shared_store", problems).unwrap_or(false);
    // The daemons of a region may share their store, which may be a cluster.
    let store = fields.word("store", &StoreKind::WORDS, problems);
    let shared_store = shared_store || store.is_some_and(|store| store != StoreKind::Memory);
    let cluster = store == Some(StoreKind::Cluster);
    let gateway = fields.word("gateway", &GatewayKind::WORDS, problems).unwrap_or_default();
    let database = fields.boolean("database", problems).unwrap_or(false);
    let keys_max = fields.integer("keys_max", 1, 10_000_000, problems).map_or(100_000, i64::unsigned_abs);
    let store_keys_max =
        fields.integer("store_keys_max", 1_000, 4_000_000_000, problems).map(i64::unsigned_abs);
    let ways = ways(&mut fields, problems);
    let regions = regions(&mut fields, problems);
    let rule = rule(&mut fields, problems)?;
    let weather = weather(&mut fields, &regions, seed, problems);
    let demand = demand(&mut fields, regions.len(), rule.window, problems)?;
    let faults = faults(&mut fields, &regions, problems);
    fields.finish(problems);
    Some(Plan {
        name,
        about,
        regions,
        rule,
        weather,
        demand,
        faults,
        ways,
        length,
        step: step.unwrap_or(Span::from_millis(1)),
        seed,
        interval: interval.unwrap_or(Span::from_millis(100)),
        shared_store,
        cluster,
        gateway,
        database,
        keys_max: index(keys_max),
        store_keys_max,
        suppresses_reports: true,
    })
}

fn ways(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Vec<Way> {
    let mut ways = Vec::new();
    for node in fields.list("ways", problems).unwrap_or_default() {
        let Value::Text(text) = &node.value else {
            problems.report(&node.at, format!("a way is a text, not {}", node.value.kind()));
            continue;
        };
        match Way::WORDS.iter().find(|(word, _)| word == text) {
            Some((_, way)) if ways.contains(way) => {
                problems.report(&node.at, format!("{text:?} is named twice"));
            }
            Some((_, way)) => ways.push(*way),
            None => {
                let near = suggestion(text, Way::WORDS.map(|(word, _)| word));
                let known = Way::WORDS.map(|(word, _)| word).join(", ");
                let near = near.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
                problems.report(&node.at, format!("{text:?} is no way to hold a limit: {known}{near}"));
            }
        }
    }
    if ways.is_empty() { Way::WORDS.map(|(_, way)| way).to_vec() } else { ways }
}

fn regions(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Vec<Region> {
    let Some(nodes) = fields.list("regions", problems) else {
        return (0..3).map(Region::numbered).collect();
    };
    if !(1..=REGIONS_MAX).contains(&nodes.len()) {
        problems.report(fields.at, format!("regions must be from 1 to {REGIONS_MAX} tables"));
    }
    let mut regions: Vec<Region> = Vec::new();
    for (place, node) in nodes.iter().enumerate() {
        let Some(mut fields) = Fields::open(node, problems) else { continue };
        let mut region = Region::numbered(place);
        if let Some(name) = fields.text("name", 64, problems) {
            name.clone_into(&mut region.name);
        }
        if regions.iter().any(|known| known.name == region.name) {
            problems.report(&node.at, format!("two regions are named {:?}", region.name));
        }
        region.daemons = fields.integer("daemons", 1, 16, problems).map_or(1, |n| index(n.unsigned_abs()));
        region.store = fields.word("store", &StoreKind::WORDS, problems);
        region.weight =
            fields.integer("weight", 0, 1_000_000, problems).and_then(|n| u32::try_from(n).ok()).unwrap_or(1);
        region.ahead = signed_span(&mut fields, "ahead", problems).unwrap_or(0);
        region.drift_ppm = fields.integer("drift_ppm", -100_000, 100_000, problems).unwrap_or(0);
        fields.finish(problems);
        regions.push(region);
    }
    regions
}

/// A duration that may be negative: `"-3ms"`.
fn signed_span(fields: &mut Fields<'_>, key: &'static str, problems: &mut Problems<'_>) -> Option<i64> {
    let node = &fields.take(key)?.node;
    let Value::Text(text) = &node.value else {
        problems.report(&node.at, format!("{key} must be a duration in quotes, such as \"-3ms\""));
        return None;
    };
    let (sign, rest) = text.strip_prefix('-').map_or((1, text.as_str()), |rest| (-1, rest));
    let span = parse_span(rest).and_then(|span| i64::try_from(span.0).ok());
    if span.is_none() {
        problems.report(&node.at, format!("{key} must be a duration such as \"-3ms\", not {text:?}"));
    }
    Some(sign * span?)
}

/// A part of a whole: `"2.5%"`.
fn percent(fields: &mut Fields<'_>, key: &'static str, max: f64, problems: &mut Problems<'_>) -> Option<f64> {
    let node = &fields.take(key)?.node;
    let part = match &node.value {
        Value::Text(text) => text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok()),
        _ => None,
    };
    match part.filter(|part| (0.0..=max).contains(part)) {
        Some(part) => Some(part / 100.0),
        None => {
            problems.report(&node.at, format!("{key} must be a part in quotes from \"0%\" to \"{max}%\""));
            None
        }
    }
}

fn rule(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Option<RulePlan> {
    let Some(mut rule) = fields.table("rule", problems) else {
        problems.report(fields.at, "rule is missing: [rule] needs a limit and a window");
        return None;
    };
    let limit = rule.count("limit", 1, problems);
    if !rule.has("limit") {
        problems.report(rule.at, "limit is missing: how many permits there are in a window");
    }
    let limit = limit.unwrap_or(1);
    let window = rule.span("window", WINDOW_MIN, DAY, problems).unwrap_or(Span::from_secs(1));
    let plan = RulePlan {
        limit,
        window,
        algorithm: rule.word("algorithm", &ALGORITHMS, problems).unwrap_or(Algorithm::FixedWindow),
        burst: rule.count("burst", 1, problems).unwrap_or(limit),
        on_partition: rule.word("on_partition", &PARTITIONS, problems).unwrap_or_default(),
        wait: rule
            .span("wait", Span::from_millis(1), Span::from_secs(10), problems)
            .unwrap_or(Span::from_millis(200)),
    };
    rule.finish(problems);
    Some(plan)
}

fn weather(fields: &mut Fields<'_>, regions: &[Region], seed: u64, problems: &mut Problems<'_>) -> Weather {
    let mut dice = Dice::new(seed, 3);
    let mut network = fields.table("network", problems);
    let rtt = network
        .as_mut()
        .and_then(|network| network.span("rtt", Span::from_millis(1), Span::from_secs(10), problems))
        .unwrap_or(Span::from_millis(80));
    let mut weather = Weather::spread(regions.len(), rtt, &mut dice);
    let Some(mut network) = network else { return weather };
    weather.jitter = percent(&mut network, "jitter", 1_000.0, problems).unwrap_or(weather.jitter);
    weather.loss = percent(&mut network, "loss", 100.0, problems).unwrap_or(weather.loss);
    weather.double = percent(&mut network, "duplicate", 100.0, problems).unwrap_or(0.0);
    weather.reorder = percent(&mut network, "reorder", 100.0, problems).unwrap_or(0.0);
    for node in network.list("links", problems).unwrap_or_default() {
        let Some(mut link) = Fields::open(node, problems) else { continue };
        let from = region_of(&mut link, "from", regions, problems);
        let to = region_of(&mut link, "to", regions, problems);
        let delay = link.span("delay", Span::ZERO, Span::from_secs(10), problems);
        let one_way = link.boolean("one_way", problems).unwrap_or(false);
        link.finish(problems);
        let (Some(from), Some(to), Some(delay)) = (from, to, delay) else {
            problems.report(&node.at, "a link needs from, to and delay");
            continue;
        };
        for (from, to) in [(from, to), (to, from)].into_iter().take(if one_way { 1 } else { 2 }) {
            if let Some(place) = weather.delay.get_mut(from).and_then(|row| row.get_mut(to)) {
                *place = delay;
            }
        }
    }
    network.finish(problems);
    weather
}

fn region_of(
    fields: &mut Fields<'_>,
    key: &'static str,
    regions: &[Region],
    problems: &mut Problems<'_>,
) -> Option<usize> {
    let entry = fields.take(key)?;
    let found = match &entry.node.value {
        Value::Text(text) => regions.iter().position(|region| region.name == *text),
        _ => None,
    };
    if found.is_none() {
        let known: Vec<&str> = regions.iter().map(|region| region.name.as_str()).collect();
        problems.report(&entry.node.at, format!("{key} must name a region: {}", known.join(", ")));
    }
    found
}

fn demand(
    fields: &mut Fields<'_>,
    regions: usize,
    window: Span,
    problems: &mut Problems<'_>,
) -> Option<Demand> {
    let Some(mut demand) = fields.table("demand", problems) else {
        problems.report(fields.at, "demand is missing: [demand] needs a pattern, such as \"bal2\"");
        return None;
    };
    let pattern = match demand.take("pattern").map(|entry| &entry.node) {
        Some(node) => {
            let pattern = match &node.value {
                Value::Text(text) => Pattern::parse(text, regions, window),
                _ => None,
            };
            if pattern.is_none() {
                let words = Pattern::words();
                problems.report(
                    &node.at,
                    format!("pattern must be a kind ({words}) and how many times the limit is asked for, such as \"bal2\""),
                );
            }
            pattern
        }
        None => {
            problems.report(demand.at, "pattern is missing");
            None
        }
    };
    let users = demand.integer("users", 1, 10_000_000, problems).map_or(1, i64::unsigned_abs);
    let zipf = demand.take("zipf").map(|entry| &entry.node).and_then(|node| {
        let zipf = match &node.value {
            Value::Text(text) => text.parse::<f64>().ok().filter(|zipf| (0.0..=10.0).contains(zipf)),
            _ => None,
        };
        if zipf.is_none() {
            problems
                .report(&node.at, "zipf must be a number in quotes from \"0\" to \"10\", such as \"1.1\"");
        }
        zipf
    });
    let cost = demand.integer("cost", 1, 1_000_000, problems).map_or(1, i64::unsigned_abs);
    let retry = demand.boolean("retry", problems).unwrap_or(false);
    demand.finish(problems);
    Some(Demand { pattern: pattern?, users, zipf: zipf.unwrap_or(1.0), cost, retry })
}

fn faults(fields: &mut Fields<'_>, regions: &[Region], problems: &mut Problems<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for node in fields.list("faults", problems).unwrap_or_default() {
        let Some(mut fault) = Fields::open(node, problems) else { continue };
        let at = fault.span("at", Span::ZERO, DAY, problems);
        let lasts = fault.span("for", Span::ZERO, DAY, problems).unwrap_or(Span::ZERO);
        let kind = kind(&mut fault, regions, problems);
        fault.finish(problems);
        match (at, kind) {
            (Some(at), Some(kind)) => faults.push(Fault { at, lasts, kind }),
            (None, _) => problems.report(&node.at, "a fault needs the time at which it begins: at = \"10s\""),
            (_, None) => {}
        }
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn kind(fault: &mut Fields<'_>, regions: &[Region], problems: &mut Problems<'_>) -> Option<FaultKind> {
    if !fault.has("kind") {
        let known = KINDS.map(|(word, _)| word).join(", ");
        problems.report(fault.at, format!("kind is missing: one of {known}"));
    }
    let kind = fault.word("kind", &KINDS, problems)?;
    let region = |fault: &mut Fields<'_>, problems: &mut Problems<'_>| {
        let region = region_of(fault, "region", regions, problems);
        if !fault.has("region") {
            problems.report(fault.at, "region is missing");
        }
        region
    };
    Some(match kind {
        Kind::Cut | Kind::Slow => {
            let names = fault.texts("regions", 64, problems).unwrap_or_default();
            let places: Vec<usize> = names
                .iter()
                .filter_map(|name| regions.iter().position(|region| region.name == *name))
                .collect();
            if places.is_empty() || places.len() != names.len() {
                problems.report(fault.at, "this fault needs regions = [...], each of them known");
            }
            let (inward, outward) = fault
                .word(
                    "direction",
                    &[("both", (true, true)), ("in", (true, false)), ("out", (false, true))],
                    problems,
                )
                .unwrap_or((true, true));
            if matches!(kind, Kind::Cut) {
                return Some(FaultKind::Cut { regions: places, inward, outward });
            }
            let by = fault.span("by", Span::from_millis(1), Span::from_secs(10), problems);
            let by = by.unwrap_or(Span::from_millis(200));
            FaultKind::Slow { regions: places, inward, outward, by }
        }
        Kind::Crash | Kind::Stop | Kind::Restart | Kind::DiskFull | Kind::LogLost | Kind::Renamed => {
            let region = region(fault, problems)?;
            let daemons = regions.get(region).map_or(1, |region| region.daemons);
            let last = i64::try_from(daemons).unwrap_or(1) - 1;
            let daemon = fault.integer("daemon", 0, last, problems).map_or(0, |n| index(n.unsigned_abs()));
            match kind {
                Kind::Stop => FaultKind::Stop { region, daemon },
                Kind::Restart => FaultKind::Restart { region, daemon },
                Kind::DiskFull => FaultKind::DiskFull { region, daemon },
                Kind::LogLost => FaultKind::LogLost { region, daemon },
                Kind::Renamed => FaultKind::Renamed { region, daemon },
                _ => FaultKind::Crash { region, daemon },
            }
        }
        Kind::Roll => FaultKind::Roll,
        Kind::PrimaryLost => FaultKind::PrimaryLost { region: region(fault, problems)? },
        Kind::Failover => FaultKind::Failover { region: region(fault, problems)? },
        Kind::StoreFlushed => FaultKind::StoreFlushed { region: region(fault, problems)? },
        Kind::DatabaseLost => FaultKind::DatabaseLost,
        Kind::DatabaseFrozen => FaultKind::DatabaseFrozen,
        Kind::DatabaseReadOnly => FaultKind::DatabaseReadOnly,
        Kind::StoreFull => FaultKind::StoreFull { region: region(fault, problems)? },
        Kind::StoreFrozen => FaultKind::StoreFrozen { region: region(fault, problems)? },
        Kind::GatewayLost => FaultKind::GatewayLost { region: region(fault, problems)? },
        Kind::Certificates => FaultKind::Certificates,
        Kind::CertificatesEnd => {
            let region = region(fault, problems)?;
            // A certificate says whole seconds.
            let after = fault.span("after", Span::from_secs(1), DAY, problems).unwrap_or(Span::from_secs(2));
            FaultKind::CertificatesEnd { region, after }
        }
        Kind::Leave => FaultKind::Leave { region: region(fault, problems)? },
        Kind::Join => {
            let region = region(fault, problems)?;
            FaultKind::Join { region, listed: fault.boolean("listed", problems).unwrap_or(true) }
        }
        Kind::StoreLost => FaultKind::StoreLost { region: region(fault, problems)? },
        Kind::ClockStep => {
            let region = region(fault, problems)?;
            FaultKind::ClockStep { region, by: signed_span(fault, "by", problems).unwrap_or(0) }
        }
        Kind::Limit => FaultKind::Limit(fault.count("limit", 1, problems)?),
        Kind::Weights => {
            let nodes = fault.list("weights", problems).unwrap_or_default();
            let weights: Vec<u32> = nodes
                .iter()
                .filter_map(|node| match node.value {
                    Value::Integer(weight) => u32::try_from(weight).ok(),
                    _ => None,
                })
                .collect();
            if weights.len() != regions.len() || weights.iter().all(|weight| *weight == 0) {
                problems.report(fault.at, "weights must be a list of one whole number for each region");
            }
            FaultKind::Weights(weights)
        }
        Kind::Storm => FaultKind::Storm {
            loss: percent(fault, "loss", 100.0, problems).unwrap_or(0.2),
            jitter: percent(fault, "jitter", 1_000.0, problems).unwrap_or(1.0),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        read("s.toml", text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_short_file_is_enough() {
        let plan =
            read("s.toml", "[rule]\nlimit = 10\nwindow = \"1s\"\n[demand]\npattern = \"bal2\"\n").unwrap();
        assert_eq!((plan.regions.len(), plan.rule.limit, plan.ways.len()), (3, 10, Way::WORDS.len()));
    }

    #[test]
    fn every_problem_is_told_at_once_with_its_place() {
        let text = "ways = [\"gosip\"]\n[rule]\nlimit = 0\nwindow = \"1s\"\n[demand]\npattern = \"wave3\"\n[network]\nloss = 5\n";
        let told = problems(text);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(
            told[0].starts_with("s.toml:1:9: ") && told[0].contains("did you mean \"gossip\"?"),
            "{told:?}"
        );
        assert!(told[1].starts_with("s.toml:3:9: "), "{told:?}");
        assert!(told[2].starts_with("s.toml:6:11: "), "{told:?}");
        assert!(told[3].starts_with("s.toml:8:8: loss must be a part in quotes"), "{told:?}");
    }

    #[test]
    fn faults_of_real_daemons_are_read_with_what_they_need() {
        let rest = "[rule]\nlimit = 10\nwindow = \"1s\"\n[demand]\npattern = \"bal2\"\n";
        let of = |fault: &str| format!("store_keys_max = 1000\n{rest}[[faults]]\nat = \"1s\"\n{fault}");
        let plan =
            read("s.toml", &of("kind = \"certificates-end\"\nregion = \"region-1\"\nafter = \"3s\"\n"))
                .unwrap();
        assert_eq!(plan.store_keys_max, Some(1_000));
        assert_eq!(plan.faults[0].kind, FaultKind::CertificatesEnd { region: 1, after: Span::from_secs(3) });
        let kind = |fault: &str| read("s.toml", &of(fault)).unwrap().faults.remove(0).kind;
        let of_region = |word: &str| kind(&format!("kind = \"{word}\"\nregion = \"region-2\"\n"));
        assert_eq!(of_region("leave"), FaultKind::Leave { region: 2 });
        assert_eq!(of_region("store-frozen"), FaultKind::StoreFrozen { region: 2 });
        assert_eq!(of_region("disk-full"), FaultKind::DiskFull { region: 2, daemon: 0 });
        assert!(problems(&of("kind = \"leave\"\n"))[0].contains("region is missing"));
        assert!(
            problems(&of("kind = \"disk-full\"\nregion = \"region-2\"\ndaemon = 1\n"))[0].contains("daemon")
        );
    }

    #[test]
    fn every_scenario_of_ours_can_be_read() {
        for file in crate::run::all().unwrap() {
            crate::run::load(&file).unwrap();
        }
    }
}
