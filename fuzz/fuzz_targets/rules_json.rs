//! Rules in bodies of the API and in the database.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::database::document;

fuzz_target!(|data: &[u8]| {
    let Ok(json) = serde_json::from_slice(data) else { return };
    let regions = ["eu".to_owned(), "us".to_owned()];
    let _ = document::from_json(&json, &regions);
    let _ = document::rule_from_json(&json, &regions);
});
