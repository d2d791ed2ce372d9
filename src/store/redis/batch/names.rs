//! How a bucket is named in Redis: `tg:{user=u_42}:search-free`.
//!
//! The identity is the hash tag, so that all buckets of one identity lie in one slot and are decided in one
//! call. Names and values are escaped, so that no two identities and no two rules ever meet, whatever bytes
//! they hold. A rule without `per` has the tag `{rule:NAME}`, so that such buckets spread over the cluster.

use crate::core::algorithm::Algorithm;
use crate::core::calendar::Windows;
use crate::core::key::{Key, identity_values};
use crate::core::rule::Rule;

use crate::store::redis::client::slots::{ClusterSlot, SLOTS, checksum, slot_of_checksum, slot_of_tag};

/// A bucket's key and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Name {
    /// The key.
    pub(in crate::store::redis) key: Vec<u8>,
    /// The slot of its hash tag.
    pub(in crate::store::redis) slot: ClusterSlot,
}

/// Into how many sub-keys a rule splits its keys. What the world counts has one name, so it is not split.
pub(in crate::store::redis) fn parts_of(rule: &Rule) -> u32 {
    if rule.global.is_some() { 1 } else { rule.split_keys.max(1) }
}

/// The name of a bucket of `rule`. A request's own limit with another window counts in a key of its own.
pub(in crate::store::redis) fn bucket(rule: &Rule, key: &Key, windows: Windows) -> Name {
    let mut name = Vec::with_capacity(64);
    name.extend_from_slice(b"tg:{");
    let tag_start = name.len();
    let index = push_tag(&mut name, rule, key);
    if let Some(index) = index {
        push_number_within(&mut name, tag_start, index, parts_of(rule));
    }
    let slot = slot_of_tag(name.get(tag_start..).unwrap_or_default());
    name.extend_from_slice(b"}:");
    push_escaped(&mut name, rule.name.as_bytes());
    if windows != rule.windows() {
        name.extend_from_slice(format!(":w{}", windows.length().0).as_bytes());
    }
    Name { key: name, slot }
}

/// The key of a bucket whose own is taken by another shape of the same rule: two daemons have different
/// versions of it.
pub(in crate::store::redis) fn beside(key: &[u8], shape: u32) -> Vec<u8> {
    let mut name = key.to_vec();
    name.extend_from_slice(format!(":s{shape:08x}").as_bytes());
    name
}

/// The key of what the world leaves a bucket.
pub(in crate::store::redis) fn view(key: &[u8]) -> Vec<u8> {
    let mut name = key.to_vec();
    name.extend_from_slice(b":view");
    name
}

/// Says what a value counts, so that a rule that changes its algorithm, window or domain starts afresh: the
/// algorithm's number in the highest byte, then 24 bits of a hash. A raised limit changes nothing. The same
/// in every daemon.
pub(in crate::store::redis) fn shape(rule: &Rule, algorithm: Algorithm, windows: Windows) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let calendar = windows.calendar().map(|calendar| format!("{:?}", calendar.name())).unwrap_or_default();
    let length = windows.length().0.to_be_bytes();
    for byte in length.iter().chain(rule.domain.as_bytes()).chain(calendar.as_bytes()) {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    u32::from(algorithm.code()) << 24 | ((hash >> 24) ^ hash) & 0x00ff_ffff
}

/// The key of a bucket's rights.
pub(in crate::store::redis) fn rights(key: &[u8]) -> Vec<u8> {
    let mut name = key.to_vec();
    name.extend_from_slice(b":rights");
    name
}

/// The keys of what is reserved of a bucket: the notes, and their orders.
pub(in crate::store::redis) fn notes(key: &[u8]) -> [Vec<u8>; 2] {
    [b":notes".as_slice(), b":notes-order"].map(|suffix| [key, suffix].concat())
}

/// The key of what a bucket's client did that may bring a penalty.
pub(in crate::store::redis) fn penalty(key: &[u8]) -> Vec<u8> {
    [key, b":penalty"].concat()
}

/// Appends the tag. Gives back which sub-key of a split key it is for.
fn push_tag(name: &mut Vec<u8>, rule: &Rule, key: &Key) -> Option<u32> {
    let (values, index) = values_of(rule, key);
    let Some(values) = values else {
        // No identity of ours, but still one bucket of its own.
        name.push(b'#');
        name.extend(key.identity().iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]));
        return None;
    };
    if rule.per.is_empty() {
        name.extend_from_slice(b"rule:");
        push_escaped(name, rule.name.as_bytes());
    }
    for (index, (attribute, value)) in rule.per.iter().zip(values).enumerate() {
        if index > 0 {
            name.push(b',');
        }
        push_escaped(name, attribute.as_bytes());
        name.push(b'=');
        push_escaped(name, value.as_bytes());
    }
    index
}

/// The values of the rule's `per`, if the key has them, and the number of the sub-key behind them.
fn values_of<'k>(rule: &Rule, key: &'k Key) -> (Option<Vec<&'k str>>, Option<u32>) {
    let Some(mut values) = identity_values(key.identity()) else { return (None, None) };
    let mut index = None;
    if parts_of(rule) > 1 && values.len() == rule.per.len() + 1 {
        index = values.pop().and_then(|text| text.parse().ok());
    }
    // A rule without `per` has one bucket, whatever the key says.
    let fits = rule.per.is_empty() || values.len() == rule.per.len();
    (fits.then_some(values), index)
}

/// Appends `#` and the first number with which the tag's slot lies in part `index` of `parts` equal parts of
/// all slots.
fn push_number_within(name: &mut Vec<u8>, tag_start: usize, index: u32, parts: u32) {
    name.push(b'#');
    let before = checksum(0, name.get(tag_start..).unwrap_or_default());
    let within = |number: &u32| {
        let slot = slot_of_checksum(checksum(before, number.to_string().as_bytes()));
        u32::from(slot.0) * parts / SLOTS_U32 == index
    };
    // One in `parts` fits, so this finds one; if not, a name that no number has.
    let number = (0..NUMBERS_MAX).find(within);
    let text = number.map_or_else(|| format!("s{index}"), |number| number.to_string());
    name.extend_from_slice(text.as_bytes());
}

/// Numbers tried for a sub-key.
const NUMBERS_MAX: u32 = 100_000;
#[expect(clippy::cast_possible_truncation, reason = "16,384")]
const SLOTS_U32: u32 = SLOTS as u32;

/// Letters, digits and a few marks stand for themselves; every other byte is `%` and two hexadecimal digits.
fn push_escaped(name: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' | b'@' | b'+' | b'*' => {
                name.push(*byte);
            }
            _ => name.extend([b'%', hex(byte >> 4), hex(byte & 15)]),
        }
    }
}

const fn hex(nibble: u8) -> u8 {
    match nibble {
        0..=9 => b'0' + nibble,
        _ => b'a' + nibble - 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::key::Shape;
    use crate::core::time::Span;
    use crate::store::redis::client::slots::slot_of_key;
    use crate::store::redis::sample::rule;
    use proptest::prelude::*;

    fn named(name: &str, per: &[String], values: &[String]) -> Name {
        let mut rule = rule(name, Algorithm::Gcra);
        rule.per = per.to_vec();
        let key = Key::new(Shape(3), values.iter().map(String::as_str));
        bucket(&rule, &key, rule.windows())
    }

    fn text(name: &Name) -> &str {
        std::str::from_utf8(&name.key).expect("names are printable")
    }

    #[test]
    fn a_name_reads_as_the_manual_says() {
        let own = named("search-free", &["user".into()], &["u_42".into()]);
        assert_eq!(text(&own), "tg:{user=u_42}:search-free");
        let two = named("a b", &["tenant".into(), "user".into()], &["{x}".into(), "é:=,".into()]);
        assert_eq!(text(&two), "tg:{tenant=%7bx%7d,user=%c3%a9%3a%3d%2c}:a%20b");
        assert_eq!(text(&named("all", &[], &[])), "tg:{rule:all}:all");
    }

    #[test]
    fn another_window_has_a_key_of_its_own_in_the_same_slot() {
        let rule = rule("r", Algorithm::Gcra);
        let key = Key::new(Shape(3), ["u"]);
        let (own, other) =
            (bucket(&rule, &key, rule.windows()), bucket(&rule, &key, Span::from_secs(86_400).into()));
        assert_ne!(own.key, other.key);
        assert_eq!(own.slot, other.slot);
    }

    #[test]
    fn the_shape_changes_with_the_window_and_the_algorithm_and_not_with_the_limit() {
        let mut rule = rule("r", Algorithm::Gcra);
        let own = shape(&rule, Algorithm::Gcra, rule.windows());
        rule.limit += 1;
        assert_eq!(own, shape(&rule, Algorithm::Gcra, rule.windows()));
        assert_ne!(own, shape(&rule, Algorithm::Gcra, Span(rule.window.0 + 1).into()));
        assert_ne!(own, shape(&rule, Algorithm::TokenBucket, rule.windows()));
    }

    proptest! {
        #[test]
        fn different_identities_and_rules_never_share_a_name(
            a in (".{1,4}", proptest::collection::vec((".{1,2}", ".{0,3}"), 0..3)),
            b in (".{1,4}", proptest::collection::vec((".{1,2}", ".{0,3}"), 0..3)),
            odd in proptest::sample::select(vec!["", ":", "}", "{", "=", ",", "%", "rule:"]),
        ) {
            let of = |(name, pairs): &(String, Vec<(String, String)>), odd: &str| {
                let per: Vec<String> = pairs.iter().map(|(name, _)| name.clone()).collect();
                let values: Vec<String> = pairs.iter().map(|(_, value)| format!("{odd}{value}")).collect();
                named(name, &per, &values)
            };
            prop_assert_eq!(a == b, of(&a, odd).key == of(&b, odd).key);
            if !a.1.is_empty() {
                prop_assert_ne!(of(&a, odd).key, of(&(a.0.clone(), Vec::new()), odd).key);
            }
            let name = of(&a, odd);
            prop_assert_eq!(name.slot, slot_of_key(&name.key));
            prop_assert_eq!(name.slot, slot_of_key(&beside(&name.key, 7)));
            prop_assert_eq!(name.slot, slot_of_key(&view(&name.key)));
            prop_assert_eq!(name.slot, slot_of_key(&penalty(&name.key)));
            for key in notes(&name.key) {
                prop_assert_eq!(name.slot, slot_of_key(&key));
            }
        }
    }
}
