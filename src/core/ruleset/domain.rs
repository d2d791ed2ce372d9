//! The rules of one domain: which of them take part in a decision, and with which bucket.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::index::{Anchored, Candidates, Place};
use super::pattern::Test;
use super::seen::{AddressText, Names, Seen, Surplus, canonical_address};
use super::{Compiled, Match, Reason, limit_of, shape};
use crate::core::algorithm::{Algorithm, Limit};
use crate::core::identity::Who;
use crate::core::key::{Key, Shape};
use crate::core::request::LimitOverride;
use crate::core::rule::{Action, Condition};

/// The rules of one domain.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) names: Names,
    /// In order of precedence; candidates are places in here.
    pub(super) selectors: Vec<Selector>,
    candidates: Place,
}

/// What decides whether one rule takes part.
#[derive(Debug)]
pub(super) struct Selector {
    tests: SmallVec<[Test; 2]>,
    per: SmallVec<[u32; 4]>,
    group: Option<u32>,
    // Of the rule, here so that deciding reads few cache lines.
    action: Action,
    exact: bool,
    /// Counts holders, and so only those who ask to hold.
    holds: bool,
    shape: Shape,
    limit: Limit,
    /// Which place in `per` is an address.
    address: Option<usize>,
    pub(super) compiled: Arc<Compiled>,
    /// Every attribute that `match` and `per` name.
    named: Box<[u32]>,
}

/// Rules that decide, as places in the domain, while they are being found.
#[derive(Debug, Default)]
pub(super) struct Deciding {
    pub(super) places: SmallVec<[u32; 4]>,
    groups: SmallVec<[u32; 4]>,
    /// The first `allow` without a group.
    exempting: Option<u32>,
}

impl Domain {
    pub(super) fn new(rules: &[&Arc<Compiled>]) -> Self {
        let mut names = Names::default();
        let mut groups = HashMap::<&str, u32, FixedState>::default();
        let mut selectors = Vec::with_capacity(rules.len());
        for compiled in rules {
            let group = compiled.rule.group.as_deref().map(|group| {
                let next = u32::try_from(groups.len()).unwrap_or(u32::MAX);
                *groups.entry(group).or_insert(next)
            });
            selectors.push(Selector::new(compiled, group, &mut names));
        }
        let anchored = (0..).zip(&selectors).filter(|(_, selector)| selector.compiled.rule.enabled);
        let anchored = anchored.map(|(place, selector)| selector.anchored(place)).collect();
        let candidates = Place::build(anchored);
        Self { names, selectors, candidates }
    }
}

impl Selector {
    fn new(compiled: &Arc<Compiled>, group: Option<u32>, names: &mut Names) -> Self {
        let rule = &compiled.rule;
        let test = |condition: &Condition| Test::new(names.add(&condition.attribute), condition);
        let tests: SmallVec<[Test; 2]> = rule.conditions.iter().map(test).collect();
        let per: SmallVec<[u32; 4]> = rule.per.iter().map(|name| names.add(name)).collect();
        let mut named: Vec<u32> =
            tests.iter().map(|test| test.attribute).chain(per.iter().copied()).collect();
        named.sort_unstable();
        named.dedup();
        let address = rule.per.iter().position(|name| name == "ip");
        Self {
            tests,
            per,
            group,
            action: rule.action,
            exact: rule.exact,
            holds: rule.action.counts() && rule.algorithm == Algorithm::Concurrency,
            shape: compiled.shape,
            limit: compiled.limit,
            address,
            compiled: Arc::clone(compiled),
            named: named.into(),
        }
    }

    fn anchored(&self, place: u32) -> Anchored<'_> {
        let tested = |attribute: &&u32| self.tests.iter().any(|test| test.attribute == **attribute);
        let present = self.per.iter().filter(|attribute| !tested(attribute)).copied().collect();
        Anchored { rule: place, tests: self.tests.iter().collect(), present }
    }
}

impl Deciding {
    /// Whether the rule is left once an `allow` exempts the request.
    pub(super) fn keeps(&self, place: u32, selector: &Selector) -> bool {
        self.exempting.is_none_or(|allow| allow == place || selector.action == Action::Block)
    }
}

impl Domain {
    pub(super) fn selector(&self, place: u32) -> Option<&Selector> {
        self.selectors.get(usize::try_from(place).ok()?)
    }

    #[inline]
    pub(super) fn deciding(&self, seen: &mut Seen<'_>) -> Deciding {
        let mut candidates = Candidates::new();
        self.candidates.find(seen, &mut candidates);
        if candidates.len() > 1 {
            candidates.sort_unstable();
            candidates.dedup();
        }
        let mut deciding = Deciding::default();
        for place in candidates.iter().copied() {
            let Some(selector) = self.selector(place) else { continue };
            if selector.group.is_some_and(|group| deciding.groups.contains(&group)) {
                continue;
            }
            if !selector.admits(seen) {
                continue;
            }
            match selector.group {
                Some(group) => deciding.groups.push(group),
                None if selector.action == Action::Allow => {
                    deciding.exempting = deciding.exempting.or(Some(place));
                }
                None => {}
            }
            deciding.places.push(place);
        }
        deciding
    }

    /// What became of a rule that matches.
    pub(super) fn standing(&self, place: u32, selector: &Selector, deciding: &Deciding) -> Reason {
        let name =
            |place: u32| self.selector(place).map_or_else(String::new, |by| by.compiled.rule.name.clone());
        if !deciding.places.contains(&place) {
            let same_group =
                |other: &&u32| self.selector(**other).is_some_and(|by| by.group == selector.group);
            return Reason::Outranked(
                deciding.places.iter().find(same_group).map_or_else(String::new, |by| name(*by)),
            );
        }
        match deciding.exempting {
            Some(allow) if !deciding.keeps(place, selector) => Reason::Exempted(name(allow)),
            _ => Reason::Decides,
        }
    }
}

impl Selector {
    #[inline]
    fn admits(&self, seen: &mut Seen<'_>) -> bool {
        (!self.holds || seen.holds())
            && self.tests.iter().all(|test| test.holds(seen) == Some(true))
            && self.identifies(seen)
            && !(self.exact && seen.surplus(&self.named).is_some())
    }

    /// Whether the request has every attribute that names the bucket.
    #[inline]
    pub(super) fn identifies(&self, seen: &mut Seen<'_>) -> bool {
        self.per.iter().all(|attribute| seen.value(*attribute).is_some())
    }

    /// The first reason why the rule does not match.
    pub(super) fn refusal(&self, seen: &mut Seen<'_>, names: &Names) -> Option<Reason> {
        let rule = &self.compiled.rule;
        if !rule.enabled {
            return Some(Reason::Disabled);
        }
        let lacks = |attribute: &u32| Reason::Lacks(names.name(*attribute).to_owned());
        for test in &self.tests {
            match test.holds(seen) {
                None => return Some(lacks(&test.attribute)),
                Some(false) => {
                    let value = seen.value(test.attribute).unwrap_or_default().to_owned();
                    return Some(Reason::Differs { attribute: names.name(test.attribute).to_owned(), value });
                }
                Some(true) => {}
            }
        }
        if let Some(missing) = self.per.iter().find(|attribute| seen.value(**attribute).is_none()) {
            return Some(lacks(missing));
        }
        let surplus = if rule.exact { seen.surplus(&self.named) } else { None };
        let surplus = surplus.map(|surplus| match surplus {
            Surplus::Known(number) => Reason::Surplus(names.name(number).to_owned()),
            Surplus::Foreign(name) => Reason::Surplus(name.to_owned()),
        });
        surplus.or_else(|| (self.holds && !seen.holds()).then_some(Reason::HoldsOnly))
    }

    #[inline]
    pub(super) fn matched(&self, seen: &Seen<'_>, who: &Who<'_>, limit: Option<LimitOverride>) -> Match<'_> {
        if !self.action.counts() {
            return Match { rule: &self.compiled, key: None, limit: self.limit, own_limit: None };
        }
        let own = own_limit(&self.compiled, who);
        let (shape, limit) = match limit {
            Some(own) => {
                let rule = &self.compiled.rule;
                let (shape, window) = shape::overridden(self.shape, rule.window, own.window);
                (shape, limit_of(rule, own.permits, own.permits, window))
            }
            None => (self.shape, own.unwrap_or(self.limit)),
        };
        let own_limit = own.map(|own| own.permits);
        Match { rule: &self.compiled, key: Some(self.key(shape, seen)), limit, own_limit }
    }

    #[inline]
    fn key(&self, shape: Shape, seen: &Seen<'_>) -> Key {
        let mut buffer = AddressText::new();
        let address =
            self.address.and_then(|place| self.per.get(place)).and_then(|number| seen.value(*number));
        let address = address.map(|text| canonical_address(text, &mut buffer));
        let values = self.per.iter().enumerate().map(|(place, number)| match address {
            Some(address) if self.address == Some(place) => address,
            _ => seen.value(*number).unwrap_or_default(),
        });
        Key::new(shape, values)
    }
}

/// The limit of this caller's own, in the rule's window.
fn own_limit(compiled: &Compiled, who: &Who<'_>) -> Option<Limit> {
    let rule = &compiled.rule;
    let own = who.limit(&rule.name)?;
    Some(limit_of(rule, own.permits, own.burst, rule.window))
}

#[cfg(test)]
impl Domain {
    /// How many rules must be verified for a request.
    pub(super) fn candidates_len(&self, request: &crate::core::request::Request<'_>) -> usize {
        let mut candidates = Candidates::new();
        let mut seen = Seen::default();
        seen.read(&self.names, request, &Who::default());
        self.candidates.find(&mut seen, &mut candidates);
        candidates.len()
    }
}
