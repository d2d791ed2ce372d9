//! Frames of counts as bytes. Ten thousand hot buckets are told of many times a second, so a report takes
//! about eight bytes: a number for its subject, how far the count has come, and the demand.
//!
//! Numbers are LEB128; signed ones zigzag. Bytes come from members of the cluster, and still nothing in them
//! is trusted: every length is bounded before it is believed.
//!
//! ```text
//! frame   := incarnation seq sent slowest seen? crowded count report*
//! seen?   := 0 | 1 incarnation seq before
//! crowded := count (domain name)* | 9, which stands for all rules
//! report  := flags key-id [subject] [stamp±] [window] amounts demand
//! subject := domain name identity (0 | 1 region) count (node since±)* own?
//! text    := length bytes; since against sent
//! own     := permits burst queue, where the flags say that the bucket is decided by its own limit
//! amounts := one admitted | count (admitted returned)*
//! demand  := two bytes, eleven significant bits
//! ```
//! A stamp is told as the time from there to `sent`, and left out with the window where both are as in
//! the report before.
//!
//! Versions differ in [`limit_flags`] and nowhere else.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Acknowledgement, Amount, COUNTS_MAX, CROWDED_MAX, Counter, CrowdedRules, DecidedBy, Frame,
    IDENTITY_BYTES_MAX, NAME_BYTES_MAX, OwnLimit, REPORTS_MAX, Report, RuleName, Scope, Subject, WireVersion,
};
use crate::time::{Span, Timestamp};

/// Longest domain or name of a rule, in bytes.
pub const RULE_NAME_BYTES_MAX: usize = 1_024;
/// Significant bits of a demand.
pub(super) const DEMAND_BITS: u32 = 11;

/// The subject follows.
const NAMED: u8 = 1;
/// Stamp and window are those of the report before.
const SAME_TIME: u8 = 2;
/// One amount, nothing given back.
const PLAIN: u8 = 4;
/// The subject ends with the bucket's own limit.
const OWN: u8 = 8;
/// The bucket is decided by its rule's limit.
const BY_RULE: u8 = 16;

/// By which limit a bucket is decided, as flags of a name. Version 5 has one word for "by the rule's" and
/// "not known". A daemon of it takes that for the rule's limit, as it does among its own kind; here it is
/// heard as not known, which changes nothing of what is known from others.
const fn limit_flags(version: WireVersion, decided_by: DecidedBy) -> u8 {
    match (version, decided_by) {
        (_, DecidedBy::Own(_)) => OWN,
        (WireVersion::V5, DecidedBy::Rule) | (_, DecidedBy::Unknown) => 0,
        (WireVersion::V6, DecidedBy::Rule) => BY_RULE,
    }
}

/// In place of a number of crowded rules: all may be.
const ALL_CROWDED: usize = CROWDED_MAX + 1;

/// Reasons why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// They end in the middle, or say what no frame says.
    #[error("the bytes are not a frame of counts")]
    Malformed,
    /// They hold more, or longer, than any honest frame.
    #[error("the frame is larger than any honest one")]
    Oversize,
    /// Something follows the frame.
    #[error("bytes follow the frame")]
    Trailing,
}

/// Appends a frame. Demands are [`super::rounded`].
pub fn write(version: WireVersion, frame: &Frame, bytes: &mut Vec<u8>) {
    for number in [frame.incarnation, frame.seq, frame.sent.0, frame.slowest.0] {
        put(bytes, number);
    }
    match frame.seen {
        None => bytes.push(0),
        Some(seen) => {
            bytes.push(1);
            for number in [seen.incarnation, seen.seq, seen.before] {
                put(bytes, number);
            }
        }
    }
    match &frame.crowded {
        CrowdedRules::All => put_len(bytes, ALL_CROWDED),
        CrowdedRules::Named(rules) => {
            put_len(bytes, rules.len());
            rules.iter().for_each(|rule| put_rule(bytes, rule));
        }
    }
    put_len(bytes, frame.reports.len());
    let mut before = None;
    for report in &frame.reports {
        write_report(version, (frame.sent, before), report, bytes);
        before = Some(report);
    }
}

/// Appends a report as it follows `before` in a frame that was sent at `sent`. In no version it takes more
/// bytes than in the newest.
pub fn write_report(
    version: WireVersion,
    (sent, before): (Timestamp, Option<&Report>),
    report: &Report,
    bytes: &mut Vec<u8>,
) {
    let same = before.is_some_and(|before| (before.stamp, before.window) == (report.stamp, report.window));
    let plain = matches!(report.amounts.as_slice(), [amount] if amount.returned == 0);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let named = report.subject.as_ref().map_or(0, |subject| NAMED | limit_flags(version, subject.decided_by));
    bytes.push(named | flag(same, SAME_TIME) | flag(plain, PLAIN));
    put(bytes, report.key_id);
    if let Some(subject) = &report.subject {
        write_subject(sent, subject, bytes);
    }
    if !same {
        put_time(bytes, sent, report.stamp);
        put(bytes, report.window);
    }
    if !plain {
        put_len(bytes, report.amounts.len());
    }
    for amount in &report.amounts {
        put(bytes, amount.admitted);
        if !plain {
            put(bytes, amount.returned);
        }
    }
    bytes.extend(demand_code(report.demand).to_le_bytes());
}

fn write_subject(sent: Timestamp, subject: &Subject, bytes: &mut Vec<u8>) {
    put_rule(bytes, &subject.rule);
    put_text(bytes, &subject.identity);
    match &subject.scope {
        Scope::Node => bytes.push(0),
        Scope::Region(region) => {
            bytes.push(1);
            put_text(bytes, region.as_bytes());
        }
    }
    put_len(bytes, subject.counters.len());
    for counter in &subject.counters {
        put_text(bytes, counter.node.as_bytes());
        put_time(bytes, sent, counter.since);
    }
    if let DecidedBy::Own(OwnLimit { permits, burst, queue }) = subject.decided_by {
        for number in [permits, burst, queue] {
            put(bytes, u64::from(number));
        }
    }
}

/// Reads bytes that are one frame and nothing else.
///
/// # Errors
/// Why they are not.
pub fn read(version: WireVersion, bytes: &[u8]) -> Result<Frame, Unreadable> {
    let mut rest = Rest { bytes, version };
    let [incarnation, seq, sent, slowest] = [rest.number()?, rest.number()?, rest.number()?, rest.number()?];
    let sent = Timestamp(sent);
    let seen = if rest.choice()? {
        let [incarnation, seq, before] = [rest.number()?, rest.number()?, rest.number()?];
        Some(Acknowledgement { incarnation, seq, before })
    } else {
        None
    };
    let crowded = match rest.length(ALL_CROWDED)? {
        ALL_CROWDED => CrowdedRules::All,
        count => CrowdedRules::Named((0..count).map(|_| rest.rule()).collect::<Result<_, _>>()?),
    };
    let count = rest.length(REPORTS_MAX)?;
    let mut reports: Vec<Report> = Vec::with_capacity(count);
    for _ in 0..count {
        let report = rest.report(sent, reports.last())?;
        reports.push(report);
    }
    if !rest.bytes.is_empty() {
        return Err(Unreadable::Trailing);
    }
    Ok(Frame { incarnation, seq, sent, seen, slowest: Span(slowest), crowded, reports })
}

/// The bytes that are still to be read.
struct Rest<'a> {
    bytes: &'a [u8],
    version: WireVersion,
}

impl<'a> Rest<'a> {
    fn byte(&mut self) -> Result<u8, Unreadable> {
        let (&first, rest) = self.bytes.split_first().ok_or(Unreadable::Malformed)?;
        self.bytes = rest;
        Ok(first)
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0_u64;
        for place in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if place == 9 && bits > 1 {
                return Err(Unreadable::Malformed);
            }
            number |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Unreadable::Malformed)
    }

    fn length(&mut self, most: usize) -> Result<usize, Unreadable> {
        let length = usize::try_from(self.number()?).map_err(|_| Unreadable::Oversize)?;
        if length > most { Err(Unreadable::Oversize) } else { Ok(length) }
    }

    fn choice(&mut self) -> Result<bool, Unreadable> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Unreadable::Malformed),
        }
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], Unreadable> {
        let length = self.length(most)?;
        let (text, rest) = self.bytes.split_at_checked(length).ok_or(Unreadable::Malformed)?;
        self.bytes = rest;
        Ok(text)
    }

    fn text(&mut self, most: usize) -> Result<&'a str, Unreadable> {
        std::str::from_utf8(self.bytes(most)?).map_err(|_| Unreadable::Malformed)
    }

    fn time(&mut self, sent: Timestamp) -> Result<Timestamp, Unreadable> {
        Ok(Timestamp(sent.0.wrapping_sub_signed(unzigzag(self.number()?))))
    }

    fn report(&mut self, sent: Timestamp, before: Option<&Report>) -> Result<Report, Unreadable> {
        let flags = self.byte()?;
        let unnamed = flags & NAMED == 0;
        let by_rule = limit_flags(self.version, DecidedBy::Rule);
        if flags & !(NAMED | SAME_TIME | PLAIN | OWN | by_rule) > 0 || unnamed && flags & (OWN | BY_RULE) > 0
        {
            return Err(Unreadable::Malformed);
        }
        let key_id = self.number()?;
        let subject = if unnamed { None } else { Some(self.subject(sent, flags)?) };
        let (stamp, window) = if flags & SAME_TIME == 0 {
            (self.time(sent)?, self.number()?)
        } else {
            before.map(|before| (before.stamp, before.window)).ok_or(Unreadable::Malformed)?
        };
        let mut amounts = SmallVec::new();
        if flags & PLAIN == 0 {
            for _ in 0..self.length(COUNTS_MAX)? {
                amounts.push(Amount { admitted: self.number()?, returned: self.number()? });
            }
        } else {
            amounts.push(Amount { admitted: self.number()?, returned: 0 });
        }
        let demand = coded_demand(u16::from_le_bytes([self.byte()?, self.byte()?]))?;
        Ok(Report { key_id, subject, window, stamp, amounts, demand })
    }

    fn subject(&mut self, sent: Timestamp, flags: u8) -> Result<Subject, Unreadable> {
        let rule = self.rule()?;
        let identity = self.bytes(IDENTITY_BYTES_MAX)?.to_vec();
        let scope =
            if self.choice()? { Scope::Region(self.text(NAME_BYTES_MAX)?.to_owned()) } else { Scope::Node };
        let count = self.length(COUNTS_MAX)?;
        let mut counters = Vec::with_capacity(count);
        for _ in 0..count {
            let node = Arc::from(self.text(NAME_BYTES_MAX)?);
            counters.push(Counter { node, since: self.time(sent)? });
        }
        let decided_by = match flags & (OWN | BY_RULE) {
            0 => DecidedBy::Unknown,
            BY_RULE => DecidedBy::Rule,
            OWN => {
                let (permits, burst, queue) = (self.permits()?, self.permits()?, self.permits()?);
                DecidedBy::Own(OwnLimit { permits, burst, queue })
            }
            _ => return Err(Unreadable::Malformed),
        };
        Ok(Subject { rule, identity, scope, counters, decided_by })
    }

    fn rule(&mut self) -> Result<RuleName, Unreadable> {
        let domain = self.text(RULE_NAME_BYTES_MAX)?.to_owned();
        Ok(RuleName { domain, name: self.text(RULE_NAME_BYTES_MAX)?.to_owned() })
    }

    fn permits(&mut self) -> Result<u32, Unreadable> {
        u32::try_from(self.number()?).map_err(|_| Unreadable::Malformed)
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn put_len(bytes: &mut Vec<u8>, length: usize) {
    put(bytes, u64::try_from(length).unwrap_or(u64::MAX));
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    put_len(bytes, text.len());
    bytes.extend_from_slice(text);
}

fn put_rule(bytes: &mut Vec<u8>, rule: &RuleName) {
    put_text(bytes, rule.domain.as_bytes());
    put_text(bytes, rule.name.as_bytes());
}

fn put_time(bytes: &mut Vec<u8>, sent: Timestamp, time: Timestamp) {
    put(bytes, zigzag(sent.0.wrapping_sub(time.0).cast_signed()));
}

const fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63).cast_unsigned()
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Below 2,048 itself; above it five or six bits for the exponent and ten for the mantissa, whose first bit
/// is known.
fn demand_code(demand: u64) -> u16 {
    let demand = super::rounded(demand);
    let shift = u64::BITS.saturating_sub(demand.leading_zeros()).saturating_sub(DEMAND_BITS);
    let mantissa = demand >> shift;
    // Both below 2^16 by the number of bits.
    u16::try_from(u64::from(shift) * 1_024 + mantissa).unwrap_or(u16::MAX)
}

fn coded_demand(code: u16) -> Result<u64, Unreadable> {
    let code = u64::from(code);
    if code < 2_048 {
        return Ok(code);
    }
    let shift = code / 1_024 - 1;
    let mantissa = code % 1_024 + 1_024;
    if shift > u64::from(u64::BITS - DEMAND_BITS) {
        Err(Unreadable::Malformed)
    } else {
        Ok(mantissa << shift)
    }
}
