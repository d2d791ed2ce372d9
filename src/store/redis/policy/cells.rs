//! Cells in the region's Redis: counters whose limits callers bring, in `tg:{cell:…}`.
//!
//! A cell is read with the server's time, changed here by the code that changes cells in memory, and written
//! back if nobody else has changed it meanwhile. So all daemons of the region count together, by one clock.
//! Of this daemon's callers one asks for all who want the same cell.

use std::sync::Arc;

use redis::{Cmd, Value as RedisValue};

use crate::core::cell::{CellChange, Nanos, Operation, Reply, Stored};
use crate::engine::clock::Deadline;
use crate::engine::port::{Answer, CellStore, CellsAway};
use crate::store::cells::MemoryCells;
use crate::store::redis::client::slots::{ClusterSlot, slot_of_tag};
use crate::store::redis::policy::cell_turns::{CellTurns, OwnTurn, Turn, WaitingOperation};
use crate::store::redis::policy::decide::Core;

/// Times that a cell is read anew because another daemon was quicker.
const TRIES_MAX: usize = 100;
/// Says that the expiry stays what it is.
const KEEP: &str = "keep";

const READ: &str = include_str!("../../../../lua/cell_read.lua");
const WRITE: &str = include_str!("../../../../lua/cell_write.lua");

/// Cells that all daemons of the region share.
#[derive(Debug)]
pub struct RedisCells {
    core: Arc<Core>,
    turns: CellTurns,
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
    let [seconds, micros, text] = &fields[..] else { return None };
    let now =
        integer(seconds)?.checked_mul(1_000_000_000)?.checked_add(integer(micros)?.checked_mul(1_000)?)?;
    let RedisValue::BulkString(text) = text else {
        return Some(Read { now, text: Vec::new(), stored: None });
    };
    let stored = Stored::from_text(std::str::from_utf8(text).ok()?)?;
    Some(Read { now, text: text.clone(), stored: Some(stored) })
}

impl RedisCells {
    /// Cells in the Redis of this store. `stand_in` counts while it is away.
    pub(in crate::store::redis) fn new(core: Arc<Core>, stand_in: Option<MemoryCells>) -> Self {
        Self { core, turns: CellTurns::default(), stand_in }
    }

    /// `None`: the server did not answer as it should in time.
    async fn ask(&self, name: &[u8], operation: &Operation) -> Option<Reply> {
        let deadline = Deadline::after(self.core.timeout);
        loop {
            let turn = match self.turns.take(name, operation) {
                Ok(turn) => turn,
                Err(mut line) => match deadline.wait(line.turn()).await.ok()? {
                    Some(Turn::Answered(reply)) => return reply,
                    Some(Turn::Own) => line.own(),
                    None => continue,
                },
            };
            return self.ask_for_all(name, &turn, operation, deadline).await;
        }
    }

    /// Carries an operation out, and those of all who wait behind it.
    async fn ask_for_all(
        &self,
        name: &[u8],
        turn: &OwnTurn<'_>,
        operation: &Operation,
        deadline: Deadline,
    ) -> Option<Reply> {
        let (key, slot) = key(name);
        let mut others: Vec<WaitingOperation> = Vec::new();
        for _ in 0..TRIES_MAX {
            others.append(&mut turn.others());
            let Some(found) = self.plain(&script(READ, &key), slot, deadline).await.as_ref().and_then(read)
            else {
                break;
            };
            let mut stored = found.stored;
            let own = carry_out(operation, &mut stored, found.now);
            let replies: Vec<Reply> =
                others.iter().map(|other| carry_out(&other.operation, &mut stored, found.now)).collect();
            if found.stored.is_none() && stored.is_some() && self.is_crowded(slot) {
                break;
            }
            let is_written = stored == found.stored || {
                let written = self.plain(&write_back(&key, &found, stored), slot, deadline).await;
                let Some(written) = written.as_ref().and_then(integer) else { break };
                written == 1
            };
            if is_written {
                others.into_iter().zip(replies).for_each(|(other, reply)| other.answer(Some(reply)));
                return Some(own);
            }
        }
        // Where only this caller's time is up, those who wait ask again by themselves.
        if !deadline.left().is_zero() {
            others.into_iter().for_each(|other| other.answer(None));
        }
        None
    }

    /// True if the server has room for no new keys.
    fn is_crowded(&self, slot: ClusterSlot) -> bool {
        let map = Arc::clone(&self.core.dispatcher.places().map());
        map.node(slot).is_some_and(|node| node.is_crowded())
    }

    async fn plain(&self, command: &Cmd, slot: ClusterSlot, deadline: Deadline) -> Option<RedisValue> {
        self.core.dispatcher.plain(command, slot, deadline).await.ok()
    }
}

/// Answers an operation, and leaves what is stored after it.
fn carry_out(operation: &Operation, stored: &mut Option<Stored>, now: Nanos) -> Reply {
    let (reply, change) = operation.apply(*stored, now);
    match change {
        CellChange::Keep => {}
        CellChange::Put(put) => *stored = Some(put),
        CellChange::Remove => *stored = None,
    }
    reply
}

/// Returns the command that writes what is stored in place of what was found.
fn write_back(key: &[u8], found: &Read, stored: Option<Stored>) -> Cmd {
    let mut write = script(WRITE, key);
    write.arg(&found.text).arg(stored.as_ref().map_or_else(String::new, Stored::to_text));
    let expires = stored.and_then(|stored| stored.expires);
    if found.stored.is_some_and(|before| before.expires == expires) {
        return write.arg(KEEP).to_owned();
    }
    // A started millisecond counts, so that no cell is gone before its time.
    let left = expires.map(|at| at.saturating_sub(found.now).max(1));
    write.arg(left.map_or_else(String::new, |left| (left / 1_000_000 + 1).to_string())).to_owned()
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
    fn an_expiry_that_stays_is_not_written_anew() {
        let value = |count| CellValue::Count(Number::Whole(count));
        let before = Stored { value: value(7), expires: Some(5_000_000), since: None };
        let found = Read { now: 1_000_000, text: b"7".to_vec(), stored: Some(before) };
        let last = |stored| {
            let command = write_back(b"k", &found, stored);
            let last = command.args_iter().last();
            match last {
                Some(redis::Arg::Simple(bytes)) => String::from_utf8(bytes.to_vec()).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(last(Some(Stored { value: value(8), ..before })), "keep");
        assert_eq!(last(Some(Stored { expires: Some(9_500_000), ..before })), "9");
        assert_eq!(last(Some(Stored { expires: None, ..before })), "");
    }

    #[test]
    fn a_reply_is_read_with_the_servers_time() {
        let text = |text: &str| RedisValue::BulkString(text.as_bytes().to_vec());
        let reply = RedisValue::Array(vec![text("10"), text("5"), text("7")]);
        let found = read(&reply).unwrap();
        assert_eq!(found.now, 10_000_005_000);
        let value = CellValue::Count(Number::Whole(7));
        assert_eq!(found.stored, Some(Stored { value, expires: None, since: None }));
        let ends = RedisValue::Array(vec![text("10"), text("5"), text("7@3!10002005000")]);
        let (since, expires) = (Some(3), Some(10_002_005_000));
        assert_eq!(read(&ends).unwrap().stored, Some(Stored { value, expires, since }));
        let none = RedisValue::Array(vec![text("10"), text("5"), RedisValue::Nil]);
        assert_eq!(read(&none).unwrap().stored, None);
        assert!(read(&RedisValue::Nil).is_none());
    }
}
