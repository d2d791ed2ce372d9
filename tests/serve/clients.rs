//! The clients of `clients/`, each by its own tests, against a daemon.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::daemon::Daemon;
use crate::support::not_judged;

pub(crate) const RULES: &str = include_str!("../../clients/rules.toml");

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// Has a client's own tests ask a daemon that counts by the rules of all clients.
fn pass(daemon: &Daemon, tests: &mut Command) {
    let ran = tests.env("TIDEGATE", format!("http://{}", daemon.http)).output().unwrap();
    let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    assert!(ran.status.success(), "{tests:?}: {said}");
    let is_told = ["Ran ", "# tests ", "--- PASS: TestADaemonDecides"].iter().any(|told| said.contains(told));
    assert!(is_told, "no test ran: {said}");
}

#[test]
fn the_python_client_passes_its_tests() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python-client/bin/python");
    if !python.exists() {
        return not_judged("httpx is not installed: tests/run does so");
    }
    let daemon = Daemon::with_rules(RULES);
    let mut tests = Command::new(python);
    tests.current_dir(client("python")).args(["-m", "unittest", "discover", "-s", "tests"]);
    tests.env("PYTHONPATH", client("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    pass(&daemon, &mut tests);
}

#[test]
fn the_node_client_passes_its_tests() {
    if Command::new("node").arg("--version").output().is_err() {
        return not_judged("Node is not installed: tests/run does so");
    }
    let daemon = Daemon::with_rules(RULES);
    pass(&daemon, Command::new("node").current_dir(client("node")).args(["--test", "tests/"]));
}

#[test]
fn the_example_in_go_passes_its_tests() {
    if Command::new("go").arg("version").output().is_err() {
        return not_judged("Go is not installed");
    }
    let daemon = Daemon::with_rules(RULES);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/go");
    let mut tests = Command::new("go");
    tests.current_dir(client("go")).args(["test", "-v", "-count=1", "."]);
    // It has no dependency, and asks nobody for one.
    tests.env("GOCACHE", built).env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    pass(&daemon, &mut tests);
}

#[test]
fn every_package_brings_its_licence() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let licence = read("LICENSE");
    for folder in ["clients/node", "clients/python", "clients/rust", "src/core"] {
        assert_eq!(read(&format!("{folder}/LICENSE")), licence, "{folder}");
    }
    for (manifest, listed) in [
        ("Cargo.toml", "\"/LICENSE\""),
        ("clients/rust/Cargo.toml", "\"/LICENSE\""),
        ("clients/node/package.json", "\"LICENSE\""),
        ("clients/python/pyproject.toml", "license-files = [\"LICENSE\"]"),
    ] {
        assert!(read(manifest).contains(listed), "{manifest} lists {listed}");
    }
}
