//! The `traceparent` of a request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::telemetry::traces::TraceParent;

fuzz_target!(|data: &[u8]| {
    let Some(parent) = TraceParent::read(data) else { return };
    // A parent that was read is written and read again as the same.
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let written = format!("00-{}-{}-{:02x}", hex(&parent.trace), hex(&parent.span), u8::from(parent.sampled));
    assert_eq!(TraceParent::read(written.as_bytes()), Some(parent));
});
