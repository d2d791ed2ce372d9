//! Holds `docs/internals/protocol.md` to the code: whatever travels between daemons, each safety switch and
//! each mutation is on the page, and what the page cites is there.
//!
//! Reading is textual, like that of the parent: declarations of the wire types are plain enough for it.

use std::collections::BTreeSet;

use super::root;

/// The page.
const PAGE: &str = "docs/internals/protocol.md";
/// The folder in which its links begin.
const FOLDER: &str = "docs/internals";
/// The files whose public types travel between daemons, or are asked of a store.
const MESSAGES: &[&str] = &["src/core/wire.rs", "src/core/wire/rights.rs"];
/// Other types that travel, or are asked of a store.
const TYPES: &[(&str, &str)] = &[
    ("src/core/regions/split/word.rs", "WeightsStatement"),
    ("src/core/regions/split/word.rs", "Phase"),
    ("src/core/regions/escrow/ledger.rs", "Step"),
    ("src/core/regions/escrow/totals.rs", "Giving"),
    ("src/core/regions/escrow/totals.rs", "Taking"),
    ("src/core/regions/escrow/window.rs", "WindowStep"),
    ("src/core/regions/escrow/level.rs", "LevelStep"),
    ("src/core/regions/escrow/places.rs", "PlacesStep"),
    ("src/peer/rules.rs", "RulesStatement"),
];
/// The switches of the protocol's safety rules.
const SWITCHES: &[(&str, &str)] = &[
    ("src/core/regions/escrow/mod.rs", "EscrowSafety"),
    ("src/core/regions/gossip/safety.rs", "GossipSafety"),
];

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn page() -> String {
    read(PAGE)
}

/// A declared type: its name, and its fields or variants with their fields.
#[derive(Debug, PartialEq, Eq)]
struct Declared {
    name: String,
    parts: Vec<String>,
}

/// The public structs and enums of a file, with the names of what is in them.
fn declared(text: &str) -> Vec<Declared> {
    let mut found: Vec<Declared> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let named = ["pub struct ", "pub enum "].iter().find_map(|start| line.strip_prefix(start));
        if let Some(rest) = named.filter(|rest| rest.ends_with('{')) {
            let name = rest.split([' ', '<']).next().unwrap_or_default().to_owned();
            found.push(Declared { name, parts: Vec::new() });
            inside = true;
        } else if line.starts_with('}') {
            inside = false;
        } else if let (true, Some(part)) = (inside, part(line.trim()))
            && let Some(last) = found.last_mut()
        {
            last.parts.push(part);
        }
    }
    found
}

/// The field or variant that a line of a declaration names.
fn part(line: &str) -> Option<String> {
    if line.starts_with("//") || line.starts_with('#') {
        return None;
    }
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let name: String = line.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let rest = line.get(name.len()..).unwrap_or_default();
    let is_part = !name.is_empty() && [",", ":", " {", "("].iter().any(|next| rest.starts_with(next));
    is_part.then_some(name)
}

fn declared_as(path: &str, name: &str) -> Declared {
    let found = declared(&read(path)).into_iter().find(|declared| declared.name == name);
    found.unwrap_or_else(|| panic!("{path} declares no {name}"))
}

/// The part of the page below the heading that names a type.
fn section<'p>(page: &'p str, name: &str) -> Option<&'p str> {
    let heading = format!("\n#### `{name}`\n");
    let from = page.find(&heading)? + heading.len();
    let below = page.get(from..)?;
    below.get(..below.find("\n#").unwrap_or(below.len()))
}

/// What stands in backticks, but for blocks.
fn quoted(page: &str) -> BTreeSet<&str> {
    let text = page.split("```").step_by(2);
    text.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

fn missing_of(page: &str, declared: &Declared) -> Vec<String> {
    let Some(section) = section(page, &declared.name) else {
        return vec![format!("{PAGE} has no heading `{}`", declared.name)];
    };
    let named = quoted(section);
    let missing = declared.parts.iter().filter(|part| !named.contains(part.as_str()));
    missing.map(|part| format!("{PAGE}: `{}` does not name `{part}`", declared.name)).collect()
}

#[test]
fn every_message_and_each_of_its_fields_is_on_the_page() {
    let page = page();
    let all = MESSAGES.iter().flat_map(|path| declared(&read(path)));
    let all: Vec<Declared> = all.chain(TYPES.iter().map(|(path, name)| declared_as(path, name))).collect();
    assert!(all.len() >= 16 && all.iter().all(|one| !one.parts.is_empty()), "{all:?}");
    super::assert_no(all.iter().flat_map(|declared| missing_of(&page, declared)));
}

#[test]
fn every_kind_of_message_and_every_fact_of_a_member_is_on_the_page() {
    let (page, codec, membership) = (page(), read("src/peer/codec.rs"), read("src/peer/membership.rs"));
    let named = quoted(&page);
    let kinds = declared(&codec).into_iter().filter(|declared| declared.name == "Message");
    let kinds: Vec<String> = kinds.flat_map(|declared| declared.parts).collect();
    let texts = membership.lines().filter(|line| line.starts_with("const ") && line.contains(": &str = "));
    let facts: Vec<&str> = texts.filter_map(|line| line.split('"').nth(1)).collect();
    assert!(kinds.len() >= 3 && facts.len() >= 5, "{kinds:?} {facts:?}");
    let all = kinds.iter().map(String::as_str).chain(facts);
    super::assert_no(
        all.filter(|name| !named.contains(name)).map(|name| format!("{PAGE} does not name `{name}`")),
    );
}

#[test]
fn every_safety_switch_and_what_notices_it_is_on_the_page() {
    let page = page();
    let named = quoted(&page);
    let switches: Vec<String> =
        SWITCHES.iter().flat_map(|(path, name)| declared_as(path, name).parts).collect();
    assert!(switches.len() >= 20, "{switches:?}");
    let kept = read("simulations/seeds/mutations.txt");
    let lines = kept.lines().filter(|line| !line.starts_with('#'));
    let mutations: Vec<&str> = lines.filter_map(|line| Some(line.split_once(' ')?.1.trim())).collect();
    let unseen =
        switches.iter().filter(|switch| !mutations.iter().any(|name| name.ends_with(switch.as_str())));
    let unseen =
        unseen.map(|switch| format!("simulations/seeds/mutations.txt switches {switch} off nowhere"));
    let all = switches.iter().map(String::as_str).chain(mutations.iter().copied());
    let unnamed = all.filter(|name| !named.contains(name));
    super::assert_no(unnamed.map(|name| format!("{PAGE} does not name `{name}`")).chain(unseen));
}

#[test]
fn every_file_that_the_page_cites_is_there() {
    let page = page();
    let folders = ["src/", "lua/", "simulations/", "tests/", "docs/"];
    let mut cited: BTreeSet<String> = quoted(&page)
        .into_iter()
        .filter(|name| folders.iter().any(|folder| name.starts_with(folder)))
        .map(str::to_owned)
        .collect();
    for block in page.split("```").skip(1).step_by(2) {
        let words = block.split([' ', '\n', '(', ')']);
        let paths = words.filter(|word| word.starts_with("src/") && word.ends_with(".rs"));
        cited.extend(paths.map(str::to_owned));
    }
    let links = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    cited.extend(links.filter(|link| link.ends_with(".md")).map(|link| format!("{FOLDER}/{link}")));
    assert!(cited.len() > 40, "{cited:?}");
    let gone = cited.iter().filter(|path| !root().join(path).is_file());
    super::assert_no(gone.map(|path| format!("{PAGE} cites {path}, which is not there")));
}

#[test]
fn every_function_of_a_step_is_where_the_page_says() {
    let page = page();
    let steps = page.split("| step | function | file |").skip(1);
    let rows = steps.flat_map(|table| table.lines().skip(2).take_while(|line| line.starts_with('|')));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split('|').collect()).collect();
    assert!(rows.len() > 10, "{rows:?}");
    let faults = rows.iter().flat_map(|row| {
        let (functions, files) = (row.get(2).copied().unwrap_or(""), row.get(3).copied().unwrap_or(""));
        let code: String = quoted(files).into_iter().map(read).collect();
        let gone = quoted(functions).into_iter().filter(move |name| {
            let name = name.rsplit("::").next().unwrap_or(name);
            !["(", "<"].iter().any(|opens| code.contains(&format!("fn {name}{opens}")))
        });
        gone.map(move |name| format!("{PAGE}: `{name}` is not in {files}")).collect::<Vec<_>>()
    });
    super::assert_no(faults);
}

#[test]
fn every_function_of_a_chart_is_in_the_code() {
    let page = page();
    let charts = page.split("```").skip(1).step_by(2);
    let words =
        charts.flat_map(|chart| chart.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':'))));
    let called = words.filter_map(|word| word.trim_end_matches(':').split_once("::"));
    let called: BTreeSet<&str> = called
        .filter(|(_, name)| name.starts_with(|c: char| c.is_lowercase()))
        .map(|(_, name)| name)
        .collect();
    assert!(called.len() > 3, "{called:?}");
    let code: String = super::sources().into_iter().map(|source| source.text).collect();
    let gone = called.iter().filter(|name| !code.contains(&format!("fn {name}(")));
    super::assert_no(gone.map(|name| format!("{PAGE}: a chart calls `{name}`, which is nowhere")));
}

#[test]
fn every_anchor_that_the_page_links_to_is_a_heading() {
    let page = page();
    let links = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let with_anchor = links.filter_map(|link| link.split_once('#'));
    let wrong = with_anchor.filter(|(file, anchor)| {
        let text = if file.is_empty() { page.clone() } else { read(&format!("{FOLDER}/{file}")) };
        !text.lines().filter(|line| line.starts_with('#')).any(|line| anchor_of(line) == *anchor)
    });
    super::assert_no(wrong.map(|(file, anchor)| format!("{PAGE} links to {file}#{anchor}, no heading")));
}

/// The anchor of a heading, as GitHub makes it.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The tests of the tester: a rule that cannot fail keeps nothing.
mod tester {
    use super::*;

    const CODE: &str = "/// A thing.\n#[derive(Debug)]\npub struct Thing {\n    /// One.\n    #[serde(skip)]\n    pub one: u64,\n    \
                        pub two: Vec<u8>,\n}\n\nimpl Thing {\n    pub fn three(&self) {}\n}\n\npub enum Way {\n    /// In.\n    \
                        In,\n    Out(String),\n    By {\n        /// Whom.\n        whom: u64,\n    },\n}\n";

    #[test]
    fn fields_and_variants_are_found_and_methods_are_none() {
        let found: Vec<(String, Vec<String>)> =
            declared(CODE).into_iter().map(|declared| (declared.name, declared.parts)).collect();
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                ("Thing".to_owned(), named(&["one", "two"])),
                ("Way".to_owned(), named(&["In", "Out", "By", "whom"]))
            ]
        );
    }

    #[test]
    fn a_field_counts_only_in_the_section_of_its_type() {
        let page = "# P\n#### `Thing`\n| `one` | x |\n#### `Way`\n`two` `In` `Out` `By` `whom`\n";
        let of = |name: &str| {
            missing_of(page, &declared(CODE).into_iter().find(|declared| declared.name == name).unwrap())
        };
        assert_eq!((of("Thing").len(), of("Way").len()), (1, 0));
        let none = Declared { name: "Other".to_owned(), parts: vec!["one".to_owned()] };
        assert_eq!(missing_of(page, &none).len(), 1);
    }

    #[test]
    fn anchors_are_those_of_headings() {
        assert_eq!(anchor_of("### The error bound of `gossip`"), "the-error-bound-of-gossip");
        assert_eq!(anchor_of("## 3. Messages"), "3-messages");
    }
}
