//! Rules that were imported, as a daemon takes them: for the tests of every importer.

use super::{ImportedRule, to_toml};
use crate::core::ruleset::{RuleSet, Shapes};
use crate::database::document::from_toml;

/// Writes the rules, reads what was written, and puts it in force.
pub(in crate::database) fn set(rules: Vec<ImportedRule>) -> RuleSet {
    let toml = to_toml(rules).unwrap();
    let loaded =
        from_toml("rules.toml", &toml, &[]).unwrap_or_else(|problems| panic!("{toml}\n{problems:?}"));
    RuleSet::compile(loaded.rules, &mut Shapes::default()).unwrap()
}
