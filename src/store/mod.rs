//! Counters.

pub mod redis;
