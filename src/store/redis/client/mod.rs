//! One server from outside: a connection, its protocol, a breaker, and what is wrong with it. It
//! knows nothing of limits.

pub(super) mod breaker;
pub(super) mod condition;
pub(super) mod diagnostics;
pub(super) mod dial;
pub(super) mod failure;
pub(super) mod info;
pub(super) mod link;
pub(super) mod resp;
pub(super) mod ring;
pub(super) mod slots;
