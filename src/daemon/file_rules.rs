//! Rules in a file, changed through the daemon: the file is rewritten, read again like after any other
//! change, and its history kept beside it.

use std::path::Path;
use std::sync::Arc;

use super::reload::Reloader;
use super::setup::RulesSource;
use crate::core::written::{Problem, TextPlace, format_second};
use crate::database::document;
use crate::database::file::history::{FileRevision, History};
use crate::database::file::{self, edit};
use crate::database::set::RuleDocs;
use crate::engine::port::Later;
use crate::engine::rulebook::{
    Done, Edit, EditRefused, EditRequest, Revision, RuleBook, RuleChange, ShownRevisions, WrittenRule,
};

/// Most changes told of one revision in a history.
const CHANGES_SHOWN_MAX: usize = 100;

/// A file's rules as operators change them.
pub(super) struct FileRules(pub(super) Arc<Reloader>);

/// A rewritten file that is right.
struct Rewritten {
    before: String,
    after: String,
    changes: Vec<RuleChange>,
}

impl FileRules {
    async fn edit_file(&self, path: &Path, asked: EditRequest) -> Result<Done, EditRefused> {
        let reloader = &self.0;
        if !path.exists() {
            let sentence = format!("there is no {}: make it first, it may be empty", path.display());
            return Err(EditRefused::Impossible(sentence));
        }
        let _editing = reloader.editing.lock().await;
        // Changes that somebody else wrote into the file count first.
        reloader.read_again(path).await.map_err(|problems| {
            let sentence = "the rules file is not right as it is; put it right first:";
            EditRefused::Impossible(format!("{sentence}\n{problems}"))
        })?;
        let revision = reloader.engine().loaded().revision;
        if asked.expected.is_some_and(|expected| expected != revision) {
            return Err(EditRefused::Stale(revision));
        }
        let (own, regions, wanted) = (path.to_owned(), reloader.regions(), asked.edit.clone());
        let rewritten = blocking(move || rewrite(&own, &wanted, &regions)).await??;
        if asked.dry_run || rewritten.changes.is_empty() {
            return Ok(Done { revision, changes: rewritten.changes });
        }
        let baseline = self.entry(revision, "file", &rewritten.before);
        let (own, text) = (path.to_owned(), rewritten.after.clone());
        blocking(move || {
            let history = History::of(&own);
            if !history.exists() {
                history.record(&baseline)?;
            }
            edit::replace(&own, &text)
        })
        .await?
        .map_err(|error| EditRefused::Away(format!("{} cannot be rewritten: {error}", path.display())))?;
        reloader.read_again(path).await.map_err(EditRefused::Impossible)?;
        let revision = reloader.engine().loaded().revision;
        let mut entry = self.entry(revision, action(&asked.edit), &rewritten.after);
        entry.actor.clone_from(&asked.actor.name);
        entry.source = asked.actor.source.map(|address| address.to_string());
        entry.reason.clone_from(&asked.reason);
        let history = History::of(path);
        if let Err(error) = blocking(move || history.record(&entry)).await? {
            tracing::error!(%error, "the change of the rules file was made, and not recorded in its history");
        }
        tracing::info!(revision, changes = rewritten.changes.len(), actor = %asked.actor.name, "rules changed by an operator");
        Ok(Done { revision, changes: rewritten.changes })
    }

    fn entry(&self, revision: u64, action: &str, text: &str) -> FileRevision {
        FileRevision {
            revision,
            at: format_second(self.0.engine().now()),
            actor: "file".to_owned(),
            source: None,
            action: action.to_owned(),
            reason: None,
            text: text.to_owned(),
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, EditRefused> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| EditRefused::Impossible(format!("the change broke off: {error}")))
}

const fn action(edit: &Edit) -> &'static str {
    match edit {
        Edit::Replace(_) => "replace",
        Edit::Merge(_) => "merge",
        Edit::Put { .. } => "put",
        Edit::Delete(_) => "delete",
        Edit::Rollback(_) => "rollback",
        Edit::Quotas { .. } => "quotas",
    }
}

fn no_file() -> EditRefused {
    EditRefused::Impossible(
        "this daemon has no rules file: start it with --rules FILE, or with rules.source = \"postgres\""
            .to_owned(),
    )
}

/// A problem of the whole file.
fn wrong_file(path: &Path, message: String) -> EditRefused {
    EditRefused::Wrong(vec![Problem { place: TextPlace::File(path.display().to_string()), message }])
}

/// The file's text as it is now.
fn text_of(path: &Path) -> Result<String, EditRefused> {
    file::read(path).map_err(|problem| EditRefused::Away(problem.to_string()))
}

/// The rules of the file as they are written.
fn docs_of(path: &Path) -> Result<RuleDocs, EditRefused> {
    edit::docs(&text_of(path)?).map_err(|message| wrong_file(path, message))
}

/// Works out the file's new text, and checks it as the daemon will.
fn rewrite(path: &Path, wanted: &Edit, regions: &[String]) -> Result<Rewritten, EditRefused> {
    let wrong = |message: String| wrong_file(path, message);
    let before = text_of(path)?;
    let docs = edit::docs(&before).map_err(wrong)?;
    let (after, changes) = if let Edit::Rollback(revision) = wanted {
        let entry = History::of(path).get(*revision).ok_or(EditRefused::NoRevision(*revision))?;
        let changes = docs.changes_to(&edit::docs(&entry.text).map_err(wrong)?);
        (entry.text, changes)
    } else {
        let wanted = match wanted {
            Edit::Quotas { rule, quotas } => docs.quotas_within(rule, quotas)?,
            other => other.clone(),
        };
        let edited = docs.keeping(docs.edited(&wanted, None)?, regions);
        edited.check(regions, &[]).map_err(EditRefused::Wrong)?;
        let changes = docs.changes_to(&edited);
        (edit::rewrite(&before, &changes).map_err(wrong)?, changes)
    };
    // Users may have limits of their own for a rule that goes.
    let loaded =
        document::from_toml(&path.display().to_string(), &after, regions).map_err(EditRefused::Wrong)?;
    let mut shapes = crate::core::ruleset::Shapes::default();
    crate::core::ruleset::RuleSet::compile_with_people(loaded.rules.clone(), loaded.people(), &mut shapes)
        .map_err(|conflicts| {
            let place = || TextPlace::File(path.display().to_string());
            let problem = |conflict: &crate::core::ruleset::Conflict| Problem {
                place: place(),
                message: conflict.to_string(),
            };
            EditRefused::Wrong(conflicts.iter().map(problem).collect())
        })?;
    Ok(Rewritten { before, after, changes })
}

/// The revisions of a file's history, with what each changed.
fn revisions(path: &Path, shown: &ShownRevisions) -> Vec<Revision> {
    let history = History::of(path);
    let all = history.revisions();
    let mut told = Vec::new();
    for (place, number) in all.iter().enumerate() {
        if shown.before.is_some_and(|before| *number >= before) {
            continue;
        }
        let Some(entry) = history.get(*number) else { continue };
        let before = all.get(place + 1).and_then(|number| history.get(*number));
        let before = before.and_then(|entry| edit::docs(&entry.text).ok()).unwrap_or_default();
        let mut changes = edit::docs(&entry.text).map(|after| before.changes_to(&after)).unwrap_or_default();
        if let Some(rule) = &shown.rule {
            changes.retain(|change| change.rule == *rule);
            if changes.is_empty() {
                continue;
            }
        }
        let changes_total = u64::try_from(changes.len()).unwrap_or(u64::MAX);
        changes.truncate(CHANGES_SHOWN_MAX);
        let FileRevision { revision, at, actor, source, action, reason, .. } = entry;
        told.push(Revision { revision, at, actor, source, action, reason, changes_total, changes });
        if told.len() >= usize::try_from(shown.limit).unwrap_or(usize::MAX) {
            break;
        }
    }
    told
}

impl RuleBook for FileRules {
    fn edit(&self, asked: EditRequest) -> Later<'_, Result<Done, EditRefused>> {
        Box::pin(async move {
            match self.0.source() {
                RulesSource::File(path) => self.edit_file(path, asked).await,
                _ => Err(no_file()),
            }
        })
    }

    fn history(&self, shown: ShownRevisions) -> Later<'_, Result<Vec<Revision>, EditRefused>> {
        Box::pin(async move {
            let RulesSource::File(path) = self.0.source() else { return Ok(Vec::new()) };
            let path = path.clone();
            blocking(move || revisions(&path, &shown)).await
        })
    }

    fn written(&self, name: String) -> Later<'_, Result<WrittenRule, EditRefused>> {
        Box::pin(async move {
            let RulesSource::File(path) = self.0.source() else { return Err(no_file()) };
            // Before the text is read: who edits a text that is newer than its revision is told so.
            let revision = self.0.engine().loaded().revision;
            let path = path.clone();
            let docs = blocking(move || docs_of(&path)).await??;
            let rule = docs.rules.get(&name).cloned().ok_or(EditRefused::NoRule(name))?;
            Ok(WrittenRule { revision, rule })
        })
    }
}
