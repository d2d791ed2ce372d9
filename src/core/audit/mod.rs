//! Records of decisions: one each, its bytes, and sums of many.
//!
//! A [`Record`] is written once, on the path of a decision, straight into bytes; everything later (the spool,
//! the database, the sums by minute) reads those bytes. [`usage`] adds records up; [`Histogram`] keeps their
//! latencies so that sums of sums still know percentiles.

mod distinct;
mod histogram;
mod record;
mod sum_bytes;
pub mod usage;

pub use distinct::{Distinct, DistinctMax, OTHERS};
pub use histogram::{BUCKETS, Histogram};
pub use record::{Outcome, Record, Records, pieces, storable};
pub use sum_bytes::{read_sums, write_sums};
