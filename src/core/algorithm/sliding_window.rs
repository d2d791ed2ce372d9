//! sliding_window
