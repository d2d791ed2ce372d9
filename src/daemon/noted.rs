//! Notes of a daemon on its disk for its next process. The old or the new one is there at any instant, whole,
//! and no other node takes it for its own.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::core::regions::NodeName;
use crate::database::private;

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct Noted<T> {
    node: NodeName,
    held: T,
}

/// What is said of a file that cannot be taken.
pub(super) struct NotedWords {
    /// What a file that cannot be understood fails to say, and what to do about it.
    pub(super) lacks: &'static str,
    /// How each daemon has a file of its own.
    pub(super) apart: &'static str,
}

/// Returns what an earlier process of this daemon noted; `None` if there was none.
///
/// # Errors
/// A file that cannot be read, or that another node wrote.
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    name: &NodeName,
    words: NotedWords,
) -> anyhow::Result<Option<T>> {
    let NotedWords { lacks, apart } = words;
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
    };
    let noted: Noted<T> =
        serde_json::from_slice(&text).with_context(|| format!("{} does not say {lacks}", path.display()))?;
    if noted.node != *name {
        let NodeName { region, node } = noted.node;
        bail!("{} is of node {region}/{node}: {apart}", path.display());
    }
    Ok(Some(noted.held))
}

/// Notes something. Blocks.
pub(super) fn write<T: Serialize>(path: &Path, name: &NodeName, held: &T) -> std::io::Result<()> {
    let noted = Noted { node: name.clone(), held };
    let aside = path.with_extension("new");
    let mut file = private::create(&aside)?;
    file.write_all(&serde_json::to_vec(&noted)?)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
