//! The history of `rules.toml`: a folder beside it, `rules.toml.history/`, with the text of each revision and
//! who made it. It comes about with the first change that is made through a daemon, and holds the last
//! [`ENTRIES_MAX`].

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::database::document;
use crate::database::{private, saved};

/// Revisions kept. Full: the oldest goes.
const ENTRIES_MAX: usize = 200;

/// One revision of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRevision {
    /// Number of the revision; later ones have higher numbers.
    pub revision: u64,
    /// Instant at which it took force, RFC 3339 in UTC.
    pub at: String,
    /// Author of the revision: a token's name, or `file` for whoever edited the file.
    pub actor: String,
    /// Address that the change came from; `None` where none is known.
    pub source: Option<String>,
    /// Action as the history shows it, such as `put`.
    pub action: String,
    /// Reason that the actor gave; `None` for none.
    pub reason: Option<String>,
    /// Text of the whole file as it was then.
    pub text: String,
}

/// The folder. All of it blocks.
#[derive(Debug, Clone)]
pub struct History {
    folder: PathBuf,
}

impl History {
    /// That of a rules file.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        let mut folder = file.as_os_str().to_owned();
        folder.push(".history");
        Self { folder: folder.into() }
    }

    /// True if anything was ever recorded.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    /// The revisions, newest first. Strange files are passed over.
    #[must_use]
    pub fn revisions(&self) -> Vec<u64> {
        let Ok(files) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let number = |file: std::io::Result<std::fs::DirEntry>| {
            file.ok()?.file_name().to_str()?.strip_suffix(".json")?.parse().ok()
        };
        let mut revisions: Vec<u64> = files.filter_map(number).collect();
        revisions.sort_unstable_by(|a, b| b.cmp(a));
        revisions
    }

    /// One revision; `None` if it is not kept.
    #[must_use]
    pub fn get(&self, revision: u64) -> Option<FileRevision> {
        serde_json::from_slice(&std::fs::read(self.path(revision)).ok()?).ok()
    }

    /// The newest one.
    #[must_use]
    pub fn last(&self) -> Option<FileRevision> {
        self.revisions().into_iter().find_map(|revision| self.get(revision))
    }

    /// The revision to give to a text: the newest one if that has the same text, else the next.
    #[must_use]
    pub fn number(&self, hash: u64) -> Option<u64> {
        let last = self.last()?;
        Some(if document::hash(last.text.as_bytes()) == hash { last.revision } else { last.revision + 1 })
    }

    /// Records a revision, and forgets the oldest where there are too many.
    ///
    /// # Errors
    /// What the system says.
    pub fn record(&self, entry: &FileRevision) -> std::io::Result<()> {
        private::create_folder(&self.folder)?;
        saved::write(&self.path(entry.revision), &serde_json::to_vec(entry)?)?;
        for old in self.revisions().into_iter().skip(ENTRIES_MAX) {
            std::fs::remove_file(self.path(old))?;
        }
        Ok(())
    }

    fn path(&self, revision: u64) -> PathBuf {
        self.folder.join(format!("{revision:08}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(revision: u64) -> FileRevision {
        FileRevision {
            revision,
            at: "2026-01-01T00:00:00Z".to_owned(),
            actor: "ci".to_owned(),
            source: None,
            action: "put".to_owned(),
            reason: None,
            text: format!("# {revision}"),
        }
    }

    #[test]
    fn revisions_are_kept_newest_first_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::of(&folder.path().join("rules.toml"));
        assert!(!history.exists() && history.last().is_none() && history.number(1).is_none());
        let most = u64::try_from(ENTRIES_MAX).unwrap() + 3;
        (1..=most).for_each(|revision| history.record(&entry(revision)).unwrap());
        std::fs::write(folder.path().join("rules.toml.history/notes.txt"), "mine").unwrap();
        assert_eq!(history.revisions().len(), ENTRIES_MAX);
        assert_eq!(history.last(), Some(entry(most)));
        assert_eq!((history.get(3), history.get(4)), (None, Some(entry(4))));
        assert_eq!(history.number(document::hash(entry(most).text.as_bytes())), Some(most));
        assert_eq!(history.number(0), Some(most + 1));
    }
}
