//! JSON web tokens and the key sets that judge them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tidegate::api::fuzzed::token(data);
});
