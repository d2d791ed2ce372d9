//! leaky_bucket
