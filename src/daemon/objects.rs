//! `tidegate object`: files of a folder or bucket, for the scripts that make backups. The archive of the
//! audit log knows how to speak to one.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::database::audit::archive::{ArchivePlace, PlaceError};
use crate::database::private;

/// Reasons why a file was not fetched.
#[derive(Debug)]
pub enum FetchError {
    /// The folder or bucket has no such file.
    Absent(anyhow::Error),
    /// It may have one: it was not reached, or what it sent could not be kept.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for FetchError {
    fn from(error: anyhow::Error) -> Self {
        let is_absent = error.downcast_ref::<PlaceError>().is_some_and(PlaceError::is_absent);
        if is_absent { Self::Absent(error) } else { Self::Failed(error) }
    }
}

/// Writes a file to a URL. `is_new`: never over another file; the same one is there already. Blocks.
///
/// # Errors
/// The URL names no file, another one is there already, or it cannot be written.
pub fn put_object(from: &Path, url: &str, is_new: bool) -> anyhow::Result<()> {
    block_on(async {
        let (place, name) = place_of(url)?;
        if !is_new {
            place.put(name, from).await?;
            return Ok(());
        }
        if place.put_new(name, from).await? {
            return Ok(());
        }
        // Who was killed after the file was written writes it again.
        let mut there = nameless().context("no file to compare with can be made in TMPDIR")?;
        place.get(name, &mut there).await?;
        there.rewind()?;
        if !is_same(File::open(from)?, there)? {
            bail!("{url} is there already, and is another file");
        }
        Ok(())
    })
}

/// Fetches the file of a URL. It is at `into` as a whole or not at all. Blocks.
///
/// # Errors
/// There is no such file, or nobody knows: the URL names none, its place does not answer, or the file cannot
/// be written here.
pub fn get_object(url: &str, into: &Path) -> Result<(), FetchError> {
    let mut aside = into.as_os_str().to_owned();
    aside.push(".part");
    let aside = PathBuf::from(aside);
    let fetched = block_on(async {
        let (place, name) = place_of(url)?;
        let mut file = private::create(&aside).with_context(|| unwritten(&aside))?;
        place.get(name, &mut file).await?;
        file.sync_all().with_context(|| unwritten(&aside))
    });
    let kept = fetched.and_then(|()| std::fs::rename(&aside, into).with_context(|| unwritten(into)));
    if kept.is_err() {
        // A part of a file is none.
        let _ = std::fs::remove_file(&aside);
    }
    kept.map_err(FetchError::from)
}

/// Returns the names of all files below a URL, in order. Blocks.
///
/// # Errors
/// It is no folder or bucket, or cannot be listed.
pub fn list_objects(url: &str) -> anyhow::Result<Vec<String>> {
    block_on(async { Ok(ArchivePlace::open(url)?.list().await?) })
}

/// Removes the file of a URL. One that is not there is removed already. Blocks.
///
/// # Errors
/// The URL names no file, or it cannot be removed.
pub fn remove_object(url: &str) -> anyhow::Result<()> {
    block_on(async {
        let (place, name) = place_of(url)?;
        Ok(place.remove(name).await?)
    })
}

/// The folder or bucket of a URL, and the name of the file in it. A bucket is opened where a runtime runs.
fn place_of(url: &str) -> anyhow::Result<(ArchivePlace, &str)> {
    let parts = url.rsplit_once('/').filter(|(folder, name)| folder.contains("://") && !name.is_empty());
    let Some((folder, name)) = parts else {
        bail!("{url} names no file: write file:///folder/name or s3://bucket/name");
    };
    Ok((ArchivePlace::open(folder)?, name))
}

fn unwritten(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

/// A file that nobody else finds, and that is gone when it is closed.
fn nameless() -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("tidegate-object-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// True if two files hold the same bytes.
fn is_same(one: File, other: File) -> std::io::Result<bool> {
    let (mut one, mut other) = (BufReader::new(one), BufReader::new(other));
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if length == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        if left.get(..length) != right.get(..length) {
            return Ok(false);
        }
        one.consume(length);
        other.consume(length);
    }
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("the runtime did not start")?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_put_listed_fetched_and_removed_in_a_folder_too() {
        let folder = tempfile::tempdir().unwrap();
        let url = |name: &str| format!("file://{}/there/{name}", folder.path().display());
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("one"), "first").unwrap();
        std::fs::write(path("two"), "first and more").unwrap();
        put_object(&path("one"), &url("a/one"), true).unwrap();
        put_object(&path("one"), &url("a/one"), true).unwrap();
        let refused = put_object(&path("two"), &url("a/one"), true).unwrap_err().to_string();
        assert!(refused.contains("another file"), "{refused}");
        put_object(&path("two"), &url("two"), false).unwrap();
        assert_eq!(list_objects(&url("")).unwrap(), ["a/one", "two"]);
        get_object(&url("a/one"), &path("back")).unwrap();
        assert_eq!(std::fs::read_to_string(path("back")).unwrap(), "first");
        remove_object(&url("two")).unwrap();
        remove_object(&url("two")).unwrap();
        assert_eq!(list_objects(&url("a")).unwrap(), ["one"]);
        assert!(matches!(get_object(&url("two"), &path("none")), Err(FetchError::Absent(_))));
        assert!(matches!(get_object(&url("a/one"), &path("no/folder")), Err(FetchError::Failed(_))));
        assert!(!path("none").exists() && !path("none.part").exists());
        for wrong in ["", "one", "/one", "s3://bucket", "file:///"] {
            assert!(put_object(&path("one"), wrong, false).is_err(), "{wrong}");
        }
    }
}
