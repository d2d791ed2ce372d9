//! The bytes of messages between daemons: version, kind, body. Frames of counts have a format of their own
//! ([`compact`]); for the rest this is the only user of bincode, so that another format is a change of this
//! file.
//!
//! Each connection has one version, which its handshake agreed on. All spoken versions share the messages and
//! their kinds; where the bytes of one differ, the file that writes them has one function that says how.
//!
//! Bytes come from members of the cluster, and still nothing in them is trusted: every length is bounded
//! before it is believed, and what is not exactly one message is refused with its reason.

use std::net::SocketAddr;

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bytes::Bytes;

use super::counters::Refusal;
use crate::core::wire::compact::{self, RULE_NAME_BYTES_MAX, Unreadable};
use crate::core::wire::rights::{CountedLimit, RIGHTS_ENTRIES_MAX, RightsFrame, TOTALS_MAX, Total};
use crate::core::wire::{
    COUNTS_MAX, CROWDED_MAX, CrowdedRules, Frame, IDENTITY_BYTES_MAX, NAME_BYTES_MAX, REPORTS_MAX, Report,
    RuleName, Scope, Subject, WireVersion,
};

/// Longest message on the network, in bytes, header included.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1_024;
/// Longest message of membership: the longest that `chitchat` makes.
pub const CHITCHAT_BYTES_MAX: usize = 65_507;

const KIND_SYNC: u8 = 1;
const KIND_CHITCHAT: u8 = 2;
const KIND_RIGHTS: u8 = 3;
/// Rights of buckets of which some have limits of their own.
const KIND_OWN_RIGHTS: u8 = 4;
const HEADER_BYTES: usize = 2;

type Format = Configuration<LittleEndian, Varint, Limit<MESSAGE_BYTES_MAX>>;
/// The limit is compulsory: without it a length prefix alone can ask for all memory there is.
const FORMAT: Format = bincode::config::standard().with_limit::<MESSAGE_BYTES_MAX>();

/// One message between two daemons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Counts.
    Sync(Frame),
    /// Rights of `escrow` rules.
    Rights(RightsFrame),
    /// Membership.
    Chitchat {
        /// Address at which the sender says it can be dialled.
        from: SocketAddr,
        /// Bytes of a message of `chitchat`, in its own format.
        body: Bytes,
    },
}

/// Writes a frame of counts.
///
/// # Errors
/// [`Refusal::Oversize`] if it would not be accepted on the other side: too many reports, too long a name or
/// identity, or more bytes than [`MESSAGE_BYTES_MAX`].
pub fn encode_frame(version: WireVersion, frame: &Frame) -> Result<Bytes, Refusal> {
    check_before_encode(frame)?;
    let mut bytes = vec![version.number(), KIND_SYNC];
    compact::write(version, frame, &mut bytes);
    sized(bytes)
}

/// Writes a frame of rights.
///
/// # Errors
/// [`Refusal::Oversize`] if it would not be accepted on the other side.
pub fn encode_rights(version: WireVersion, frame: &RightsFrame) -> Result<Bytes, Refusal> {
    check_rights(frame)?;
    let limits: Vec<CountedLimit> = limits_of(frame).collect();
    let owned = limits.iter().any(|limit| *limit != CountedLimit::default());
    let mut bytes = vec![version.number(), if owned { KIND_OWN_RIGHTS } else { KIND_RIGHTS }];
    bincode::serde::encode_into_std_write(frame, &mut bytes, FORMAT).map_err(|_| Refusal::Oversize)?;
    if owned {
        bincode::serde::encode_into_std_write(&limits, &mut bytes, FORMAT).map_err(|_| Refusal::Oversize)?;
    }
    sized(bytes)
}

/// Writes a message of membership.
///
/// # Errors
/// [`Refusal::Oversize`] if it is longer than [`CHITCHAT_BYTES_MAX`].
pub fn encode_chitchat(version: WireVersion, from: SocketAddr, body: &[u8]) -> Result<Bytes, Refusal> {
    if body.len() > CHITCHAT_BYTES_MAX {
        return Err(Refusal::Oversize);
    }
    let mut bytes = vec![version.number(), KIND_CHITCHAT];
    bincode::serde::encode_into_std_write(from, &mut bytes, FORMAT).map_err(|_| Refusal::Malformed)?;
    bytes.extend_from_slice(body);
    sized(bytes)
}

/// Reads one message.
///
/// # Errors
/// The reason, if these bytes are not exactly one message of this version within its bounds.
pub fn decode(version: WireVersion, bytes: &Bytes) -> Result<Message, Refusal> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Refusal::Oversize);
    }
    let (Some(number), Some(kind), Some(body)) = (bytes.first(), bytes.get(1), bytes.get(HEADER_BYTES..))
    else {
        return Err(Refusal::Malformed);
    };
    if *number != version.number() {
        return Err(Refusal::Version);
    }
    match *kind {
        KIND_SYNC => decode_frame(version, body).map(Message::Sync),
        KIND_RIGHTS => decode_rights(body, false).map(Message::Rights),
        KIND_OWN_RIGHTS => decode_rights(body, true).map(Message::Rights),
        KIND_CHITCHAT => {
            let (from, read): (SocketAddr, usize) = decode_part(body)?;
            let body = bytes.slice(HEADER_BYTES.saturating_add(read).min(bytes.len())..);
            if body.len() > CHITCHAT_BYTES_MAX {
                Err(Refusal::Oversize)
            } else {
                Ok(Message::Chitchat { from, body })
            }
        }
        _ => Err(Refusal::Kind),
    }
}

/// A message that may have been written for another version, for this one. Between two connections to an
/// address its daemon may have been upgraded.
///
/// # Errors
/// As [`decode`] and the functions that encode.
pub fn in_version(version: WireVersion, message: Bytes) -> Result<Bytes, Refusal> {
    let number = message.first().copied().ok_or(Refusal::Malformed)?;
    let written = WireVersion::numbered(number).ok_or(Refusal::Version)?;
    if written == version {
        return Ok(message);
    }
    match decode(written, &message)? {
        Message::Sync(frame) => encode_frame(version, &frame),
        Message::Rights(frame) => encode_rights(version, &frame),
        Message::Chitchat { from, body } => encode_chitchat(version, from, &body),
    }
}

fn decode_frame(version: WireVersion, body: &[u8]) -> Result<Frame, Refusal> {
    compact::read(version, body).map_err(|why| match why {
        Unreadable::Malformed => Refusal::Malformed,
        Unreadable::Oversize => Refusal::Oversize,
        Unreadable::Trailing => Refusal::Trailing,
    })
}

fn decode_rights(body: &[u8], owned: bool) -> Result<RightsFrame, Refusal> {
    let (mut frame, mut read): (RightsFrame, usize) = decode_part(body)?;
    if owned {
        let (limits, more): (Vec<CountedLimit>, usize) = decode_part(body.get(read..).unwrap_or_default())?;
        read = read.saturating_add(more);
        if limits.len() != limits_of(&frame).count() {
            return Err(Refusal::Malformed);
        }
        let said = frame.statements.iter_mut().map(|said| &mut said.limit);
        let sent = frame.transfers.iter_mut().map(|sent| &mut sent.limit);
        said.chain(sent).zip(limits).for_each(|(known, limit)| *known = limit);
    }
    if read != body.len() {
        return Err(Refusal::Trailing);
    }
    check_rights(&frame)?;
    Ok(frame)
}

/// Returns what is said of limits in a frame, in its order.
fn limits_of(frame: &RightsFrame) -> impl Iterator<Item = CountedLimit> {
    let said = frame.statements.iter().map(|said| said.limit);
    said.chain(frame.transfers.iter().map(|sent| sent.limit))
}

fn check_rights(frame: &RightsFrame) -> Result<(), Refusal> {
    let named = |rule: &RuleName, identity: &[u8]| {
        identity.len() <= IDENTITY_BYTES_MAX
            && rule.domain.len() <= RULE_NAME_BYTES_MAX
            && rule.name.len() <= RULE_NAME_BYTES_MAX
    };
    let listed = |totals: &[Total]| {
        totals.len() <= TOTALS_MAX && totals.iter().all(|total| total.region.len() <= NAME_BYTES_MAX)
    };
    let fits = frame.statements.len().saturating_add(frame.transfers.len()) <= RIGHTS_ENTRIES_MAX
        && frame
            .statements
            .iter()
            .all(|said| named(&said.rule, &said.identity) && said.totals.lists().into_iter().all(listed))
        && frame.transfers.iter().all(|sent| named(&sent.rule, &sent.identity));
    if fits { Ok(()) } else { Err(Refusal::Oversize) }
}

fn decode_part<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<(T, usize), Refusal> {
    bincode::serde::decode_from_slice(body, FORMAT).map_err(|error| match error {
        bincode::error::DecodeError::LimitExceeded => Refusal::Oversize,
        _ => Refusal::Malformed,
    })
}

fn check_before_encode(frame: &Frame) -> Result<(), Refusal> {
    let rules = match &frame.crowded {
        CrowdedRules::Named(rules) => rules.as_slice(),
        CrowdedRules::All => &[],
    };
    let fits = rules.len() <= CROWDED_MAX
        && rules.iter().all(is_short)
        && frame.reports.len() <= REPORTS_MAX
        && frame.reports.iter().all(is_bounded);
    if fits { Ok(()) } else { Err(Refusal::Oversize) }
}

fn is_bounded(report: &Report) -> bool {
    report.amounts.len() <= COUNTS_MAX && report.subject.as_ref().is_none_or(is_named_shortly)
}

fn is_named_shortly(subject: &Subject) -> bool {
    let region = match &subject.scope {
        Scope::Node => 0,
        Scope::Region(region) => region.len(),
    };
    subject.identity.len() <= IDENTITY_BYTES_MAX
        && is_short(&subject.rule)
        && region <= NAME_BYTES_MAX
        && subject.counters.len() <= COUNTS_MAX
        && subject.counters.iter().all(|counter| counter.node.len() <= NAME_BYTES_MAX)
}

const fn is_short(rule: &RuleName) -> bool {
    rule.domain.len() <= RULE_NAME_BYTES_MAX && rule.name.len() <= RULE_NAME_BYTES_MAX
}

fn sized(bytes: Vec<u8>) -> Result<Bytes, Refusal> {
    if bytes.len() > MESSAGE_BYTES_MAX { Err(Refusal::Oversize) } else { Ok(bytes.into()) }
}

#[cfg(test)]
mod tests;
