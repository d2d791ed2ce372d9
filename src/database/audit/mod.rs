//! The way of the records that decisions leave: they wait in a spool on disk, are delivered to PostgreSQL
//! exactly once, are added up, are asked for there, and leave for the archive when they are old.

pub mod archive;
mod copy;
mod deliver;
mod deliver_error;
mod pipeline;
mod query;
mod retention;
mod segment;
mod settings;
mod spool;
mod step;
mod sum_columns;
mod sums;
mod tables;
mod totals;

use crate::core::time::Timestamp;

pub use super::batch_id::BatchId;
pub use deliver::{Delivered, Deliverer};
pub use deliver_error::DeliverError;
pub use pipeline::{Pipeline, PipelineSetup};
pub use query::Past;
pub use retention::RetentionJob;
pub use segment::{Batch, Damaged};
pub use settings::Settings;
pub use spool::{ReadError, Segment, Spool, SpoolError};
pub use step::{ArchiveStep, Ended, Steps};
pub use sums::{Summer, Unsummed};

/// A moment as PostgreSQL's `to_timestamp` takes it.
#[expect(clippy::cast_precision_loss, reason = "whole seconds of this age of the world fit exactly")]
const fn seconds(at: Timestamp) -> f64 {
    (at.micros() / 1_000_000) as f64
}
