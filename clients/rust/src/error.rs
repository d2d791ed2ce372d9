//! Failures of a call.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::answer::Decision;

/// A call without an answer that its caller can go on with.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The daemon refused the call itself: a mistake in it, or a right that the caller lacks.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No daemon answered in time, and the client was told to fail, or nothing may be made up for this call.
    #[error(transparent)]
    Away(#[from] Away),
    /// The request may not pass. Nothing was charged for it.
    #[error(transparent)]
    Denied(#[from] Denied),
}

/// The daemon refused a call: a mistake in it, or a right that the caller lacks.
///
/// It also comes where something else than a daemon answers, with the code `unexpected`, and whatever
/// [`WhenAway`](crate::WhenAway) says: no mistake lets requests pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", .field.as_ref().map(|field| format!(" (at {field})")).unwrap_or_default())]
#[non_exhaustive]
pub struct Refused {
    /// The status of the answer.
    pub status: u16,
    /// One word of a fixed list, such as `invalid_request`; `unexpected` where the answer is no daemon's.
    pub code: String,
    /// A sentence.
    pub message: String,
    /// The field of the request that is wrong.
    pub field: Option<String>,
}

impl Refused {
    pub(crate) fn unexpected(status: u16, message: String) -> Self {
        Self { status, code: "unexpected".to_owned(), message, field: None }
    }

    /// Refuses what the daemon would refuse, as it does.
    pub(crate) fn too_large(bytes: usize, bytes_max: usize) -> Self {
        let message = format!("a body has at most {bytes_max} bytes, and this one has {bytes}");
        Self { status: 413, code: "body_too_large".to_owned(), message, field: None }
    }
}

/// No daemon answered in time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{url} was not answered: {cause}")]
#[non_exhaustive]
pub struct Away {
    /// The address and the route that were asked.
    pub url: String,
    /// The reason.
    #[source]
    pub cause: Arc<dyn StdError + Send + Sync>,
}

/// The reason why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AwayCause {
    #[error("no answer within {0:?}")]
    Deadline(std::time::Duration),
    #[error("{}", chain(.0.as_ref()))]
    Transport(Box<dyn StdError + Send + Sync>),
    #[error("status {status}: {text}")]
    Unavailable { status: u16, text: String },
    #[error("the runtime that sent its batch has ended")]
    Stopped,
}

/// Writes an error with the reasons beneath it: those of HTTP say by themselves only which step failed.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(reason) = source {
        text.push_str(": ");
        text.push_str(&reason.to_string());
        source = reason.source();
    }
    text
}

/// A request may not pass, or is to use something else ([`Decision::use_instead`]). Nothing was charged for
/// it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
#[non_exhaustive]
pub struct Denied {
    /// The decision.
    pub decision: Box<Decision>,
}

impl Denied {
    pub(crate) fn by(decision: Decision) -> Self {
        Self { decision: Box::new(decision) }
    }

    fn sentence(&self) -> String {
        let decision = &self.decision;
        let text = decision.message.clone().unwrap_or_else(|| match &decision.rule {
            Some(rule) => format!("{rule} is used up"),
            None => "a limit is used up".to_owned(),
        });
        if let Some(named) = &decision.use_instead {
            return format!("{text}; use {named} instead");
        }
        match decision.retry_after {
            Some(wait) => format!("{text}; again in {wait:?}"),
            None => text,
        }
    }
}

/// The reason why no client can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The address is none of a daemon.
    #[error("address {address:?}: {reason}; expected http://HOST:PORT or unix:/PATH")]
    Address {
        /// The address.
        address: String,
        /// Its fault.
        reason: String,
    },
    /// The token cannot stand in a header.
    #[error("the token holds a character that no header can hold, such as a line's end: is it a whole file?")]
    Token,
    /// Nobody could answer within no time.
    #[error("the timeout must be more than 0: no daemon would ever answer in time")]
    Timeout,
    /// A local share would let nothing pass, ever.
    #[error("WhenAway::LocalShare: limit and window must be more than 0, not {limit} and {window:?}")]
    LocalShare {
        /// The limit.
        limit: u64,
        /// The window.
        window: std::time::Duration,
    },
}
