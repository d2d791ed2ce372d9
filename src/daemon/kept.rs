//! The file that a daemon with its store in memory leaves on its disk when it ends in good order: the rights
//! of `escrow` rules, which its next process takes back.
//!
//! Once: the file is gone from the disk before anything of it is used. So a process that is killed later
//! finds none, and burns. A program that does not know of the file cannot take it away; but it notes its
//! weights anew, and what was left beside others is not used.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use ring::digest;
use serde::{Deserialize, Serialize};

use crate::core::key::Shape;
use crate::core::regions::NodeName;
use crate::core::time::Timestamp;
use crate::database::private;
use crate::store::KeptStore;

/// A file in another format is not read. Names stand in the file, so that one that is missing or means
/// another thing elsewhere is noticed; whoever gives one another meaning counts this up.
const FORMAT: u32 = 1;

/// The state that is left for the next process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {
    format: u32,
    node: NodeName,
    /// Digest of the weights that were noted beside it.
    beside: Vec<u8>,
    /// The numbers of the rules that it speaks of, and the first that no rule had.
    pub(super) shapes: (Vec<(String, Shape)>, u32),
    pub(super) store: KeptStore,
    /// An instant before the last sign of life in `marks.NODE`; zero if nothing was noted there. One that
    /// gave its last sign before is older than this.
    #[serde(default)]
    pub(super) marks: Timestamp,
}

/// Returns where it is left: beside the weights of `split` rules.
fn file_of(shares: &Path, node: &str) -> PathBuf {
    shares.with_file_name(format!("rights.{node}.json"))
}

/// True if this error came of a file that is not there. Where a file system is read-only the system says that
/// first, and does not look.
pub(super) fn is_missing(path: &Path, error: &std::io::Error) -> bool {
    let is_not_found = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    is_not_found(error) || std::fs::symlink_metadata(path).is_err_and(|error| is_not_found(&error))
}

/// Tells the notes of weights apart; of none it is empty.
pub(super) fn digest_of(shares: &Path) -> std::io::Result<Vec<u8>> {
    match std::fs::read(shares) {
        Ok(bytes) => Ok(digest::digest(&digest::SHA256, &bytes).as_ref().to_vec()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// Takes what the process before has left. A file that cannot be used is burnt, and the log says why.
pub(super) fn take(shares: &Path, name: &NodeName) -> Option<Left> {
    let path = &file_of(shares, &name.node);
    let taken = read_once(path, shares, name);
    taken.unwrap_or_else(|error| {
        tracing::warn!(
            path = %path.display(), error = format!("{error:#}"),
            "what the process before left of escrow rules cannot be used: what it may have spent is burnt"
        );
        None
    })
}

fn read_once(path: &Path, shares: &Path, name: &NodeName) -> anyhow::Result<Option<Left>> {
    // One of two processes that begin at once finds it.
    let taken = path.with_extension("taken");
    match std::fs::rename(path, &taken) {
        Ok(()) => {}
        Err(error) if is_missing(path, &error) => return Ok(None),
        Err(error) => return Err(error).context("it cannot be taken away"),
    }
    sync_folder(path).context("its folder cannot be written")?;
    let bytes = std::fs::read(&taken).context("it cannot be read")?;
    std::fs::remove_file(&taken).context("it cannot be removed")?;
    let left: Left = serde_json::from_slice(&bytes).context("it is damaged, or another version wrote it")?;
    ensure!(left.format == FORMAT, "another version of this program wrote it");
    ensure!(left.node == *name, "it is of node {}/{}", left.node.region, left.node.node);
    ensure!(left.beside == digest_of(shares)?, "another process noted its weights since");
    Ok(Some(left))
}

/// Leaves it for the next process. Blocks.
pub(super) fn leave(
    shares: &Path,
    name: &NodeName,
    shapes: (Vec<(String, Shape)>, u32),
    store: KeptStore,
    marks: Timestamp,
) -> anyhow::Result<()> {
    let path = &file_of(shares, &name.node);
    let beside = digest_of(shares)?;
    let left = Left { format: FORMAT, node: name.clone(), beside, shapes, store, marks };
    let bytes = serde_json::to_vec(&left)?;
    let aside = path.with_extension("new");
    let mut file = private::create(&aside)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    sync_folder(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_missed_whatever_a_file_system_says_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rights.1.json");
        for kind in [ErrorKind::NotFound, ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied] {
            assert!(is_missing(&path, &kind.into()), "{kind}");
        }
        std::fs::write(&path, "").unwrap();
        assert!(!is_missing(&path, &ErrorKind::ReadOnlyFilesystem.into()));
    }

    #[test]
    fn what_is_left_is_taken_once_and_by_its_own_node_and_format_beside_the_same_weights_alone() {
        let folder = tempfile::tempdir().unwrap();
        let shares = folder.path().join("shares.1.json");
        let path = file_of(&shares, "1");
        let name = |node: &str| NodeName { region: "eu".into(), node: node.into() };
        let read = |node: &str| read_once(&path, &shares, &name(node));
        let leave = || {
            let shapes = (vec![("a".into(), Shape(8))], 16);
            leave(&shares, &name("1"), shapes, KeptStore::default(), Timestamp(0)).unwrap();
        };
        assert!(read("1").unwrap().is_none());
        for weights in [None, Some("1")] {
            if let Some(weights) = weights {
                std::fs::write(&shares, weights).unwrap();
            }
            leave();
            assert_eq!(read("1").unwrap().unwrap().shapes, (vec![("a".to_owned(), Shape(8))], 16));
            assert!(read("1").unwrap().is_none(), "once");
        }
        leave();
        std::fs::write(&shares, "2").unwrap();
        assert!(format!("{:#}", read("1").unwrap_err()).contains("noted its weights"));
        leave();
        assert!(read("2").is_err());
        leave();
        let whole = std::fs::read_to_string(&path).unwrap();
        for (written, why) in [
            (whole.replace("\"format\":1", "\"format\":2"), "another version"),
            (whole[..whole.len() - 1].to_owned(), "damaged"),
        ] {
            std::fs::write(&path, written).unwrap();
            let error = format!("{:#}", read("1").unwrap_err());
            assert!(error.contains(why) && !path.exists(), "{error}");
        }
    }
}
