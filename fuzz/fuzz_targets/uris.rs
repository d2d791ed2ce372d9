//! Paths and hosts of requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::core::uri;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    // A form that is brought into itself stays.
    let path = uri::path(&text);
    assert_eq!(uri::path(&path), path);
    let host = uri::host(&text);
    assert_eq!(uri::host(&host), host);
    let _ = uri::escaped(data);
});
