//! The spool of events: batches on disk between the daemon and the receiver.
//!
//! One file a batch, named by the process that wrote it and the batch's number. Its first line has the
//! checksum of all that follows, when it was made and how many events it holds; the rest is the body as it is
//! sent. A file gets its name only when it is whole and on the disk. Bounded: when the spool is full nothing
//! more is taken. Calls block, and belong off the runtime's threads.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::core::time::Timestamp;
use crate::database::batch_id::BatchId;
use crate::database::private;

const WHOLE: &str = "events";
/// Ending of a file that could not be read.
const ASIDE: &str = "unreadable";
const PART: &str = "part";

/// Reasons why a batch did not get into the spool.
#[derive(Debug, thiserror::Error)]
pub enum EventSpoolError {
    /// It holds as much as it may.
    #[error("the spool of events {} is full: {bytes_max} bytes wait for the receiver", folder.display())]
    Full {
        /// Folder of the spool that has no room.
        folder: PathBuf,
        /// Most bytes that may wait in the folder.
        bytes_max: u64,
    },
    /// The disk is full, read-only, broken, or the folder is not ours.
    #[error("the spool of events {} cannot be written: {why}", folder.display())]
    Disk {
        /// Folder of the spool that cannot be written.
        folder: PathBuf,
        /// Reason that the operating system gives.
        why: io::Error,
    },
}

/// Events that are sent together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBatch {
    /// Name of the batch, unique together with the daemon's.
    pub id: BatchId,
    /// Instant at which the batch was made; its age counts from then.
    pub at: Timestamp,
    /// Number of events that the batch holds.
    pub events: u32,
    /// Body that is sent, byte for byte.
    pub body: Vec<u8>,
}

/// A folder of batches.
#[derive(Debug)]
pub struct EventSpool {
    folder: PathBuf,
    bytes_max: u64,
    /// Names and sizes of the batches that wait, oldest first.
    waiting: Mutex<VecDeque<(BatchId, u64)>>,
}

impl EventSpool {
    /// Opens the folder, making it if need be, and finds what an earlier process left. A folder that cannot
    /// be used is no error yet: putting something there will say why not.
    #[must_use]
    pub fn open(folder: &Path, bytes_max: u64) -> Self {
        let _ = private::create_folder(folder);
        let mut waiting = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                // The process died while it wrote.
                Some(PART) => drop(fs::remove_file(&path)),
                Some(WHOLE) => {
                    let bytes = entry.metadata().map_or(0, |found| found.len());
                    waiting.extend(id_of(&path).map(|id| (id, bytes)));
                }
                _ => {}
            }
        }
        waiting.sort_unstable();
        Self { folder: folder.to_owned(), bytes_max, waiting: Mutex::new(waiting.into()) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(BatchId, u64)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().iter().map(|(_, bytes)| bytes).sum()
    }

    /// True if nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Takes a batch. Once this returns `Ok` it survives the end of the process and of the machine.
    ///
    /// # Errors
    /// Why not; then nothing of it is kept.
    pub fn put(&self, batch: &EventBatch) -> Result<(), EventSpoolError> {
        let bytes = to_bytes(batch);
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.bytes().saturating_add(len) > self.bytes_max {
            return Err(EventSpoolError::Full { folder: self.folder.clone(), bytes_max: self.bytes_max });
        }
        let part = self.path(batch.id, PART);
        self.write(&part, batch.id, &bytes).map_err(|why| {
            let _ = fs::remove_file(&part);
            EventSpoolError::Disk { folder: self.folder.clone(), why }
        })?;
        self.lock().push_back((batch.id, len));
        Ok(())
    }

    fn write(&self, part: &Path, id: BatchId, bytes: &[u8]) -> io::Result<()> {
        let mut file = match private::create(part) {
            // The folder may have been away when the daemon started.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private::create_folder(&self.folder)?;
                private::create(part)?
            }
            created => created?,
        };
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(part, self.path(id, WHOLE))?;
        // The name too must be on the disk.
        File::open(&self.folder)?.sync_all()
    }

    /// The batch that has waited longest. `Ok(None)`: none waits.
    ///
    /// # Errors
    /// It cannot be read now, or is damaged ([`io::ErrorKind::InvalidData`]).
    pub fn oldest(&self) -> io::Result<Option<EventBatch>> {
        let Some((id, _)) = self.lock().front().copied() else { return Ok(None) };
        let bytes = fs::read(self.path(id, WHOLE))?;
        from_bytes(id, &bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Forgets the batch that has waited longest.
    pub fn remove_oldest(&self) {
        let oldest = self.lock().pop_front();
        if let Some((id, _)) = oldest {
            // A file that stays is sent again one day.
            let _ = fs::remove_file(self.path(id, WHOLE));
        }
    }

    /// Leaves the batch that has waited longest beside the others, under another ending, and goes on without
    /// it.
    pub fn set_oldest_aside(&self) {
        let oldest = self.lock().pop_front();
        if let Some((id, _)) = oldest {
            let _ = fs::rename(self.path(id, WHOLE), self.path(id, ASIDE));
        }
    }

    fn path(&self, id: BatchId, ending: &str) -> PathBuf {
        self.folder.join(format!("{:016x}-{:016x}.{ending}", id.incarnation, id.sequence))
    }
}

fn to_bytes(batch: &EventBatch) -> Vec<u8> {
    let mut rest = format!("{} {}\n", batch.at.0, batch.events).into_bytes();
    rest.extend_from_slice(&batch.body);
    let mut bytes = format!("{:08x} ", crc32fast::hash(&rest)).into_bytes();
    bytes.append(&mut rest);
    bytes
}

fn from_bytes(id: BatchId, bytes: &[u8]) -> Option<EventBatch> {
    let (checksum, rest) = bytes.split_at_checked(8)?;
    let rest = rest.strip_prefix(b" ")?;
    let checksum = u32::from_str_radix(std::str::from_utf8(checksum).ok()?, 16).ok()?;
    if crc32fast::hash(rest) != checksum {
        return None;
    }
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (head, body) = rest.split_at_checked(end)?;
    let (at, events) = std::str::from_utf8(head).ok()?.split_once(' ')?;
    Some(EventBatch {
        id,
        at: Timestamp(at.parse().ok()?),
        events: events.parse().ok()?,
        body: body.get(1..)?.to_vec(),
    })
}

fn id_of(path: &Path) -> Option<BatchId> {
    let (incarnation, sequence) = path.file_stem()?.to_str()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    Some(BatchId { incarnation: number(incarnation)?, sequence: number(sequence)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(incarnation: u64, sequence: u64) -> BatchId {
        BatchId { incarnation, sequence }
    }

    fn batch(id: BatchId) -> EventBatch {
        EventBatch { id, at: Timestamp(7), events: 2, body: b"{\"a\":\"\n\"}".to_vec() }
    }

    fn all(spool: &EventSpool) -> Vec<io::Result<EventBatch>> {
        let mut all = Vec::new();
        while !spool.is_empty() {
            all.push(spool.oldest().map(Option::unwrap));
            spool.remove_oldest();
        }
        all
    }

    #[test]
    fn batches_come_back_in_their_order_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let ids = [id(1, 2), id(1, 16), id(2, 1)];
        let spool = EventSpool::open(folder.path(), 1 << 20);
        ids.iter().for_each(|id| spool.put(&batch(*id)).unwrap());
        fs::write(folder.path().join("x.part"), "half").unwrap();
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        let again = EventSpool::open(folder.path(), 1 << 20);
        assert_eq!(again.bytes(), spool.bytes());
        let read: Vec<EventBatch> = all(&again).into_iter().map(Result::unwrap).collect();
        assert_eq!(read, ids.map(batch));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only what is not ours stays");
    }

    #[test]
    fn a_full_spool_says_so_and_keeps_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let spool = EventSpool::open(folder.path(), 40);
        spool.put(&batch(id(1, 1))).unwrap();
        assert!(matches!(spool.put(&batch(id(1, 2))), Err(EventSpoolError::Full { .. })));
        assert_eq!(all(&spool).len(), 1);
    }

    #[test]
    fn a_damaged_file_costs_itself_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let spool = EventSpool::open(folder.path(), 1 << 20);
        (1..=3).for_each(|sequence| spool.put(&batch(id(1, sequence))).unwrap());
        let path = spool.path(id(1, 2), WHOLE);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let read = all(&spool);
        assert_eq!(read.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(read[1].as_ref().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_folder_that_cannot_be_written_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = EventSpool::open(&file, 1 << 20).put(&batch(id(1, 1))).unwrap_err();
        assert!(error.to_string().contains("cannot be written"), "{error}");
    }
}
