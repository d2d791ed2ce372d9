//! The parameters of a query, as the routes that look at the past and at the present read them.

use crate::api::error::Refusal;
use crate::core::time::Timestamp;
use crate::core::written::{parse_moment, parse_span};
use crate::engine::history::ROWS_MAX;

/// Rows of an answer that does not say how many.
const ROWS_DEFAULT: u32 = 100;

/// The parameters of a query, each taken once.
pub(super) struct Parameters(pub(super) Vec<(String, String)>);

impl Parameters {
    /// The value of the first of this name.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|(own, _)| own == name)?;
        Some(self.0.remove(place).1)
    }

    /// A moment, or how long ago.
    pub(super) fn moment(&mut self, name: &str, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let ago = || parse_span(&text).map(|span| Timestamp(now.micros().saturating_sub(span.micros())));
        let moment = parse_moment(&text).or_else(ago);
        moment.map(Some).ok_or_else(|| {
            let message = "must be a moment such as 2026-12-01T00:00:00Z, or how long ago, such as 24h";
            Refusal::of_field(name.to_owned(), message)
        })
    }

    /// Most rows.
    pub(super) fn limit(&mut self) -> Result<u32, Refusal> {
        let Some(text) = self.take("limit") else { return Ok(ROWS_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=ROWS_MAX).contains(limit));
        limit.ok_or_else(|| Refusal::of_field("limit", format!("must be a number from 1 to {ROWS_MAX}")))
    }

    /// Refuses what nobody took.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => {
                let message = "there is no such parameter here, or it is given twice";
                Err(Refusal::of_field(name, message))
            }
        }
    }
}
