//! The spool: batches on disk between the daemon and the database.
//!
//! One file a batch, named by its id. A file gets its name only when it is whole and on the disk, so whatever
//! has a name was acknowledged; what a dying process left without one is removed at the next start. Bounded:
//! when it is full nothing more is taken, and the caller counts what it must drop. Calls block, and belong
//! off the runtime's threads.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::segment::Batch;
use super::step::{ArchiveStep, Ended, Steps};
use crate::database::batch_id::BatchId;
use crate::database::private;

const WHOLE: &str = "batch";
const PART: &str = "part";
/// Files that are damaged or refused are kept for people to look at, up to this many.
const ASIDE_MAX: usize = 64;

/// Reasons why a batch did not get into the spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// It holds as much as it may.
    #[error("the spool {} is full: {bytes_max} bytes are waiting for the database", folder.display())]
    Full {
        /// Folder of the spool that has no room.
        folder: PathBuf,
        /// Most bytes that may wait in the folder.
        bytes_max: u64,
    },
    /// The disk is full, read-only, broken, or the folder is not ours.
    #[error("the spool {} cannot be written: {why}", folder.display())]
    Disk {
        /// Folder of the spool that cannot be written.
        folder: PathBuf,
        /// Reason that the operating system gives.
        why: io::Error,
    },
    /// A test ended it.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// A file of the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Name of the batch that the file holds.
    pub id: BatchId,
    /// Size of the file, which counts against the spool's bound.
    pub bytes: u64,
    /// Number of decisions that it tells of; 0 where an earlier process wrote it.
    pub decisions: u64,
}

/// The faults of a file.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It holds no whole batch. It was set aside.
    #[error("{}: {}", path.display(), super::segment::Damaged)]
    Damaged {
        /// File in which no whole batch was found.
        path: PathBuf,
        /// Number of records that are lost, as far as is known.
        rows: u64,
    },
    /// Somebody took it away. It is forgotten.
    #[error("{} is gone: somebody removed it", path.display())]
    Removed {
        /// File that was there when the spool was last looked at.
        path: PathBuf,
    },
    /// It cannot be read now.
    #[error("{}: {why}", path.display())]
    Disk {
        /// File that could not be read; it is tried again.
        path: PathBuf,
        /// Reason that the operating system gives.
        why: io::Error,
    },
}

#[derive(Debug, Default)]
struct Index {
    waiting: VecDeque<Segment>,
    bytes: u64,
}

/// A folder of batches.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    bytes_max: u64,
    index: Mutex<Index>,
    steps: Steps,
}

impl Spool {
    /// Opens the folder, making it if need be, and finds what an earlier process left. A folder that cannot
    /// be used is no error yet: nothing is in it, and putting something there will say why not.
    #[must_use]
    pub fn open(folder: &Path, bytes_max: u64, steps: Steps) -> Self {
        let _ = private::create_folder(folder);
        let mut waiting: Vec<Segment> = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                // Never acknowledged: the process died while it wrote.
                Some(PART) => drop(fs::remove_file(&path)),
                Some(WHOLE) => {
                    let bytes = entry.metadata().map_or(0, |found| found.len());
                    waiting.extend(id_of(&path).map(|id| Segment { id, bytes, decisions: 0 }));
                }
                _ => {}
            }
        }
        waiting.sort_by_key(|segment| segment.id);
        let bytes = waiting.iter().map(|segment| segment.bytes).sum();
        let index = Mutex::new(Index { waiting: waiting.into(), bytes });
        Self { folder: folder.to_owned(), bytes_max, index, steps }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// True if there is room for as much again as what waits.
    #[must_use]
    pub fn is_half_empty(&self) -> bool {
        self.bytes() < self.bytes_max / 2
    }

    /// The batch that has waited longest.
    #[must_use]
    pub fn oldest(&self) -> Option<Segment> {
        self.lock().waiting.front().copied()
    }

    /// Batches that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// True if none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a batch. Once this returns `Ok` the batch survives the end of the process and of the machine.
    ///
    /// # Errors
    /// Why not; then nothing of it is kept.
    pub fn put(&self, batch: &Batch) -> Result<(), SpoolError> {
        let (bytes, decisions) = (batch.to_bytes(), batch.decisions());
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.bytes().saturating_add(len) > self.bytes_max {
            return Err(SpoolError::Full { folder: self.folder.clone(), bytes_max: self.bytes_max });
        }
        let part = self.path(batch.id, PART);
        if let Err(error) = self.write(&part, batch.id, &bytes) {
            if !matches!(error, SpoolError::Ended(_)) {
                let _ = fs::remove_file(&part);
            }
            return Err(error);
        }
        let mut index = self.lock();
        index.bytes += len;
        index.waiting.push_back(Segment { id: batch.id, bytes: len, decisions });
        Ok(())
    }

    fn write(&self, part: &Path, id: BatchId, bytes: &[u8]) -> Result<(), SpoolError> {
        let disk = |why| SpoolError::Disk { folder: self.folder.clone(), why };
        let mut file = match private::create(part) {
            // The folder may have been away when the daemon started.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private::create_folder(&self.folder).map_err(disk)?;
                private::create(part).map_err(disk)?
            }
            created => created.map_err(disk)?,
        };
        self.steps.done(ArchiveStep::SegmentCreated)?;
        let (first, second) = bytes.split_at(bytes.len() / 2);
        file.write_all(first).map_err(disk)?;
        self.steps.done(ArchiveStep::SegmentHalfWritten)?;
        file.write_all(second).map_err(disk)?;
        self.steps.done(ArchiveStep::SegmentWritten)?;
        file.sync_data().map_err(disk)?;
        self.steps.done(ArchiveStep::SegmentSynced)?;
        fs::rename(part, self.path(id, WHOLE)).map_err(disk)?;
        self.steps.done(ArchiveStep::SegmentNamed)?;
        // The name too must be on the disk.
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(disk)
    }

    /// Reads a batch. A damaged one is set aside, and never offered again.
    ///
    /// # Errors
    /// It is damaged, or cannot be read now.
    pub fn read(&self, segment: Segment) -> Result<Batch, ReadError> {
        let path = self.path(segment.id, WHOLE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            // It will not come back.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.forget(segment);
                return Err(ReadError::Removed { path });
            }
            Err(why) => return Err(ReadError::Disk { path, why }),
        };
        Batch::from_bytes(&bytes).map_err(|_| {
            self.set_aside(segment, "damaged");
            let claimed = || u64::from(Batch::rows_claimed(&bytes));
            let rows = if segment.decisions > 0 { segment.decisions } else { claimed() };
            ReadError::Damaged { path, rows }
        })
    }

    /// Forgets a batch that was delivered.
    pub fn remove(&self, segment: Segment) {
        // A file that stays is delivered again one day, and the database knows that it has it.
        let _ = fs::remove_file(self.path(segment.id, WHOLE));
        self.forget(segment);
    }

    /// Moves a batch out of the way, under another ending, for people to look at.
    pub fn set_aside(&self, segment: Segment, ending: &str) {
        let path = self.path(segment.id, WHOLE);
        let aside = || {
            let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
            let is_aside =
                |path: &Path| path.extension().is_some_and(|found| found != WHOLE && found != PART);
            entries.filter(|entry| is_aside(&entry.path())).count()
        };
        let moved = aside() < ASIDE_MAX && fs::rename(&path, path.with_extension(ending)).is_ok();
        if !moved {
            let _ = fs::remove_file(&path);
        }
        self.forget(segment);
    }

    fn forget(&self, segment: Segment) {
        let mut index = self.lock();
        let before = index.waiting.len();
        index.waiting.retain(|waiting| waiting.id != segment.id);
        if index.waiting.len() < before {
            index.bytes = index.bytes.saturating_sub(segment.bytes);
        }
    }

    fn path(&self, id: BatchId, ending: &str) -> PathBuf {
        self.folder.join(format!("{:016x}-{:016x}.{ending}", id.incarnation, id.sequence))
    }
}

fn id_of(path: &Path) -> Option<BatchId> {
    let (incarnation, sequence) = path.file_stem()?.to_str()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    Some(BatchId { incarnation: number(incarnation)?, sequence: number(sequence)? })
}

#[cfg(test)]
mod tests {
    use super::super::segment::tests::batch;
    use super::*;
    use proptest::prelude::*;
    use tempfile::TempDir;

    fn open(folder: &Path) -> Spool {
        Spool::open(folder, 1 << 20, Steps::default())
    }

    fn all(spool: &Spool) -> Vec<Batch> {
        let mut read = Vec::new();
        while let Some(segment) = spool.oldest() {
            read.extend(spool.read(segment).ok());
            spool.remove(segment);
        }
        read
    }

    #[test]
    fn batches_come_back_in_their_order_after_a_restart() {
        let folder = TempDir::new().unwrap();
        let spool = open(folder.path());
        (1..=12).for_each(|sequence| spool.put(&batch(sequence, 2)).unwrap());
        let bytes = spool.bytes();
        let again = open(folder.path());
        assert_eq!((again.bytes(), again.len()), (bytes, 12));
        assert_eq!(all(&again), (1..=12).map(|sequence| batch(sequence, 2)).collect::<Vec<_>>());
        assert_eq!(open(folder.path()).bytes(), 0);
    }

    #[test]
    fn a_process_that_dies_at_any_step_leaves_whole_batches_or_nothing() {
        for dies in ArchiveStep::SPOOLING {
            let folder = TempDir::new().unwrap();
            open(folder.path()).put(&batch(1, 2)).unwrap();
            let dying = Spool::open(folder.path(), 1 << 20, Steps::dying(move |step| step == dies));
            assert!(matches!(dying.put(&batch(2, 2)), Err(SpoolError::Ended(_))));
            let left = all(&open(folder.path()));
            let acknowledged = if dies == ArchiveStep::SegmentNamed { 2 } else { 1 };
            assert_eq!(left, (1..=acknowledged).map(|n| batch(n, 2)).collect::<Vec<_>>(), "{dies:?}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{dies:?} leaves files behind");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_damaged_file_costs_itself_and_no_other(at in any::<proptest::sample::Index>(), cut: bool) {
            let folder = TempDir::new().unwrap();
            let spool = open(folder.path());
            (1..=3).for_each(|sequence| spool.put(&batch(sequence, 2)).unwrap());
            let path = folder.path().join(format!("{:016x}-{:016x}.batch", 7, 2));
            let mut bytes = fs::read(&path).unwrap();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1 }
            fs::write(&path, bytes).unwrap();
            prop_assert_eq!(all(&open(folder.path())), vec![batch(1, 2), batch(3, 2)]);
            prop_assert!(path.with_extension("damaged").exists());
        }
    }

    #[test]
    fn a_full_spool_says_so_and_keeps_what_it_has() {
        let folder = TempDir::new().unwrap();
        let spool = Spool::open(folder.path(), 1_000, Steps::default());
        spool.put(&batch(1, 3)).unwrap();
        let error = spool.put(&batch(2, 30)).unwrap_err();
        assert!(matches!(error, SpoolError::Full { .. }), "{error}");
        assert!(error.to_string().contains("is full: 1000 bytes"), "{error}");
        assert!(!Spool::open(folder.path(), 2 * spool.bytes(), Steps::default()).is_half_empty());
        assert!(Spool::open(folder.path(), 2 * spool.bytes() + 2, Steps::default()).is_half_empty());
        assert_eq!(all(&spool), [batch(1, 3)]);
        spool.put(&batch(3, 3)).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_says_why() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let spool = open(&file);
        let error = spool.put(&batch(1, 1)).unwrap_err();
        assert!(
            matches!(error, SpoolError::Disk { .. }) && error.to_string().contains("cannot be written"),
            "{error}"
        );
        assert_eq!(spool.bytes(), 0);
    }

    #[test]
    fn only_the_daemons_user_reads_what_waits() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = TempDir::new().unwrap();
        let spool = folder.path().join("spool");
        open(&spool).put(&batch(1, 2)).unwrap();
        let file = spool.join(format!("{:016x}-{:016x}.batch", 7, 1));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&spool), mode(&file)), (0o700, 0o600));
    }

    #[test]
    fn strangers_in_the_folder_are_left_alone() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        fs::write(folder.path().join("strange.batch"), "mine").unwrap();
        assert!(open(folder.path()).is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
