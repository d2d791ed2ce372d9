//! The place of the archive: a folder, or a bucket of an S3-compatible store.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, WriteMultipart, parse_url_opts};

use crate::database::private;

/// Bytes of one part of an upload.
const PART_BYTES: usize = 8 << 20;
/// Most bytes of a file that goes at once where it must be new: a segment of PostgreSQL's WAL has as many.
const WHOLE_BYTES_MAX: u64 = 16 << 20;
/// Parts on their way at once.
const PARTS_MAX: usize = 4;
/// Longest wait for one answer of the store.
const DEADLINE: Duration = Duration::from_secs(120);
/// Files are removed one at a time, as every S3-compatible store can, and not by a list, as some cannot.
const ONE_BY_ONE: &str = "aws_disable_bulk_delete";
/// The prefix of the store's settings in the environment.
const SETTINGS: &str = "AWS_";

/// The archive does not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("the archive {url}: {why}")]
pub struct PlaceError {
    url: String,
    why: String,
    /// The archive answered, and has no such file.
    is_absent: bool,
}

impl PlaceError {
    /// True if the archive answered that it has no file of this name.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        self.is_absent
    }
}

/// An archive: of old months, or of backups.
#[derive(Debug)]
pub struct ArchivePlace {
    url: String,
    store: Box<dyn ObjectStore>,
    prefix: Key,
    /// Folder of an archive on this machine: its files and folders are for this daemon's user alone, which
    /// the store does not do.
    folder: Option<PathBuf>,
}

impl ArchivePlace {
    /// Opens it; nothing is asked of it yet.
    ///
    /// # Errors
    /// The URL is none of a folder or bucket, or the environment lacks what the bucket needs.
    pub fn open(url: &str) -> Result<Self, PlaceError> {
        let fail = |why: String| PlaceError { url: url.to_owned(), why, is_absent: false };
        let parsed = reqwest::Url::parse(url).map_err(|error| fail(format!("is no URL: {error}")))?;
        let settings = std::env::vars_os()
            .filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()))
            .filter(|(name, _)| name.starts_with(SETTINGS))
            .map(|(name, value)| (name.to_lowercase(), value));
        let settings = settings.chain([(ONE_BY_ONE.to_owned(), "true".to_owned())]);
        let (store, prefix) = parse_url_opts(&parsed, settings).map_err(|error| fail(error.to_string()))?;
        let folder = (parsed.scheme() == "file").then(|| parsed.to_file_path().ok()).flatten();
        Ok(Self { url: url.trim_end_matches('/').to_owned(), store, prefix, folder })
    }

    /// Returns how people name a file in it.
    #[must_use]
    pub fn location(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }

    /// The name of a file that people name so, if it lies in this archive.
    pub(super) fn name_of<'l>(&self, location: &'l str) -> Option<&'l str> {
        location.strip_prefix(&*self.url)?.strip_prefix('/')
    }

    /// Returns the names of all files in it, those of folders below as well, in order.
    ///
    /// # Errors
    /// It cannot be listed.
    pub async fn list(&self) -> Result<Vec<String>, PlaceError> {
        let mut listed = self.store.list(Some(&self.prefix));
        let mut names = Vec::new();
        loop {
            let next = tokio::time::timeout(DEADLINE, listed.next()).await;
            let Some(file) = next.map_err(|_| self.fail("", "no answer within 2m"))? else { break };
            let location = file.map_err(|error| self.fail("", error))?.location;
            let (location, prefix): (&str, &str) = (location.as_ref(), self.prefix.as_ref());
            let name = location.strip_prefix(prefix).unwrap_or_default();
            names.push(name.trim_start_matches('/').to_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns true if it has a file of this name.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn has(&self, name: &str) -> Result<bool, PlaceError> {
        let found = async {
            match self.store.head(&self.key(name)).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::NotFound { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.wait(name, found).await
    }

    /// Removes a file. One that is not there is removed already.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn remove(&self, name: &str) -> Result<(), PlaceError> {
        let removed = async {
            match self.store.delete(&self.key(name)).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                removed => removed,
            }
        };
        self.wait(name, removed).await
    }

    fn key(&self, name: &str) -> Key {
        name.split('/').fold(self.prefix.clone(), |key, part| key.join(part))
    }

    fn fail(&self, name: &str, why: impl std::fmt::Display) -> PlaceError {
        PlaceError { url: self.location(name), why: why.to_string(), is_absent: false }
    }

    async fn wait<T>(
        &self,
        name: &str,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, PlaceError> {
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(answer) => answer.map_err(|error| {
                let is_absent = matches!(error, object_store::Error::NotFound { .. });
                PlaceError { is_absent, ..self.fail(name, error) }
            }),
            Err(_) => Err(self.fail(name, "no answer within 2m")),
        }
    }

    /// Writes a file, replacing one of this name. It is there as a whole or not at all. Returns its size.
    ///
    /// # Errors
    /// The file cannot be read, or the archive does not take it.
    pub async fn put(&self, name: &str, from: &Path) -> Result<u64, PlaceError> {
        if let Some(folder) = &self.folder {
            let (from, into) = (from.to_owned(), folder.join(name));
            let copied = tokio::task::spawn_blocking(move || copy_private(&from, &into, false)).await;
            return copied.map_err(std::io::Error::other).flatten().map_err(|error| self.fail(name, error));
        }
        let mut file = File::open(from).map_err(|error| self.fail(name, error))?;
        let upload = self.wait(name, self.store.put_multipart(&self.key(name))).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut part = vec![0; PART_BYTES];
        let mut bytes = 0;
        loop {
            let read = match file.read(&mut part) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => {
                    let _ = upload.abort().await;
                    return Err(self.fail(name, error));
                }
            };
            if let Err(error) = self.wait(name, upload.wait_for_capacity(PARTS_MAX)).await {
                let _ = tokio::time::timeout(DEADLINE, upload.abort()).await;
                return Err(error);
            }
            upload.write(&part[..read]);
            bytes += u64::try_from(read).unwrap_or(u64::MAX);
        }
        self.wait(name, upload.finish()).await?;
        Ok(bytes)
    }

    /// Writes a file unless there is one of this name: then `false`. It is there as a whole or not at all. Of
    /// two writers at once one is first, where the file is no larger than a segment of WAL and the store
    /// knows conditions.
    ///
    /// # Errors
    /// The file cannot be read, or the archive does not take it.
    pub async fn put_new(&self, name: &str, from: &Path) -> Result<bool, PlaceError> {
        // Some stores pass over conditions.
        if self.has(name).await? {
            return Ok(false);
        }
        if let Some(folder) = &self.folder {
            let (from, into) = (from.to_owned(), folder.join(name));
            let copied = tokio::task::spawn_blocking(move || copy_private(&from, &into, true)).await;
            return match copied.map_err(std::io::Error::other).flatten() {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(self.fail(name, error)),
            };
        }
        let size = std::fs::metadata(from).map_err(|error| self.fail(name, error))?.len();
        if size <= WHOLE_BYTES_MAX {
            let bytes = std::fs::read(from).map_err(|error| self.fail(name, error))?;
            let put = async {
                match self.store.put_opts(&self.key(name), bytes.into(), PutMode::Create.into()).await {
                    Ok(_) => Ok(Some(true)),
                    Err(object_store::Error::AlreadyExists { .. }) => Ok(Some(false)),
                    // Switched off (`AWS_CONDITIONAL_PUT=disabled`), for stores that refuse conditions.
                    Err(object_store::Error::NotImplemented { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            };
            if let Some(is_new) = self.wait(name, put).await? {
                return Ok(is_new);
            }
        }
        self.put(name, from).await.map(|_| true)
    }

    /// Fetches a file into this one.
    ///
    /// # Errors
    /// It is not there, or cannot be read or written.
    pub async fn get(&self, name: &str, into: &mut File) -> Result<(), PlaceError> {
        let found = self.wait(name, self.store.get(&self.key(name))).await?;
        let mut parts = found.into_stream();
        loop {
            let next = tokio::time::timeout(DEADLINE, parts.next()).await;
            match next.map_err(|_| self.fail(name, "no answer within 2m"))? {
                None => return Ok(()),
                Some(part) => {
                    let part = part.map_err(|error| self.fail(name, error))?;
                    into.write_all(&part).map_err(|error| self.fail(name, error))?;
                }
            }
        }
    }
}

/// Copies a file beside its place and moves it there, so that it is there as a whole or not at all. Blocks.
/// `is_new`: never over another one. Returns its size.
fn copy_private(from: &Path, into: &Path, is_new: bool) -> std::io::Result<u64> {
    let folder = into.parent().unwrap_or_else(|| Path::new("."));
    private::create_folder(folder)?;
    let mut aside = into.as_os_str().to_owned();
    if is_new {
        // Another writer at the same time must not empty this one's.
        aside.push(format!(".{}", std::process::id()));
    }
    aside.push(".part");
    let aside = PathBuf::from(aside);
    let copied = copy_beside(from, &aside).and_then(|bytes| {
        if is_new {
            link_new(&aside, into)?
        } else {
            std::fs::rename(&aside, into)?
        }
        Ok(bytes)
    });
    if copied.is_err() {
        // A part of a file is none.
        let _ = std::fs::remove_file(&aside);
    }
    let bytes = copied?;
    File::open(folder)?.sync_all()?;
    Ok(bytes)
}

fn copy_beside(from: &Path, aside: &Path) -> std::io::Result<u64> {
    let mut copy = private::create(aside)?;
    let bytes = std::io::copy(&mut File::open(from)?, &mut copy)?;
    copy.sync_all()?;
    Ok(bytes)
}

/// Moves a file to a place where none is.
fn link_new(aside: &Path, into: &Path) -> std::io::Result<()> {
    match std::fs::hard_link(aside, into) {
        Ok(()) => std::fs::remove_file(aside),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        // Some file systems have no hard links.
        Err(_) => std::fs::rename(aside, into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_stays_where_a_new_one_was_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("one"), "first").unwrap();
        std::fs::write(path("two"), "second").unwrap();
        assert_eq!(copy_private(&path("one"), &path("to/there"), true).unwrap(), 5);
        let refused = copy_private(&path("two"), &path("to/there"), true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(path("to/there")).unwrap(), "first");
        assert_eq!(copy_private(&path("two"), &path("to/there"), false).unwrap(), 6);
        assert_eq!(std::fs::read_dir(path("to")).unwrap().count(), 1, "nothing is left beside it");
    }
}
