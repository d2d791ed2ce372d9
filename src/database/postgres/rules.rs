//! Rules and quotas in PostgreSQL: read as one set, changed as one set, with their history.
//!
//! A reader may ask for the whole set, or for [`since`] when it has an earlier one. A writer takes the lock
//! of `rules_head` first, so that a set is checked against what it will really replace. The tables' own
//! triggers write the history, for plain SQL as for this.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Postgres, Row as _, Transaction};

use super::{Database, Failure};
use crate::core::time::Span;
use crate::core::written::{Problem, TextPlace, format_span};
use crate::database::held::Held;
use crate::database::set::RuleDocs;
use crate::database::stored::{Stored, Version};
use crate::engine::rulebook::{
    Done, Edit, EditRefused, EditRequest, Quota, Revision, RuleChange, ShownRevisions,
};

/// Longest time for an edit: a hundred thousand rules take seconds.
const EDIT_DEADLINE: Duration = Duration::from_secs(30);
/// Most changes told of one revision in a history.
const CHANGES_SHOWN_MAX: i64 = 100;

/// The higher one of the recovered set's generation and of the timeline that the server writes now. A
/// promoted standby keeps the old timeline in its control file until its first checkpoint ends, minutes
/// later, so only a server that still recovers is asked for that one.
macro_rules! generation {
    () => {
        "greatest(generation, CASE WHEN pg_is_in_recovery() \
             THEN (SELECT timeline_id FROM pg_control_checkpoint()) \
             ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END)::bigint"
    };
}

pub mod since;

const VERSION: &str = concat!(
    "SELECT revision, ",
    generation!(),
    ", (SELECT (extract(epoch FROM at) * 1000000)::bigint || ' ' || transaction FROM rule_revisions \
      WHERE rule_revisions.revision = rules_head.revision) FROM rules_head"
);
/// A writer holds this row, so that a set is checked against what it will really replace.
const LOCKED: &str = concat!("SELECT revision, ", generation!(), " FROM rules_head FOR UPDATE");
const READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Returns which set the tables hold, and the mark of its revision where the history still has it.
///
/// # Errors
/// The database does not answer, or has no such tables.
pub async fn version(database: &Database) -> Result<(Version, Option<String>), Failure> {
    let (revision, generation, mark): VersionRow =
        database.within(sqlx::query_as(VERSION).fetch_one(database.pool())).await?;
    Ok((version_of(revision, generation), mark))
}

/// Revision, generation, mark.
type VersionRow = (i64, i64, Option<String>);

fn version_of(revision: i64, generation: i64) -> Version {
    Version {
        generation: u64::try_from(generation).unwrap_or(0),
        revision: u64::try_from(revision).unwrap_or(0),
    }
}

/// Reads the whole set, at one moment.
///
/// # Errors
/// The database does not answer, or has no such tables.
pub async fn load(database: &Database) -> Result<Stored, Failure> {
    let read = async {
        let mut transaction = database.pool().begin_with(READ).await?;
        sqlx::query("SELECT set_config('statement_timeout', '30s', true)").execute(&mut *transaction).await?;
        let stored = read(&mut transaction, None).await?;
        transaction.rollback().await?;
        Ok(stored)
    };
    database.at_most(EDIT_DEADLINE, read).await
}

/// Reads one rule as it is written, and the revision at which it stands so; `None`: there is no such rule.
///
/// # Errors
/// The database does not answer, or has no such tables.
pub async fn written(database: &Database, name: &str) -> Result<(u64, Option<Value>), Failure> {
    let read = async {
        let mut transaction = database.pool().begin_with(READ).await?;
        let stored = read(&mut transaction, Some(name)).await?;
        transaction.rollback().await?;
        Ok(stored)
    };
    let stored = database.within(read).await?;
    Ok((stored.version.revision, stored.docs.rules.get(name).cloned()))
}

/// Reads the set, or of it only one rule.
async fn read(
    transaction: &mut Transaction<'_, Postgres>,
    only: Option<&str>,
) -> Result<Stored, sqlx::Error> {
    let (revision, generation, mark): VersionRow =
        sqlx::query_as(VERSION).fetch_one(&mut **transaction).await?;
    let rules: Vec<(String, Value)> = match only {
        Some(name) => sqlx::query_as("SELECT name, document FROM rules WHERE name = $1").bind(name),
        None => sqlx::query_as("SELECT name, document FROM rules"),
    }
    .fetch_all(&mut **transaction)
    .await?;
    let rows: Vec<(String, String, i64, i16)> = sqlx::query_as(
        "SELECT rule, region, weight, min_percent FROM region_quotas WHERE $1::text IS NULL OR rule = $1 \
         ORDER BY rule, region",
    )
    .bind(only)
    .fetch_all(&mut **transaction)
    .await?;
    let mut quotas: BTreeMap<String, Vec<Quota>> = BTreeMap::new();
    for (rule, region, weight, min_percent) in rows {
        // The tables' constraints keep both within their types.
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let min_percent = u8::try_from(min_percent).unwrap_or(100);
        quotas.entry(rule).or_default().push(Quota { region, weight, min_percent });
    }
    let docs = RuleDocs { rules: rules.into_iter().collect(), quotas };
    Ok(Stored { version: version_of(revision, generation), mark, docs })
}

/// The set that a daemon decides by when it makes an edit.
#[derive(Debug, Clone, Copy)]
pub struct InForce {
    /// Place of the set in the order of all sets.
    pub version: Version,
    /// Number of rules that the set has.
    pub rules: usize,
    /// False for a set that another daemon gave: what it says of its version goes into no table.
    pub of_database: bool,
}

impl InForce {
    /// The version that the next one exceeds.
    fn numbered_from(self) -> Version {
        if self.of_database { self.version } else { Version::default() }
    }
}

/// Makes an edit in one transaction. The new revision exceeds the one in force.
///
/// A change of one rule reads and checks that one if the tables hold the set that is in force here, of which
/// every rule is known to be right; else the whole set.
///
/// # Errors
/// What is wrong with it, or why the database does not take it. Nothing was changed.
pub async fn edit(
    database: &Database,
    asked: EditRequest,
    regions: &[String],
    in_force: InForce,
) -> Result<Done, EditRefused> {
    let away = |failure: Failure| match failure {
        Failure::Refused { why, .. } => EditRefused::Impossible(why),
        other => EditRefused::Away(other.to_string()),
    };
    let fail = |error: sqlx::Error| away(database.failure(&error, EDIT_DEADLINE));
    let work = async {
        let mut transaction = begin(database, &asked, in_force.numbered_from()).await.map_err(fail)?;
        let (revision, generation): (i64, i64) =
            sqlx::query_as(LOCKED).fetch_one(&mut *transaction).await.map_err(fail)?;
        let version = version_of(revision, generation);
        if asked.expected.is_some_and(|expected| expected != version.revision) {
            return Err(EditRefused::Stale(version.revision));
        }
        if version < in_force.version && !matches!(asked.edit, Edit::Replace(_)) {
            return Err(EditRefused::Impossible(behind(version, in_force.version)));
        }
        let only = asked.edit.rule().filter(|_| in_force.of_database && version == in_force.version);
        let stored = read(&mut transaction, only).await.map_err(fail)?;
        let before = match asked.edit {
            Edit::Rollback(revision) => {
                at_revision(&mut transaction, &stored, revision).await.map_err(fail)?
            }
            _ => None,
        };
        let others = if only.is_some() { in_force.rules.saturating_sub(stored.docs.rules.len()) } else { 0 };
        let (edit, regions) = (asked.edit, regions.to_vec());
        let changes = aside(move || changed(&stored.docs, &edit, before, others, &regions)).await?;
        if asked.dry_run || changes.is_empty() {
            return Ok(Done { revision: version.revision, changes });
        }
        write(&mut transaction, &changes).await.map_err(fail)?;
        let revision: i64 = sqlx::query_scalar("SELECT revision FROM rules_head")
            .fetch_one(&mut *transaction)
            .await
            .map_err(fail)?;
        transaction.commit().await.map_err(fail)?;
        Ok(Done { revision: u64::try_from(revision).unwrap_or(0), changes })
    };
    match tokio::time::timeout(EDIT_DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => Err(EditRefused::Away(format!(
            "PostgreSQL at {} did not make the change within {}: it may still have been made; look before trying again",
            database.name(),
            format_span(Span::from_secs(EDIT_DEADLINE.as_secs()))
        ))),
    }
}

/// A small change made to an old set would take away, everywhere, what is in force and not in it.
fn behind(stored: Version, in_force: Version) -> String {
    format!(
        "PostgreSQL holds revision {}, which is older than revision {} in force here: it lags, or it is another database. \
         Put the whole set to make it current: GET /v1/rules and PUT it back, or `tidegate rules apply FILE --prune`",
        stored.revision, in_force.revision
    )
}

/// Returns what an edit changes in a set, or in the part of it that the edit can touch, `others` being the
/// rules beside it; checked, and short enough to be handed on.
fn changed(
    before: &RuleDocs,
    edit: &Edit,
    earlier: Option<RuleDocs>,
    others: usize,
    regions: &[String],
) -> Result<Vec<RuleChange>, EditRefused> {
    let after = before.keeping(before.edited(edit, earlier)?, regions);
    after.check_beside(others, regions).map_err(EditRefused::Wrong)?;
    Held::of(&after).check_len(Version::default()).map_err(|message| {
        EditRefused::Wrong(vec![Problem { place: TextPlace::Field("rules".to_owned()), message }])
    })?;
    Ok(before.changes_to(&after))
}

/// A set of very many rules takes a while to check: not on a thread that serves requests.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EditRefused> + Send + 'static,
) -> Result<T, EditRefused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| EditRefused::Impossible(format!("the rules could not be checked: {error}")))?
}

async fn begin(
    database: &Database,
    asked: &EditRequest,
    in_force: Version,
) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = database.pool().begin().await?;
    let source = asked.actor.source.map_or_else(String::new, |address| address.to_string());
    let action = match asked.edit {
        Edit::Replace(_) => "replace",
        Edit::Merge(_) => "merge",
        Edit::Put { .. } => "put",
        Edit::Delete(_) => "delete",
        Edit::Rollback(_) => "rollback",
        Edit::Quotas { .. } => "quotas",
    };
    let said = sqlx::query(
        "SELECT set_config('tidegate.actor', $1, true), set_config('tidegate.source', $2, true), \
         set_config('tidegate.action', $3, true), set_config('tidegate.reason', $4, true), \
         set_config('tidegate.revision', $5, true), set_config('tidegate.generation', $6, true), \
         set_config('statement_timeout', '30s', true), \
         set_config('idle_in_transaction_session_timeout', '30s', true)",
    );
    said.bind(&asked.actor.name)
        .bind(source)
        .bind(action)
        .bind(asked.reason.as_deref().unwrap_or_default())
        .bind(in_force.revision.to_string())
        .bind(in_force.generation.to_string())
        .execute(&mut *transaction)
        .await?;
    Ok(transaction)
}

/// The set as it was at a revision: today's with everything since taken back, newest first.
async fn at_revision(
    transaction: &mut Transaction<'_, Postgres>,
    stored: &Stored,
    revision: u64,
) -> Result<Option<RuleDocs>, sqlx::Error> {
    let Ok(revision) = i64::try_from(revision) else { return Ok(None) };
    let known: bool =
        sqlx::query_scalar("SELECT $1 = 0 OR EXISTS (SELECT FROM rule_revisions WHERE revision = $1)")
            .bind(revision)
            .fetch_one(&mut **transaction)
            .await?;
    if !known {
        return Ok(None);
    }
    let rows: Vec<ChangeRow> = sqlx::query_as(
        "SELECT revision, kind, rule, region, before, after FROM rule_changes WHERE revision > $1 ORDER BY revision DESC",
    )
    .bind(revision)
    .fetch_all(&mut **transaction)
    .await?;
    let changes: Vec<RuleChange> = rows.into_iter().map(|row| row.change).collect();
    Ok(Some(stored.docs.clone().without(&changes)))
}

async fn write(
    transaction: &mut Transaction<'_, Postgres>,
    changes: &[RuleChange],
) -> Result<(), sqlx::Error> {
    let rules = |gone: bool| {
        changes.iter().filter(move |change| change.region.is_none() && change.after.is_none() == gone)
    };
    let quotas = QuotaRows::of(changes);
    // Quotas go first and come last: a rule must be there for them.
    if !quotas.gone_rules.is_empty() {
        sqlx::query("DELETE FROM region_quotas WHERE (rule, region) IN (SELECT * FROM unnest($1::text[], $2::text[]))")
            .bind(quotas.gone_rules)
            .bind(quotas.gone_regions)
            .execute(&mut **transaction)
            .await?;
    }
    let gone: Vec<&str> = rules(true).map(|change| change.rule.as_str()).collect();
    if !gone.is_empty() {
        sqlx::query("DELETE FROM rules WHERE name = ANY($1)").bind(gone).execute(&mut **transaction).await?;
    }
    let put: Vec<String> =
        rules(false).filter_map(|change| change.after.as_ref().map(Value::to_string)).collect();
    if !put.is_empty() {
        sqlx::query(
            "INSERT INTO rules (document) SELECT text::jsonb FROM unnest($1::text[]) AS text \
             ON CONFLICT (name) DO UPDATE SET document = excluded.document",
        )
        .bind(put)
        .execute(&mut **transaction)
        .await?;
    }
    if !quotas.rules.is_empty() {
        sqlx::query(
            "INSERT INTO region_quotas (rule, region, weight, min_percent) \
             SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::smallint[]) \
             ON CONFLICT (rule, region) DO UPDATE SET weight = excluded.weight, min_percent = excluded.min_percent",
        )
        .bind(quotas.rules)
        .bind(quotas.regions)
        .bind(quotas.weights)
        .bind(quotas.minimums)
        .execute(&mut **transaction)
        .await?;
    }
    Ok(())
}

/// The rows of `region_quotas` that changes set, and those that they remove, column by column.
#[derive(Default)]
struct QuotaRows<'c> {
    rules: Vec<&'c str>,
    regions: Vec<&'c str>,
    weights: Vec<i64>,
    minimums: Vec<i16>,
    gone_rules: Vec<&'c str>,
    gone_regions: Vec<&'c str>,
}

impl<'c> QuotaRows<'c> {
    fn of(changes: &'c [RuleChange]) -> Self {
        let mut rows = Self::default();
        for change in changes {
            let Some(region) = &change.region else { continue };
            match &change.after {
                None => {
                    rows.gone_rules.push(change.rule.as_str());
                    rows.gone_regions.push(region.as_str());
                }
                Some(quota) => {
                    rows.rules.push(change.rule.as_str());
                    rows.regions.push(region.as_str());
                    rows.weights.push(quota["weight"].as_i64().unwrap_or(0));
                    rows.minimums
                        .push(i16::try_from(quota["min_percent"].as_i64().unwrap_or(0)).unwrap_or(0));
                }
            }
        }
        rows
    }
}

/// One row of `rule_changes`.
struct ChangeRow {
    revision: i64,
    change: RuleChange,
}

impl FromRow<'_, PgRow> for ChangeRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let kind: String = row.try_get("kind")?;
        let kind = if kind == "quota" { "quota" } else { "rule" };
        let region: String = row.try_get("region")?;
        Ok(Self {
            revision: row.try_get("revision")?,
            change: RuleChange {
                kind,
                rule: row.try_get("rule")?,
                region: (kind == "quota").then_some(region),
                before: row.try_get("before")?,
                after: row.try_get("after")?,
            },
        })
    }
}

/// Returns what became of the rules, newest first.
///
/// # Errors
/// The database does not answer.
pub async fn history(database: &Database, shown: &ShownRevisions) -> Result<Vec<Revision>, Failure> {
    type Row = (i64, String, String, Option<String>, String, Option<String>, i64);
    let before = shown.before.and_then(|before| i64::try_from(before).ok()).unwrap_or(i64::MAX);
    let rows: Vec<Row> = database
        .within(
            sqlx::query_as(
                "SELECT revision, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), actor, host(source), \
                 action, reason, (SELECT count(*) FROM rule_changes AS own WHERE own.revision = rule_revisions.revision) \
                 FROM rule_revisions WHERE revision < $1 AND ($2::text IS NULL OR EXISTS ( \
                 SELECT FROM rule_changes AS own WHERE own.revision = rule_revisions.revision AND own.rule = $2)) \
                 ORDER BY revision DESC LIMIT $3",
            )
            .bind(before)
            .bind(&shown.rule)
            .bind(i64::from(shown.limit))
            .fetch_all(database.pool()),
        )
        .await?;
    let revisions: Vec<i64> = rows.iter().map(|row| row.0).collect();
    let changes: Vec<ChangeRow> = database
        .within(
            sqlx::query_as(
                "SELECT told.* FROM unnest($1::bigint[]) AS wanted(revision), LATERAL ( \
                 SELECT revision, kind, rule, region, before, after FROM rule_changes \
                 WHERE rule_changes.revision = wanted.revision AND ($2::text IS NULL OR rule = $2) \
                 ORDER BY kind DESC, rule, region LIMIT $3) AS told",
            )
            .bind(&revisions)
            .bind(&shown.rule)
            .bind(CHANGES_SHOWN_MAX)
            .fetch_all(database.pool()),
        )
        .await?;
    let mut by_revision: BTreeMap<i64, Vec<RuleChange>> = BTreeMap::new();
    for ChangeRow { revision, change } in changes {
        by_revision.entry(revision).or_default().push(change);
    }
    let revision = |(revision, at, actor, source, action, reason, total): Row| Revision {
        revision: u64::try_from(revision).unwrap_or(0),
        at,
        actor,
        source,
        action,
        reason,
        changes_total: u64::try_from(total).unwrap_or(0),
        changes: by_revision.remove(&revision).unwrap_or_default(),
    };
    Ok(rows.into_iter().map(revision).collect())
}
