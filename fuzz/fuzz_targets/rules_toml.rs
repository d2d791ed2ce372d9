//! Rules files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::core::ruleset::{RuleSet, Shapes};
use tidegate::database::document;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let regions = ["eu".to_owned(), "us".to_owned()];
    if let Ok(loaded) = document::from_toml("rules.toml", text, &regions) {
        let _ = RuleSet::compile_with_people(loaded.rules.clone(), loaded.people(), &mut Shapes::default());
    }
});
