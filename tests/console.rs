//! The console in a real Chromium: its pages show what the daemon knows, load nothing from elsewhere, and say
//! nothing on the browser's console.
//!
//! `tests/run` installs Chromium; without it these tests fail, they do not skip.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod support;

use std::path::Path;
use std::process::Command;

use support::daemon::Daemon;
use support::{eventually, http};
use tempfile::TempDir;

/// What Chromium is told so that it asks nobody but the daemon.
const QUIET: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    // Long enough for scripts and the first update of the stream, however slow the machine is.
    "--virtual-time-budget=4000",
];

/// A page as the browser has it after its scripts ran, and what was said on the browser's console.
fn page(daemon: &Daemon, name: &str) -> (String, String) {
    let profile = TempDir::new().unwrap();
    let mut chromium = Command::new("chromium");
    chromium.args(QUIET).arg(format!("--user-data-dir={}", profile.path().display()));
    chromium.args(["--dump-dom", &format!("http://{}/#{name}", daemon.http)]);
    let ran = chromium.output().expect("chromium is installed: apt-get install chromium");
    let (dom, said) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let said: Vec<_> = said.lines().filter(|line| line.contains(":CONSOLE")).collect();
    (dom.into_owned(), said.join("\n"))
}

fn daemon() -> Daemon {
    let rules = "[[rules]]\nname = \"search <b>\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 70\nwindow = \"1m\"\n";
    Daemon::with(rules, "region = \"eu-west\"\n", &[])
}

#[test]
fn pages_show_what_the_daemon_knows_and_nothing_goes_wrong_in_the_browser() {
    let daemon = daemon();
    for (name, shown) in [
        ("world", vec!["eu-west", "this daemon", "Worldwide rules"]),
        ("rules", vec!["1 rule, revision 1", "search &lt;b&gt;", "70 / 1m"]),
        ("health", vec!["serving", "memory: ok", "eu-west/"]),
    ] {
        // The browser's time runs ahead of a machine that is busy, so a page may be taken before its first
        // update came.
        let said = eventually(&format!("{name} shows {shown:?}"), || {
            let (dom, said) = page(&daemon, name);
            shown.iter().all(|text| dom.contains(text)).then_some(said)
        });
        assert_eq!(said, "", "{name}");
    }
}

#[test]
fn a_page_may_load_only_what_the_daemon_serves() {
    let daemon = daemon();
    let reply = http::get(daemon.http, "/", &[("accept", "text/html")]);
    let policy = reply.header("content-security-policy").unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    // Whoever asks as a program gets the list of routes.
    assert!(!http::get(daemon.http, "/", &[]).body.contains("<!doctype html>"));
    for asset in Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/console/assets")).read_dir().unwrap()
    {
        let name = asset.unwrap().file_name().into_string().unwrap();
        let served = match name.as_str() {
            "LICENSES" => continue,
            "index.html" => "/".to_owned(),
            name => format!("/console/{name}"),
        };
        let reply = http::get(daemon.http, &served, &[("accept", "text/html")]);
        assert_eq!(reply.status, 200, "{served}");
        let away = ["https://", "http://"].iter().find(|scheme| {
            reply.body.match_indices(**scheme).any(|(at, _)| !reply.body[at..].contains("www.w3.org"))
        });
        assert_eq!(away, None, "{served} names another server");
    }
}
