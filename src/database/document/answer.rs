//! Reading what a rule wants of its answers: delay, headers, problem documents, partition keys, the unit; and
//! its prices.

use std::sync::Arc;

use serde::de::IgnoredAny;

use crate::core::algorithm::Algorithm;
use crate::core::answer::AnswerOptions;
use crate::core::price::{AttributePrice, Price, PriceTable};
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::rule::Action;
use crate::core::time::Span;
use crate::core::written::{Fields, Problems, TreeEntry, TreeNode, Value, text};

/// Longest delay for which the daemon holds an answer back itself.
const HELD_DELAY_MAX: Span = Span::from_secs(60);
/// Most headers of one kind: they travel with every answer.
const HEADERS_MAX: usize = 16;
/// Longest name of a header, in bytes.
const HEADER_NAME_BYTES_MAX: usize = 64;
/// Longest value of a header, in bytes.
const HEADER_VALUE_BYTES_MAX: usize = 1_024;
/// Longest media type of a denial's text, in bytes.
const MEDIA_TYPE_BYTES_MAX: usize = 128;
/// Longest name of a thing to use instead, in bytes.
const USE_BYTES_MAX: usize = 256;
/// Longest unit, in bytes.
const UNIT_BYTES_MAX: usize = 32;
/// Most prices of one rule: each request is compared with all of them.
const PRICES_MAX: usize = 256;
/// The values of `delay`, and whether the daemon then holds the answer back; else it tells the gateway to
/// delay the request.
const DELAYS: [(&str, bool); 2] = [("header", false), ("hold", true)];
/// Headers that frame the answer or that Tidegate writes itself.
const HEADERS_REFUSED: [&str; 15] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "host",
    "keep-alive",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];
/// The prefixes of headers that a rule may not set.
const PREFIXES_REFUSED: [&str; 5] = ["x-ratelimit-", "x-tidegate-", "x-envoy-", "proxy-", "grpc-"];

/// The part of a rule that decides which answer options it may have.
#[derive(Clone, Copy)]
pub(super) struct RuleKind {
    pub(super) action: Action,
    pub(super) algorithm: Algorithm,
    pub(super) max_delay: Span,
}

/// Returns what its answers carry besides; `None` where that is nothing.
pub(super) fn read_answer(
    fields: &mut Fields<'_>,
    kind: RuleKind,
    problems: &mut Problems<'_>,
) -> Option<Arc<AnswerOptions>> {
    let options = AnswerOptions {
        holds_delay: read_delay(fields, kind, problems),
        headers: read_headers(fields, "headers", problems),
        headers_admitted: read_headers(fields, "headers_admitted", problems),
        message_type: read_message_type(fields, problems),
        problem: fields.boolean("problem", problems).unwrap_or(false),
        partition_key: read_partition_key(fields, kind, problems),
        tells_cause: fields.boolean("tell_cause", problems).unwrap_or(false),
        unit: read_unit(fields, kind, problems),
        told_as: read_told_as(fields, kind, problems),
        use_instead: read_on_deny(fields, kind, problems),
    };
    (options != AnswerOptions::default()).then(|| Arc::new(options))
}

fn read_delay(fields: &mut Fields<'_>, kind: RuleKind, problems: &mut Problems<'_>) -> bool {
    let holds = fields.word("delay", &DELAYS, problems).unwrap_or(false);
    let Some(entry) = fields.take("delay") else { return holds };
    if kind.action != Action::Throttle {
        let sentence = "delay belongs to action = \"throttle\": no other action delays a request";
        problems.report(&entry.node.at, sentence);
    } else if holds && kind.max_delay > HELD_DELAY_MAX {
        let sentence =
            "delay = \"hold\" needs a max_delay of at most \"1m\": no answer is held back for longer";
        problems.report(&entry.node.at, sentence);
    }
    holds
}

fn read_headers(
    fields: &mut Fields<'_>,
    key: &'static str,
    problems: &mut Problems<'_>,
) -> Vec<(String, String)> {
    let Some(table) = fields.table(key, problems) else { return Vec::new() };
    let entries = table.entries();
    if entries.len() > HEADERS_MAX {
        let len = entries.len();
        problems.report(table.at, format!("{key} must name at most {HEADERS_MAX} headers, not {len}"));
    }
    let mut headers: Vec<(String, String)> = Vec::new();
    for entry in entries.iter().take(HEADERS_MAX) {
        let Some((name, value)) = read_header(entry, problems) else { continue };
        if headers.iter().any(|(other, _)| *other == name) {
            problems.report(&entry.at, format!("{key} names {name:?} twice: names differ by more than case"));
        }
        headers.push((name, value));
    }
    headers.sort();
    headers
}

fn read_header(entry: &TreeEntry, problems: &mut Problems<'_>) -> Option<(String, String)> {
    let name = entry.key.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !(1..=HEADER_NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_token) {
        let expected = format!("1 to {HEADER_NAME_BYTES_MAX} letters, digits and signs such as \"-\"");
        problems.report(&entry.at, format!("a header's name must have {expected}, not {name:?}"));
        return None;
    }
    if HEADERS_REFUSED.contains(&name.as_str())
        || PREFIXES_REFUSED.iter().any(|prefix| name.starts_with(prefix))
    {
        let why = "it frames the answer, or Tidegate or the gateway writes it";
        problems.report(&entry.at, format!("{name} is no header of a rule's own: {why}"));
        return None;
    }
    let value = text(&entry.node, "a header's value", HEADER_VALUE_BYTES_MAX, problems)?;
    if value.trim() != value || !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let expected = "printable ASCII that neither begins nor ends with a space";
        problems.report(&entry.node.at, format!("a header's value must be {expected}, not {value:?}"));
        return None;
    }
    Some((name, value.to_owned()))
}

fn read_message_type(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Option<String> {
    let written = fields.text("message_type", MEDIA_TYPE_BYTES_MAX, problems)?;
    let entry = fields.take("message_type")?;
    let (essence, _) = written.split_once(';').unwrap_or((written, ""));
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
    };
    let is_type = essence.trim_end().split_once('/').is_some_and(|(kind, of)| is_token(kind) && is_token(of));
    if !is_type || !written.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let sentence =
            format!("message_type must be a media type such as \"application/json\", not {written:?}");
        problems.report(&entry.node.at, sentence);
        return None;
    }
    let message = fields.take("message").map(|entry| &entry.node);
    match message.map(|node| &node.value) {
        Some(Value::Text(text)) if essence.trim_end().ends_with("json") => {
            if let Err(why) = serde_json::from_str::<IgnoredAny>(text) {
                let sentence = format!("message_type says {essence}, and message is no JSON: {why}");
                problems.report(&entry.node.at, sentence);
            }
        }
        Some(_) => {}
        None => problems.report(&entry.node.at, "message_type is of message, which is missing"),
    }
    if let Some(problem) =
        fields.take("problem").filter(|entry| matches!(entry.node.value, Value::Boolean(true)))
    {
        let sentence =
            "problem and message_type exclude each other: a problem document has a type of its own";
        problems.report(&problem.node.at, sentence);
    }
    Some(written.to_owned())
}

fn read_partition_key(fields: &mut Fields<'_>, kind: RuleKind, problems: &mut Problems<'_>) -> bool {
    let wanted = fields.boolean("partition_key", problems).unwrap_or(false);
    if let (false, Some(entry)) = (kind.action.counts(), fields.take("partition_key")) {
        problems.report(
            &entry.node.at,
            "partition_key belongs to rules that count; allow and block have no buckets",
        );
    }
    wanted
}

fn read_unit(fields: &mut Fields<'_>, kind: RuleKind, problems: &mut Problems<'_>) -> Option<String> {
    let unit = fields.text("unit", UNIT_BYTES_MAX, problems)?;
    let entry = fields.take("unit")?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if !unit.bytes().all(allowed) {
        let expected = "small letters, digits, \"-\" and \"_\", such as \"tokens\"";
        problems.report(&entry.node.at, format!("unit must have {expected}, not {unit:?}"));
    } else if let Some(why) = uncounted(kind) {
        problems.report(&entry.node.at, format!("unit {why}"));
    }
    Some(unit.to_owned())
}

fn read_told_as(fields: &mut Fields<'_>, kind: RuleKind, problems: &mut Problems<'_>) -> Option<String> {
    let entry = fields.take("told_as")?;
    if !kind.action.counts() {
        problems.report(&entry.node.at, "told_as belongs to rules that count; allow and block tell no limit");
    }
    match &entry.node.value {
        Value::Text(name) | Value::Loose(name) if name.is_empty() => Some(String::new()),
        _ => text(&entry.node, "told_as", TEXT_BYTES_MAX, problems).map(str::to_owned),
    }
}

/// Returns the thing that a client is to use instead where the rule says no.
fn read_on_deny(fields: &mut Fields<'_>, kind: RuleKind, problems: &mut Problems<'_>) -> Option<String> {
    let mut table = fields.table("on_deny", problems)?;
    let at = table.at;
    let written = table.text("use", USE_BYTES_MAX, problems).map(str::to_owned);
    if !table.has("use") {
        problems.report(at, "on_deny needs use: what to use instead, such as { use = \"small-model\" }");
    }
    table.finish(problems);
    if kind.action != Action::Reject {
        let sentence = "on_deny belongs to action = \"reject\": no other action denies a request for want of \
                        permits alone";
        problems.report(at, sentence);
    }
    // A request that passes shows nothing of a denial.
    let of_denials = ["message", "headers", "problem", "tell_cause"];
    let is_told = |entry: &&TreeEntry| !matches!(entry.node.value, Value::Boolean(false));
    for name in of_denials {
        if let Some(entry) = fields.take(name).filter(is_told) {
            let sentence =
                format!("{name} and on_deny exclude each other: the request passes, and is not denied");
            problems.report(&entry.node.at, sentence);
        }
    }
    let written = written?;
    if written.trim() != written || !written.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let expected = "printable ASCII that neither begins nor ends with a space";
        problems.report(at, format!("on_deny.use must be {expected}, not {written:?}"));
    }
    Some(written)
}

/// Returns why a rule of this kind has nothing that belongs to charges, if it has none.
pub(super) fn uncounted(kind: RuleKind) -> Option<&'static str> {
    match kind {
        RuleKind { action, .. } if !action.counts() => {
            Some("belongs to rules that count; allow and block charge nothing")
        }
        RuleKind { algorithm: Algorithm::Concurrency, .. } => {
            Some("does not go with concurrency, whose places are held and given back, not charged")
        }
        _ => None,
    }
}

/// Returns what the cost of a request is worth, by its attributes.
pub(super) fn read_price(
    fields: &mut Fields<'_>,
    kind: RuleKind,
    problems: &mut Problems<'_>,
) -> Option<Arc<PriceTable>> {
    let table = fields.table("price", problems)?;
    if let Some(why) = uncounted(kind) {
        problems.report(table.at, format!("price {why}"));
    }
    let entries = table.entries();
    if entries.is_empty() || entries.len() > PRICES_MAX {
        let len = entries.len();
        problems.report(table.at, format!("price must have 1 to {PRICES_MAX} entries, not {len}"));
    }
    let mut prices = PriceTable { default: Price::ONE, by_attribute: Vec::new() };
    for entry in entries.iter().take(PRICES_MAX) {
        let price = read_number(&entry.node, problems);
        if entry.key == "default" {
            prices.default = price?;
            continue;
        }
        let Some((attribute, value)) = entry.key.split_once('=') else {
            let expected = "\"default\", or an attribute and its value such as \"model=gpt-x\"";
            problems.report(&entry.at, format!("a price is for {expected}, not {:?}", entry.key));
            continue;
        };
        let fits = |text: &str| (1..=TEXT_BYTES_MAX).contains(&text.len());
        if !fits(attribute) || !fits(value) {
            let sentence =
                format!("a price's attribute and value must have 1 to {TEXT_BYTES_MAX} bytes each");
            problems.report(&entry.at, sentence);
        }
        let (attribute, value) = (attribute.to_owned(), value.to_owned());
        prices.by_attribute.extend(price.map(|price| AttributePrice { attribute, value, price }));
    }
    prices.by_attribute.sort_by(|a, b| (&a.attribute, &a.value).cmp(&(&b.attribute, &b.value)));
    Some(Arc::new(prices))
}

fn read_number(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Price> {
    let written = match &node.value {
        Value::Integer(number) => number.to_string(),
        Value::Fraction(number) => number.to_string(),
        Value::Text(text) | Value::Loose(text) => text.clone(),
        other => other.kind().to_owned(),
    };
    let price = Price::parse(&written);
    if price.is_none() {
        let expected = "a number from 0.000001 to 1000000 with at most six decimals, such as 3 or 0.25";
        problems.report(&node.at, format!("a price must be {expected}, not {written}"));
    }
    price
}

#[cfg(test)]
mod tests {
    use crate::database::document::{RuleDoc, from_toml, rule_from_json};

    #[test]
    fn a_price_is_the_same_in_toml_and_json_and_comes_back_as_it_was() {
        for (number, shown) in
            [("0.25", "0.25"), ("0.000001", "0.000001"), ("999999.5", "999999.5"), ("3.0", "3"), ("3", "3")]
        {
            let text = format!(
                "[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\nprice = {{ \"model=a\" = {number} }}"
            );
            let written = from_toml("rules.toml", &text, &[]).unwrap().rules.remove(0);
            let json =
                format!(r#"{{"name": "r", "limit": 5, "window": "1s", "price": {{"model=a": {number}}}}}"#);
            let sent = rule_from_json(&serde_json::from_str(&json).unwrap(), &[]).unwrap();
            assert_eq!(sent, written, "{number}");
            let doc = serde_json::to_value(RuleDoc::from(&sent)).unwrap();
            assert_eq!(doc["price"]["model=a"], shown);
            assert_eq!(rule_from_json(&doc, &[]).unwrap(), sent, "{number}");
        }
        let refused = |json: serde_json::Value| rule_from_json(&json, &[]).unwrap_err()[0].to_string();
        let limit = serde_json::json!({"name": "r", "limit": 5.5, "window": "1s"});
        assert!(refused(limit).contains("not a number with a point or an exponent"));
        let limit = serde_json::json!({"name": "r", "limit": u64::MAX, "window": "1s"});
        assert!(refused(limit).contains("not a number that is too large"));
    }

    fn problems_of(lines: &str) -> Vec<String> {
        let text = format!("[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\n{lines}");
        from_toml("rules.toml", &text, &[])
            .map_or_else(|problems| problems.iter().map(ToString::to_string).collect(), |_| Vec::new())
    }

    #[test]
    fn a_media_type_belongs_to_a_message_that_is_of_it() {
        let json = "message_type = \"application/json\"\n";
        assert_eq!(problems_of(&format!("{json}message = '{{\"error\": 1}}'")), [""; 0]);
        assert_eq!(
            problems_of("message = \"<b>no</b>\"\nmessage_type = \"text/html; charset=utf-8\""),
            [""; 0]
        );
        let told = |lines: &str, part: &str| {
            let problems = problems_of(lines);
            assert!(problems.len() == 1 && problems[0].contains(part), "{lines}: {problems:?}");
        };
        told(json, "message, which is missing");
        told(&format!("{json}message = \"{{\""), "message is no JSON");
        told("message = \"m\"\nmessage_type = \"json\"", "such as \"application/json\", not \"json\"");
        told("message = \"m\"\nmessage_type = \"a/b\\r\\nx: y\"", "must be a media type");
        told(&format!("{json}message = \"1\"\nproblem = true"), "exclude each other");
    }

    #[test]
    fn what_to_use_instead_comes_back_as_it_was_and_belongs_to_rules_that_reject() {
        let text = "[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\non_deny = { use = \"small\" }";
        let written = from_toml("rules.toml", text, &[]).unwrap().rules.remove(0);
        assert_eq!(written.answer.as_ref().unwrap().use_instead.as_deref(), Some("small"));
        let doc = serde_json::to_value(RuleDoc::from(&written)).unwrap();
        assert_eq!(doc["on_deny"], serde_json::json!({ "use": "small" }));
        assert_eq!(rule_from_json(&doc, &[]).unwrap(), written);
        let told = |lines: &str, part: &str| {
            let problems = problems_of(lines);
            assert!(problems.iter().any(|problem| problem.contains(part)), "{lines}: {problems:?}");
        };
        told("on_deny = {}", "on_deny needs use");
        told("on_deny = { use = \"a\", or = \"b\" }", "unknown key \"or\"");
        told("on_deny = { use = \" a\" }", "must be printable ASCII");
        told("on_deny = { use = \"\u{e4}\" }", "must be printable ASCII");
        let own = "on_deny = { use = \"a\" }\n";
        told(&format!("{own}action = \"log_only\""), "belongs to action = \"reject\"");
        for other in ["message = \"m\"", "headers = { a = \"b\" }", "problem = true", "tell_cause = true"] {
            told(&format!("{own}{other}"), "on_deny exclude each other");
        }
        assert_eq!(problems_of(&format!("{own}problem = false")), [""; 0]);
        let waits = "[rules.global]\nmode = \"escrow\"\nwait = \"1s\"";
        told(&format!("{own}{waits}"), "on_deny and wait exclude each other");
    }
}
