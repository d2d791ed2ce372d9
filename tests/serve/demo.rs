//! `tidegate demo` as a newcomer runs it, but into a pipe.

use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::support::command::{command, in_terminal, run};
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
    assert!(output.contains("believes ") && !output.contains("was given"), "{output}");
    let summary = output.lines().last().unwrap();
    let (mean, used) = (percent(summary, "mean"), percent(summary, "use"));
    assert!(mean <= 25.0 && used >= 80.0, "{summary}");
}

#[test]
fn the_demo_shows_what_fixed_shares_waste_and_what_moving_rights_use() {
    let folder = TempDir::new().unwrap();
    let start = |mode: &str, window: &str, seconds: &str| {
        let mut demo = command(folder.path());
        demo.args(["demo", "--mode", mode, "--window", window, "--seconds", seconds]);
        Process::start(&mut demo, &folder.path().join(format!("{mode}-{window}.log")))
    };
    // A window of an hour ends for nobody who watches for some seconds.
    let demos = [start("split", "1s", "7"), start("escrow", "1s", "7"), start("escrow", "1h", "4")];
    let [split, escrow, long] = demos.map(|mut demo| {
        let status = demo.wait(Duration::from_secs(40));
        let output = demo.output();
        assert_eq!(status.code(), Some(0), "{output}");
        // A region that knows its own use alone believes nothing of the world.
        assert!(!output.contains("believes"), "{output}");
        output
    });
    let summary = |output: &str| output.lines().last().unwrap().to_owned();
    for output in [&split, &escrow] {
        assert!(percent(&summary(output), "worst") <= 0.0, "{output}");
    }
    let (wasted, moved) = (percent(&summary(&split), "use"), percent(&summary(&escrow), "use"));
    assert!(wasted <= 70.0 && moved >= 80.0, "{split}\n{escrow}");
    let given: u64 = escrow.split("was given ").skip(1).map(leading_number).sum();
    let gave: u64 = escrow.split("gave ").skip(1).map(leading_number).sum();
    assert!(given > 0 && gave == given, "{escrow}");
    assert!(long.contains("world, still starting: "), "{long}");
    assert_eq!(summary(&long), "No whole window of 1 h has passed.");
}

/// What a terminal shows of this output, line by line: the demo moves up and erases before it draws anew.
fn shown(output: &str) -> Vec<String> {
    let mut screen = vec![String::new()];
    for (number, part) in output.replace('\r', "").split("\x1b[").enumerate() {
        let mut text = part;
        if number > 0 {
            let end = part.find(|letter: char| letter.is_ascii_alphabetic()).unwrap();
            let up = if part[end..].starts_with('A') { part[..end].parse().unwrap() } else { 0 };
            for _ in 0..up {
                screen.pop();
                screen.last_mut().unwrap().clear();
            }
            text = &part[end + 1..];
        }
        let mut lines = text.split('\n');
        screen.last_mut().unwrap().push_str(lines.next().unwrap());
        screen.extend(lines.map(str::to_owned));
    }
    screen
}

#[test]
fn in_a_terminal_of_80_by_24_the_demo_fits_with_the_line_that_asks_it() {
    let folder = TempDir::new().unwrap();
    let demos = ["gossip", "split", "escrow"].map(|mode| {
        let mut demo = in_terminal(folder.path());
        demo.args(["demo", "--mode", mode, "--seconds", "7"]);
        (mode, Process::start(&mut demo, &folder.path().join(format!("{mode}.log"))))
    });
    for (mode, mut demo) in demos {
        assert_eq!(demo.wait(Duration::from_secs(40)).code(), Some(0), "{}", demo.output());
        let screen = shown(&demo.output());
        let shown = screen.join("\n");
        assert!(screen.iter().all(|line| line.trim_end().chars().count() <= 80), "{mode}:\n{shown}");
        let at = |start: &str| screen.iter().position(|line| line.trim_start().starts_with(start));
        let (asked, judged) = (at("curl ").expect("it says how to ask"), at("limit ").expect("it draws"));
        // The line that judges follows, and the cursor stands below it.
        assert!(judged + 2 - asked < 24, "{mode}: the line that asks is out of sight:\n{shown}");
        assert!(printed_question(&shown).is_some() && shown.contains("says how)"), "{mode}:\n{shown}");
    }
}

fn leading_number(text: &str) -> u64 {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..digits].parse().unwrap()
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
