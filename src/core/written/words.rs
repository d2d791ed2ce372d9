//! Durations as people write them, and what they may have meant.

use crate::time::Span;

/// Units of a duration, shortest first, with their length in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

/// Reads `"100ms"`, `"1m"` or `"1.5h"`; `None` if it is no such text or too long to count.
#[must_use]
pub fn parse_span(text: &str) -> Option<Span> {
    let unit_at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 6 {
        return None;
    }
    let micros = millis.checked_mul(1_000)?;
    let tenths =
        micros.checked_mul(part.parse().ok()?)? / 10_u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    whole.parse::<u64>().ok()?.checked_mul(micros)?.checked_add(tenths).map(Span)
}

/// Writes a duration so that [`parse_span`] reads the same back, in the longest unit that fits evenly.
#[must_use]
pub fn format_span(span: Span) -> String {
    let micros = span.micros();
    let even = UNITS.iter().rev().find(|(_, millis)| micros != 0 && micros.is_multiple_of(millis * 1_000));
    match even {
        // Weeks read worse than days.
        Some((_, millis)) if *millis == 604_800_000 => format!("{}d", micros / 86_400_000_000),
        Some((unit, millis)) => format!("{}{unit}", micros / (millis * 1_000)),
        None if micros == 0 => "0ms".to_owned(),
        None => format!("{}.{:03}ms", micros / 1_000, micros % 1_000),
    }
}

/// Words that other programs have for what is meant, and the word here.
const OTHER_WORDS: [(&str, &str); 10] = [
    ("delay", "throttle"),
    ("deny", "reject"),
    ("drop", "block"),
    ("dry_run", "log_only"),
    ("exempt", "allow"),
    ("forbid", "block"),
    ("log", "log_only"),
    ("queue", "throttle"),
    ("shadow", "log_only"),
    ("skip", "allow"),
];

/// The known word that means what another program's word does, if there is one.
pub(super) fn same_meaning<'w>(written: &str, mut known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let (_, here) = OTHER_WORDS.iter().find(|(other, _)| *other == written)?;
    known.find(|word| word == here)
}

/// The known word that is nearest to what was written, if any is near.
#[must_use]
pub fn suggestion<'w>(written: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    const WRITTEN_LEN_MAX: usize = 64;
    if written.len() > WRITTEN_LEN_MAX {
        return None;
    }
    let near = |word: &'w str| (distance(written, word), word);
    let (distance, word) = known.into_iter().map(near).min()?;
    (distance <= 1 + word.len() / 3).then_some(word)
}

/// Returns how many letters must be added, dropped or replaced (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, letter) in a.chars().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        for (cell, other) in row.iter_mut().skip(1).zip(&b) {
            let above = *cell;
            left = (diagonal + usize::from(letter != *other)).min(above + 1).min(left + 1);
            diagonal = above;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        assert_eq!(parse_span("100ms"), Some(Span::from_millis(100)));
        assert_eq!(parse_span("1.5s"), Some(Span::from_millis(1_500)));
        assert_eq!(parse_span("2w"), Some(Span::from_secs(14 * 86_400)));
        for bad in [
            "",
            "5",
            "ms",
            "5 s",
            "-1s",
            "1us",
            "1h30m",
            "1.s",
            ".5s",
            "1e3s",
            "99999999999999999999s",
            "9999999999999w",
        ] {
            assert_eq!(parse_span(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_are_written_in_the_longest_even_unit() {
        let write = |text| format_span(parse_span(text).unwrap());
        assert_eq!([write("60s"), write("1500ms"), write("1w"), write("24h")], ["1m", "1500ms", "7d", "1d"]);
    }

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let known = ["sliding_window", "fixed_window", "gcra"];
        assert_eq!(suggestion("slidng_window", known), Some("sliding_window"));
        assert_eq!(suggestion("gcrs", known), Some("gcra"));
        assert_eq!(suggestion("zzz", known), None);
    }

    proptest! {
        #[test]
        fn a_written_duration_reads_back(micros in prop_oneof![0..10_000_000_u64, (0..u64::MAX / 604_800_000_000).prop_map(|w| w * 604_800_000_000)]) {
            prop_assert_eq!(parse_span(&format_span(Span(micros))), Some(Span(micros)));
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".{0,40}") {
            let _ = (parse_span(&text), suggestion(&text, ["limit", "window"]));
        }
    }
}
