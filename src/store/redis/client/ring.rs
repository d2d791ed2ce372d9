//! The server, of several independent ones, that serves a slot: a consistent-hash ring with virtual nodes, so
//! that a server that joins or leaves moves only its share. Daemons of different builds must agree, so what
//! is hashed, and how, never changes: `ring.golden` beside this file holds it.

use crate::core::ring::Ring;
use crate::store::redis::client::slots::SLOTS;

/// For each slot the place in `addresses` of the server that serves it. The order of the addresses does not
/// matter.
pub(in crate::store::redis) fn place(addresses: &[String]) -> Vec<u16> {
    let ring = Ring::new(addresses.iter().map(String::as_str));
    let owner = |slot: usize| {
        let bytes =
            [b"redis slot ".as_slice(), &u16::try_from(slot).unwrap_or(u16::MAX).to_be_bytes()].concat();
        let owner = ring.owner_of(&bytes)?;
        u16::try_from(addresses.iter().position(|address| address == owner)?).ok()
    };
    (0..SLOTS).map(|slot| owner(slot).unwrap_or(u16::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("10.0.0.{n}:6379")).collect()
    }

    #[test]
    fn every_server_serves_about_its_share() {
        let places = place(&addresses(5));
        for server in 0..5 {
            let share = places.iter().filter(|place| **place == server).count();
            assert!((2_300..4_300).contains(&share), "server {server} serves {share} slots");
        }
    }

    #[test]
    fn a_server_that_leaves_moves_only_its_own_slots() {
        let (five, four) = (place(&addresses(5)), place(&addresses(4)));
        for (before, after) in five.iter().zip(&four) {
            assert!(before == after || *before == 4);
        }
    }

    #[test]
    fn the_order_of_addresses_does_not_matter() {
        let mut turned = addresses(5);
        turned.reverse();
        for (one, other) in place(&addresses(5)).iter().zip(place(&turned)) {
            assert_eq!(*one, 4 - other);
        }
    }

    #[test]
    fn slots_are_placed_as_every_build_places_them() {
        let text: String = place(&addresses(5)).iter().map(|place| format!("{place}\n")).collect();
        let golden = include_str!("ring.golden");
        if std::env::var_os("TIDEGATE_WRITE_GOLDEN").is_some() {
            std::fs::write("src/store/redis/client/ring.golden", &text).expect("the file is writable");
            return;
        }
        assert!(text == golden, "placement changed: daemons of two builds would count apart");
    }
}
