//! Turns of answers that are held back, for those who leave before their turn has come.
//!
//! A turn is charged when its request comes, and those who come later wait behind it. Whoever leaves gives it
//! back, and the next who comes has it. A turn before one that somebody still waits for stays taken: given
//! back, it would be had at the time of a later one, so that two requests passed in the time of one.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::Engine;
use super::clock::Deadline;
use super::loaded::Loaded;
use super::port::{Intent, Outcome};
use super::reserve::ReservedBucket;
use crate::core::algorithm::Limit;
use crate::core::decision::RuleOutcome;
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::rule_name::RuleName;
use crate::core::ruleset::Match;
use crate::core::time::{Span, Timestamp};

/// Most turns that wait for a store that has to be waited for. More pass unused.
const LEFT_MAX: usize = 4_096;
/// Most turns of one round, so that a flood of clients that leave holds up no other upkeep.
const ROUND_MAX: usize = 64;

/// The turn that a request has in one bucket.
#[derive(Debug)]
pub(super) struct HeldTurn {
    rule: Arc<RuleName>,
    permits: u64,
    due: Deadline,
    /// The limit of the bucket, and that of its rule, when it was taken. Under others it would be worth more
    /// or less.
    whole: Limit,
    limit: Limit,
}

impl HeldTurn {
    /// The turn that was just charged in the bucket of this key; `None` where it has come already, or in a
    /// bucket that the request's own limit makes.
    pub(super) fn of(
        key: &Key,
        (matches, costs): (&[Match<'_>], &[Cost]),
        rules: &[RuleOutcome],
    ) -> Option<Self> {
        let mut charged = matches.iter().zip(costs).zip(rules);
        let ((found, cost), ruled) = charged.find(|((found, _), _)| found.key.as_ref() == Some(key))?;
        let waits = ruled.delay > Span::ZERO && key.shape() == found.rule.shape;
        waits.then(|| Self {
            rule: Arc::clone(&found.rule.named),
            permits: cost.taken(),
            due: Deadline::after(ruled.delay.to_std()),
            whole: found.whole,
            limit: found.rule.limit,
        })
    }

    /// Its bucket, if the rule still counts in it, and as it did.
    fn bucket<'a>(&self, loaded: &'a Loaded, key: &Key, now: Timestamp) -> Option<ReservedBucket<'a>> {
        let rule = loaded.set.get(&self.rule.domain, &self.rule.name)?;
        let counts = rule.rule.action.counts() && rule.shape == key.shape() && rule.limit == self.limit;
        counts.then(|| ReservedBucket::with_limit(loaded, rule, key.copied(), self.whole, now))
    }
}

/// The turns of one bucket that have not come, in their order.
#[derive(Debug, Default)]
pub(super) struct BucketTurns(Vec<QueuedTurn>);

#[derive(Debug)]
struct QueuedTurn {
    number: u64,
    turn: HeldTurn,
    /// Nobody waits for it any more.
    left: bool,
}

impl BucketTurns {
    /// Puts a turn of this number among them.
    pub(super) fn put(&mut self, number: u64, turn: HeldTurn) {
        self.forget_come();
        let place = self.0.partition_point(|queued| queued.turn.due <= turn.due);
        self.0.insert(place, QueuedTurn { number, turn, left: false });
    }

    /// The client of the turn of this number has left. Returns the turns behind which nobody waits any more.
    pub(super) fn leave(&mut self, number: u64) -> Vec<HeldTurn> {
        self.forget_come();
        if let Some(own) = self.0.iter_mut().find(|queued| queued.number == number) {
            own.left = true;
        }
        let waited_for =
            self.0.iter().rposition(|queued| !queued.left).map_or(0, |last| last.saturating_add(1));
        self.0.split_off(waited_for).into_iter().map(|queued| queued.turn).collect()
    }

    fn forget_come(&mut self) {
        self.0.retain(|queued| !queued.turn.due.left().is_zero());
    }
}

/// Turns that wait to be given back to a store that has to be waited for.
#[derive(Debug, Default)]
pub(super) struct LeftTurns {
    waiting: Mutex<Vec<(Key, HeldTurn)>>,
    noted: Notify,
}

impl LeftTurns {
    fn put(&self, key: &Key, turn: HeldTurn) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < LEFT_MAX {
            waiting.push((key.copied(), turn));
        }
        drop(waiting);
        self.noted.notify_one();
    }

    /// Takes those of one round.
    fn take(&self) -> Vec<(Key, HeldTurn)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let round = waiting.len().min(ROUND_MAX);
        let taken = waiting.drain(..round).collect();
        if !waiting.is_empty() {
            self.noted.notify_one();
        }
        taken
    }
}

impl Engine {
    /// Gives a turn back at once, or has [`Self::give_back_turns`] do so.
    pub(super) fn turn_left(&self, key: &Key, turn: HeldTurn) {
        self.pacing.count_left();
        let (loaded, now) = (self.loaded.load_full(), self.clock.now());
        let Some(bucket) = turn.bucket(&loaded, key, now) else { return };
        let charges = [bucket.refund(&loaded, self.regions_known(), turn.permits)];
        match self.store.try_decide(&charges, Intent::Charge, now) {
            Some(outcome) => self.tell_turn(&bucket, &outcome, now),
            None => self.pacing.left_turns().put(key, turn),
        }
    }

    /// Waits until there are turns for [`Self::give_back_turns`].
    pub async fn turns_are_left(&self) {
        self.pacing.left_turns().noted.notified().await;
    }

    /// Gives back the turns of those who have left, where the store has to be waited for.
    pub async fn give_back_turns(&self) {
        let turns = self.pacing.left_turns().take();
        for (key, turn) in turns.into_iter().filter(|(_, turn)| !turn.due.left().is_zero()) {
            let (loaded, now) = (self.loaded.load_full(), self.clock.now());
            let Some(bucket) = turn.bucket(&loaded, &key, now) else { continue };
            let charges = [bucket.refund(&loaded, self.regions_known(), turn.permits)];
            let outcome = self.settle_reserved(&charges, now).await;
            self.tell_turn(&bucket, &outcome, now);
        }
    }

    fn tell_turn(&self, bucket: &ReservedBucket<'_>, outcome: &Outcome, now: Timestamp) {
        outcome.counted.iter().for_each(|counted| self.tell_commit(bucket, counted, now));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn turn(seconds: u64) -> HeldTurn {
        let limit = Limit { permits: 60, window: Span::from_secs(60), calendar: None, burst: 1, queue: 12 };
        HeldTurn {
            rule: Arc::new(RuleName { domain: "d".to_owned(), name: "r".to_owned() }),
            permits: seconds,
            due: Deadline::after(Duration::from_secs(seconds)),
            whole: limit,
            limit,
        }
    }

    /// Leaves one of three turns after the other. Returns what is given back each time, by its permits.
    fn left(numbers: [u64; 3]) -> [Vec<u64>; 3] {
        let mut turns = BucketTurns::default();
        for number in [1, 3, 2] {
            turns.put(number, turn(100 * number));
        }
        numbers.map(|number| turns.leave(number).iter().map(|turn| turn.permits).collect())
    }

    #[test]
    fn a_turn_goes_back_once_nobody_waits_behind_it() {
        assert_eq!(left([3, 2, 1]), [vec![300], vec![200], vec![100]]);
        assert_eq!(left([1, 2, 3]), [vec![], vec![], vec![100, 200, 300]]);
        assert_eq!(left([2, 3, 3]), [vec![], vec![200, 300], vec![]]);
    }

    #[test]
    fn a_turn_that_has_come_does_not_go_back() {
        let mut turns = BucketTurns::default();
        turns.put(1, turn(0));
        turns.put(2, turn(100));
        let back: Vec<u64> = turns.leave(1).iter().chain(&turns.leave(2)).map(|turn| turn.permits).collect();
        assert_eq!(back, [100]);
    }
}
