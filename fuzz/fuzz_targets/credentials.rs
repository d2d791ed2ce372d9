//! Headers that show credentials.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tidegate::api::fuzzed::credentials(data);
});
