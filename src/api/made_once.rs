//! Long answers that are the same for everybody: made once, away from the threads that decide, and kept.
//!
//! Requests that come meanwhile wait for the one that is being made. All who get it share its bytes, so that
//! it takes its memory once, however many leave it unread.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::Mutex;

use super::admin::aside;
use super::error::Refusal;
use crate::engine::clock::{Deadline, Stopwatch};

/// An answer rests for this many times as long as it took to make, so that whoever asks all the time takes a
/// twentieth of one processor.
const REST: u32 = 20;

/// One such answer, with what it is the answer to.
pub(super) struct MadeOnce<K>(Arc<Mutex<Option<MadeText<K>>>>);

struct MadeText<K> {
    of: K,
    /// Instant until which it is told; `None`: until another is asked for.
    until: Option<Deadline>,
    text: Bytes,
}

impl<K> Default for MadeOnce<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: PartialEq + Send + 'static> MadeOnce<K> {
    /// Returns the answer of `of`: the one that is kept, or else a new one. The new one is kept until another
    /// is asked for; with `at_most` also no longer than that, and no longer than [`REST`] times what it took
    /// to make.
    pub(super) async fn get(
        &self,
        of: K,
        at_most: Option<Duration>,
        make: impl FnOnce() -> Bytes + Send + 'static,
    ) -> Result<Bytes, Refusal> {
        let mut kept = Arc::clone(&self.0).lock_owned().await;
        let in_time = |kept: &&MadeText<K>| kept.until.is_none_or(|until| !until.left().is_zero());
        if let Some(kept) = kept.as_ref().filter(|kept| kept.of == of).filter(in_time) {
            return Ok(kept.text.clone());
        }
        // The lock goes with it: if this request is given up, the next one waits for what was begun.
        aside(move || {
            let begun = Stopwatch::start();
            let text = make();
            let rest = begun.elapsed().saturating_mul(REST);
            let until = at_most.map(|most| Deadline::after(most.min(rest)));
            *kept = Some(MadeText { of, until, text: text.clone() });
            text
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_kept_is_told_until_its_time_is_over_or_another_is_asked_for() {
        let once = MadeOnce::default();
        let made = |of: u64, at_most, text: &'static str| {
            once.get(of, at_most, move || Bytes::from_static(text.as_bytes()))
        };
        assert_eq!(made(1, None, "a").await.unwrap(), "a");
        assert_eq!(made(1, None, "b").await.unwrap(), "a");
        assert_eq!(made(2, Some(Duration::ZERO), "c").await.unwrap(), "c");
        assert_eq!(made(2, None, "d").await.unwrap(), "d");
        assert_eq!(made(2, None, "e").await.unwrap(), "d");
    }

    #[tokio::test]
    async fn those_who_ask_at_the_same_time_have_it_made_once() {
        let once = Arc::new(MadeOnce::default());
        let made = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let ask = || {
            let (once, made) = (Arc::clone(&once), Arc::clone(&made));
            tokio::spawn(async move {
                let make = move || {
                    made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    Bytes::from_static(b"text")
                };
                once.get((), None, make).await.unwrap()
            })
        };
        for asked in (0..50).map(|_| ask()).collect::<Vec<_>>() {
            assert_eq!(asked.await.unwrap(), "text");
        }
        assert_eq!(made.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}
