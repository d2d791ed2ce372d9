//! Finds the few rules that may match a request without looking at the others.
//!
//! Each rule waits at its anchor: the condition whose value the fewest rules share. Rules that share even
//! that (a hundred users times a hundred paths) wait at again such an index, by their other conditions. The
//! rules found are a superset, to be verified.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use ipnet::IpNet;
use smallvec::SmallVec;

use super::network::Networks;
use super::pattern::{Glob, Test, Wanted};
use super::seen::SeenAttributes;
use super::trie::Trie;

/// Rules at one place up to this many are verified one by one; more are indexed again.
const LIST_LEN_MAX: usize = 6;
/// Places that rules may take for each condition's anchor that they have, and in all. Rules that list many
/// values in several conditions come there; beyond it places keep plain lists: slower, never wrong.
const PLACES_PER_ANCHOR: usize = 16;
const PLACES_MAX: usize = 4_000_000;

/// Numbers of rules that may match.
pub(super) type Candidates = SmallVec<[u32; 16]>;

/// The rules that are found at one place.
#[derive(Debug)]
pub(super) enum Found {
    /// This rule.
    One(u32),
    /// These rules.
    List(Box<[u32]>),
    /// Rules by their further conditions.
    Index(Box<Index>),
}

/// Rules by one condition each.
#[derive(Debug, Default)]
pub(super) struct Index {
    always: Box<[u32]>,
    attributes: Vec<(u32, ValueIndex)>,
}

/// Rules by the value of one attribute.
#[derive(Debug, Default)]
struct ValueIndex {
    present: Option<Found>,
    /// By the text's hash. Texts are not compared: what is found is verified.
    exact: HashTable<(u64, Found)>,
    prefixes: Trie<Found>,
    suffixes: Trie<Found>,
    networks: Networks<Found>,
}

/// A rule while the index is built.
pub(super) struct Anchored<'r> {
    /// Number of the rule, by which it is found.
    pub(super) rule: u32,
    /// Tests that must hold, besides what the way here has tested.
    pub(super) tests: Vec<&'r Test>,
    /// Numbers of the attributes that must be present, whatever their values.
    pub(super) present: Vec<u32>,
}

/// The places at which a rule can be found. The order is that of preference among equally shared ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Anchor<'r> {
    Exact(u32, &'r str),
    Network(u32, IpNet),
    Prefix(u32, &'r str),
    Suffix(u32, &'r str),
    Present(u32),
}

type Shared<'r> = HashMap<Anchor<'r>, usize, FixedState>;

impl Found {
    /// Builds the index of these rules, which are in order.
    pub(super) fn build(rules: Vec<Anchored<'_>>) -> Self {
        let mut anchors = 0_usize;
        let tests = rules.iter().flat_map(|rule| &rule.tests);
        tests.for_each(|test| for_each_anchor(test, |_| anchors += 1));
        let mut places = anchors.saturating_mul(PLACES_PER_ANCHOR).min(PLACES_MAX);
        Self::of(rules, &mut places)
    }

    fn of(rules: Vec<Anchored<'_>>, places: &mut usize) -> Self {
        let exhausted = rules.iter().all(|rule| rule.tests.is_empty() && rule.present.is_empty());
        if rules.len() <= LIST_LEN_MAX || exhausted || *places == 0 {
            return match &*rules {
                [one] => Self::One(one.rule),
                many => Self::List(many.iter().map(|rule| rule.rule).collect()),
            };
        }
        Self::Index(Box::new(Index::of(rules, places)))
    }

    /// Adds the rules that may match; a rule may be added twice.
    pub(super) fn find(&self, seen: &mut SeenAttributes<'_>, found: &mut Candidates) {
        match self {
            Self::One(rule) => found.push(*rule),
            Self::List(rules) => found.extend_from_slice(rules),
            Self::Index(index) => index.find(seen, found),
        }
    }
}

impl Index {
    fn of(rules: Vec<Anchored<'_>>, places: &mut usize) -> Self {
        let shared = count(&rules);
        let mut index = Self::default();
        let mut always = Vec::new();
        // In order of the anchors, so that the same rules always make the same index.
        let mut groups: std::collections::BTreeMap<Anchor<'_>, Vec<Anchored<'_>>> =
            std::collections::BTreeMap::new();
        for rule in rules {
            let (rule, anchors) = choose(rule, &shared);
            if anchors.is_empty() {
                always.push(rule.rule);
            }
            *places = places.saturating_sub(anchors.len());
            for anchor in anchors {
                let Anchored { rule, tests, present } = &rule;
                let rest = Anchored { rule: *rule, tests: tests.clone(), present: present.clone() };
                groups.entry(anchor).or_default().push(rest);
            }
        }
        index.always = always.into();
        for (anchor, rules) in groups {
            let place = Found::of(rules, places);
            index.put(anchor, place);
        }
        index
    }

    fn put(&mut self, anchor: Anchor<'_>, place: Found) {
        match anchor {
            Anchor::Exact(attribute, text) => {
                let hash = hash(text);
                self.values(attribute).exact.insert_unique(hash, (hash, place), |(own, _)| *own);
            }
            Anchor::Network(attribute, network) => self.values(attribute).networks.insert(network, place),
            Anchor::Prefix(attribute, text) => self.values(attribute).prefixes.insert(text.as_bytes(), place),
            Anchor::Suffix(attribute, text) => {
                let backwards: Vec<u8> = text.bytes().rev().collect();
                self.values(attribute).suffixes.insert(&backwards, place);
            }
            Anchor::Present(attribute) => self.values(attribute).present = Some(place),
        }
    }

    fn values(&mut self, attribute: u32) -> &mut ValueIndex {
        let place = self.attributes.iter().position(|(own, _)| *own == attribute).unwrap_or_else(|| {
            self.attributes.push((attribute, ValueIndex::default()));
            self.attributes.len() - 1
        });
        &mut self.attributes[place].1
    }

    fn find(&self, seen: &mut SeenAttributes<'_>, found: &mut Candidates) {
        found.extend_from_slice(&self.always);
        for (attribute, values) in &self.attributes {
            if let Some(value) = seen.value(*attribute) {
                values.find(*attribute, value, seen, found);
            }
            if seen.repeats() {
                let further: Vec<&str> = seen.more(*attribute).collect();
                further.into_iter().for_each(|value| values.find_further(value, seen, found));
            }
        }
    }
}

impl ValueIndex {
    fn find<'r>(
        &self,
        attribute: u32,
        value: &'r str,
        seen: &mut SeenAttributes<'r>,
        found: &mut Candidates,
    ) {
        if let Some(place) = &self.present {
            place.find(seen, found);
        }
        self.find_text(value, seen, found);
        if !self.networks.is_empty()
            && let Some(address) = seen.address(attribute)
        {
            self.networks.walk(address, |place| place.find(seen, found));
        }
    }

    /// Adds the rules that may match by a value behind the attribute's first.
    fn find_further<'r>(&self, value: &'r str, seen: &mut SeenAttributes<'r>, found: &mut Candidates) {
        self.find_text(value, seen, found);
        if !self.networks.is_empty()
            && let Ok(address) = value.parse::<IpAddr>()
        {
            self.networks.walk(address.to_canonical(), |place| place.find(seen, found));
        }
    }

    fn find_text<'r>(&self, value: &'r str, seen: &mut SeenAttributes<'r>, found: &mut Candidates) {
        if !self.exact.is_empty() {
            let hash = hash(value);
            for (_, place) in self.exact.iter_hash(hash).filter(|(own, _)| *own == hash) {
                place.find(seen, found);
            }
        }
        let bytes = seen.written(value).as_bytes();
        if !self.prefixes.is_empty() {
            self.prefixes.walk(bytes.len(), |n| bytes[n], |place| place.find(seen, found));
        }
        if !self.suffixes.is_empty() {
            self.suffixes.walk(bytes.len(), |n| bytes[bytes.len() - 1 - n], |place| place.find(seen, found));
        }
    }
}

fn hash(text: &str) -> u64 {
    FixedState::default().hash_one(text)
}

/// Returns how many rules could wait at each anchor.
fn count<'r>(rules: &[Anchored<'r>]) -> Shared<'r> {
    let mut shared = Shared::default();
    let mut count = |anchor| *shared.entry(anchor).or_insert(0) += 1;
    for rule in rules {
        for test in &rule.tests {
            for_each_anchor(test, |anchors| anchors.iter().for_each(|anchor| count(*anchor)));
        }
        rule.present.iter().for_each(|attribute| count(Anchor::Present(*attribute)));
    }
    shared
}

/// Takes the rule's most selective condition out of it: what remains of the rule, and that condition's
/// anchors. There are none if the rule has no condition left.
fn choose<'r>(mut rule: Anchored<'r>, shared: &Shared<'r>) -> (Anchored<'r>, Vec<Anchor<'r>>) {
    let score = |anchors: &[Anchor<'r>]| {
        let most = anchors.iter().filter_map(|anchor| shared.get(anchor)).max().copied().unwrap_or(0);
        (most, anchors.iter().map(rank).max().unwrap_or(0), anchors.len())
    };
    let by_test = rule.tests.iter().enumerate().map(|(place, test)| {
        let anchors = anchors_of(test, shared);
        (score(&anchors), true, place, anchors)
    });
    let by_presence = rule.present.iter().enumerate().map(|(place, attribute)| {
        let anchors = vec![Anchor::Present(*attribute)];
        (score(&anchors), false, place, anchors)
    });
    let best = by_test.chain(by_presence).min_by_key(|(score, ..)| *score);
    let Some((_, is_test, place, anchors)) = best else { return (rule, Vec::new()) };
    if is_test {
        rule.tests.remove(place);
    } else {
        rule.present.remove(place);
    }
    (rule, anchors)
}

const fn rank(anchor: &Anchor<'_>) -> u8 {
    match anchor {
        Anchor::Exact(..) => 0,
        Anchor::Network(..) => 1,
        Anchor::Prefix(..) => 2,
        Anchor::Suffix(..) => 3,
        Anchor::Present(_) => 4,
    }
}

/// One anchor for each text of a condition: a rule must be found whichever of them matches.
fn anchors_of<'r>(test: &'r Test, shared: &Shared<'r>) -> Vec<Anchor<'r>> {
    let mut anchors = Vec::new();
    for_each_anchor(test, |choices| {
        let least = |anchor: &&Anchor<'r>| (shared.get(anchor).copied().unwrap_or(0), rank(anchor));
        anchors.extend(choices.iter().min_by_key(least));
    });
    anchors.sort_unstable();
    anchors.dedup();
    anchors
}

/// Hands out the possible anchors of each text of a condition.
fn for_each_anchor<'r>(test: &'r Test, mut each: impl FnMut(&[Anchor<'r>])) {
    let attribute = test.attribute;
    match &test.wanted {
        Wanted::Text(text) => each(&[Anchor::Exact(attribute, text)]),
        Wanted::Glob(glob) => each(&glob_anchors(attribute, glob)),
        Wanted::Network(network) => each(&[Anchor::Network(attribute, *network)]),
        Wanted::AnyOf(any) => {
            any.texts.iter().for_each(|text| each(&[Anchor::Exact(attribute, text)]));
            any.globs.iter().for_each(|glob| each(&glob_anchors(attribute, glob)));
            any.networks.iter().for_each(|network| each(&[Anchor::Network(attribute, *network)]));
        }
    }
}

fn glob_anchors(attribute: u32, glob: &Glob) -> SmallVec<[Anchor<'_>; 2]> {
    let mut anchors = SmallVec::new();
    if !glob.prefix().is_empty() {
        anchors.push(Anchor::Prefix(attribute, glob.prefix()));
    }
    if !glob.suffix().is_empty() {
        anchors.push(Anchor::Suffix(attribute, glob.suffix()));
    }
    if anchors.is_empty() {
        anchors.push(Anchor::Present(attribute));
    }
    anchors
}
