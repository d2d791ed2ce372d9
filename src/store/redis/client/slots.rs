//! The slot of a key, as Redis Cluster counts them: CRC-16/XMODEM of its hash tag, modulo 16,384. The other
//! topologies place by slot too, so that one map serves all four.

/// Slots in all.
pub(in crate::store::redis) const SLOTS: usize = 16_384;

/// One of them; less than [`SLOTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::store::redis) struct ClusterSlot(pub(in crate::store::redis) u16);

const TABLE: [u16; 256] = table();

#[expect(clippy::cast_possible_truncation, clippy::indexing_slicing, reason = "both stay below 256")]
const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// The slot of a key with this hash tag.
pub(in crate::store::redis) fn slot_of_tag(tag: &[u8]) -> ClusterSlot {
    slot_of_checksum(checksum(0, tag))
}

/// The checksum of what has the checksum `before` and then these bytes; zero for nothing.
pub(in crate::store::redis) fn checksum(before: u16, bytes: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| {
        let [high, low] = crc.to_be_bytes();
        let next = TABLE.get(usize::from(high ^ byte)).copied().unwrap_or(0);
        u16::from_be_bytes([low, 0]) ^ next
    };
    bytes.iter().fold(before, step)
}

/// The slot of a hash tag with this checksum.
pub(in crate::store::redis) const fn slot_of_checksum(checksum: u16) -> ClusterSlot {
    ClusterSlot(checksum & 0x3fff)
}

/// The slot of a whole key, by Redis Cluster's rule for hash tags.
#[cfg(test)]
pub(in crate::store::redis) fn slot_of_key(key: &[u8]) -> ClusterSlot {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    slot_of_tag(tag.unwrap_or(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_redis_computes() {
        // From the specification, and `redis-cli cluster keyslot`.
        assert_eq!(slot_of_tag(b"123456789"), ClusterSlot(0x31c3));
        assert_eq!(slot_of_tag(b"foo"), ClusterSlot(12_182));
        assert_eq!(slot_of_key(b"tg:{foo}:x"), ClusterSlot(12_182));
    }
}
