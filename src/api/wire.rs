//! The JSON of the HTTP interface, as it is written. Kept apart from the domain's own types, so that neither
//! binds the other; the command line reads the same shapes.
//!
//! Field order is the order on the wire. Lengths of time are whole milliseconds, rounded up: who waits that
//! long has waited long enough.

mod bucket;
#[cfg(test)]
pub(in crate::api) mod checks;
mod penalty;
#[cfg(test)]
pub(in crate::api) mod rule_bodies;
pub(in crate::api) mod rules;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use crate::core::decision::{Decision, RuleOutcome};
use crate::core::denial_cause::DenialCause;
use crate::core::hold::Lease;
use crate::core::regions::escrow::EscrowRule;
use crate::core::request::Request;
use crate::core::reservation::Reservation;
use crate::core::rule::Mode;
use crate::core::time::Span;
use crate::core::wire::WireVersion;
use crate::engine::status::{PeerStatus, ServerHealth, StoreHealth, StoreState};

pub use bucket::{BucketJson, BucketWorldJson, ResetJson, used_worldwide};
pub use penalty::PenaltyJson;

/// The answer to one check.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Decision"))]
pub struct DecisionJson<'a> {
    /// True if the request may pass.
    pub allowed: bool,
    /// The request's domain.
    pub domain: &'a str,
    /// Its cost.
    pub cost: i64,
    /// The region that answers.
    pub region: &'a str,
    /// True if the failure policy of any rule answered.
    pub degraded: bool,
    /// The tightest rule: the denying one, else the one that names something to use instead, else the one
    /// with the least left. Absent when no rule applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'a str>,
    /// Its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The permits that it leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// Until its bucket is unused again, or its window ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_ms: Option<u64>,
    /// Until the request could pass: 0 when it may now, null when it never can.
    pub retry_after_ms: Option<u64>,
    /// Why it is denied; absent when it is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "String", extend("enum" = crate::api::schema::CAUSES)))]
    pub cause: Option<&'static str>,
    /// The time to hold the request back: the delay of `throttle`, less what the daemon held it back.
    pub delay_ms: u64,
    /// 200, or the denying rule's status.
    pub status: u16,
    /// The denying rule's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'a str>,
    /// The thing to use instead of what was asked for: the request may pass, but `rule` has nothing left for
    /// it, and was charged nothing. Absent unless a rule says so by its `on_deny`.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub use_instead: Option<&'a str>,
    /// The answer of each rule.
    #[cfg_attr(test, schemars(with = "Vec<RuleOutcomeJson<'a>>"))]
    pub rules: RuleOutcomeList<'a>,
    /// By which places are renewed and given back; absent when none are held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// The reservation, to be committed or cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Until the first of its places is free again without renewing, or a reservation lapses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// A lease as text: opaque to its holder.
#[must_use]
pub fn lease_text(lease: &Lease) -> String {
    URL_SAFE_NO_PAD.encode(lease.to_bytes())
}

/// Reads such a text; `None` if it is none.
#[must_use]
pub fn read_lease(text: &str) -> Option<Lease> {
    Lease::from_bytes(&URL_SAFE_NO_PAD.decode(text).ok()?)
}

/// A reservation as text: opaque to whoever holds it.
#[must_use]
pub fn reservation_text(reservation: &Reservation) -> String {
    URL_SAFE_NO_PAD.encode(reservation.to_bytes())
}

/// Reads such a text; `None` if it is none.
#[must_use]
pub fn read_reservation(text: &str) -> Option<Reservation> {
    Reservation::from_bytes(&URL_SAFE_NO_PAD.decode(text).ok()?)
}

/// The fate of a reservation that was committed or cancelled.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Committed", deny_unknown_fields))]
pub struct CommittedJson {
    /// True if this call settled it; false if an earlier one did, or if no rule counts it any more, so that
    /// nothing is charged.
    pub committed: bool,
    /// True if some of it was not reserved any more, and so was charged in full.
    pub lapsed: bool,
    /// True if the store could not be asked for some of it, which its failure policy charged: do not send it
    /// again.
    pub degraded: bool,
}

/// The fate of a lease that was to be renewed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Renewed", deny_unknown_fields))]
pub struct RenewedJson {
    /// True if all of it is held for another hold.
    pub renewed: bool,
    /// Until the first of its places is free again without renewing once more; absent where not all were
    /// renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// True if the store could not be asked for some of it.
    pub degraded: bool,
}

/// The fate of a lease that was to be given back.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Released", deny_unknown_fields))]
pub struct ReleasedJson {
    /// True if all of it was still held.
    pub released: bool,
    /// True if the store could not be asked for some of it: that is free when its hold ends.
    pub degraded: bool,
}

/// The words of each rule, written as a list of [`RuleOutcomeJson`].
#[derive(Debug)]
pub struct RuleOutcomeList<'a>(&'a [RuleOutcome]);

impl<'a> RuleOutcomeList<'a> {
    /// Each rule's part.
    pub fn iter(&self) -> impl Iterator<Item = RuleOutcomeJson<'a>> + use<'a> {
        self.0.iter().map(RuleOutcomeJson::new)
    }
}

impl Serialize for RuleOutcomeList<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// The answer of one rule.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Ruled"))]
pub struct RuleOutcomeJson<'a> {
    /// The rule.
    pub rule: &'a str,
    /// True if it lets the request pass.
    pub allowed: bool,
    /// True if its "no" is only logged; absent when it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Permits per window.
    pub limit: u32,
    /// The unit that it counts, where the rule names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<&'a str>,
    /// The request's cost in permits, where the rule has prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<i64>,
    /// The window; 0 for a rule without one.
    pub window_ms: u64,
    /// Permits left.
    pub remaining: u64,
    /// Until its bucket is unused again, or its window ends.
    pub reset_ms: u64,
    /// Until this cost could pass: 0 when it may now, null when it never can.
    pub retry_after_ms: Option<u64>,
    /// Why it denies; absent when it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "String", extend("enum" = crate::api::schema::CAUSES)))]
    pub cause: Option<&'static str>,
    /// The thing to use instead, where it says no and names one: it then denies nobody.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub use_instead: Option<&'a str>,
    /// True if its failure policy answered.
    pub degraded: bool,
    /// The penalty that shuts the client out; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub penalty: Option<PenaltyJson>,
    /// True if this request is the first in its window that found the bucket used beyond the rule's
    /// `warn_at`; absent when it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub warning: bool,
    /// The worldwide side; absent unless the rule is worldwide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global: Option<GlobalJson>,
}

/// The belief of this region about a worldwide limit.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "RuledGlobal"))]
pub struct GlobalJson {
    /// The mode in which it is held.
    #[cfg_attr(test, schemars(with = "String", extend("enum" = crate::api::schema::MODES)))]
    pub mode: Mode,
    /// Permits in use worldwide, as far as is known here. Null: under `escrow` and `split` no region tells
    /// what it used.
    pub believed_used: Option<u64>,
    /// Permits that this region used, under `escrow` and `split` once the regions have agreed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_here: Option<u64>,
    /// The most by which the truth may lie above the one of the two that is known.
    pub error_bound: u64,
}

impl<'a> DecisionJson<'a> {
    /// The answer `decision` to `request`, given in `region`.
    #[must_use]
    pub fn new(request: &'a Request<'_>, decision: &'a Decision, region: &'a str) -> Self {
        let tightest = decision.tightest.and_then(|index| decision.rules.get(index));
        let leased = decision.lease.as_ref().filter(|_| !request.cost.is_reserved());
        Self {
            allowed: decision.allowed,
            domain: request.domain,
            cost: request.cost.to_signed(),
            region,
            degraded: decision.rules.iter().any(|ruled| ruled.degraded),
            rule: tightest.map(|ruled| &*ruled.rule),
            limit: tightest.map(|ruled| ruled.limit),
            remaining: tightest.map(|ruled| ruled.remaining),
            reset_ms: tightest.map(|ruled| ruled.reset.millis_up()),
            retry_after_ms: if decision.allowed {
                Some(0)
            } else {
                tightest.and_then(|ruled| ruled.retry).map(Span::millis_up)
            },
            cause: decision.cause().map(DenialCause::as_str),
            delay_ms: decision.delay().millis_up(),
            status: decision.status,
            message: decision.message.as_deref(),
            use_instead: decision.use_instead(),
            rules: RuleOutcomeList(&decision.rules),
            lease: leased.map(|leased| lease_text(&leased.lease)),
            reservation: None,
            expires_ms: leased.map(|leased| leased.hold.millis_up()),
        }
    }
}

impl<'a> RuleOutcomeJson<'a> {
    fn new(ruled: &'a RuleOutcome) -> Self {
        Self {
            rule: &ruled.rule,
            allowed: ruled.allowed,
            shadow: ruled.shadow,
            limit: ruled.limit,
            unit: ruled.answer.as_deref().and_then(|answer| answer.unit.as_deref()),
            cost: ruled.priced,
            window_ms: ruled.window.millis_up(),
            remaining: ruled.remaining,
            reset_ms: ruled.reset.millis_up(),
            retry_after_ms: if ruled.allowed { Some(0) } else { ruled.retry.map(Span::millis_up) },
            cause: ruled.cause.map(DenialCause::as_str),
            use_instead: ruled.use_instead(),
            degraded: ruled.degraded,
            penalty: ruled.penalty.as_ref().map(PenaltyJson::new),
            warning: ruled.warning,
            global: ruled.global.map(|global| GlobalJson {
                mode: global.mode,
                believed_used: global.believed_used,
                used_here: global.used_here,
                error_bound: global.error_bound,
            }),
        }
    }
}

/// The reasons for which a request is decided as it is.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Explanation"))]
pub struct ExplanationJson<'a> {
    /// The answer as it would be.
    pub decision: DecisionJson<'a>,
    /// Rules of the domain: those that decide, the others that match, and as many that do not as fit; each
    /// group in order of precedence.
    pub considered: Vec<ConsideredJson<'a>>,
    /// The number of rules of the domain that are not listed; none of them matches unless very many do.
    pub left_out: usize,
}

/// The part of one rule in a decision.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Considered", deny_unknown_fields))]
pub struct ConsideredJson<'a> {
    /// The rule.
    pub rule: &'a str,
    /// One word of a fixed list.
    pub outcome: &'static str,
    /// A sentence.
    pub why: String,
}

/// Every daemon of the cluster, as seen from one.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Regions"))]
pub struct RegionsJson<'a> {
    /// The region of the daemon that answers.
    pub region: &'a str,
    /// Its own name.
    pub node: &'a str,
    /// True if it is serving.
    pub live: bool,
    /// The store in which this region counts.
    pub store: StoreJson<'a>,
    /// Every region that may hold a share, present or not: `peers.regions`, and what was changed of it since.
    pub configured: &'a [String],
    /// Those of them of which every share is zero.
    pub drained: &'a [String],
    /// Regions that were removed.
    pub removed: &'a [String],
    /// The other daemons.
    pub peers: Vec<PeerJson<'a>>,
    /// Regions that have been silent for too long.
    pub cut_off: &'a [String],
    /// Regions among them of which nothing has been heard since this daemon began.
    pub unseen: &'a [String],
    /// The worldwide rules.
    pub rules: Vec<ErrorBoundJson<'a>>,
    /// This region's rights of each `escrow` rule whose rights move.
    pub rights: Vec<RightsJson<'a>>,
    /// The `split` rules whose weights are being changed: this region still holds the smaller of its shares.
    pub changing: Vec<ChangingJson<'a>>,
    /// The troubles of the cluster now, as this daemon sees them.
    pub notices: Vec<NoticeJson<'a>>,
}

/// Something that its operator should know.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Notice"))]
pub struct NoticeJson<'a> {
    /// `cut_off`, `unseen`, `regions`, `agreement`, `burning`, `rules`, `clock`, `join`, `refused`,
    /// `certificate`, `twice` or `configuration`.
    #[cfg_attr(test, schemars(extend("enum" = crate::core::notice::NoticeKind::ALL.map(crate::core::notice::NoticeKind::as_str))))]
    pub about: &'static str,
    /// A sentence.
    pub text: &'a str,
}

/// The store in which a region counts.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Store"))]
pub struct StoreJson<'a> {
    /// `memory` or `redis`.
    #[cfg_attr(test, schemars(extend("enum" = ["memory", "redis"])))]
    pub backend: &'static str,
    /// The arrangement of its servers; absent for a store without servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<&'static str>,
    /// `ok`, `degraded` (some servers do not answer, or not everything) or `down`.
    #[cfg_attr(test, schemars(extend("enum" = crate::api::schema::STORE_WORDS)))]
    pub state: &'static str,
    /// Daemons that count in it together, this one included; absent for a store of this daemon alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemons: Option<u32>,
    /// The troubles of now, a sentence each.
    pub problems: &'a [String],
    /// Its servers.
    pub servers: Vec<ServerJson<'a>>,
}

/// One server of a store.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Server"))]
pub struct ServerJson<'a> {
    /// `host:port`.
    pub address: &'a str,
    /// `primary`, `replica`, `sentinel` or `seed`.
    pub role: &'static str,
    /// `closed`: it is asked; `half_open`: a little; `open`: it is not; null for servers that serve no
    /// decisions.
    #[cfg_attr(test, schemars(extend("enum" = ["closed", "half_open", "open", null])))]
    pub breaker: Option<&'static str>,
    /// The newest round trip, in milliseconds; null before the first.
    #[cfg_attr(test, schemars(range(min = 0)))]
    pub rtt_ms: Option<f64>,
    /// The newest trouble.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    /// The time since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_age_ms: Option<u64>,
    /// The change that its operator should make.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<&'a str>,
}

/// The word for a store's state.
#[must_use]
pub const fn store_word(state: StoreState) -> &'static str {
    match state {
        StoreState::Ok => "ok",
        StoreState::Degraded => "degraded",
        StoreState::Down => "down",
    }
}

impl<'a> StoreJson<'a> {
    /// Returns what is known of this store.
    #[must_use]
    pub fn new(health: &'a StoreHealth) -> Self {
        Self {
            backend: if health.topology.is_some() { "redis" } else { "memory" },
            topology: health.topology,
            state: store_word(health.state),
            daemons: health.daemons,
            problems: &health.problems,
            servers: health.servers.iter().map(ServerJson::new).collect(),
        }
    }
}

impl<'a> ServerJson<'a> {
    fn new(server: &'a ServerHealth) -> Self {
        let error = server.error.as_ref();
        Self {
            address: &server.address,
            role: server.role,
            breaker: server.breaker,
            rtt_ms: server.rtt.map(|rtt| rtt.to_std().as_secs_f64() * 1_000.0),
            error: error.map(|(text, _)| text.as_str()),
            error_age_ms: error.map(|(_, age)| age.millis_up()),
            warning: server.warning.as_deref(),
        }
    }
}

/// Another daemon.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Peer"))]
pub struct PeerJson<'a> {
    /// Its region.
    pub region: &'a str,
    /// Its own name.
    pub node: &'a str,
    /// The address at which it is dialled.
    pub address: &'a str,
    /// True if the link to it is up.
    pub connected: bool,
    /// True if membership believes it alive.
    pub live: bool,
    /// True if it is shutting down.
    pub draining: bool,
    /// The version of the messages that this daemon and it speak with each other: the newest that both know;
    /// null while the link is down.
    pub wire_version: Option<u8>,
    /// Round trip; null before the first.
    pub rtt_ms: Option<u64>,
    /// Age of the newest frame heard from it; null before the first.
    pub lag_ms: Option<u64>,
    /// The lead of its clock over this daemon's, negative if it is behind; null before it is known.
    pub clock_ahead_ms: Option<i64>,
    /// Bytes sent to it since the start.
    pub sent_bytes: u64,
    /// Bytes received from it since the start.
    pub received_bytes: u64,
    /// The reason for which the link is down, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
}

impl<'a> PeerJson<'a> {
    /// Returns what is known of this daemon.
    #[must_use]
    pub fn new(peer: &'a PeerStatus) -> Self {
        Self {
            region: &peer.name.region,
            node: &peer.name.node,
            address: &peer.address,
            connected: peer.connected,
            live: peer.live,
            draining: peer.draining,
            wire_version: peer.version.map(WireVersion::number),
            rtt_ms: peer.rtt.map(Span::millis_up),
            lag_ms: peer.lag.map(Span::millis_up),
            clock_ahead_ms: peer.ahead.map(|micros| micros / 1_000),
            sent_bytes: peer.bytes.0,
            received_bytes: peer.bytes.1,
            error: peer.error.as_deref(),
        }
    }
}

/// The most by which the worldwide total of a rule may lie above the believed one.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "ErrorBound"))]
pub struct ErrorBoundJson<'a> {
    /// The rule.
    pub rule: &'a str,
    /// In permits: the worst of its buckets.
    pub error_bound: u64,
    /// What most of it is due to: `lag` (news on its way), `stale` (a region has not been heard of it for too
    /// long), `partition`, `untold` (far from the limit, which is not told), `late` (news was lost or late),
    /// `shares` (the other regions spend theirs untold), `room` (more buckets are in use than
    /// `peers.max_keys`, so this region keeps to its share), `crowded` (the same in another region, so its
    /// share is left to it), `start` (this daemon has just begun); `none` where nothing is known to be
    /// uncertain.
    #[cfg_attr(test, schemars(extend("enum" = ["lag", "stale", "partition", "untold", "late", "shares", "room", "crowded", "start", "none"])))]
    pub because: &'a str,
}

/// This region's rights of an `escrow` rule, in all of its buckets whose rights may have to move.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Rights"))]
pub struct RightsJson<'a> {
    /// The rule.
    pub rule: &'a str,
    /// Buckets counted here.
    pub buckets: usize,
    /// Permits that this region mints for them in a window; of a bucket without windows, what its level holds
    /// at most.
    pub minted: u64,
    /// Permits that could be spent at once.
    pub free: u64,
    /// Permits given to other regions and not known to have arrived.
    pub under_way: u64,
    /// Buckets of which permits are burnt.
    pub burning: usize,
    /// Why, if any are: `memory_lost` (the store began too late to know what was spent).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(extend("enum" = ["memory_lost"])))]
    pub because: Option<&'static str>,
    /// Permits given to each region in the window; without windows, since the store began to follow the
    /// bucket.
    pub given: &'a BTreeMap<String, u64>,
    /// Permits taken from each region, likewise.
    pub taken: &'a BTreeMap<String, u64>,
}

impl<'a> RightsJson<'a> {
    /// Returns the answer as the machine tells it.
    #[must_use]
    pub fn new(rights: &'a EscrowRule) -> Self {
        Self {
            rule: &rights.rule,
            buckets: rights.buckets,
            minted: rights.minted,
            free: rights.free,
            under_way: rights.under_way,
            burning: rights.in_doubt,
            because: (rights.in_doubt > 0).then_some("memory_lost"),
            given: &rights.given,
            taken: &rights.taken,
        }
    }
}

/// A `split` rule whose new weights are not held by everybody yet.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Changing"))]
pub struct ChangingJson<'a> {
    /// The rule.
    pub rule: &'a str,
    /// True if nothing is admitted meanwhile: these are the first weights that the regions agree on.
    pub first: bool,
    /// Regions and daemons (`region/node`) that have not said that they hold them; at most eight. Empty: the
    /// larger share begins as soon as what was spent of the old ones has faded.
    pub waiting_for: &'a [String],
}
