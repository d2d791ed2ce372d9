//! The servers of one store: which serves what, what waits for each, and how calls get there and back.

pub(super) mod dispatcher;
pub(super) mod inspect;
pub(super) mod map;
pub(super) mod metrics;
pub(super) mod node;
pub(super) mod plan;
pub(super) mod topology;
