//! Problems as a text, a line each.

/// Returns all of them, in their order.
pub(super) fn lines(problems: &[impl std::fmt::Display]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
