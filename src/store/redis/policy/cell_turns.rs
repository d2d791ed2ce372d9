//! Turns at the cells of Redis: of all callers that want one cell, one asks Redis, for itself and for those
//! who came before it began. So a key that everybody asks for costs two round trips for all who wait, and not
//! a race that all but one lose.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::core::cell::{Operation, Reply};

/// Most operations that are carried out together.
const TOGETHER_MAX: usize = 256;

/// An answer to one who waited.
#[derive(Debug)]
pub(super) enum Turn {
    /// Another caller has carried the operation out; `None` where Redis did not answer as it should.
    Answered(Option<Reply>),
    /// It is this caller's turn to ask.
    Own,
}

/// An operation that waits for its turn.
#[derive(Debug)]
pub(super) struct WaitingOperation {
    pub(super) operation: Operation,
    answer: oneshot::Sender<Turn>,
}

impl WaitingOperation {
    /// Answers who waits, if it still does.
    pub(super) fn answer(self, reply: Option<Reply>) {
        let _ = self.answer.send(Turn::Answered(reply));
    }
}

/// A caller that waits for its turn.
#[derive(Debug)]
pub(super) struct InLine<'t> {
    turns: &'t CellTurns,
    name: &'t [u8],
    answer: oneshot::Receiver<Turn>,
}

impl<'t> InLine<'t> {
    /// Waits for an answer, or for the turn; `None` where who asked for this caller gave up.
    pub(super) async fn turn(&mut self) -> Option<Turn> {
        (&mut self.answer).await.ok()
    }

    /// Takes the turn that was passed to this caller.
    pub(super) const fn own(&self) -> OwnTurn<'t> {
        OwnTurn { turns: self.turns, name: self.name }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        // A turn that comes in the moment in which its caller gives up passes on.
        self.answer.close();
        if let Ok(Turn::Own) = self.answer.try_recv() {
            drop(self.own());
        }
    }
}

/// The cells that somebody is asking for, each with those who wait. A cell that nobody asks for has no entry,
/// so there are no more than callers.
#[derive(Debug, Default)]
pub(super) struct CellTurns(Mutex<HashMap<Box<[u8]>, VecDeque<WaitingOperation>, RandomState>>);

/// One caller's turn at a cell. It passes to the next one when this is dropped.
#[derive(Debug)]
pub(super) struct OwnTurn<'t> {
    turns: &'t CellTurns,
    name: &'t [u8],
}

impl CellTurns {
    fn waiting(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, VecDeque<WaitingOperation>, RandomState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn at a cell, or waits in line for it.
    pub(super) fn take<'t>(
        &'t self,
        name: &'t [u8],
        operation: &Operation,
    ) -> Result<OwnTurn<'t>, InLine<'t>> {
        let mut waiting = self.waiting();
        if let Some(line) = waiting.get_mut(name) {
            let (sender, answer) = oneshot::channel();
            line.push_back(WaitingOperation { operation: *operation, answer: sender });
            return Err(InLine { turns: self, name, answer });
        }
        waiting.insert(name.into(), VecDeque::new());
        Ok(OwnTurn { turns: self, name })
    }
}

impl OwnTurn<'_> {
    /// Takes those who wait out of the line, to be answered with this caller.
    pub(super) fn others(&self) -> Vec<WaitingOperation> {
        let mut waiting = self.turns.waiting();
        let line = waiting.get_mut(self.name);
        line.map(|line| line.drain(..line.len().min(TOGETHER_MAX)).collect()).unwrap_or_default()
    }
}

impl Drop for OwnTurn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.turns.waiting();
        let Some(line) = waiting.get_mut(self.name) else { return };
        while let Some(next) = line.pop_front() {
            // Whoever gave up meanwhile takes no turn.
            if next.answer.send(Turn::Own).is_ok() {
                return;
            }
        }
        waiting.remove(self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(line: &mut InLine<'_>) -> Option<Turn> {
        line.answer.try_recv().ok()
    }

    #[test]
    fn one_asks_for_all_who_wait_and_the_turn_passes_to_who_came_later() {
        let turns = CellTurns::default();
        let first = turns.take(b"k", &Operation::Look).unwrap();
        let mut second = turns.take(b"k", &Operation::Look).unwrap_err();
        assert!(turns.take(b"other", &Operation::Look).is_ok(), "another cell has turns of its own");
        let others = first.others();
        assert_eq!(others.len(), 1);
        let mut third = turns.take(b"k", &Operation::Look).unwrap_err();
        others.into_iter().for_each(|other| other.answer(Some(Reply::Seen(None))));
        assert!(matches!(answered(&mut second), Some(Turn::Answered(Some(Reply::Seen(None))))));
        drop(first);
        assert!(matches!(answered(&mut third), Some(Turn::Own)));
        drop(third.own());
        assert!(turns.waiting().is_empty(), "nothing is left of a cell that nobody asks for");
    }

    #[test]
    fn who_gave_up_takes_no_turn() {
        let turns = CellTurns::default();
        let first = turns.take(b"k", &Operation::Look).unwrap();
        drop(turns.take(b"k", &Operation::Look).unwrap_err());
        let (third, mut fourth) = (
            turns.take(b"k", &Operation::Look).unwrap_err(),
            turns.take(b"k", &Operation::Look).unwrap_err(),
        );
        drop(first);
        // The turn was passed to it already.
        drop(third);
        assert!(matches!(answered(&mut fourth), Some(Turn::Own)));
        drop(fourth.own());
        assert!(turns.waiting().is_empty());
    }
}
