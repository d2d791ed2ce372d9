//! Fixed shares across restarts and regions: notes on disk which weights are held, then says so to the
//! others.
//!
//! In that order: a daemon that said it holds new weights and forgot it in a crash could take its old share
//! again while others already spend the difference.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::marks::MarksFile;
use super::noted::{self, NotedWords};
use crate::core::regions::NodeName;
use crate::core::regions::split::Saved;
use crate::engine::Engine;
use crate::peer::Peers;

/// Time between two comparisons of words, at which shares whose time has come are taken.
const PERIOD: Duration = Duration::from_millis(50);
/// A disk that refused is tried again after so many periods.
const RETRY_PERIODS: u32 = 20;

/// Returns what an earlier process of this daemon noted; `None` if there was none.
///
/// # Errors
/// A file that cannot be read, or that another node wrote.
pub(super) fn read(path: &Path, name: &NodeName) -> anyhow::Result<Option<Saved>> {
    let words = NotedWords {
        lacks: "which weights this daemon held; remove it, if no weights are being changed just now",
        apart: "give each daemon a file of its own in peers.shares",
    };
    noted::read(path, name, words)
}

/// Follows what the others hold.
#[derive(Clone)]
pub(super) struct Shares {
    pub(super) engine: Arc<Engine>,
    pub(super) peers: Arc<Peers>,
    /// File that keeps the weights; `None`: nothing outlives the process.
    pub(super) path: Option<PathBuf>,
    /// File that names the weights of which it is.
    pub(super) marks: Option<Arc<MarksFile>>,
}

impl Shares {
    /// Runs until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut noted = None;
        let (mut wait, mut begun) = (0, false);
        let mut asks = 0_u32;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let members = self.peers.members();
            let words: Vec<_> =
                members.borrow().iter().map(|member| (member.name.clone(), member.shares)).collect();
            if asks == 0 {
                self.engine.ask_store().await;
            }
            asks = (asks + 1) % RETRY_PERIODS;
            self.engine.follow_shares(words);
            let (held, word) = self.engine.shares_saved();
            if noted.as_ref() == Some(&held) {
                self.peers.set_shares(word);
                continue;
            }
            if wait > 0 {
                wait -= 1;
            } else if self.note(&held).await {
                self.peers.set_shares(word);
                if !std::mem::replace(&mut begun, self.engine.is_first()) && begun {
                    self.engine.begin_first().await;
                }
                self.engine.shares_are_saved(&held);
                noted = Some(held);
            } else {
                wait = RETRY_PERIODS;
            }
        }
    }

    /// `false`: the disk refused, so nothing is said to the others and the smaller shares stay in force.
    /// Notes, if it can, how a daemon began that has no share of anything.
    async fn note(&self, held: &Saved) -> bool {
        let Some(path) = self.path.clone().filter(|path| !held.is_empty() || path.exists()) else {
            return true;
        };
        let without_rules = held.is_without_rules();
        let (name, held, marks) = (self.engine.name().clone(), held.clone(), self.marks.clone());
        let write = move || {
            let written = noted::write(&path, &name, &held);
            if let Some(marks) = marks {
                marks.look_beside();
            }
            (written, path)
        };
        let written = tokio::task::spawn_blocking(write).await;
        match written {
            Ok((Ok(()), _)) => true,
            Ok((Err(error), path)) if without_rules && !path.exists() => {
                tracing::debug!(path = %path.display(), %error, "how this daemon began cannot be noted");
                self.engine.be_known();
                true
            }
            Ok((Err(error), path)) => {
                tracing::error!(path = %path.display(), %error, "the weights of split rules cannot be noted, so no share grows: name a file that can be written in peers.shares");
                false
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(node: &str) -> NodeName {
        NodeName { region: "eu".into(), node: node.into() }
    }

    #[test]
    fn what_was_noted_is_read_again_and_by_its_own_node_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shares.json");
        assert_eq!(read(&path, &name("1")).unwrap(), None);
        noted::write(&path, &name("1"), &Saved::default()).unwrap();
        assert_eq!(read(&path, &name("1")).unwrap(), Some(Saved::default()));
        let other = read(&path, &name("2")).unwrap_err().to_string();
        assert!(other.contains("is of node eu/1"), "{other}");
        std::fs::write(&path, "{\"node\":").unwrap();
        let broken = read(&path, &name("1")).unwrap_err().to_string();
        assert!(broken.contains("remove it"), "{broken}");
    }
}
