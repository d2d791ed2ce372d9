//! Many requests of one call, each decided by itself, in their order.
//!
//! Many requests wait together if the store has to be waited for: so a batch costs a few round trips, not one
//! for each check. Each is answered as if they had gone one after the other. That needs no care where one
//! step of the store decides a request; where it takes several (identities in different slots of a cluster),
//! what is reserved and perhaps given back must not be seen by others of the batch, so whoever shares a
//! bucket with such a request waits for it.

use std::collections::HashSet;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::Engine;
use super::decide::Decisions;
use super::footprint::Footprint;
use super::port::{Answer, Intent};
use crate::core::decision::Decision;
use crate::core::request::Request;

/// Requests of one call that wait for the store at once. The rest follows when those are answered, and has
/// the whole timeout for itself.
const AT_ONCE_MAX: usize = 256;

/// The buckets that those who wait now touch.
#[derive(Default)]
struct Touched {
    all: HashSet<u64>,
    in_many_steps: HashSet<u64>,
    somebody: bool,
    closed: bool,
}

impl Touched {
    /// Adds one more, if it may wait beside the others.
    fn admits(&mut self, one: &Footprint) -> bool {
        // A decision that may touch anything waits alone.
        if self.closed || (one.unknown && self.somebody) {
            return false;
        }
        let others = if one.many_steps { &self.all } else { &self.in_many_steps };
        if one.buckets.iter().any(|bucket| others.contains(bucket)) {
            return false;
        }
        (self.somebody, self.closed) = (true, one.unknown);
        self.all.extend(&one.buckets);
        if one.many_steps {
            self.in_many_steps.extend(&one.buckets);
        }
        true
    }
}

impl Engine {
    /// Decides each request by itself, in their order, and hands each decision to `then`, in that order too.
    pub async fn decide_each<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
        mut then: impl FnMut(&Request<'r>, &Decision),
    ) {
        // One wait for all of them, rather than one for each.
        self.look_ahead(requests).await;
        let mut rest = requests;
        while let Some((first, others)) = rest.split_first() {
            let alone = std::slice::from_ref(first);
            if self.store.answers_at_once()
                && let Answer::Now(decisions) = self.decide_with(alone, Intent::Charge, None)
            {
                decisions.iter().for_each(|decision| then(first, decision));
                rest = others;
                continue;
            }
            // Nothing of what is waited for was begun.
            let decided = self.decide_together(rest).await;
            let count = decided.len().max(1);
            for (request, decisions) in rest.iter().zip(&decided) {
                decisions.iter().for_each(|decision| then(request, decision));
            }
            rest = rest.get(count..).unwrap_or_default();
        }
    }

    /// Decides the first few of these, as many as may wait at once.
    async fn decide_together<'a, 'r: 'a>(&'a self, requests: &'a [Request<'r>]) -> Vec<Decisions> {
        let mut decided: Vec<Decisions> = Vec::new();
        let mut waiting = FuturesUnordered::new();
        let mut touched = Touched::default();
        for (place, request) in requests.iter().take(AT_ONCE_MAX).enumerate() {
            let mut footprint = Footprint::default();
            let request = std::slice::from_ref(request);
            match self.decide_with(request, Intent::Charge, Some(&mut footprint)) {
                Answer::Now(decisions) => decided.push(decisions),
                Answer::Later(later) if touched.admits(&footprint) => {
                    decided.push(Decisions::new());
                    // They are polled for the first time in this order, and so reach the store in it.
                    waiting.push(async move { (place, later.await) });
                }
                Answer::Later(_) => break,
            }
        }
        while let Some((place, decisions)) = waiting.next().await {
            if let Some(slot) = decided.get_mut(place) {
                *slot = decisions;
            }
        }
        decided
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;

    fn footprint(buckets: &[u64], many_steps: bool) -> Footprint {
        Footprint { buckets: SmallVec::from_slice(buckets), many_steps, unknown: false }
    }

    #[test]
    fn who_shares_no_bucket_waits_beside_anybody() {
        let mut touched = Touched::default();
        assert!(touched.admits(&footprint(&[1, 2], true)));
        assert!(touched.admits(&footprint(&[3], false)));
        assert!(touched.admits(&footprint(&[3, 4], false)));
        assert!(touched.admits(&footprint(&[5, 6], true)));
    }

    #[test]
    fn whoever_may_touch_anything_waits_alone() {
        let unknown = || Footprint { unknown: true, ..Footprint::default() };
        let mut touched = Touched::default();
        assert!(touched.admits(&unknown()));
        assert!(!touched.admits(&footprint(&[1], false)));
        let mut touched = Touched::default();
        assert!(touched.admits(&footprint(&[1], false)));
        assert!(!touched.admits(&unknown()));
    }

    #[test]
    fn who_shares_a_bucket_with_one_that_takes_several_steps_waits_for_it() {
        let mut touched = Touched::default();
        assert!(touched.admits(&footprint(&[1, 2], true)));
        assert!(!touched.admits(&footprint(&[2], false)));
        assert!(touched.admits(&footprint(&[3], false)));
        assert!(!touched.admits(&footprint(&[3, 9], true)));
    }
}
