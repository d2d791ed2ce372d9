//! Decisions under concurrency, the ports that the layers around it implement, and the only clock.

pub mod port;
