//! Holders of places of `concurrency` rules, and the lease by which they are given back.
//!
//! A lease says all that giving back needs (the holder, and the buckets), so no daemon remembers it: any
//! daemon that counts in the same store takes it, also one that was started later.

use std::sync::Arc;

use smallvec::SmallVec;

use super::key::{BucketValues, identity_values, push_value};
use super::rule_name::RuleName;
use super::unit_price::Price;

/// Bytes of a holder's name.
pub const HOLDER_BYTES: usize = 16;
/// Most `concurrency` rules that one request may hold places of.
pub const HELD_RULES_MAX: usize = 1_000;

/// Names one who holds places: random, or derived from the caller's own id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Holder(pub [u8; HOLDER_BYTES]);

impl Holder {
    /// Stands for places of which it is only known that somebody holds them.
    pub const UNKNOWN: Self = Self([0; HOLDER_BYTES]);
}

/// The steps of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldStep {
    /// Takes its places, all or none. Does so once, however often it asks.
    Acquire,
    /// Keeps its places for a whole hold from now on, if it still has them.
    Renew,
    /// Gives its places back, if it still has them.
    Release,
}

/// One step of one holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Step to take: places are acquired, renewed or given back.
    pub step: HoldStep,
    /// Holder that takes the step, named by itself or at random.
    pub holder: Holder,
    /// Places that it asks for with [`HoldStep::Acquire`]; zero only asks.
    pub places: u64,
}

/// Places that one request holds of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldPlaces {
    /// Rule whose places or permits are held, by domain and name.
    pub rule: Arc<RuleName>,
    /// The limit, where it was not the rule's own but the caller's.
    pub own_limit: Option<u32>,
    /// The price that the request had, where the rule has prices: what a reservation uses is worth it too.
    pub price: Option<Price>,
    /// The value of the attribute by which the rule estimates, where a reservation has one.
    pub kind: Option<String>,
    /// The values that name the bucket.
    pub values: BucketValues,
    /// The client that reserved, and how much, where decisions are remembered: once for each request, of the
    /// rule that decided it.
    pub reserved: Option<Box<ReservedFor>>,
}

/// A reservation as its decision is remembered, until it is known what was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedFor {
    /// Permits that the reserving request asked for.
    pub permits: u64,
    /// Id of the user; `None` where the request named none.
    pub user: Option<String>,
    /// The public name of the API key, or a fingerprint.
    pub key: Option<String>,
}

/// The places and permits that one request holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The holder's name. Nobody else can guess it.
    pub holder: Holder,
    /// The rules whose places are held; never empty, at most [`HELD_RULES_MAX`].
    pub held: SmallVec<[HeldPlaces; 1]>,
}

impl Lease {
    /// Returns the bytes that [`Self::from_bytes`] reads in every daemon of this version.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = SmallVec::from_slice(&self.holder.0);
        for held in &self.held {
            push_value(&mut bytes, &held.rule.domain);
            push_value(&mut bytes, &held.rule.name);
            push_value(&mut bytes, &held.own_limit.map_or_else(String::new, |limit| limit.to_string()));
            held.values.write(&mut bytes);
        }
        bytes.into_vec()
    }

    /// Reads a lease; `None` if these bytes are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (holder, rest) = bytes.split_first_chunk()?;
        let mut texts = identity_values(rest)?.into_iter();
        let mut held = SmallVec::new();
        while let Some(domain) = texts.next() {
            let rule = RuleName { domain: domain.to_owned(), name: texts.next()?.to_owned() };
            let own_limit = match texts.next()? {
                "" => None,
                limit => Some(limit.parse().ok()?),
            };
            let count: usize = texts.next()?.parse().ok()?;
            if count > texts.len() || held.len() == HELD_RULES_MAX {
                return None;
            }
            let values = BucketValues::new(texts.by_ref().take(count));
            let (price, kind, reserved) = (None, None, None);
            held.push(HeldPlaces { rule: Arc::new(rule), own_limit, price, kind, values, reserved });
        }
        (!held.is_empty()).then_some(Self { holder: Holder(*holder), held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smallvec::smallvec;

    fn held() -> impl Strategy<Value = HeldPlaces> {
        let values = proptest::collection::vec(".{0,200}", 0..4)
            .prop_map(|values: Vec<String>| BucketValues::new(values.iter().map(String::as_str)));
        (".{1,20}", ".{1,20}", proptest::option::of(any::<u32>()), values).prop_map(
            |(domain, name, own_limit, values)| HeldPlaces {
                rule: Arc::new(RuleName { domain, name }),
                own_limit,
                price: None,
                kind: None,
                values,
                reserved: None,
            },
        )
    }

    proptest! {
        #[test]
        fn a_lease_is_read_back_as_it_was(holder: [u8; 16], held in proptest::collection::vec(held(), 1..5)) {
            let lease = Lease { holder: Holder(holder), held: held.into() };
            prop_assert_eq!(Lease::from_bytes(&lease.to_bytes()), Some(lease));
        }

        #[test]
        fn a_lease_that_was_cut_short_is_none(held in held(), cut in 1..40_usize) {
            let bytes = Lease { holder: Holder([7; 16]), held: smallvec![held] }.to_bytes();
            prop_assert_eq!(Lease::from_bytes(&bytes[..bytes.len().saturating_sub(cut)]), None);
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Lease::from_bytes(&bytes);
        }
    }

    #[test]
    fn more_rules_than_one_request_may_hold_are_no_lease() {
        let one = HeldPlaces {
            rule: Arc::new(RuleName { domain: "d".into(), name: "r".into() }),
            own_limit: None,
            price: None,
            kind: None,
            values: BucketValues::default(),
            reserved: None,
        };
        let lease = |rules| Lease { holder: Holder::UNKNOWN, held: smallvec![one.clone(); rules] };
        assert!(Lease::from_bytes(&lease(HELD_RULES_MAX).to_bytes()).is_some());
        assert_eq!(Lease::from_bytes(&lease(HELD_RULES_MAX + 1).to_bytes()), None);
    }
}
