//! The rows of the contract of the Redis protocol: each has a test that names it, or is of another server.
//! And what clients send when they connect that are not installed here.

use std::collections::BTreeSet;

use super::resp;
use super::support::resp::Connection;

/// Rows that say how other servers answer, and why nobody asks here.
const OTHERS: &[(&str, &str)] = &[
    ("21", "how Dragonfly words an error; here it is worded as redis-cell does, row 12"),
    ("22", "how Dragonfly rounds seconds; here they are rounded as redis-cell does, row 1"),
    ("25", "throttlecrab's answer; here its command is refused, row 29"),
    ("26", "throttlecrab's denial; here its command is refused, row 29"),
    ("27", "throttlecrab's errors; here its command is refused, row 29"),
    ("28", "the other commands of throttlecrab"),
];

/// What clients send when they connect, by the row, of which nothing may be refused.
const CONNECTING: &[(&str, &[&str])] = &[
    ("46", &["INFO"]),
    ("48", &["CLIENT SETINFO LIB-NAME valkey-py", "CLIENT SETINFO LIB-VER 6.1.0"]),
    ("49", &["HELLO 3", "CLIENT SETINFO LIB-NAME GlidePy", "INFO REPLICATION"]),
    ("52", &["HELLO 3", "SELECT 0", "CLIENT SETNAME me", "CLIENT SETINFO LIB-NAME go-redis(,go1.25)"]),
    ("53", &["HELLO 3", "PING", "SELECT 0", "CLIENT SETNAME me", "CLIENT SETINFO lib-name Lettuce"]),
    ("54", &["HELLO 2", "CLIENT SETNAME me", "CLIENT SETINFO LIB-NAME jedis", "SELECT 0"]),
    ("54", &["HELLO 3", "CLIENT SETNAME me", "SELECT 0"]),
    ("55", &["HELLO 3", "SELECT 0", "CLIENT SETINFO LIB-NAME redis-rs"]),
    ("56", &["SELECT 0", "ECHO probe", "PING"]),
    ("56a", &["HELLO 3"]),
    ("66", &["INFO", "INFO server", "INFO REPLICATION"]),
];

/// Tests that name rows: as the first of a tuple, or as `row 5`, `rows 5, 6`, `rows 5 to 7`.
const SOURCES: &[&str] =
    &[include_str!("resp.rs"), include_str!("redis_rs.rs"), include_str!("../redis/cells.rs")];

#[test]
fn what_clients_send_when_they_connect_is_answered() {
    let (_daemon, resp) = resp::daemon("");
    for (row, commands) in CONNECTING {
        let mut connection = Connection::open(resp);
        for command in *commands {
            let told = connection.ask(command);
            assert!(!told.starts_with('-') && !told.is_empty(), "row {row}: {command}: {told}");
            let lines = ["# Server", "redis_version:", "redis_mode:standalone", "loading:0", "role:master"];
            let is_whole = lines.iter().chain(&["connected_slaves:0"]).all(|line| told.contains(line));
            assert!(is_whole || !command.starts_with("INFO"), "row {row}: {command}: {told}");
        }
        assert_eq!(connection.ask("CL.THROTTLE key 15 30 60 0").split(' ').count(), 5, "row {row}");
    }
}

#[test]
fn each_row_of_the_contract_has_a_test_or_is_of_another_server() {
    let all: BTreeSet<String> =
        (1..=77).map(|row: u16| row.to_string()).chain(["56a", "67a"].map(str::to_owned)).collect();
    let mut tested: BTreeSet<String> = SOURCES.iter().flat_map(|source| named(source)).collect();
    tested.extend(CONNECTING.iter().map(|(row, _)| (*row).to_owned()));
    let others: BTreeSet<String> = OTHERS.iter().map(|(row, _)| (*row).to_owned()).collect();
    let twice: Vec<&String> = others.intersection(&tested).collect();
    assert!(twice.is_empty(), "rows of other servers have tests: {twice:?}");
    let missing: Vec<&String> =
        all.iter().filter(|row| !tested.contains(*row) && !others.contains(*row)).collect();
    assert!(missing.is_empty(), "no test names the rows {missing:?}");
}

/// The rows that a test's text names.
fn named(source: &str) -> Vec<String> {
    let dense = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let tuples = dense.split('(').skip(1).filter_map(|after| {
        let (row, _) = after.trim_start().strip_prefix('"')?.split_once("\",")?;
        Some(listed(row)).filter(|rows| rows.first().is_some_and(|first| first == row))
    });
    let lower = dense.to_ascii_lowercase();
    let texts = lower.split("row").skip(1).map(|after| listed(after.trim_start_matches('s').trim_start()));
    tuples.chain(texts).flatten().collect()
}

/// The rows at the beginning of a text: `5`, `5, 6`, `5 and 6`, `5 to 7`.
fn listed(text: &str) -> Vec<String> {
    let (mut rows, mut rest, mut is_range) = (Vec::<String>::new(), text, false);
    loop {
        let digits = rest.len() - rest.trim_start_matches(|sign: char| sign.is_ascii_digit()).len();
        if digits == 0 {
            return rows;
        }
        let (row, after) = rest.split_at(digits + usize::from(rest[digits..].starts_with('a')));
        if let (true, Some(Ok(from)), Ok(to)) =
            (is_range, rows.last().map(|last| last.parse::<u16>()), row.parse::<u16>())
        {
            rows.extend((from + 1..to).map(|between| between.to_string()));
        }
        rows.push(row.to_owned());
        let separators = [(", ", false), (" and ", false), (" to ", true)];
        let next = separators.iter().find_map(|(text, range)| Some((after.strip_prefix(*text)?, *range)));
        let Some(next) = next else { return rows };
        (rest, is_range) = next;
    }
}

#[test]
fn lists_of_rows_are_read() {
    assert_eq!(listed("41 to 44: x"), ["41", "42", "43", "44"]);
    assert_eq!(listed("45, 47: x"), ["45", "47"]);
    assert_eq!(named("f((\"67a\", 1)); // rows 1 and 2; row {row}: (\"x\", 3)"), ["67a", "1", "2"]);
}
