//! Commands of the Redis protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tidegate::api::fuzzed::redis_commands(data);
});
