//! The manual says of each case whether it is met; this holds what it says to the tests.

use std::collections::BTreeSet;

use super::rows::ROWS;

/// How many cases the reference service was read as.
const CASES: u16 = 162;

const MANUAL: &str = include_str!("../../docs/tasks/stand-in-for-the-envoy-rate-limit-service.md");

/// Tests that ask a daemon.
const PLAYED: &[&str] = &[
    include_str!("cases.rs"),
    include_str!("deployments.rs"),
    include_str!("gateway.rs"),
    include_str!("ports.rs"),
    include_str!("stores.rs"),
    include_str!("xds.rs"),
];

/// Tests of what the daemon is made of.
const PARTS: &[&str] =
    &[include_str!("../../src/core/envoy/tests.rs"), include_str!("../../src/database/envoy/service.rs")];

/// Numbers of a list such as `1–23, 26`.
fn listed(text: &str) -> BTreeSet<u16> {
    let ends = |part: &str| {
        let (first, last) = part.split_once('–').unwrap_or((part, part));
        first.trim().parse::<u16>().ok().zip(last.trim().parse().ok())
    };
    text.split(',').filter_map(ends).flat_map(|(first, last)| first..=last).collect()
}

/// The cases that a test's text names: `case 5`, `cases 5, 6`, or a row that begins with its number.
fn named(source: &str) -> BTreeSet<u16> {
    let dense: String = source.split_whitespace().collect();
    let lists = dense.split("case").skip(1).map(|after| {
        let after = after.trim_start_matches('s');
        let end = after.find(|sign: char| !sign.is_ascii_digit() && sign != ',').unwrap_or(after.len());
        &after[..end]
    });
    let rows = dense.split('(').skip(1).filter_map(|after| Some(after.split_once(',')?.0));
    lists.chain(rows).flat_map(listed).collect()
}

/// The manual's lines from the one that begins so up to an empty one.
fn lines(opening: &str) -> impl Iterator<Item = &'static str> {
    let from = MANUAL.find(opening).unwrap_or_else(|| panic!("the manual has no line {opening}"));
    MANUAL[from..].lines().take_while(|line| !line.is_empty())
}

/// The numbers in one column of a line.
fn column(line: &str, place: usize) -> BTreeSet<u16> {
    line.split('|').nth(place).map(listed).unwrap_or_default()
}

#[test]
fn the_manual_has_a_verdict_for_each_case_and_a_test_for_each_that_is_met() {
    let met = |opening| lines(opening).take(1).flat_map(|line| column(line, 2)).collect::<BTreeSet<_>>();
    let (played, parts) = (met("| met, played"), met("| met, held"));
    let differ = lines("| case | there |").flat_map(|line| column(line, 1));
    let verdicts: Vec<u16> = played.iter().chain(&parts).copied().chain(differ).collect();
    let once: BTreeSet<u16> = verdicts.iter().copied().collect();
    assert_eq!(once, (1..=CASES).collect::<BTreeSet<_>>(), "each case has a verdict");
    assert_eq!(verdicts.len(), once.len(), "and one only");
    let mut tested: BTreeSet<u16> = PLAYED.iter().flat_map(|source| named(source)).collect();
    tested.extend(ROWS.iter().map(|(case, ..)| *case));
    assert!(played.is_subset(&tested), "no test plays {:?}", &played - &tested);
    let held: BTreeSet<u16> = PARTS.iter().flat_map(|source| named(source)).collect();
    assert!(parts.is_subset(&held), "no test holds {:?}", &parts - &held);
}
