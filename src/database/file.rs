//! `rules.toml` on disk: read it, and notice when it changes.
//!
//! Only the content matters, not who wrote it or how: editors replace files and orchestrators swap links, so
//! the file is read again at every look. The listener decides what to do with a file that has problems; none
//! of it is kept here.

pub mod changes;
pub mod edit;
pub mod history;

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;

use super::document::{self, Loaded};
use crate::core::written::{Problem, TextPlace};

/// Largest file of rules, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Time between two looks at the file, unless told otherwise: two looks, and so a change, fit in a second.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(400);
/// Changes that may wait for whoever listens. Full: looking stops until there is room, and what happened
/// meanwhile is then seen as one change.
const CHANGES_WAITING_MAX: usize = 1;

/// The result of a change of the file: its rules, or what is wrong with it.
pub type Change = Result<Loaded, Vec<Problem>>;

/// Reads the file. Blocks; not for async callers.
///
/// # Errors
/// Every problem of the file; one for the file as a whole if it cannot be read.
pub fn load(path: &Path, regions: &[String]) -> Change {
    let text = read(path).map_err(|problem| vec![problem])?;
    document::from_toml(&path.display().to_string(), &text, regions)
}

/// Says why a path names nothing that is a file to be read again and again: to open a pipe would wait for
/// somebody to write into it. Blocks.
#[must_use]
pub fn special(path: &Path) -> Option<Problem> {
    let found = std::fs::metadata(path).ok()?;
    let message = "is a pipe, a socket or a device, not a file".to_owned();
    // Of a folder reading says so itself.
    (!found.is_file() && !found.is_dir())
        .then(|| Problem { place: TextPlace::File(path.display().to_string()), message })
}

/// The file's text. Blocks.
///
/// # Errors
/// It cannot be read, is no file, too long or no UTF-8.
pub fn read(path: &Path) -> Result<String, Problem> {
    special(path).map_or_else(|| read_once(path), Err)
}

/// The same, also of a pipe, which gives its text once. Blocks until that is whole.
///
/// # Errors
/// It cannot be read, is too long or no UTF-8.
pub fn read_once(path: &Path) -> Result<String, Problem> {
    let name = path.display().to_string();
    let problem = |message: String| Problem { place: TextPlace::File(name.clone()), message };
    let file = std::fs::File::open(path).map_err(|error| problem(reason(&error)))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| problem(reason(&error)))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > FILE_BYTES_MAX) {
        return Err(problem(format!("must have at most {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        problem(format!("is not UTF-8: byte {} cannot be read", valid + 1))
    })
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        ErrorKind::PermissionDenied => "may not be read: permission denied".to_owned(),
        ErrorKind::IsADirectory => "is a folder, not a file".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

/// Looks at the file every `interval` and tells each change of its content. `known` is the hash of the
/// content that is already in use, if any, and `regions` gives those that may hold shares. Ends when the
/// receiver is dropped.
///
/// New content is told once two looks in a row have found it: who writes a file in several steps may be
/// halfway when one look comes. A file that cannot be read or has problems is told once; what comes after it
/// is told again, even if it is the content from before.
#[must_use]
pub fn watch(
    path: PathBuf,
    regions: impl Fn() -> Vec<String> + Send + 'static,
    known: Option<u64>,
    interval: Duration,
) -> mpsc::Receiver<Change> {
    let (changes, receiver) = mpsc::channel(CHANGES_WAITING_MAX);
    tokio::spawn(async move {
        let mut told = known.map(Look::Text);
        if told.is_none() {
            // Somebody else said already that there is none.
            let own = path.clone();
            let first = tokio::task::spawn_blocking(move || (!own.exists()).then(|| read(&own).err())).await;
            told = first.ok().flatten().flatten().map(Look::Unreadable);
        }
        let mut last = told.clone();
        while !changes.is_closed() {
            tokio::select! {
                biased;
                () = changes.closed() => return,
                () = tokio::time::sleep(interval) => {}
            }
            let (path, regions) = (path.clone(), regions());
            let (before, known) = (last.clone(), told.clone());
            let looked = move || look(&path, &regions, before.as_ref(), known.as_ref());
            let Ok((look, change)) = tokio::task::spawn_blocking(looked).await else { continue };
            last = Some(look);
            let Some(change) = change else { continue };
            told.clone_from(&last);
            if changes.send(change).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// The state of the file at the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Look {
    Text(u64),
    Unreadable(Problem),
}

/// Looks once. A change is content that the look before has found too, and that was not told yet.
fn look(path: &Path, regions: &[String], last: Option<&Look>, told: Option<&Look>) -> (Look, Option<Change>) {
    let read = read(path);
    let look = match &read {
        Ok(text) => Look::Text(document::hash(text.as_bytes())),
        Err(problem) => Look::Unreadable(problem.clone()),
    };
    if last != Some(&look) || told == Some(&look) {
        return (look, None);
    }
    let change = match read {
        Ok(text) => document::from_toml(&path.display().to_string(), &text, regions),
        Err(problem) => Err(vec![problem]),
    };
    (look, Some(change))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[rules]]\nname = \"r\"\nlimit = 1\nwindow = \"1s\"\n";
    const INTERVAL: Duration = Duration::from_millis(5);

    async fn next(changes: &mut mpsc::Receiver<Change>) -> Change {
        tokio::time::timeout(Duration::from_secs(10), changes.recv()).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn each_change_of_the_content_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        std::fs::write(&path, GOOD).unwrap();
        let first = load(&path, &[]).unwrap();
        let mut changes = watch(path.clone(), Vec::new, Some(first.hash), INTERVAL);
        tokio::time::sleep(INTERVAL * 10).await;
        assert!(changes.try_recv().is_err());

        let replacement = folder.path().join("new");
        std::fs::write(&replacement, GOOD.replace("limit = 1", "limit = 2")).unwrap();
        std::fs::rename(&replacement, &path).unwrap();
        assert_eq!(next(&mut changes).await.unwrap().rules[0].limit, 2);

        std::fs::remove_file(&path).unwrap();
        let problems = next(&mut changes).await.unwrap_err();
        assert_eq!(problems[0].to_string(), format!("{}: no such file", path.display()));

        std::fs::write(&replacement, GOOD).unwrap();
        std::fs::rename(&replacement, &path).unwrap();
        assert_eq!(next(&mut changes).await.unwrap(), first);
    }

    #[test]
    fn half_a_file_is_no_change_until_it_stays_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        let second = GOOD.replace("\"r\"", "\"s\"");
        let whole = format!("{GOOD}{second}");
        let hash = |text: &str| Some(Look::Text(document::hash(text.as_bytes())));
        let see = |last: &Option<Look>, told: &Option<Look>| look(&path, &[], last.as_ref(), told.as_ref());
        let told = hash(&whole);
        std::fs::write(&path, GOOD).unwrap();
        let (half, change) = see(&told, &told);
        assert!(change.is_none(), "half of it is valid by itself, and may not be all of it");
        let grown = whole.replace("limit = 1", "limit = 2");
        std::fs::write(&path, &grown).unwrap();
        let (seen, change) = see(&Some(half.clone()), &told);
        assert!(change.is_none() && Some(&seen) == hash(&grown).as_ref());
        let (seen, change) = see(&Some(seen), &told);
        assert_eq!(change.unwrap().unwrap().rules.len(), 2);
        assert!(see(&Some(seen.clone()), &Some(seen)).1.is_none(), "once");
        std::fs::write(&path, GOOD).unwrap();
        let change = see(&Some(half), &told).1;
        assert_eq!(change.unwrap().unwrap().rules.len(), 1, "a file that stays shorter is meant so");
    }

    #[tokio::test]
    async fn a_pipe_in_the_place_of_the_file_is_told_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        let path = of("rules.toml");
        std::fs::write(&path, GOOD).unwrap();
        let known = load(&path, &[]).unwrap().hash;
        let mut changes = watch(path.clone(), Vec::new, Some(known), INTERVAL);
        assert!(std::process::Command::new("mkfifo").arg(of("pipe")).status().unwrap().success());
        std::fs::rename(of("pipe"), &path).unwrap();
        let problems = next(&mut changes).await.unwrap_err();
        assert!(problems[0].to_string().ends_with("is a pipe, a socket or a device, not a file"));
        std::fs::write(of("new"), GOOD.replace("limit = 1", "limit = 2")).unwrap();
        std::fs::rename(of("new"), &path).unwrap();
        assert_eq!(next(&mut changes).await.unwrap().rules[0].limit, 2);
    }

    #[tokio::test]
    async fn a_swapped_link_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        std::fs::write(of("a"), GOOD).unwrap();
        std::fs::write(of("b"), "rules = 1").unwrap();
        std::os::unix::fs::symlink(of("a"), of("rules.toml")).unwrap();
        let mut changes = watch(of("rules.toml"), Vec::new, None, INTERVAL);
        assert!(next(&mut changes).await.is_ok());
        std::os::unix::fs::symlink(of("b"), of("link")).unwrap();
        std::fs::rename(of("link"), of("rules.toml")).unwrap();
        let problems = next(&mut changes).await.unwrap_err();
        assert!(
            problems[0].to_string().ends_with("rules.toml:1:9: rules must be a list, not a number"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_file_that_is_no_text_or_too_long_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        std::fs::write(&path, b"name = \xff").unwrap();
        assert!(
            load(&path, &[]).unwrap_err()[0].to_string().ends_with("is not UTF-8: byte 8 cannot be read")
        );
        std::fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(load(&path, &[]).unwrap_err()[0].to_string().ends_with("must have at most 67108864 bytes"));
        assert!(load(folder.path(), &[]).unwrap_err()[0].to_string().ends_with("is a folder, not a file"));
    }
}
