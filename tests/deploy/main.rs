//! What is installed: the Debian package, the container image, the compose file and the Kubernetes chart,
//! each as far as this machine can run it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

#[path = "../support/mod.rs"]
mod support;

mod compose;
mod debian;
mod image;
mod kubernetes;
mod manual;
mod release;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command that must succeed, and gives what it said.
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// A file of `deploy`.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

/// A program that `tests/run` installs into `target`.
fn tool(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/deploy-tools").join(name);
    path.exists().then_some(path)
}

/// The same command, which finds mdBook where `tests/run` has installed it.
fn with_mdbook(mut command: Command) -> Command {
    if let Some(mdbook) = tool("bin/mdbook") {
        command.env("MDBOOK", mdbook);
    }
    command
}

/// The settings that a daemon would run with; fails where it would not start.
fn configured(folder: &Path, variables: &[(String, String)]) -> String {
    let mut command = support::command::command(folder);
    command.args(["config", "check"]).envs(variables.iter().cloned());
    done(&mut command)
}
