//! The stores of buckets: the adapters of the engine's [`crate::engine::port::Store`].

mod brought_back;
pub mod cells;
mod cover;
mod decision;
mod escrowed;
mod evaluation;
mod kept;
mod mark_notes;
mod marks;
pub mod memory;
mod memory_part;
mod newcomers;
mod penalties;
pub mod redis;
mod reservations;
mod rights;
mod slot;
mod slot_marks;
mod spread;

#[cfg(test)]
mod tests;

pub use kept::KeptStore;
pub use mark_notes::{MarkNotes, Noted};
pub use memory::MemoryStore;
