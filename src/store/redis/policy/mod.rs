//! Decisions beside the servers: permits drawn ahead, split keys, failure policies, work in the background.

pub(super) mod background;
mod cell_turns;
pub(super) mod cells;
pub(super) mod daemons;
pub(super) mod decide;
pub(super) mod fallback;
pub(super) mod first_start;
pub(super) mod lease;
pub(super) mod registry;
pub(super) mod shelf;
pub(super) mod split;
pub(super) mod unwritten;
