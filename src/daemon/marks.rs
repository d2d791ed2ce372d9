//! The file in which a daemon with its store in memory notes how much of `escrow` windows it may have spent,
//! for a next process that finds nothing else: see [`crate::store::MarkNotes`].
//!
//! It outlives the process and not the machine: a note is in the system's memory when its `write` returns,
//! and nothing waits for a disk. So the file names the boot that it is of, and itself, as a copy of it would
//! be used twice. Whoever reads it begins a new one in its place that carries the notes on, before anything
//! of it is used; and keeps it locked, so that nobody reads on while another process writes.

use std::fs::{File, Metadata};
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
use crate::core::time::Timestamp;
use crate::database::private;
use crate::engine::Engine;
use crate::engine::notices::NoticeSource;
use crate::store::{MarkNotes, MemoryStore, Noted};

/// A file in another format is not read.
const FORMAT: u32 = 1;
/// Names the time since the machine was started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// A file that has grown by so much beyond what it began with, and thrice that, is written anew.
const GROWTH: u64 = 1 << 20;
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

fn identity_of(metadata: &Metadata) -> u64 {
    metadata.ino()
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
    let mut text = String::new();
    file.read_to_string(&mut text).context("it is damaged, or cannot be read")?;
    let (header, notes) = text.split_once('\n').context("it is damaged")?;
    let header: Header =
        serde_json::from_str(header).context("it is damaged, or another version wrote it")?;
    ensure!(header.format == FORMAT, "another version of this program wrote it");
    ensure!(header.node == *name, "it is of node {}/{}", header.node.region, header.node.node);
    ensure!(header.boot == boot, "the machine was started anew since, and may have lost some of it");
    ensure!(header.file == identity, "it is a copy");
    let mut known = RememberedMarks::default();
    // Of a line without an end nothing was spent: its process was killed while it wrote.
    for (at, line) in notes.split_inclusive('\n').enumerate() {
        let Some(line) = line.strip_suffix('\n') else { break };
        let Some(note) = MarkNote::read(line) else { bail!("line {} is damaged", at + 2) };
        known.handle(note);
    }
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

/// Begins the file of this process, with what an earlier one noted. `None`: nothing is noted on this machine.
///
/// # Errors
/// A file that cannot be used cannot be taken away either: a later process would take it for what this one
/// has spent.
pub(super) fn begin(
    shares: &Path,
    name: &NodeName,
    now: Timestamp,
) -> anyhow::Result<Option<(Arc<MarksFile>, RememberedMarks)>> {
    let Ok(boot) = std::fs::read_to_string(BOOT) else {
        forget(shares, name)?;
        return Ok(None);
    };
    begin_in(shares, name, boot.trim(), now)
}

fn begin_in(
    shares: &Path,
    name: &NodeName,
    boot: &str,
    now: Timestamp,
) -> anyhow::Result<Option<(Arc<MarksFile>, RememberedMarks)>> {
    let path = file_of(shares, &name.node);
    let found = read(&path, shares, name, boot, now).unwrap_or_else(|error| {
        tracing::warn!(
            path = %path.display(), error = format!("{error:#}"),
            "what the process before noted of escrow rules cannot be used: what it may have spent is burnt"
        );
        None
    });
    let state =
        MarksState { open: None, next: None, begun: 0, beside: None, noted: Noted::Kept, problem: None };
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
/// It cannot be taken away.
pub(super) fn forget(shares: &Path, name: &NodeName) -> anyhow::Result<()> {
    let path = file_of(shares, &name.node);
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
        open.write(&MarkNote::Beside(digest.clone()).line())?;
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
        let (mut open, digest) = self.create()?;
        open.write(text)?;
        std::fs::rename(self.aside(), &self.path)?;
        (state.begun, state.beside) = (open.bytes, Some(digest));
        state.open = Some(open);
        Ok(())
    }

    fn note_in(&self, state: &mut MarksState, notes: &[MarkNote]) -> Noted {
        let text: String = notes.iter().map(MarkNote::line).collect();
        if state.noted == Noted::Kept
            && let Err(error) = self.write(state, &text)
        {
            self.give_up(state, &format!("{error:#}"));
        }
        state.noted
    }

    /// Nothing is noted from now on, so nothing of what was may be used.
    fn give_up(&self, state: &mut MarksState, error: &str) {
        // Another file in its place is not ours.
        let is_ours = |open: &OpenFile| {
            std::fs::metadata(&self.path).is_ok_and(|found| identity_of(&found) == open.identity)
        };
        let gone = match &state.open {
            None => true,
            Some(open) if !is_ours(open) => true,
            Some(open) => {
                let emptied = open.file.set_len(0).is_ok();
                remove(&self.path).is_ok() || emptied
            }
        };
        state.next = None;
        // What is left of it is made anew.
        let _ = remove(&self.aside());
        state.noted = if gone { Noted::Off } else { Noted::Stuck };
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if state.open.is_none() && folder.is_some_and(|folder| !folder.exists()) {
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
        // Where there is no room for another file the present one goes on.
        match self.create() {
            Ok((next, digest)) => {
                (state.next, state.beside) = (Some(next), Some(digest));
                true
            }
            Err(error) => {
                tracing::debug!(path = %self.path.display(), "cannot be written anew: {error:#}");
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
                state.open = Some(next);
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
mod tests {
    use super::*;
    use crate::core::key::Shape;
    use crate::core::regions::escrow::window::marks::RuleMarks;

    const NOW: Timestamp = Timestamp(1_000_000_000);

    fn name(node: &str) -> NodeName {
        NodeName { region: "eu".into(), node: node.into() }
    }

    fn rule() -> MarkNote {
        let mut firsts = RuleMarks::default();
        firsts.begin(Timestamp(0), 2);
        MarkNote::Rule { identity: "a rule".to_owned(), shape: Shape(8), next: 16, firsts }
    }

    fn mark(permits: u64) -> MarkNote {
        let key = Shape(8).0.to_le_bytes().to_vec();
        MarkNote::Mark { key, window: 1, permits, until: Timestamp(2_000_000_000) }
    }

    fn permits(known: &RememberedMarks) -> Vec<u64> {
        known.marks().map(|(_, _, permits, _)| permits).collect()
    }

    struct Folder {
        folder: tempfile::TempDir,
        shares: PathBuf,
    }

    impl Folder {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let shares = folder.path().join("shares.1.json");
            Self { folder, shares }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("marks.1")
        }

        fn begin(&self, boot: &str) -> (Arc<MarksFile>, RememberedMarks) {
            begin_in(&self.shares, &name("1"), boot, NOW).unwrap().unwrap()
        }

        fn why(&self, node: &str, boot: &str) -> String {
            let read = read(&self.path(), &self.shares, &name(node), boot, NOW);
            read.map_or_else(|error| format!("{error:#}"), |found| format!("{:?}", found.is_some()))
        }
    }

    #[test]
    fn what_is_noted_is_known_to_the_next_process_and_carried_on() {
        let folder = Folder::new();
        let (file, known) = folder.begin("b");
        assert_eq!(known, RememberedMarks::default());
        assert!(!folder.path().exists(), "without a rule there is nothing to note");
        assert_eq!(file.note(&[rule(), mark(3)]), Noted::Kept);
        assert_eq!(file.note(&[mark(5)]), Noted::Kept);
        assert!(folder.why("1", "b").contains("another process"), "it is locked while its process lives");
        drop(file);
        for _ in 0..3 {
            let (file, known) = folder.begin("b");
            assert_eq!((permits(&known), known.shapes().1), (vec![5], 16));
            drop(file);
        }
        // A line that its process did not live to end.
        let mut text = std::fs::read(folder.path()).unwrap();
        text.extend(b"mark 08");
        std::fs::write(folder.path(), text).unwrap();
        assert_eq!(permits(&folder.begin("b").1), [5]);
    }

    #[test]
    fn what_cannot_be_trusted_is_not_used_and_is_gone() {
        let folder = Folder::new();
        let note = || {
            let _ = std::fs::remove_file(folder.path());
            assert_eq!(folder.begin("b").0.note(&[rule(), mark(3)]), Noted::Kept);
        };
        note();
        assert!(folder.why("2", "b").contains("node eu/1"));
        assert!(folder.why("1", "c").contains("started anew"));
        std::fs::write(&folder.shares, "weights").unwrap();
        assert!(folder.why("1", "b").contains("weights"));
        std::fs::remove_file(&folder.shares).unwrap();
        assert_eq!(folder.why("1", "b"), "true");
        let whole = std::fs::read_to_string(folder.path()).unwrap();
        for (written, why) in [
            (whole.replace("\"format\":1", "\"format\":2"), "another version"),
            (whole.replace(" 16 ", " 17 "), "line 3 is damaged"),
            (String::new(), "damaged"),
        ] {
            std::fs::write(folder.path(), written).unwrap();
            assert!(folder.why("1", "b").contains(why), "{}", folder.why("1", "b"));
        }
        std::fs::write(folder.path(), &whole).unwrap();
        let copy = folder.folder.path().join("copy");
        std::fs::copy(folder.path(), &copy).unwrap();
        std::fs::rename(&copy, folder.path()).unwrap();
        assert_eq!(folder.why("1", "b"), "it is a copy");
        assert_eq!(folder.begin("b").1, RememberedMarks::default());
        assert!(!folder.path().exists());
        note();
        assert_eq!(folder.begin("c").1, RememberedMarks::default());
        assert_eq!(folder.begin("b").1, RememberedMarks::default(), "once refused it is never used");
    }

    #[test]
    fn weights_that_are_noted_later_are_noted_here_too() {
        let folder = Folder::new();
        let (file, _) = folder.begin("b");
        file.look_beside();
        file.note(&[rule(), mark(3)]);
        std::fs::write(&folder.shares, "weights").unwrap();
        file.look_beside();
        drop(file);
        assert_eq!(permits(&folder.begin("b").1), [3]);
    }

    #[test]
    fn a_file_that_is_written_anew_has_what_is_noted_meanwhile() {
        let folder = Folder::new();
        let (file, _) = folder.begin("b");
        file.note(&[rule()]);
        for permits in 0..40_000 {
            file.note(&[mark(permits)]);
        }
        assert!(file.is_long() && file.begin_anew());
        file.note(&[mark(50_000)]);
        file.note(&[rule()]);
        file.end_anew();
        assert!(!file.is_long());
        assert!(std::fs::metadata(folder.path()).unwrap().len() < 1_000);
        file.note(&[mark(50_001)]);
        drop(file);
        assert_eq!(permits(&folder.begin("b").1), [50_001]);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_taken_away_and_nothing_is_noted_any_more() {
        let folder = Folder::new();
        let (file, _) = folder.begin("b");
        file.note(&[rule(), mark(3)]);
        // What no write goes to.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let of = file.state().open.as_ref().unwrap().identity;
        file.state().open = Some(OpenFile { file: full, identity: of, bytes: 0 });
        assert_eq!(file.note(&[mark(4)]), Noted::Off);
        assert!(!folder.path().exists());
        assert_eq!(file.note(&[mark(5)]), Noted::Off);
        let text = &file.notice()[0].text;
        assert!(text.contains("cannot be noted"), "{text}");
    }
}
