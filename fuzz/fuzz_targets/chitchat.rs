//! Messages of membership, as they are looked at before `chitchat` reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tidegate::peer::fuzzed::chitchat(data);
});
