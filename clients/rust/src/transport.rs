//! One call over HTTP/1.1, on connections that are kept, within a deadline.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Deserialize;

use crate::error::{Away, AwayCause, BuildError, Refused};
#[cfg(unix)]
use crate::unix::UnixConnector;

/// The most that is read of an answer: a thousand checks, each under dozens of rules, come to less.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The longest body that a daemon reads. It may close the connection while a longer one is still being sent,
/// which would look as if no daemon answered: then whoever fills a value could pass every limit.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The most that a mistake repeats of an answer that is no daemon's, in characters.
const STRANGER_TOLD_MAX: usize = 200;

/// The time for which an unused connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A route of the daemon.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Route {
    Check,
    Report,
    Reserve,
    Commit,
    Cancel,
    Acquire,
    Renew,
    Release,
}

impl Route {
    const ALL: [Self; 8] = [
        Self::Check,
        Self::Report,
        Self::Reserve,
        Self::Commit,
        Self::Cancel,
        Self::Acquire,
        Self::Renew,
        Self::Release,
    ];

    fn path(self) -> &'static str {
        match self {
            Self::Check => "/v1/check",
            Self::Report => "/v1/report",
            Self::Reserve => "/v1/reserve",
            Self::Commit => "/v1/commit",
            Self::Cancel => "/v1/cancel",
            Self::Acquire => "/v1/acquire",
            Self::Renew => "/v1/renew",
            Self::Release => "/v1/release",
        }
    }
}

/// The reason why a call has no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Away(Away),
    Refused(Refused),
}

/// The daemon's address, and the connections to it.
pub(crate) struct Transport {
    connections: Box<dyn Connections>,
    /// The address as it was written, for messages.
    address: String,
    /// By route.
    targets: Vec<Uri>,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

impl Transport {
    /// Prepares calls over TCP or a Unix socket, or by a connector of the caller's own.
    pub(crate) fn new(
        address: String,
        token: Option<&str>,
        timeout: Duration,
        connector: Option<Box<dyn Connections>>,
    ) -> Result<Self, BuildError> {
        let base = base(&address, connector.is_some())?;
        let targets = Route::ALL.iter().map(|route| {
            let target = format!("{}{}", base.0, route.path());
            target.parse().map_err(|error: http::uri::InvalidUri| wrong(&address, &error.to_string()))
        });
        Ok(Self {
            targets: targets.collect::<Result<_, _>>()?,
            connections: connector.unwrap_or(base.1),
            authorization: token.map(bearer).transpose()?,
            timeout,
            address,
        })
    }

    /// Sends a body in JSON, and returns that of an answer of status 200.
    pub(crate) async fn call(&self, route: Route, body: Vec<u8>) -> Result<Bytes, Failure> {
        if body.len() > BODY_BYTES_MAX {
            return Err(Failure::Refused(Refused::too_large(body.len(), BODY_BYTES_MAX)));
        }
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        // One target for each route, in their order.
        if let Some(target) = self.targets.get(route as usize) {
            *request.uri_mut() = target.clone();
        }
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        let (status, answer) = match tokio::time::timeout(self.timeout, self.exchange(request)).await {
            Ok(answered) => answered.map_err(|error| self.away(route, AwayCause::Transport(error)))?,
            Err(_) => return Err(self.late(route)),
        };
        let text = || String::from_utf8_lossy(&answer).into_owned();
        match status {
            StatusCode::OK => Ok(answer),
            // A daemon that starts, drains or is crowded decides nothing: it is as good as away.
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                Err(self.away(route, AwayCause::Unavailable { status: status.as_u16(), text: text() }))
            }
            _ => Err(Failure::Refused(self.refusal(route, status, &answer))),
        }
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let response: Response<Incoming> = self.connections.send(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await?;
        Ok((status, body.to_bytes()))
    }

    /// Returns how long a whole call may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Says that no answer came before the deadline.
    pub(crate) fn late(&self, route: Route) -> Failure {
        self.away(route, AwayCause::Deadline(self.timeout))
    }

    pub(crate) fn away(&self, route: Route, cause: AwayCause) -> Failure {
        let url = format!("{}{}", self.address, route.path());
        Failure::Away(Away { url, cause: Arc::new(cause) })
    }

    /// Reads an answer.
    pub(crate) fn read<'a, T: Deserialize<'a>>(&self, route: Route, answer: &'a [u8]) -> Result<T, Failure> {
        serde_json::from_slice(answer)
            .map_err(|error| Failure::Refused(self.stranger(route, StatusCode::OK, &error.to_string())))
    }

    /// Reads why a daemon refused, or what something else said.
    fn refusal(&self, route: Route, status: StatusCode, answer: &[u8]) -> Refused {
        #[derive(Deserialize)]
        struct Body {
            error: Reason,
        }
        #[derive(Deserialize)]
        struct Reason {
            code: String,
            message: String,
            field: Option<String>,
        }
        match serde_json::from_slice(answer) {
            Ok(Body { error: Reason { code, message, field } }) => {
                Refused { status: status.as_u16(), code, message, field }
            }
            Err(_) => self.stranger(route, status, String::from_utf8_lossy(answer).trim()),
        }
    }

    /// Says that something else than a daemon answered.
    fn stranger(&self, route: Route, status: StatusCode, said: &str) -> Refused {
        let (status, address, path) = (status.as_u16(), &self.address, route.path());
        let said: String = said.chars().take(STRANGER_TOLD_MAX).collect();
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let message = format!(
            "{address}{path} answered {status} with something else than a daemon's answer{said}; is it a Tidegate?"
        );
        Refused::unexpected(status, message)
    }
}

fn bearer(token: &str) -> Result<HeaderValue, BuildError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| BuildError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

fn wrong(address: &str, reason: &str) -> BuildError {
    BuildError::Address { address: address.to_owned(), reason: reason.to_owned() }
}

/// Returns the beginning of every target, and connections to the address.
fn base(address: &str, connected: bool) -> Result<(String, Box<dyn Connections>), BuildError> {
    if let Some(path) = address.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(wrong(address, "the socket's path must begin with /"));
        }
        // HTTP wants a host; the socket is the address.
        #[cfg(unix)]
        return Ok(("http://localhost".to_owned(), connections(UnixConnector::new(path))));
        #[cfg(not(unix))]
        return Err(wrong(address, "this system has no Unix sockets"));
    }
    let base = address.trim_end_matches('/');
    let uri: Uri = base.parse().map_err(|error: http::uri::InvalidUri| wrong(address, &error.to_string()))?;
    if uri.query().is_some() {
        return Err(wrong(address, "it has a query"));
    }
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => {}
        (Some("https"), Some(_)) if connected => {}
        (Some("https"), Some(_)) => {
            return Err(wrong(address, "https needs a connector (Builder::connector)"));
        }
        (Some(other), Some(_)) => return Err(wrong(address, &format!("{other} is no scheme of a daemon"))),
        _ => return Err(wrong(address, "it names no scheme and host")),
    }
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    Ok((base.to_owned(), connections(tcp)))
}

/// Connections that send requests.
pub(crate) trait Connections: Send + Sync {
    fn send(&self, request: Request<Full<Bytes>>) -> ResponseFuture;
}

impl<C: Connect + Clone + Send + Sync + 'static> Connections for Client<C, Full<Bytes>> {
    fn send(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        self.request(request)
    }
}

/// Returns a pool of the connections that a connector makes.
pub(crate) fn connections<C: Connect + Clone + Send + Sync + 'static>(connector: C) -> Box<dyn Connections> {
    let mut pool = Client::builder(TokioExecutor::new());
    pool.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX);
    Box::new(pool.build::<_, Full<Bytes>>(connector))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(address: &str, token: Option<&str>) -> Result<Transport, BuildError> {
        Transport::new(address.to_owned(), token, Duration::from_secs(1), None)
    }

    #[test]
    fn routes_are_appended_to_an_address_with_or_without_a_path() {
        for (address, target) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/release"),
            ("http://limits.internal/tidegate/", "http://limits.internal/tidegate/v1/release"),
            ("unix:/run/tidegate.sock", "http://localhost/v1/release"),
        ] {
            let made = made(address, None).ok().unwrap();
            assert_eq!(made.targets[Route::Release as usize].to_string(), target);
        }
    }

    #[test]
    fn an_address_or_token_that_cannot_be_is_refused_by_its_reason() {
        for (address, reason) in [
            ("127.0.0.1:8080", "names no scheme"),
            ("https://limits", "needs a connector"),
            ("redis://limits", "redis is no scheme"),
            ("http://limits?x=1", "has a query"),
            ("unix:run/tidegate.sock", "must begin with /"),
            ("http://a b", "invalid uri"),
        ] {
            let said = made(address, None).err().unwrap().to_string();
            assert!(said.contains(address) && said.contains(reason), "{address}: {said}");
        }
        assert_eq!(made("http://limits", Some("secret\n")).err(), Some(BuildError::Token));
    }

    #[test]
    fn a_refusal_of_something_else_than_a_daemon_is_told_by_its_address_and_status() {
        let made = made("http://limits", None).ok().unwrap();
        let read =
            |answer: &str| made.refusal(Route::Check, StatusCode::NOT_FOUND, answer.as_bytes()).to_string();
        let stranger = "http://limits/v1/check answered 404 with something else than a daemon's answer";
        assert_eq!(read("no such page\n"), format!("{stranger}: no such page; is it a Tidegate?"));
        assert_eq!(read(""), format!("{stranger}; is it a Tidegate?"));
        assert_eq!(read(r#"{"error":{"code":"c","message":"m","field":"f"}}"#), "m (at f)");
    }
}
