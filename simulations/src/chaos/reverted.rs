//! Judges the judge: repairs of the daemon are reverted one at a time, and a story has to notice each.
//!
//! Each file in `simulations/reverted/` is a patch of the daemon, which brings an old fault back, under a
//! head that names the story and the promise that it breaks. The sources are copied to a folder of their own,
//! where one patch after the other is applied and the daemon built; the working tree stays as it is. At the
//! end the daemon without any patch has to pass the same stories.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use clap::Args;

use crate::BadInput;

/// The folder of the patches.
const PATCHES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reverted");
/// The workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// This very program, as it was when it began.
const SIM: &str = "sim";
/// The machine may stand still while a story is told, and then little can be judged. So a story is told
/// again, up to so many times in all.
const TIMES: u32 = 2;

/// Which repairs to revert, and how to build the daemon without them.
#[derive(Debug, Clone, Args)]
pub(crate) struct Reverted {
    /// Names of patches in simulations/reverted/, without their ending; all of them unless given.
    names: Vec<String>,
    /// The Cargo profile by which daemons are built.
    #[arg(long, default_value = "quick")]
    profile: String,
    /// Where the copy of the sources, the daemons and the stories' output go.
    #[arg(long, default_value = "target/reverted")]
    out: PathBuf,
}

/// A repair and the story that needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Repair {
    /// The name of its file, without its ending.
    name: String,
    /// The behaviour of the daemon since the repair, in a sentence.
    reverts: String,
    story: String,
    way: String,
    /// The promise that the story finds broken, by its title.
    promise: String,
    patch: PathBuf,
}

impl Repair {
    /// Reads the head of a patch: a line for each of its fields, until the patch begins.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let field = |name: &str| {
            let head = text.lines().take_while(|line| !line.starts_with("--- "));
            let mut values = head.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let value = values.next().map(str::to_owned);
            value.with_context(|| format!("{} has no line \"{name}: …\" before its patch", path.display()))
        };
        Ok(Self {
            name: crate::run::stem(path),
            reverts: field("reverts")?,
            story: field("story")?,
            way: field("way")?,
            promise: field("promise")?,
            patch: path.to_owned(),
        })
    }
}

/// All repairs, by name.
fn repairs() -> anyhow::Result<Vec<Repair>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(PATCHES)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "patch") {
            all.push(Repair::read(&path)?);
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

impl Reverted {
    /// Reverts each repair in turn.
    ///
    /// # Errors
    /// A story that does not notice, one that the daemon without a patch does not pass, a patch that does not
    /// apply, or a daemon that cannot be built.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let all = repairs()?;
        if let Some(name) = self.names.iter().find(|name| !all.iter().any(|known| known.name == **name)) {
            let known = all.iter().map(|known| known.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(BadInput(format!("there is no patch {name:?} in {PATCHES}: {known}")).into());
        }
        let chosen: Vec<&Repair> =
            all.iter().filter(|known| self.names.is_empty() || self.names.contains(&known.name)).collect();
        let folder = std::path::absolute(&self.out)?;
        let sources = Sources { root: Path::new(ROOT).canonicalize()?, copy: folder.join("sources") };
        // Somebody may build it anew meanwhile.
        fs::create_dir_all(&folder)?;
        fs::copy(std::env::current_exe()?, folder.join(SIM))?;
        // Found out before anything is built.
        sources.copy()?;
        chosen.iter().try_for_each(|repair| sources.check(repair))?;
        let mut failures = 0;
        for repair in &chosen {
            sources.copy()?;
            sources.apply(repair)?;
            let daemon = self.build(&sources.copy, &folder)?;
            let told = tell(repair, &daemon, (&folder, &repair.name), |told| told.notices(&repair.promise))?;
            writeln!(out, "{}: {}", repair.name, repair.reverts)?;
            match told.notices(&repair.promise) {
                true => {
                    writeln!(out, "  noticed by {} in {} s:\n{}", repair.story, told.seconds, told.broken())?
                }
                false => {
                    failures += 1;
                    let (story, code) = (&repair.story, told.code);
                    writeln!(
                        out,
                        "  NOT NOTICED by {story}: exit code {code}, and not BROKEN: {:?}",
                        repair.promise
                    )?;
                    writeln!(out, "{}", told.text)?;
                }
            }
            out.flush()?;
        }
        sources.copy()?;
        let daemon = self.build(&sources.copy, &folder)?;
        let mut known = BTreeSet::new();
        for repair in chosen.iter().filter(|repair| known.insert((&repair.story, &repair.way))) {
            let told = tell(repair, &daemon, (&folder, "unpatched"), |told| told.code == 0)?;
            if told.code == 0 {
                writeln!(out, "unpatched: {} is passed in {} s", repair.story, told.seconds)?;
            } else {
                failures += 1;
                writeln!(out, "unpatched: {} is NOT PASSED\n{}", repair.story, told.text)?;
            }
            out.flush()?;
        }
        ensure!(
            failures == 0,
            "{failures} of {} stories said otherwise than they should",
            chosen.len() + known.len()
        );
        writeln!(out, "{} repairs reverted, each noticed; the daemon without a patch passes", chosen.len())?;
        Ok(())
    }

    /// Builds the daemon from the copy, and nothing of it is shared with usual builds: Cargo takes two
    /// workspaces with packages of the same names for one, and would hand a daemon with an old fault to
    /// whoever builds next.
    fn build(&self, copy: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
        let into = folder.join("built");
        let mut command = Command::new("cargo");
        command.current_dir(copy).args(["build", "--quiet", "--workspace", "--bin", "tidegate"]);
        command.args(["--profile", &self.profile]);
        command.env("CARGO_TARGET_DIR", &into).env("CARGO_BUILD_BUILD_DIR", &into);
        let built = command.output().context("cargo cannot be started, and daemons have to be built")?;
        if !built.status.success() {
            bail!(
                "the daemon cannot be built in {}:\n{}",
                copy.display(),
                String::from_utf8_lossy(&built.stderr)
            );
        }
        let named = if self.profile == "dev" { "debug" } else { &self.profile };
        Ok(into.join(named).join("tidegate"))
    }
}

/// The working tree, and its copy.
struct Sources {
    root: PathBuf,
    copy: PathBuf,
}

impl Sources {
    /// Makes the copy like the working tree. Files that are alike stay untouched, so that Cargo builds only
    /// what differs.
    fn copy(&self) -> anyhow::Result<()> {
        let listed =
            self.git(&self.root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        ensure!(
            listed.status.success(),
            "{} is no git repository, so its sources are not known: {}",
            self.root.display(),
            String::from_utf8_lossy(&listed.stderr).trim()
        );
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let mut wanted = BTreeSet::new();
        for name in listed.split('\0').filter(|name| !name.is_empty()) {
            // A file that was removed and not yet committed is listed all the same.
            let Ok(content) = fs::read(self.root.join(name)) else { continue };
            let to = self.copy.join(name);
            if fs::read(&to).ok().as_ref() != Some(&content) {
                fs::create_dir_all(to.parent().unwrap_or(&self.copy))?;
                fs::write(&to, content)?;
            }
            wanted.insert(to);
        }
        remove_others(&self.copy, &wanted)
    }

    /// Checks whether a patch applies.
    fn check(&self, repair: &Repair) -> anyhow::Result<()> {
        self.patch(repair, &["--check"])
    }

    fn apply(&self, repair: &Repair) -> anyhow::Result<()> {
        self.patch(repair, &[])
    }

    fn patch(&self, repair: &Repair, how: &[&str]) -> anyhow::Result<()> {
        let patch = repair.patch.display().to_string();
        let applied = self.git(&self.copy, &[&["apply"], how, &[patch.as_str()]].concat())?;
        ensure!(
            applied.status.success(),
            "{patch} does not apply any more: write anew how the code differs from that before this repair ({})\n{}",
            repair.reverts,
            String::from_utf8_lossy(&applied.stderr).trim()
        );
        Ok(())
    }

    /// Runs git in a folder, which belongs to no repository above the folder it lies in.
    fn git(&self, folder: &Path, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new("git");
        command.current_dir(folder).args(arguments);
        if let Some(above) = self.copy.parent() {
            command.env("GIT_CEILING_DIRECTORIES", above);
        }
        command.output().context("git cannot be started, and it lists sources and applies patches")
    }
}

/// Removes the files of a folder that are not wanted any more.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// A story as it was told by this program, in a process of its own.
#[derive(Debug)]
struct Played {
    code: i32,
    text: String,
    seconds: u64,
}

impl Played {
    /// Returns whether the run failed, and by this promise.
    fn notices(&self, promise: &str) -> bool {
        self.code == 1 && self.broken_lines().any(|line| line.contains(promise))
    }

    /// The promises that were broken, each with what was found.
    fn broken(&self) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        let pairs = lines.windows(2).filter(|pair| pair.first().is_some_and(|line| is_broken(line)));
        pairs.map(|pair| pair.join("\n")).collect::<Vec<_>>().join("\n")
    }

    fn broken_lines(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter(|line| is_broken(line))
    }
}

fn is_broken(line: &str) -> bool {
    line.trim_start().starts_with("BROKEN ")
}

/// Tells the story of a repair with this daemon, again where it does not come out as it should.
fn tell(
    repair: &Repair,
    daemon: &Path,
    (folder, name): (&Path, &str),
    as_it_should: impl Fn(&Played) -> bool,
) -> anyhow::Result<Played> {
    let mut left = TIMES;
    loop {
        let begun = Instant::now();
        let mut command = Command::new(folder.join(SIM));
        command.args(["chaos", &repair.story, "--ways", &repair.way, "--no-plots", "--tidegate"]).arg(daemon);
        let ran = command.arg("--out").arg(folder.join("stories")).output()?;
        let text =
            format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        fs::write(folder.join(format!("{name}-{}.txt", repair.story)), &text)?;
        let played =
            Played { code: ran.status.code().unwrap_or(-1), text, seconds: begun.elapsed().as_secs() };
        left -= 1;
        if left == 0 || as_it_should(&played) {
            return Ok(played);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge::Promise;
    use super::*;

    /// A working tree of one file, and where its copy goes.
    fn tree(text: &str) -> (tempfile::TempDir, Sources) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("src")).unwrap();
        fs::write(root.join("src/a.rs"), text).unwrap();
        fs::write(root.join(".gitignore"), "/target\n").unwrap();
        let made = Command::new("git").args(["init", "-q"]).current_dir(&root).status().unwrap();
        assert!(made.success());
        let sources = Sources { copy: root.join("target/reverted/sources"), root };
        (folder, sources)
    }

    fn repair(folder: &Path) -> Repair {
        let path = folder.join("one.patch");
        let head = "reverts: It holds.\nstory: short-cut\nway: gossip\npromise: kept\n\n";
        let patch = "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n fn a() {}\n-const HOLDS: bool = true;\n+const HOLDS: bool = false;\n";
        fs::write(&path, format!("{head}{patch}")).unwrap();
        Repair::read(&path).unwrap()
    }

    #[test]
    fn a_patch_changes_the_copy_alone_until_it_is_copied_again() {
        let whole = "fn a() {}\nconst HOLDS: bool = true;\n";
        let (folder, sources) = tree(whole);
        let repair = repair(folder.path());
        sources.copy().unwrap();
        let read = |at: &Path| fs::read_to_string(at.join("src/a.rs")).unwrap();
        fs::write(sources.copy.join("src/stale.rs"), "").unwrap();
        sources.check(&repair).unwrap();
        assert_eq!(read(&sources.copy), whole);
        sources.apply(&repair).unwrap();
        assert!(read(&sources.copy).contains("HOLDS: bool = false"));
        assert_eq!(read(&sources.root), whole);
        sources.copy().unwrap();
        assert_eq!(read(&sources.copy), whole);
        assert!(!sources.copy.join("src/stale.rs").exists());
    }

    #[test]
    fn a_patch_that_does_not_apply_any_more_is_an_error_that_names_it() {
        let (folder, sources) = tree("fn a() {}\nconst HOLDS: u8 = 1;\n");
        let repair = repair(folder.path());
        sources.copy().unwrap();
        let error = sources.check(&repair).unwrap_err().to_string();
        assert!(
            error.contains("one.patch does not apply any more") && error.contains("(It holds.)"),
            "{error}"
        );
        fs::write(&repair.patch, "story: short-cut\n").unwrap();
        let error = Repair::read(&repair.patch).unwrap_err().to_string();
        assert!(error.contains("has no line \"reverts: …\""), "{error}");
    }

    #[test]
    fn only_the_promise_that_is_meant_counts_as_noticed() {
        let text = "  gossip: used\n    kept        All is well\n                found\n    BROKEN      Every request is answered\n                3 lost\n";
        let played = |code| Played { code, text: text.to_owned(), seconds: 1 };
        assert!(played(1).notices("request is answered"));
        assert!(!played(1).notices("All is well"), "kept");
        assert!(!played(0).notices("request is answered"), "the exit code says otherwise");
        assert_eq!(played(1).broken(), "    BROKEN      Every request is answered\n                3 lost");
    }

    #[test]
    fn every_patch_applies_and_names_a_story_and_a_promise() {
        let all = repairs().unwrap();
        assert!(all.len() >= 6);
        let promises = super::super::judge::promises();
        for repair in all {
            let root = PathBuf::from(ROOT).canonicalize().unwrap();
            // Applied to the working tree itself: nothing is written.
            let sources = Sources { copy: root.clone(), root };
            sources.check(&repair).unwrap();
            let plan = crate::run::load(&crate::run::find_in(super::super::STORIES, &repair.story)).unwrap();
            assert!(plan.ways.iter().any(|way| way.word() == repair.way), "{} is not told so", repair.name);
            let named = |promise: &&Promise| promise.title == repair.promise;
            assert_eq!(promises.iter().filter(named).count(), 1, "{}: {:?}", repair.name, repair.promise);
        }
    }
}
