//! Reading what happens to clients that a rule denies too often, and from when on it warns of a bucket.

use std::sync::Arc;

use serde::Serialize;

use super::answer::RuleKind;
use crate::core::algorithm::{Algorithm, WINDOW_MAX, WINDOW_MIN};
use crate::core::penalty::{MULTIPLIERS_DEFAULT, MULTIPLIERS_MAX, PenaltyTerms};
use crate::core::rule::Charging;
use crate::core::time::Span;
use crate::core::written::{Fields, Problems, format_span, integer};

/// Largest threshold.
const THRESHOLD_MAX: i64 = 1_000_000;
/// Largest multiplier.
const MULTIPLIER_MAX: i64 = 1_000_000;

/// The other options of the rule that decide whether it may have a penalty.
#[derive(Clone, Copy)]
pub(super) struct Punishing {
    pub(super) kind: RuleKind,
    pub(super) charge: Charging,
    pub(super) split_keys: u32,
    pub(super) window: Span,
    /// True if requests wait for rights of other regions, and so are decided several times.
    pub(super) waits: bool,
}

/// Reads `[rules.penalty]`; `None` where there is none.
pub(super) fn read_penalty(
    fields: &mut Fields<'_>,
    rule: Punishing,
    problems: &mut Problems<'_>,
) -> Option<Arc<PenaltyTerms>> {
    let mut penalty = fields.table("penalty", problems)?;
    if let Some(why) = refusal(rule) {
        problems.report(penalty.at, format!("penalty {why}"));
    }
    for (name, hint) in
        [("threshold", "how many denials begin a penalty"), ("window", "within which time, such as \"10m\"")]
    {
        if !penalty.has(name) {
            problems.report(penalty.at, format!("{name} is missing: a penalty says {hint}"));
        }
    }
    let threshold = penalty.integer("threshold", 1, THRESHOLD_MAX, problems).unwrap_or(1);
    let window = penalty.span("window", WINDOW_MIN, WINDOW_MAX, problems).unwrap_or(WINDOW_MAX);
    let cool_down = penalty.span("cool_down", WINDOW_MIN, WINDOW_MAX, problems).unwrap_or(rule.window);
    let multipliers = read_multipliers(&mut penalty, problems);
    let most = multipliers.iter().copied().max().unwrap_or(1);
    if cool_down.0.saturating_mul(u64::from(most)) > WINDOW_MAX.0 {
        let (longest, cool_down) = (format_span(WINDOW_MAX), format_span(cool_down));
        let sentence = format!(
            "the longest penalty must be at most {longest}, and this one is a cool_down of {cool_down} (the rule's window \
             unless written) times {most}"
        );
        problems.report(penalty.at, sentence);
    }
    penalty.finish(problems);
    let threshold = u32::try_from(threshold).unwrap_or(1);
    Some(Arc::new(PenaltyTerms { threshold, window, cool_down, multipliers }))
}

fn refusal(rule: Punishing) -> Option<&'static str> {
    let RuleKind { action, algorithm, .. } = rule.kind;
    if !action.counts() {
        Some("belongs to rules that count; allow and block deny the same whatever came before")
    } else if algorithm == Algorithm::Concurrency {
        Some("does not go with concurrency: who holds all places may give one back at any moment")
    } else if rule.charge == Charging::Always {
        Some("does not go with charge = \"always\": what is reported has happened, and is not denied")
    } else if rule.split_keys > 1 {
        Some("does not go with split_keys: a denial is of one part of a key, not of the client")
    } else if rule.waits {
        Some("does not go with wait, which asks several times for one request")
    } else {
        None
    }
}

fn read_multipliers(penalty: &mut Fields<'_>, problems: &mut Problems<'_>) -> Vec<u32> {
    let Some(items) = penalty.list("multipliers", problems) else { return MULTIPLIERS_DEFAULT.to_vec() };
    if items.is_empty() || items.len() > MULTIPLIERS_MAX {
        let (at, len) = (penalty.take("multipliers").map_or(penalty.at, |entry| &entry.node.at), items.len());
        problems.report(
            at,
            format!("multipliers must be 1 to {MULTIPLIERS_MAX} whole numbers, and these are {len}"),
        );
        return MULTIPLIERS_DEFAULT.to_vec();
    }
    let number = |item| integer(item, "a multiplier", 1, MULTIPLIER_MAX, problems);
    items.iter().filter_map(number).filter_map(|number| u32::try_from(number).ok()).collect()
}

/// Reads `warn_at`.
pub(super) fn read_warn_at(
    fields: &mut Fields<'_>,
    kind: RuleKind,
    problems: &mut Problems<'_>,
) -> Option<u8> {
    let percent = fields.integer("warn_at", 1, 100, problems)?;
    if let (false, Some(entry)) = (kind.action.counts(), fields.take("warn_at")) {
        problems
            .report(&entry.node.at, "warn_at belongs to rules that count; allow and block use nothing up");
    }
    u8::try_from(percent).ok()
}

/// A penalty as the API prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PenaltyDoc<'r> {
    pub threshold: u32,
    pub window: String,
    pub cool_down: String,
    pub multipliers: &'r [u32],
}

impl<'r> From<&'r PenaltyTerms> for PenaltyDoc<'r> {
    fn from(terms: &'r PenaltyTerms) -> Self {
        Self {
            threshold: terms.threshold,
            window: format_span(terms.window),
            cool_down: format_span(terms.cool_down),
            multipliers: &terms.multipliers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::document::{RuleDoc, from_toml, rule_from_json};

    fn problems(lines: &str) -> Vec<String> {
        let text = format!("[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1m\"\n{lines}");
        let told = from_toml("rules.toml", &text, &[]).map(|_| ()).unwrap_err();
        told.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_penalty_is_read_and_shown_as_it_was_written() {
        let json = serde_json::json!({
            "name": "r", "limit": 5, "window": "1m", "warn_at": 80,
            "penalty": {"threshold": 3, "window": "1h", "cool_down": "30s", "multipliers": [1, 3, 9]},
        });
        let rule = rule_from_json(&json, &[]).unwrap();
        let terms = rule.penalty.as_deref().unwrap();
        assert_eq!((terms.threshold, terms.window), (3, Span::from_secs(3_600)));
        assert_eq!((terms.cool_down, terms.multipliers.as_slice()), (Span::from_secs(30), &[1, 3, 9][..]));
        assert_eq!(rule.warn_at, Some(80));
        let shown = serde_json::to_value(RuleDoc::from(&rule)).unwrap();
        assert_eq!(shown["penalty"], json["penalty"]);
        assert_eq!(rule_from_json(&shown, &[]).unwrap(), rule);
    }

    #[test]
    fn what_is_not_written_has_the_usual_value() {
        let json = serde_json::json!({
            "name": "r", "limit": 5, "window": "1m", "penalty": {"threshold": 1, "window": "1h"},
        });
        let rule = rule_from_json(&json, &[]).unwrap();
        let terms = rule.penalty.unwrap();
        assert_eq!(
            (terms.cool_down, terms.multipliers.as_slice()),
            (Span::from_secs(60), &MULTIPLIERS_DEFAULT[..])
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let most = "threshold = 3\nwindow = \"1h\"";
        for (lines, expected) in [
            (
                "[rules.penalty]\nthreshold = 0\nwindow = \"1h\"".to_owned(),
                "threshold must be from 1 to 1000000, not 0",
            ),
            ("[rules.penalty]\nwindow = \"1h\"".to_owned(), "threshold is missing"),
            ("[rules.penalty]\nthreshold = 3".to_owned(), "window is missing"),
            (
                format!("[rules.penalty]\n{most}\nmultipliers = []"),
                "multipliers must be 1 to 16 whole numbers, and these are 0",
            ),
            (
                format!("[rules.penalty]\n{most}\nmultipliers = [0]"),
                "a multiplier must be from 1 to 1000000, not 0",
            ),
            (
                format!("[rules.penalty]\n{most}\nmultipliers = [1, -2]"),
                "a multiplier must be from 1 to 1000000, not -2",
            ),
            (
                format!("[rules.penalty]\n{most}\ncool_down = \"1d\"\nmultipliers = [1000000]"),
                "the longest penalty must be at most 366d",
            ),
            (format!("[rules.penalty]\n{most}\ncooldown = \"1d\""), "did you mean \"cool_down\"?"),
            (format!("charge = \"always\"\n[rules.penalty]\n{most}"), "does not go with charge"),
            (format!("split_keys = 2\n[rules.penalty]\n{most}"), "does not go with split_keys"),
            (
                format!(
                    "global = {{ mode = \"escrow\", shares = {{ a = 1 }}, wait = \"1s\" }}\n[rules.penalty]\n{most}"
                ),
                "does not go with wait",
            ),
            ("warn_at = 0".to_owned(), "warn_at must be from 1 to 100, not 0"),
            ("warn_at = 101".to_owned(), "warn_at must be from 1 to 100, not 101"),
        ] {
            let told = problems(&lines);
            assert!(told.len() == 1 && told[0].contains(expected), "{lines}: {told:?}");
        }
        let block =
            problems("action = \"block\"\nwarn_at = 80\n[rules.penalty]\nthreshold = 1\nwindow = \"1h\"");
        assert!(block.iter().any(|told| told.contains("penalty belongs to rules that count")), "{block:?}");
        assert!(block.iter().any(|told| told.contains("warn_at belongs to rules that count")), "{block:?}");
    }
}
