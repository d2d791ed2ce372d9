//! Records and batches as tests need them, and a database with this build's schema.

use std::time::Duration;

use tidegate::core::audit::usage::Sums;
use tidegate::core::audit::{Outcome, Record, write_sums};
use tidegate::core::denial_cause::DenialCause;
use tidegate::core::regions::NodeName;
use tidegate::core::time::Timestamp;
use tidegate::database::audit::{Batch, BatchId, Deliverer, Steps, Summer, Unsummed};
use tidegate::database::postgres::{Database, PostgresSettings};

use super::support::command::TIDEGATE;
use super::support::postgres::Postgres;

/// A Tuesday: 2026-03-10, noon, UTC.
pub(crate) const NOON: Timestamp = Timestamp(1_773_144_000_000_000);

/// A server and one migrated database of it.
pub(crate) struct Server {
    pub(crate) postgres: Postgres,
    pub(crate) database: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let postgres = Postgres::start();
        let database = postgres.migrated(TIDEGATE);
        Self { postgres, database }
    }

    /// As the daemon opens it. Within a runtime.
    pub(crate) fn open(&self) -> Database {
        let settings = PostgresSettings {
            url: self.postgres.url(&self.database),
            timeout: Duration::from_secs(5),
            connections: 4,
            application: "test".to_owned(),
        };
        Database::open(&settings).unwrap()
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        self.postgres.sql(&self.database, sql)
    }

    pub(crate) fn number(&self, sql: &str) -> u64 {
        self.sql(sql).parse().unwrap()
    }
}

/// What writes to the database in one daemon.
pub(crate) struct Process {
    pub(crate) deliverer: Deliverer,
    pub(crate) summer: Summer,
}

impl Process {
    /// Within a runtime.
    pub(crate) fn of(server: &Server, node: &NodeName, steps: &Steps) -> Self {
        Self::with(server.open(), node, steps)
    }

    pub(crate) fn with(database: Database, node: &NodeName, steps: &Steps) -> Self {
        let unsummed = Unsummed::default();
        let deliverer = Deliverer::new(database.clone(), unsummed.clone(), steps.clone());
        Self { deliverer, summer: Summer::new(database, node.clone(), unsummed, steps.clone()) }
    }
}

/// Who decided, in these tests.
pub(crate) fn node() -> NodeName {
    NodeName { region: "eu".to_owned(), node: "eu-1".to_owned() }
}

/// A denial of this user.
pub(crate) fn denial(at: Timestamp, user: &str) -> Record<'_> {
    Record {
        at,
        domain: "default",
        rule: Some("search"),
        user: Some(user),
        key: None,
        address: Some("2001:db8::/64"),
        path: Some("/search?q=1"),
        method: Some("GET"),
        outcome: Outcome::Denied,
        cost: 1,
        count: 10,
        limit: 10,
        status: 429,
        retry_ms: Some(1_000),
        cause: Some(DenialCause::UsedUp),
        request_id: Some("7f3c"),
        latency_us: 12,
        weight: 1,
    }
}

/// A batch of these.
pub(crate) fn batch<'a>(sequence: u64, records: impl IntoIterator<Item = Record<'a>>) -> Batch {
    let (mut bytes, mut rows) = (Vec::new(), 0);
    for record in records {
        record.write(&mut bytes);
        rows += 1;
    }
    Batch { id: BatchId { incarnation: 7, sequence }, node: node(), rows, bytes, sums: Vec::new() }
}

/// A batch of what these add up to, without a row of them.
pub(crate) fn batch_of_sums<'a>(sequence: u64, records: impl IntoIterator<Item = Record<'a>>) -> Batch {
    let mut sums = Sums::default();
    records.into_iter().for_each(|record| sums.add(&record));
    Batch { sums: write_sums(&sums.into_sorted()), ..batch(sequence, []) }
}

/// A runtime for one test.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
