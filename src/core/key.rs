//! The name of a bucket: which rule's shape it counts and for whom.
//!
//! Two different sets of values never make the same key: every value stands behind its length.

use smallvec::{Array, SmallVec};

/// Names what a rule's buckets count: its domain, name, algorithm, window and `per` (of
/// `concurrency` the window, its hold, is no part of it). A reload that changes none of these
/// keeps the shape, and so the buckets; one that changes any of them starts afresh. Valid within one process.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Shape(pub u32);

/// Shapes that one rule takes: its own and one for each window that a request may put in place of its own.
pub const SHAPES_PER_RULE: u32 = 8;

impl Shape {
    /// The shape of the rule itself, where this is one of the eight that it takes.
    #[must_use]
    pub const fn of_rule(self) -> Self {
        Self(self.0 - self.0 % SHAPES_PER_RULE)
    }

    /// The place of its rule in a table of this many: rules that were made one after the other have places of
    /// their own.
    #[inline]
    #[must_use]
    pub(crate) fn place(self, places: usize) -> usize {
        usize::try_from(self.0 / SHAPES_PER_RULE).unwrap_or(0) % places.max(1)
    }
}

/// A bucket's key inside one process: its shape, then its identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[u8; 62]>);

const SHAPE_BYTES: usize = 4;

impl Key {
    /// Makes the key of the bucket for these values, given in the order of the rule's `per`.
    pub fn new<'a>(shape: Shape, values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut bytes = SmallVec::from_slice(&shape.0.to_le_bytes());
        for value in values {
            push_value(&mut bytes, value);
        }
        Self(bytes)
    }

    /// Makes the key from an identity that another daemon sent.
    #[must_use]
    pub fn from_identity(shape: Shape, identity: &[u8]) -> Self {
        let mut bytes = SmallVec::from_slice(&shape.0.to_le_bytes());
        bytes.extend_from_slice(identity);
        Self(bytes)
    }

    /// The key of which these are the bytes; `None` if they are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= SHAPE_BYTES).then(|| Self(SmallVec::from_slice(bytes)))
    }

    /// The shape of the key of which these are the bytes.
    #[must_use]
    pub fn shape_of(bytes: &[u8]) -> Option<Shape> {
        bytes.first_chunk().map(|first| Shape(u32::from_le_bytes(*first)))
    }

    /// The same again, copied as a whole: where a key is copied often, cloning it byte by byte is felt.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }

    /// The bytes that name it in this process.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The values alone: the same bytes in every daemon.
    #[must_use]
    pub fn identity(&self) -> &[u8] {
        &self.0[SHAPE_BYTES..]
    }

    /// Bytes that it takes beside itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() } else { 0 }
    }

    /// Its shape.
    #[inline]
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape(u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]]))
    }
}

/// The values that name a bucket, in the order of the rule's `per`: what a lease or a reservation says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BucketValues {
    count: usize,
    identity: SmallVec<[u8; 22]>,
}

impl BucketValues {
    /// These, in their order.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for value in values {
            push_value(&mut all.identity, value);
            all.count += 1;
        }
        all
    }

    /// Returns the parts of a key, of which it has `count`.
    #[must_use]
    pub fn of(key: &Key, count: usize) -> Self {
        Self { count, identity: SmallVec::from_slice(key.identity()) }
    }

    /// Returns how many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// True where a bucket is the only one of its rule.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The key of the bucket under a rule of this shape.
    #[must_use]
    pub fn key(&self, shape: Shape) -> Key {
        Key::from_identity(shape, &self.identity)
    }

    /// Appends their number and themselves, each behind its length.
    pub(super) fn write(&self, bytes: &mut SmallVec<[u8; 62]>) {
        push_value(bytes, &self.count.to_string());
        bytes.extend_from_slice(&self.identity);
    }
}

/// Appends a value behind its length, as [`identity_values`] reads it.
pub(super) fn push_value<A: Array<Item = u8>>(bytes: &mut SmallVec<A>, value: &str) {
    let mut len = value.len();
    while len >= 0x80 {
        bytes.push(u8::try_from(len & 0x7f).unwrap_or(0) | 0x80);
        len >>= 7;
    }
    bytes.push(u8::try_from(len).unwrap_or(0));
    bytes.extend_from_slice(value.as_bytes());
}

/// Splits an identity into its values; `None` if the bytes are no identity. For showing and for checking what
/// a peer sent.
#[must_use]
pub fn identity_values(mut identity: &[u8]) -> Option<Vec<&str>> {
    let mut values = Vec::new();
    while !identity.is_empty() {
        let mut len = 0_usize;
        let mut shift = 0;
        loop {
            let (byte, rest) = identity.split_first()?;
            identity = rest;
            len |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 14 {
                return None;
            }
        }
        if len > identity.len() {
            return None;
        }
        let (value, rest) = identity.split_at(len);
        values.push(std::str::from_utf8(value).ok()?);
        identity = rest;
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_identity_splits_back_into_its_values(values in proptest::collection::vec(".{0,300}", 0..4)) {
            let key = Key::new(Shape(7), values.iter().map(String::as_str));
            prop_assert_eq!(identity_values(key.identity()), Some(values.iter().map(String::as_str).collect::<Vec<_>>()));
            prop_assert_eq!(key.shape(), Shape(7));
            prop_assert_eq!(&Key::from_identity(Shape(7), key.identity()), &key);
            let named = BucketValues::new(values.iter().map(String::as_str));
            prop_assert_eq!((named.len(), named.key(Shape(7))), (values.len(), key.clone()));
            prop_assert_eq!(BucketValues::of(&key, values.len()), named);
        }

        #[test]
        fn different_values_never_share_a_key(a in proptest::collection::vec(".{0,3}", 0..4), b in proptest::collection::vec(".{0,3}", 0..4)) {
            let of = |values: &[String]| Key::new(Shape(1), values.iter().map(String::as_str));
            prop_assert_eq!(a == b, of(&a) == of(&b));
        }

        #[test]
        fn any_bytes_split_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = identity_values(&bytes);
        }
    }
}
