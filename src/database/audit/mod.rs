//! What becomes of the records that decisions leave: they wait in a spool on disk, are delivered to
//! PostgreSQL exactly once, are added up, are asked for there, and leave for the archive when they are old.

pub mod archive;
mod copy;
mod deliver;
mod pipeline;
mod query;
mod retention;
mod segment;
mod spool;
mod step;
mod sums;
mod tables;
mod totals;

use crate::core::time::Timestamp;

pub use deliver::{DeliverError, Delivered, Deliverer};
pub use pipeline::{Pipeline, PipelineSetup};
pub use query::Past;
pub use retention::{RetentionJob, Settings};
pub use segment::{Batch, BatchId, Damaged};
pub use spool::{ReadError, Segment, Spool, SpoolError};
pub use step::{ArchiveStep, Ended, Steps};
pub use sums::{Summer, Unsummed};

/// A moment as PostgreSQL's `to_timestamp` takes it.
#[expect(clippy::cast_precision_loss, reason = "whole seconds of this age of the world fit exactly")]
const fn seconds(at: Timestamp) -> f64 {
    (at.micros() / 1_000_000) as f64
}
