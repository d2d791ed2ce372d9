//! Files of the Envoy rate limit service.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::database::envoy;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = envoy::import(&[("config.yaml".to_owned(), text.to_owned())]);
});
