//! The reasons why a batch, or what it adds up to, did not come to the database.

use std::time::Duration;

use super::step::Ended;
use crate::database::postgres::{Database, Failure};

/// Longest time for one batch.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Reasons why a batch was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// The database did not take it.
    #[error(transparent)]
    Database(#[from] Failure),
    /// A test ended it.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// The database's answer, or its failure.
pub(super) fn read<T>(database: &Database, result: Result<T, sqlx::Error>) -> Result<T, Failure> {
    result.map_err(|error| Failure::of(&error, database.name(), DEADLINE))
}
