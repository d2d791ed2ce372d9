//! The answer to a request, as every server tells it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::answer::{AnswerOptions, PartitionKey};
use super::denial_cause::DenialCause;
use super::hold::Lease;
use super::penalty::Penalty;
use super::rule::{Action, Mode};
use super::time::{Span, Timestamp};

/// The answer of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleOutcome {
    /// Name of the rule, unique in the whole set.
    pub rule: Arc<str>,
    /// Action of the rule, which says what a denial does to the request.
    pub action: Action,
    /// True if the rule lets the request pass; a shadow rule (`log_only` or the global switch) may say no and
    /// not count.
    pub allowed: bool,
    /// True if its "no" is only logged.
    pub shadow: bool,
    /// Permits per window, of the limit in force for this request.
    pub limit: u32,
    /// Length of the window; zero for a rule without one (`concurrency`).
    pub window: Span,
    /// Permits that are left once this decision is counted.
    pub remaining: u64,
    /// Time until the bucket is unused again, or its window ends.
    pub reset: Span,
    /// Time until more permits than are left are free.
    pub more: Span,
    /// Time until this cost could pass, when denied; `None` if never.
    pub retry: Option<Span>,
    /// Reason of the rule's no; `None` where it let the request pass.
    pub cause: Option<DenialCause>,
    /// Time for which to hold the request back.
    pub delay: Span,
    /// The failure policy answered: the store could not be asked, or had no room.
    pub degraded: bool,
    /// The worldwide side, for a global rule.
    pub global: Option<Worldwide>,
    /// The rule's wishes for its answers; `None` for none.
    pub answer: Option<Arc<AnswerOptions>>,
    /// Bucket of the rule that this is, if the rule wants it told.
    pub partition: Option<PartitionKey>,
    /// The request's cost in permits, where the rule has prices.
    pub priced: Option<i64>,
    /// Penalty in force for the client; `None` without one.
    pub penalty: Option<Penalty>,
    /// True if the bucket has just been used beyond what its rule warns of.
    pub warning: bool,
    /// Permits that its window counts beyond the limit; `None` where none can be (all but `debt = "window"`).
    pub beyond: Option<u64>,
}

impl RuleOutcome {
    /// Returns the thing to use instead, where the rule says no and names one. It then denies nobody, and
    /// charges nothing.
    #[must_use]
    pub fn use_instead(&self) -> Option<&str> {
        if self.allowed || self.shadow {
            return None;
        }
        self.answer.as_ref()?.use_instead.as_deref()
    }

    /// True if it denies the request.
    #[must_use]
    pub fn denies(&self) -> bool {
        !self.allowed && !self.shadow && self.use_instead().is_none()
    }
}

/// The belief of a region about a worldwide limit at the moment of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worldwide {
    /// The mode in which it is held.
    pub mode: Mode,
    /// Permits in use worldwide, as far as is known here; `None`: no region tells what it used, or the
    /// regions have not agreed yet.
    pub believed_used: Option<u64>,
    /// Permits that this region used, where that is all that is known of the use.
    pub used_here: Option<u64>,
    /// Permits by which the truth may lie above the one of the two that is known.
    pub error_bound: u64,
}

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// True if the request may pass.
    pub allowed: bool,
    /// The outcome of each deciding rule, in order of precedence.
    pub rules: Vec<RuleOutcome>,
    /// Index in `rules` of the tightest: the denying one if denied, else the first that names something to
    /// use instead, else the one with the least left. `None`: no rule applied.
    pub tightest: Option<usize>,
    /// HTTP status that the denying rule asks for; 200 when allowed.
    pub status: u16,
    /// Text that the denying rule has for the client; `None` where it has none, or nobody denied.
    pub message: Option<Arc<str>>,
    /// The places that the request now holds; `None` for none.
    pub lease: Option<Box<Leased>>,
    /// Guards that are dropped when the answer is told or given up.
    pub guards: AnswerGuards,
}

/// Things that an answer keeps until it is told or given up, such as its place among those that are held
/// back. No part of what it says.
#[derive(Clone, Default)]
pub struct AnswerGuards(Vec<Arc<dyn Any + Send + Sync>>);

impl AnswerGuards {
    /// Keeps one thing more.
    pub fn hold(&mut self, thing: Arc<dyn Any + Send + Sync>) {
        self.0.push(thing);
    }

    /// Returns all of them.
    pub fn things(&self) -> impl Iterator<Item = &Arc<dyn Any + Send + Sync>> {
        self.0.iter()
    }

    /// Lets go of all of them.
    pub fn release(&mut self) {
        self.0.clear();
    }
}

impl fmt::Debug for AnswerGuards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} held", self.0.len())
    }
}

impl PartialEq for AnswerGuards {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AnswerGuards {}

impl Decision {
    /// Returns why it is denied.
    #[must_use]
    pub fn cause(&self) -> Option<DenialCause> {
        self.denying()?.cause
    }

    /// The rule that denies it.
    fn denying(&self) -> Option<&RuleOutcome> {
        self.rules.get(self.tightest.filter(|_| !self.allowed)?)
    }

    /// Returns the media type of its text, where the denying rule has one that is not plain text.
    #[must_use]
    pub fn message_type(&self) -> Option<&str> {
        self.denying()?.answer.as_ref()?.message_type.as_deref()
    }

    /// Returns why it is denied, where the denying rule wants that told in a header.
    #[must_use]
    pub fn told_cause(&self) -> Option<DenialCause> {
        let denying = self.denying()?;
        denying.cause.filter(|_| denying.answer.as_ref().is_some_and(|answer| answer.tells_cause))
    }

    /// Returns the thing to use instead of what was asked for, where the request passes and a rule that says
    /// no names one: the first such rule's.
    #[must_use]
    pub fn use_instead(&self) -> Option<&str> {
        self.rules.get(self.tightest.filter(|_| self.allowed)?)?.use_instead()
    }

    /// Returns how long the request is to be delayed; zero for one that is denied.
    #[must_use]
    pub fn delay(&self) -> Span {
        self.longest(|_| true)
    }

    /// For how long of that the daemon holds the answer back itself.
    #[must_use]
    pub fn hold(&self) -> Span {
        self.longest(|ruled| ruled.answer.as_ref().is_some_and(|answer| answer.holds_delay))
    }

    fn longest(&self, counts: impl Fn(&RuleOutcome) -> bool) -> Span {
        let enforced = self.rules.iter().filter(|ruled| self.allowed && !ruled.shadow && counts(ruled));
        enforced.map(|ruled| ruled.delay).max().unwrap_or(Span::ZERO)
    }

    /// The headers that rules want added: those of the denying rule, or of all that let a request pass.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let denying = self.tightest.filter(|_| !self.allowed);
        let of = move |(index, ruled): (usize, &'_ RuleOutcome)| match denying {
            _ if ruled.shadow => false,
            Some(denying) => index == denying,
            None => self.allowed,
        };
        let options = self.rules.iter().enumerate().filter(move |one| of((one.0, one.1)));
        let options = options.filter_map(|(_, ruled)| ruled.answer.as_deref());
        let lists =
            options.map(|answer| if self.allowed { &answer.headers_admitted } else { &answer.headers });
        lists.flatten().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Its answer was held back so long: what was to come is nearer by that.
    pub fn was_held(&mut self, held: Span) {
        for ruled in &mut self.rules {
            ruled.delay = Span(ruled.delay.micros().saturating_sub(held.micros()));
            ruled.more = Span(ruled.more.micros().saturating_sub(held.micros()));
            ruled.reset = Span(ruled.reset.micros().saturating_sub(held.micros()));
        }
        self.guards.release();
    }
}

/// The places that a request holds, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased {
    /// By which it is renewed and given back.
    pub lease: Lease,
    /// Time until the first of its places is free again without renewing.
    pub hold: Span,
    /// Instant at which the hold began, by this daemon's clock.
    pub made: Timestamp,
    /// The amount that its holder has of it already, whatever is asked for now; `None`: it is new.
    pub held_before: Option<u64>,
}
