//! Files that somebody else replaces while the daemon runs, and when they have settled.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

/// Time between two looks at files.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The time at which a file was written, and its length; `None`: it is not there.
type Change = Option<(SystemTime, u64)>;

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
            Some((found.modified().ok()?, found.len()))
        };
        paths.iter().map(change).collect()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}
