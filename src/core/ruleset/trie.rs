//! Texts by what they begin with: a radix tree over bytes, walked once per value whatever the number of
//! entries.

use smallvec::SmallVec;

/// A radix tree. An entry is found by every text that it is the beginning of.
#[derive(Debug)]
pub(super) struct Trie<T> {
    nodes: Vec<TrieNode<T>>,
}

#[derive(Debug)]
struct TrieNode<T> {
    /// Bytes from the parent to here.
    edge: SmallVec<[u8; 16]>,
    entry: Option<T>,
    /// First byte of the child's edge, and the child.
    children: SmallVec<[(u8, u32); 4]>,
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self { nodes: Vec::new() }
    }
}

impl<T> Trie<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Puts an entry in place of what this key had.
    pub(super) fn insert(&mut self, key: &[u8], entry: T) {
        if self.nodes.is_empty() {
            self.add_node(&[], None);
        }
        let (mut at, mut rest) = (0, key);
        while let Some(first) = rest.first() {
            let Some(child) = self.child(at, *first) else {
                let leaf = self.add_node(rest, Some(entry));
                self.adopt(at, *first, leaf);
                return;
            };
            let edge = &self.nodes[child].edge;
            let shared = edge.iter().zip(rest).take_while(|(own, other)| own == other).count();
            if shared < edge.len() {
                self.split(child, shared);
            }
            at = child;
            rest = rest.get(shared..).unwrap_or_default();
        }
        self.nodes[at].entry = Some(entry);
    }

    /// Cuts a node's edge in two, so that a node stands after its first `len` bytes. That node keeps the
    /// number.
    fn split(&mut self, node: usize, len: usize) {
        let edge = std::mem::take(&mut self.nodes[node].edge);
        let (upper, lower) = edge.split_at(len);
        let entry = self.nodes[node].entry.take();
        let children = std::mem::take(&mut self.nodes[node].children);
        let below = self.add_node(lower, entry);
        self.nodes[below].children = children;
        self.nodes[node].edge = upper.into();
        if let Some(first) = lower.first() {
            self.adopt(node, *first, below);
        }
    }

    fn add_node(&mut self, edge: &[u8], entry: Option<T>) -> usize {
        self.nodes.push(TrieNode { edge: edge.into(), entry, children: SmallVec::new() });
        self.nodes.len() - 1
    }

    fn adopt(&mut self, parent: usize, first: u8, child: usize) {
        let children = &mut self.nodes[parent].children;
        let place = children.partition_point(|(byte, _)| *byte < first);
        children.insert(place, (first, u32::try_from(child).unwrap_or(u32::MAX)));
    }

    fn child(&self, node: usize, first: u8) -> Option<usize> {
        let children = &self.nodes.get(node)?.children;
        let place = children.partition_point(|(byte, _)| *byte < first);
        children
            .get(place)
            .filter(|(byte, _)| *byte == first)
            .and_then(|(_, child)| usize::try_from(*child).ok())
    }

    /// Visits the entry of every key that a text begins with, shortest first. `byte(n)` is the text's byte
    /// `n`; the text may be read backwards that way.
    pub(super) fn walk(&self, len: usize, byte: impl Fn(usize) -> u8, mut visit: impl FnMut(&T)) {
        let (mut at, mut read) = (0, 0);
        loop {
            let Some(node) = self.nodes.get(at) else { return };
            if let Some(entry) = &node.entry {
                visit(entry);
            }
            if read == len {
                return;
            }
            let Some(child) = self.child(at, byte(read)) else { return };
            let edge = &self.nodes[child].edge;
            if edge.len() > len - read || !edge.iter().zip(read..).all(|(own, n)| *own == byte(n)) {
                return;
            }
            read += edge.len();
            at = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_exactly_the_keys_that_a_text_begins_with(
            keys in proptest::collection::btree_set("[ab]{0,5}", 0..20),
            text in "[abc]{0,8}",
        ) {
            let mut trie = Trie::default();
            for key in &keys {
                trie.insert(key.as_bytes(), key.clone());
            }
            let mut found = Vec::new();
            trie.walk(text.len(), |n| text.as_bytes()[n], |key| found.push(key.clone()));
            let mut expected: Vec<_> = keys.into_iter().filter(|key| text.starts_with(key.as_str())).collect();
            expected.sort_by_key(String::len);
            prop_assert_eq!(found, expected);
        }
    }
}
