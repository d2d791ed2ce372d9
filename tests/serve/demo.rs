//! `tidegate demo` as a newcomer runs it, but into a pipe.

use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::support::command::{command, run};
use super::support::process::Process;
use super::support::{eventually, http};

#[test]
fn three_regions_hold_one_limit_and_the_printed_command_works() {
    let folder = TempDir::new().unwrap();
    let mut demo = command(folder.path());
    demo.args(["demo", "--seconds", "7", "--limit", "100", "--window", "1s", "--rtt", "80ms"]);
    let mut demo = Process::start(&mut demo, &folder.path().join("demo.log"));
    let (address, body) = eventually("the demo prints a curl line", || {
        assert!(demo.ended().is_none(), "{}", demo.output());
        printed_question(&demo.output())
    });
    let reply = http::post(address.parse().unwrap(), "/v1/check", body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(
        reply.json()["allowed"].is_boolean() && reply.json()["rules"][0]["global"].is_object(),
        "{reply:?}"
    );
    let status = demo.wait(Duration::from_secs(30));
    let output = demo.output();
    assert_eq!(status.code(), Some(0), "{output}");
    let lines = output.lines().filter(|line| line.contains("eu-west") && line.contains("overshoot")).count();
    assert!(lines >= 4, "a line a second:\n{output}");
    assert!(output.contains("envoy.filters.http.ratelimit"), "{output}");
    let summary = output.lines().last().unwrap();
    let (worst, used) = (percent(summary, "mean"), percent(summary, "use"));
    assert!(worst <= 25.0 && used >= 80.0, "{summary}");
}

#[test]
fn what_the_demo_cannot_do_is_a_usage_error() {
    let folder = TempDir::new().unwrap();
    for arguments in [
        ["demo", "--regions", "1"],
        ["demo", "--window", "soon"],
        ["demo", "--limit", "0"],
        ["demo", "--mode", "magic"],
    ] {
        let ran = run(folder.path(), &arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
    }
}

/// Address and body of the line that begins with `curl`, once it is there.
fn printed_question(output: &str) -> Option<(String, String)> {
    let line = output.lines().find(|line| line.trim_start().starts_with("curl "))?;
    let (_, rest) = line.split_once("http://")?;
    let (address, rest) = rest.split_once("/v1/check")?;
    let body = rest.split('\'').nth(1)?;
    serde_json::from_str::<Value>(body).ok()?;
    Some((address.to_owned(), body.to_owned()))
}

/// The number behind a word, as in `mean 1.5 %`.
fn percent(line: &str, word: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("{word} ")).unwrap_or_else(|| panic!("no `{word}` in: {line}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}
