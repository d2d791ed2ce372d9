//! The rules of the reference service as they are, from its files or from a server of xDS. Rules that that
//! service refuses are refused.

use serde_json::{Map, Value, json};

use super::tree::{self, Amount, DescriptorEntry, Purpose, Tree};
use super::xds::messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use crate::core::envoy::{EntryLimit, EntryValue, LimitRate, ServiceEntry, ServiceRules};
use crate::core::time::Span;
use crate::core::written::parse_span;
use crate::database::imported::Unread;
use crate::database::imported::meaning::Wanted;

/// Names of units, by their numbers.
const UNITS: [&str; 8] = ["", "second", "minute", "hour", "day", "month", "year", "week"];

/// Reads files, each by the name that sentences give it and its text. `merge`: one domain may stand in
/// several.
///
/// # Errors
/// Every problem, a sentence each.
pub fn rules_of_texts(files: &[(String, String)], merge: bool) -> Result<ServiceRules, Vec<String>> {
    rules_of(files.iter().map(|(file, text)| (file.clone(), tree::read(file, text, Purpose::Service))), merge)
}

/// Reads what a server of xDS has sent.
///
/// # Errors
/// Every problem, a sentence each.
pub(super) fn rules_of_messages(
    messages: &[RateLimitConfig],
    merge: bool,
) -> Result<ServiceRules, Vec<String>> {
    let trees = messages.iter().map(|message| {
        let name = if message.name.is_empty() { &message.domain } else { &message.name };
        (name.clone(), tree::of_value(name, written(message), Purpose::Service))
    });
    rules_of(trees, merge)
}

fn rules_of(
    trees: impl Iterator<Item = (String, Result<Tree, Unread>)>,
    merge: bool,
) -> Result<ServiceRules, Vec<String>> {
    let (mut problems, mut domains) = (Vec::new(), Vec::<(String, Vec<DescriptorEntry>)>::new());
    for (file, tree) in trees {
        let tree = match tree {
            Ok(tree) => tree,
            Err(unread) => {
                problems.push(unread.to_string());
                continue;
            }
        };
        problems.extend(tree.inexact);
        let Some((_, entries)) = domains.iter_mut().find(|(name, _)| *name == tree.domain) else {
            domains.push((tree.domain, tree.descriptors));
            continue;
        };
        if !merge {
            problems.push(format!("{file}: the domain {} stands in another one too", tree.domain));
        }
        for entry in tree.descriptors {
            if entries.iter().any(|own| own.is_for_the_same(&entry)) {
                problems.push(format!("{file}: {} stands in another one too", entry.shown()));
            } else {
                entries.push(entry);
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let domains = domains.into_iter().map(|(name, entries)| (name, entries.into_iter().map(entry).collect()));
    Ok(ServiceRules::new(domains.collect()))
}

fn entry(read: DescriptorEntry) -> ServiceEntry {
    let rate = |amount| match amount {
        Amount::Unlimited => None,
        Amount::Rate { requests, window } => {
            Some(LimitRate { permits: requests, window: parse_span(window).unwrap_or(Span::ZERO) })
        }
    };
    ServiceEntry {
        value: match read.wanted {
            Wanted::Any => EntryValue::Any,
            Wanted::Value(value) => EntryValue::Exact(value),
            Wanted::Glob(text) => EntryValue::Glob(text),
        },
        limit: read.limit.map(|amount| EntryLimit {
            rate: rate(amount),
            name: read.name,
            replaces: read.replaces,
        }),
        key: read.key,
        shadow: read.shadow,
        quota: read.quota,
        shared: read.shared,
        detailed: read.detailed,
        value_to_metric: read.value_to_metric,
        metadata: read.metadata,
        entries: read.descriptors.into_iter().map(entry).collect(),
    }
}

/// A message as a file would say it.
fn written(message: &RateLimitConfig) -> Value {
    json!({ "domain": message.domain, "descriptors": descriptors(&message.descriptors) })
}

fn descriptors(list: &[RateLimitDescriptor]) -> Value {
    list.iter()
        .map(|one| {
            let mut fields = Map::new();
            fields.insert("key".to_owned(), json!(one.key));
            fields.insert("value".to_owned(), json!(one.value));
            fields.insert("descriptors".to_owned(), descriptors(&one.descriptors));
            for (name, flag) in [
                ("shadow_mode", one.shadow_mode),
                ("detailed_metric", one.detailed_metric),
                ("quota_mode", one.quota_mode),
            ] {
                fields.insert(name.to_owned(), json!(flag));
            }
            let metadata = one.metadata.as_ref().map(|metadata| Value::Object(metadata.to_json()));
            fields.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
            let limit = one.rate_limit.as_ref().map(limit);
            fields.extend(limit.map(|limit| ("rate_limit".to_owned(), limit)));
            Value::Object(fields)
        })
        .collect()
}

fn limit(policy: &RateLimitPolicy) -> Value {
    let unit = usize::try_from(policy.unit).ok().and_then(|unit| UNITS.get(unit)).copied();
    // An unlimited one has no unit, which is 0 here.
    let unit = match unit {
        Some("") => None,
        unit => Some(unit.map_or_else(|| policy.unit.to_string(), str::to_owned)),
    };
    json!({
        "unit": unit,
        "requests_per_unit": policy.requests_per_unit,
        "unlimited": policy.unlimited,
        "name": policy.name,
        "replaces": policy.replaces.iter().map(|one| json!({ "name": one.name })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let files = [("f.yaml".to_owned(), text.to_owned())];
        rules_of_texts(&files, false).map(drop).err().unwrap_or_default()
    }

    fn of(descriptor: &str) -> String {
        format!("domain: d\ndescriptors:\n  - {descriptor}\n")
    }

    #[test]
    fn what_the_service_refuses_is_refused_with_the_name_of_its_file() {
        let limit = "rate_limit: { unit: minute, requests_per_unit: 1 }";
        for (case, text, why) in [
            (127, of(&format!("{{ key: a, odd: 1, {limit} }}")), "odd: is no key that the service knows"),
            (127, of("{ key: a, descriptors: { key: b } }"), "descriptors: must be a list"),
            (127, of("just text"), "must be a descriptor with a key"),
            (127, "domain: [".to_owned(), "is no YAML"),
            (128, "descriptors: []".to_owned(), "domain is missing"),
            (128, of(&format!("{{ key: \"\", {limit} }}")), "has no key"),
            (128, of(&format!("{{ key: a, {limit} }}\n  - {{ key: a, {limit} }}")), "stands there twice"),
            (128, of("{ key: a, rate_limit: { requests_per_unit: 1 } }"), "unit: must be second"),
            (128, of("{ key: a, rate_limit: { unit: eon, requests_per_unit: 1 } }"), "unit: must be second"),
            (128, of("{ key: a, rate_limit: { unlimited: true, unit: day } }"), "stands beside unlimited"),
            (
                128,
                of("{ key: a, rate_limit: { unit: day, name: x, replaces: [{ name: x }] } }"),
                "names its own limit",
            ),
            (
                128,
                of("{ key: a, rate_limit: { unit: day, replaces: [{ name: \"\" }] } }"),
                "must have the name of a limit",
            ),
            (128, of(&format!("{{ key: a, share_threshold: true, {limit} }}")), "needs a value with a *"),
        ] {
            let told = problems(&text);
            assert!(told.iter().any(|one| one.contains(why)), "case {case}: {text}: {told:?}");
            assert!(told.iter().all(|one| one.starts_with("f.yaml")), "{told:?}");
        }
    }

    #[test]
    fn texts_mean_themselves_and_units_are_written_as_one_likes() {
        for (case, text) in [
            (47, of("{ key: a, rate_limit: { unit: Minute, requests_per_unit: 1 } }")),
            (47, of("{ key: a, rate_limit: { unit: MINUTE, requests_per_unit: 1 } }")),
            (139, of("{ key: remote_address, value: 10.0.0.0/8, rate_limit: { unit: day } }")),
            (23, of("{ key: k, value: a/*, descriptors: [{ key: k, rate_limit: { unit: day } }] }")),
        ] {
            assert_eq!(problems(&text), [""; 0], "case {case}");
        }
    }

    #[test]
    fn one_domain_stands_in_several_files_only_where_they_are_merged() {
        let file = |name: &str, key: &str| {
            let text = of(&format!("{{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}"));
            (name.to_owned(), text)
        };
        let two = [file("1.yaml", "a"), file("2.yaml", "b")];
        assert_eq!(
            rules_of_texts(&two, false).unwrap_err(),
            ["2.yaml: the domain d stands in another one too"],
            "case 120"
        );
        assert_eq!(rules_of_texts(&two, true).unwrap().limits().len(), 2, "case 120");
        let twice = [file("1.yaml", "a"), file("2.yaml", "a")];
        assert_eq!(
            rules_of_texts(&twice, true).unwrap_err(),
            ["2.yaml: the descriptor a stands in another one too"],
            "case 120"
        );
    }

    #[test]
    fn messages_are_read_as_files_are() {
        let policy = RateLimitPolicy { unit: 2, requests_per_unit: 7, ..RateLimitPolicy::default() };
        let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
        let descriptor = |key: &str, policy: &RateLimitPolicy| RateLimitDescriptor {
            key: key.to_owned(),
            rate_limit: Some(policy.clone()),
            quota_mode: true,
            ..RateLimitDescriptor::default()
        };
        let message = |policy: &RateLimitPolicy| RateLimitConfig {
            name: "n".to_owned(),
            domain: "d".to_owned(),
            descriptors: vec![descriptor("k", policy), descriptor("u", &unlimited)],
        };
        let rules = rules_of_messages(&[message(&policy)], false).unwrap();
        let rate = LimitRate { permits: 7, window: Span::from_secs(60) };
        assert_eq!((rules.limits()[0].rate, rules.limits()[0].quota), (Some(rate), true));
        assert_eq!(rules.limits()[1].rate, None, "case 129");
        let odd = RateLimitPolicy { unit: 9, ..policy };
        assert_eq!(
            rules_of_messages(&[message(&odd)], false).unwrap_err()[0],
            "n: descriptors[0].rate_limit.unit: must be second, minute, hour, day, week, month or year",
            "case 119"
        );
    }
}
