//! The facts that the daemons of a region keep for each other about users and keys, in `tg:{who:…}`.
//!
//! Only a convenience: a server that does not answer within a few milliseconds is as good as one that knows
//! nothing. An empty value bars a name: [`keep`](Shelf::keep) writes only where nothing lies.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::engine::clock::Deadline;
use crate::engine::identity::Shelf;
use crate::engine::port::Later;
use crate::store::redis::client::slots::{ClusterSlot, slot_of_tag};
use crate::store::redis::policy::decide::Core;

/// Longest time for one batch.
const PATIENCE: Duration = Duration::from_millis(10);
/// Longest time to bar names: it keeps what is outdated away, so it is worth more patience.
const BAR_PATIENCE: Duration = Duration::from_millis(100);

/// The shelf of the region.
#[derive(Debug, Clone)]
pub struct RedisShelf {
    core: Arc<Core>,
}

impl RedisShelf {
    pub(in crate::store::redis) const fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    async fn each(
        &self,
        commands: impl Iterator<Item = (Cmd, ClusterSlot)>,
        patience: Duration,
    ) -> Vec<Option<Value>> {
        let deadline = Deadline::after(patience);
        let asked = commands.map(|(command, slot)| async move {
            self.core.dispatcher.plain(&command, slot, deadline).await.ok()
        });
        join_all(asked).await
    }
}

/// The key of a name, and where it lies.
fn key(name: &str) -> (String, ClusterSlot) {
    // Braces would end the hash tag.
    let tag = format!("who:{}", name.replace('%', "%25").replace('{', "%7b").replace('}', "%7d"));
    let slot = slot_of_tag(tag.as_bytes());
    (format!("tg:{{{tag}}}"), slot)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Shelf for RedisShelf {
    fn fetch<'a>(&'a self, names: &'a [String]) -> Later<'a, Vec<Option<Vec<u8>>>> {
        Box::pin(async move {
            let commands = names.iter().map(|name| {
                let (key, slot) = key(name);
                (redis::cmd("GET").arg(key).to_owned(), slot)
            });
            let read = |value| match value {
                Some(Value::BulkString(bytes)) if !bytes.is_empty() => Some(bytes),
                _ => None,
            };
            self.each(commands, PATIENCE).await.into_iter().map(read).collect()
        })
    }

    fn keep<'a>(&'a self, facts: &'a [(String, Vec<u8>)], time: Duration) -> Later<'a, ()> {
        Box::pin(async move {
            // Facts that are kept for convenience take no room that counters need.
            let map = Arc::clone(&self.core.dispatcher.places().map());
            let facts = facts.iter().map(|(name, fact)| (key(name), fact));
            let facts = facts.filter(|((_, slot), _)| !map.node(*slot).is_some_and(|node| node.is_crowded()));
            let commands = facts.map(|((key, slot), fact)| {
                (redis::cmd("SET").arg(key).arg(fact).arg("NX").arg("PX").arg(millis(time)).to_owned(), slot)
            });
            self.each(commands, PATIENCE).await;
        })
    }

    fn bar<'a>(&'a self, names: &'a [String], time: Duration) -> Later<'a, bool> {
        Box::pin(async move {
            let commands = names.iter().map(|name| {
                let (key, slot) = key(name);
                (redis::cmd("SET").arg(key).arg("").arg("PX").arg(millis(time)).to_owned(), slot)
            });
            self.each(commands, BAR_PATIENCE).await.iter().all(Option::is_some)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_names_share_a_key() {
        assert_eq!(key("1:user:u_42").0, "tg:{who:1:user:u_42}");
        assert_ne!(key("1:user:a}").0, key("1:user:a%7d").0);
    }
}
