//! One call to a daemon's HTTP interface.

use std::time::Duration;

use serde_json::Value;

use super::transport::Target;
use super::{Failure, Server};

/// Longest wait for an answer to what a daemon does at once, and until it says anything at all.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for what a daemon may take long over: a change of very many rules, a look at months of
/// records.
const LONG_DEADLINE: Duration = Duration::from_secs(60);
/// Routes that a daemon answers at once.
const QUICK: [&str; 10] = [
    "/readyz",
    "/v1/check",
    "/v1/report",
    "/v1/explain",
    "/v1/acquire",
    "/v1/renew",
    "/v1/release",
    "/v1/regions",
    "/v1/hot",
    "/v1/why",
];
/// The value that `--server` must have, in words.
const EXPECTED: &str = "--server or TIDEGATE_SERVER must name the HTTP address of a daemon (listen.http)";
/// Longest wait for a connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// An answer, as text and as JSON.
pub(super) struct Reply {
    /// Body of the answer, byte for byte.
    pub text: String,
    /// The body parsed as JSON; null where it is none.
    pub json: Value,
}

impl Server {
    /// Fetches a route.
    ///
    /// # Errors
    /// No daemon there, or it refused: its own words.
    pub(super) fn get(&self, route: &str) -> Result<Reply, Failure> {
        self.send("GET", route, None, None)
    }

    /// The regions that may hold a share, as the daemon is configured.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn configured_regions(&self) -> Result<Vec<String>, Failure> {
        let reply = self.get("/v1/regions")?;
        let configured = reply.json["configured"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(configured.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Posts JSON to a route.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn post(&self, route: &str, body: &Value) -> Result<Reply, Failure> {
        self.send("POST", route, Some(body), None)
    }

    /// Sends a request of any method, with a JSON body where one is given.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn ask(&self, method: &str, route: &str, body: Option<&Value>) -> Result<Reply, Failure> {
        self.send(method, route, body, None)
    }

    /// Puts JSON to a route, for the revision that was looked at.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn put(&self, route: &str, body: &Value, revision: Option<u64>) -> Result<Reply, Failure> {
        self.send("PUT", route, Some(body), revision)
    }

    /// Deletes what a route names.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn delete(&self, route: &str) -> Result<Reply, Failure> {
        self.send("DELETE", route, None, None)
    }

    fn send(
        &self,
        method: &str,
        route: &str,
        body: Option<&Value>,
        revision: Option<u64>,
    ) -> Result<Reply, Failure> {
        if QUICK.contains(&route.split('?').next().unwrap_or(route)) {
            return self.send_within(DEADLINE, method, route, body, revision);
        }
        // A daemon that is silent now would be silent for as long as the answer may take.
        match self.send_within(DEADLINE, "GET", "/readyz", None, None) {
            Err(unreached @ Failure::Unreached(_)) => Err(unreached),
            _ => self.send_within(LONG_DEADLINE, method, route, body, revision),
        }
    }

    fn send_within(
        &self,
        longest: Duration,
        method: &str,
        route: &str,
        body: Option<&Value>,
        revision: Option<u64>,
    ) -> Result<Reply, Failure> {
        let target = Target::of(&self.server, self.token.is_some());
        let mut request = http::Request::builder().method(method).uri(target.url(route));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        if let Some(revision) = revision {
            request = request.header("if-match", format!("\"{revision}\""));
        }
        let request = request
            .body(body.map(Value::to_string).unwrap_or_default())
            .map_err(|error| Failure::Usage(format!("--server {}: {error}", self.server)))?;
        let config = ureq::Agent::config_builder();
        let config = if target.is_encrypted() { config.tls_config(self.tls.config()?) } else { config };
        let config = config
            .timeout_global(Some(longest))
            .timeout_connect(Some(CONNECT_DEADLINE))
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .build();
        self.finish(target.agent(config).run(request))
    }

    /// Says that something else answers there.
    pub(super) fn is_no_daemon(&self) -> Failure {
        Failure::Unreached(format!("what answers at {} is no tidegate daemon: {EXPECTED}", self.server))
    }

    fn finish(&self, answer: Result<http::Response<ureq::Body>, ureq::Error>) -> Result<Reply, Failure> {
        let mut answer = answer.map_err(|error| Failure::Unreached(unreached(&self.server, &error)))?;
        let status = answer.status();
        let text =
            answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(|error| {
                Failure::Unreached(format!("the daemon at {} broke off its answer: {error}", self.server))
            })?;
        let json: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        // A daemon names every refusal by a code.
        let is_daemon =
            if status.is_success() { json.is_object() } else { json["error"]["code"].is_string() };
        // One that is not ready says so with its state.
        if !is_daemon && !json["ready"].is_boolean() {
            return Err(self.is_no_daemon());
        }
        if !status.is_success() {
            let message = json.pointer("/error/message").and_then(Value::as_str).unwrap_or(text.trim());
            // Its word may stand further on in what is said of it: the subject is missing then all the same.
            let names = |field: &&str| message.trim_start_matches('`').starts_with(*field);
            let field = json.pointer("/error/field").and_then(Value::as_str).filter(|field| !names(field));
            let subject = field.map(|field| format!("{field}: ")).unwrap_or_default();
            return Err(Failure::Failed(anyhow::anyhow!(
                "{subject}{message} ({status} from {})",
                self.server
            )));
        }
        Ok(Reply { text, json })
    }
}

/// Returns why TLS has failed, where that is why.
fn of_tls(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(why) => Some(why),
        ureq::Error::Io(io) => io.get_ref()?.downcast_ref::<rustls::Error>(),
        _ => None,
    }
}

/// Returns why there is no answer, as far as it can be told.
fn unreached(server: &str, error: &ureq::Error) -> String {
    use std::io::ErrorKind;
    use ureq::Timeout;
    if let Some(rustls::Error::InvalidMessage(why)) = of_tls(error) {
        return format!(
            "what listens at {server} does not speak TLS ({why:?}): write http:// for a daemon without [listen.http_tls]"
        );
    }
    if let Some(why) = of_tls(error) {
        return format!(
            "the connection to {server} is not trusted: {why}. --tls-ca names the daemon's authority, --tls-cert and --tls-key a certificate of yours"
        );
    }
    let connected = match error {
        ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => None,
        ureq::Error::Timeout(_) => {
            Some(format!("something takes connections at {server} and does not answer ({error})"))
        }
        ureq::Error::Protocol(_) => Some(format!(
            "what answers at {server} does not speak HTTP/1.1, as the gRPC port does not ({error})"
        )),
        ureq::Error::Io(io) if matches!(io.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
            // The reset of a port for gRPC may come before its answer is read.
            Some(format!(
                "what listens at {server} closes connections without an answer, as the gRPC port may ({error})"
            ))
        }
        _ => None,
    };
    match connected {
        Some(what) => format!("{what}: {EXPECTED}"),
        None => format!(
            "no daemon answered at {server}: {error}. Is `tidegate serve` running there? Name another with --server or TIDEGATE_SERVER."
        ),
    }
}

/// A route with a query of those parameters that are given.
pub(super) fn query(route: &str, parameters: &[(&str, Option<String>)]) -> String {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    let pairs: Vec<String> = given
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
        .collect();
    if pairs.is_empty() { route.to_owned() } else { format!("{route}?{}", pairs.join("&")) }
}
