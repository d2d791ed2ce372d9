//! Calls of gateways over gRPC: Envoy's and Kuadrant's.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tidegate::api::fuzzed::rate_limit_call(data);
});
