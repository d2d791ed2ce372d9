//! What a rule wants of its answers, beside the decision itself.

/// Options of a rule's answers. Without any the answer is as for every other rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerOptions {
    /// The daemon itself holds an answer back for the delay of `throttle`, instead of telling the gateway to.
    pub holds_delay: bool,
}
