//! Holds how many functions take a tuple: parts without names, of which a caller may swap two of one type.

use super::{Source, sources};

/// So many are left. Whoever takes one away lowers this; a function that is new takes its parts by name.
const TUPLES_MAX: usize = 72;

/// The parameters of a function, by the code that follows its name.
fn parameters(code: &str) -> Vec<&str> {
    let (mut depth, mut start, mut before, mut found) = (0_usize, None, ' ', Vec::new());
    for (at, sign) in code.char_indices() {
        match (sign, start) {
            // Generics come before.
            ('(', None) if depth == 0 => start = Some(at + 1),
            (',' | ')', Some(from)) if depth == 0 => {
                found.push(code[from..at].trim());
                if sign == ')' {
                    break;
                }
                start = Some(at + 1);
            }
            ('(' | '[' | '{' | '<', _) => depth += 1,
            ('>', _) if before == '-' => {}
            (')' | ']' | '}' | '>', _) => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = sign;
    }
    found
}

fn is_tuple(parameter: &str) -> bool {
    let kind = match parameter.split_once(": ") {
        Some((_, kind)) if !parameter.starts_with('(') => kind.trim_start_matches('&'),
        _ => parameter,
    };
    let lasting = kind.split_once(' ').filter(|(first, _)| first.starts_with('\''));
    let kind = lasting.map_or(kind, |(_, rest)| rest);
    let kind = kind.strip_prefix("mut ").unwrap_or(kind);
    kind.starts_with('(') && kind.contains(',') && !kind.starts_with("(dyn ")
}

/// The functions of a file that take a tuple.
fn with_tuples(source: &Source) -> Vec<String> {
    let functions = source.code.split("fn ").skip(1).filter(|_| !source.for_tests);
    let named = functions.filter_map(|code| {
        let end = code.find(|sign: char| !sign.is_alphanumeric() && sign != '_')?;
        let (name, rest) = code.split_at(end);
        parameters(rest).into_iter().find(|parameter| is_tuple(parameter))?;
        Some(format!("src/{}: {name}", source.path))
    });
    named.collect()
}

#[test]
fn no_more_functions_take_a_tuple_than_are_left() {
    let found: Vec<_> = sources().iter().flat_map(with_tuples).collect();
    let shown = found.join("\n");
    assert!(
        found.len() <= TUPLES_MAX,
        "{} functions take a tuple, and {TUPLES_MAX} may:\n{shown}\n",
        found.len()
    );
}

#[test]
fn a_tuple_is_found_by_pattern_and_by_type_and_not_in_a_bound() {
    let code = "fn one<T: Fn(u8) -> u8>((a, b): (u8, u8)) {}\nfn two(&self, at: &'a mut (u8, u8)) {}\n\
                fn three(f: impl Fn((u8, u8)), all: &[(u8, u8)], d: &(dyn Fn(u8, u8) + Send)) {}\n";
    let found = with_tuples(&Source::new("core/a.rs", code));
    assert_eq!(found, ["src/core/a.rs: one", "src/core/a.rs: two"]);
}
