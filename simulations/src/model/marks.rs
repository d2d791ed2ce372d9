//! The disk of a daemon that notes how much of `escrow` windows it may have spent: it outlives the daemon's
//! processes, and only the newest of them writes to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::core::regions::escrow::window::marks::{MarkNote, RememberedMarks};
use tidegate::core::time::Timestamp;
use tidegate::store::{MarkNotes, MemoryStore, Noted};

/// A daemon's disk.
#[derive(Debug, Default)]
pub(crate) struct MarksDisk(Mutex<Written>);

#[derive(Debug, Default)]
struct Written {
    process: u64,
    notes: Vec<MarkNote>,
    /// Notes of the present process since it was asked whether they are many.
    grown: usize,
    /// Where the notes begin that are written anew.
    anew: Option<usize>,
}

impl MarksDisk {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk is lost.
    pub(crate) fn lose(&self) {
        let mut written = self.written();
        *written = Written { process: written.process + 1, ..Written::default() };
    }

    /// A process begins, with a store that goes on with what is noted.
    pub(crate) fn begin(self: &Arc<Self>, store: &MemoryStore, now: Timestamp) {
        let mut written = self.written();
        let mut known = RememberedMarks::default();
        for note in &written.notes {
            // As it is written and read.
            if let Some(note) = MarkNote::read(note.line().trim_end()) {
                known.handle(note);
            }
        }
        known.prune(now);
        *written =
            Written { process: written.process + 1, notes: known.notes().collect(), ..Written::default() };
        let process = written.process;
        drop(written);
        let notes: Arc<dyn MarkNotes> = Arc::new(ProcessNotes { disk: Arc::clone(self), process });
        store.keep_marks(&notes, &known);
    }
}

/// The disk, as one process writes to it.
#[derive(Debug)]
struct ProcessNotes {
    disk: Arc<MarksDisk>,
    process: u64,
}

/// So many notes are written anew.
const MANY: usize = 64;

impl MarkNotes for ProcessNotes {
    fn note(&self, notes: &[MarkNote]) -> Noted {
        let mut written = self.disk.written();
        if written.process == self.process {
            written.notes.extend_from_slice(notes);
            written.grown += notes.len();
        }
        Noted::Kept
    }

    fn is_long(&self) -> bool {
        self.disk.written().grown > MANY
    }

    fn begin_anew(&self) -> bool {
        let mut written = self.disk.written();
        written.anew = Some(written.notes.len());
        written.process == self.process
    }

    fn end_anew(&self) {
        let mut written = self.disk.written();
        if let Some(from) = written.anew.take() {
            written.notes.drain(..from);
            written.grown = 0;
        }
    }
}
