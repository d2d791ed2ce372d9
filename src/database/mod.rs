//! Everything that is remembered: rules, identities and the audit log, in files and in PostgreSQL. Everything
//! that is read here is checked here; the layers within trust it.

pub mod audit;
pub mod batch_id;
pub mod document;
pub mod envoy;
pub mod events;
pub mod file;
pub mod given;
pub mod held;
pub mod imported;
pub mod kong;
pub mod limitador;
pub mod nginx;
pub mod postgres;
pub mod private;
pub mod saved;
pub mod set;
pub mod stored;
