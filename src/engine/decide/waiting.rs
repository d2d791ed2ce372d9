//! Decisions that wait for a store: matched once, for a try without a wait and for the answer that is waited
//! for.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use super::{Decisions, Plan, Questions};
use crate::core::request::Request;
use crate::engine::Engine;
use crate::engine::clock::Stopwatch;
use crate::engine::footprint::Footprint;
use crate::engine::identity::{Persons, rewritten};
use crate::engine::loaded::Loaded;
use crate::engine::port::{Answer, Intent, Later};

/// The ways in which a store that may have to be waited for is asked.
pub(super) enum Tries {
    /// First without a wait; if that answers nothing, the buckets that are touched are told to who asked, and
    /// nothing is begun before somebody waits.
    First(Option<Arc<OnceLock<Footprint>>>),
    /// At once with a wait.
    Over,
}

impl Engine {
    /// The same by a store that must mostly be waited for: what is matched for a try without a wait is kept
    /// for the answer that is waited for.
    pub(super) fn decide_or_wait<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
        intent: Intent,
        footprint: Option<&mut Footprint>,
    ) -> Answer<'a, Decisions> {
        let told = footprint.is_some().then(|| Arc::new(OnceLock::new()));
        let mut whole: Later<'a, Decisions> =
            Box::pin(self.decide_unless_dropped(requests, intent, told.clone()));
        let tried = whole.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Some((footprint, told)) = footprint.zip(told.as_ref().and_then(|told| told.get())) {
            footprint.clone_from(told);
        }
        match tried {
            Poll::Ready(decisions) => Answer::Now(decisions),
            Poll::Pending => Answer::Later(whole),
        }
    }

    /// Tries at its first poll what needs no wait, and tells what is touched; begins all else at the second.
    async fn decide_unless_dropped(
        &self,
        requests: &[Request<'_>],
        intent: Intent,
        footprint: Option<Arc<OnceLock<Footprint>>>,
    ) -> Decisions {
        let timer = self.sample();
        let loaded = self.loaded.load_full();
        let mut soon = SmallVec::new();
        let persons = self.persons(&loaded.set, requests, &mut soon);
        if soon.is_empty() {
            return self
                .decide_in_store(&loaded, (requests, &persons), intent, timer, Tries::First(footprint))
                .await;
        }
        if let Some(footprint) = footprint {
            drop(footprint.set(Footprint::unknown()));
        }
        until_waited_for().await;
        let persons = self.find(&loaded.set, requests).await;
        self.decide_in_store(&loaded, (requests, &persons), intent, timer, Tries::Over).await
    }

    /// Decides requests that [`Self::decide`] has just answered with [`Answer::Later`], for a caller that
    /// could not keep that answer. The store does not measure the requests again.
    pub async fn decide_later<'a, 'r: 'a>(&'a self, requests: &'a [Request<'r>]) -> Decisions {
        let timer = self.sample();
        let loaded = self.loaded.load_full();
        let persons = self.find(&loaded.set, requests).await;
        self.decide_in_store(&loaded, (requests, &persons), Intent::Charge, timer, Tries::Over).await
    }

    /// Returns what [`Self::ask`] would answer, if that is `over`; else what [`Self::decide`] answers.
    pub fn decide_unless<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
        over: impl Fn(&Decisions) -> bool + Send + 'a,
    ) -> Answer<'a, Decisions> {
        let mut whole: Later<'a, Decisions> = Box::pin(async move {
            let timer = self.sample();
            let loaded = self.loaded.load_full();
            let mut soon = SmallVec::new();
            let mut persons = self.persons(&loaded.set, requests, &mut soon);
            if !soon.is_empty() {
                until_waited_for().await;
                persons = self.find(&loaded.set, requests).await;
            }
            let now = self.clock.now();
            let rewritten = rewritten(requests, &persons);
            let asked = Questions { requests: rewritten.as_deref().unwrap_or(requests), persons: &persons };
            let mut plan = Plan::new(&loaded, asked, Intent::Charge);
            plan.fill(self.tier_default(), now);
            self.take_places(&mut plan);
            if !self.store.answers_at_once() {
                until_waited_for().await;
            }
            let outcome = self.store.decide(&plan.charges(self.regions_known()), Intent::Ask, now).await;
            let intent = std::mem::replace(&mut plan.intent, Intent::Ask);
            let asked = self.conclude(&plan, &outcome, Intent::Ask, now);
            let decisions = if over(&asked) {
                asked
            } else {
                plan.intent = intent;
                self.charge_in_store(&plan, Intent::Charge).await
            };
            self.note_time(timer);
            decisions
        });
        match whole.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decisions) => Answer::Now(decisions),
            Poll::Pending => Answer::Later(whole),
        }
    }

    /// Decides by a store that may have to be waited for.
    pub(super) async fn decide_in_store(
        &self,
        loaded: &Loaded,
        (requests, persons): (&[Request<'_>], &Persons),
        intent: Intent,
        timer: Option<Stopwatch>,
        tries: Tries,
    ) -> Decisions {
        let now = self.clock.now();
        let rewritten = rewritten(requests, persons);
        let asked = Questions { requests: rewritten.as_deref().unwrap_or(requests), persons };
        let mut plan = Plan::new(loaded, asked, intent);
        plan.fill(self.tier_default(), now);
        self.take_places(&mut plan);
        if let Tries::First(footprint) = tries {
            let charges = plan.charges(self.regions_known());
            let tried = self.store.try_decide(&charges, plan.intent, now);
            if let Some(outcome) = &tried
                && !self.hopes(&plan, &charges, outcome, now)
            {
                let decisions = self.conclude(&plan, outcome, intent, now);
                self.note_time(timer);
                return decisions;
            }
            if let Some(footprint) = footprint {
                drop(footprint.set(Footprint::of(&charges, self.store.in_one_step(&charges))));
            }
            until_waited_for().await;
        }
        let decisions = self.charge_in_store(&plan, intent).await;
        self.note_time(timer);
        decisions
    }

    /// Charges by a store that has to be waited for, and for rights on their way where a rule says so.
    async fn charge_in_store(&self, plan: &Plan<'_, '_>, intent: Intent) -> Decisions {
        let (charges, mut at) = (plan.charges(self.regions_known()), self.clock.now());
        let mut outcome = self.store.decide(&charges, plan.intent, at).await;
        if plan.intent == Intent::Charge
            && plan.may_wait()
            && let Some(most) = self.hope(&charges, &outcome, at)
        {
            (outcome, at) = self.wait_for_rights(&charges, outcome, most).await;
        }
        drop(charges);
        self.conclude(plan, &outcome, intent, at)
    }
}

/// Ends at the second poll: whoever polls once and drops has begun nothing.
async fn until_waited_for() {
    let mut polled = false;
    poll_fn(|context| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
