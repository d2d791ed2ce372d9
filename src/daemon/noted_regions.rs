//! What operators changed of the list of regions, as an earlier process of this daemon noted it.

use std::path::{Path, PathBuf};

use super::noted::{self, NotedWords};
use crate::config::Config;
use crate::core::region_list::{RegionChanges, RegionList};
use crate::core::regions::NodeName;
use crate::engine::clock::Clock;

/// Returns where changes are noted: beside the weights of `split` rules.
pub(super) fn file_of(shares: &Path, node: &str) -> PathBuf {
    shares.with_file_name(format!("regions.{node}.json"))
}

/// Returns what an earlier process of this daemon noted.
///
/// # Errors
/// A file that cannot be read, or that another node wrote.
pub(super) fn read(path: &Path, name: &NodeName) -> anyhow::Result<RegionChanges> {
    let words = NotedWords {
        lacks: "which regions were changed; remove it where another daemon knows them, else change them again",
        apart: "give each daemon a folder of its own",
    };
    let noted: Option<RegionChanges> = noted::read(path, name, words)?;
    Ok(noted.unwrap_or_default().bounded(Clock::System.now()))
}

/// The regions that share limits, by a configuration and what was noted since.
///
/// # Errors
/// As [`read`].
pub(super) fn list_of(config: &Config) -> anyhow::Result<RegionList> {
    let name = NodeName { region: config.region.clone(), node: config.node.clone() };
    let changes = match config.peers.tls {
        Some(_) => read(&file_of(&config.peers.shares, &config.node), &name)?,
        None => RegionChanges::default(),
    };
    Ok(changes.over(&config.peers.regions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::region_list::RegionState;
    use crate::core::time::Timestamp;

    #[test]
    fn what_was_noted_is_read_again_and_by_its_own_node_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(&folder.path().join("shares.1.json"), "1");
        let name = |node: &str| NodeName { region: "eu".into(), node: node.into() };
        assert_eq!(read(&path, &name("1")).unwrap(), RegionChanges::default());
        let mut changes = RegionChanges::default();
        changes.change(Timestamp(1), "ap", RegionState::Drained, |_| false);
        noted::write(&path, &name("1"), &changes).unwrap();
        assert_eq!(read(&path, &name("1")).unwrap(), changes);
        let other = read(&path, &name("2")).unwrap_err().to_string();
        assert!(other.contains("is of node eu/1"), "{other}");
        std::fs::write(&path, "{\"node\":").unwrap();
        let broken = read(&path, &name("1")).unwrap_err().to_string();
        assert!(broken.contains("does not say which regions were changed"), "{broken}");
    }
}
