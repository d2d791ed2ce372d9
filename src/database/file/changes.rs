//! Changes by operators, where no database keeps them: `rules.toml.changes` beside the rules file, a JSON
//! object a line. Without a rules file the newest changes are kept in memory.

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::core::regions::NodeName;
use crate::core::time::Timestamp;
use crate::core::written::format_moment;
use crate::engine::admin::{Change, ChangeRecord, ChangesAsked, Ledger};
use crate::engine::clock::Clock;
use crate::engine::port::Later;

/// A file longer than this is set aside as `rules.toml.changes.1`, in place of the one that was set aside
/// before.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most records kept in memory. Full: the oldest goes.
const MEMORY_MAX: usize = 1_000;

/// The changes made through one daemon.
#[derive(Debug)]
pub struct ChangeFile {
    path: Option<PathBuf>,
    name: NodeName,
    clock: Clock,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The last id that was given; `None`: the file has not been looked at.
    last: Option<u64>,
    /// Newest changes, kept in memory where there is no file to write them to.
    records: VecDeque<ChangeRecord>,
}

impl ChangeFile {
    /// Returns the changes beside this rules file, or in memory.
    #[must_use]
    pub fn new(rules: Option<&Path>, name: NodeName, clock: Clock) -> Self {
        let path = rules.map(|rules| beside(rules, ".changes"));
        Self { path, name, clock, kept: Mutex::default() }
    }

    fn append(&self, mut record: ChangeRecord) -> Result<(), String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let last = kept.last.unwrap_or_else(|| {
            self.path.as_deref().and_then(|path| read(path).last().map(|record| record.id)).unwrap_or(0)
        });
        record.id = last + 1;
        kept.last = Some(record.id);
        let Some(path) = &self.path else {
            if kept.records.len() >= MEMORY_MAX {
                kept.records.pop_front();
            }
            kept.records.push_back(record);
            return Ok(());
        };
        let failed = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
        let mut line = serde_json::to_vec(&record).map_err(|error| error.to_string())?;
        line.push(b'\n');
        if std::fs::metadata(path).is_ok_and(|file| file.len() > FILE_BYTES_MAX) {
            std::fs::rename(path, beside(path, ".1")).map_err(failed)?;
        }
        let open = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        open.and_then(|mut file| file.write_all(&line)).map_err(failed)
    }

    fn show(&self, asked: &ChangesAsked) -> Vec<ChangeRecord> {
        let records: Vec<ChangeRecord> = match &self.path {
            Some(path) => read(&beside(path, ".1")).into_iter().chain(read(path)).collect(),
            None => {
                let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.records.iter().cloned().collect()
            }
        };
        let limit = usize::try_from(asked.limit).unwrap_or(usize::MAX);
        let wanted = |record: &ChangeRecord| {
            asked.target.as_ref().is_none_or(|target| record.target == *target)
                && asked.action.as_ref().is_none_or(|action| record.action == *action)
                && asked.before.is_none_or(|before| record.id < before)
        };
        records.into_iter().rev().filter(wanted).take(limit).collect()
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    text.into()
}

/// The records of a file, oldest first; lines that were cut off are passed over.
fn read(path: &Path) -> Vec<ChangeRecord> {
    let text = std::fs::read(path).unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// A record of `change` by a daemon at `now`, not numbered yet.
fn record_of(change: &Change, name: &NodeName, now: Timestamp) -> ChangeRecord {
    ChangeRecord {
        id: 0,
        at: format_moment(now),
        actor: change.actor.name.clone(),
        role: change.actor.role.name().to_owned(),
        source: change.actor.source.map(|address| address.to_string()),
        region: name.region.clone(),
        node: name.node.clone(),
        action: change.action.to_owned(),
        target: change.target.clone(),
        before: change.before.clone(),
        after: change.after.clone(),
        reason: change.reason.clone(),
    }
}

impl Ledger for std::sync::Arc<ChangeFile> {
    fn record<'a>(&'a self, change: &'a Change) -> Later<'a, Result<(), String>> {
        let (own, record) = (Self::clone(self), record_of(change, &self.name, self.clock.now()));
        Box::pin(async move {
            let appended = tokio::task::spawn_blocking(move || own.append(record)).await;
            appended.map_err(|error| error.to_string())?
        })
    }

    fn changes<'a>(&'a self, asked: &'a ChangesAsked) -> Later<'a, Result<Vec<ChangeRecord>, String>> {
        let (own, asked) = (Self::clone(self), asked.clone());
        Box::pin(async move {
            let shown = tokio::task::spawn_blocking(move || own.show(&asked)).await;
            shown.map_err(|error| error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::admin::{Actor, Role};

    fn record(target: &str) -> ChangeRecord {
        let actor = Actor { name: "ci".to_owned(), role: Role::Operator, source: None };
        let (target, action) = (target.to_owned(), "bucket.reset");
        let change = Change { actor, action, target, before: None, after: None, reason: None };
        let name = NodeName { region: "eu".to_owned(), node: "eu-1".to_owned() };
        record_of(&change, &name, Timestamp(1_800_000_000_000_000))
    }

    fn changes(rules: Option<&Path>) -> ChangeFile {
        let name = NodeName { region: "eu".to_owned(), node: "eu-1".to_owned() };
        ChangeFile::new(rules, name, Clock::Manual(1_800_000_000_000_000.into()))
    }

    fn targets(changes: &ChangeFile, asked: &ChangesAsked) -> Vec<String> {
        changes.show(asked).into_iter().map(|record| format!("{} {}", record.id, record.target)).collect()
    }

    #[test]
    fn changes_are_kept_beside_the_rules_and_numbered_on_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("rules.toml");
        let first = changes(Some(&rules));
        first.append(record("a")).unwrap();
        first.append(record("b")).unwrap();
        let path = folder.path().join("rules.toml.changes");
        // A crash may cut the last line off.
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"id\":9,\"at").unwrap();
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
        let again = changes(Some(&rules));
        again.append(record("a")).unwrap();
        let all = ChangesAsked { limit: 10, ..ChangesAsked::default() };
        assert_eq!(targets(&again, &all), ["3 a", "2 b", "1 a"]);
        let of = ChangesAsked { target: Some("a".to_owned()), before: Some(3), ..all.clone() };
        assert_eq!(targets(&again, &of), ["1 a"]);
        assert_eq!(targets(&again, &ChangesAsked { limit: 1, ..all }), ["3 a"]);
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn neither_the_file_nor_the_memory_grows_without_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = changes(Some(&folder.path().join("rules.toml")));
        let long = "x".repeat(1 << 20);
        (0..14).for_each(|_| file.append(record(&long)).unwrap());
        let bytes: u64 =
            folder.path().read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes < 2 * FILE_BYTES_MAX + (4 << 20), "{bytes}");
        let memory = changes(None);
        (0..MEMORY_MAX + 5).for_each(|number| memory.append(record(&number.to_string())).unwrap());
        let shown = memory.show(&ChangesAsked { limit: 5_000, ..ChangesAsked::default() });
        assert_eq!((shown.len(), shown[0].id), (MEMORY_MAX, 1_005));
    }
}
