//! Decisions that outlive the client that asked for them.
//!
//! A store that has to be waited for charges as soon as it is asked. What it charged is then told to the
//! other regions, the audit log and the metrics, and of a call that several servers decide a part may have to
//! be given back. So a client that leaves meanwhile ends its request only once the decision is made.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::future::Either;

/// True while the decision of one request is made.
#[derive(Debug, Clone, Default)]
pub(super) struct Deciding(Arc<AtomicBool>);

impl Deciding {
    /// Makes a decision whole, whatever becomes of who asked.
    pub(super) async fn whole<T>(&self, decision: impl Future<Output = T>) -> T {
        self.0.store(true, Ordering::Relaxed);
        let made = decision.await;
        self.0.store(false, Ordering::Relaxed);
        made
    }

    fn is_under_way(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An answer in the making, which goes on by itself to the end of its decision when it is dropped.
pub(super) struct OutlivingAnswer<F: Future<Output: Send> + Send + 'static> {
    answer: Option<Pin<Box<F>>>,
    deciding: Deciding,
}

/// Begins an answer. `waits`: the store has to be waited for.
pub(super) fn begin<F: Future<Output: Send> + Send + 'static>(
    waits: bool,
    answer: impl FnOnce(Option<Deciding>) -> F,
) -> Either<F, OutlivingAnswer<F>> {
    if !waits {
        return Either::Left(answer(None));
    }
    let deciding = Deciding::default();
    Either::Right(OutlivingAnswer { answer: Some(Box::pin(answer(Some(deciding.clone())))), deciding })
}

impl<F: Future<Output: Send> + Send + 'static> Future for OutlivingAnswer<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(answer) = &mut self.answer else { return Poll::Pending };
        let answered = answer.as_mut().poll(cx);
        if answered.is_ready() {
            self.answer = None;
        }
        answered
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for OutlivingAnswer<F> {
    fn drop(&mut self) {
        let Some(mut answer) = self.answer.take().filter(|_| self.deciding.is_under_way()) else { return };
        let deciding = self.deciding.clone();
        // Only at the very end of a daemon there is no runtime.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        drop(runtime.spawn(poll_fn(move |cx| {
            let is_over = answer.as_mut().poll(cx).is_ready() || !deciding.is_under_way();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An answer whose decision takes a second, and which is then held back for a minute.
    fn slow(
        waits: bool,
        decided: &Arc<AtomicBool>,
        held: &Arc<AtomicBool>,
    ) -> impl Future<Output = ()> + use<> {
        let (decided, held) = (Arc::clone(decided), Arc::clone(held));
        begin(waits, |deciding| async move {
            let decision = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                decided.store(true, Ordering::Relaxed);
            };
            match deciding {
                Some(deciding) => deciding.whole(decision).await,
                None => decision.await,
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            held.store(true, Ordering::Relaxed);
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_is_made_whole_without_its_client_and_nothing_is_held_back_for_it() {
        for waits in [true, false] {
            let (decided, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let answer = slow(waits, &decided, &held);
            assert!(tokio::time::timeout(Duration::from_millis(10), answer).await.is_err());
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert_eq!(decided.load(Ordering::Relaxed), waits);
            assert!(!held.load(Ordering::Relaxed));
            // Nothing is left of it.
            assert_eq!(Arc::strong_count(&decided), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_leaves_is_given() {
        let (decided, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        slow(true, &decided, &held).await;
        assert!(held.load(Ordering::Relaxed));
    }
}
