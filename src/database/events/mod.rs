//! Events on their way to a webhook: written as batches into a spool on disk, and delivered from there one at
//! a time, oldest first, until the receiver has taken them. So each arrives at least once and in order, also
//! over a restart.

mod body;
mod courier;
mod spool;

pub use courier::{EventCourier, EventCourierSetup, read_secret};
pub use spool::{EventBatch, EventSpool, EventSpoolError};

pub use body::batch_body;
