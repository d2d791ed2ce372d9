//! The content of a call: the parts of decisions, the scripts, the names of keys, and the replies. The
//! dispatcher joins parts to calls (`servers/dispatcher.rs`).

pub(super) mod batch_queue;
pub(super) mod bytes;
pub(super) mod call;
pub(super) mod epochs;
pub(super) mod names;
pub(super) mod penalties;
pub(super) mod replay;
pub(super) mod rights;
pub(super) mod scripts;
pub(super) mod undo;
