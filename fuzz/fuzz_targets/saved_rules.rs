//! Sets of rules that a peer gives, and files on disk.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::database::{given, saved};

fuzz_target!(|data: &[u8]| {
    let regions = ["eu".to_owned(), "us".to_owned()];
    if let Ok(stored) = saved::from_bytes(data) {
        let _ = stored.docs.check(&regions, &[]);
    }
    let _ = given::from_bytes(data);
});
