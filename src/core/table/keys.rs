//! The key bytes of one table, packed into pages: an allocation for each key would cost more than many keys
//! themselves.
//!
//! A key that is forgotten leaves a gap; its table packs the keys anew once gaps are a quarter of what is
//! kept.

/// Bytes of a page that many keys share.
const PAGE_BYTES: usize = 4_096;
/// A longer key gets a page of its own, so that the ends of shared pages waste little.
const SHARED_KEY_BYTES_MAX: usize = 512;
/// Gaps smaller than this are not worth packing.
const GAPS_MIN: usize = PAGE_BYTES;

/// The place of a key's bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KeyAt {
    page: u16,
    offset: u16,
    len: u16,
}

/// Keys in pages.
#[derive(Debug, Default)]
pub(super) struct KeyBytes {
    pages: Vec<Box<[u8]>>,
    /// The shared page that is being filled, and how far.
    open: Option<(u16, usize)>,
    /// Bytes that all pages take, used or not.
    paged: usize,
    live: usize,
    gaps: usize,
}

impl KeyBytes {
    pub(super) fn get(&self, at: KeyAt) -> &[u8] {
        let (from, len) = (usize::from(at.offset), usize::from(at.len));
        self.pages.get(usize::from(at.page)).and_then(|page| page.get(from..from + len)).unwrap_or_default()
    }

    /// Stores a key. `None`: it is longer than 65,535 bytes, or there are as many pages.
    pub(super) fn put(&mut self, key: &[u8]) -> Option<KeyAt> {
        let len = u16::try_from(key.len()).ok()?;
        let (page, from) = if key.len() > SHARED_KEY_BYTES_MAX {
            (self.page(key.len())?, 0)
        } else {
            match self.open {
                Some((page, filled)) if filled + key.len() <= PAGE_BYTES => (page, filled),
                _ => (self.page(PAGE_BYTES)?, 0),
            }
        };
        let into = self.pages.get_mut(usize::from(page))?.get_mut(from..from + key.len())?;
        into.copy_from_slice(key);
        if key.len() <= SHARED_KEY_BYTES_MAX {
            self.open = Some((page, from + key.len()));
        }
        self.live += key.len();
        Some(KeyAt { page, offset: u16::try_from(from).ok()?, len })
    }

    /// Leaves a gap where a key was.
    pub(super) fn forget(&mut self, at: KeyAt) {
        let len = usize::from(at.len);
        self.live = self.live.saturating_sub(len);
        self.gaps += len;
    }

    /// Bytes of the keys.
    pub(super) const fn live(&self) -> usize {
        self.live
    }

    pub(super) fn worth_packing(&self) -> bool {
        self.gaps > self.live / 4 + GAPS_MIN
    }

    /// Bytes allocated beyond the keys themselves.
    pub(super) fn overhead(&self) -> usize {
        self.paged.saturating_sub(self.live) + self.pages.capacity() * size_of::<Box<[u8]>>()
    }

    fn page(&mut self, bytes: usize) -> Option<u16> {
        let page = u16::try_from(self.pages.len()).ok()?;
        self.pages.push(vec![0; bytes].into_boxed_slice());
        self.paged += bytes;
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_of_any_length_are_found_as_they_were_put(lengths in proptest::collection::vec(0..2_000_usize, 0..80)) {
            let mut keys = KeyBytes::default();
            let put: Vec<_> = lengths
                .iter()
                .enumerate()
                .map(|(number, len)| {
                    let key = vec![u8::try_from(number).unwrap(); *len];
                    (keys.put(&key).unwrap(), key)
                })
                .collect();
            for (at, key) in &put {
                prop_assert_eq!(keys.get(*at), &key[..]);
            }
        }
    }

    #[test]
    fn a_key_too_long_to_be_named_is_refused() {
        assert!(KeyBytes::default().put(&vec![0; 65_536]).is_none());
        assert!(KeyBytes::default().put(&vec![0; 65_535]).is_some());
    }
}
