//! The reference of the configuration beside what `tidegate config check` prints.

use std::collections::{BTreeMap, BTreeSet};

use tempfile::TempDir;

use super::support::command::run;
use super::support::web_authority::WebAuthority;

const PAGE: &str = include_str!("../../docs/reference/configuration.md");

/// Printed and described, but with no default that could be compared: written by this test, or of this
/// machine.
const WRITTEN: [&str; 4] = ["node", "peers.shares", "postgres.url", "listen.http_tls"];

/// What a daemon would run with, by whole key; nothing is configured but what makes every section appear.
fn printed() -> BTreeMap<String, String> {
    let (folder, authority) = (TempDir::new().unwrap(), WebAuthority::new());
    let made = authority.issue(1);
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("cert.pem", &made.cert);
    write("cert.key", &made.key);
    write("rules.toml", "");
    write(
        "tidegate.toml",
        "[postgres]\nurl = \"postgres://tidegate@localhost/tidegate\"\n[listen.http_tls]\ncert = \"cert.pem\"\nkey = \"cert.key\"\n",
    );
    let ran = run(folder.path(), &["config", "check", "--config", "tidegate.toml"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut section = String::new();
    let mut keys = BTreeMap::new();
    for line in ran.out.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, value)) = line.split_once(" = ") {
            keys.insert(format!("{section}{key}"), value.trim_matches('"').to_owned());
        }
    }
    assert!(keys.len() > 40, "{keys:?}");
    keys
}

/// The keys of the page's tables with the defaults that it says, by whole key.
fn described() -> BTreeMap<String, String> {
    let (mut sections, mut keys) = (vec![String::new()], BTreeMap::new());
    for line in PAGE.lines() {
        if line.starts_with('#') {
            let named = line.split('`').skip(1).step_by(2);
            sections = named.map(|name| format!("{}.", name.trim_matches(['[', ']']))).collect();
            if sections.is_empty() {
                sections.push(String::new());
            }
            continue;
        }
        let cells: Vec<&str> = line.split(" | ").collect();
        let ([first, default, ..], true) = (cells.as_slice(), line.starts_with("| `")) else { continue };
        let names: Vec<&str> = first.split('`').skip(1).step_by(2).collect();
        let defaults: Vec<&str> = default.split(", ").collect();
        let stem = names.first().and_then(|name| name.rsplit_once('.')).map_or("", |(stem, _)| stem);
        for (place, name) in names.iter().enumerate() {
            let name =
                name.strip_prefix('.').map_or_else(|| (*name).to_owned(), |last| format!("{stem}.{last}"));
            // A table of two sections writes the section before each key.
            let own = sections.iter().find(|section| name.starts_with(section.as_str()));
            let default = if defaults.len() == names.len() { defaults[place] } else { *default };
            for section in own.map_or_else(|| sections.clone(), |_| vec![String::new()]) {
                keys.insert(format!("{section}{name}"), default.replace(['`', ','], ""));
            }
        }
    }
    keys
}

#[test]
fn the_reference_has_every_key_of_the_configuration_with_its_default() {
    let (printed, described) = (printed(), described());
    let missing: Vec<&String> = printed.keys().filter(|key| !described.contains_key(*key)).collect();
    assert!(missing.is_empty(), "docs/reference/configuration.md lacks {missing:?}; it has {described:?}");
    let compared = |key: &&String| !WRITTEN.iter().any(|written| key.starts_with(written));
    let mut judged = 0;
    for key in printed.keys().filter(compared) {
        let (is, said) = (&printed[key], &described[key]);
        // A default that is a sentence says what no value can.
        let numbers = |text: &str| text.parse::<f64>().ok();
        let plain = numbers(is).is_some() || matches!(is.as_str(), "true" | "false") || !said.contains(' ');
        if !plain || is == "[]" {
            continue;
        }
        judged += 1;
        let said = said.split(':').next().filter(|first| numbers(first).is_some()).unwrap_or(said);
        let same = numbers(is).zip(numbers(said)).map_or(is == said, |(is, said)| (is - said).abs() < 1e-9);
        assert!(same, "{key} is {is}, and docs/reference/configuration.md says {said}");
    }
    assert!(judged > 30, "only {judged} defaults were compared");
}

#[test]
fn the_reference_has_no_key_that_is_refused() {
    let printed = printed();
    let folder = TempDir::new().unwrap();
    let known = |key: &str| {
        // As a wrong value: a key that is known is told apart from one that is not.
        let name = format!("TIDEGATE_{}", key.to_uppercase().replace('.', "__"));
        let mut command = super::support::command::command(folder.path());
        let output = command.args(["config", "check"]).env(name, "\u{1}").output().unwrap();
        !String::from_utf8_lossy(&output.stderr).contains("unknown key")
    };
    let more: BTreeSet<String> = described().into_keys().filter(|key| !printed.contains_key(key)).collect();
    assert!(more.len() > 5, "{more:?}");
    let refused: Vec<&String> = more.iter().filter(|key| !known(key)).collect();
    assert!(refused.is_empty(), "no such keys: {refused:?}");
    assert!(!known("listen.htttp"), "the question tells a key that is not known");
}
