//! token_bucket
