//! The wishes of a rule for its answers, beside the decision itself.

/// Options of a rule's answers. Without any the answer is as for every other rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerOptions {
    /// The daemon itself holds an answer back for the delay of `throttle`, instead of telling the gateway to.
    pub holds_delay: bool,
    /// Headers of a denial: names in lower case, and values, both such as HTTP allows.
    pub headers: Vec<(String, String)>,
    /// Headers of the answer to a request that passes.
    pub headers_admitted: Vec<(String, String)>,
    /// The media type of the text of a denial, where that is not plain text.
    pub message_type: Option<String>,
    /// The text of a denial is a problem document (RFC 9457), whatever a client accepts.
    pub problem: bool,
    /// Answers name the bucket, by a hash.
    pub partition_key: bool,
    /// A denial says its cause in a header.
    pub tells_cause: bool,
    /// The unit that the limit counts, where that is not requests.
    pub unit: Option<String>,
    /// The name by which Envoy is told of the limit, in place of the rule's; may be empty. It is then told of
    /// it where the rule only logs, too.
    pub told_as: Option<String>,
    /// The thing to use instead where the rule says no, such as a cheaper model: the request then passes.
    pub use_instead: Option<String>,
}

/// Names a bucket of a rule to those who ask, by a hash of rule and identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionKey(pub [u8; 12]);
