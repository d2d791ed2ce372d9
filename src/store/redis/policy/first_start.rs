//! The mark of a server's memory: whether anything was asked of it in an earlier life, and whether it
//! remembers all that was ever spent. See `lua/ledger.lua`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use crate::store::redis::batch::scripts::FIRST_START;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::servers::dispatcher::Dispatcher;
use crate::store::redis::settings::Topology;

const MARK: &str = "tg:{memory}";
/// For one call.
const CALL_MAX: Duration = Duration::from_millis(500);

/// The steps of this daemon about the mark.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Marking {
    /// Set once: whoever finds no mark later finds a server that was flushed.
    done: AtomicBool,
}

impl Marking {
    /// True if no server bears a mark; `None`: one does not answer. A cluster bears none, so that it may have
    /// had an earlier life.
    pub(in crate::store::redis) async fn is_absent(&self, dispatcher: &Arc<Dispatcher>) -> Option<bool> {
        if dispatcher.places().topology() == Topology::Cluster {
            return Some(false);
        }
        let mut absent = true;
        let answers = each(dispatcher, redis::cmd("GET").arg(MARK)).await;
        if answers.is_empty() {
            return None;
        }
        for answer in answers {
            absent &= matches!(answer.ok()?, Value::Nil);
        }
        Some(absent)
    }

    /// Marks all servers as those of a first start. `false`: one bears another mark, or does not answer.
    pub(in crate::store::redis) async fn mark(&self, dispatcher: &Arc<Dispatcher>, start: u64) -> bool {
        if self.done.swap(true, Ordering::Relaxed) || dispatcher.places().topology() == Topology::Cluster {
            return false;
        }
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&FIRST_START.text).arg(1).arg(MARK).arg(start.to_be_bytes().as_slice());
        let answers = each(dispatcher, &command).await;
        !answers.is_empty() && answers.iter().all(|answer| matches!(answer, Ok(Value::Int(1))))
    }
}

async fn each(dispatcher: &Arc<Dispatcher>, command: &Cmd) -> Vec<Result<Value, Failure>> {
    let map = Arc::clone(&dispatcher.places().map());
    join_all(map.nodes().iter().map(|node| node.upkeep(command, CALL_MAX))).await
}
