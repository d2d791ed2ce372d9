//! Who was refused lately, so that a refusal is logged once and not at every attempt.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use super::counters::Refusal;
use crate::core::time::{Span, Timestamp};

/// Addresses and reasons remembered. More are counted in the metrics alone.
const STRANGERS_MAX: usize = 256;
/// A refusal is logged again after this long, with how often it happened meanwhile.
const LOGGED_AGAIN: Span = Span::from_secs(600);

/// Refusals by address and reason.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<HashMap<(IpAddr, Refusal), Logged>>);

#[derive(Debug)]
struct Logged {
    at: Timestamp,
    since: u64,
}

impl Strangers {
    /// Somebody was refused. `Some`: it is to be logged, and how often it happened since it was logged last.
    pub(super) fn refuse(&self, now: Timestamp, address: IpAddr, why: Refusal) -> Option<u64> {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !logged.contains_key(&(address, why)) {
            if logged.len() >= STRANGERS_MAX {
                logged.retain(|_, known| now.since(known.at) < LOGGED_AGAIN);
            }
            if logged.len() >= STRANGERS_MAX {
                return None;
            }
            logged.insert((address, why), Logged { at: now, since: 0 });
            return Some(1);
        }
        let known = logged.get_mut(&(address, why))?;
        known.since += 1;
        if now.since(known.at) < LOGGED_AGAIN {
            return None;
        }
        known.at = now;
        Some(std::mem::take(&mut known.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_and_reason_is_logged_once_in_a_while() {
        let (strangers, now) = (Strangers::default(), Timestamp(1_800_000_000_000_000));
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let refuse = |last, why| strangers.refuse(now, address(last), why);
        assert_eq!(refuse(1, Refusal::Certificate), Some(1));
        assert_eq!(refuse(1, Refusal::Certificate), None);
        assert_eq!(refuse(1, Refusal::Protocol), Some(1));
        assert_eq!(refuse(2, Refusal::Certificate), Some(1));
        assert_eq!(strangers.refuse(now + LOGGED_AGAIN, address(1), Refusal::Certificate), Some(2));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (strangers, now) = (Strangers::default(), Timestamp(1_800_000_000_000_000));
        for nth in 0..2 * STRANGERS_MAX {
            let address =
                IpAddr::from([10, 0, u8::try_from(nth / 256).unwrap(), u8::try_from(nth % 256).unwrap()]);
            assert_eq!(strangers.refuse(now, address, Refusal::Certificate).is_some(), nth < STRANGERS_MAX);
        }
    }
}
