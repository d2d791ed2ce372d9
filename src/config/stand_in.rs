//! The environment of Envoy's rate limit service, read as a configuration of ours: what a daemon that stands
//! in for it runs with. `docs/tasks` has the table of these variables.

mod variables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use toml::{Table, Value};

use self::variables::Variables;
use super::sources::PREFIX;
use super::{Config, Flags, Problem};
use crate::core::envoy::{ServiceSettings, glob_fits};
use crate::core::rule::Mode;

/// The settings that a daemon runs with which stands in for Envoy's rate limit service.
#[derive(Debug, Clone, PartialEq)]
pub struct StandIn {
    /// A watched folder of files, or a server of xDS.
    pub rules: StandInRules,
    /// `MERGE_DOMAIN_CONFIG`: whether one domain may stand in several files or resources.
    pub merge: bool,
    /// True if it is healthy before it has rules.
    pub healthy_without_rules: bool,
    /// `FORCE_START_WITHOUT_INITIAL_CONFIG`: whether wrong rules do not stop the start.
    pub starts_without_rules: bool,
    /// Options of the service's answers: shadow and quota mode, headers and metadata.
    pub answers: ServiceSettings,
    /// The address on which `/rlconfig` and `/stats` are served.
    pub debug: String,
    /// `PROMETHEUS_PATH`: where metrics are told besides `/metrics`; `None` where it is not set.
    pub metrics_path: Option<String>,
    /// `TIDEGATE_GLOBAL_MODE`: how limits are held worldwide, the first pattern that fits a limit's name.
    pub worldwide: Vec<(String, Mode)>,
    /// `LOG_LEVEL` as one of our levels; `None` where it is not set.
    pub log_level: Option<String>,
    /// True if `LOG_FORMAT=json` asks for a JSON object a line.
    pub log_json: bool,
    /// Variables that were found and are not used: a sentence each.
    pub unused: Vec<String>,
}

/// Sources of the rules of a stand-in.
#[derive(Debug, Clone, PartialEq)]
pub enum StandInRules {
    /// A folder of files, watched.
    Folder {
        /// Folder that holds the files of rules.
        path: PathBuf,
        /// `RUNTIME_IGNOREDOTFILES`: whether files whose name begins with a dot are passed over.
        ignores_dotfiles: bool,
    },
    /// A server of xDS.
    Xds(Box<XdsSource>),
}

/// A server of xDS.
#[derive(Debug, Clone, PartialEq)]
pub struct XdsSource {
    /// Address of the xDS server, as `host:port`.
    pub server: String,
    /// Name by which this daemon asks the server for its resources.
    pub node: String,
    /// Facts about this daemon that the server is told besides.
    pub metadata: Vec<(String, String)>,
    /// Headers that are sent with the stream besides gRPC's own, by name and value.
    pub headers: Vec<(String, String)>,
    /// TLS towards the server; `None` speaks plain text.
    pub tls: Option<XdsTls>,
    /// Wait before a connection is tried again.
    pub connect_retry: Duration,
    /// First and longest wait before a stream that ended is opened again.
    pub backoff: (Duration, Duration),
    /// By which part of itself such a wait varies.
    pub jitter: f64,
    /// Longest message that is accepted from the server, in bytes.
    pub message_bytes_max: usize,
    /// `TIDEGATE_RULES__SAVED`: where the last rules are kept.
    pub saved: PathBuf,
}

/// The files of TLS towards a server of xDS, in PEM. They are read at each connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct XdsTls {
    /// The authority that signed the server's certificate; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// This daemon's certificate, and its private key.
    pub own: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have, where that is not its host.
    pub name: Option<String>,
}

impl StandIn {
    /// Returns how a limit is held worldwide, by the name of the rule that counts it.
    #[must_use]
    pub fn mode_of(&self, rule: &str) -> Option<Mode> {
        self.worldwide.iter().find(|(pattern, _)| glob_fits(pattern, rule)).map(|(_, mode)| *mode)
    }
}

/// The variable that holds limits worldwide, beside those of the service.
const GLOBAL_MODE: &str = "TIDEGATE_GLOBAL_MODE";
/// The file in the working directory that keeps rules that came by xDS.
const SAVED: &str = "rules.saved.xds";
/// Longest message unless the environment says otherwise, as gRPC has it.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Reads the environment.
///
/// # Errors
/// Every variable that cannot be used as it is, and those that ask for what there is not here: a sentence
/// each.
pub fn stand_in(
    environment: impl Iterator<Item = (String, String)>,
) -> Result<(Config, StandIn), Vec<String>> {
    let (mut own, mut theirs) = (Vec::new(), BTreeMap::new());
    for (name, value) in environment {
        if name.starts_with(PREFIX) && name != GLOBAL_MODE {
            own.push((name, value));
        } else {
            theirs.insert(name, value);
        }
    }
    let mut variables = Variables::new(theirs);
    variables.refuse_unsupported();
    let table = settings(&mut variables);
    let stand_in = read(&mut variables);
    let (unused, mut problems) = variables.finish();
    let text = toml::to_string(&table).unwrap_or_default();
    let flags = Flags::default();
    match Config::from_text("the environment", &text, Path::new(""), own.into_iter(), &flags) {
        Ok(config) if problems.is_empty() => {
            let mut stand_in = StandIn { unused, ..stand_in };
            if let StandInRules::Xds(source) = &mut stand_in.rules {
                source.saved.clone_from(&config.rules.saved);
            }
            Ok((config, stand_in))
        }
        Ok(_) => Err(problems),
        Err(wrong) => {
            problems.extend(wrong.iter().map(Problem::to_string));
            Err(problems)
        }
    }
}

/// Reads the variables that are keys of our configuration.
fn settings(from: &mut Variables) -> Table {
    let mut listen = Table::new();
    let address = |host: &str, port: &str, usual: u16, from: &mut Variables| {
        let host = from.text(host).unwrap_or_else(|| "0.0.0.0".to_owned());
        let port = from.number(port).unwrap_or(u64::from(usual));
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    };
    listen.insert("http".to_owned(), Value::String(address("HOST", "PORT", 8080, from)));
    let grpc = address("GRPC_HOST", "GRPC_PORT", 8081, from);
    let grpc = from.text("GRPC_UDS").map_or(grpc, |path| format!("unix:{path}"));
    listen.insert("grpc".to_owned(), Value::String(grpc));
    listen.insert("admin".to_owned(), Value::String("off".to_owned()));
    // The HTTP port is open to the network for probes; only Envoy gives back.
    listen.insert("http_refunds".to_owned(), Value::Boolean(false));
    if from.flag("USE_PROMETHEUS", false) {
        let address = from.text("PROMETHEUS_ADDR").unwrap_or_else(|| ":9090".to_owned());
        let address = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address };
        listen.insert("metrics".to_owned(), Value::String(address));
    } else {
        from.pass_over(&["PROMETHEUS_ADDR", "PROMETHEUS_PATH"]);
    }
    let (cert, key) = (from.text("GRPC_SERVER_TLS_CERT"), from.text("GRPC_SERVER_TLS_KEY"));
    let (clients, name) = (from.text("GRPC_CLIENT_TLS_CACERT"), from.text("GRPC_CLIENT_TLS_SAN"));
    // The reference never reads it: it must not make certificates of clients mandatory.
    from.pass_over(&["GRPC_SERVER_TLS_CA_CERT"]);
    if from.flag("GRPC_SERVER_USE_TLS", false) {
        if name.is_some() && clients.is_none() {
            from.problem("GRPC_CLIENT_TLS_SAN", "names who is let in, and needs GRPC_CLIENT_TLS_CACERT");
        }
        let name = name.filter(|_| clients.is_some());
        let files = [("cert", cert), ("key", key), ("clients", clients)];
        let mut tls: Table = files
            .into_iter()
            .filter_map(|(name, path)| Some((name.to_owned(), Value::String(path?))))
            .collect();
        if let Some(name) = name {
            tls.insert("names".to_owned(), Value::Array(vec![Value::String(name)]));
        }
        listen.insert("grpc_tls".to_owned(), Value::Table(tls));
    }
    let saved = ("saved".to_owned(), Value::String(SAVED.to_owned()));
    let mut all = Table::new();
    all.insert("rules".to_owned(), Value::Table([saved].into_iter().collect()));
    all.insert("listen".to_owned(), Value::Table(listen));
    if let Some(store) = store(from) {
        all.insert("store".to_owned(), Value::Table(store));
    }
    if let Some(traces) = traces(from) {
        all.insert("traces".to_owned(), Value::Table(traces));
    }
    all
}

/// The collector of spans; `None`: none are made.
fn traces(from: &mut Variables) -> Option<Table> {
    const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
    const PROTOCOL: &str = "TRACING_EXPORTER_PROTOCOL";
    if !from.flag("TRACING_ENABLED", false) {
        let about = ["TRACING_SERVICE_NAME", "TRACING_SERVICE_NAMESPACE", "TRACING_SERVICE_INSTANCE_ID"];
        from.pass_over(&about);
        from.pass_over(&["TRACING_SAMPLING_RATE", PROTOCOL, ENDPOINT, HEADERS]);
        return None;
    }
    let service = from.text("TRACING_SERVICE_NAME").unwrap_or_else(|| "RateLimit".to_owned());
    let sample = from.fraction("TRACING_SAMPLING_RATE").unwrap_or(1.0);
    let headers = from.pairs(HEADERS).into_iter().map(|(name, value)| {
        let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
        Value::String(format!("{name}={value}"))
    });
    let headers: Vec<Value> = headers.collect();
    let endpoint = from.text(ENDPOINT).unwrap_or_else(|| "http://localhost:4318".to_owned());
    if from.text(PROTOCOL).is_some_and(|protocol| protocol != "http") {
        from.ignore(
            PROTOCOL,
            "spans go by OTLP over HTTP alone, so TIDEGATE_TRACES__ENDPOINT names their collector",
        );
        return None;
    }
    if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        from.ignore(ENDPOINT, "spans go to http://host:port or https://host:port");
        return None;
    }
    let mut traces = Table::new();
    traces.insert("endpoint".to_owned(), Value::String(endpoint));
    traces.insert("service_name".to_owned(), Value::String(service));
    traces.insert("sample".to_owned(), Value::Float(sample));
    if !headers.is_empty() {
        traces.insert("headers".to_owned(), Value::Array(headers));
    }
    Some(traces)
}

/// The region's Redis; `None`: this daemon counts for itself.
fn store(from: &mut Variables) -> Option<Table> {
    let kind = from.text("REDIS_TYPE").unwrap_or_default().to_ascii_lowercase();
    let (auth, secure) = (from.text("REDIS_AUTH"), from.flag("REDIS_TLS", false));
    let sentinel_auth = from.text("REDIS_SENTINEL_AUTH");
    let timeout = from.duration("REDIS_TIMEOUT");
    let files = [
        ("ca", from.text("REDIS_TLS_CACERT")),
        ("cert", from.text("REDIS_TLS_CLIENT_CERT")),
        ("key", from.text("REDIS_TLS_CLIENT_KEY")),
    ];
    let socket = from.text("REDIS_SOCKET_TYPE");
    let url = from.text("REDIS_URL")?;
    let is_unix = socket.as_deref() == Some("unix") || url.starts_with('/');
    if is_unix && !(url.starts_with('/') && matches!(kind.as_str(), "" | "single") && !secure) {
        let sentence =
            "is a Unix socket by REDIS_SOCKET_TYPE: the path of one server, without REDIS_TLS, is expected";
        from.problem("REDIS_URL", sentence);
    }
    let mut parts = url.split(',').map(str::trim).filter(|part| !part.is_empty());
    let mut redis = Table::new();
    let topology = match kind.as_str() {
        "" | "single" => "single",
        "cluster" => "cluster",
        "sentinel" => {
            let master = parts.next().unwrap_or_default().to_owned();
            redis.insert("sentinel_master".to_owned(), Value::String(master));
            "sentinel"
        }
        other => {
            from.problem("REDIS_TYPE", &format!("must be SINGLE, CLUSTER or SENTINEL, not {other:?}"));
            "single"
        }
    };
    redis.insert("topology".to_owned(), Value::String(topology.to_owned()));
    // There the sentinels are asked with a password of their own, or with none.
    let listed_auth = match (topology, &auth, &sentinel_auth) {
        ("sentinel", None, Some(_)) => {
            let sentence = "needs REDIS_AUTH: where sentinels ask for a password, so must their servers here";
            from.problem("REDIS_SENTINEL_AUTH", sentence);
            None
        }
        ("sentinel", Some(of_servers), _) => {
            redis.insert("sentinel_master_auth".to_owned(), Value::String(of_servers.clone()));
            sentinel_auth.clone()
        }
        _ => auth.clone(),
    };
    let nodes: Vec<Value> = match is_unix {
        true => vec![Value::String(unix_node(&url, auth.as_deref()))],
        false => parts.map(|part| Value::String(node(part, listed_auth.as_deref(), secure))).collect(),
    };
    redis.insert("nodes".to_owned(), Value::Array(nodes));
    if let Some(timeout) = timeout {
        let millis = timeout.as_millis().clamp(1, 60_000);
        redis.insert("timeout".to_owned(), Value::String(format!("{millis}ms")));
    }
    let files: Table =
        files.into_iter().filter_map(|(name, path)| Some((name.to_owned(), Value::String(path?)))).collect();
    if secure && !files.is_empty() {
        redis.insert("tls".to_owned(), Value::Table(files));
    }
    let mut store = Table::new();
    // Permits drawn ahead would show as used, and every number is compared with the reference service's.
    let no_lease = [("max".to_owned(), Value::Integer(0))].into_iter().collect();
    store.insert("lease".to_owned(), Value::Table(no_lease));
    store.insert("backend".to_owned(), Value::String("redis".to_owned()));
    store.insert("redis".to_owned(), Value::Table(redis));
    Some(store)
}

/// The path of a server's socket as an address of ours.
fn unix_node(path: &str, auth: Option<&str>) -> String {
    const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
    let path = utf8_percent_encode(path, PATH);
    let Some(auth) = auth else { return format!("redis+unix://{path}") };
    let (user, password) =
        auth.split_once(':').map_or((None, auth), |(user, password)| (Some(user), password));
    let written = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let user = user.map(|user| format!("user={}&", written(user))).unwrap_or_default();
    format!("redis+unix://{path}?{user}pass={}", written(password))
}

/// One server as an address of ours: `host:port`, or a URL as it is.
fn node(part: &str, auth: Option<&str>, secure: bool) -> String {
    let (scheme, rest) = match part.split_once("://") {
        Some(("rediss", rest)) => ("rediss", rest),
        Some((_, rest)) => (if secure { "rediss" } else { "redis" }, rest),
        None => (if secure { "rediss" } else { "redis" }, part),
    };
    let Some(auth) = auth.filter(|_| !rest.contains('@')) else { return format!("{scheme}://{rest}") };
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    let written = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    format!("{scheme}://{}:{}@{rest}", written(user), written(password))
}

/// Reads the variables that are the service's own.
fn read(from: &mut Variables) -> StandIn {
    let starts_without_rules = from.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false);
    let needs_rules = from.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false);
    let names = [
        ("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
        ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
        ("LIMIT_RESET_HEADER", "RateLimit-Reset"),
    ]
    .map(|(variable, usual)| from.header_name(variable, usual));
    let headers = from.flag("LIMIT_RESPONSE_HEADERS_ENABLED", false).then_some(names);
    let near_limit = from.fraction("NEAR_LIMIT_RATIO").unwrap_or(0.8);
    let host = from.text("DEBUG_HOST").unwrap_or_else(|| "0.0.0.0".to_owned());
    let port = from.number("DEBUG_PORT").unwrap_or(6070);
    let log_level = log_level(from);
    StandIn {
        rules: rules(from),
        merge: from.flag("MERGE_DOMAIN_CONFIG", false),
        healthy_without_rules: starts_without_rules && !needs_rules,
        starts_without_rules,
        answers: ServiceSettings {
            shadow: from.flag("SHADOW_MODE", false),
            quota: from.flag("QUOTA_MODE", false),
            metadata: from.flag("RESPONSE_DYNAMIC_METADATA", false),
            headers,
            near_limit,
            prefix: from.text("CACHE_KEY_PREFIX").unwrap_or_default(),
        },
        debug: format!("{host}:{port}"),
        metrics_path: from.path("PROMETHEUS_PATH"),
        worldwide: worldwide(from),
        log_level,
        log_json: from.text("LOG_FORMAT").is_some_and(|format| format.eq_ignore_ascii_case("json")),
        unused: Vec::new(),
    }
}

/// The level of the log as one of ours.
fn log_level(from: &mut Variables) -> Option<String> {
    let level = from.text("LOG_LEVEL")?.to_ascii_lowercase();
    let own = match level.as_str() {
        "trace" | "debug" | "info" | "warn" | "error" => level.as_str(),
        "warning" => "warn",
        "fatal" | "panic" => "error",
        other => {
            let known = "trace, debug, info, warn, error, fatal or panic";
            from.problem("LOG_LEVEL", &format!("must be {known}, not {other:?}"));
            return None;
        }
    };
    Some(own.to_owned())
}

fn rules(from: &mut Variables) -> StandInRules {
    let kind = from.text("CONFIG_TYPE").unwrap_or_else(|| "FILE".to_owned());
    let source = xds(from);
    let root = from.text("RUNTIME_ROOT").unwrap_or_else(|| "/srv/runtime_data/current".to_owned());
    let parts =
        [from.text("RUNTIME_SUBDIRECTORY"), from.text("RUNTIME_APPDIRECTORY").or(Some("config".to_owned()))];
    let ignores_dotfiles = from.flag("RUNTIME_IGNOREDOTFILES", false);
    match kind.as_str() {
        "GRPC_XDS_SOTW" => StandInRules::Xds(Box::new(source)),
        other => {
            if other != "FILE" {
                from.problem("CONFIG_TYPE", &format!("must be FILE or GRPC_XDS_SOTW, not {other:?}"));
            }
            let path = parts.into_iter().flatten().fold(PathBuf::from(root), |path, part| path.join(part));
            StandInRules::Folder { path, ignores_dotfiles }
        }
    }
}

fn xds(from: &mut Variables) -> XdsSource {
    let duration = |from: &mut Variables, name: &str, usual: u64| {
        from.duration(name).unwrap_or_else(|| Duration::from_secs(usual))
    };
    let (first, longest) = (
        duration(from, "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", 10),
        duration(from, "XDS_CLIENT_BACKOFF_MAX_INTERVAL", 60),
    );
    let part = from.fraction("XDS_CLIENT_BACKOFF_RANDOM_FACTOR").unwrap_or(0.5);
    let jitter = if from.flag("XDS_CLIENT_BACKOFF_JITTER", true) { part } else { 0.0 };
    let bytes = from.number("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES").unwrap_or(0);
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    let cert = from.text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT").map(PathBuf::from);
    let key = from.text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY").map(PathBuf::from);
    let tls = XdsTls {
        ca: from.text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT").map(PathBuf::from),
        own: cert.zip(key),
        name: from.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
    };
    XdsSource {
        server: from.text("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or_else(|| "localhost:18000".to_owned()),
        node: from.text("CONFIG_GRPC_XDS_NODE_ID").unwrap_or_else(|| "default".to_owned()),
        metadata: from.pairs("CONFIG_GRPC_XDS_NODE_METADATA"),
        headers: from.pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"),
        tls: from.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", false).then_some(tls),
        connect_retry: duration(from, "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", 3),
        backoff: (first, longest.max(first)),
        jitter,
        message_bytes_max: bytes.unwrap_or(MESSAGE_BYTES_MAX),
        saved: PathBuf::new(),
    }
}

/// `gossip`, or a list such as `shop.*=escrow,gossip`.
fn worldwide(from: &mut Variables) -> Vec<(String, Mode)> {
    let Some(text) = from.text(GLOBAL_MODE) else { return Vec::new() };
    let mut modes = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (pattern, word) = part.rsplit_once('=').unwrap_or(("*", part));
        let mode = match word.trim() {
            "gossip" => Mode::Gossip,
            "split" => Mode::Split,
            "escrow" => Mode::Escrow,
            other => {
                let sentence =
                    format!("must be gossip, split or escrow, or a list of PATTERN=MODE, not {other:?}");
                from.problem(GLOBAL_MODE, &sentence);
                continue;
            }
        };
        modes.push((pattern.trim().to_owned(), mode));
    }
    modes
}

#[cfg(test)]
mod tests;
