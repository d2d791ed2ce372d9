//! gcra
