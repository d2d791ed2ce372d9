//! The owner of a key among the daemons of a region: a consistent-hash ring with virtual nodes.
//!
//! All daemons of a cluster must agree, whatever their build, so what is hashed are bytes fixed here and
//! pinned by a golden test, not what a derive happens to write. Knows nothing of who is alive: the caller
//! lists the nodes.

use std::hash::{Hash, Hasher};

use hashring::HashRing;

use super::regions::WorldKey;

/// Points on the ring for each node: enough to keep loads within about 10 % of each other.
pub const POINTS_PER_NODE: u32 = 128;

/// Maps keys to nodes. A node that comes or goes moves only the keys that it takes or leaves.
#[derive(Clone)]
pub struct Ring {
    nodes: Vec<String>,
    points: HashRing<RingPoint>,
}

#[derive(Clone)]
struct RingPoint {
    node: usize,
    bytes: Vec<u8>,
}

struct Spot<'a>(&'a WorldKey);

struct RawBytes<'a>(&'a [u8]);

impl Ring {
    /// A ring of these nodes; their order does not matter, repeated names count once.
    #[must_use]
    pub fn new<'a>(nodes: impl IntoIterator<Item = &'a str>) -> Self {
        let mut nodes: Vec<String> = nodes.into_iter().map(str::to_owned).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut points = HashRing::new();
        points.batch_add(
            nodes
                .iter()
                .enumerate()
                .flat_map(|(node, name)| {
                    (0..POINTS_PER_NODE).map(move |point| {
                        // The index before the name: no name can make another's bytes.
                        let mut bytes = point.to_le_bytes().to_vec();
                        bytes.extend_from_slice(name.as_bytes());
                        RingPoint { node, bytes }
                    })
                })
                .collect(),
        );
        Self { nodes, points }
    }

    /// The node that owns `key`; `None` if the ring is empty.
    #[must_use]
    pub fn owner(&self, key: &WorldKey) -> Option<&str> {
        let point = self.points.get(&Spot(key))?;
        self.nodes.get(point.node).map(String::as_str)
    }

    /// The node that owns what these bytes name; `None` if the ring is empty. The bytes are hashed as they
    /// are.
    #[must_use]
    pub fn owner_of(&self, bytes: &[u8]) -> Option<&str> {
        let point = self.points.get(&RawBytes(bytes))?;
        self.nodes.get(point.node).map(String::as_str)
    }

    /// The nodes, sorted.
    #[must_use]
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new([])
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl Hash for RingPoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.bytes);
    }
}

impl Hash for RawBytes<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0);
    }
}

impl Hash for Spot<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for text in [&self.0.rule.domain, &self.0.rule.name] {
            state.write(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            state.write(text.as_bytes());
        }
        state.write(&self.0.identity);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::wire::RuleName;

    fn key(n: u32) -> WorldKey {
        let rule = RuleName { domain: "default".to_owned(), name: "per-user".to_owned() };
        WorldKey { rule, identity: format!("\u{5}u{n:04}").into_bytes() }
    }

    const GOLDEN: &str = include_str!("ring.golden");

    #[test]
    fn owners_are_the_ones_every_build_has_agreed_on() {
        let ring = Ring::new(["n1", "n2", "n3", "n4", "n5"]);
        let owners: Vec<&str> = (0..50).filter_map(|n| ring.owner(&key(n))).collect();
        assert_eq!(owners.join("\n"), GOLDEN.trim_end());
    }

    #[test]
    fn the_order_of_the_nodes_does_not_matter() {
        let (a, b) = (Ring::new(["n1", "n2", "n3"]), Ring::new(["n3", "n1", "n2", "n1"]));
        assert!((0..500).all(|n| a.owner(&key(n)) == b.owner(&key(n))));
    }

    #[test]
    fn every_node_gets_about_its_share() {
        let ring = Ring::new(["n1", "n2", "n3", "n4", "n5"]);
        let mut loads = BTreeMap::<&str, u32>::new();
        for n in 0..20_000 {
            *loads.entry(ring.owner(&key(n)).unwrap()).or_default() += 1;
        }
        assert!(loads.values().all(|&load| (3_000..5_000).contains(&load)), "{loads:?}");
    }

    #[test]
    fn a_node_that_joins_takes_only_its_share_and_nothing_else_moves() {
        let (five, six) =
            (Ring::new(["n1", "n2", "n3", "n4", "n5"]), Ring::new(["n1", "n2", "n3", "n4", "n5", "n6"]));
        let moved: Vec<_> = (0..10_000)
            .filter_map(|n| {
                let (before, after) = (five.owner(&key(n))?, six.owner(&key(n))?);
                (before != after).then_some(after)
            })
            .collect();
        assert!(moved.iter().all(|&to| to == "n6"));
        assert!((1_000..2_400).contains(&moved.len()), "{}", moved.len());
    }

    #[test]
    fn an_empty_ring_owns_nothing() {
        assert_eq!(Ring::default().owner(&key(1)), None);
    }
}
