//! Users, API keys and tiers in PostgreSQL: looked up for decisions, watched for changes, shown to and
//! changed by operators.

mod changes;
mod keys;
mod ledger;
mod lookup;
mod register;
mod rows;
mod seen;
mod tiers;
mod users;

use super::Database;

pub use changes::watch;

/// The people of a database.
#[derive(Debug, Clone)]
pub struct IdentityStore {
    database: Database,
    /// This daemon, for the record of changes.
    region: String,
    node: String,
}

impl IdentityStore {
    /// Returns the people of this database, as this daemon sees them.
    #[must_use]
    pub fn new(database: Database, region: &str, node: &str) -> Self {
        Self { database, region: region.to_owned(), node: node.to_owned() }
    }
}
