//! A server's troubles: told once when they begin and once when they are over, and shown meanwhile.
//!
//! A breaker says whether a server answers. A server may answer and still be of little use: it has no memory
//! left, refuses a command, or replies something else. Time is an argument, counted from any fixed start.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::store::redis::client::failure::Failure;

/// A trouble is over when nothing was heard of it for so long.
const QUIET: Duration = Duration::from_secs(5);
/// A server that was away is back when it has answered for so long.
const BACK: Duration = Duration::from_secs(1);
/// So many late answers without such a pause between them are a trouble.
const LATE_MIN: u64 = 5;
/// Longest text that is kept, in characters.
const TEXT_MAX: usize = 300;

/// A kind of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Cause {
    /// No memory is left.
    Full,
    /// Nearly none is left, so that no new keys are written.
    Crowded,
    /// It forgets counters where its memory is used up.
    Evicting,
    /// This user may not do what is needed.
    Forbidden,
    /// It is a replica, loads, or its cluster is down.
    NotServing,
    /// It replies something else.
    Unexpected,
    /// It answers too late.
    Late,
    /// There is no connection, or none that brings answers.
    Away,
    /// It is not the server that is needed. Lasts until a look at it says otherwise.
    Unsuitable,
}

impl Cause {
    /// Every one, in the order in which they are told.
    pub(in crate::store::redis) const ALL: [Self; 9] = [
        Self::Full,
        Self::Crowded,
        Self::Evicting,
        Self::Forbidden,
        Self::NotServing,
        Self::Unexpected,
        Self::Late,
        Self::Away,
        Self::Unsuitable,
    ];

    /// The value of label `kind` of `store_trouble`.
    pub(in crate::store::redis) const fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Crowded => "crowded",
            Self::Evicting => "evicting",
            Self::Forbidden => "forbidden",
            Self::NotServing => "not_serving",
            Self::Unexpected => "unexpected",
            Self::Late => "late",
            Self::Away => "away",
            Self::Unsuitable => "unsuitable",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Full => "redis has no memory left",
            Self::Crowded => "redis is nearly full and takes no new keys",
            Self::Evicting => "redis evicts counters when its memory is used up, so that limits begin anew",
            Self::Forbidden => "redis refuses this user what decisions need",
            Self::NotServing => "redis does not serve",
            Self::Unexpected => "redis answers something else than it was asked",
            Self::Late => "redis answers too late",
            Self::Away => "redis does not answer",
            Self::Unsuitable => "redis is not what store.redis asks for",
        }
    }

    /// Returns what a failed call tells of.
    const fn of(failure: &Failure) -> Option<Self> {
        match failure {
            Failure::Full => Some(Self::Full),
            Failure::Crowded => Some(Self::Crowded),
            Failure::Forbidden(_) => Some(Self::Forbidden),
            Failure::NotServing(_) => Some(Self::NotServing),
            Failure::Unexpected(_) => Some(Self::Unexpected),
            Failure::Timeout => Some(Self::Late),
            Failure::Broken(_) => Some(Self::Away),
            Failure::Down
            | Failure::NoNode
            | Failure::Moved(_)
            | Failure::Ask(_)
            | Failure::TryAgain
            | Failure::NoScript => None,
        }
    }

    const fn place(self) -> usize {
        self as usize
    }
}

/// One trouble from its beginning.
#[derive(Debug, Clone)]
struct Spell {
    since: Duration,
    last: Duration,
    times: u64,
    text: String,
    told: bool,
    /// The text that was told, and when.
    told_text: String,
    told_at: Duration,
}

/// The troubles of one server.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Conditions(Mutex<[Option<Spell>; Cause::ALL.len()]>);

/// A trouble as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Trouble {
    pub(in crate::store::redis) cause: Cause,
    /// A sentence with what the server said.
    pub(in crate::store::redis) text: String,
}

impl Conditions {
    fn spells(&self) -> MutexGuard<'_, [Option<Spell>; Cause::ALL.len()]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a failed call.
    pub(in crate::store::redis) fn failed(&self, node: &str, failure: &Failure, now: Duration) {
        if let Some(cause) = Cause::of(failure) {
            self.suffers(node, cause, &failure.to_string(), now);
        }
    }

    /// Takes in a sign of trouble, and logs it where it is a new one.
    pub(in crate::store::redis) fn suffers(&self, node: &str, cause: Cause, text: &str, now: Duration) {
        let mut spells = self.spells();
        let known = spells.iter().flatten().any(|spell| spell.told);
        let Some(place) = spells.get_mut(cause.place()) else { return };
        let lapsed = |spell: &Spell| !spell.told && now.saturating_sub(spell.last) >= QUIET;
        if place.as_ref().is_some_and(lapsed) {
            *place = None;
        }
        let spell = place.get_or_insert_with(|| Spell {
            since: now,
            last: now,
            times: 0,
            text: text.chars().take(TEXT_MAX).collect(),
            told: false,
            told_text: String::new(),
            told_at: now,
        });
        spell.last = now;
        if spell.text != text {
            spell.text = text.chars().take(TEXT_MAX).collect();
        }
        spell.times = spell.times.saturating_add(1);
        // Another thing may keep it away by now: one that is to be mended.
        let changed = cause == Cause::Away && spell.told && spell.told_text != spell.text;
        if changed && now.saturating_sub(spell.told_at) >= QUIET {
            (spell.told_text, spell.told_at) = (spell.text.clone(), now);
            let text = spell.text.clone();
            drop(spells);
            tracing::warn!(node, kind = cause.word(), error = %text, "{} still", cause.sentence());
            return;
        }
        // A server that is away since it suffers from something that was told is no second piece of news.
        let follows = cause == Cause::Away && known;
        if spell.told || follows || !shows(cause, spell) {
            return;
        }
        spell.told = true;
        (spell.told_text, spell.told_at) = (spell.text.clone(), now);
        let text = spell.text.clone();
        drop(spells);
        let kind = cause.word();
        if cause == Cause::Evicting {
            tracing::warn!(node, kind, error = %text, "{}", cause.sentence());
        } else {
            tracing::warn!(node, kind, error = %text, "{}: on_failure of the rules decides what it does not", cause.sentence());
        }
    }

    /// Says that one is over.
    pub(in crate::store::redis) fn clear(&self, node: &str, cause: Cause, now: Duration) {
        let spell = self.spells().get_mut(cause.place()).and_then(Option::take);
        if let Some(spell) = spell {
            tell_end(node, cause, &spell, now);
        }
    }

    /// Logs those that are over. `answers`: whether the server is asked and answers.
    pub(in crate::store::redis) fn review(&self, node: &str, answers: bool, now: Duration) {
        let mut over = Vec::new();
        for (cause, place) in Cause::ALL.into_iter().zip(self.spells().iter_mut()) {
            over.extend(
                place.take_if(|spell| !lasts(cause, spell, answers, now)).map(|spell| (cause, spell)),
            );
        }
        for (cause, spell) in over {
            tell_end(node, cause, &spell, now);
        }
    }

    /// Returns what it suffers from now.
    pub(in crate::store::redis) fn now(&self, answers: bool, now: Duration) -> Vec<Trouble> {
        let spells = self.spells();
        let all = Cause::ALL
            .into_iter()
            .zip(spells.iter())
            .filter_map(|(cause, spell)| Some((cause, spell.as_ref()?)));
        all.filter(|(cause, spell)| shows(*cause, spell) && lasts(*cause, spell, answers, now))
            .map(|(cause, spell)| Trouble { cause, text: format!("{}: {}", cause.sentence(), spell.text) })
            .collect()
    }

    /// True if it suffers from this as far as was told.
    pub(in crate::store::redis) fn has(&self, cause: Cause) -> bool {
        self.spells().get(cause.place()).is_some_and(Option::is_some)
    }
}

const fn shows(cause: Cause, spell: &Spell) -> bool {
    !matches!(cause, Cause::Late) || spell.times >= LATE_MIN
}

fn lasts(cause: Cause, spell: &Spell, answers: bool, now: Duration) -> bool {
    let quiet = now.saturating_sub(spell.last);
    match cause {
        Cause::Unsuitable => true,
        Cause::Away => !answers || quiet < BACK,
        _ => quiet < QUIET,
    }
}

fn tell_end(node: &str, cause: Cause, spell: &Spell, now: Duration) {
    if spell.told {
        let lasted = now.saturating_sub(spell.since).as_secs_f64();
        let (kind, times) = (cause.word(), spell.times);
        tracing::info!(node, kind, times, seconds = format!("{lasted:.1}"), "over: {}", cause.sentence());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn causes(conditions: &Conditions, answers: bool, now: u64) -> Vec<Cause> {
        conditions.now(answers, at(now)).into_iter().map(|trouble| trouble.cause).collect()
    }

    #[test]
    fn a_full_server_suffers_until_nothing_was_heard_of_it_for_a_while() {
        let conditions = Conditions::default();
        conditions.failed("a:1", &Failure::Full, at(0));
        conditions.failed("a:1", &Failure::Full, at(3));
        assert_eq!(causes(&conditions, true, 7), [Cause::Full]);
        assert_eq!(causes(&conditions, true, 8), []);
        conditions.review("a:1", true, at(8));
        assert!(!conditions.has(Cause::Full));
    }

    #[test]
    fn a_single_late_answer_is_no_trouble_and_several_are() {
        let conditions = Conditions::default();
        for second in [0, 6, 12, 18, 24, 30] {
            conditions.failed("a:1", &Failure::Timeout, at(second));
            assert_eq!(causes(&conditions, true, second), []);
        }
        for _ in 0..LATE_MIN {
            conditions.failed("a:1", &Failure::Timeout, at(31));
        }
        assert_eq!(causes(&conditions, true, 31), [Cause::Late]);
    }

    #[test]
    fn who_is_away_is_so_until_answers_come_and_who_is_unsuitable_until_looked_at() {
        let conditions = Conditions::default();
        conditions.suffers("a:1", Cause::Away, "gone", at(0));
        conditions.suffers("a:1", Cause::Unsuitable, "a replica", at(0));
        assert_eq!(causes(&conditions, false, 60), [Cause::Away, Cause::Unsuitable]);
        assert_eq!(causes(&conditions, true, 60), [Cause::Unsuitable]);
        conditions.clear("a:1", Cause::Unsuitable, at(61));
        assert_eq!(causes(&conditions, true, 61), []);
    }
}
