//! Changes since a set that was read before: a few rules rather than all of them.

use std::time::Duration;

use serde_json::Value;

use super::version_of;
use crate::database::postgres::{Database, Failure};
use crate::database::set::RuleDocs;
use crate::database::stored::Version;
use crate::engine::rulebook::Quota;

/// Most changed rules that are read one by one; where more have changed the whole set is read.
const CHANGED_MAX: i64 = 2_000;
/// Longest time for the question.
const DEADLINE: Duration = Duration::from_secs(10);

/// The set that is known: its version, and the mark that its revision had in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownSet {
    /// Place of the set in the order of all sets.
    pub version: Version,
    /// Time and transaction by which its revision was made: another database may have given the same number.
    pub mark: String,
}

/// The present contents of the tables, told by what changed since.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    /// Set that the changes lead to from the known one.
    pub now: KnownSet,
    /// The rules that changed, or whose quotas did.
    pub names: Vec<String>,
    /// Rules among them that are there, with their quotas.
    pub docs: RuleDocs,
}

/// One statement, so that all of it is seen at one moment. A writer holds the head's row until it is done, so
/// revisions become visible in their order and none is missed.
const CHANGES: &str = concat!(
    "WITH head AS MATERIALIZED ( \
         SELECT revision, ",
    generation!(),
    " AS generation, \
             (SELECT (extract(epoch FROM at) * 1000000)::bigint || ' ' || transaction FROM rule_revisions \
              WHERE rule_revisions.revision = $1) AS known, \
             (SELECT (extract(epoch FROM at) * 1000000)::bigint || ' ' || transaction FROM rule_revisions \
              WHERE rule_revisions.revision = rules_head.revision) AS mark \
         FROM rules_head), \
     names AS MATERIALIZED (SELECT DISTINCT rule FROM rule_changes WHERE revision > $1 LIMIT $2) \
     SELECT head.revision, head.generation, head.known, head.mark, names.rule, rules.document, \
         (SELECT jsonb_agg(jsonb_build_object('region', region, 'weight', weight, 'min_percent', min_percent) ORDER BY region) \
          FROM region_quotas WHERE region_quotas.rule = names.rule) AS quotas \
     FROM head LEFT JOIN names ON true LEFT JOIN rules ON rules.name = names.rule"
);

/// Revision, generation, mark of the known revision, mark of this one, rule, document, quotas.
type RuleChangeRow = (i64, i64, Option<String>, Option<String>, Option<String>, Option<Value>, Option<Value>);

/// Returns what changed since `known`. `None`: the history does not tell, or of very many rules; read the
/// whole set.
///
/// # Errors
/// The database does not answer, or has no such tables.
pub async fn since(database: &Database, known: &KnownSet) -> Result<Option<Changed>, Failure> {
    let revision = i64::try_from(known.version.revision).unwrap_or(i64::MAX);
    let question = sqlx::query_as(CHANGES).bind(revision).bind(CHANGED_MAX + 1);
    let rows: Vec<RuleChangeRow> = database.at_most(DEADLINE, question.fetch_all(database.pool())).await?;
    Ok(changed(known, rows))
}

fn changed(known: &KnownSet, rows: Vec<RuleChangeRow>) -> Option<Changed> {
    let (revision, generation, was, mark, ..) = rows.first()?;
    let version = version_of(*revision, *generation);
    let follows = version.generation == known.version.generation && was.as_ref() == Some(&known.mark);
    let few = i64::try_from(rows.len()).is_ok_and(|rows| rows <= CHANGED_MAX);
    let now = KnownSet { version, mark: mark.clone()? };
    if !follows || !few {
        return None;
    }
    let (mut names, mut docs) = (Vec::new(), RuleDocs::default());
    for (.., name, document, quotas) in rows {
        let Some(name) = name else { continue };
        if let Some(document) = document {
            docs.rules.insert(name.clone(), document);
        }
        if let Some(quotas) = quotas {
            // The tables' constraints keep all of them within their types.
            docs.quotas.insert(name.clone(), serde_json::from_value::<Vec<Quota>>(quotas).ok()?);
        }
        names.push(name);
    }
    Some(Changed { now, names, docs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn known() -> KnownSet {
        KnownSet { version: Version { generation: 1, revision: 7 }, mark: "70 700".to_owned() }
    }

    fn row(
        revision: i64,
        generation: i64,
        known: &str,
        name: Option<&str>,
        document: Option<Value>,
    ) -> RuleChangeRow {
        let mark = Some("80 800".to_owned());
        (revision, generation, Some(known.to_owned()), mark, name.map(str::to_owned), document, None)
    }

    #[test]
    fn what_changed_is_told_rule_by_rule() {
        let document = json!({ "name": "a", "limit": 1 });
        let rows = vec![
            row(9, 1, "70 700", Some("a"), Some(document.clone())),
            row(9, 1, "70 700", Some("gone"), None),
        ];
        let changed = changed(&known(), rows).unwrap();
        assert_eq!(changed.now.version, Version { generation: 1, revision: 9 });
        assert_eq!((changed.now.mark.as_str(), changed.names.len()), ("80 800", 2));
        assert_eq!(changed.docs.rules.get("a"), Some(&document));
        assert!(!changed.docs.rules.contains_key("gone"));
    }

    #[test]
    fn nothing_changed_is_told_as_such() {
        let changed = changed(&known(), vec![row(7, 1, "70 700", None, None)]).unwrap();
        assert!(changed.names.is_empty() && changed.docs == RuleDocs::default());
    }

    #[test]
    fn another_history_does_not_tell() {
        // The revision was made by another transaction, the database was recovered, the revision is kept no
        // longer.
        assert_eq!(changed(&known(), vec![row(9, 1, "71 700", Some("a"), None)]), None);
        assert_eq!(changed(&known(), vec![row(9, 2, "70 700", Some("a"), None)]), None);
        let mut forgotten = row(9, 1, "", Some("a"), None);
        forgotten.2 = None;
        assert_eq!(changed(&known(), vec![forgotten]), None);
    }

    #[test]
    fn of_very_many_changes_the_whole_set_is_read() {
        let rows = |many: i64| (0..many).map(|n| row(9, 1, "70 700", Some(&format!("r{n}")), None)).collect();
        assert!(changed(&known(), rows(CHANGED_MAX)).is_some());
        assert_eq!(changed(&known(), rows(CHANGED_MAX + 1)), None);
    }
}
