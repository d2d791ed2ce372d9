//! The routes of Envoy's own rate limit service, for a daemon that stands in for it.

use http::Request;
use hyper::body::Incoming;

use super::{Arriving, ConnectionContext, body, health};
use crate::api::error::{Code, Refusal, healthcheck_status, json_status};
use crate::api::reply::{self, Answered};
use crate::api::rls::service::{Service, answer_json};
use crate::api::{Readiness, Servers};

/// Paths of the listener for requests.
const ROUTES: [&str; 2] = ["/healthcheck", "/json"];
/// Paths of the listener for those who watch, and what they tell.
const DEBUG_ROUTES: [(&str, &str); 4] = [
    ("/", "this list"),
    ("/rlconfig", "the rules in force"),
    ("/stats", "what was counted of each limit"),
    ("/metrics", "all metrics for Prometheus"),
];

/// Returns whether the service has this path at a listener.
pub(super) fn knows(servers: &Servers, path: &str, only_watches: bool) -> bool {
    let Some(service) = &servers.service else { return false };
    let is_debug = || path != "/metrics" && DEBUG_ROUTES.iter().any(|(own, _)| *own == path);
    ROUTES.contains(&path) || (only_watches && (service.tells_metrics_at(path) || is_debug()))
}

impl ConnectionContext<'_> {
    /// Answers a path of the service.
    pub(super) async fn answer_service(
        self,
        request: Request<Incoming>,
        arriving: &mut Arriving<'_>,
    ) -> Answered {
        let Some(service) = &self.servers.service else {
            return Err(Refusal::new(Code::NoRoute, "this daemon stands in for no other"));
        };
        let (head, incoming) = request.into_parts();
        if head.uri.path() == "/json" {
            let bytes_max = self.servers.settings().body_bytes_max;
            let body = body::read_up_to(self.servers, &head.headers, incoming, bytes_max).await?;
            arriving.is_whole();
            return self.answer_json(service, &body).await;
        }
        arriving.is_there();
        Ok(match head.uri.path() {
            path if self.only_watches && service.tells_metrics_at(path) => {
                health::metrics(self.servers).await?
            }
            "/rlconfig" => reply::text(service.rules_text()),
            "/stats" => reply::text(service.statistics_text()),
            "/healthcheck" => {
                let healthy = self.servers.readiness() == Readiness::Serving;
                let text = if healthy { "OK" } else { "the service is not ready" };
                reply::with_status(reply::text(text), healthcheck_status(healthy))
            }
            _ => {
                let lines = DEBUG_ROUTES.iter().map(|(path, tells)| format!("{path:<12} {tells}\n"));
                reply::text(lines.collect::<String>())
            }
        })
    }

    async fn answer_json(self, service: &Service, body: &[u8]) -> Answered {
        let (answer, over) = answer_json(self.servers, service, body).await?;
        Ok(reply::with_status(reply::json_bytes(answer), json_status(over)))
    }
}
