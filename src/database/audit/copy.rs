//! Rows of the audit log in PostgreSQL's binary COPY format: nothing to escape, nothing to parse.

use std::net::IpAddr;

use crate::core::audit::{Record, storable};
use crate::core::denial_cause::DenialCause;
use crate::core::regions::NodeName;
use crate::core::time::Timestamp;

/// The columns, in the order of [`rows`].
pub(super) const STATEMENT: &str = "COPY audit_log (at, region, node, domain, rule, user_id, key_id, address, path, \
     method, outcome, cost, count, permits, status, retry_after_ms, latency_us, weight, cause, request_id, batch) FROM STDIN (FORMAT binary)";
const COLUMNS: i16 = 21;
/// Microseconds from 1970 to PostgreSQL's epoch, 2000.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// The last moment of 2199: a clock that says more is broken, and the row keeps this instead.
const AT_MAX: Timestamp = Timestamp(7_258_118_399_999_999);

/// Writes all records of a node's batch of this number.
pub(super) fn rows<'a>(node: &NodeName, batch: i64, records: impl Iterator<Item = Record<'a>>) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 << 16);
    out.extend_from_slice(b"PGCOPY\n\xff\r\n\0");
    out.extend_from_slice(&[0; 8]);
    for record in records {
        row(&mut out, node, batch, &record);
    }
    out.extend_from_slice(&(-1_i16).to_be_bytes());
    out
}

fn row(out: &mut Vec<u8>, node: &NodeName, batch: i64, record: &Record<'_>) {
    out.extend_from_slice(&COLUMNS.to_be_bytes());
    let at = i64::try_from(stored_at(record.at).0).unwrap_or(0) - EPOCH_MICROS;
    big(out, at);
    text(out, Some(&node.region));
    text(out, Some(&node.node));
    text(out, Some(record.domain));
    text(out, record.rule);
    text(out, record.user);
    text(out, record.key);
    address(out, record.address);
    text(out, record.path);
    text(out, record.method);
    text(out, Some(record.outcome.as_str()));
    big(out, record.cost);
    big(out, i64::try_from(record.count).unwrap_or(i64::MAX));
    big(out, i64::from(record.limit));
    field(out, &i16::try_from(record.status).unwrap_or(500).to_be_bytes());
    match record.retry_ms {
        Some(millis) => big(out, i64::try_from(millis).unwrap_or(i64::MAX)),
        None => null(out),
    }
    big(out, i64::from(record.latency_us));
    field(out, &i32::try_from(record.weight).unwrap_or(i32::MAX).to_be_bytes());
    text(out, record.cause.map(DenialCause::as_str));
    text(out, record.request_id);
    big(out, batch);
}

/// The time that a row is stored under.
pub(super) fn stored_at(at: Timestamp) -> Timestamp {
    at.min(AT_MAX)
}

fn field(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&i32::try_from(bytes.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn null(out: &mut Vec<u8>) {
    out.extend_from_slice(&(-1_i32).to_be_bytes());
}

fn big(out: &mut Vec<u8>, number: i64) {
    field(out, &number.to_be_bytes());
}

fn text(out: &mut Vec<u8>, value: Option<&str>) {
    match value {
        Some(value) => field(out, storable(value).as_bytes()),
        None => null(out),
    }
}

/// An address or a group of them (`2001:db8::/64`), or nothing where the gateway sent something else under
/// that name.
fn address(out: &mut Vec<u8>, value: Option<&str>) {
    const V4: u8 = 2;
    const V6: u8 = 3;
    let parsed = value.and_then(|text| {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address = address.parse::<IpAddr>().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        Some((address, bits.map_or(Some(most), |bits| bits.parse().ok())?.min(most)))
    });
    match parsed {
        Some((IpAddr::V4(address), bits)) => {
            field(out, &[&[V4, bits, 0, 4], address.octets().as_slice()].concat())
        }
        Some((IpAddr::V6(address), bits)) => {
            field(out, &[&[V6, bits, 0, 16], address.octets().as_slice()].concat())
        }
        None => null(out),
    }
}
