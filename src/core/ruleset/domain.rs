//! The rules of one domain: which of them take part in a decision, and with which bucket.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::index::{Anchored, Candidates, Found};
use super::pattern::Test;
use super::seen::{AddressText, Names, SeenAttributes, Surplus, bucket_address};
use super::splice::{Splice, precedence};
use super::{Compiled, Match, Reason, limit_of, shape};
use crate::algorithm::{Algorithm, Limit};
use crate::identity::Who;
use crate::key::{Key, Shape};
use crate::request::{API_KEY, LimitOverride, PATH, Request};
use crate::rule::{Action, Condition, Rule};

/// Rules that came after the index was made, from so many on, are worth an index of all again. A greater set
/// may have more: its index costs more, and the second one is made anew at each such change.
const LATER_MIN: usize = 64;
const LATER_PER_RULES: usize = 16;
const LATER_MAX: usize = 2_048;
/// In place of the place of a rule that is gone.
const GONE: u32 = u32::MAX;

/// Groups by name, each with a number. Copying it copies no name.
type Groups = HashMap<Arc<str>, u32, FixedState>;

/// The rules of one domain.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) names: Names,
    groups: Groups,
    /// Rules of the domain in order of precedence, each with its conditions.
    pub(super) selectors: Vec<Arc<Selector>>,
    /// Finds the rules that were there when it was made, by their numbers: their places at that time.
    candidates: Arc<Found>,
    later: Option<Later>,
}

/// The changes since the index was made.
#[derive(Debug)]
struct Later {
    /// Place of each rule in the order of precedence, by its number.
    places: Vec<u32>,
    /// The first number that the index does not find.
    from: usize,
    /// Finds the rules that the index does not know.
    candidates: Found,
}

/// The tests that decide whether one rule takes part.
#[derive(Debug)]
pub(super) struct Selector {
    /// Number by which the domain's indexes find it.
    number: u32,
    tests: SmallVec<[Test; 2]>,
    per: SmallVec<[u32; 4]>,
    group: Option<u32>,
    // Action of the rule, here so that deciding reads few cache lines.
    action: Action,
    exact: bool,
    /// Counts holders, and so only those who ask to hold.
    holds: bool,
    shape: Shape,
    limit: Limit,
    /// Place in `per` of the attribute that is an address.
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
    /// The domain of these rules, which are in order of precedence.
    pub(super) fn new<'a>(rules: impl IntoIterator<Item = &'a Arc<Compiled>>) -> Self {
        let mut names = Names::default();
        let mut groups = Groups::default();
        let mut selectors = Vec::new();
        for (number, compiled) in (0..).zip(rules) {
            selectors.push(Arc::new(Selector::new(number, compiled, &mut groups, &mut names)));
        }
        let candidates = Arc::new(index(&selectors));
        Self { names, groups, selectors, candidates, later: None }
    }

    /// The same domain with a few rules exchanged; both lists are in order of precedence.
    pub(super) fn changed(&self, gone: &[&Arc<Compiled>], put: &[&Arc<Compiled>]) -> Self {
        let splice = Splice::new(&self.selectors, |own| &own.compiled, &rules_of(gone), &rules_of(put));
        let many = gone.len() + put.len() > self.later_max();
        let changed = if many { None } else { self.followed(&splice, gone, put) };
        changed.unwrap_or_else(|| {
            let old: Vec<&Arc<Compiled>> = self.selectors.iter().map(|own| &own.compiled).collect();
            Self::new(splice.list(&old, put.iter().copied()))
        })
    }

    fn later_max(&self) -> usize {
        (self.selectors.len() / LATER_PER_RULES).clamp(LATER_MIN, LATER_MAX)
    }

    /// The domain with its index kept; `None` where it is time for another.
    fn followed(&self, splice: &Splice, gone: &[&Arc<Compiled>], put: &[&Arc<Compiled>]) -> Option<Self> {
        let (mut names, mut groups) = (self.names.clone(), self.groups.clone());
        let found = self.later.as_ref().map_or(self.selectors.len(), |later| later.from);
        let mut next = self.later.as_ref().map_or(self.selectors.len(), |later| later.places.len());
        let before: HashMap<&str, &Arc<Selector>, FixedState> = gone
            .iter()
            .filter_map(|own| Some((own.rule.name.as_str(), self.selector_of(&own.rule)?)))
            .collect();
        let mut added = Vec::with_capacity(put.len());
        for compiled in put {
            let before = before.get(compiled.rule.name.as_str());
            let number = match before.filter(|own| is_found_alike(&own.compiled.rule, &compiled.rule)) {
                Some(own) => own.number,
                None => {
                    next += 1;
                    u32::try_from(next - 1).ok().filter(|number| *number != GONE)?
                }
            };
            added.push(Arc::new(Selector::new(number, compiled, &mut groups, &mut names)));
        }
        // After the new ones took theirs, so that a name which stays keeps the number that it is indexed by.
        before.values().for_each(|own| names.let_go(&own.named));
        let selectors = splice.list(&self.selectors, added.iter().cloned());
        let most = self.later_max();
        if next - found > most || names.spent() > most || groups.len() > selectors.len() + most {
            return None;
        }
        let place =
            |old: usize| splice.place(old).and_then(|place| u32::try_from(place).ok()).unwrap_or(GONE);
        let mut places: Vec<u32> = match &self.later {
            Some(later) => {
                let old = |place: &u32| usize::try_from(*place).ok().filter(|_| *place != GONE);
                later.places.iter().map(|own| old(own).map_or(GONE, place)).collect()
            }
            None => (0..self.selectors.len()).map(place).collect(),
        };
        places.resize(next, GONE);
        for (selector, place) in added.iter().zip(splice.places()) {
            let own = usize::try_from(selector.number).ok().and_then(|number| places.get_mut(number))?;
            *own = u32::try_from(place).ok()?;
        }
        let later = places.get(found..).unwrap_or_default().iter().filter(|place| **place != GONE);
        let later = later.filter_map(|place| selectors.get(usize::try_from(*place).ok()?));
        let candidates = index(later);
        let later = Some(Later { places, from: found, candidates });
        Some(Self { names, groups, selectors, candidates: Arc::clone(&self.candidates), later })
    }

    pub(super) fn selector_of(&self, rule: &Rule) -> Option<&Arc<Selector>> {
        let own = |own: &Arc<Selector>| precedence(&own.compiled.rule).cmp(&precedence(rule));
        self.selectors.get(self.selectors.binary_search_by(own).ok()?)
    }
}

fn rules_of<'a>(list: &[&'a Arc<Compiled>]) -> Vec<&'a Rule> {
    list.iter().map(|compiled| &compiled.rule).collect()
}

/// True if the index finds both by the same.
fn is_found_alike(one: &Rule, other: &Rule) -> bool {
    one.conditions == other.conditions && one.per == other.per && one.enabled == other.enabled
}

/// An index of those of these rules that are enabled.
fn index<'a>(selectors: impl IntoIterator<Item = &'a Arc<Selector>>) -> Found {
    let enabled = selectors.into_iter().filter(|own| own.compiled.rule.enabled);
    Found::build(enabled.map(|own| own.anchored()).collect())
}

impl Selector {
    fn new(number: u32, compiled: &Arc<Compiled>, groups: &mut Groups, names: &mut Names) -> Self {
        let rule = &compiled.rule;
        let group = rule.group.as_deref().map(|group| {
            groups.get(group).copied().unwrap_or_else(|| {
                let next = u32::try_from(groups.len()).unwrap_or(u32::MAX);
                groups.insert(group.into(), next);
                next
            })
        });
        let test = |condition: &Condition| Test::new(names.add(&condition.attribute), condition);
        let tests: SmallVec<[Test; 2]> = rule.conditions.iter().map(test).collect();
        let per: SmallVec<[u32; 4]> = rule.per.iter().map(|name| names.add(name)).collect();
        let mut named: Vec<u32> =
            tests.iter().map(|test| test.attribute).chain(per.iter().copied()).collect();
        named.sort_unstable();
        named.dedup();
        names.hold(&named);
        let address = rule.per.iter().position(|name| name == "ip");
        Self {
            number,
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

    fn anchored(&self) -> Anchored<'_> {
        let tested = |attribute: &&u32| self.tests.iter().any(|test| test.attribute == **attribute);
        let present = self.per.iter().filter(|attribute| !tested(attribute)).copied().collect();
        Anchored { rule: self.number, tests: self.tests.iter().collect(), present }
    }
}

impl Deciding {
    /// True if the rule is left once an `allow` exempts the request.
    pub(super) fn keeps(&self, place: u32, selector: &Selector) -> bool {
        self.exempting.is_none_or(|allow| allow == place || selector.action == Action::Block)
    }
}

impl Domain {
    pub(super) fn selector(&self, place: u32) -> Option<&Selector> {
        self.selectors.get(usize::try_from(place).ok()?).map(|selector| &**selector)
    }

    /// Places of the rules that may match; one may be there twice.
    #[inline]
    fn find(&self, seen: &mut SeenAttributes<'_>) -> Candidates {
        let mut found = Candidates::new();
        self.candidates.find(seen, &mut found);
        if let Some(later) = &self.later {
            later.candidates.find(seen, &mut found);
            found.retain(|number| {
                let place = usize::try_from(*number).ok().and_then(|number| later.places.get(number));
                *number = place.copied().unwrap_or(GONE);
                *number != GONE
            });
        }
        found
    }

    #[inline]
    pub(super) fn deciding(&self, seen: &mut SeenAttributes<'_>) -> Deciding {
        let mut candidates = self.find(seen);
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

    /// Hands out the rules that decide what is seen.
    #[inline]
    pub(super) fn match_into<'s>(
        &'s self,
        seen: &mut SeenAttributes<'_>,
        who: &Who<'_>,
        limit: Option<LimitOverride>,
        mut each: impl FnMut(Match<'s>),
    ) {
        let deciding = self.deciding(seen);
        for place in &deciding.places {
            if let Some(selector) = self.selector(*place)
                && deciding.keeps(*place, selector)
            {
                each(selector.matched(seen, who, limit));
            }
        }
    }

    /// Hands out the rules that decide a request where another credential stands in the place of its own, if
    /// one does; else those of the further readings of its path alone.
    pub(super) fn match_readings<'s>(
        &'s self,
        request: &Request<'_>,
        who: &Who<'_>,
        credential: Option<&str>,
        mut each: impl FnMut(Match<'s>),
    ) {
        let mut seen = SeenAttributes::default();
        seen.read(&self.names, request, who);
        if let Some(credential) = credential {
            seen.replace(&self.names, API_KEY, credential);
            self.match_into(&mut seen, who, request.limit, &mut each);
        }
        for path in &request.forms.paths {
            seen.replace(&self.names, PATH, path);
            self.match_into(&mut seen, who, request.limit, &mut each);
        }
    }

    /// Returns why each rule takes part in the decision on what is seen, or not.
    pub(super) fn reasons(&self, seen: &mut SeenAttributes<'_>) -> Vec<Reason> {
        let deciding = self.deciding(seen);
        let explain = |(place, selector): (u32, &Arc<Selector>)| {
            let reason = selector.refusal(seen, &self.names);
            reason.unwrap_or_else(|| self.standing(place, selector, &deciding))
        };
        (0..).zip(&self.selectors).map(explain).collect()
    }

    /// Returns what became of a rule that matches.
    fn standing(&self, place: u32, selector: &Selector, deciding: &Deciding) -> Reason {
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
    fn admits(&self, seen: &mut SeenAttributes<'_>) -> bool {
        (!self.holds || seen.holds())
            && self.tests.iter().all(|test| test.holds(seen) == Some(true))
            && self.identifies(seen)
            && !(self.exact && (seen.surplus(&self.named).is_some() || self.unlisted(seen).is_some()))
    }

    /// An attribute whose several values an exact rule does not list. A request may have several names where
    /// the rule does not ask for them.
    fn unlisted(&self, seen: &SeenAttributes<'_>) -> Option<u32> {
        let listed =
            |number: u32| self.tests.iter().any(|test| test.attribute == number && test.lists_all(seen));
        let asked = |number: u32| !seen.is_request_id(number) || self.named.binary_search(&number).is_ok();
        seen.all_repeated().find(|number| asked(*number) && !listed(*number))
    }

    /// True if the request has every attribute that names the bucket.
    #[inline]
    pub(super) fn identifies(&self, seen: &mut SeenAttributes<'_>) -> bool {
        self.per.iter().all(|attribute| seen.value(*attribute).is_some())
    }

    /// The first reason why the rule does not match.
    pub(super) fn refusal(&self, seen: &mut SeenAttributes<'_>, names: &Names) -> Option<Reason> {
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
        let unlisted = || self.unlisted(seen).map(Surplus::Known);
        let surplus = if rule.exact { seen.surplus(&self.named).or_else(unlisted) } else { None };
        let surplus = surplus.map(|surplus| match surplus {
            Surplus::Known(number) => Reason::Surplus(names.name(number).to_owned()),
            Surplus::Foreign(name) => Reason::Surplus(name.to_owned()),
        });
        surplus.or_else(|| (self.holds && !seen.holds()).then_some(Reason::HoldsOnly))
    }

    #[inline]
    pub(super) fn matched(
        &self,
        seen: &SeenAttributes<'_>,
        who: &Who<'_>,
        limit: Option<LimitOverride>,
    ) -> Match<'_> {
        if !self.action.counts() {
            let (limit, whole) = (self.limit, self.limit);
            return Match { rule: &self.compiled, key: None, limit, share: None, whole, own_limit: None };
        }
        let own = own_limit(&self.compiled, who);
        let (shape, limit) = match limit {
            Some(own) => {
                let rule = &self.compiled.rule;
                let (shape, window) = shape::overridden(self.shape, rule.windows(), own.window);
                (shape, limit_of(rule, own.permits, own.permits, window))
            }
            None => (self.shape, own.unwrap_or(self.limit)),
        };
        let own_limit = own.map(|own| own.permits);
        Match {
            rule: &self.compiled,
            key: Some(self.key(shape, seen)),
            limit,
            share: None,
            whole: limit,
            own_limit,
        }
    }

    #[inline]
    fn key(&self, shape: Shape, seen: &SeenAttributes<'_>) -> Key {
        if self.address.is_none() && !seen.repeats() {
            return Key::new(shape, self.per.iter().map(|number| seen.value(*number).unwrap_or_default()));
        }
        self.key_of_many(shape, seen)
    }

    /// The same where an address is grouped or some attribute has several values.
    fn key_of_many(&self, shape: Shape, seen: &SeenAttributes<'_>) -> Key {
        let mut buffer = AddressText::new();
        let address =
            self.address.and_then(|place| self.per.get(place)).and_then(|number| seen.value(*number));
        let address = address.map(|text| bucket_address(text, seen.ipv6_prefix(), &mut buffer));
        let values = self.per.iter().enumerate().map(|(place, number)| match address {
            Some(address) if self.address == Some(place) => address,
            _ => seen.value(*number).unwrap_or_default(),
        });
        let further = self.further(seen);
        Key::new(shape, values.chain(further.iter().map(|value| &**value)))
    }

    /// Returns what tells apart the buckets of requests whose attributes have several values: behind the
    /// first ones, each further one with its place in `per`.
    fn further<'r>(&self, seen: &SeenAttributes<'r>) -> Vec<Cow<'r, str>> {
        let mut further = Vec::new();
        if !seen.repeats() {
            return further;
        }
        for (place, number) in self.per.iter().enumerate() {
            for value in seen.more(*number) {
                let grouped = (self.address == Some(place))
                    .then(|| bucket_address(value, seen.ipv6_prefix(), &mut AddressText::new()).to_owned());
                further.push(Cow::Owned(place.to_string()));
                further.push(grouped.map_or(Cow::Borrowed(value), Cow::Owned));
            }
        }
        further
    }
}

/// The limit of this caller's own, in the rule's window.
fn own_limit(compiled: &Compiled, who: &Who<'_>) -> Option<Limit> {
    let rule = &compiled.rule;
    let own = who.limit(&rule.name)?;
    Some(limit_of(rule, own.permits, own.burst, rule.windows()))
}

#[cfg(test)]
impl Domain {
    /// How many rules must be verified for a request.
    pub(super) fn candidates_len(&self, request: &Request<'_>) -> usize {
        let mut seen = SeenAttributes::default();
        seen.read(&self.names, request, &Who::default());
        self.find(&mut seen).len()
    }

    pub(super) fn shares_index(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.candidates, &other.candidates)
    }

    /// Numbers, names and groups, in use or not.
    pub(super) fn kept(&self) -> usize {
        let numbers = self.later.as_ref().map_or(self.selectors.len(), |later| later.places.len());
        numbers + self.names.len() + self.groups.len()
    }
}
