//! What of the file is used, and by whom.

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
        let claim = claim(&self.shares, &name("1")).unwrap();
        begin_in(&self.shares, &name("1"), boot, claim, Timestamp(0), NOW).unwrap().unwrap()
    }

    fn why(&self, node: &str, boot: &str) -> String {
        self.why_after(node, boot, Timestamp(0))
    }

    fn why_after(&self, node: &str, boot: &str, left_at: Timestamp) -> String {
        let read = read(&self.path(), &self.shares, &name(node), boot, left_at, NOW);
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
        (whole.replace(" 16 ", " 17 "), "line 4 is damaged"),
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

#[test]
fn a_second_process_does_not_begin_and_leaves_the_notes_of_the_first_alone() {
    let folder = Folder::new();
    let ((file, _), (other, _)) = (folder.begin("b"), folder.begin("b"));
    assert_eq!(file.note(&[rule(), mark(3)]), Noted::Kept);
    let refused = format!("{:#}", claim(&folder.shares, &name("1")).unwrap_err());
    assert!(refused.contains("marks.1.lock") && refused.contains("stop that one"), "{refused}");
    // One that began before anything was noted notes nothing.
    assert_eq!(other.note(&[rule(), mark(8)]), Noted::Off);
    // Where somebody has removed the lock the file itself is held.
    std::fs::remove_file(folder.folder.path().join("marks.1.lock")).unwrap();
    let begun = begin_in(&folder.shares, &name("1"), "b", None, Timestamp(0), NOW);
    let refused = format!("{:#}", begun.unwrap_err());
    assert!(refused.contains("another process"), "{refused}");
    assert!(forget(&folder.shares, &name("1")).is_err());
    assert_eq!(file.note(&[mark(5)]), Noted::Kept);
    drop((file, other));
    assert_eq!(permits(&folder.begin("b").1), [5]);
}

#[test]
fn an_older_file_that_was_brought_back_into_the_same_place_is_not_used() {
    let folder = Folder::new();
    assert_eq!(folder.begin("b").0.note(&[rule(), mark(3)]), Noted::Kept);
    let whole = std::fs::read_to_string(folder.path()).unwrap();
    let left_at = Clock::System.now() + Span::from_secs(1);
    assert!(folder.why_after("1", "b", left_at).contains("older than what was left"));
    let before = MarkNote::Alive(Clock::System.now() - Span::from_secs(3)).line();
    let older = |line: &str| if line.starts_with("alive") { before.clone() } else { format!("{line}\n") };
    let older: String = whole.lines().map(older).collect();
    // As `cp` does, into the same inode.
    std::fs::write(folder.path(), older).unwrap();
    assert!(folder.why("1", "b").contains("brought back"), "{}", folder.why("1", "b"));
    assert_eq!(folder.begin("b").1, RememberedMarks::default());
}

#[test]
fn of_notes_that_were_written_in_part_none_counts() {
    let folder = Folder::new();
    assert_eq!(folder.begin("b").0.note(&[rule(), mark(3)]), Noted::Kept);
    let mut text = std::fs::read_to_string(folder.path()).unwrap();
    text.push_str(&mark(9).line());
    std::fs::write(folder.path(), &text).unwrap();
    assert_eq!(permits(&folder.begin("b").1), [3]);
}

#[test]
fn a_file_whose_place_cannot_be_looked_at_is_emptied() {
    let folder = Folder::new();
    let (file, _) = folder.begin("b");
    file.note(&[rule(), mark(3)]);
    let plain = folder.folder.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let mut file = Arc::into_inner(file).unwrap();
    file.path = plain.join("marks.1");
    file.give_up(&mut file.state(), "no disk");
    assert_eq!(file.state().noted, Noted::Off);
    assert_eq!(std::fs::metadata(folder.path()).unwrap().len(), 0);
}
