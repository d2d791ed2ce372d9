//! From the tree to a checked [`Config`].

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::address::{Listener, is_host_and_port};
use super::path::{PATH_BYTES_MAX, path};
use super::{
    Admin, AdminSocket, Audit, Backend, Config, FromPeers, Identity, Jwt, Lease, Listen, ListenerTls,
    OnInvalid, PeerTls, Peers, Postgres, Redis, RedisTls, Requests, Rules, Sample, Source, Store, Topology,
};
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::rule::OnFailure;
use crate::core::time::Span;
use crate::core::uri::Origin;
use crate::core::written::{At, Fields, Problems, TreeNode, text};

/// Longest name of a region or node, in bytes: it is in every certificate and in metric labels.
const NAME_BYTES_MAX: usize = 64;
/// Longest name of a header, in bytes.
const HEADER_BYTES_MAX: usize = 64;
/// Most headers that carry credentials, and those that do unless said.
const CREDENTIALS_MAX: usize = 8;
const CREDENTIALS_DEFAULT: [&str; 2] = ["x-api-key", "authorization"];
/// The listener that is there only if it is named, and the word for none.
const METRICS: &str = "metrics";
const OFF: &str = "off";
/// Ports of the three listeners.
const PORTS: (u16, u16, u16) = (8080, 8081, 7946);

/// Reads one table, or an empty one where it is absent.
fn section<'n, T>(
    fields: &mut Fields<'n>,
    key: &'static str,
    problems: &mut Problems<'_>,
    read: impl FnOnce(&mut Fields<'n>, &mut Problems<'_>) -> T,
) -> T {
    let mut table = fields.table(key, problems).unwrap_or_else(|| Fields::none(&At::Offset(0)));
    let value = read(&mut table, problems);
    table.finish(problems);
    value
}

/// Reads the whole configuration. A configuration that comes back with problems is not to be used.
pub(super) fn config(root: &TreeNode, folder: &Path, problems: &mut Problems<'_>) -> Option<Config> {
    let mut fields = Fields::open(root, problems)?;
    let region = name(&mut fields, "region", problems).unwrap_or_else(|| "local".to_owned());
    let node = name(&mut fields, "node", problems).unwrap_or_else(host_name);
    let listen =
        section(&mut fields, "listen", problems, |fields, problems| listen(fields, folder, problems));
    let rules = section(&mut fields, "rules", problems, |table, problems| rules(table, folder, problems));
    let store = section(&mut fields, "store", problems, |fields, problems| store(fields, folder, problems));
    let peers = section(&mut fields, "peers", problems, |table, problems| {
        peers(table, OwnName { region: &region, node: &node }, folder, problems)
    });
    let requests = section(&mut fields, "requests", problems, |table, problems| Requests {
        normalize: table.boolean("normalize", problems).unwrap_or(true),
        origin: table.word("origin", &Origin::ALL, problems).unwrap_or_default(),
    });
    let identity = {
        let has_postgres = fields.has("postgres");
        section(&mut fields, "identity", problems, |table, problems| {
            identity(table, has_postgres, folder, problems)
        })
    };
    let postgres = postgres(&mut fields, problems);
    if let (Source::Postgres, None, false) = (rules.source, &postgres, fields.has("postgres")) {
        problems.report(
            fields.at,
            "rules.source = \"postgres\" needs [postgres] with url = \"postgres://user@host/database\"",
        );
    }
    let admin = section(&mut fields, "admin", problems, |table, problems| Admin {
        tokens: path(table, "tokens", folder, problems),
        local: table.boolean("local", problems).unwrap_or(false),
    });
    let has_audit = fields.has("audit");
    let audit = section(&mut fields, "audit", problems, |table, problems| audit(table, folder, problems));
    if let (true, None, false, Some(entry)) =
        (has_audit, &postgres, fields.has("postgres"), fields.take("audit"))
    {
        problems.report(&entry.at, "[audit] needs [postgres], which keeps what it records");
    }
    let audit = postgres.is_some().then_some(audit);
    let events = super::events::read(&mut fields, folder, problems);
    let traces = super::traces::read(&mut fields, problems);
    fields.finish(problems);
    Some(Config {
        region,
        node,
        listen,
        rules,
        store,
        peers,
        requests,
        identity,
        postgres,
        admin,
        audit,
        events,
        traces,
    })
}

fn listen(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Listen {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = |fields: &mut Fields<'_>, key: &'static str| {
        fields.take(key).and_then(|entry| {
            let text = text(&entry.node, key, PATH_BYTES_MAX, problems)?;
            if key == METRICS && text == OFF {
                return None;
            }
            let listener = text.parse::<Listener>();
            listener
                .map_err(|expected| {
                    problems.report(&entry.node.at, format!("{key} must be {expected}, not {text:?}"))
                })
                .ok()
        })
    };
    let http = stream(fields, "http").unwrap_or(Listener::Tcp(local(PORTS.0)));
    let grpc = stream(fields, "grpc").unwrap_or(Listener::Tcp(local(PORTS.1)));
    let resp = stream(fields, "resp");
    let metrics = stream(fields, METRICS);
    let peer = fields.take("peer").and_then(|entry| {
        let text = text(&entry.node, "peer", PATH_BYTES_MAX, problems)?;
        let expected = "an address with a port such as \"127.0.0.1:7946\"";
        let address = text.parse::<SocketAddr>();
        address
            .map_err(|_| problems.report(&entry.node.at, format!("peer must be {expected}, not {text:?}")))
            .ok()
    });
    let http_tls = listener_tls(fields, "http_tls", &http, folder, problems);
    let grpc_tls = listener_tls(fields, "grpc_tls", &grpc, folder, problems);
    // They are read also where the protocol is not served, so that a file can be prepared.
    let unserved = Listener::Tcp(local(0));
    let resp_tls = listener_tls(fields, "resp_tls", resp.as_ref().unwrap_or(&unserved), folder, problems);
    let resp_passwords = path(fields, "resp_passwords", folder, problems);
    let drain = fields.span("drain", Span::ZERO, Span::from_secs(600), problems);
    let max_connections = fields.integer("max_connections", 8, 1_000_000, problems);
    let per_address = fields.integer("max_connections_per_address", 0, 1_000_000, problems);
    let held = fields.integer("max_held_answers", 1, 100_000, problems);
    let number = |read: Option<i64>, otherwise| read.and_then(|n| u32::try_from(n).ok()).unwrap_or(otherwise);
    Listen {
        http,
        grpc,
        resp,
        metrics,
        peer: peer.unwrap_or_else(|| local(PORTS.2)),
        http_tls,
        grpc_tls,
        resp_tls,
        resp_passwords,
        drain: drain.unwrap_or(Span::from_secs(5)),
        max_connections: number(max_connections, 10_000),
        max_connections_per_address: number(per_address, 0),
        max_held_answers: number(held, 256),
        http_refunds: fields.boolean("http_refunds", problems).unwrap_or(true),
        admin: admin_socket(fields, problems),
    }
}

/// Reads the TLS of one listener, which must be one of TCP.
fn listener_tls(
    fields: &mut Fields<'_>,
    key: &'static str,
    listener: &Listener,
    folder: &Path,
    problems: &mut Problems<'_>,
) -> Option<ListenerTls> {
    let mut table = fields.table(key, problems)?;
    for needed in ["cert", "key"] {
        if !table.has(needed) {
            problems.report(table.at, format!("{needed} is missing: [listen.{key}] needs cert and key"));
        }
    }
    if matches!(listener, Listener::Unix(_)) {
        let sentence = "this listener is a Unix socket, which never leaves the machine: TLS is for TCP";
        problems.report(table.at, format!("[listen.{key}]: {sentence}"));
    }
    if table.has("revoked") && !table.has("clients") {
        let sentence =
            "revoked has no effect without clients, the authorities whose certificates it is about";
        problems.report(table.at, format!("[listen.{key}]: {sentence}"));
    }
    if table.has("names") && !table.has("clients") {
        let sentence =
            "names has no effect without clients, the authorities whose certificates have these names";
        problems.report(table.at, format!("[listen.{key}]: {sentence}"));
    }
    let names = table.texts("names", TEXT_BYTES_MAX, problems);
    // Without a name every certificate of the authorities would pass, which leaving the key out says.
    if names.as_ref().is_some_and(Vec::is_empty) {
        let sentence = "names must list at least one; leave it out where every certificate may pass";
        problems.report(table.at, format!("[listen.{key}]: {sentence}"));
    }
    let names = names.unwrap_or_default();
    let mut file = |name| path(&mut table, name, folder, problems);
    let (cert, private) = (file("cert"), file("key"));
    let (clients, revoked) = (file("clients"), file("revoked"));
    table.finish(problems);
    Some(ListenerTls { cert: cert?, key: private?, clients, revoked, names })
}

fn admin_socket(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Option<AdminSocket> {
    let entry = fields.take("admin")?;
    let text = text(&entry.node, "admin", PATH_BYTES_MAX, problems)?;
    if text == "off" {
        return Some(AdminSocket::Off);
    }
    match text.parse() {
        Ok(Listener::Unix(path)) => Some(AdminSocket::At(path)),
        _ => {
            problems.report(&entry.node.at, format!("admin must be \"unix:/path\" or \"off\", not {text:?}"));
            None
        }
    }
}

fn rules(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Rules {
    let sources = [("file", Source::File), ("postgres", Source::Postgres)];
    let source = fields.word("source", &sources, problems).unwrap_or(Source::File);
    let file = path(fields, "file", folder, problems);
    let saved = path(fields, "saved", folder, problems);
    let times = [("away", FromPeers::Away), ("off", FromPeers::Off)];
    let from_peers = fields.word("from_peers", &times, problems).unwrap_or(FromPeers::Away);
    let shadow = fields.boolean("shadow", problems).unwrap_or(false);
    let file_required = file.is_some();
    Rules {
        source,
        saved: saved.unwrap_or_else(|| folder.join("rules.saved.json")),
        file: file.unwrap_or_else(|| folder.join("rules.toml")),
        file_required,
        from_peers,
        shadow,
    }
}

fn store(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Store {
    const MAX_KEYS_DEFAULT: u32 = 10_000_000;
    let backends = [("memory", Backend::Memory), ("redis", Backend::Redis)];
    let backend = fields.word("backend", &backends, problems).unwrap_or(Backend::Memory);
    let max_keys = fields.integer("max_keys", 1_000, 4_000_000_000, problems);
    let max_keys = max_keys.and_then(|keys| u32::try_from(keys).ok()).unwrap_or(MAX_KEYS_DEFAULT);
    // Options that only the Redis store reads may be written without it, so that a file can be prepared; they
    // are checked all the same.
    let redis = section(fields, "redis", problems, |fields, problems| redis(fields, folder, problems));
    if let (Backend::Redis, true, Some(entry)) = (backend, redis.nodes.is_empty(), fields.take("backend")) {
        let sentence = "backend \"redis\" needs servers: name at least one in store.redis.nodes";
        problems.report(&entry.node.at, sentence);
    }
    let lease = section(fields, "lease", problems, |lease, problems| {
        let max = lease.count("max", 0, problems).unwrap_or(1_000);
        let ttl = lease.span("ttl", Span::from_millis(1), Span::from_secs(3_600), problems);
        Lease { max, ttl: ttl.unwrap_or(Span::from_millis(200)) }
    });
    Store { backend, max_keys, redis, lease }
}

fn redis(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Redis {
    let topologies = [
        ("cluster", Topology::Cluster),
        ("ring", Topology::Ring),
        ("sentinel", Topology::Sentinel),
        ("single", Topology::Single),
    ];
    let topology = fields.word("topology", &topologies, problems).unwrap_or(Topology::Cluster);
    let nodes = fields.texts("nodes", TEXT_BYTES_MAX, problems).unwrap_or_default();
    if let Some(entry) = fields.take("nodes") {
        let is_unix = |node: &String| node.starts_with("redis+unix:///");
        let is_address =
            |node: &&String| node.starts_with("redis://") || node.starts_with("rediss://") || is_unix(node);
        for _ in nodes.iter().filter(|node| !is_address(node)) {
            // The text may hold a password, so it is not repeated.
            let expected = "redis://host:port, rediss://host:port or redis+unix:///path";
            problems.report(&entry.node.at, format!("nodes must list {expected}"));
        }
        if nodes.iter().any(is_unix) && !matches!(topology, Topology::Single | Topology::Ring) {
            let sentence =
                "a Unix socket is one server of this machine: topology must be \"single\" or \"ring\"";
            problems.report(&entry.node.at, sentence);
        }
        if topology == Topology::Single && nodes.len() > 1 {
            problems.report(&entry.node.at, "topology \"single\" takes one node");
        }
    }
    let sentinel_master = fields.text("sentinel_master", NAME_BYTES_MAX, problems);
    let sentinel_master = sentinel_master.unwrap_or("tidegate").to_owned();
    let sentinel_master_auth =
        fields.text("sentinel_master_auth", TEXT_BYTES_MAX, problems).map(str::to_owned);
    if let (Some(entry), true) = (fields.take("sentinel_master_auth"), topology != Topology::Sentinel) {
        problems.report(&entry.node.at, "sentinel_master_auth has no effect without topology = \"sentinel\"");
    }
    let max_keys = fields.integer("max_keys", 1_000, 1_000_000_000_000, problems);
    let max_keys = max_keys.and_then(|keys| u64::try_from(keys).ok());
    let timeout = fields.span("timeout", Span::from_millis(1), Span::from_secs(60), problems);
    let policies = [("local", OnFailure::Local), ("open", OnFailure::Open), ("closed", OnFailure::Closed)];
    let on_failure = fields.word("on_failure", &policies, problems).unwrap_or_default();
    let secure = nodes.iter().any(|node| node.starts_with("rediss://"));
    let tls = redis_tls(fields, folder, secure, problems);
    let timeout = timeout.unwrap_or(Span::from_millis(20));
    Redis { topology, nodes, sentinel_master, sentinel_master_auth, max_keys, timeout, on_failure, tls }
}

fn redis_tls(fields: &mut Fields<'_>, folder: &Path, secure: bool, problems: &mut Problems<'_>) -> RedisTls {
    let Some(mut table) = fields.table("tls", problems) else { return RedisTls::default() };
    if table.has("cert") != table.has("key") {
        problems.report(table.at, "cert and key of [store.redis.tls] belong together: give both, or neither");
    }
    if !secure {
        problems.report(table.at, "[store.redis.tls] is for nodes that begin with rediss://, and none does");
    }
    let ca = path(&mut table, "ca", folder, problems);
    let cert = path(&mut table, "cert", folder, problems);
    let key = path(&mut table, "key", folder, problems);
    table.finish(problems);
    RedisTls { ca, cert, key }
}

/// This daemon's region and node.
#[derive(Clone, Copy)]
struct OwnName<'a> {
    region: &'a str,
    node: &'a str,
}

fn peers(fields: &mut Fields<'_>, name: OwnName<'_>, folder: &Path, problems: &mut Problems<'_>) -> Peers {
    let OwnName { region: own, node } = name;
    let join = fields.texts("join", TEXT_BYTES_MAX, problems).unwrap_or_default();
    if let Some(entry) = fields.take("join") {
        for address in join.iter().filter(|address| !is_host_and_port(address)) {
            problems.report(&entry.node.at, format!("join must list host:port, not {address:?}"));
        }
    }
    let advertise = fields.text("advertise", TEXT_BYTES_MAX, problems).map(str::to_owned);
    if let (Some(entry), Some(address)) = (fields.take("advertise"), &advertise)
        && !is_host_and_port(address)
    {
        problems.report(&entry.node.at, format!("advertise must be host:port, not {address:?}"));
    }
    let interval = fields.span("interval", Span::from_millis(1), Span::from_secs(10), problems);
    let regions = fields.texts("regions", NAME_BYTES_MAX, problems).unwrap_or_default();
    if let Some(entry) = fields.take("regions") {
        for region in regions.iter().filter(|region| !is_name(region)) {
            problems
                .report(&entry.node.at, format!("regions must list names of {NAME_LETTERS}, not {region:?}"));
        }
        if !regions.is_empty() && regions.iter().all(|region| region != own) {
            problems
                .report(&entry.node.at, format!("regions must list this daemon's own region {own:?} too"));
        }
    }
    const MAX_KEYS_DEFAULT: u32 = 100_000;
    let max_keys = fields.integer("max_keys", 1_000, 10_000_000, problems);
    let max_keys = max_keys.and_then(|keys| u32::try_from(keys).ok()).unwrap_or(MAX_KEYS_DEFAULT);
    let shares = path(fields, "shares", folder, problems);
    let shares = shares.unwrap_or_else(|| folder.join(format!("shares.{node}.json")));
    let tls = tls(fields, folder, problems);
    if !fields.has("tls")
        && let Some(entry) =
            fields.take("join").filter(|_| !join.is_empty()).or_else(|| fields.take("advertise"))
    {
        let sentence = "peers need certificates: make them with `tidegate cert ca` and `tidegate cert issue`, then name them in [peers.tls]";
        problems.report(&entry.at, sentence);
    }
    Peers {
        join,
        advertise,
        interval: interval.unwrap_or(Span::from_millis(50)),
        regions,
        max_keys,
        shares,
        tls,
    }
}

fn tls(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Option<PeerTls> {
    let mut table = fields.table("tls", problems)?;
    for key in ["ca", "cert", "key"] {
        if !table.has(key) {
            problems.report(
                table.at,
                format!("{key} is missing: [peers.tls] needs ca, cert and key; `tidegate cert` makes them"),
            );
        }
    }
    let ca = path(&mut table, "ca", folder, problems);
    let cert = path(&mut table, "cert", folder, problems);
    let key = path(&mut table, "key", folder, problems);
    let revoked = path(&mut table, "revoked", folder, problems);
    table.finish(problems);
    Some(PeerTls { ca: ca?, cert: cert?, key: key?, revoked })
}

fn identity(
    fields: &mut Fields<'_>,
    has_postgres: bool,
    folder: &Path,
    problems: &mut Problems<'_>,
) -> Identity {
    let mut small = |key, min, max, default| {
        let number = fields.integer(key, min, max, problems);
        number.and_then(|number| u8::try_from(number).ok()).unwrap_or(default)
    };
    let trusted_proxies = small("trusted_proxies", 0, 64, 1);
    let ipv6_prefix = small("ipv6_prefix", 1, 128, 64);
    let credentials = credentials(fields, problems);
    let default_tier = fields.text("default_tier", TEXT_BYTES_MAX, problems).map(str::to_owned);
    let sources = [("file", Source::File), ("postgres", Source::Postgres)];
    let source = fields.word("source", &sources, problems);
    if let (Some(Source::Postgres), false, Some(entry)) = (source, has_postgres, fields.take("source")) {
        problems.report(&entry.node.at, "identity.source = \"postgres\" needs [postgres] with url");
    }
    let source = source.unwrap_or(if has_postgres { Source::Postgres } else { Source::File });
    let lookup_timeout = fields.span("lookup_timeout", Span::ZERO, Span::from_secs(1), problems);
    let cache_mib = fields.integer("cache_mib", 1, 65_536, problems);
    let cache_ttl = fields.span("cache_ttl", Span::from_secs(1), Span::from_secs(86_400), problems);
    let jwt = jwt(fields, folder, problems);
    Identity {
        trusted_proxies,
        ipv6_prefix,
        credentials,
        default_tier,
        source,
        lookup_timeout: lookup_timeout.unwrap_or(Span::from_millis(5)),
        cache_mib: cache_mib.and_then(|mib| u32::try_from(mib).ok()).unwrap_or(64),
        cache_ttl: cache_ttl.unwrap_or(Span::from_secs(300)),
        jwt,
    }
}

/// The names of headers, in lower case.
fn credentials(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Vec<String> {
    let Some(names) = fields.texts("credentials", HEADER_BYTES_MAX, problems) else {
        return CREDENTIALS_DEFAULT.map(str::to_owned).into();
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if let Some(entry) = fields.take("credentials") {
        if !(1..=CREDENTIALS_MAX).contains(&names.len()) {
            let text = format!("credentials must name 1 to {CREDENTIALS_MAX} headers, not {}", names.len());
            problems.report(&entry.node.at, text);
        }
        if let Some(odd) = names.iter().find(|name| !name.bytes().all(is_name)) {
            problems
                .report(&entry.node.at, format!("credentials must name headers: {odd:?} is no name of one"));
        }
    }
    names.iter().map(|name| name.to_ascii_lowercase()).collect()
}

fn jwt(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Option<Jwt> {
    let mut table = fields.table("jwt", problems)?;
    if !table.has("keys") {
        problems.report(
            table.at,
            "keys is missing: identity.jwt needs a JWKS file, such as keys = \"jwks.json\"",
        );
    }
    let keys = path(&mut table, "keys", folder, problems);
    let user_claim = table.text("user_claim", TEXT_BYTES_MAX, problems).unwrap_or("sub").to_owned();
    let issuers = table.texts("issuers", TEXT_BYTES_MAX, problems).unwrap_or_default();
    let audiences = table.texts("audiences", TEXT_BYTES_MAX, problems).unwrap_or_default();
    let leeway = table.span("leeway", Span::ZERO, Span::from_secs(600), problems);
    let words = [("address", OnInvalid::Address), ("refuse", OnInvalid::Refuse)];
    let on_invalid = table.word("on_invalid", &words, problems).unwrap_or(OnInvalid::Address);
    table.finish(problems);
    let leeway = leeway.unwrap_or(Span::from_secs(30));
    Some(Jwt { keys: keys?, user_claim, issuers, audiences, leeway, on_invalid })
}

fn postgres(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Option<Postgres> {
    let mut table = fields.table("postgres", problems)?;
    if !table.has("url") {
        problems.report(
            table.at,
            "url is missing: [postgres] needs one, such as \"postgres://user@host/database\"",
        );
    }
    let url = table.text("url", PATH_BYTES_MAX, problems).map(str::to_owned);
    if let (Some(url), Some(entry)) = (&url, table.take("url"))
        && !(url.starts_with("postgres://") || url.starts_with("postgresql://"))
    {
        // The text may hold a password, so it is not repeated.
        problems.report(&entry.node.at, "url must be postgres://user:password@host:port/database");
    }
    if let (Some(url), Some(entry)) = (&url, table.take("url"))
        && let Some(key) = unknown_option(url)
    {
        let known = "sslmode, sslrootcert, sslcert, sslkey, host, port, dbname, user, password, options";
        problems
            .report(&entry.node.at, format!("url has an unknown option {key:?}: expected one of {known}"));
    }
    let timeout = table.span("timeout", Span::from_millis(10), Span::from_secs(60), problems);
    let connections = table.integer("connections", 1, 100, problems);
    table.finish(problems);
    Some(Postgres {
        url: url?,
        timeout: timeout.unwrap_or(Span::from_secs(5)),
        connections: connections.and_then(|many| u8::try_from(many).ok()).unwrap_or(8),
    })
}

/// The first option of a PostgreSQL URL that nobody reads. The driver passes over such, and a mistyped
/// `sslmode` would leave TLS as it is by default.
fn unknown_option(url: &str) -> Option<String> {
    const KNOWN: [&str; 18] = [
        "sslmode",
        "ssl-mode",
        "sslrootcert",
        "ssl-root-cert",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
        "statement-cache-capacity",
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "application_name",
        "options",
    ];
    let (_, query) = url.split_once('?')?;
    let keys =
        query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split('=').next().unwrap_or(pair));
    let mut keys = keys.map(|key| key.replace("%5B", "[").replace("%5D", "]"));
    let is_known =
        |key: &String| KNOWN.contains(&key.as_str()) || (key.starts_with("options[") && key.ends_with(']'));
    let unknown = keys.find(|key| !is_known(key))?;
    // Any part of the text may be a part of a password.
    Some(unknown.chars().take(32).collect())
}

fn audit(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Audit {
    const SPOOL_BYTES_DEFAULT: u64 = 1 << 30;
    let enabled = fields.boolean("enabled", problems).unwrap_or(true);
    let queries = fields.boolean("queries", problems).unwrap_or(false);
    let sample = fields.number("allowed_sample", 0.0, 1.0, problems).unwrap_or(0.01);
    let denied_sample = fields.number("denied_sample", 0.0, 1.0, problems).unwrap_or(1.0);
    let exact = fields.texts("exact", TEXT_BYTES_MAX, problems).unwrap_or_default();
    let mut many = |key, default| {
        let number = fields.integer(key, 0, 1_000_000, problems);
        number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
    };
    let denied_rows_max = many("denied_rows_max", 1_000);
    let (users_max, paths_max) = (many("users_max", 100_000), many("paths_max", 1_000));
    let keys_max = many("keys_max", 100_000);
    let spool = path(fields, "spool", folder, problems).unwrap_or_else(|| folder.join("audit-spool"));
    let bytes = fields.integer("spool_max_bytes", 1 << 20, 1 << 50, problems);
    let day = Span::from_secs(86_400);
    let retain = fields.span("retain", day, Span(day.0 * 3_650), problems).unwrap_or(Span(day.0 * 90));
    let sums = fields.span("retain_sums", day, Span(day.0 * 3_650), problems).unwrap_or(Span(day.0 * 730));
    let archive = fields.text("archive", PATH_BYTES_MAX, problems).map(str::to_owned);
    if let (Some(url), Some(entry)) = (&archive, fields.take("archive"))
        && !["file:///", "s3://"].iter().any(|scheme| url.starts_with(scheme) && url.len() > scheme.len())
    {
        let expected = "archive must be file:///folder or s3://bucket/prefix";
        problems.report(&entry.node.at, format!("{expected}, not {url:?}"));
    }
    let retain_archive = fields.span("retain_archive", day, Span(day.0 * 36_500), problems);
    if let (Some(longest), Some(entry)) = (retain_archive, fields.take("retain_archive"))
        && longest <= retain
    {
        let expected = "retain_archive must be longer than retain: a file would go as soon as it is there";
        problems.report(&entry.node.at, expected.to_owned());
    }
    Audit {
        enabled,
        allowed_sample: one_in(sample),
        exact,
        denied_sample: one_in(denied_sample),
        denied_rows_max,
        users_max,
        paths_max,
        keys_max,
        queries,
        spool,
        spool_max_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(SPOOL_BYTES_DEFAULT),
        retain,
        retain_sums: sums,
        archive,
        retain_archive: retain_archive.unwrap_or(Span((day.0 * 2_557).max(retain.0 * 2))),
    }
}

/// A part between 0 and 1 as one in a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and a billion")]
fn one_in(part: f64) -> Sample {
    Sample(if part < 1e-9 { 0 } else { (1.0 / part).round() as u32 })
}

const NAME_LETTERS: &str = "letters, digits, \".\", \"_\" and \"-\"";

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

fn name(fields: &mut Fields<'_>, key: &'static str, problems: &mut Problems<'_>) -> Option<String> {
    let entry = fields.take(key)?;
    let text = text(&entry.node, key, NAME_BYTES_MAX, problems)?;
    if !is_name(text) {
        problems.report(&entry.node.at, format!("{key} must consist of {NAME_LETTERS}, not {text:?}"));
        return None;
    }
    Some(text.to_owned())
}

/// The host's name, as far as it can be one of ours.
fn host_name() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let text: String = text.trim().chars().take(NAME_BYTES_MAX).collect();
    if is_name(&text) { text } else { "node".to_owned() }
}
