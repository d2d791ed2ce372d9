//! What becomes of the records that decisions leave: they wait in a spool on disk, are delivered to PostgreSQL exactly
//! once, are asked for there, and leave for the archive when they are old.

mod copy;
mod deliver;
mod pipeline;
mod segment;
mod spool;
mod step;

pub use deliver::{DeliverError, Delivered, Deliverer};
pub use pipeline::{Pipeline, PipelineSetup};
pub use segment::{Batch, BatchId, Damaged};
pub use spool::{ReadError, Segment, Spool, SpoolError};
pub use step::{Ended, Step, Steps};
