//! Questions, as values: what a call is about, and how it differs from the usual one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// The attributes of a request, by name: who asks, and for what.
///
/// ```
/// let asked = tidegate_client::Attributes::from([("user", "u_42"), ("path", "/api/search")]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Attributes(BTreeMap<String, String>);

impl Attributes {
    /// Adds an attribute, in the place of one of the same name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Attributes {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl<N: Into<String>, V: Into<String>, const COUNT: usize> From<[(N, V); COUNT]> for Attributes {
    fn from(pairs: [(N, V); COUNT]) -> Self {
        pairs.into_iter().collect()
    }
}

impl From<&Attributes> for Attributes {
    fn from(attributes: &Attributes) -> Self {
        attributes.clone()
    }
}

/// A request that is to be decided, and charged if it may pass. [`Tidegate::check`](crate::Tidegate::check)
/// takes attributes in its place where the cost is 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    attributes: Attributes,
    pub(crate) cost: i64,
}

impl Check {
    /// Asks for a request with these attributes and a cost of 1.
    pub fn new(attributes: impl Into<Attributes>) -> Self {
        Self { domain: None, attributes: attributes.into(), cost: 1 }
    }

    /// Says how many permits it takes. 0 only asks, a negative cost gives permits back.
    #[must_use]
    pub fn cost(mut self, cost: i64) -> Self {
        self.cost = cost;
        self
    }
}

impl<A: Into<Attributes>> From<A> for Check {
    fn from(attributes: A) -> Self {
        Self::new(attributes)
    }
}

/// Permits that were used already. [`Tidegate::report`](crate::Tidegate::report) charges them in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    attributes: Attributes,
    cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

impl Report {
    /// Says that a request with these attributes used `cost` permits.
    pub fn new(attributes: impl Into<Attributes>, cost: u64) -> Self {
        Self { domain: None, attributes: attributes.into(), cost, id: None }
    }
}

/// Permits that are to be held before a cost is known. [`Tidegate::reserve`](crate::Tidegate::reserve) takes
/// attributes in its place where the daemon is to estimate how many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reserve {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    attributes: Attributes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) amount: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_written")]
    pub(crate) ttl: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

impl Reserve {
    /// Holds as many permits as such calls used lately.
    pub fn new(attributes: impl Into<Attributes>) -> Self {
        Self { domain: None, attributes: attributes.into(), amount: None, ttl: None, id: None }
    }

    /// Says how many permits to hold, at least 1: the most that the call can cost.
    #[must_use]
    pub fn amount(mut self, amount: u64) -> Self {
        self.amount = Some(amount);
        self
    }

    /// Says after which time the permits are free again where nobody commits: a minute unless said.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }
}

impl<A: Into<Attributes>> From<A> for Reserve {
    fn from(attributes: A) -> Self {
        Self::new(attributes)
    }
}

/// Writes a duration as the daemon reads it, in whole milliseconds.
fn as_written<S: Serializer>(ttl: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match ttl {
        Some(ttl) => to.collect_str(&format_args!("{}ms", ttl.as_millis())),
        None => to.serialize_none(),
    }
}

/// Places of `concurrency` rules that a request is to hold. [`Tidegate::acquire`](crate::Tidegate::acquire)
/// takes attributes in its place where it is one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Acquire {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    attributes: Attributes,
    pub(crate) cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

impl Acquire {
    /// Asks for one place of every rule that applies.
    pub fn new(attributes: impl Into<Attributes>) -> Self {
        Self { domain: None, attributes: attributes.into(), cost: 1, id: None }
    }

    /// Says how many places. 0 only asks.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }
}

impl<A: Into<Attributes>> From<A> for Acquire {
    fn from(attributes: A) -> Self {
        Self::new(attributes)
    }
}

/// Gives questions the setters that they have alike.
macro_rules! setters {
    ($($question:ident { $($setter:ident: $doc:literal),+ })+) => {
        $(impl $question {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $setter(mut self, $setter: impl Into<String>) -> Self {
                    self.$setter = Some($setter.into());
                    self
                }
            )+
        })+
    };
}

setters! {
    Check { domain: "Names the rules that are asked, in the place of the client's own domain." }
    Report {
        id: "Names the report: by one id and the same attributes it is charged once, however often it is sent.",
        domain: "Names the rules that are charged, in the place of the client's own domain."
    }
    Reserve {
        id: "Names the reservation: by one id and the same attributes it holds once, however often it is sent.",
        domain: "Names the rules that are asked, in the place of the client's own domain."
    }
    Acquire {
        id: "Names the request: by one id and the same attributes it holds once, however often it is sent.",
        domain: "Names the rules that are asked, in the place of the client's own domain."
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(request: &impl Serialize) -> String {
        serde_json::to_string(request).unwrap()
    }

    #[test]
    fn a_question_is_written_as_the_daemon_reads_it() {
        let asked = Attributes::from([("user", "u")]).with("path", "/");
        assert_eq!(written(&Check::from(&asked)), r#"{"attributes":{"path":"/","user":"u"},"cost":1}"#);
        let reserve =
            Reserve::new([("team", "t")]).amount(9).ttl(Duration::from_secs(2)).id("x").domain("web");
        assert_eq!(
            written(&reserve),
            r#"{"domain":"web","attributes":{"team":"t"},"amount":9,"ttl":"2000ms","id":"x"}"#
        );
    }
}
