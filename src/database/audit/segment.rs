//! One batch of records as bytes: what a file of the spool holds.
//!
//! `TGA1`, then the checksum (CRC-32) of all that follows: length, incarnation, sequence, rows, region, node,
//! records. `TGA2` has the length of sums and the sums before the records. A file that is not exactly that is
//! damaged, and none of it is believed.

use crate::core::audit::{Records, read_sums};
use crate::core::regions::NodeName;
use crate::database::batch_id::BatchId;

const MAGIC: [u8; 4] = *b"TGA1";
/// Begins a batch with sums. The version before would not see them, and so is not to read it.
const MAGIC_OF_SUMS: [u8; 4] = *b"TGA2";
/// Magic, checksum and length.
const HEAD: usize = 12;

/// No record is shorter.
const RECORD_BYTES_MIN: usize = 32;

/// Records on their way to the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Name of the batch, unique together with the node's.
    pub id: BatchId,
    /// Daemon that made the decisions of the batch.
    pub node: NodeName,
    /// Number of records in `bytes`, each a row of the database.
    pub rows: u32,
    /// Records one after the other, each with its length before it.
    pub bytes: Vec<u8>,
    /// Sums of decisions that have no record, as [`crate::core::audit::write_sums`] wrote them; or none.
    pub sums: Vec<u8>,
}

/// A file that is no whole batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is cut short or was changed: its checksum does not fit")]
pub struct Damaged;

impl Batch {
    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + 64 + self.sums.len() + self.bytes.len());
        out.extend_from_slice(if self.sums.is_empty() { &MAGIC } else { &MAGIC_OF_SUMS });
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.id.incarnation.to_le_bytes());
        out.extend_from_slice(&self.id.sequence.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        for name in [&self.node.region, &self.node.node] {
            out.extend_from_slice(&u16::try_from(name.len()).unwrap_or(0).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        if !self.sums.is_empty() {
            out.extend_from_slice(&u32::try_from(self.sums.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend_from_slice(&self.sums);
        }
        out.extend_from_slice(&self.bytes);
        let len = u32::try_from(out.len() - HEAD).unwrap_or(u32::MAX);
        out[8..12].copy_from_slice(&len.to_le_bytes());
        let checksum = crc32fast::hash(&out[8..]);
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads what [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// It is anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Damaged> {
        Self::read(bytes).ok_or(Damaged)
    }

    /// Returns how many decisions it tells of: its records, and those of its sums. A decision is in up to
    /// four sums, of its rule, user, path and key, and the batch may have any of them: it tells of as many as
    /// the kind that has most.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        let sums = read_sums(&self.sums).unwrap_or_default();
        let mut kinds = [0_u64; 4];
        for (key, usage) in &sums {
            let [total, user, path, of_key] = &mut kinds;
            let kind = match key {
                key if key.is_total() => total,
                key if key.is_of_key() => of_key,
                key if key.path.is_empty() => user,
                _ => path,
            };
            *kind = kind.saturating_add(usage.allowed).saturating_add(usage.denied);
        }
        // Sums of costs alone have no decisions, and are not nothing.
        let of_sums = kinds.into_iter().max().unwrap_or_default().max(u64::from(!sums.is_empty()));
        u64::from(self.rows).saturating_add(of_sums)
    }

    /// Returns how many records a file that is not to be believed says it holds, if that is possible; one at
    /// least.
    #[must_use]
    pub fn rows_claimed(bytes: &[u8]) -> u32 {
        let rows = bytes.get(HEAD + 16..).and_then(|rest| rest.split_first_chunk::<4>());
        let possible =
            |rows: &u32| usize::try_from(*rows).is_ok_and(|rows| rows <= bytes.len() / RECORD_BYTES_MIN);
        rows.map(|(rows, _)| u32::from_le_bytes(*rows)).filter(possible).unwrap_or(1).max(1)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (checksum, rest) = rest.split_first_chunk::<4>()?;
        let has_sums = *magic == MAGIC_OF_SUMS;
        let is_known = has_sums || *magic == MAGIC;
        if !is_known || crc32fast::hash(rest) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let (len, rest) = rest.split_first_chunk::<4>()?;
        if usize::try_from(u32::from_le_bytes(*len)).ok()? != rest.len() {
            return None;
        }
        let (incarnation, rest) = rest.split_first_chunk::<8>()?;
        let (sequence, rest) = rest.split_first_chunk::<8>()?;
        let (rows, rest) = rest.split_first_chunk::<4>()?;
        let (region, rest) = name(rest)?;
        let (node, rest) = name(rest)?;
        let (sums, rest) = if has_sums {
            let (len, rest) = rest.split_first_chunk::<4>()?;
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?
        } else {
            rest.split_at(0)
        };
        read_sums(sums)?;
        let mut records = Records::of(rest);
        let rows = u32::from_le_bytes(*rows);
        let whole = records.by_ref().count() == usize::try_from(rows).ok()? && records.is_whole();
        whole.then(|| Self {
            id: BatchId {
                incarnation: u64::from_le_bytes(*incarnation),
                sequence: u64::from_le_bytes(*sequence),
            },
            node: NodeName { region, node },
            rows,
            bytes: rest.to_vec(),
            sums: sums.to_vec(),
        })
    }
}

fn name(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
    Some((std::str::from_utf8(name).ok()?.to_owned(), rest))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::audit::usage::{Sums, Usage, UsageKey};
    use crate::core::audit::{Outcome, Record, write_sums};
    use crate::core::time::Timestamp;

    /// A batch of so many denials.
    pub(in crate::database::audit) fn batch(sequence: u64, rows: u32) -> Batch {
        let mut bytes = Vec::new();
        for row in 0..rows {
            let user = format!("u_{sequence}_{row}");
            let record = Record {
                at: Timestamp(1_700_000_000_000_000 + u64::from(row)),
                domain: "default",
                rule: Some("search"),
                user: Some(&user),
                key: None,
                address: Some("10.0.0.1"),
                path: Some("/search"),
                method: Some("GET"),
                outcome: Outcome::Denied,
                cost: 1,
                count: 10,
                limit: 10,
                status: 429,
                retry_ms: Some(1_000),
                cause: None,
                request_id: None,
                latency_us: 12,
                weight: 1,
            };
            record.write(&mut bytes);
        }
        let node = NodeName { region: "eu".to_owned(), node: "eu-1".to_owned() };
        Batch { id: BatchId { incarnation: 7, sequence }, node, rows, bytes, sums: Vec::new() }
    }

    /// The same with the sums of its records beside them.
    fn batch_with_sums(sequence: u64, rows: u32) -> Batch {
        let batch = batch(sequence, rows);
        let mut sums = Sums::default();
        Records::of(&batch.bytes).for_each(|record| sums.add(&record));
        Batch { sums: write_sums(&sums.into_sorted()), ..batch }
    }

    #[test]
    fn a_batch_comes_back_as_it_was() {
        for rows in [0, 1, 100] {
            assert_eq!(Batch::from_bytes(&batch(3, rows).to_bytes()), Ok(batch(3, rows)));
            let with_sums = batch_with_sums(3, rows);
            assert_eq!(with_sums.decisions(), u64::from(2 * rows));
            assert_eq!(Batch::from_bytes(&with_sums.to_bytes()), Ok(with_sums));
        }
        assert_eq!(&batch(3, 1).to_bytes()[..4], b"TGA1", "as the version before reads it");
    }

    #[test]
    fn a_batch_tells_of_as_many_decisions_as_any_kind_of_its_sums() {
        let whole = batch_with_sums(3, 100);
        let sums = read_sums(&whole.sums).unwrap();
        let told = |is_in: fn(&UsageKey) -> bool| {
            let part: Vec<_> = sums.iter().filter(|(key, _)| is_in(key)).cloned().collect();
            Batch { rows: 0, bytes: Vec::new(), sums: write_sums(&part), ..whole.clone() }.decisions()
        };
        assert_eq!(told(|_| true), 100);
        assert_eq!(told(|key| !key.user.is_empty()), 100, "the totals may be in another batch");
        assert_eq!(told(|key| !key.path.is_empty()), 100);
        let cost = [(sums[0].0.clone(), Usage { cost: 5, ..Usage::default() })];
        assert_eq!(Batch { sums: write_sums(&cost), ..batch(3, 0) }.decisions(), 1);
        assert_eq!(batch(3, 0).decisions(), 0);
    }

    #[test]
    fn a_damaged_file_still_tells_how_many_records_are_lost() {
        let mut bytes = batch(3, 100).to_bytes();
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(Batch::rows_claimed(&bytes), 100);
        bytes[HEAD + 18] = 0xff;
        assert_eq!(Batch::rows_claimed(&bytes), 1, "more than it has room for");
        assert_eq!(Batch::rows_claimed(b"TGA1"), 1);
    }

    #[test]
    fn a_file_cut_at_any_byte_is_damaged() {
        let whole = batch_with_sums(3, 3).to_bytes();
        for end in 0..whole.len() {
            assert_eq!(Batch::from_bytes(&whole[..end]), Err(Damaged), "cut at {end}");
        }
        assert_eq!(Batch::from_bytes(&[whole.as_slice(), &[0]].concat()), Err(Damaged));
    }

    #[test]
    fn a_file_with_any_bit_changed_is_damaged() {
        let whole = batch(3, 3).to_bytes();
        for at in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert_eq!(Batch::from_bytes(&changed), Err(Damaged), "bit {at}");
        }
    }
}
