//! Permits that are reserved before a cost is known: what is asked, what it is answered, and the token by
//! which the reservation is committed.
//!
//! A reservation is charged like any cost, all or nothing, so every algorithm, store and region counts it as
//! used at once. Beside each bucket the store notes what is reserved ([`super::reservation_notes`]). A commit
//! finds the note and charges the difference to what was really used. The token says all that a commit needs,
//! so no daemon remembers it; what a store has not noted gives nothing back, so a forged token gains nothing.
//! Sums of the audit believe what it says of its decision, as they believe a caller's user and refund.

use std::sync::Arc;

use smallvec::SmallVec;

use super::counted_charge::CountedCharge;
use super::hold::{HELD_RULES_MAX, HeldPlaces, ReservedFor};
use super::key::{BucketValues, identity_values, push_value};
use super::reservation_terms::OnLapse;
use super::rule_name::RuleName;
use super::time::{Span, Timestamp};
use super::unit_price::Price;

/// Bytes of a reservation's id.
pub const RESERVATION_BYTES: usize = 16;
/// Longest time for which permits are reserved.
pub const TTL_MAX: Span = Span::from_secs(600);
/// Time for which permits are reserved unless the caller says.
pub const TTL_DEFAULT: Span = Span::from_secs(60);
/// Time after it has lapsed in which a reservation may still be committed.
pub const COMMIT_MAX: Span = Span::from_secs(600);

/// Names one reservation: random, or derived from the caller's own id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub [u8; RESERVATION_BYTES]);

impl ReservationId {
    /// Names no reservation: its commit only gives back what has lapsed.
    pub const NONE: Self = Self([0; RESERVATION_BYTES]);
}

/// Asks for permits that are to be committed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedCost {
    /// Id of the reservation. One that is held already takes nothing more.
    pub id: ReservationId,
    /// Permits, all or none; at least 1.
    pub permits: u64,
    /// Time for which they are reserved. The engine shortens it to each rule's window.
    pub ttl: Span,
    /// Their fate then. Each rule has its own, which the engine puts here.
    pub on_lapse: OnLapse,
}

impl ReservedCost {
    /// Returns how long a store keeps its note. Permits that stay charged can be settled for as long as a
    /// commit is taken, so until then the note tells what they were.
    #[must_use]
    pub fn noted_for(&self) -> Span {
        let ttl = self.ttl.min(TTL_MAX);
        match self.on_lapse {
            OnLapse::Release => ttl,
            OnLapse::Charge => Span(ttl.0 + COMMIT_MAX.0),
        }
    }
}

/// Says what a reservation has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Id of the reservation, which its token carries.
    pub id: ReservationId,
    /// Permits that were really used; zero cancels the reservation.
    pub actual: u64,
    /// The most permits beyond the limit that a bucket owes, as of a report. Each rule has its own.
    pub debt_max: u32,
}

/// A charge that may be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedCharge {
    /// Permits that the bucket charged for the reservation.
    pub permits: u64,
    /// The instant that the bucket counted them at.
    pub at: Timestamp,
    /// Whole permits in use then, this charge's included; of a level alone.
    pub used: u64,
    /// Number of reservations that were noted of the bucket before it.
    pub number: u64,
    /// Instant from which on the note lapses, by the store's clock.
    pub due: Timestamp,
    /// The fate of its permits then.
    pub on_lapse: OnLapse,
}

impl ReservedCharge {
    /// Returns where the bucket counts it.
    #[must_use]
    pub const fn counted(&self) -> CountedCharge {
        CountedCharge { at: self.at, used: self.used }
    }
}

/// The outcome of a reservation in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationFate {
    /// Its permits are reserved now.
    Held,
    /// They were already, whatever was asked for now: nothing more was taken. Also of places that a holder
    /// has and acquires again.
    HeldBefore {
        /// Permits or places of the first time.
        permits: u64,
    },
    /// The bucket holds as many reservations as it may.
    Crowded,
    /// The commit has released it, and charged the difference to what was used.
    Released,
    /// It was not reserved any more: the commit has charged in full what was used.
    Lapsed,
    /// It was committed before: nothing was charged.
    Repeated,
}

/// The reservation of one request, as the caller holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Id of the reservation, unique worldwide.
    pub id: ReservationId,
    /// The region whose store has noted it.
    pub region: String,
    /// Instant at which it lapses in the first of its buckets, in ms since the epoch.
    pub lapses_ms: u64,
    /// Rules that reserved; at most [`HELD_RULES_MAX`].
    pub rules: SmallVec<[HeldPlaces; 1]>,
}

impl Reservation {
    /// Returns the bytes that [`Self::from_bytes`] reads in every daemon of this version.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = SmallVec::from_slice(&self.id.0);
        push_value(&mut bytes, &self.region);
        push_value(&mut bytes, &self.lapses_ms.to_string());
        for held in &self.rules {
            push_value(&mut bytes, &held.rule.domain);
            push_value(&mut bytes, &held.rule.name);
            push_value(&mut bytes, &held.own_limit.map_or_else(String::new, |limit| limit.to_string()));
            push_value(&mut bytes, &held.price.map_or_else(String::new, |price| price.to_string()));
            // An empty value is one too.
            push_value(&mut bytes, &held.kind.as_ref().map_or_else(String::new, |kind| format!("={kind}")));
            held.values.write(&mut bytes);
            let reserved = held.reserved.as_deref();
            push_value(
                &mut bytes,
                &reserved.map_or_else(String::new, |reserved| reserved.permits.to_string()),
            );
            for name in reserved.into_iter().flat_map(|reserved| [&reserved.user, &reserved.key]) {
                push_value(&mut bytes, &name.as_ref().map_or_else(String::new, |name| format!("={name}")));
            }
        }
        bytes.into_vec()
    }

    /// Reads a reservation; `None` if these bytes are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let mut texts = identity_values(rest)?.into_iter();
        let region = texts.next()?.to_owned();
        let lapses_ms = texts.next()?.parse().ok()?;
        let mut rules = SmallVec::new();
        while let Some(domain) = texts.next() {
            let rule = RuleName { domain: domain.to_owned(), name: texts.next()?.to_owned() };
            let own_limit = match texts.next()? {
                "" => None,
                limit => Some(limit.parse().ok()?),
            };
            let price = match texts.next()? {
                "" => None,
                price => Some(Price::parse(price)?),
            };
            let kind = optional(texts.next()?)?;
            let count: usize = texts.next()?.parse().ok()?;
            if count > texts.len() || rules.len() == HELD_RULES_MAX {
                return None;
            }
            let values = BucketValues::new(texts.by_ref().take(count));
            let reserved = match texts.next()? {
                "" => None,
                permits => {
                    let permits = permits.parse().ok()?;
                    let (user, key) = (optional(texts.next()?)?, optional(texts.next()?)?);
                    Some(Box::new(ReservedFor { permits, user, key }))
                }
            };
            rules.push(HeldPlaces { rule: Arc::new(rule), own_limit, price, kind, values, reserved });
        }
        let id = ReservationId(*id);
        (id != ReservationId::NONE).then_some(Self { id, region, lapses_ms, rules })
    }
}

/// A text that may be missing, behind an equals sign where it is there: it may be empty, too. The outer
/// `None`: it is neither.
fn optional(text: &str) -> Option<Option<String>> {
    match text {
        "" => Some(None),
        text => Some(Some(text.strip_prefix('=')?.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules() -> impl Strategy<Value = Vec<HeldPlaces>> {
        let values = proptest::collection::vec(".{0,50}", 0..4)
            .prop_map(|values: Vec<String>| BucketValues::new(values.iter().map(String::as_str)));
        let price = proptest::option::of((1_u32..1_000_000, 1_u32..1_000_000))
            .prop_map(|price| price.and_then(|(whole, part)| Price::parse(&format!("{whole}.{part:06}"))));
        let (own_limit, kind) = (proptest::option::of(any::<u32>()), proptest::option::of(".{0,20}"));
        let name = || proptest::option::of(".{0,20}");
        let reserved = proptest::option::of((any::<u64>(), name(), name())).prop_map(|reserved| {
            reserved.map(|(permits, user, key)| Box::new(ReservedFor { permits, user, key }))
        });
        let one = (".{1,20}", ".{1,20}", own_limit, price, kind, values, reserved).prop_map(
            |(domain, name, own_limit, price, kind, values, reserved)| HeldPlaces {
                rule: Arc::new(RuleName { domain, name }),
                own_limit,
                price,
                kind,
                values,
                reserved,
            },
        );
        proptest::collection::vec(one, 0..5)
    }

    proptest! {
        #[test]
        fn a_reservation_is_read_back_as_it_was(id in 1..u128::MAX, region in ".{1,20}", lapses_ms: u64, rules in rules()) {
            let made = Reservation { id: ReservationId(id.to_be_bytes()), region, lapses_ms, rules: rules.into() };
            prop_assert_eq!(Reservation::from_bytes(&made.to_bytes()), Some(made));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Reservation::from_bytes(&bytes);
        }
    }
}
