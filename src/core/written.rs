//! Texts that people write (`rules.toml`, `tidegate.toml`, JSON documents) as trees of values that know where
//! they stand.
//!
//! A reader of such a tree collects every problem before it gives up, each with the place to look at and what
//! was expected. Nothing here reads files.

mod fields;
mod moment;
mod tree;
mod words;

use std::fmt;

pub use self::fields::{Fields, integer, text};
pub use self::moment::{format_moment, format_second, parse_moment};
pub use self::tree::{TreeEntry, TreeNode, Value};
pub use self::words::{format_span, parse_span, suggestion};

/// Most problems told at once; the rest is only counted.
pub const PROBLEMS_MAX: usize = 100;

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Place of the mistake, in a file or outside of any.
    pub place: TextPlace,
    /// A sentence on what is wrong and what was expected.
    pub message: String,
}

/// The place of a problem, as a person finds it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextPlace {
    /// In a file; line and column count from 1, columns in characters.
    Text {
        /// The file's name as it was given.
        file: String,
        /// Line of the mistake; the first is 1.
        line: usize,
        /// Column of the mistake in characters; the first is 1.
        column: usize,
    },
    /// The file as a whole.
    File(String),
    /// A field of a JSON document, such as `rules[0].limit`.
    Field(String),
    /// An environment variable or a flag of the command line.
    Outside(String),
}

impl fmt::Display for TextPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::File(name) | Self::Field(name) | Self::Outside(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            TextPlace::Field(path) if path.is_empty() => f.write_str(&self.message),
            place => write!(f, "{place}: {}", self.message),
        }
    }
}

/// The place of a value, as the reader keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// A byte offset in the text.
    Offset(usize),
    /// The path of a field.
    Field(String),
    /// A variable or flag.
    Outside(String),
}

/// The problems of one text, while it is read.
#[derive(Debug)]
pub struct Problems<'t> {
    file: &'t str,
    text: &'t str,
    found: Vec<(At, String)>,
    more: usize,
}

impl<'t> Problems<'t> {
    /// None yet. Offsets are those of `text`; `file` is how to name it.
    #[must_use]
    pub const fn new(file: &'t str, text: &'t str) -> Self {
        Self { file, text, found: Vec::new(), more: 0 }
    }

    /// Notes a problem.
    pub fn report(&mut self, at: &At, message: impl Into<String>) {
        if self.found.len() < PROBLEMS_MAX {
            self.found.push((at.clone(), message.into()));
        } else {
            self.more += 1;
        }
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The line of a place in the text, to point from one place to another; `None` outside of a text.
    #[must_use]
    pub fn line(&self, at: &At) -> Option<usize> {
        match at {
            At::Offset(offset) => Some(position(self.text, *offset).0),
            At::Field(_) | At::Outside(_) => None,
        }
    }

    /// Every problem, in the order of the text.
    #[must_use]
    pub fn into_list(self) -> Vec<Problem> {
        let place = |at: At| match at {
            At::Offset(offset) => {
                let (line, column) = position(self.text, offset);
                TextPlace::Text { file: self.file.to_owned(), line, column }
            }
            At::Field(path) => TextPlace::Field(path),
            At::Outside(name) => TextPlace::Outside(name),
        };
        let mut problems: Vec<Problem> =
            self.found.into_iter().map(|(at, message)| Problem { place: place(at), message }).collect();
        // By text position only: fields and variables stay in the order they were read.
        problems.sort_by_key(|problem| match problem.place {
            TextPlace::Text { line, column, .. } => (line, column),
            _ => (usize::MAX, 0),
        });
        if self.more > 0 {
            let message = format!("and {} more problems", self.more);
            problems.push(Problem { place: TextPlace::File(self.file.to_owned()), message });
        }
        problems
    }
}

/// Line and column of a byte offset, both from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(line_start..).map_or(0, |line| line.chars().count()) + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        assert_eq!(position("a\näö = 1", "a\näö".len()), (2, 3));
        assert_eq!(position("", 0), (1, 1));
        assert_eq!(position("ab", 99), (1, 3));
    }

    #[test]
    fn problems_beyond_the_bound_are_counted() {
        let mut problems = Problems::new("f.toml", "x");
        (0..PROBLEMS_MAX + 5).for_each(|_| problems.report(&At::Offset(0), "bad"));
        let list = problems.into_list();
        assert_eq!(list.len(), PROBLEMS_MAX + 1);
        assert_eq!(list[PROBLEMS_MAX].to_string(), "f.toml: and 5 more problems");
    }
}
