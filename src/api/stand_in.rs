//! What stands for texts that are too long to count by.
//!
//! A client chooses how long its path, its name or its key is. A text beyond [`TEXT_BYTES_MAX`] counts by a
//! beginning and a hash, so that each has a bucket of its own and none costs more memory than another; globs
//! still look at the text.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::address;
use crate::core::request::TEXT_BYTES_MAX;

/// Bytes of a text that its stand-in begins with, for people who read it.
const BEGINNING_BYTES: usize = 128;
/// Longest text that globs look at as a whole. Of a longer one they see its two ends, each of half of that.
const WHOLE_BYTES_MAX: usize = 8_192;
/// The attribute that holds an address.
const IP: &str = "ip";

/// What a text counts by that is too long to count by itself: its beginning, then the SHA-256 of all of it.
pub(super) fn stand_in(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut short = beginning(text, BEGINNING_BYTES).to_owned();
    short.push_str("~sha256:");
    for byte in digest.as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(short, "{byte:02x}");
    }
    short
}

/// What globs look at in the place of a text of any length.
pub(super) fn seen_by_globs(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= WHOLE_BYTES_MAX {
        return text;
    }
    let half = WHOLE_BYTES_MAX / 2;
    let mut from = text.len() - half;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    Cow::Owned([beginning(&text, half), text.get(from..).unwrap_or_default()].concat())
}

/// Names the bucket of a descriptor's own limit, by names and values of its attributes.
pub(super) fn descriptor<'t>(pairs: impl Iterator<Item = (&'t str, &'t str)>, ipv6_prefix: u8) -> String {
    let mut text = String::new();
    for (entry, (name, value)) in pairs.enumerate() {
        let address = if name == IP { address::regrouped(value, ipv6_prefix) } else { None };
        if entry > 0 {
            text.push(',');
        }
        push_escaped(&mut text, name);
        text.push('=');
        push_escaped(&mut text, address.as_deref().unwrap_or(value));
    }
    if text.len() > TEXT_BYTES_MAX { stand_in(&text) } else { text }
}

/// No two lists of names and values make the same text.
fn push_escaped(text: &mut String, part: &str) {
    for letter in part.chars() {
        if matches!(letter, ',' | '=' | '%') {
            let _ = write!(text, "%{:02X}", u32::from(letter));
        } else {
            text.push(letter);
        }
    }
}

/// The first bytes of a text, cut between characters.
fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_have_short_stand_ins_of_their_own() {
        let (one, other) = ("ä".repeat(700) + "1", "ä".repeat(700) + "2");
        let short = stand_in(&one);
        assert_eq!(short.len(), 200);
        assert!(short.starts_with("äää") && short != stand_in(&other));
        assert_eq!(stand_in(&one), short);
    }

    #[test]
    fn globs_see_both_ends_of_a_very_long_text() {
        let text = format!("/api/{}/x.php", "é".repeat(10_000));
        let seen = seen_by_globs(Cow::Borrowed(&text));
        assert!(seen.len() <= WHOLE_BYTES_MAX && seen.starts_with("/api/é") && seen.ends_with("/x.php"));
        assert_eq!(seen_by_globs(Cow::Borrowed("/x")), "/x");
    }

    #[test]
    fn no_two_descriptors_share_a_name() {
        let name = |pairs: &[(&str, &str)]| descriptor(pairs.iter().copied(), 64);
        let all = [
            name(&[("a", "b"), ("c", "d")]),
            name(&[("a", "b,c=d")]),
            name(&[("a", "b%2Cc%3Dd")]),
            name(&[("a=b", "")]),
            name(&[("a", "b")]),
            name(&[("a", "b"), ("a", "b")]),
        ];
        let apart: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(apart.len(), all.len(), "{all:?}");
        assert_eq!(name(&[("ip", "2001:db8::1")]), name(&[("ip", "2001:db8::2")]));
        assert!(name(&[("a", &"x".repeat(5_000))]).len() < 300);
    }
}
