//! Holding answers back: `delay = "hold"` of a `throttle` rule.
//!
//! A gateway that cannot delay a request waits for the answer of whom it asks. So an answer that comes after
//! the delay paces requests at every gateway. The decision is made, and charged, before the delay begins.

use metrics::Counter;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::clock::Deadline;
use super::decide::Decisions;
use crate::core::decision::Decision;
use crate::core::request::{Cost, Request};
use crate::core::time::Span;
use crate::telemetry::Metrics;

/// Answers that may be held back at once. Any further one is given at once, with its delay for the gateway.
const HELD_ANSWERS_MAX: usize = 4_096;

/// Who is held back.
#[derive(Debug)]
pub(super) struct Pacing {
    room: Semaphore,
    /// Cancelled: from now on nobody is held back.
    released: CancellationToken,
    /// Holds that lasted to their end, that the end of the daemon cut short, or that did not begin for want
    /// of room.
    ended: [Counter; 3],
}

impl Pacing {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self::with_room(HELD_ANSWERS_MAX, metrics)
    }

    fn with_room(room: usize, metrics: &Metrics) -> Self {
        let ended = ["held", "released", "full"]
            .map(|outcome| metrics.counter("throttle_holds_total", "outcome", outcome));
        Self { room: Semaphore::new(room), released: CancellationToken::new(), ended }
    }

    /// Waits for `most`, or until all are released. How long that was.
    async fn hold(&self, most: Span) -> Span {
        let [held, released, full] = &self.ended;
        let Ok(_room) = self.room.try_acquire() else {
            full.increment(1);
            return Span::ZERO;
        };
        let deadline = Deadline::after(most.to_std());
        tokio::select! {
            biased;
            () = self.released.cancelled() => {
                released.increment(1);
                let left = u64::try_from(deadline.left().as_micros()).unwrap_or(u64::MAX);
                Span(most.micros().saturating_sub(left))
            }
            () = tokio::time::sleep(deadline.left()) => {
                held.increment(1);
                most
            }
        }
    }
}

/// How long the answer to one call is held back: as long as the latest of its requests. A call that is denied
/// is not, nor is one that only asks, gives back or reports.
fn hold_of(requests: &[Request<'_>], decisions: &[Decision]) -> Option<Span> {
    if decisions.iter().any(|decision| !decision.allowed) {
        return None;
    }
    let takes = |cost: Cost| matches!(cost, Cost::Take(_) | Cost::Hold(_)) && cost.taken() > 0;
    let both = requests.iter().zip(decisions).filter(|(request, _)| takes(request.cost));
    both.map(|(_, decision)| decision.hold()).max().filter(|most| *most > Span::ZERO)
}

impl Engine {
    /// Whether the answer to these requests is to be held back.
    #[must_use]
    pub fn holds_back(requests: &[Request<'_>], decisions: &[Decision]) -> bool {
        hold_of(requests, decisions).is_some()
    }

    /// The same decisions when they may be told: at once, or after the delay of a rule with `delay = "hold"`.
    /// What is left of a delay then is the gateway's to keep.
    pub async fn held_back(&self, requests: &[Request<'_>], mut decisions: Decisions) -> Decisions {
        let Some(most) = hold_of(requests, &decisions) else { return decisions };
        Box::pin(async move {
            let held = self.pacing.hold(most).await;
            decisions.iter_mut().for_each(|decision| decision.was_held(held));
            decisions
        })
        .await
    }

    /// Lets go of all answers that are held back, and holds none from now on: the daemon ends.
    pub fn release_held(&self) {
        self.pacing.released.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LONG: Span = Span::from_secs(3_600);

    #[tokio::test]
    async fn what_finds_no_room_is_told_at_once_and_a_release_frees_the_others() {
        let pacing = Pacing::with_room(1, &Metrics::new());
        let second = async {
            assert_eq!(pacing.hold(LONG).await, Span::ZERO, "it finds no room");
            pacing.released.cancel();
        };
        let both = async { tokio::join!(biased; pacing.hold(LONG), second) };
        let (held, ()) = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        assert!(held < LONG, "{held:?}");
        assert!(pacing.hold(LONG).await < LONG, "after the release nobody is held back");
    }

    #[tokio::test]
    async fn an_answer_is_held_for_its_delay() {
        let pacing = Pacing::with_room(1, &Metrics::new());
        let deadline = Deadline::after(Duration::from_millis(100));
        for _ in 0..2 {
            assert_eq!(pacing.hold(Span::from_millis(60)).await, Span::from_millis(60));
        }
        assert!(deadline.left().is_zero());
    }
}
