//! Tokens of reservations.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::core::reservation::Reservation;

fuzz_target!(|data: &[u8]| {
    if let Some(reservation) = Reservation::from_bytes(data) {
        assert_eq!(Reservation::from_bytes(&reservation.to_bytes()), Some(reservation));
    }
});
