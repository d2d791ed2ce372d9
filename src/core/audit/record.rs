//! One decision as it is remembered, and its bytes.
//!
//! The bytes are this daemon's own, kept in memory and in its spool: they begin with a length, so that a
//! reader of another version could skip what it does not know, and a damaged one ends the reading instead of
//! inventing rows.

use std::borrow::Cow;

use crate::denial_cause::DenialCause;
use crate::time::Timestamp;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It passed at once.
    Allowed,
    /// It passed, after the delay of a rule that throttles.
    Throttled,
    /// A limit denied it.
    Denied,
    /// A rule that blocks denied it, or whoever asked may not ask at all.
    Blocked,
    /// It passed, but a rule that only logs would have denied it.
    ShadowDenied,
    /// It passed, but is to use something else, as a rule says that had nothing left for it.
    Diverted,
    /// It was decided before, and reserved something: it is known now what it used. No decision of its own.
    Committed,
}

impl Outcome {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Throttled,
        Self::Denied,
        Self::Blocked,
        Self::ShadowDenied,
        Self::Diverted,
        Self::Committed,
    ];

    /// The words of all of them.
    pub const WORDS: [&'static str; Self::ALL.len()] = {
        let mut words = [""; Self::ALL.len()];
        let mut place = 0;
        while place < words.len() {
            words[place] = Self::ALL[place].as_str();
            place += 1;
        }
        words
    };

    /// Returns the spelling of metrics, the database and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Throttled => "throttled",
            Self::Denied => "denied",
            Self::Blocked => "blocked",
            Self::ShadowDenied => "shadow_denied",
            Self::Diverted => "diverted",
            Self::Committed => "committed",
        }
    }

    /// Reads what [`Self::as_str`] writes.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }

    /// True if the deciding rule was charged what was asked for, unless something else says what it charged.
    #[must_use]
    pub const fn takes_cost(self) -> bool {
        !matches!(self, Self::Denied | Self::Blocked | Self::Diverted)
    }

    const fn byte(self) -> u8 {
        match self {
            Self::Allowed => 0,
            Self::Denied => 1,
            Self::ShadowDenied => 2,
            Self::Committed => 3,
            Self::Throttled => 4,
            Self::Blocked => 5,
            Self::Diverted => 6,
        }
    }

    /// The byte where 0.1.0 reads the outcome, which knows none of [`Self::Throttled`], [`Self::Blocked`] and
    /// [`Self::Diverted`] and would take a record with another byte for a damaged one.
    const fn coarse_byte(self) -> u8 {
        match self {
            Self::Throttled | Self::Diverted => Self::Allowed.byte(),
            Self::Blocked => Self::Denied.byte(),
            other => other.byte(),
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.byte() == byte)
    }
}

/// One decision as it is remembered. Region and node are those of the daemon that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Instant of the decision, by this daemon's clock.
    pub at: Timestamp,
    /// Domain that the request named; rules of other domains took no part.
    pub domain: &'a str,
    /// The deciding rule; `None` where none applied.
    pub rule: Option<&'a str>,
    /// Id of the user who asked; `None` where none was named.
    pub user: Option<&'a str>,
    /// The client's API key: its public name, or a fingerprint, never the key.
    pub key: Option<&'a str>,
    /// The client's address, as it was given.
    pub address: Option<&'a str>,
    /// Path that was asked for, as rules saw it; `None` where none was named.
    pub path: Option<&'a str>,
    /// HTTP method of the request; `None` where none was named.
    pub method: Option<&'a str>,
    /// Name that the gateway gave the request (`X-Request-Id`); `None` where it gave none.
    pub request_id: Option<&'a str>,
    /// Outcome of the decision, or of the commit that followed it.
    pub outcome: Outcome,
    /// Permits asked for; negative for a refund. For a commit: what was used less what was reserved.
    pub cost: i64,
    /// Permits in use of the deciding bucket after the decision.
    pub count: u64,
    /// The limit that held, in permits.
    pub limit: u32,
    /// HTTP status that the answer asked for; 200 when allowed.
    pub status: u16,
    /// Milliseconds until it could pass; `None` where it passed, or never can.
    pub retry_ms: Option<u64>,
    /// Reason for a denial; `None` where it passed, or where nobody wrote it down.
    pub cause: Option<DenialCause>,
    /// Time to decide inside the daemon, in microseconds.
    pub latency_us: u32,
    /// Number of decisions that this one stands for: 1 for a denial, the sampling's inverse for an allowed
    /// one.
    pub weight: u32,
}

const NONE: u16 = u16::MAX;
const NO_RETRY: u64 = u64::MAX;
const NO_CAUSE: u8 = u8::MAX;
/// Bytes of everything but the texts, without the length.
const FIXED: usize = 8 + 1 + 8 + 8 + 4 + 2 + 8 + 4 + 4;
/// Bytes after the texts: the cause, the length of the request's name, which follows, and after that the
/// outcome to the point. 0.1.0 wrote none of them.
const LAST: usize = 1 + 2 + 1;
/// Longest text, in bytes; a longer one is cut.
const TEXT_BYTES_MAX: usize = 1_024;

impl<'a> Record<'a> {
    fn texts(&self) -> [Option<&'a str>; 7] {
        [Some(self.domain), self.rule, self.user, self.key, self.address, self.path, self.method]
    }

    /// Appends its bytes.
    pub fn write(&self, into: &mut Vec<u8>) {
        let texts = self.texts().map(|text| text.map(cut));
        let name = self.request_id.map(cut);
        let texts_len = texts.iter().map(|text| 2 + text.map_or(0, str::len)).sum::<usize>();
        let len = FIXED + texts_len + LAST + name.map_or(0, str::len);
        into.reserve(4 + len);
        // In one piece: this is the one part of remembering that a decision waits for.
        let mut head = [0; 4 + FIXED];
        let mut rest = head.as_mut_slice();
        let mut put = |bytes: &[u8]| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            own.copy_from_slice(bytes);
            rest = others;
        };
        put(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        put(&self.at.0.to_le_bytes());
        put(&[self.outcome.coarse_byte()]);
        put(&self.cost.to_le_bytes());
        put(&self.count.to_le_bytes());
        put(&self.limit.to_le_bytes());
        put(&self.status.to_le_bytes());
        put(&self.retry_ms.unwrap_or(NO_RETRY).to_le_bytes());
        put(&self.latency_us.to_le_bytes());
        put(&self.weight.to_le_bytes());
        into.extend_from_slice(&head);
        texts.into_iter().for_each(|text| write_text(into, text));
        into.push(self.cause.and_then(|cause| u8::try_from(cause.index()).ok()).unwrap_or(NO_CAUSE));
        write_text(into, name);
        into.push(self.outcome.byte());
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut bytes = HexBytes(bytes);
        let at = Timestamp(u64::from_le_bytes(bytes.array()?));
        let [outcome] = bytes.array()?;
        let coarse = Outcome::from_byte(outcome)?;
        let cost = i64::from_le_bytes(bytes.array()?);
        let count = u64::from_le_bytes(bytes.array()?);
        let limit = u32::from_le_bytes(bytes.array()?);
        let status = u16::from_le_bytes(bytes.array()?);
        let retry_ms = Some(u64::from_le_bytes(bytes.array()?)).filter(|millis| *millis != NO_RETRY);
        let latency_us = u32::from_le_bytes(bytes.array()?);
        let weight = u32::from_le_bytes(bytes.array()?);
        Some(Self {
            at,
            domain: bytes.text()?.unwrap_or_default(),
            rule: bytes.text()?,
            user: bytes.text()?,
            key: bytes.text()?,
            address: bytes.text()?,
            path: bytes.text()?,
            method: bytes.text()?,
            cause: bytes.array().and_then(|[cause]| DenialCause::ALL.get(usize::from(cause)).copied()),
            request_id: bytes.text().flatten(),
            outcome: bytes.array().and_then(|[outcome]| Outcome::from_byte(outcome)).unwrap_or(coarse),
            cost,
            count,
            limit,
            status,
            retry_ms,
            latency_us,
            weight,
        })
    }
}

fn write_text(into: &mut Vec<u8>, text: Option<&str>) {
    let len = text.map_or(NONE, |text| u16::try_from(text.len()).unwrap_or(0));
    into.extend_from_slice(&len.to_le_bytes());
    into.extend_from_slice(text.unwrap_or_default().as_bytes());
}

/// The text as PostgreSQL can hold it: without NUL, which becomes the replacement character.
#[must_use]
pub fn storable(text: &str) -> Cow<'_, str> {
    if text.as_bytes().contains(&0) {
        Cow::Owned(text.replace('\0', "\u{FFFD}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// The text as far as records and sums keep it.
pub(super) fn cut(text: &str) -> &str {
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

/// Reads bytes from their beginning.
pub(super) struct HexBytes<'a>(pub(super) &'a [u8]);

impl<'a> HexBytes<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    fn text(&mut self) -> Option<Option<&'a str>> {
        let len = u16::from_le_bytes(self.array()?);
        if len == NONE {
            return Some(None);
        }
        Some(Some(std::str::from_utf8(self.take(usize::from(len))?).ok()?))
    }
}

/// Reads records one after the other. Stops at the first that is no record: [`Self::is_whole`] then says no.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    whole: bool,
}

impl<'a> Records<'a> {
    /// Reads what [`Record::write`] has appended.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, whole: true }
    }

    /// True if everything so far was a record.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.whole
    }
}

/// Cuts bytes of records into pieces of at most so many records each.
#[must_use]
pub fn pieces(bytes: &[u8], rows_max: usize) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut records = Records::of(rest);
        let _ = records.by_ref().take(rows_max.max(1)).count();
        let (piece, left) = rest.split_at(rest.len() - records.rest.len());
        pieces.push(piece);
        rest = left;
    }
    pieces
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let mut bytes = HexBytes(self.rest);
        let record = bytes
            .array()
            .and_then(|len| bytes.take(usize::try_from(u32::from_le_bytes(len)).ok()?))
            .and_then(Record::read);
        self.whole = record.is_some();
        self.rest = if self.whole { bytes.0 } else { &[] };
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Texts = (String, [Option<String>; 6]);

    fn text() -> impl Strategy<Value = Option<String>> {
        proptest::option::of(".{0,40}")
    }

    fn texts() -> impl Strategy<Value = Texts> {
        (".{0,40}", [text(), text(), text(), text(), text(), text()])
    }

    fn record<'a>((domain, others): &'a Texts, at: u64, cost: i64, retry_ms: Option<u64>) -> Record<'a> {
        let [rule, user, key, address, path, method] = others.each_ref().map(Option::as_deref);
        Record {
            at: Timestamp(at),
            domain,
            rule,
            user,
            key,
            address,
            path,
            method,
            outcome: Outcome::ALL[usize::try_from(at % 7).unwrap()],
            cost,
            count: at ^ 7,
            limit: 9,
            status: 429,
            retry_ms,
            cause: DenialCause::ALL.get(usize::try_from(at % 11).unwrap()).copied(),
            request_id: path.filter(|_| at.is_multiple_of(2)),
            latency_us: 5,
            weight: 100,
        }
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were(
            all in proptest::collection::vec((texts(), any::<u64>(), any::<i64>(), proptest::option::of(0..u64::MAX)), 0..5),
        ) {
            let records: Vec<_> = all.iter().map(|(texts, at, cost, retry)| record(texts, *at, *cost, *retry)).collect();
            let mut bytes = Vec::new();
            records.iter().for_each(|record| record.write(&mut bytes));
            let mut read = Records::of(&bytes);
            prop_assert_eq!(read.by_ref().collect::<Vec<_>>(), records);
            prop_assert!(read.is_whole());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Records::of(&bytes).count();
        }

        #[test]
        fn a_record_cut_short_is_no_record(texts in texts(), cut in any::<proptest::sample::Index>()) {
            let mut bytes = Vec::new();
            record(&texts, 1, 2, None).write(&mut bytes);
            let mut read = Records::of(&bytes[..1 + cut.index(bytes.len() - 1)]);
            if cut.index(bytes.len() - 1) + 1 < bytes.len() {
                prop_assert_eq!(read.next(), None);
                prop_assert!(!read.is_whole());
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole_cut_between_records(count in 0..40_usize, rows_max in 1..15_usize) {
            let texts = ("default".to_owned(), [const { None }; 6]);
            let mut bytes = Vec::new();
            (0..count).for_each(|at| record(&texts, u64::try_from(at).unwrap(), 1, None).write(&mut bytes));
            let pieces = pieces(&bytes, rows_max);
            prop_assert_eq!(pieces.concat(), bytes.clone());
            let rows: Vec<usize> = pieces.iter().map(|piece| Records::of(piece).count()).collect();
            prop_assert_eq!(rows.iter().sum::<usize>(), count);
            prop_assert!(rows.iter().all(|rows| (1..=rows_max).contains(rows)));
        }
    }

    #[test]
    fn a_record_of_a_version_that_wrote_less_is_read_without_that() {
        let texts = ("default".to_owned(), [const { None }; 6]);
        let mut bytes = Vec::new();
        let written =
            Record { request_id: Some("r"), outcome: Outcome::Blocked, ..record(&texts, 1, 1, None) };
        written.write(&mut bytes);
        let coarse = Record { outcome: Outcome::Denied, ..written };
        for (shorter, as_read) in [
            (1, coarse),
            (3, Record { request_id: None, ..coarse }),
            (1, Record { request_id: None, cause: None, ..coarse }),
        ] {
            bytes.truncate(bytes.len() - shorter);
            let len = u32::try_from(bytes.len() - 4).unwrap();
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            let mut read = Records::of(&bytes);
            assert_eq!((read.next(), read.is_whole()), (Some(as_read), true));
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_letters() {
        let long = "ä".repeat(1_000);
        let texts = (String::new(), [Some(long), None, None, None, None, None]);
        let mut bytes = Vec::new();
        record(&texts, 1, 1, None).write(&mut bytes);
        let read = Records::of(&bytes).next().unwrap();
        assert_eq!(read.rule.map(str::len), Some(TEXT_BYTES_MAX));
    }
}
