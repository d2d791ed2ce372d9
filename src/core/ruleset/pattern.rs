//! Conditions made ready: comparing one value with one condition, in time linear in the value.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;

use super::seen::SeenAttributes;
use crate::rule::{Condition, Pattern};
use crate::uri;

/// A text with `*` for any run of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    text: Box<str>,
    /// Place of the first star; the length if there is none.
    first_star: u32,
    /// Behind the last star; the length where there is none.
    behind_stars: u32,
}

impl Glob {
    pub(super) fn new(text: &str) -> Self {
        let place = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
        let first_star = place(text.find('*').unwrap_or(text.len()));
        let behind_stars = place(text.rfind('*').map_or(text.len(), |star| star + 1));
        Self { text: text.into(), first_star, behind_stars }
    }

    /// Returns what stands before the first star, between the stars with them, and behind the last.
    fn parts(&self) -> (&str, &str, &str) {
        let place = |place: u32| usize::try_from(place).unwrap_or(usize::MAX);
        let (prefix, rest) = self.text.split_at_checked(place(self.first_star)).unwrap_or((&self.text, ""));
        let behind = place(self.behind_stars).saturating_sub(prefix.len());
        let (middle, suffix) = rest.split_at_checked(behind).unwrap_or((rest, ""));
        (prefix, middle, suffix)
    }

    pub(super) fn prefix(&self) -> &str {
        self.parts().0
    }

    pub(super) fn suffix(&self) -> &str {
        self.parts().2
    }

    /// Takes the earliest place for each part in turn: where any placing works this one does, so nothing is
    /// tried twice.
    #[inline]
    pub(super) fn matches(&self, text: &str) -> bool {
        let (prefix, middle, suffix) = self.parts();
        let Some(rest) = text.strip_prefix(prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(suffix) else { return false };
        match middle {
            "" => rest.is_empty(),
            "*" => true,
            _ => middle.split('*').filter(|part| !part.is_empty()).all(|part| {
                let after = rest.split_once(part).map(|(_, after)| after);
                rest = after.unwrap_or(rest);
                after.is_some()
            }),
        }
    }
}

impl Pattern {
    /// True if a text is what the pattern asks for; a network asks for no text. For questions beside the
    /// common path.
    #[must_use]
    pub fn matches_text(&self, text: &str) -> bool {
        match self {
            Self::Exact(own) => own == text,
            Self::Glob(own) => Glob::new(own).matches(text),
            Self::Network(_) => false,
        }
    }
}

/// A condition made ready.
#[derive(Debug)]
pub(super) struct Test {
    /// Number of the attribute in its domain.
    pub(super) attribute: u32,
    pub(super) wanted: Wanted,
}

/// The patterns that the value must match. One pattern, the usual case, lies in place.
#[derive(Debug)]
pub(super) enum Wanted {
    Text(Box<str>),
    Glob(Glob),
    Network(IpNet),
    AnyOf(Box<AnyOf>),
}

/// Several patterns, by kind.
#[derive(Debug, Default)]
pub(super) struct AnyOf {
    /// Exact texts, sorted, so that one is found by halving.
    pub(super) texts: Vec<Box<str>>,
    pub(super) globs: Vec<Glob>,
    pub(super) networks: Vec<IpNet>,
}

impl Test {
    pub(super) fn new(attribute: u32, condition: &Condition) -> Self {
        let any_of = spelled_as_requests_are(condition);
        let wanted = match &*any_of {
            [Pattern::Exact(text)] => Wanted::Text(text.as_str().into()),
            [Pattern::Glob(text)] => Wanted::Glob(Glob::new(text)),
            [Pattern::Network(network)] => Wanted::Network(canonical_network(*network)),
            patterns => Wanted::AnyOf(Box::new(AnyOf::new(patterns))),
        };
        Self { attribute, wanted }
    }

    /// True if the request's value meets the condition; `None` if it has none.
    #[inline]
    pub(super) fn holds(&self, seen: &mut SeenAttributes<'_>) -> Option<bool> {
        let value = seen.value(self.attribute)?;
        let holds = match &self.wanted {
            Wanted::Text(text) => **text == *value,
            Wanted::Glob(glob) => glob.matches(seen.written(value)),
            Wanted::Network(network) => {
                seen.address(self.attribute).is_some_and(|own| network.contains(&own))
            }
            Wanted::AnyOf(any) => any.matches(value, seen.written(value), || seen.address(self.attribute)),
        };
        Some(holds || (seen.repeats() && self.holds_further(seen)))
    }

    /// True if a value behind the first meets the condition.
    fn holds_further(&self, seen: &SeenAttributes<'_>) -> bool {
        seen.more(self.attribute).any(|value| self.wanted.admits(value, seen.written(value)))
    }

    /// True if the condition is a list in which every value of the request's is: all that an exact rule lets
    /// repeat.
    pub(super) fn lists_all(&self, seen: &SeenAttributes<'_>) -> bool {
        let admits = |value| self.wanted.admits(value, seen.written(value));
        matches!(self.wanted, Wanted::AnyOf(_))
            && seen.value(self.attribute).into_iter().chain(seen.more(self.attribute)).all(admits)
    }
}

impl Wanted {
    /// True if one value, which stands for `written`, is what it must be.
    fn admits(&self, value: &str, written: &str) -> bool {
        let address = || value.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        match self {
            Self::Text(text) => **text == *value,
            Self::Glob(glob) => glob.matches(written),
            Self::Network(network) => address().is_some_and(|own| network.contains(&own)),
            Self::AnyOf(any) => any.matches(value, written, address),
        }
    }
}

/// The patterns of a condition and, for the path and the host, those that mean the same in the form that
/// requests have: a rule may say `/caf%C3%A9` or `Shop.Example`.
fn spelled_as_requests_are(condition: &Condition) -> Cow<'_, [Pattern]> {
    let normal: fn(&Pattern) -> Option<Pattern> = match condition.attribute.as_str() {
        "path" => |pattern| {
            respelled(pattern, |text| match uri::letters(text) {
                Cow::Owned(letters) => Some(letters),
                Cow::Borrowed(_) => None,
            })
        },
        "host" => |pattern| {
            respelled(pattern, |text| {
                text.bytes().any(|byte| byte.is_ascii_uppercase()).then(|| text.to_ascii_lowercase())
            })
        },
        _ => return Cow::Borrowed(&condition.any_of),
    };
    let others: Vec<Pattern> = condition.any_of.iter().filter_map(normal).collect();
    if others.is_empty() {
        return Cow::Borrowed(&condition.any_of);
    }
    Cow::Owned(condition.any_of.iter().cloned().chain(others).collect())
}

fn respelled(pattern: &Pattern, spell: impl Fn(&str) -> Option<String>) -> Option<Pattern> {
    match pattern {
        Pattern::Exact(text) => spell(text).filter(|other| other != text).map(Pattern::Exact),
        Pattern::Glob(text) => spell(text).filter(|other| other != text).map(Pattern::Glob),
        Pattern::Network(_) => None,
    }
}

impl AnyOf {
    fn new(patterns: &[Pattern]) -> Self {
        let mut any = Self::default();
        for pattern in patterns {
            match pattern {
                Pattern::Exact(text) => any.texts.push(text.as_str().into()),
                Pattern::Glob(text) => any.globs.push(Glob::new(text)),
                Pattern::Network(network) => any.networks.push(canonical_network(*network)),
            }
        }
        any.texts.sort_unstable();
        any
    }

    fn matches(&self, value: &str, written: &str, address: impl FnOnce() -> Option<IpAddr>) -> bool {
        self.texts.binary_search_by(|own| (**own).cmp(value)).is_ok()
            || self.globs.iter().any(|glob| glob.matches(written))
            || (!self.networks.is_empty()
                && address().is_some_and(|own| self.networks.iter().any(|network| network.contains(&own))))
    }
}

/// The same network, as IPv4 where it lies in the IPv4-mapped part of IPv6, as addresses are read.
fn canonical_network(network: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(six) = network else { return network.trunc() };
    let Some(bits) = six.prefix_len().checked_sub(MAPPED_BITS) else { return network.trunc() };
    six.network()
        .to_ipv4_mapped()
        .and_then(|four| IpNet::new(IpAddr::V4(four), bits).ok())
        .unwrap_or_else(|| network.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The textbook definition, exponential and obvious.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            Some((letter, rest)) => text.first() == Some(letter) && naive(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn a_glob_means_what_the_textbook_says(pattern in "[aé*]{0,8}", text in "[aéb*]{0,10}") {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(Glob::new(&pattern).matches(&text), naive(&letters(&pattern), &letters(&text)));
        }
    }

    #[test]
    fn prefix_and_suffix_do_not_overlap() {
        assert!(!Glob::new("ab*ba").matches("aba"));
        assert!(Glob::new("ab*ba").matches("abba"));
    }

    #[test]
    fn many_stars_do_not_take_exponential_time() {
        let pattern = "a*".repeat(500) + "b";
        assert!(!Glob::new(&pattern).matches(&"a".repeat(1_024)));
    }

    #[test]
    fn a_network_of_mapped_addresses_is_an_ipv4_network() {
        let network = canonical_network("::ffff:10.1.2.3/104".parse().unwrap());
        assert_eq!(network, "10.0.0.0/8".parse::<IpNet>().unwrap());
    }
}
