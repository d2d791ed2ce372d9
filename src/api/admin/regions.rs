//! `GET /v1/regions`: every daemon of the cluster, as seen from this one. `PUT /v1/regions/{region}` adds,
//! drains or removes a region.

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::people::{body, note};
use super::{AdminCall, AdminRoute};
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered, Reply};
use crate::api::wire::{
    ChangingJson, ErrorBoundJson, NoticeJson, PeerJson, RegionsJson, RightsJson, StoreJson,
};
use crate::api::{Readiness, Servers};
use crate::core::region_list::{RegionState, Signed, unhex};
use crate::engine::admin::{self, Change, Role};
use crate::engine::region_listing::{RegionChanged, RegionRefused};

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute {
        method: "GET",
        path: "/v1/regions",
        role: Role::Viewer,
        handler: |call| Box::pin(async move { Ok(show(call.servers)) }),
    },
    AdminRoute {
        method: "PUT",
        path: "/v1/regions/{region}",
        role: Role::Admin,
        handler: |call| Box::pin(put(call)),
    },
];

/// How a region is to stand.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct RegionBody {
    /// `listed`: it may hold a share. `drained`: every share of it is zero. `removed`: a drained region is
    /// not listed any more. `gone`: the same for a region that was lost with its share, and whose daemons run
    /// no more.
    #[cfg_attr(test, schemars(extend("enum" = RegionState::ALL.map(RegionState::as_str))))]
    state: String,
    /// Why.
    #[cfg_attr(test, schemars(length(max = super::people::NOTE_BYTES_MAX)))]
    reason: Option<String>,
    /// An operator's signature, for all daemons to take the change; absent: only the one that is asked does.
    signed: Option<SignedBody>,
}

/// What an operator signed: `tidegate regions` makes it from `--operator`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "RegionSigned"))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SignedBody {
    /// When, in microseconds since the epoch. The later of two changes of a region holds.
    stamp: u64,
    /// The operator's certificate: its DER in hexadecimal digits.
    #[cfg_attr(test, schemars(length(max = 4_096)))]
    certificate: String,
    /// The signature (ECDSA, P-256, SHA-256, ASN.1) in hexadecimal digits.
    #[cfg_attr(test, schemars(length(max = 256)))]
    signature: String,
}

impl SignedBody {
    fn read(self) -> Result<(u64, Signed), Refusal> {
        let digits = |field: &str, text: &str, bytes_max| {
            let message = format!("must be from 1 to {bytes_max} bytes in hexadecimal digits");
            unhex(text, bytes_max).ok_or_else(|| Refusal::of_field(field.to_owned(), message))
        };
        let certificate = digits("signed.certificate", &self.certificate, 2_048)?;
        let signature = digits("signed.signature", &self.signature, 128)?;
        Ok((self.stamp, Signed { certificate, signature }))
    }
}

/// A region that was changed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "RegionChanged", deny_unknown_fields))]
pub(in crate::api) struct RegionChangedJson {
    /// The region.
    region: String,
    /// How it stood before; null: nobody listed it.
    #[cfg_attr(test, schemars(extend("enum" = [Some("listed"), Some("drained"), Some("removed"), Some("gone"), None::<&str>])))]
    before: Option<&'static str>,
    /// How it stands.
    #[cfg_attr(test, schemars(extend("enum" = RegionState::ALL.map(RegionState::as_str))))]
    state: &'static str,
    /// Rules with shares of their own, of which a region that was added has none.
    without_share: Vec<String>,
    /// Daemons, as `region/node`, that are there and have not said yet that they know of it.
    waiting_for: Vec<String>,
    /// The operator who signed it; null: nobody did, and the other daemons do not take it.
    signed_by: Option<String>,
}

async fn put(call: AdminCall<'_>) -> Answered {
    let region = call.param(0).to_owned();
    let RegionBody { state, reason, signed } = body(&call)?;
    let state = RegionState::named(&state).ok_or_else(|| {
        let words = RegionState::ALL.map(RegionState::as_str).join(", ");
        Refusal::of_field("state", format!("state is one of {words}, not {state:?}"))
    })?;
    let reason = reason.map(|reason| note("reason", reason)).transpose()?;
    let signed = signed.map(SignedBody::read).transpose()?;
    let changed = call.servers.admin.regions.change(&region, state, signed).await.map_err(refusal)?;
    let before = changed.before.map(RegionState::as_str);
    // A signature changes who takes it, also where the region stood so here already.
    if changed.before != Some(state) || changed.signed_by.is_some() {
        let as_json = |state: &'static str| serde_json::json!({ "state": state });
        let mut after = as_json(state.as_str());
        if let Some(operator) = &changed.signed_by {
            after["signed_by"] = operator.as_str().into();
        }
        let change = Change {
            actor: call.actor.clone(),
            action: "region.put",
            target: region.clone(),
            before: before.map(as_json),
            after: Some(after),
            reason,
        };
        admin::keep(&*call.servers.admin.ledger, &change).await;
    }
    let RegionChanged { without_share, waiting_for, signed_by, .. } = changed;
    let state = state.as_str();
    Ok(reply::json(&RegionChangedJson { region, before, state, without_share, waiting_for, signed_by }))
}

fn refusal(refused: RegionRefused) -> Refusal {
    let text = refused.to_string();
    match refused {
        RegionRefused::NoName(_) => Refusal::of_field("region", text),
        RegionRefused::NotNoted(_) => Refusal::new(Code::Away, text),
        _ => Refusal::new(Code::Conflict, text),
    }
}

/// The region's store and its servers, members, links, lag, who is cut off, and how far each worldwide rule
/// may be off.
pub(super) fn show(servers: &Servers) -> Reply {
    let world = servers.engine.world();
    let name = servers.engine.name();
    let health = servers.engine.store().health();
    let bounds = world.error_bounds.iter();
    let standings = servers.engine.shares_standing();
    let changing = standings.iter().filter(|standing| !standing.settled);
    let notices = servers.engine.notices();
    let list = servers.engine.regions();
    reply::json(&RegionsJson {
        region: &name.region,
        node: &name.node,
        live: servers.readiness() == Readiness::Serving,
        store: StoreJson::new(&health),
        configured: &list.names,
        drained: &list.drained,
        removed: &list.removed,
        peers: world.peers.iter().map(PeerJson::new).collect(),
        cut_off: &world.cut_off,
        unseen: &world.unseen,
        rules: bounds
            .map(|(rule, bound, because)| ErrorBoundJson { rule, error_bound: *bound, because })
            .collect(),
        rights: world.rights.iter().map(RightsJson::new).collect(),
        changing: changing
            .map(|standing| ChangingJson {
                rule: &standing.rule.name,
                first: standing.waits,
                waiting_for: &standing.waiting_for,
            })
            .collect(),
        notices: notices
            .iter()
            .map(|notice| NoticeJson { about: notice.kind.as_str(), text: &notice.text })
            .collect(),
    })
}
