//! Reports of what gateways have spent of their quotas (RLQS).
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    tidegate::api::fuzzed::quota_report(data);
});
