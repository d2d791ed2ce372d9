//! Conditions made ready: comparing one value with one condition, in time linear in the value.

use std::net::IpAddr;

use ipnet::IpNet;

use super::seen::Seen;
use crate::core::rule::{Condition, Pattern};

/// A text with `*` for any run of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    text: Box<str>,
    /// Where the first star stands; the length where there is none.
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

    /// What stands before the first star, between the stars with them, and behind the last.
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

    /// Takes the earliest place for each part in turn: where any placing works this one does, so nothing is tried twice.
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

/// A condition made ready.
#[derive(Debug)]
pub(super) struct Test {
    /// Number of the attribute in its domain.
    pub(super) attribute: u32,
    pub(super) wanted: Wanted,
}

/// What the value must be. One pattern, the usual case, lies in place.
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
    /// Sorted.
    pub(super) texts: Vec<Box<str>>,
    pub(super) globs: Vec<Glob>,
    pub(super) networks: Vec<IpNet>,
}

impl Test {
    pub(super) fn new(attribute: u32, condition: &Condition) -> Self {
        let wanted = match &*condition.any_of {
            [Pattern::Exact(text)] => Wanted::Text(text.as_str().into()),
            [Pattern::Glob(text)] => Wanted::Glob(Glob::new(text)),
            [Pattern::Network(network)] => Wanted::Network(canonical_network(*network)),
            patterns => Wanted::AnyOf(Box::new(AnyOf::new(patterns))),
        };
        Self { attribute, wanted }
    }

    /// Whether the request's value meets the condition; `None` if it has none.
    #[inline]
    pub(super) fn holds(&self, seen: &mut Seen<'_>) -> Option<bool> {
        let value = seen.value(self.attribute)?;
        Some(match &self.wanted {
            Wanted::Text(text) => **text == *value,
            Wanted::Glob(glob) => glob.matches(value),
            Wanted::Network(network) => {
                seen.address(self.attribute).is_some_and(|own| network.contains(&own))
            }
            Wanted::AnyOf(any) => any.matches(value, || seen.address(self.attribute)),
        })
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

    fn matches(&self, value: &str, address: impl FnOnce() -> Option<IpAddr>) -> bool {
        self.texts.binary_search_by(|own| (**own).cmp(value)).is_ok()
            || self.globs.iter().any(|glob| glob.matches(value))
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
