//! Documents in another format, or in the words of another program: what is meant is named.

use crate::database::document;

/// The problems of a document that is not right, a line each.
fn told(text: &str) -> String {
    let problems = document::from_toml("rules.toml", text, &[]).unwrap_err();
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn another_format_and_another_programs_word_are_named() {
    for (text, format) in [
        ("{ \"rules\": [] }", "JSON"),
        ("[\n  { \"name\": \"a\" }\n]", "JSON"),
        ("# Ours.\nrules:\n  - name: a\n", "YAML"),
        ("---\nrules: []\n", "YAML"),
    ] {
        assert!(
            told(text).ends_with(&format!("this reads like {format}, and TOML is wanted")),
            "{}",
            told(text)
        );
    }
    let unfinished = told("[[rules]]\nname = \"a\nlimit = 1\n");
    assert!(!unfinished.contains("reads like"), "{unfinished}");
    let table = told("[rules]\nname = \"a\"\n");
    assert!(table.contains("rules must be a list, not a table: write [[rules]] above each entry"), "{table}");
    let denies = told("[[rules]]\nname = \"a\"\nlimit = 5\nwindow = \"1s\"\naction = \"deny\"\n");
    assert!(denies.ends_with("not \"deny\"; did you mean \"reject\"?"), "{denies}");
    let fraction = told("[[rules]]\nname = \"a\"\nlimit = 1e9\nwindow = \"1s\"\n");
    assert!(fraction.ends_with("not a number with a point or an exponent"), "{fraction}");
}
