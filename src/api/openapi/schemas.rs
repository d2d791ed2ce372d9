//! The schemas of bodies and answers, made from the types that are read and written: their doc comments are
//! the descriptions, and serde's attributes say what may be absent.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value, json};

use crate::api::admin::schemas as admin_schemas;
use crate::api::error::ErrorBody;
use crate::api::http::schemas as http_schemas;
use crate::api::schema::{add, never_null, usual_bounds};
use crate::api::wire::checks::{AcquisitionJson, CheckAnswerJson, CheckBodyJson, ReportJson, ReserveBody};
use crate::api::wire::rule_bodies::{QuotasBody, RollbackBody, RuleSetBody};
use crate::api::wire::rules::{ChangedJson, HistoryJson, OneRuleJson, QuotasJson, RuleSetJson};
use crate::api::wire::{
    BucketJson, CommittedJson, ExplanationJson, RegionsJson, ReleasedJson, RenewedJson, ResetJson,
};

/// Every schema by its name.
pub(super) fn all() -> Map<String, Value> {
    let settings = || {
        SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into())
            .with_transform(RecursiveTransform(usual_bounds))
    };
    let mut answers =
        settings().for_serialize().with_transform(RecursiveTransform(never_null)).into_generator();
    add::<ErrorBody<'_>>(&mut answers);
    add::<CheckAnswerJson<'_>>(&mut answers);
    add::<RenewedJson>(&mut answers);
    add::<ReleasedJson>(&mut answers);
    add::<CommittedJson>(&mut answers);
    add::<ExplanationJson<'_>>(&mut answers);
    add::<RuleSetJson>(&mut answers);
    add::<OneRuleJson>(&mut answers);
    add::<ChangedJson>(&mut answers);
    add::<HistoryJson>(&mut answers);
    add::<QuotasJson<'_>>(&mut answers);
    add::<RegionsJson<'_>>(&mut answers);
    add::<BucketJson<'_>>(&mut answers);
    add::<ResetJson<'_>>(&mut answers);
    http_schemas::answers(&mut answers);
    admin_schemas::answers(&mut answers);
    let mut bodies = settings().for_deserialize().into_generator();
    add::<CheckBodyJson>(&mut bodies);
    add::<ReportJson>(&mut bodies);
    add::<AcquisitionJson>(&mut bodies);
    add::<ReserveBody>(&mut bodies);
    add::<RuleSetBody>(&mut bodies);
    add::<RollbackBody>(&mut bodies);
    add::<QuotasBody>(&mut bodies);
    http_schemas::bodies(&mut bodies);
    admin_schemas::bodies(&mut bodies);
    let mut all = answers.take_definitions(true);
    // A rule is shown in the shape in which it is written: what may be absent there may be absent here.
    all.extend(bodies.take_definitions(true));
    all.insert("Any".to_owned(), json!({ "type": "object" }));
    all
}
