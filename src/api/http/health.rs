//! Pages about the daemon: `/metrics`, and the page at `/` that names the routes.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::routes::ROUTES;
use crate::api::reply::{self, Answered, Reply};
use crate::api::{Servers, admin};

/// The age that metrics may have when they are told.
const METRICS_AGE_MAX: Duration = Duration::from_secs(1);
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Every metric in the Prometheus text format, as of at most a second ago.
pub(super) async fn metrics(servers: &Servers) -> Answered {
    let metrics = Arc::clone(servers.engine.metrics());
    let text = servers.metrics_text.get((), Some(METRICS_AGE_MAX), move || metrics.render().into()).await?;
    Ok(reply::with_type(text, PROMETHEUS))
}

/// Returns what can be asked here.
pub(super) fn home(servers: &Servers) -> Reply {
    let name = servers.engine.name();
    let mut page =
        format!("Tidegate {}, node {} in region {}.\n\n", env!("CARGO_PKG_VERSION"), name.node, name.region);
    for (path, _, methods) in ROUTES {
        page.push_str(&format!("{path:<20} {methods}\n"));
    }
    for route in admin::routes() {
        page.push_str(&format!("{:<20} {}, with role {}\n", route.path, route.method, route.role.name()));
    }
    page.push_str("\nTry: curl -s http://HOST/v1/check -d '{\"attributes\":{\"user\":\"u_42\"}}'\n");
    reply::text(page)
}
