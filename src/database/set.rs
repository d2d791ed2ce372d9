//! A whole set of rules as documents, with the regions' quotas: what an edit makes of it, whether it is
//! right, and how it differs from another. The same for a file and for PostgreSQL.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{self, RuleDoc};
use crate::core::identity::User;
use crate::core::rule::Rule;
use crate::core::ruleset::{RuleSet, Shapes};
use crate::core::written::{PROBLEMS_MAX, Problem, TextPlace};
use crate::engine::rulebook::{Edit, EditRefused, Quota, RuleChange};

/// Most rules of one set.
pub const RULES_MAX: usize = 200_000;

/// Rules by name, as they are written; quotas by rule, where they are kept beside it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RuleDocs {
    /// Each in the shape of `rules.toml`.
    pub rules: BTreeMap<String, Value>,
    /// They replace what the rule itself says of shares.
    pub quotas: BTreeMap<String, Vec<Quota>>,
}

impl RuleDocs {
    /// The rules that these documents mean.
    ///
    /// # Errors
    /// Every problem, at the rule's name and field; also conflicts between rules.
    pub fn read(&self, regions: &[String]) -> Result<Vec<Rule>, Vec<Problem>> {
        self.read_beside(0, regions)
    }

    /// The same for a part of a set that has `others` besides, which are known to be right.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_beside(&self, others: usize, regions: &[String]) -> Result<Vec<Rule>, Vec<Problem>> {
        let mut problems = Vec::new();
        let many = self.rules.len() + others;
        if many > RULES_MAX {
            let message = format!("a set has at most {RULES_MAX} rules, not {many}");
            return Err(vec![problem("rules", message)]);
        }
        let mut rules = Vec::with_capacity(self.rules.len());
        for (name, document) in &self.rules {
            if self.quotas.contains_key(name) && document.get("global").is_none() {
                problems.push(not_worldwide(name));
                continue;
            }
            match document::named_rule_from_json(&self.whole(name, document), name, regions) {
                Ok(rule) => rules.push(rule),
                Err(found) => problems.extend(found),
            }
            if problems.len() >= PROBLEMS_MAX {
                break;
            }
        }
        for rule in self.quotas.keys().filter(|rule| !self.rules.contains_key(*rule)) {
            problems.push(problem(rule, "there are quotas for it, and it is no rule".to_owned()));
        }
        if problems.is_empty() { Ok(rules) } else { Err(problems) }
    }

    /// The same as [`Self::read_beside`], compiled to see whether it holds together.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn check_beside(&self, others: usize, regions: &[String]) -> Result<(), Vec<Problem>> {
        compile(self.read_beside(others, regions)?, &[])
    }

    /// The same as [`Self::read`], compiled to see whether it holds together.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn check(&self, regions: &[String], users: &[User]) -> Result<(), Vec<Problem>> {
        compile(self.read(regions)?, users)
    }

    /// A rule's document with its quotas in it.
    fn whole(&self, name: &str, document: &Value) -> Value {
        let Some(quotas) = self.quotas.get(name) else { return document.clone() };
        let mut document = document.clone();
        // With something else in its place the reader says what is wrong.
        if let Some(global) = document.get_mut("global").and_then(Value::as_object_mut) {
            set_quotas(global, quotas);
        }
        document
    }

    /// What an edit makes of this set. `before` is the set at a revision to go back to.
    ///
    /// # Errors
    /// The edit names what is not there, or makes no sense.
    pub fn edited(&self, edit: &Edit, before: Option<Self>) -> Result<Self, EditRefused> {
        let mut set = self.clone();
        match edit {
            Edit::Replace(rules) => {
                set.rules = by_name(rules)?;
                let rules = &set.rules;
                set.quotas.retain(|rule, _| rules.contains_key(rule));
            }
            Edit::Merge(rules) => set.rules.extend(by_name(rules)?),
            Edit::Put { name, rule } => {
                let mut rule = rule.clone();
                let fields = rule.as_object_mut().ok_or_else(|| {
                    EditRefused::Wrong(vec![problem(
                        "",
                        "a rule is an object, in the shape of rules.toml".to_owned(),
                    )])
                })?;
                let own = fields.entry("name").or_insert_with(|| json!(name));
                if own != name {
                    let message =
                        format!("the path names rule {name:?}, the body another: rules cannot be renamed");
                    return Err(EditRefused::Wrong(vec![problem("name", message)]));
                }
                set.rules.insert(name.clone(), rule);
            }
            Edit::Delete(name) => {
                set.rules.remove(name).ok_or_else(|| EditRefused::NoRule(name.clone()))?;
                set.quotas.remove(name);
            }
            Edit::Rollback(revision) => set = before.ok_or(EditRefused::NoRevision(*revision))?,
            Edit::Quotas { rule, quotas } => {
                if !set.rules.contains_key(rule) {
                    return Err(EditRefused::NoRule(rule.clone()));
                }
                set.quotas.remove(rule);
                if !quotas.is_empty() {
                    set.quotas.insert(rule.clone(), quotas.clone());
                }
            }
        }
        Ok(set)
    }

    /// `after`, with this set's own text for every rule that means the same in both: who sends back what was
    /// shown, with every default spelled out, changes nothing.
    #[must_use]
    pub fn keeping(&self, mut after: Self, regions: &[String]) -> Self {
        let read =
            |name: &str, document: &Value| document::named_rule_from_json(document, name, regions).ok();
        for (name, document) in &mut after.rules {
            let Some(own) = self.rules.get(name).filter(|own| *own != document) else { continue };
            let meant = read(name, document);
            if meant.is_some() && meant == read(name, own) {
                document.clone_from(own);
            }
        }
        after
    }

    /// The edit that gives a rule these quotas by writing them into the rule itself, for a place that keeps
    /// no others.
    ///
    /// # Errors
    /// There is no such rule, or it is not worldwide.
    pub fn quotas_within(&self, rule: &str, quotas: &[Quota]) -> Result<Edit, EditRefused> {
        let document = self.rules.get(rule).ok_or_else(|| EditRefused::NoRule(rule.to_owned()))?;
        let mut document = document.clone();
        let Some(global) = document.get_mut("global").and_then(Value::as_object_mut) else {
            return Err(EditRefused::Wrong(vec![not_worldwide(rule)]));
        };
        if quotas.is_empty() {
            global.remove("shares");
            global.remove("minimums");
        } else {
            set_quotas(global, quotas);
        }
        Ok(Edit::Put { name: rule.to_owned(), rule: document })
    }

    /// What must change in this set to make it `after`.
    #[must_use]
    pub fn changes_to(&self, after: &Self) -> Vec<RuleChange> {
        let mut changes = Vec::new();
        for name in union(self.rules.keys(), after.rules.keys()) {
            let (before, after) = (self.rules.get(name), after.rules.get(name));
            if before != after {
                changes.push(change("rule", name, None, before.cloned(), after.cloned()));
            }
        }
        for rule in union(self.quotas.keys(), after.quotas.keys()) {
            let of = |set: &Self| -> BTreeMap<String, Value> {
                let quotas = set.quotas.get(rule).into_iter().flatten();
                quotas.map(|quota| (quota.region.clone(), quota_json(quota))).collect()
            };
            let (before, after) = (of(self), of(after));
            for region in union(before.keys(), after.keys()) {
                let (before, after) = (before.get(region), after.get(region));
                if before != after {
                    changes.push(change(
                        "quota",
                        rule,
                        Some(region.clone()),
                        before.cloned(),
                        after.cloned(),
                    ));
                }
            }
        }
        changes
    }

    /// This set with changes taken back.
    #[must_use]
    pub fn without(mut self, changes: &[RuleChange]) -> Self {
        for change in changes {
            match (&change.region, &change.before) {
                (None, Some(before)) => {
                    self.rules.insert(change.rule.clone(), before.clone());
                }
                (None, None) => {
                    self.rules.remove(&change.rule);
                }
                (Some(region), before) => {
                    let quotas = self.quotas.entry(change.rule.clone()).or_default();
                    quotas.retain(|quota| quota.region != *region);
                    quotas.extend(before.as_ref().and_then(|before| quota_of(region, before)));
                    quotas.sort_by(|a, b| a.region.cmp(&b.region));
                }
            }
        }
        self.quotas.retain(|_, quotas| !quotas.is_empty());
        self
    }
}

/// Rules by the names that they have, each once.
fn by_name(rules: &[Value]) -> Result<BTreeMap<String, Value>, EditRefused> {
    let mut named = BTreeMap::new();
    let wrong = |place: String, message| Err(EditRefused::Wrong(vec![problem(&place, message)]));
    for (place, rule) in rules.iter().enumerate() {
        let Some(name) = rule.get("name").and_then(Value::as_str) else {
            return wrong(format!("rules[{place}]"), "name is missing: a rule needs one, a text".to_owned());
        };
        if named.insert(name.to_owned(), rule.clone()).is_some() {
            return wrong(format!("rules[{place}].name"), format!("rule name {name:?} is used twice"));
        }
    }
    Ok(named)
}

fn compile(rules: Vec<Rule>, users: &[User]) -> Result<(), Vec<Problem>> {
    let compiled = RuleSet::compile_with_users(rules, users.to_vec(), &mut Shapes::default());
    let conflicts = compiled.err().unwrap_or_default();
    let problems: Vec<_> = conflicts.iter().map(|conflict| problem("rules", conflict.to_string())).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Writes quotas into a rule's `global`.
pub(super) fn set_quotas(global: &mut Map<String, Value>, quotas: &[Quota]) {
    let shares: Map<_, _> = quotas.iter().map(|quota| (quota.region.clone(), json!(quota.weight))).collect();
    let minimums = quotas.iter().filter(|quota| quota.min_percent > 0);
    let minimums: Map<_, _> =
        minimums.map(|quota| (quota.region.clone(), json!(quota.min_percent))).collect();
    global.insert("shares".to_owned(), Value::Object(shares));
    global.remove("minimums");
    if !minimums.is_empty() {
        global.insert("minimums".to_owned(), Value::Object(minimums));
    }
}

/// A rule as the API shows it.
#[must_use]
pub fn rule_json(rule: &Rule) -> Value {
    serde_json::to_value(RuleDoc::from(rule)).unwrap_or_default()
}

fn quota_json(quota: &Quota) -> Value {
    json!({ "weight": quota.weight, "min_percent": quota.min_percent })
}

fn quota_of(region: &str, json: &Value) -> Option<Quota> {
    Some(Quota {
        region: region.to_owned(),
        weight: u32::try_from(json.get("weight")?.as_u64()?).ok()?,
        min_percent: u8::try_from(json.get("min_percent")?.as_u64()?).ok()?,
    })
}

fn change(
    kind: &'static str,
    rule: &str,
    region: Option<String>,
    before: Option<Value>,
    after: Option<Value>,
) -> RuleChange {
    RuleChange { kind, rule: rule.to_owned(), region, before, after }
}

fn not_worldwide(rule: &str) -> Problem {
    let message = "is missing: only a rule that is worldwide has shares by region".to_owned();
    problem(&format!("{rule}.global"), message)
}

fn problem(place: &str, message: String) -> Problem {
    Problem { place: TextPlace::Field(place.to_owned()), message }
}

fn union<'a>(
    one: impl Iterator<Item = &'a String>,
    other: impl Iterator<Item = &'a String>,
) -> Vec<&'a String> {
    let mut all: Vec<_> = one.chain(other).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rules: &[(&str, u32)]) -> RuleDocs {
        let rule = |&(name, limit): &(&str, u32)| {
            (
                name.to_owned(),
                json!({ "name": name, "limit": limit, "window": "1s", "global": { "mode": "split" } }),
            )
        };
        RuleDocs { rules: rules.iter().map(rule).collect(), quotas: BTreeMap::new() }
    }

    fn quota(region: &str, weight: u32, min_percent: u8) -> Quota {
        Quota { region: region.to_owned(), weight, min_percent }
    }

    fn edited(before: &RuleDocs, edit: Edit) -> RuleDocs {
        before.edited(&edit, None).unwrap()
    }

    #[test]
    fn changes_taken_back_give_the_set_before() {
        let before = set(&[("a", 1), ("b", 2)]);
        let quotas =
            Edit::Quotas { rule: "b".to_owned(), quotas: vec![quota("eu", 1, 0), quota("us", 2, 10)] };
        let mut sets = vec![before.clone()];
        for edit in [
            quotas,
            Edit::Delete("a".to_owned()),
            Edit::Put { name: "c".to_owned(), rule: json!({ "limit": 1, "window": "1s" }) },
            Edit::Replace(vec![json!({ "name": "c", "limit": 2, "window": "1s" })]),
        ] {
            let last = sets.last().unwrap();
            let next = edited(last, edit);
            let changes = last.changes_to(&next);
            assert!(!changes.is_empty());
            assert_eq!(next.clone().without(&changes), *last);
            sets.push(next);
        }
        assert!(before.changes_to(&before).is_empty());
    }

    #[test]
    fn quotas_replace_the_shares_of_a_rule() {
        let quotas =
            Edit::Quotas { rule: "a".to_owned(), quotas: vec![quota("eu", 3, 20), quota("us", 1, 0)] };
        let set = edited(&set(&[("a", 100)]), quotas);
        let regions = ["eu".to_owned(), "us".to_owned()];
        let rules = set.read(&regions).unwrap();
        let global = rules[0].global.as_ref().unwrap();
        assert_eq!(global.shares, [("eu".to_owned(), 3), ("us".to_owned(), 1)]);
        assert_eq!(global.minimums, [("eu".to_owned(), 20)]);
        let problems = set.read(&["eu".to_owned(), "ap".to_owned()]).unwrap_err();
        assert!(
            problems[0].to_string().contains("region \"us\" is not one of peers.regions"),
            "{problems:?}"
        );
    }

    #[test]
    fn quotas_of_a_rule_that_is_not_worldwide_are_a_problem() {
        let mut set = set(&[("a", 1)]);
        set.rules.get_mut("a").unwrap().as_object_mut().unwrap().remove("global");
        let set = edited(&set, Edit::Quotas { rule: "a".to_owned(), quotas: vec![quota("eu", 1, 0)] });
        let problems = set.read(&[]).unwrap_err();
        let sentence = "a.global: is missing: only a rule that is worldwide has shares by region";
        assert_eq!((problems.len(), problems[0].to_string().as_str()), (1, sentence));
        let within = set.quotas_within("a", &[quota("eu", 1, 0)]).unwrap_err();
        assert!(within.to_string().contains(sentence), "{within}");
    }

    #[test]
    fn an_edit_that_makes_no_sense_is_refused() {
        let before = set(&[("a", 1)]);
        let refused = |edit| before.edited(&edit, None).unwrap_err();
        assert_eq!(refused(Edit::Delete("b".to_owned())), EditRefused::NoRule("b".to_owned()));
        assert_eq!(refused(Edit::Rollback(7)), EditRefused::NoRevision(7));
        let other = Edit::Put { name: "a".to_owned(), rule: json!({ "name": "b" }) };
        assert!(matches!(refused(other), EditRefused::Wrong(_)));
        let twice = Edit::Replace(vec![json!({ "name": "a" }), json!({ "name": "a" })]);
        assert!(refused(twice).to_string().contains("used twice"));
        assert!(matches!(refused(Edit::Replace(vec![json!(1)])), EditRefused::Wrong(_)));
    }

    #[test]
    fn a_set_has_only_so_many_rules_counting_those_that_did_not_change() {
        let set = set(&[("a", 1)]);
        let regions = ["eu".to_owned()];
        assert!(set.read_beside(RULES_MAX - 1, &regions).is_ok());
        let problems = set.check_beside(RULES_MAX, &regions).unwrap_err();
        assert!(problems[0].to_string().contains("at most 200000 rules, not 200001"), "{problems:?}");
    }

    #[test]
    fn problems_name_the_rule() {
        let mut set = set(&[("a", 1)]);
        set.rules.insert("b".to_owned(), json!({ "name": "b", "limit": -1, "window": "1s" }));
        let problems = set.read(&["eu".to_owned()]).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].to_string().starts_with("b.limit: "), "{problems:?}");
    }
}
