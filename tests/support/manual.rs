//! Rules as the manual prints them, for tests that play its pages.

/// Returns the first rules that a page prints.
///
/// # Panics
/// When it prints none.
pub(crate) fn rules_of(page: &str) -> String {
    let (before, rest) = page.split_once("```toml\n").expect("the page prints rules");
    let (block, _) = rest.split_once("```").expect("the block ends");
    // A step of a list is indented, and so is all of its block.
    let indent = before.len() - before.trim_end_matches(' ').len();
    block.lines().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect()
}

/// Returns the same rules with limits that few requests use up, and that no clock gives back meanwhile: 3 for
/// a client by its name, 8 for one by its address.
///
/// # Panics
/// When they are others than 100 and 300 a minute.
pub(crate) fn few(rules: &str) -> String {
    assert_eq!(rules.matches("limit = 100\n").count(), 1, "{rules}");
    assert_eq!(rules.matches("limit = 300\n").count(), 1, "{rules}");
    assert_eq!(rules.matches("window = \"1m\"\n").count(), 2, "{rules}");
    let fewer = rules.replace("limit = 100\n", "limit = 3\n").replace("limit = 300\n", "limit = 8\n");
    fewer.replace("window = \"1m\"", "window = \"24h\"")
}

/// Asserts that the head of a file of `deploy` prints each of these rules as the page does.
///
/// # Panics
/// When it does not.
pub(crate) fn assert_at_head(rules: &str, file: &str) {
    for rule in rules.split("[[rules]]\n").skip(1) {
        let keys = rule.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let head: String = keys.map(|line| format!("#   {line}\n")).collect();
        assert!(file.contains(&format!("#   [[rules]]\n{head}")), "the head of the file lacks:\n{head}");
    }
}

/// Asserts that a gateway with [`few`] of a page's rules holds one client that shows a name, then one that
/// invents a name for each request, then one that shows none. `ask`: the status of a request by a name.
///
/// # Panics
/// When one of them is not held.
pub(crate) fn assert_holds_whoever_asks(ask: impl Fn(Option<&str>) -> u16) {
    let named: Vec<u16> = (0..4).map(|_| ask(Some("ann"))).collect();
    assert_eq!(named, [200, 200, 200, 429], "by its name");
    let invented: Vec<u16> = (0..8).map(|number| ask(Some(&format!("n{number}")))).collect();
    let passed = invented.iter().filter(|status| **status == 200).count();
    // The address has used three permits, or four.
    assert!((4..=5).contains(&passed) && invented[5..] == [429; 3], "by its address: {invented:?}");
    assert_eq!(ask(None), 429, "by its address, without a name");
}
