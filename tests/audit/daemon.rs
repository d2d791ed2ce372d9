//! The whole daemon, from outside.
