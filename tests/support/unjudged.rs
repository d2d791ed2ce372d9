//! Where a test could not judge what it is for, it says so: aloud, and in the list that `tests/run` shows at
//! its end.

use std::io::Write;

/// The file that `tests/run` reads.
const LIST: &str = "TIDEGATE_TEST_UNJUDGED";

/// The test that calls did not judge, because of this.
pub(crate) fn not_judged(why: &str) {
    // A test that runs alone in its process is named by its argument, else by its thread.
    let named = std::env::args().skip(1).find(|argument| argument.contains("::"));
    let thread = std::thread::current();
    let name = named.as_deref().or(thread.name()).unwrap_or("a test");
    let line = format!("{name}: {why}\n");
    eprint!("not judged: {line}");
    let Some(path) = std::env::var_os(LIST) else { return };
    let list = std::fs::OpenOptions::new().create(true).append(true).open(path);
    list.and_then(|mut list| list.write_all(line.as_bytes())).expect("the list can be written");
}
