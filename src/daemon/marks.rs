//! The file in which a daemon with its store in memory notes how much of `escrow` windows it may have spent,
//! for a next process that finds nothing else: see [`crate::store::MarkNotes`].
//!
//! It outlives the process and not the machine: a note is in the system's memory when its `write` returns,
//! and nothing waits for a disk. So the file names the boot that it is of, and itself, as a copy of it would
//! be used twice. Whoever reads it begins a new one in its place that carries the notes on, before anything
//! of it is used; and keeps it locked, so that nobody reads on while another process writes. A second process
//! of the same node finds `marks.NODE.lock` held, and does not start.
//!
//! Notes that are written at once end with the instant, without which they do not count. It is written each
//! second, too. So a file that was changed later than that is not the one that its process wrote last: an
//! older one was brought back.

use std::fs::{File, Metadata, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::kept::{digest_of, is_missing};
use crate::core::notice::{Notice, NoticeKind};
use crate::core::regions::NodeName;
use crate::core::regions::escrow::window::marks::{MarkNote, RememberedMarks};
use crate::core::time::{Span, Timestamp};
use crate::database::private;
use crate::engine::Engine;
use crate::engine::clock::Clock;
use crate::engine::notices::NoticeSource;
use crate::store::{MarkNotes, MemoryStore, Noted};

/// A file in another format is not read.
const FORMAT: u32 = 1;
/// Names the time since the machine was started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// A file that has grown by so much beyond what it began with, and thrice that, is written anew.
const GROWTH: u64 = 1 << 20;
/// A file that cannot be written anew may become so long.
const LONGEST: u64 = 64 << 20;
/// A file was changed no later than so long after its last note.
const CHANGED_WITHIN: Span = Span::from_secs(2);
/// Sentence for the operator where a second daemon is begun beside the first.
const HELD: &str = "another process of this node holds it: stop that one first, or give each daemon a node, or \
                    a file in peers.shares, of its own";
/// Time between two looks at the file.
const PERIOD: Duration = Duration::from_secs(1);

/// The first line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: u32,
    node: NodeName,
    boot: String,
    /// Number of the file itself. Not of its device, which a container that is started again names anew.
    file: u64,
}

fn file_of(shares: &Path, node: &str) -> PathBuf {
    shares.with_file_name(format!("marks.{node}"))
}

fn lock_of(shares: &Path, node: &str) -> PathBuf {
    shares.with_file_name(format!("marks.{node}.lock"))
}

/// Locks a file that is only there for that.
fn lock(path: &Path) -> Result<File, TryLockError> {
    let file = match File::options().write(true).open(path) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == ErrorKind::NotFound => private::create(path),
        Err(_) => File::open(path),
    };
    let file = file.map_err(TryLockError::Error)?;
    file.try_lock()?;
    Ok(file)
}

fn identity_of(metadata: &Metadata) -> u64 {
    metadata.ino()
}

/// The instant at which a file was changed, however that was done: by the same clock as its notes.
fn changed_at(metadata: &Metadata) -> Timestamp {
    let seconds = u64::try_from(metadata.ctime()).unwrap_or(0);
    let micros = u64::try_from(metadata.ctime_nsec() / 1_000).unwrap_or(0);
    Timestamp(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// True of a file that another process, or another part of this one, has locked.
fn is_held(path: &Path) -> bool {
    let file = File::options().write(true).open(path);
    file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Notes as they are written at once.
fn text_of(notes: &[MarkNote]) -> String {
    let others = notes.iter().filter(|note| !matches!(note, MarkNote::Alive(_)));
    let now = MarkNote::Alive(Clock::System.now());
    others.chain([&now]).map(MarkNote::line).collect()
}

/// True if there is no such file, as far as anybody can say.
fn is_absent(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Takes a file away. One that is empty is as good as gone.
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if !is_missing(path, &error) => {
            File::options().write(true).truncate(true).open(path).map(drop).map_err(|_| error)
        }
        _ => Ok(()),
    }
}

/// A file with its header, which nobody finds before it is renamed.
fn create(aside: &Path, name: &NodeName, boot: &str) -> anyhow::Result<OpenFile> {
    let mut file = private::create(aside)?;
    file.try_lock().context("another process writes it")?;
    let identity = identity_of(&file.metadata()?);
    let header = Header { format: FORMAT, node: name.clone(), boot: boot.to_owned(), file: identity };
    let line = format!("{}\n", serde_json::to_string(&header)?);
    file.write_all(line.as_bytes())?;
    let bytes = u64::try_from(line.len()).unwrap_or(0);
    Ok(OpenFile { file, identity, bytes })
}

/// Reads what an earlier process noted; with the file, which stays locked for as long as it is held.
///
/// # Errors
/// It cannot be used.
fn read(
    path: &Path,
    shares: &Path,
    name: &NodeName,
    boot: &str,
    left_at: Timestamp,
    now: Timestamp,
) -> anyhow::Result<Option<(File, RememberedMarks)>> {
    let mut file = match File::options().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("it cannot be read"),
    };
    file.try_lock().context("another process uses it: give each daemon a folder of its own")?;
    let identity = identity_of(&file.metadata()?);
    ensure!(identity_of(&std::fs::metadata(path)?) == identity, "another process has taken it");
    let changed = changed_at(&file.metadata()?);
    let mut text = String::new();
    file.read_to_string(&mut text).context("it is damaged, or cannot be read")?;
    let (header, notes) = text.split_once('\n').context("it is damaged")?;
    let header: Header =
        serde_json::from_str(header).context("it is damaged, or another version wrote it")?;
    ensure!(header.format == FORMAT, "another version of this program wrote it");
    ensure!(header.node == *name, "it is of node {}/{}", header.node.region, header.node.node);
    ensure!(header.boot == boot, "the machine was started anew since, and may have lost some of it");
    ensure!(header.file == identity, "it is a copy");
    let (mut known, mut at_once) = (RememberedMarks::default(), Vec::new());
    // Of notes without an end nothing was spent: their process was killed while it wrote, or could not.
    for (at, line) in notes.split_inclusive('\n').enumerate() {
        let Some(line) = line.strip_suffix('\n') else { break };
        let Some(note) = MarkNote::read(line) else { bail!("line {} is damaged", at + 2) };
        let is_end = matches!(note, MarkNote::Alive(_));
        at_once.push(note);
        if is_end {
            at_once.drain(..).for_each(|note| known.handle(note));
        }
    }
    ensure!(
        changed <= known.alive() + CHANGED_WITHIN,
        "it was changed after its last note: an older one was brought back"
    );
    ensure!(known.alive() >= left_at, "it is older than what was left in good order since");
    ensure!(known.beside() == digest_of(shares)?, "another process noted its weights since");
    known.prune(now);
    Ok(Some((file, known)))
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    identity: u64,
    bytes: u64,
}

impl OpenFile {
    fn note(&mut self, notes: &[MarkNote]) -> std::io::Result<()> {
        self.write(&text_of(notes))
    }

    fn write(&mut self, text: &str) -> std::io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.bytes += u64::try_from(text.len()).unwrap_or(0);
        Ok(())
    }
}

/// The file while its process runs. It is made with the first note.
#[derive(Debug)]
pub(super) struct MarksFile {
    path: PathBuf,
    shares: PathBuf,
    name: NodeName,
    boot: String,
    state: Mutex<MarksState>,
}

#[derive(Debug)]
struct MarksState {
    /// Held for as long as the process lives, from its first note on.
    claim: Option<File>,
    open: Option<OpenFile>,
    /// The next one, while it is being written.
    next: Option<OpenFile>,
    /// Length with which the present one began.
    begun: u64,
    /// The digest of weights that was noted last.
    beside: Option<Vec<u8>>,
    noted: Noted,
    /// Sentence for the operator once nothing can be noted.
    problem: Option<String>,
}

/// Claims the notes of a node for this process, if anybody has noted anything. Before anything is taken that
/// an earlier process left.
///
/// # Errors
/// Another process of the node runs.
pub(super) fn claim(shares: &Path, name: &NodeName) -> anyhow::Result<Option<File>> {
    let path = lock_of(shares, &name.node);
    let is_first = is_absent(&path);
    if is_first && is_absent(&file_of(shares, &name.node)) {
        return Ok(None);
    }
    match lock(&path) {
        Ok(file) => Ok(Some(file)),
        // Nothing will be noted either.
        Err(TryLockError::Error(_)) if is_first => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{}: {HELD}", path.display())),
    }
}

/// Begins the file of this process, with what an earlier one noted, if the last sign of life in it is not
/// from before `left_at`. `None`: nothing is noted on this machine.
///
/// # Errors
/// A file that cannot be used cannot be taken away either: a later process would take it for what this one
/// has spent.
pub(super) fn begin(
    shares: &Path,
    name: &NodeName,
    claim: Option<File>,
    left_at: Timestamp,
    now: Timestamp,
) -> anyhow::Result<Option<(Arc<MarksFile>, RememberedMarks)>> {
    let Ok(boot) = std::fs::read_to_string(BOOT) else {
        forget(shares, name)?;
        return Ok(None);
    };
    begin_in(shares, name, boot.trim(), claim, left_at, now)
}

fn begin_in(
    shares: &Path,
    name: &NodeName,
    boot: &str,
    claim: Option<File>,
    left_at: Timestamp,
    now: Timestamp,
) -> anyhow::Result<Option<(Arc<MarksFile>, RememberedMarks)>> {
    let path = file_of(shares, &name.node);
    let found = read(&path, shares, name, boot, left_at, now).unwrap_or_else(|error| {
        tracing::warn!(
            path = %path.display(), error = format!("{error:#}"),
            "what the process before noted of escrow rules cannot be used: what it may have spent is burnt"
        );
        None
    });
    let state = MarksState {
        claim,
        open: None,
        next: None,
        begun: 0,
        beside: None,
        noted: Noted::Kept,
        problem: None,
    };
    let file = MarksFile {
        path,
        shares: shares.to_owned(),
        name: name.clone(),
        boot: boot.to_owned(),
        state: Mutex::new(state),
    };
    let Some((before, known)) = found else {
        forget(shares, name)?;
        return Ok(Some((Arc::new(file), RememberedMarks::default())));
    };
    let notes: Vec<MarkNote> = known.notes().collect();
    // Not empty, so that a file takes the place of the one before whatever there is to carry on.
    let noted = file.note_in(&mut file.state(), &notes);
    drop(before);
    match noted {
        Noted::Kept => Ok(Some((Arc::new(file), known))),
        Noted::Off | Noted::Stuck => {
            forget(shares, name)?;
            Ok(Some((Arc::new(file), RememberedMarks::default())))
        }
    }
}

/// Takes the file away, as this process notes nothing.
///
/// # Errors
/// It cannot be taken away, or another process writes it.
pub(super) fn forget(shares: &Path, name: &NodeName) -> anyhow::Result<()> {
    let path = file_of(shares, &name.node);
    ensure!(!is_held(&path), "{}: {HELD}", path.display());
    remove(&path).with_context(|| {
        format!(
            "{} cannot be removed, and a later process would take it for what this one has spent of escrow \
             rules: remove it, or name a file in peers.shares whose folder can be written",
            path.display()
        )
    })
}

impl MarksFile {
    fn state(&self) -> std::sync::MutexGuard<'_, MarksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aside(&self) -> PathBuf {
        self.path.with_file_name(format!("marks.{}.new", self.name.node))
    }

    /// A new file that begins with the weights of today.
    fn create(&self) -> anyhow::Result<(OpenFile, Vec<u8>)> {
        let mut open = create(&self.aside(), &self.name, &self.boot)?;
        let digest = digest_of(&self.shares)?;
        open.note(&[MarkNote::Beside(digest.clone())])?;
        Ok((open, digest))
    }

    fn write(&self, state: &mut MarksState, text: &str) -> anyhow::Result<()> {
        if let Some(open) = &mut state.open {
            open.write(text)?;
            if let Some(next) = &mut state.next {
                next.write(text)?;
            }
            return Ok(());
        }
        if state.claim.is_none() {
            state.claim = Some(lock(&lock_of(&self.shares, &self.name.node)).context(HELD)?);
        }
        let (mut open, digest) = self.create()?;
        open.write(text)?;
        std::fs::rename(self.aside(), &self.path)?;
        (state.begun, state.beside) = (open.bytes, Some(digest));
        // That changed it once more.
        state.open.insert(open).note(&[])?;
        Ok(())
    }

    fn note_in(&self, state: &mut MarksState, notes: &[MarkNote]) -> Noted {
        let text = text_of(notes);
        if state.noted == Noted::Kept
            && let Err(error) = self.write(state, &text)
        {
            self.give_up(state, &format!("{error:#}"));
        }
        state.noted
    }

    /// Nothing is noted from now on, so nothing of what was may be used.
    fn give_up(&self, state: &mut MarksState, error: &str) {
        let never_begun = state.open.is_none();
        let gone = state.open.as_ref().is_none_or(|open| {
            // By its own handle, which reaches it even where its place cannot be looked at.
            let emptied = open.file.set_len(0).is_ok();
            match std::fs::metadata(&self.path) {
                // Another file in its place is not ours.
                Ok(found) if identity_of(&found) != open.identity => true,
                Err(error) if error.kind() == ErrorKind::NotFound => true,
                _ => remove(&self.path).is_ok() || emptied,
            }
        });
        state.next = None;
        if state.claim.is_some() {
            // What is left of it is made anew.
            let _ = remove(&self.aside());
        }
        if gone {
            state.open = None;
        }
        state.noted = if gone { Noted::Off } else { Noted::Stuck };
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if never_begun && folder.is_some_and(|folder| !folder.exists()) {
            // A daemon that speaks with no other may have no folder of its own. To one that does it was said.
            tracing::debug!(path = %self.path.display(), error, "what is spent of escrow rules is not noted");
            return;
        }
        let path = self.path.display();
        let text = match gone {
            true => format!(
                "what is spent of escrow rules cannot be noted in {path}: if this process is killed, their windows \
                 in progress burn ({error})"
            ),
            false => format!(
                "what is spent of escrow rules cannot be noted in {path}, nor can that file be removed: no more is \
                 admitted of their windows than was noted ({error})"
            ),
        };
        tracing::error!("{text}");
        state.problem = Some(text);
    }

    /// Gives a sign of life, and returns an instant before it; zero if nothing is noted.
    pub(super) fn live(&self) -> Timestamp {
        let (now, mut state) = (Clock::System.now(), self.state());
        let is_noted = state.open.is_some() && self.note_in(&mut state, &[]) == Noted::Kept;
        if is_noted { now } else { Timestamp(0) }
    }

    /// The weights beside it may have changed.
    pub(super) fn look_beside(&self) {
        let mut state = self.state();
        if state.open.is_none() || state.noted != Noted::Kept {
            return;
        }
        // Where it cannot be read the next process finds another digest, and burns.
        let Ok(digest) = digest_of(&self.shares) else { return };
        if state.beside.as_ref() != Some(&digest) {
            self.note_in(&mut state, &[MarkNote::Beside(digest.clone())]);
            state.beside = Some(digest);
        }
    }

    fn notice(&self) -> Vec<Notice> {
        let notice = |text: &String| Notice {
            kind: NoticeKind::Configuration,
            subject: "marks".to_owned(),
            text: text.clone(),
            over: "what is spent of escrow rules is noted again".to_owned(),
        };
        self.state().problem.iter().map(notice).collect()
    }
}

impl MarkNotes for MarksFile {
    fn note(&self, notes: &[MarkNote]) -> Noted {
        let mut state = self.state();
        if notes.is_empty() {
            return state.noted;
        }
        self.note_in(&mut state, notes)
    }

    fn is_long(&self) -> bool {
        let state = self.state();
        let grown = |open: &OpenFile| open.bytes > state.begun.saturating_mul(3).saturating_add(GROWTH);
        state.noted == Noted::Kept && state.open.as_ref().is_some_and(grown)
    }

    fn begin_anew(&self) -> bool {
        let mut state = self.state();
        if state.noted != Noted::Kept || state.open.is_none() {
            return false;
        }
        // One that was begun before holds the lock of the same file.
        state.next = None;
        // Where there is no room for another file the present one goes on.
        match self.create() {
            Ok((next, digest)) => {
                (state.next, state.beside) = (Some(next), Some(digest));
                true
            }
            Err(error) => {
                tracing::debug!(path = %self.path.display(), "cannot be written anew: {error:#}");
                if state.open.as_ref().is_some_and(|open| open.bytes > LONGEST) {
                    self.give_up(&mut state, &format!("it is long and cannot be written anew: {error:#}"));
                }
                false
            }
        }
    }

    fn end_anew(&self) {
        let mut state = self.state();
        let Some(next) = state.next.take() else { return };
        let is_ours = std::fs::metadata(&self.path)
            .is_ok_and(|found| state.open.as_ref().is_some_and(|open| identity_of(&found) == open.identity));
        if !is_ours {
            return self.give_up(&mut state, "another process has taken its place");
        }
        match std::fs::rename(self.aside(), &self.path) {
            Ok(()) => {
                state.begun = next.bytes;
                // That changed it once more.
                let noted = state.open.insert(next).note(&[]);
                if let Err(error) = noted {
                    self.give_up(&mut state, &error.to_string());
                }
            }
            Err(error) => self.give_up(&mut state, &error.to_string()),
        }
    }
}

/// Keeps the file in order.
#[derive(Debug)]
pub(super) struct MarksKeeper {
    pub(super) file: Arc<MarksFile>,
    pub(super) memory: Arc<MemoryStore>,
    pub(super) engine: Arc<Engine>,
}

impl MarksKeeper {
    /// Runs until `stop`.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let own = Arc::clone(&self);
            // A task that ends early is begun again; what it had to do is done then.
            let looked = tokio::task::spawn_blocking(move || {
                own.file.look_beside();
                own.memory.carry_marks_on(own.engine.now());
            });
            let _ = looked.await;
            let notices = self.file.notice();
            if notices != told {
                self.engine.publish_notices(NoticeSource::Marks, notices.clone());
                told = notices;
            }
        }
    }
}

#[cfg(test)]
mod tests;
