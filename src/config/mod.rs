//! The settings that a daemon runs with. The doc comments of these types are the manual of `tidegate.toml`.
//!
//! A value is taken from the command line, else from the environment (`TIDEGATE_STORE__MAX_KEYS` is
//! `max_keys` of `[store]`; lists are separated by commas), else from the file, else it is the default.
//! Unknown keys are errors, and every problem is told at once. Rules are not configuration: they live in a
//! file of their own.

mod address;
mod admin_socket;
mod events;
mod path;
mod read;
mod sources;
mod stand_in;
mod traces;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::core::rule::OnFailure;
use crate::core::time::Span;
use crate::core::uri::Origin;
use crate::core::written::format_span;

pub use self::address::Listener;
pub use self::admin_socket::{
    AdminSocket, admin_beside, admin_candidates, admin_folder, admin_name, user_id,
};
pub use self::events::Events;
pub use self::sources::Flags;
pub use self::stand_in::{StandIn, StandInRules, XdsSource, XdsTls, stand_in};
pub use self::traces::{SampledPart, Traces};
pub use crate::core::written::{Problem, TextPlace};

/// Everything a daemon runs with, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Config {
    /// `region`: the region that this daemon counts for; letters, digits, `.`, `_` and `-`, at most 64.
    /// Default `"local"`.
    pub region: String,
    /// `node`: this daemon's own name, unique in its region; spelled like a region. Default: the host name.
    pub node: String,
    /// `[listen]`: the addresses that the daemon listens on.
    pub listen: Listen,
    /// `[rules]`: where the rules come from.
    pub rules: Rules,
    /// `[store]`: memory or Redis, and the bounds of what it keeps.
    pub store: Store,
    /// `[peers]`: the other daemons and regions; without it the daemon is alone.
    pub peers: Peers,
    /// `[requests]`: how the values of a request are read.
    pub requests: Requests,
    /// `[identity]`: who a request is from.
    pub identity: Identity,
    /// `[postgres]`: the database of rules, identities and the audit log; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<Postgres>,
    /// `[admin]`: who may look and change.
    pub admin: Admin,
    /// `[audit]`: what is remembered of decisions; there only with `[postgres]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// `[events]`: where events are sent; absent: they are only logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Events>,
    /// `[traces]`: where spans are sent; absent: none are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traces: Option<Traces>,
}

/// `[listen]`: addresses to listen on. Port 0 takes any free port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listen {
    /// `http`: checks, forward-auth, admin, metrics and health; an address with a port, or `unix:/path`.
    /// Default `"127.0.0.1:8080"`.
    pub http: Listener,
    /// `grpc`: the Envoy rate limit service; an address with a port, or `unix:/path`. Default
    /// `"127.0.0.1:8081"`.
    pub grpc: Listener,
    /// `resp`: the Redis protocol; an address with a port, or `unix:/path`. Default: it is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resp: Option<Listener>,
    /// `peer`: the one UDP socket for everything between daemons; an address with a port. Used only with
    /// `[peers.tls]`. Default `"127.0.0.1:7946"`.
    pub peer: SocketAddr,
    /// `metrics`: metrics and health alone, for those who watch the daemon; an address with a port,
    /// `unix:/path`, or `"off"`. They are told on `http` as well. Default `"off"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Listener>,
    /// `[listen.http_tls]`: TLS on `http`, with HTTP/2 for clients that ask for it. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_tls: Option<ListenerTls>,
    /// `[listen.grpc_tls]`: TLS on `grpc`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_tls: Option<ListenerTls>,
    /// `[listen.resp_tls]`: TLS on `resp`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resp_tls: Option<ListenerTls>,
    /// `resp_passwords`: a file with the passwords that clients of `resp` may show (`AUTH`), one a line. It
    /// is read at the start. Default: they show none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resp_passwords: Option<PathBuf>,
    /// `drain`: how long the daemon serves on, unready, after SIGTERM, so that gateways notice before it
    /// stops accepting; from 0ms to 10m. Longer than their health checks take to notice. Default `"5s"`.
    #[serde(serialize_with = "as_text")]
    pub drain: Span,
    /// `max_connections`: most open connections of `http` and as many of `grpc`, from 8 to 1,000,000; fewer
    /// where the limit of open files allows no more. A new one that finds no place takes that of the longest
    /// idle. Default `10_000`.
    pub max_connections: u32,
    /// `max_connections_per_address`: most of them from one address, or one /64 of IPv6; loopback and Unix
    /// sockets are not counted. Default `0`: any number.
    pub max_connections_per_address: u32,
    /// `max_held_answers`: most answers that are held back at once for rules with `delay = "hold"`, from 1 to
    /// 100,000. Each is an open call of its gateway: more than 512 need a higher `max_requests` in Envoy's
    /// circuit breaker. Default `256`.
    pub max_held_answers: u32,
    /// `http_refunds`: whether HTTP clients may give back with a negative cost. Default `true`.
    pub http_refunds: bool,
    /// `admin`: `unix:/path` of the socket on which the user of the daemon, and root, may change everything
    /// without a token, or `"off"`. Default: a socket in `$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR/tidegate` or
    /// `/tmp/tidegate-UID`, named after the address of `http`, where the command line looks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminSocket>,
}

/// `[listen.http_tls]`, `[listen.grpc_tls]` and `[listen.resp_tls]`: the files of TLS on a listener, in PEM.
/// They are watched, and handshakes use them as they are then. Relative paths begin at the configuration
/// file's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListenerTls {
    /// `cert`: the certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// `key`: the certificate's private key, in PEM.
    pub key: PathBuf,
    /// `clients`: the authorities that sign certificates of clients; with it a client that shows none is
    /// refused. Default: clients show none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<PathBuf>,
    /// `revoked`: lists of the clients' certificates that are revoked (CRLs, RFC 5280); with `clients`.
    /// Default: none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked: Option<PathBuf>,
    /// `names`: names of hosts or IP addresses, of which a client's certificate must have one; with
    /// `clients`. Default: whoever has a certificate of those authorities is let in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// `[rules]`: where the rules come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// `source`: `"file"` or `"postgres"`, which needs `[postgres]`. Default `"file"`.
    pub source: Source,
    /// `file`: the rules, watched for changes. Relative paths begin at the configuration file's folder, those
    /// of flags and variables at the working directory. Default `"rules.toml"`, which then may be missing: no
    /// rules.
    pub file: PathBuf,
    /// True if `file` was asked for, so that it must be there.
    #[serde(skip)]
    pub file_required: bool,
    /// `saved`: where the last rule set from PostgreSQL is kept, to start from when the database is away;
    /// written only with `source = "postgres"`. Relative as `file`. Default `"rules.saved.json"`.
    pub saved: PathBuf,
    /// `from_peers`: `"away"` takes rules from other daemons while PostgreSQL does not answer, until it does;
    /// `"off"` never does. Default `"away"`.
    pub from_peers: FromPeers,
    /// `shadow`: no rule denies; what would have been denied is counted and reported. Default `false`.
    pub shadow: bool,
}

/// Sources of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A file on this machine.
    File,
    /// PostgreSQL, with the last set kept on this machine.
    Postgres,
}

/// Occasions at which rules are taken from other daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FromPeers {
    /// While the own database is away, until it answers.
    Away,
    /// Never.
    Off,
}

/// `[store]`: where buckets are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Store {
    /// `backend`: `"memory"` or `"redis"`. Default `"memory"`, with which each daemon counts for itself: a
    /// region is then one daemon.
    pub backend: Backend,
    /// `max_keys`: most buckets held in memory, from 1,000 to 4,000,000,000; with Redis, those kept in mind
    /// for when it is away. Keys of more than 256 bytes on average take the room of several. Default
    /// `10_000_000`.
    pub max_keys: u32,
    /// `[store.redis]`: the region's Redis, read with `backend = "redis"`.
    pub redis: Redis,
    /// `[store.lease]`: permits drawn ahead from Redis for hot keys.
    pub lease: Lease,
}

/// `[store.redis]`: the region's Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Redis {
    /// `topology`: `"cluster"`, `"ring"` (independent servers, placed by a consistent-hash ring),
    /// `"sentinel"` or `"single"`. Default `"cluster"`.
    pub topology: Topology,
    /// `nodes`: `redis://user:password@host:port`, or `rediss://` for TLS: some of the cluster's servers, all
    /// of the ring's, the sentinels, or the one. A server on this machine may be
    /// `redis+unix:///path?user=…&pass=…`, with `"single"` or `"ring"`.
    #[serde(serialize_with = "without_passwords")]
    pub nodes: Vec<String>,
    /// `sentinel_master`: what the sentinels call the primary. Default `"tidegate"`.
    pub sentinel_master: String,
    /// `sentinel_master_auth`: the primary's user and password, as `"user:password"` or `"password"`, where
    /// the sentinels have others. Default: those of `nodes`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hidden")]
    pub sentinel_master_auth: Option<String>,
    /// `max_keys`: most keys that one server holds before it takes no new ones, from 1,000; the keys that are
    /// there go on, new ones follow `on_failure`. Default: as many as fit four fifths of the server's
    /// `maxmemory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_keys: Option<u64>,
    /// `timeout`: for one decision, all retries included, from 1ms to 60s. Default `"20ms"`.
    #[serde(serialize_with = "as_text")]
    pub timeout: Span,
    /// `on_failure`: what rules that do not say so themselves do while Redis does not answer: `"local"`,
    /// `"open"` or `"closed"`. Default `"local"`.
    pub on_failure: OnFailure,
    /// `[store.redis.tls]`: for `rediss://`, where the system's certificate authorities are not enough.
    #[serde(skip_serializing_if = "RedisTls::is_empty")]
    pub tls: RedisTls,
}

/// `[store.redis.tls]`: for `rediss://`. Files in PEM; relative paths as in `[peers.tls]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RedisTls {
    /// `ca`: the authority that signed the servers' certificates. Default: the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// `cert`: this daemon's certificate, where the servers ask for one; with `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// `key`: its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl RedisTls {
    /// True if none is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Arrangements of the Redis servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Redis Cluster.
    Cluster,
    /// Independent servers.
    Ring,
    /// One primary, named by sentinels.
    Sentinel,
    /// One server.
    Single,
}

/// `[store.lease]`: permits drawn ahead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// `max`: most permits drawn at once for one key; 0: never. Default `1000`.
    pub max: u32,
    /// `ttl`: how long they are kept before they go back, from 1ms to 1h. Default `"200ms"`.
    #[serde(serialize_with = "as_text")]
    pub ttl: Span,
}

/// A secret as it may be shown.
#[expect(clippy::ref_option, reason = "serde passes references")]
fn hidden<S: Serializer>(_: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("…")
}

/// Addresses as they may be shown: users and passwords are nobody's business.
fn without_passwords<S: Serializer>(nodes: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter().map(|node| {
        // That of a Unix socket stands behind its path.
        let (node, query) = node.split_once('?').map_or((node.as_str(), ""), |(node, _)| (node, "?…"));
        match (node.split_once("://"), node.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}{query}"),
            _ => format!("{node}{query}"),
        }
    }))
}

/// Stores that keep buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// This process.
    Memory,
    /// The region's Redis, which all its daemons share.
    Redis,
}

/// `[peers]`: the other daemons. There are none unless `[peers.tls]` is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peers {
    /// `join`: `host:port` of daemons to meet first; any one that answers is enough. Default `[]`.
    pub join: Vec<String>,
    /// `advertise`: `host:port` under which others reach this daemon. Default: the address it listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// `interval`: how often counts go out, from 1ms to 10s. Default `"50ms"`.
    #[serde(serialize_with = "as_text")]
    pub interval: Span,
    /// `regions`: every region that may hold a share of a limit, present or not; with this daemon's own.
    /// Default `[]`: those that have been seen.
    pub regions: Vec<String>,
    /// `max_keys`: most buckets of worldwide limits that are followed, in `gossip` and in `escrow` mode each,
    /// from 1,000 to 10,000,000; about a kilobyte each. When more are in use, the region keeps to its share
    /// of the `gossip` rules concerned, so use the same number in every region. Default `100_000`.
    pub max_keys: u32,
    /// `shares`: where this daemon notes which weights of `split` rules it holds, so that a restart in the
    /// middle of a change is safe. Relative as `rules.file`. Default: `shares.NODE.json`.
    pub shares: PathBuf,
    /// `[peers.tls]`: how daemons prove that they belong together. `tidegate cert` makes these files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<PeerTls>,
}

/// `[peers.tls]`: the files of mutual TLS between daemons, in PEM. `ca`, `cert` and `key` are needed. They
/// are watched, and used as they are then. Relative paths begin at the configuration file's folder, those of
/// variables at the working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PeerTls {
    /// `ca`: the authority that signed every daemon's certificate; several while one takes another's place.
    pub ca: PathBuf,
    /// `cert`: this daemon's certificate; it names the node and its region.
    pub cert: PathBuf,
    /// `key`: the private key of this daemon's certificate, in PEM.
    pub key: PathBuf,
    /// `revoked`: lists of daemons' certificates that are revoked (CRLs, RFC 5280), as `tidegate cert revoke`
    /// writes them. Default: none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked: Option<PathBuf>,
}

/// `[requests]`: how the values of a request are read, at every server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// `normalize`: whether the attributes `path` and `host` are brought into one form before rules see them:
    /// the path without query and `;parameters`, with percent-encoded letters decoded, slashes merged and dot
    /// segments removed; the host in lower case, without port. Without it a client chooses the spelling, and
    /// rules compare it as it came. Default `true`.
    pub normalize: bool,
    /// `origin`: how the service behind the gateway reads paths: `"literal"`, `"decoded"`, `"rfc3986"`,
    /// `"merged"` or `"collapsed"`. With `"any"` a path is held to the rules of every reading. Default
    /// `"any"`.
    #[serde(serialize_with = "origin_name")]
    pub origin: Origin,
}

fn origin_name<S: Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(origin.name())
}

/// `[identity]`: who a request is from, where a gateway sends its headers rather than attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// `trusted_proxies`: how many `X-Forwarded-For` entries, from the right, were written by our own
    /// proxies; 0 to 64. Default `1`.
    pub trusted_proxies: u8,
    /// `ipv6_prefix`: how many leading bits of an IPv6 address make one client; 1 to 128. Default `64`.
    pub ipv6_prefix: u8,
    /// `credentials`: the headers in which clients show their credential, the one first that a request is
    /// called by; 1 to 8. Every one that a request shows is judged and counted, so name the one that the
    /// service reads where it reads one. Default `["x-api-key", "authorization"]`.
    pub credentials: Vec<String>,
    /// `default_tier`: the tier of requests that bring none, and of whose user and key no other is known.
    /// Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_tier: Option<String>,
    /// `source`: where users and API keys are looked up who are not in the rules file: `"postgres"`, or
    /// `"file"` for nowhere else. Default: `"postgres"` where `[postgres]` is configured.
    pub source: Source,
    /// `lookup_timeout`: longest time that a decision waits for a user or key that is not held in memory,
    /// from 0ms to 1s. After it the request is decided as the default tier, and the answer is there for the
    /// next one. Default `"5ms"`.
    #[serde(serialize_with = "as_text")]
    pub lookup_timeout: Span,
    /// `cache_mib`: most memory for users and keys, in MiB; 1 to 65536. Default `64`, for about 150,000 of
    /// them.
    pub cache_mib: u32,
    /// `cache_ttl`: how long they are used before they are looked up again, from 1s to 1d; changes are heard
    /// of at once. Default `"5m"`.
    #[serde(serialize_with = "as_text")]
    pub cache_ttl: Span,
    /// `[identity.jwt]`: JSON web tokens; absent: none are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<Jwt>,
}

/// `[identity.jwt]`: users out of JSON web tokens, signed with HS256, RS256, ES256 or EdDSA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Jwt {
    /// `keys`: a JWKS file with the keys that sign tokens, watched. Relative paths begin at the configuration
    /// file's folder, those of variables at the working directory.
    pub keys: PathBuf,
    /// `user_claim`: the claim that names the user. Default `"sub"`.
    pub user_claim: String,
    /// `issuers`: accepted values of `iss`. Default `[]`: any.
    pub issuers: Vec<String>,
    /// `audiences`: accepted values of `aud`, one of which a token must name. Default `[]`: any.
    pub audiences: Vec<String>,
    /// `leeway`: how far clocks may differ, from 0ms to 10m. Default `"30s"`.
    #[serde(serialize_with = "as_text")]
    pub leeway: Span,
    /// `on_invalid`: `"address"` counts a request with an invalid token by its address, `"refuse"` answers it
    /// with 401. Default `"address"`.
    pub on_invalid: OnInvalid,
}

/// Treatments of an invalid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnInvalid {
    /// The request counts by its address.
    Address,
    /// It is refused.
    Refuse,
}

/// `[postgres]`: the database. A daemon decides without it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Postgres {
    /// `url`: `postgres://user:password@host:port/database`; `?sslmode=verify-full&sslrootcert=ca.pem` for
    /// TLS.
    #[serde(serialize_with = "without_password")]
    pub url: String,
    /// `timeout`: for one call, from 10ms to 60s. Default `"5s"`.
    #[serde(serialize_with = "as_text")]
    pub timeout: Span,
    /// `connections`: most at once, from 1 to 100, besides two that listen for changes. Default `8`.
    pub connections: u8,
}

/// `[audit]`: what is remembered of decisions, in PostgreSQL: every denied one, a sample of the allowed, and
/// sums of all.
/// Without `[postgres]` nothing is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// `enabled`: whether decisions are recorded. Default `true`, if there is a database.
    pub enabled: bool,
    /// `allowed_sample`: which part of the allowed decisions is recorded, from 0 (none) to 1 (all); rounded
    /// to one in a whole number. The sums count all of them. Default `0.01`.
    pub allowed_sample: Sample,
    /// `exact`: names of rules of which every decision is recorded, whatever the samples are. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exact: Vec<String>,
    /// `denied_sample`: which part of the denied decisions is recorded, alike. Default `1`.
    pub denied_sample: Sample,
    /// `denied_rows_max`: most denied decisions that get a row of their own, of one rule and second, from 0
    /// (no bound) to 1,000,000; those beyond are told by one row twice a second, and counted for whoever
    /// asked. Default `1000`.
    pub denied_rows_max: u32,
    /// `users_max`: how many users of one rule get sums of their own on one day, from 0 to 1,000,000; the
    /// rest shares `*`. Default `100_000`.
    pub users_max: u32,
    /// `paths_max`: the same for paths. Default `1000`.
    pub paths_max: u32,
    /// `keys_max`: the same for API keys. Default `100_000`.
    pub keys_max: u32,
    /// `queries`: whether paths are recorded as clients sent them, with their queries, which may hold
    /// secrets. Default `false`: without, in normal form.
    pub queries: bool,
    /// `spool`: the folder where records wait for the database. Relative paths begin at the configuration
    /// file's folder. Default `"audit-spool"`.
    pub spool: PathBuf,
    /// `spool_max_bytes`: how much may wait there; what comes then is dropped and counted. Default
    /// `1_073_741_824`.
    pub spool_max_bytes: u64,
    /// `retain`: how long decisions stay in the database before their month moves to the archive, from 1d to
    /// 3650d. Sums by minute are kept as long. Default `"90d"`.
    #[serde(serialize_with = "as_text")]
    pub retain: Span,
    /// `retain_sums`: how long sums by hour and day stay, and those of API keys, from 1d to 3650d. Default
    /// `"730d"`.
    #[serde(serialize_with = "as_text")]
    pub retain_sums: Span,
    /// `archive`: where old months go, as Parquet: `file:///folder` or `s3://bucket/prefix` (with
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT` in the environment).
    /// Default: nowhere, and every month stays in the database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// `retain_archive`: how old decisions get in the archive before their file is removed from it, from 1d
    /// to 36500d and more than `retain`. Default: seven years, `"2557d"`, or twice `retain` where that is
    /// longer.
    #[serde(serialize_with = "as_text")]
    pub retain_archive: Span,
}

/// The part of allowed decisions that is recorded: one in so many; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample(pub u32);

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(if self.0 == 0 { 0.0 } else { 1.0 / f64::from(self.0) })
    }
}

/// `[admin]`: who may look and change over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Admin {
    /// `tokens`: the file of hashed tokens, watched; `tidegate admin token` adds to it. Relative paths begin
    /// at the configuration file's folder. Default: none; then loopback may look, and only the admin socket
    /// may change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<PathBuf>,
    /// `local`: whoever connects from loopback may change everything without a token. So may then every user
    /// of this machine, and everybody whom a proxy on it lets through. Default `false`.
    pub local: bool,
}

#[expect(clippy::ptr_arg, reason = "serde passes references")]
fn without_password<S: Serializer>(url: &String, serializer: S) -> Result<S::Ok, S::Error> {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => serializer.serialize_str(&format!("{scheme}://…@{host}")),
        _ => serializer.serialize_str(url),
    }
}

impl Config {
    /// Returns what would run, as a file that says all of it.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Only a path that is no UTF-8 cannot be written.
        toml::to_string(self).unwrap_or_else(|error| format!("# cannot be written: {error}\n"))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn as_text<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format_span(*span))
}
