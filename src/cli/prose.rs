//! Sentences that are longer than a line: they break at words.

/// Text of a line that begins further to the right has what follows of it at the left.
const HANG_MAX: usize = 30;
/// What follows of a line without columns stands so far to the right.
const HANG: usize = 2;

/// Breaks lines that are longer than `width` at words. `hang`: the place at which what follows of a line
/// begins.
pub(super) fn wrap(text: &str, width: usize, hang: fn(&str) -> usize) -> String {
    let mut wrapped = String::new();
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            wrapped.push('\n');
        }
        if line.chars().count() <= width {
            wrapped.push_str(line);
        } else {
            wrap_line(line, width, hang(line), &mut wrapped);
        }
    }
    wrapped
}

fn wrap_line(line: &str, width: usize, hang: usize, into: &mut String) {
    let (mut rest, mut column) = (line.trim_end(), 0);
    while !rest.is_empty() {
        let gap = rest.len() - rest.trim_start_matches(' ').len();
        let (spaces, after) = rest.split_at(gap);
        let (word, next) = after.split_at(after.find(' ').unwrap_or(after.len()));
        let length = word.chars().count();
        if column > hang && column + gap + length > width {
            into.push('\n');
            into.extend(std::iter::repeat_n(' ', hang));
            column = hang;
        } else {
            into.push_str(spaces);
            column += gap;
        }
        into.push_str(word);
        column += length;
        rest = next;
    }
}

/// Returns the place below which what follows of a line stands: its last column, as far as two spaces show
/// it.
pub(super) fn hang(line: &str) -> usize {
    let (mut hang, mut spaces) = (HANG, 0);
    for (place, letter) in line.chars().enumerate().take(HANG_MAX) {
        if letter == ' ' {
            spaces += 1;
            continue;
        }
        if spaces > 1 {
            hang = place;
        }
        spaces = 0;
    }
    hang
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_breaks_at_words_below_its_text() {
        let line = "broken    rules          rules.toml:3:1: no such key";
        assert_eq!(wrap(line, 80, hang), line);
        let broken = "broken    rules          rules.toml:3:1:\n                         no such key";
        assert_eq!(wrap(line, 42, hang), broken);
        assert_eq!(wrap("error: one two three four", 14, hang), "error: one two\n  three four");
        assert_eq!(wrap("  used 60 here, limit 100", 16, hang), "  used 60 here,\n  limit 100");
        assert_eq!(wrap("one two\nthree four", 7, |_| 0), "one two\nthree\nfour");
    }

    #[test]
    fn a_word_that_is_longer_than_a_line_stays_whole() {
        assert_eq!(
            wrap("see https://example.org/a/b/c now", 12, hang),
            "see\n  https://example.org/a/b/c\n  now"
        );
        assert_eq!(wrap("", 12, hang), "");
        assert_eq!(wrap("ééé ééé", 4, |_| 0), "ééé\nééé");
    }
}
