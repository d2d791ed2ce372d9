//! The `traceparent` of W3C Trace Context: which trace a request belongs to, and whether it is sampled.

/// Length of the header in version 00, and the least in any later one.
const LEN: usize = 55;
/// The version that means "none".
const VERSION_INVALID: u8 = 0xff;
const FLAG_SAMPLED: u8 = 1;

/// The words of a caller's `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace, as the caller sent it.
    pub trace: [u8; 16],
    /// The caller's own span, which is the parent of ours.
    pub span: [u8; 8],
    /// True if the caller records its span.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads the header's value; `None` for one that is malformed, which counts as absent.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(LEN)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let (trace, span, [flags]) = (hex(parts.next()?)?, hex(parts.next()?)?, hex(parts.next()?)?);
        // Later versions may say more, behind another hyphen.
        let may_go_on = version != 0 && rest.first() == Some(&b'-');
        let is_whole = parts.next().is_none() && (rest.is_empty() || may_go_on);
        let is_valid = version != VERSION_INVALID && trace != [0; 16] && span != [0; 8];
        (is_whole && is_valid).then_some(Self { trace, span, sampled: flags & FLAG_SAMPLED != 0 })
    }
}

/// Bytes in hexadecimal, of which only small letters are valid.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(bytes)
}

const fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn text(version: u8, parent: &TraceParent, flags: u8) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{version:02x}-{}-{}-{flags:02x}", hex(&parent.trace), hex(&parent.span))
    }

    #[test]
    fn the_example_of_the_specification_is_read() {
        let parent = TraceParent::read(VALID.as_bytes()).unwrap();
        assert_eq!(text(0, &parent, 1), VALID);
        assert!(parent.sampled);
        let unsampled = VALID.replace("-01", "-00");
        assert!(!TraceParent::read(unsampled.as_bytes()).unwrap().sampled);
    }

    #[test]
    fn malformed_headers_are_no_parents() {
        let bad = [
            String::new(),
            "-".repeat(LEN),
            "00".to_owned(),
            VALID.to_uppercase(),
            VALID.replacen("00", "ff", 1),
            format!("{VALID}-"),
            format!("{VALID}-more"),
            format!("{VALID} "),
            format!(" {VALID}"),
            format!("{VALID},{VALID}"),
            VALID.replace('-', "_"),
            VALID.replace("-01", "-0g"),
            VALID.replace("-01", "-1"),
            VALID.replace("-b7ad", "--7ad"),
            VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            VALID.replace("0af7", "0äf7"),
            VALID.replacen("00-", "01-", 1) + "x",
        ];
        for bad in bad {
            assert_eq!(TraceParent::read(bad.as_bytes()), None, "{bad:?}");
        }
        for cut in 0..VALID.len() {
            assert_eq!(TraceParent::read(&VALID.as_bytes()[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn a_later_version_may_say_more() {
        let later = VALID.replacen("00", "cc", 1);
        let read = |text: &str| TraceParent::read(text.as_bytes());
        assert_eq!(read(&later), read(VALID));
        assert_eq!(read(&format!("{later}-what-the-future-will-be-like")), read(VALID));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(trace in any::<[u8; 16]>(), span in any::<[u8; 8]>(), flags: u8) {
            let parent = TraceParent { trace, span, sampled: flags & 1 == 1 };
            let read = TraceParent::read(text(0, &parent, flags).as_bytes());
            prop_assert_eq!(read, (trace != [0; 16] && span != [0; 8]).then_some(parent));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = TraceParent::read(&bytes);
        }

        #[test]
        fn a_byte_that_is_changed_never_gives_the_same_parent(at in 0..LEN, to: u8) {
            let mut changed = VALID.as_bytes().to_vec();
            prop_assume!(changed[at] != to);
            changed[at] = to;
            // The version and the other flags say nothing of the parent.
            if let Some(read) = TraceParent::read(&changed) {
                let same = Some(read) == TraceParent::read(VALID.as_bytes());
                prop_assert!(!same || !(2..=52).contains(&at), "{}", String::from_utf8_lossy(&changed));
            }
        }
    }
}
