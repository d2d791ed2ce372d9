//! The types that the routes of gateways read and write, for the OpenAPI document.

use schemars::SchemaGenerator;

use super::{hold, reserve};
use crate::api::ready::ReadyJson;
use crate::api::schema::add;

/// Adds those of answers.
pub(in crate::api) fn answers(generator: &mut SchemaGenerator) {
    add::<ReadyJson<'_>>(generator);
}

/// Adds those of requests.
pub(in crate::api) fn bodies(generator: &mut SchemaGenerator) {
    add::<hold::LeaseBody>(generator);
    add::<reserve::CommitBody>(generator);
    add::<reserve::CancelBody>(generator);
}
