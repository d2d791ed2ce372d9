//! fixed_window
