//! `Authorization` by schemes that sign each request: Digest, AWS4 and their kin.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tidegate::api::fuzzed::signing_scheme(data);
});
