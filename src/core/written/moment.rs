//! Points in time as people and programs write them: RFC 3339, such as `2026-12-01T00:00:00Z`.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::time::Timestamp;

/// Reads `2026-12-01T00:00:00Z`, with any offset and fraction; `None` if it is no such text or lies before
/// 1970.
#[must_use]
pub fn parse_moment(text: &str) -> Option<Timestamp> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000).ok().map(Timestamp)
}

/// Writes a point in time in UTC so that [`parse_moment`] reads the same back; what lies beyond the year 9999
/// is its end.
#[must_use]
pub fn format_moment(at: Timestamp) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.micros()) * 1_000);
    let text = at.ok().and_then(|at| at.format(&Rfc3339).ok());
    text.unwrap_or_else(|| "9999-12-31T23:59:59Z".to_owned())
}

/// Writes the second that a point in time lies in, as [`format_moment`] does.
#[must_use]
pub fn format_second(at: Timestamp) -> String {
    format_moment(Timestamp(at.0 - at.0 % 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn moments_are_read_with_any_offset() {
        let noon = Some(Timestamp(1_796_126_400_000_000));
        assert_eq!(parse_moment("2026-12-01T12:00:00Z"), noon);
        assert_eq!(parse_moment("2026-12-01T13:00:00+01:00"), noon);
        assert_eq!(parse_moment("2026-12-01T12:00:00.5Z"), noon.map(|at| Timestamp(at.0 + 500_000)));
        for bad in [
            "",
            "2026-12-01",
            "2026-12-01T12:00:00",
            "tomorrow",
            "1969-12-31T23:59:59Z",
            "2026-13-01T00:00:00Z",
        ] {
            assert_eq!(parse_moment(bad), None, "{bad}");
        }
        assert_eq!(format_moment(Timestamp(u64::MAX)), "9999-12-31T23:59:59Z");
    }

    proptest! {
        #[test]
        fn a_written_moment_reads_back(micros in 0..253_402_300_799_000_000_u64) {
            prop_assert_eq!(parse_moment(&format_moment(Timestamp(micros))), Some(Timestamp(micros)));
        }
    }
}
