//! sliding_log
