//! The settings that a store in Redis is started with, and the reasons why it may refuse to start.

use std::sync::Arc;
use std::time::Duration;

use super::client::dial::RedisTls;
use crate::core::rule::OnFailure;
use crate::engine::clock::Clock;
use crate::engine::tasks::Tasks;

/// Arrangements of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Redis Cluster.
    #[default]
    Cluster,
    /// Independent servers; a consistent-hash ring places the keys.
    Ring,
    /// One primary, named by sentinels.
    Sentinel,
    /// One server.
    Single,
}

impl Topology {
    /// Its word in the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Ring => "ring",
            Self::Sentinel => "sentinel",
            Self::Single => "single",
        }
    }

    /// Returns what those are for that are asked only for the others.
    pub(super) const fn adviser(self) -> &'static str {
        if matches!(self, Self::Sentinel) { "sentinel" } else { "seed" }
    }
}

/// Permits drawn ahead for hot keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Permits drawn at once at most; zero: never.
    pub permits_max: u32,
    /// Time for which permits are kept before they go back.
    pub ttl: Duration,
}

/// The settings that a [`RedisStore`] is started with.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// Single server, ring, cluster or sentinels.
    pub topology: Topology,
    /// `redis://user:password@host:port`, `rediss://` for TLS, or `redis+unix:///path?user=…&pass=…`: the
    /// server, the ring's servers, some of the cluster's, or the sentinels.
    pub nodes: Vec<String>,
    /// TLS towards the servers, used for `rediss://` only.
    pub tls: RedisTls,
    /// Name that the sentinels have for the primary; the other topologies do not read it.
    pub sentinel_master: String,
    /// User and password of the primary, as `user:password` or `password`, where the sentinels have others;
    /// `None`: those of the sentinels. A secret.
    pub sentinel_master_auth: Option<String>,
    /// Longest time for one decision, everything included.
    pub timeout: Duration,
    /// For rules that name no policy of their own.
    pub on_failure: OnFailure,
    /// Settings of permits that are drawn ahead of their use.
    pub lease: LeaseSettings,
    /// Keys that one server may hold before no new ones are made; `None`: as many as its memory allows.
    pub server_keys_max: Option<u64>,
    /// This daemon's name, for the others that share the servers.
    pub name: String,
    /// Most buckets that this daemon keeps in mind for when Redis is away.
    pub keys_max: usize,
    /// A clock in place of the servers' `TIME`, for tests; buckets then live for a minute whatever they hold.
    pub clock: Option<Arc<Clock>>,
    /// Tasks that watch its background work.
    pub tasks: Tasks,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            topology: Topology::Cluster,
            nodes: Vec::new(),
            tls: RedisTls::default(),
            sentinel_master: "tidegate".to_owned(),
            sentinel_master_auth: None,
            timeout: Duration::from_millis(20),
            on_failure: OnFailure::Local,
            lease: LeaseSettings { permits_max: 1_000, ttl: Duration::from_millis(200) },
            server_keys_max: None,
            name: String::new(),
            keys_max: 10_000_000,
            clock: None,
            tasks: Tasks::default(),
        }
    }
}

/// Reasons why a store could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No address was given.
    #[error("store.redis.nodes is empty: name at least one server")]
    NoNodes,
    /// More than one server for `single`.
    #[error("store.redis.topology \"single\" takes one node; \"ring\" or \"cluster\" takes several")]
    TooManyNodes,
    /// An address cannot be read.
    #[error("store.redis.nodes: \"{0}\": {1}")]
    Address(String, String),
    /// A server is too old.
    #[error("{0} runs Redis {1}; Tidegate needs Redis 6.2 or later, or Valkey")]
    TooOld(String, String),
    /// A server is no cluster member.
    #[error(
        "{0} is not part of a Redis Cluster; use topology \"single\" or \"ring\", or start it with cluster-enabled yes"
    )]
    NoCluster(String),
    /// A cluster member where none may be.
    #[error("{0} is part of a Redis Cluster; use topology \"cluster\"")]
    IsCluster(String),
    /// A sentinel where servers are needed.
    #[error("{0} is a sentinel; use topology \"sentinel\", or name the servers themselves")]
    IsSentinel(String),
    /// A read-only replica where writes are needed.
    #[error(
        "{0} is a read-only replica of {1}: name the primary itself, or use topology \"sentinel\" or \"cluster\", which follow it"
    )]
    IsReplica(String, String),
    /// Something else where a sentinel is needed.
    #[error(
        "{0} is no sentinel; with topology \"sentinel\" store.redis.nodes lists the sentinels, and they name the primary"
    )]
    NoSentinel(String),
    /// A sentinel that does not know the primary.
    #[error("sentinel {0} knows no primary \"{1}\"; it watches {2}: set store.redis.sentinel_master")]
    NoPrimary(String, String, String),
    /// The user or password is refused, or may not do what is needed.
    #[error(
        "{0} refuses this user: {reason}. Check the user and password in store.redis.nodes; deploy/redis/users.acl lists the commands that are needed",
        reason = .1.trim_end_matches('.')
    )]
    Forbidden(String, String),
    /// The script that decides does not run there.
    #[error("{0} cannot run the script that decides: {1}")]
    Unusable(String, String),
    /// The certificates or keys given for TLS cannot be used.
    #[error("store.redis.tls: {0}")]
    Tls(String),
}
