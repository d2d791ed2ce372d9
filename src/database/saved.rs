//! A set of rules as bytes: what a daemon keeps on its disk to start from, and what daemons hand to each
//! other.
//!
//! [`super::held`] writes it. Whoever reads one checks it like any other set before use: bytes on a disk rot,
//! and peers may be of another version.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::private;
use super::set::RuleDocs;
use super::stored::{Stored, Version};
use crate::engine::rulebook::Quota;

/// Longest set, in bytes.
pub const SET_BYTES_MAX: usize = 64 << 20;
pub(super) const FORMAT: u32 = 1;
const DIGEST_BYTES: usize = 32;
/// Largest generation and revision that are believed: databases count them in 63 bits, and need room to go
/// on.
const NUMBER_MAX: u64 = 1 << 62;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    format: u32,
    version: Version,
    rules: Vec<Value>,
    quotas: Vec<WrittenQuota>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenQuota {
    pub(super) rule: String,
    pub(super) region: String,
    pub(super) weight: u32,
    pub(super) min_percent: u8,
}

/// Reads a set, without checking its rules.
///
/// # Errors
/// A sentence.
pub fn from_bytes(bytes: &[u8]) -> Result<Stored, String> {
    let written: Written =
        serde_json::from_slice(bytes).map_err(|error| format!("is no saved set of rules: {error}"))?;
    if written.format != FORMAT {
        return Err(format!("has format {}, and this version reads {FORMAT}", written.format));
    }
    if written.version.generation > NUMBER_MAX || written.version.revision > NUMBER_MAX {
        return Err("has a generation or revision that no database can hold".to_owned());
    }
    let mut docs = RuleDocs::default();
    for rule in written.rules {
        let name = rule.get("name").and_then(Value::as_str).ok_or("holds a rule without a name")?.to_owned();
        docs.rules.insert(name, rule);
    }
    for WrittenQuota { rule, region, weight, min_percent } in written.quotas {
        docs.quotas.entry(rule).or_default().push(Quota { region, weight, min_percent });
    }
    Ok(Stored { version: written.version, mark: None, docs })
}

/// The name of a set's bytes: their SHA-256.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    digest
}

/// Keeps a set on disk: the old one or the new one is there at any instant, whole. Blocks.
///
/// # Errors
/// What the system says.
pub fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let aside = path.with_extension("new");
    let mut file = private::create(&aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// What was kept; `None` if nothing was. Blocks.
///
/// # Errors
/// A sentence: the file cannot be read, or holds no set.
pub fn read(path: &Path) -> Result<Option<Stored>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
    };
    let mut bytes = Vec::new();
    let most = u64::try_from(SET_BYTES_MAX).unwrap_or(u64::MAX);
    file.take(most)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    from_bytes(&bytes).map(Some).map_err(|why| format!("{} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::held::Held;
    use super::*;
    use serde_json::json;

    fn to_bytes(stored: &Stored) -> Vec<u8> {
        Held::of(&stored.docs).to_bytes(stored.version).unwrap()
    }

    fn stored() -> Stored {
        let mut docs = RuleDocs::default();
        docs.rules.insert("a".to_owned(), json!({ "name": "a", "limit": 1, "window": "1s" }));
        docs.quotas
            .insert("a".to_owned(), vec![Quota { region: "eu".to_owned(), weight: 1, min_percent: 5 }]);
        Stored { version: Version { generation: 1, revision: 7 }, mark: None, docs }
    }

    #[test]
    fn what_was_kept_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.saved.json");
        assert_eq!(read(&path), Ok(None));
        write(&path, &to_bytes(&stored())).unwrap();
        assert_eq!(read(&path), Ok(Some(stored())));
        assert_eq!(digest(&to_bytes(&stored())), digest(&std::fs::read(&path).unwrap()));
    }

    #[test]
    fn a_damaged_file_is_told_and_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.saved.json");
        let bytes = to_bytes(&stored());
        for cut in 0..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(read(&path).unwrap_err().contains("is no saved set of rules"), "{cut}");
        }
        let endless = String::from_utf8(bytes.clone()).unwrap().replace(":7}", &format!(":{}}}", u64::MAX));
        assert!(from_bytes(endless.as_bytes()).unwrap_err().contains("no database can hold"), "{endless}");
        let newer = String::from_utf8(bytes).unwrap().replace("\"format\":1", "\"format\":2");
        assert!(from_bytes(newer.as_bytes()).unwrap_err().contains("has format 2"));
    }

    #[test]
    fn a_later_generation_is_newer_whatever_its_revision() {
        let of = |generation, revision| Version { generation, revision };
        assert!(of(2, 10) > of(1, 12) && of(1, 12) > of(1, 11));
    }
}
