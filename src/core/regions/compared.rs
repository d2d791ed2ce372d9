//! The comparison of rules between regions: a short digest of each worldwide rule, told with the membership.
//!
//! A digest names a rule by a hash and its settings by another, so it takes seventeen bytes of text. Two
//! different rules that share both hashes would look the same; nothing depends on it but what operators are
//! told.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Most digests that are told. Of more rules the last stands for all of them together: of those that are not
/// named it says only whether any has changed.
pub const DIGESTS_MAX: usize = 256;
/// The name under which that is told.
const ALL: u32 = u32::MAX;
/// Hexadecimal digits of one rule: its name and its settings.
const DIGITS: usize = 16;

/// A hash that is the same in every daemon.
#[derive(Debug, Clone)]
pub struct Digest(SipHasher13);

impl Default for Digest {
    fn default() -> Self {
        Self(SipHasher13::new_with_keys(0x7275_6c65, 0x7361_6d65))
    }
}

impl Digest {
    /// Adds a text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.0.write_u64(u64::try_from(text.len()).unwrap_or(u64::MAX));
        self.0.write(text.as_bytes());
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.0.write_u64(number);
        self
    }

    /// Returns the digest that names a rule.
    #[must_use]
    pub fn of_rule(domain: &str, name: &str) -> Self {
        Self::default().text(domain).text(name)
    }

    fn short(&self) -> u32 {
        u32::try_from(self.0.finish() >> 32).unwrap_or(0)
    }
}

/// The digests of a daemon's worldwide rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Digests {
    /// Name and settings, sorted by name.
    rules: Vec<(u32, u32)>,
    /// True if there are more than are told.
    more: bool,
}

impl Digests {
    /// Collects digests of rules, by name and settings.
    #[must_use]
    pub fn of(rules: impl IntoIterator<Item = (Digest, Digest)>) -> Self {
        let mut rules: Vec<_> =
            rules.into_iter().map(|(name, settings)| (name.short(), settings.short())).collect();
        rules.sort_unstable();
        let more = rules.len() > DIGESTS_MAX;
        if more {
            let number = |name, settings| (u64::from(name) << 32) | u64::from(settings);
            let all = rules
                .iter()
                .fold(Digest::default(), |all, &(name, settings)| all.number(number(name, settings)));
            rules.truncate(DIGESTS_MAX - 1);
            rules.push((ALL, all.short()));
        }
        Self { rules, more }
    }

    /// Returns whether a rule of this name came, or has other settings, since `before`; true also where that
    /// may be so of one that is not named.
    #[must_use]
    pub fn names_anew(&self, before: &Self, name: &Digest) -> bool {
        let settings =
            |of: &Self, name: u32| of.rules.iter().find(|(found, _)| *found == name).map(|(_, found)| *found);
        let name = name.short();
        match settings(self, name) {
            Some(now) => settings(before, name) != Some(now),
            None => self.more && settings(self, ALL) != settings(before, ALL),
        }
    }

    /// Returns the form in which it travels.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.rules.len() * DIGITS + 1);
        for (name, settings) in &self.rules {
            text.push_str(&format!("{name:08x}{settings:08x}"));
        }
        if self.more {
            text.push('+');
        }
        text
    }

    /// Reads what [`Self::text`] wrote; `None` for anything else.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (digits, more) = text.strip_suffix('+').map_or((text, false), |digits| (digits, true));
        if !digits.len().is_multiple_of(DIGITS) || digits.len() > DIGESTS_MAX * DIGITS {
            return None;
        }
        let number = |text: &[u8]| u32::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok();
        let rule = |text: &[u8]| {
            let (name, settings) = text.split_at_checked(DIGITS / 2)?;
            Some((number(name)?, number(settings)?))
        };
        let rules = digits.as_bytes().chunks(DIGITS).map(rule).collect::<Option<Vec<_>>>()?;
        Some(Self { rules, more })
    }

    /// Returns how many rules of these `ours` does not name; none where either is not told whole.
    #[must_use]
    pub fn unknown_to(&self, ours: &Self) -> usize {
        if self.more || ours.more {
            return 0;
        }
        let known = |name| ours.rules.iter().any(|(ours, _)| *ours == name);
        self.rules.iter().filter(|(name, _)| !known(*name)).count()
    }

    /// Returns how `theirs` holds the rule of this name and these settings.
    #[must_use]
    pub fn compare(theirs: &Self, name: &Digest, settings: &Digest) -> Compared {
        let (name, settings) = (name.short(), settings.short());
        match theirs.rules.iter().find(|(found, _)| *found == name) {
            Some((_, found)) if *found == settings => Compared::Same,
            Some(_) => Compared::Different,
            None if theirs.more => Compared::Same,
            None => Compared::Missing,
        }
    }
}

/// The relation of another daemon's rule to ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// Alike, or nothing is known of it.
    Same,
    /// With other settings.
    Different,
    /// Not at all.
    Missing,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, limit: u64) -> (Digest, Digest) {
        (Digest::default().text(name), Digest::default().number(limit))
    }

    #[test]
    fn what_differs_is_told_apart_from_what_is_missing() {
        let theirs = Digests::of([rule("a", 1), rule("b", 2)]);
        let theirs = Digests::read(&theirs.text()).unwrap();
        let compared = |name, limit| {
            let (name, settings) = rule(name, limit);
            Digests::compare(&theirs, &name, &settings)
        };
        assert_eq!(compared("a", 1), Compared::Same);
        assert_eq!(compared("b", 3), Compared::Different);
        assert_eq!(compared("c", 3), Compared::Missing);
        assert_eq!(theirs.unknown_to(&Digests::of([rule("b", 3), rule("c", 3)])), 1);
    }

    #[test]
    fn very_many_rules_are_cut_and_nothing_is_said_of_the_rest() {
        let many = Digests::of((0..300).map(|nth| rule(&nth.to_string(), nth)));
        let text = many.text();
        assert!(text.len() <= DIGESTS_MAX * DIGITS + 1);
        assert_eq!(Digests::read(&text).as_ref(), Some(&many));
        let missing = (0..300).filter(|nth| {
            let (name, settings) = rule(&nth.to_string(), *nth);
            Digests::compare(&many, &name, &settings) != Compared::Same
        });
        assert_eq!(missing.count(), 0);
    }

    #[test]
    fn a_rule_that_came_or_changed_is_named_anew_also_among_very_many() {
        for before in [3, 256, 257, 400] {
            let many = |changed: u64| {
                let rules =
                    (0..before).map(|nth| rule(&nth.to_string(), if nth == changed { 9_999 } else { nth }));
                Digests::read(&Digests::of(rules).text()).unwrap()
            };
            let old = many(u64::MAX);
            for nth in 0..before {
                let name = rule(&nth.to_string(), 0).0;
                assert!(!old.names_anew(&old, &name), "{nth} of {before}");
                assert!(many(nth).names_anew(&old, &name), "{nth} of {before}");
            }
            let more = Digests::of((0..=before).map(|nth| rule(&nth.to_string(), nth)));
            assert!(more.names_anew(&old, &rule(&before.to_string(), 0).0), "beside {before}");
        }
    }

    #[test]
    fn garbage_is_no_digest() {
        for text in ["0", "zz00000000000000", "é000000000000000", &"0".repeat(DIGESTS_MAX * DIGITS + 16)] {
            assert_eq!(Digests::read(text), None, "{text}");
        }
        assert_eq!(Digests::read(""), Some(Digests::default()));
    }
}
