//! Conditions made ready: comparing one value with one condition, in time linear in the value.

use std::net::IpAddr;

use ipnet::IpNet;

use super::seen::Seen;
use crate::core::rule::{Condition, Pattern};

/// A text with `*` for any run of characters, cut at its stars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    /// Before the first star.
    pub(super) prefix: Box<str>,
    /// Between stars; none is empty.
    middle: Box<[Box<str>]>,
    /// After the last star.
    pub(super) suffix: Box<str>,
    /// There is no star at all: `prefix` is the whole text.
    whole: bool,
}

impl Glob {
    pub(super) fn new(text: &str) -> Self {
        let Some((prefix, rest)) = text.split_once('*') else {
            return Self { prefix: text.into(), middle: Box::default(), suffix: "".into(), whole: true };
        };
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|part| !part.is_empty()).map(Into::into).collect();
        Self { prefix: prefix.into(), middle, suffix: suffix.into(), whole: false }
    }

    /// Takes the earliest place for each part in turn: where any placing works this one does, so nothing is tried twice.
    pub(super) fn matches(&self, text: &str) -> bool {
        if self.whole {
            return *self.prefix == *text;
        }
        let Some(rest) = text.strip_prefix(&*self.prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.suffix) else { return false };
        for part in &self.middle {
            let Some((_, after)) = rest.split_once(&**part) else { return false };
            rest = after;
        }
        true
    }
}

/// A condition made ready.
#[derive(Debug)]
pub(super) struct Test {
    /// Number of the attribute in its domain.
    pub(super) attribute: u32,
    /// Sorted.
    pub(super) exact: Box<[Box<str>]>,
    pub(super) globs: Box<[Glob]>,
    pub(super) networks: Box<[IpNet]>,
}

impl Test {
    pub(super) fn new(attribute: u32, condition: &Condition) -> Self {
        let mut exact: Vec<Box<str>> = Vec::new();
        let (mut globs, mut networks) = (Vec::new(), Vec::new());
        for pattern in &condition.any_of {
            match pattern {
                Pattern::Exact(text) => exact.push(text.as_str().into()),
                Pattern::Glob(text) => globs.push(Glob::new(text)),
                Pattern::Network(network) => networks.push(canonical_network(*network)),
            }
        }
        exact.sort_unstable();
        exact.dedup();
        Self { attribute, exact: exact.into(), globs: globs.into(), networks: networks.into() }
    }

    /// Whether the request's value meets the condition; `None` if it has none.
    pub(super) fn holds(&self, seen: &mut Seen<'_>) -> Option<bool> {
        let value = seen.value(self.attribute)?;
        Some(
            self.is_listed(value)
                || self.globs.iter().any(|glob| glob.matches(value))
                || (!self.networks.is_empty() && self.is_inside(seen.address(self.attribute))),
        )
    }

    fn is_listed(&self, value: &str) -> bool {
        match &*self.exact {
            [] => false,
            [one] => **one == *value,
            many => many.binary_search_by(|own| (**own).cmp(value)).is_ok(),
        }
    }

    fn is_inside(&self, address: Option<IpAddr>) -> bool {
        address.is_some_and(|address| self.networks.iter().any(|network| network.contains(&address)))
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
