//! Files that somebody else replaces while the daemon runs, and when they have settled.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

/// Time between two looks at files.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a file, as far as its folder tells; `None`: it is not there.
type Change = Option<FileState>;

/// A file that another one replaces may have its length and the time at which it was written: images and
/// copies keep those. Which file it is, and when it came there, nobody can keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState {
    written: SystemTime,
    len: u64,
    inode: u64,
    /// When its entry was last changed, in seconds and nanoseconds since 1970.
    changed: (i64, i64),
}

/// Several files that belong together.
#[derive(Debug)]
pub(super) struct FileChanges {
    paths: Vec<PathBuf>,
    taken: Vec<Change>,
    seen: Vec<Change>,
}

impl FileChanges {
    /// Returns the files as they are now.
    pub(super) async fn of(paths: Vec<PathBuf>) -> Self {
        let taken = look(paths.clone()).await;
        Self { paths, seen: taken.clone(), taken }
    }

    /// Waits until they have changed and settled. `false`: it is to stop.
    pub(super) async fn settled(&mut self, stop: &CancellationToken) -> bool {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            if self.have_settled().await {
                return true;
            }
        }
    }

    /// True if they have changed since this last said so, and not since the look before. Several files are
    /// written one after the other: they are to be read when two looks saw the same.
    pub(super) async fn have_settled(&mut self) -> bool {
        let now = look(self.paths.clone()).await;
        let settled = now == self.seen && now != self.taken;
        if settled {
            self.taken.clone_from(&now);
        }
        self.seen = now;
        settled
    }
}

async fn look(paths: Vec<PathBuf>) -> Vec<Change> {
    let look = move || {
        let change = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some(FileState {
                written: found.modified().ok()?,
                len: found.len(),
                inode: found.ino(),
                changed: (found.ctime(), found.ctime_nsec()),
            })
        };
        paths.iter().map(change).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_of_the_same_length_and_time_is_seen_to_be_another() {
        let folder = tempfile::TempDir::new().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (path, text) in [(&path, "one"), (&other, "two")] {
            std::fs::write(path, text).unwrap();
            std::fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
        }
        let mut changes = FileChanges::of(vec![path.clone()]).await;
        assert!(!changes.have_settled().await);
        std::fs::rename(other, path).unwrap();
        assert!(!changes.have_settled().await, "it may still be written");
        assert!(changes.have_settled().await);
        assert!(!changes.have_settled().await, "it is told once");
    }
}
