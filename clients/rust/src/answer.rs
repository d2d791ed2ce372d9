//! Answers, as values.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde::{Deserialize, Deserializer};

/// The decision on a request. `rule`, `limit`, `remaining` and `reset` are those of the tightest rule, absent
/// where none applied.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Decision {
    /// True if it may pass.
    pub allowed: bool,
    /// 200, or the denying rule's status.
    pub status: u16,
    /// The denying rule's text.
    pub message: Option<String>,
    /// Its cost.
    pub cost: i64,
    /// The tightest rule.
    pub rule: Option<String>,
    /// Its limit.
    pub limit: Option<u64>,
    /// The permits that it leaves.
    pub remaining: Option<u64>,
    /// Until its bucket is unused again, or its window ends.
    #[serde(default, rename = "reset_ms", deserialize_with = "milliseconds")]
    pub reset: Option<Duration>,
    /// The time after which it could pass; `None` where waiting does not help.
    #[serde(rename = "retry_after_ms", deserialize_with = "milliseconds")]
    pub retry_after: Option<Duration>,
    /// The time to hold an admitted request back, by a rule that throttles.
    #[serde(rename = "delay_ms", deserialize_with = "known_milliseconds")]
    pub delay: Duration,
    /// The thing to use instead of what was asked for, by a rule with `on_deny` that has nothing left for it.
    #[serde(rename = "use")]
    pub use_instead: Option<String>,
    /// The store did not answer, so the daemon decided by itself.
    pub degraded: bool,
    /// No daemon answered, so this client decided.
    #[serde(skip)]
    pub away: bool,
    /// The reason of a denial.
    pub cause: Option<Cause>,
    /// The region that answered; empty where the client decided.
    pub region: String,
    /// Each rule's own answer.
    pub rules: Vec<RuleAnswer>,
}

impl Decision {
    /// Lets a request pass while no daemon answers.
    pub(crate) fn passed_here(cost: i64) -> Self {
        Self {
            allowed: true,
            status: 200,
            message: None,
            cost,
            rule: None,
            limit: None,
            remaining: None,
            reset: None,
            retry_after: Some(Duration::ZERO),
            delay: Duration::ZERO,
            use_instead: None,
            degraded: false,
            away: true,
            cause: None,
            region: String::new(),
            rules: Vec::new(),
        }
    }

    /// Refuses a request while no daemon answers.
    pub(crate) fn refused_here(cost: i64, status: u16, message: &str, retry_after: Option<Duration>) -> Self {
        let message = Some(message.to_owned());
        Self { allowed: false, status, message, retry_after, ..Self::passed_here(cost) }
    }

    /// Returns the headers that tell an HTTP client of its limit, as the daemon's forward-auth does.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let (Some(limit), Some(remaining)) = (self.limit, self.remaining) {
            headers.insert(HeaderName::from_static("x-ratelimit-limit"), HeaderValue::from(limit));
            headers.insert(HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from(remaining));
        }
        if let (false, Some(wait)) = (self.allowed, self.retry_after) {
            // Whole seconds, rounded up: who comes back then is admitted.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.allowed && !self.delay.is_zero() {
            let millis = u64::try_from(self.delay.as_millis()).unwrap_or(u64::MAX);
            headers.insert(HeaderName::from_static("x-ratelimit-delay-ms"), HeaderValue::from(millis));
        }
        if let Some(Ok(named)) = self.use_instead.as_deref().map(HeaderValue::from_str) {
            headers.insert(HeaderName::from_static("x-tidegate-use"), named);
        }
        headers
    }
}

/// One rule's own answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RuleAnswer {
    /// The rule.
    pub rule: String,
    /// True if it lets the request pass.
    pub allowed: bool,
    /// Permits for each window.
    pub limit: u64,
    /// The window; zero for a rule without one.
    #[serde(rename = "window_ms", deserialize_with = "known_milliseconds")]
    pub window: Duration,
    /// The permits that are left.
    pub remaining: u64,
    /// Until its bucket is unused again, or its window ends.
    #[serde(rename = "reset_ms", deserialize_with = "known_milliseconds")]
    pub reset: Duration,
    /// The time after which this cost could pass; `None` where it never can.
    #[serde(rename = "retry_after_ms", deserialize_with = "milliseconds")]
    pub retry_after: Option<Duration>,
    /// Its failure policy answered, since the store did not.
    pub degraded: bool,
    /// The reason of its denial.
    pub cause: Option<Cause>,
    /// Its "no" is only logged.
    #[serde(default)]
    pub shadow: bool,
    /// This request is the first of its window that found the bucket used beyond the rule's `warn_at`.
    #[serde(default)]
    pub warning: bool,
}

/// The reason of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The limit is used up.
    UsedUp,
    /// This region's part of a worldwide limit is used, and what is left of the rest lies in other regions.
    Elsewhere,
    /// The regions have not agreed yet on what each may spend.
    NotAgreed,
    /// The store began too late to know what was spent, so what may be left is not admitted.
    Burnt,
    /// A region is cut off, and its part of the limit is left to it.
    CutOff,
    /// The store did not answer, and the rule denies then.
    Degraded,
    /// The client was denied too often: a penalty shuts it out.
    Penalty,
    /// A rule blocks the request, or its user or key may not ask at all.
    Blocked,
    /// The cost is more than can ever pass.
    TooLarge,
    /// A cause that this version of the client does not name.
    #[serde(other)]
    Other,
}

/// Permits that are held until they are committed or cancelled, or `expires` has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservation {
    /// The decision: look at its `allowed`.
    pub decision: Decision,
    /// The daemon's name for it. `None` where no rule counted, where it was denied, and where no daemon
    /// answered and the client let the call pass.
    pub token: Option<String>,
    /// The time for which they are held.
    pub expires: Option<Duration>,
}

impl Reservation {
    /// Returns the permits that are held: those that were asked for, or the daemon's estimate.
    pub fn amount(&self) -> u64 {
        u64::try_from(self.decision.cost).unwrap_or(0)
    }
}

/// Places in flight that are held until they are released, or `expires` has passed without a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The decision: look at its `allowed`.
    pub decision: Decision,
    /// The daemon's name for it. `None` where no rule counted, where it was denied, and where no daemon
    /// answered and the client let the request pass.
    pub token: Option<String>,
    /// The time for which they are held.
    pub expires: Option<Duration>,
}

/// The fate of a reservation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Settled {
    /// True if this call settled it, false if an earlier one did or no rule counts it any more.
    pub committed: bool,
    /// Some of it was held no longer, and so was charged in full.
    pub lapsed: bool,
    /// The store could not be asked for some of it, which its failure policy charged: do not send it again.
    pub degraded: bool,
}

/// A decision with what is held by it, as the daemon writes it.
#[derive(Debug, Deserialize)]
pub(crate) struct Held {
    #[serde(flatten)]
    decision: Decision,
    reservation: Option<String>,
    lease: Option<String>,
    #[serde(default, rename = "expires_ms", deserialize_with = "milliseconds")]
    expires: Option<Duration>,
}

impl From<Decision> for Held {
    fn from(decision: Decision) -> Self {
        Self { decision, reservation: None, lease: None, expires: None }
    }
}

impl From<Held> for Reservation {
    fn from(held: Held) -> Self {
        Self { decision: held.decision, token: held.reservation, expires: held.expires }
    }
}

impl From<Held> for Lease {
    fn from(held: Held) -> Self {
        Self { decision: held.decision, token: held.lease, expires: held.expires }
    }
}

/// The answer to several checks.
#[derive(Debug, Deserialize)]
pub(crate) struct Decisions {
    pub(crate) decisions: Vec<Decision>,
}

/// The answer to a renewal.
#[derive(Debug, Deserialize)]
pub(crate) struct Renewed {
    pub(crate) renewed: bool,
}

/// The answer to a release.
#[derive(Debug, Deserialize)]
pub(crate) struct Released {
    pub(crate) released: bool,
}

fn milliseconds<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Duration>, D::Error> {
    Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
}

fn known_milliseconds<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENIED: &str = r#"{"allowed":false,"domain":"default","cost":2,"region":"eu","degraded":false,
        "rule":"search","limit":3,"remaining":0,"reset_ms":1001,"retry_after_ms":1001,"delay_ms":0,"status":429,
        "cause":"one of tomorrow","rules":[],"reservation":"r","expires_ms":5000,"new":{"field":[1]}}"#;

    #[test]
    fn an_answer_with_fields_and_causes_of_a_later_daemon_is_read() {
        let decision: Decision = serde_json::from_str(DENIED).unwrap();
        assert_eq!(decision.cause, Some(Cause::Other));
        assert_eq!(decision.retry_after, Some(Duration::from_millis(1001)));
        let held: Reservation = serde_json::from_str::<Held>(DENIED).unwrap().into();
        assert_eq!((held.token.as_deref(), held.expires), (Some("r"), Some(Duration::from_secs(5))));
        assert_eq!((held.amount(), held.decision), (2, decision));
    }

    #[test]
    fn a_thing_to_use_instead_is_read_and_told() {
        let told = DENIED.replace("\"allowed\":false", "\"allowed\":true,\"use\":\"small\"");
        let decision: Decision = serde_json::from_str(&told).unwrap();
        assert_eq!(decision.use_instead.as_deref(), Some("small"));
        assert_eq!(decision.headers()["x-tidegate-use"], "small");
    }

    #[test]
    fn headers_round_a_wait_up_and_leave_out_one_that_does_not_help() {
        let mut decision: Decision = serde_json::from_str(DENIED).unwrap();
        assert_eq!(decision.headers()["retry-after"], "2");
        assert_eq!(decision.headers()["x-ratelimit-limit"], "3");
        decision.retry_after = None;
        assert!(!decision.headers().contains_key("retry-after"));
    }

    #[test]
    fn headers_tell_a_delay_of_what_passes_and_none_of_what_does_not() {
        let mut decision: Decision = serde_json::from_str(DENIED).unwrap();
        decision.delay = Duration::from_millis(250);
        assert!(!decision.headers().contains_key("x-ratelimit-delay-ms"));
        decision.allowed = true;
        assert_eq!(decision.headers()["x-ratelimit-delay-ms"], "250");
        decision.delay = Duration::ZERO;
        assert!(!decision.headers().contains_key("x-ratelimit-delay-ms"));
    }
}
