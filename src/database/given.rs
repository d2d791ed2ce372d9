//! A set of rules that another daemon gave, kept apart from what the own database said: with the certificate
//! of whoever gave it, so that it is used for as long as that is accepted and no longer.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::saved;
use super::stored::Stored;

/// The daemon that gave a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Giver {
    /// Name of the daemon that gave the set, as `REGION/NODE`.
    pub node: String,
    /// Its certificate and those between it and the authority, as the connection showed them.
    pub chain: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    node: String,
    chain: Vec<String>,
}

/// Returns where such a set is kept: beside the one of the database.
#[must_use]
pub fn path_beside(saved: &Path) -> PathBuf {
    saved.with_extension("peer.json")
}

/// A set's bytes behind a line that says who gave it.
#[must_use]
pub fn to_bytes(giver: &Giver, set: &[u8]) -> Vec<u8> {
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = Line { node: giver.node.clone(), chain: giver.chain.iter().map(hex).collect() };
    let line = serde_json::to_vec(&line).unwrap_or_default();
    [&line, &b"\n"[..], set].concat()
}

/// Reads what [`to_bytes`] wrote, without checking the rules; `None` for anything else.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> Option<(Giver, Stored)> {
    let at = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, set) = bytes.split_at(at);
    let Line { node, chain } = serde_json::from_slice(line).ok()?;
    let chain = chain.iter().map(|text| unhex(text)).collect::<Option<_>>()?;
    Some((Giver { node, chain }, saved::from_bytes(set).ok()?))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let pairs = digits?;
    let pairs = pairs.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_comes_back_with_who_gave_it_and_nothing_else_does() {
        let giver = Giver { node: "eu/n1".to_owned(), chain: vec![vec![0, 15, 255], Vec::new()] };
        let set = br#"{"format":1,"version":{"generation":1,"revision":7},"rules":[],"quotas":[]}"#;
        let bytes = to_bytes(&giver, set);
        let (read, stored) = from_bytes(&bytes).unwrap();
        assert_eq!((read, stored.version.revision), (giver, 7));
        for cut in 0..bytes.len() {
            assert!(from_bytes(&bytes[..cut]).is_none(), "{cut}");
        }
        assert!(from_bytes(set).is_none(), "a set of nobody");
        assert_eq!(path_beside(Path::new("/a/rules.saved.json")), Path::new("/a/rules.saved.peer.json"));
    }
}
