//! Cells in the region's Redis: counters whose limits callers bring, in `tg:{cell:…}`.
//!
//! A cell is read with the server's time, changed here by the code that changes cells in memory, and written
//! back if nobody else has changed it meanwhile. So all daemons of the region count together, by one clock.

use std::sync::Arc;

use redis::{Cmd, Value as RedisValue};

use crate::core::cell::{CellChange, Nanos, Operation, Reply, Stored};
use crate::engine::clock::Deadline;
use crate::engine::port::{Answer, CellStore, CellsAway};
use crate::store::cells::MemoryCells;
use crate::store::redis::client::slots::{ClusterSlot, slot_of_tag};
use crate::store::redis::policy::decide::Core;

/// Times that a cell is read anew because another daemon was quicker. The deadline comes first on a busy key.
const TRIES_MAX: usize = 100;

const READ: &str = include_str!("../../../../lua/cell_read.lua");
const WRITE: &str = include_str!("../../../../lua/cell_write.lua");

/// Cells that all daemons of the region share.
#[derive(Debug)]
pub struct RedisCells {
    core: Arc<Core>,
    /// Counts while Redis is away; `None`: calls are refused then.
    stand_in: Option<MemoryCells>,
}

/// A cell as it was read, and when.
struct Read {
    now: Nanos,
    text: Vec<u8>,
    stored: Option<Stored>,
}

/// The key of a name, and where it lies.
fn key(name: &[u8]) -> (Vec<u8>, ClusterSlot) {
    let mut tag = b"cell:".to_vec();
    for byte in name {
        match byte {
            // Braces would end the hash tag.
            b'%' => tag.extend_from_slice(b"%25"),
            b'{' => tag.extend_from_slice(b"%7b"),
            b'}' => tag.extend_from_slice(b"%7d"),
            _ => tag.push(*byte),
        }
    }
    let slot = slot_of_tag(&tag);
    let mut key = b"tg:{".to_vec();
    key.extend_from_slice(&tag);
    key.push(b'}');
    (key, slot)
}

fn script(text: &str, key: &[u8]) -> Cmd {
    redis::cmd("EVAL").arg(text).arg(1).arg(key).to_owned()
}

fn integer(value: &RedisValue) -> Option<i64> {
    match value {
        RedisValue::Int(number) => Some(*number),
        RedisValue::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// Reads the reply of `lua/cell_read.lua`; `None` if it is none.
fn read(reply: &RedisValue) -> Option<Read> {
    let RedisValue::Array(fields) = reply else { return None };
    let [seconds, micros, text, left] = &fields[..] else { return None };
    let now =
        integer(seconds)?.checked_mul(1_000_000_000)?.checked_add(integer(micros)?.checked_mul(1_000)?)?;
    let RedisValue::BulkString(text) = text else {
        return Some(Read { now, text: Vec::new(), stored: None });
    };
    let left = integer(left)?;
    let expires = (left >= 0).then(|| now.saturating_add(left.saturating_mul(1_000_000)));
    let stored = Stored::from_text(std::str::from_utf8(text).ok()?, expires)?;
    Some(Read { now, text: text.clone(), stored: Some(stored) })
}

impl RedisCells {
    /// Cells in the Redis of this store. `stand_in` counts while it is away.
    pub(in crate::store::redis) const fn new(core: Arc<Core>, stand_in: Option<MemoryCells>) -> Self {
        Self { core, stand_in }
    }

    /// `None`: the server did not answer as it should in time.
    async fn ask(&self, name: &[u8], operation: &Operation) -> Option<Reply> {
        let (key, slot) = key(name);
        let deadline = Deadline::after(self.core.timeout);
        let dispatcher = &self.core.dispatcher;
        for _ in 0..TRIES_MAX {
            let found = dispatcher.plain(&script(READ, &key), slot, deadline).await.ok()?;
            let found = read(&found)?;
            let (reply, change) = operation.apply(found.stored, found.now);
            let put = match change {
                CellChange::Keep => return Some(reply),
                CellChange::Put(put) => Some(put),
                CellChange::Remove => None,
            };
            let mut write = script(WRITE, &key);
            write.arg(&found.text).arg(put.as_ref().map_or_else(String::new, Stored::to_text));
            // A started millisecond counts, so that no cell is gone before its time.
            let left = put.and_then(|put| put.expires).map(|at| at.saturating_sub(found.now).max(1));
            write.arg(left.map_or_else(String::new, |left| (left / 1_000_000 + 1).to_string()));
            if integer(&dispatcher.plain(&write, slot, deadline).await.ok()?)? == 1 {
                return Some(reply);
            }
        }
        None
    }
}

impl CellStore for RedisCells {
    fn apply<'a>(&'a self, key: &'a [u8], operation: &'a Operation) -> Answer<'a, Result<Reply, CellsAway>> {
        Answer::Later(Box::pin(async move {
            if let Some(reply) = self.ask(key, operation).await {
                return Ok(reply);
            }
            let stand_in = self.stand_in.as_ref().ok_or(CellsAway)?;
            stand_in.apply(key, operation).get().await
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::cell::{CellValue, Number};

    #[test]
    fn no_two_names_share_a_key() {
        assert_eq!(key(b"user:1").0, b"tg:{cell:user:1}");
        assert_ne!(key(b"a}").0, key(b"a%7d").0);
        assert_eq!(key(&[0xff]).0, b"tg:{cell:\xff}");
    }

    #[test]
    fn a_reply_is_read_with_the_servers_time() {
        let text = |text: &str| RedisValue::BulkString(text.as_bytes().to_vec());
        let reply = RedisValue::Array(vec![text("10"), text("5"), text("7"), RedisValue::Int(2)]);
        let found = read(&reply).unwrap();
        assert_eq!(found.now, 10_000_005_000);
        let (value, expires) = (CellValue::Count(Number::Whole(7)), Some(10_002_005_000));
        assert_eq!(found.stored, Some(Stored { value, expires, since: None }));
        let text_since = RedisValue::Array(vec![text("10"), text("5"), text("7@3"), RedisValue::Int(2)]);
        assert_eq!(read(&text_since).unwrap().stored, Some(Stored { value, expires, since: Some(3) }));
        let none = RedisValue::Array(vec![text("10"), text("5"), RedisValue::Nil, RedisValue::Int(-2)]);
        assert_eq!(read(&none).unwrap().stored, None);
        assert!(read(&RedisValue::Nil).is_none());
    }
}
