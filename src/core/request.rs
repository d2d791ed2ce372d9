//! The question of a gateway: a domain, attributes and a cost.

use smallvec::SmallVec;

use super::hold::{Hold, HoldStep};
use super::reservation::{Commit, ReservationId, ReservedCost};
use super::time::Span;

/// Longest name or value of an attribute, and longest domain, in bytes.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// Most attributes of one request. A server refuses more.
pub const ATTRIBUTES_MAX: usize = 64;

/// The attribute that shows a credential.
pub const API_KEY: &str = "api_key";
/// The attribute that holds the request's path.
pub const PATH: &str = "path";
/// The attribute with the name that a gateway gave the request, such as its `X-Request-Id`: the audit log
/// keeps it.
pub const REQUEST_ID: &str = "request_id";

/// The charge that one request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Asks for this many permits (at least 1), all or none.
    Take(u64),
    /// Asks without taking.
    Peek,
    /// Gives this many permits back (at least 1); usage stops at zero.
    Refund(u64),
    /// Says what was used already (at least 1 permit): charged in full, whatever is left.
    Report(ReportedCost),
    /// Asks for permits, all or none, that are to be committed later.
    Reserve(ReservedCost),
    /// Says what a reservation has used: charged in full, whatever is left, less what is reserved.
    Commit(Commit),
    /// A step of one who holds places of `concurrency` rules, which no other cost asks. To other rules an
    /// acquisition is a charge of as many permits as it asks for places, and the other steps are nothing.
    Hold(Hold),
}

/// A cost that is known only afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedCost {
    /// Permits that were used already; at least 1.
    pub permits: u64,
    /// The most permits beyond the limit that a bucket owes. Each rule has its own, which the engine puts
    /// here.
    pub debt_max: u32,
}

impl ReportedCost {
    /// In place of [`Self::debt_max`]: a fixed window counts the permits beyond its limit too, and forgets
    /// them with the others when it ends ([`super::rule::Debt::Window`]). Nobody may owe as much.
    pub const COUNTED_BEYOND: u32 = u32::MAX;
}

impl Cost {
    /// Reads the signed number of the HTTP interface: positive takes, zero peeks, negative refunds.
    #[must_use]
    pub const fn from_signed(cost: i64) -> Self {
        match cost {
            0 => Self::Peek,
            1.. => Self::Take(cost.unsigned_abs()),
            _ => Self::Refund(cost.unsigned_abs()),
        }
    }

    /// Reports this many permits; none at all is a peek.
    #[must_use]
    pub const fn report(permits: u64) -> Self {
        match permits {
            0 => Self::Peek,
            _ => Self::Report(ReportedCost { permits, debt_max: 0 }),
        }
    }

    /// True if it is charged whatever is left.
    #[must_use]
    pub const fn is_report(self) -> bool {
        matches!(self, Self::Report(_) | Self::Commit(_))
    }

    /// True if the notes of a bucket's reservations have a say.
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        matches!(self, Self::Reserve(_) | Self::Commit(_))
    }

    /// The permits that it takes: zero for a peek, a refund, or a step that acquires nothing.
    #[must_use]
    pub const fn taken(self) -> u64 {
        match self {
            Self::Report(report) => report.permits,
            Self::Reserve(reserve) => reserve.permits,
            Self::Commit(commit) => commit.actual,
            Self::Take(permits) | Self::Hold(Hold { step: HoldStep::Acquire, places: permits, .. }) => {
                permits
            }
            Self::Peek | Self::Refund(_) | Self::Hold(_) => 0,
        }
    }

    /// Returns what this is to a rule that counts charges rather than holders.
    #[must_use]
    pub const fn charged(self) -> Self {
        match self {
            Self::Hold(_) => match self.taken() {
                0 => Self::Peek,
                permits => Self::Take(permits),
            },
            cost => cost,
        }
    }

    /// The signed number of the HTTP interface, saturating.
    #[must_use]
    pub fn to_signed(self) -> i64 {
        match self {
            Self::Take(_)
            | Self::Peek
            | Self::Hold(_)
            | Self::Report(_)
            | Self::Reserve(_)
            | Self::Commit(_) => i64::try_from(self.taken()).unwrap_or(i64::MAX),
            Self::Refund(permits) => i64::try_from(permits).map_or(i64::MIN, |permits| -permits),
        }
    }
}

/// A gateway's own limit for one call, in place of the rule's (`limit` of an Envoy descriptor).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitOverride {
    /// Permits per window, in place of every rule's own.
    pub permits: u32,
    /// Window in which those permits count; another length than the rule's makes another bucket.
    pub window: Span,
}

/// Name and value pairs, in the order the gateway gave them. An attribute whose name repeats has several
/// values: a condition holds if any of them meets it, and a bucket is named by all of them.
pub type Attributes<'a> = SmallVec<[(&'a str, &'a str); 8]>;

/// The forms in which the values of a request are read, besides what they say. By default as they stand.
#[derive(Debug, Clone, Default)]
pub struct Forms<'a> {
    /// Addresses of IPv6 that share this many leading bits share a bucket; zero: each has its own. Matching
    /// looks at the whole address.
    pub ipv6_prefix: u8,
    /// Values that stand for texts beyond [`TEXT_BYTES_MAX`], each with the text that globs look at in its
    /// place.
    pub whole: Vec<(&'a str, &'a str)>,
    /// The path as the client sent it, query included, where that is to be remembered.
    pub target: Option<&'a str>,
    /// Names the bucket of the request's own limit where no rule counts the request.
    pub descriptor: Option<&'a str>,
    /// Credentials that the request shows besides its [`API_KEY`]. Each is somebody who asks: the request is
    /// held to the rules of every one.
    pub credentials: Vec<&'a str>,
    /// True if values are texts alone: nobody is looked up by them, whatever they look like.
    pub texts_alone: bool,
    /// Credentials that claim to be keys of ours, each with what it counts by where it is none.
    pub fingerprints: Vec<(&'a str, &'a str)>,
    /// Name that the gateway gave the request, where it is not an attribute ([`REQUEST_ID`]).
    pub request_id: Option<&'a str>,
    /// Readings that the origin may have of the [`PATH`] besides the attribute. The request is held to the
    /// rules of every one.
    pub paths: Vec<&'a str>,
}

/// One question: may this pass?
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Namespace of rules that the gateway names; rules of other domains never match.
    pub domain: &'a str,
    /// Facts that are known of the request.
    pub attributes: Attributes<'a>,
    /// Permits that it takes, gives back, reports or reserves.
    pub cost: Cost,
    /// Replaces the limit of every rule that counts this request.
    pub limit: Option<LimitOverride>,
    /// Options by which values are read: addresses, paths and hosts.
    pub forms: Forms<'a>,
    /// Names a report, which is charged once however often it is sent.
    pub report: Option<ReservationId>,
    /// True if its answer may be held back, and it may wait for rights.
    pub may_wait: bool,
}

impl<'a> Request<'a> {
    /// A request whose values are read as they stand, without a limit of its own.
    #[must_use]
    pub fn new(domain: &'a str, attributes: Attributes<'a>, cost: Cost) -> Self {
        Self { domain, attributes, cost, limit: None, forms: Forms::default(), report: None, may_wait: true }
    }

    /// The credentials that it shows; none where its values are texts alone.
    pub fn shown_credentials(&self) -> impl Iterator<Item = &'a str> {
        let own = self.attribute(API_KEY).filter(|_| !self.forms.texts_alone);
        own.into_iter().chain(self.forms.credentials.iter().copied())
    }

    /// The values of an attribute, in every form that the request is held to.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let further: &[&'a str] = match name {
            API_KEY => &self.forms.credentials,
            PATH => &self.forms.paths,
            _ => &[],
        };
        let own = self.attributes.iter().filter(move |(own, _)| *own == name).map(|(_, value)| *value);
        own.chain(further.iter().copied())
    }

    /// The value of an attribute; the first where it repeats.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }
}
