//! Holds that within a layer no two types have one name: whoever reads it need not ask which one is meant.

use std::collections::BTreeMap;

use super::{Source, sources};

/// Type names that a layer may have twice, and why.
const TWICE: &[(&str, &str, &str)] = &[];

/// The types that a file defines outside of tests.
fn types(source: &Source) -> Vec<String> {
    if source.for_tests {
        return Vec::new();
    }
    source.code.lines().filter_map(defined).collect()
}

/// The type that a line defines. A `type` that is indented belongs to a trait.
fn defined(line: &str) -> Option<String> {
    let indented = line.starts_with(' ');
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = match public.strip_prefix('(') {
            Some(within) => within.split_once(')')?.1,
            None => public,
        };
    }
    let rest = rest.trim_start();
    let kinds: &[&str] =
        if indented { &["struct ", "enum ", "trait "] } else { &["struct ", "enum ", "trait ", "type "] };
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = name.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(name.len());
    let name = &name[..end];
    name.starts_with(|first: char| first.is_ascii_uppercase()).then(|| name.to_owned())
}

/// What is defined more than once in a layer.
fn faults(sources: &[Source]) -> Vec<String> {
    let mut by_name: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for source in sources {
        for name in types(source) {
            by_name.entry((source.layer().to_owned(), name)).or_default().push(source.path.clone());
        }
    }
    let excused = |layer: &str, name: &str| TWICE.iter().any(|(of, twice, _)| *of == layer && *twice == name);
    by_name
        .into_iter()
        .filter(|((layer, name), files)| files.len() > 1 && !excused(layer, name))
        .map(|((layer, name), files)| {
            format!("{layer} has {name} {} times: {}", files.len(), files.join(", "))
        })
        .collect()
}

#[test]
fn a_layer_has_no_two_types_of_one_name() {
    super::assert_no(faults(&sources()).into_iter());
}

#[test]
fn two_types_of_one_name_are_found_in_a_layer_and_not_in_two() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let one =
        file("core/a.rs", "pub(super) struct Held<'a> {\n    at: u8,\n}\ntrait Reads {\n    type Held;\n}");
    let two = file("core/b.rs", "pub enum Held {}\nimpl Reads for X {\n    type Held = u8;\n}");
    let other = file("api/c.rs", "type Held = u8;");
    assert_eq!(faults(&[one, two, other]), ["core has Held 2 times: core/a.rs, core/b.rs"]);
    let tested = file("core/d.rs", "struct Own;\n#[cfg(test)]\nmod tests {\n    struct Own;\n}");
    assert_eq!(faults(&[tested]), [""; 0]);
}
