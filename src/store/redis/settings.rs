//! What a store in Redis is started with, and why it may refuse to start.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::failure::Failure;
use super::node::Node;
use crate::core::rule::OnFailure;
use crate::engine::clock::Clock;

/// Oldest server that the scripts and commands need.
const VERSION_MIN: (u32, u32) = (6, 2);
/// For the server's answer to what it is.
const INFO_MAX: Duration = Duration::from_secs(2);

/// How the servers are arranged.
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

/// Permits drawn ahead for hot keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Permits drawn at once at most; zero: never.
    pub permits_max: u32,
    /// How long permits are kept before they go back.
    pub ttl: Duration,
}

/// What a [`RedisStore`] is started with.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// How the servers are arranged.
    pub topology: Topology,
    /// `redis://user:password@host:port`, or `rediss://` for TLS: the server, the ring's servers, some of the cluster's, or
    /// the sentinels.
    pub nodes: Vec<String>,
    /// What the sentinels call the primary; the other topologies do not read it.
    pub sentinel_master: String,
    /// For one decision, everything included.
    pub timeout: Duration,
    /// For rules that name no policy of their own.
    pub on_failure: OnFailure,
    /// Permits drawn ahead.
    pub lease: LeaseSettings,
    /// Most buckets that this daemon keeps in mind for when Redis is away.
    pub keys_max: usize,
    /// A clock in place of the servers' `TIME`, for tests; buckets then live for a minute whatever they hold.
    pub clock: Option<Arc<Clock>>,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            topology: Topology::Cluster,
            nodes: Vec::new(),
            sentinel_master: "tidegate".to_owned(),
            timeout: Duration::from_millis(20),
            on_failure: OnFailure::Local,
            lease: LeaseSettings { permits_max: 1_000, ttl: Duration::from_millis(200) },
            keys_max: 100_000,
            clock: None,
        }
    }
}

/// Why a store could not be started.
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
    /// The user or password is refused.
    #[error("{0} refuses this user: {1}")]
    Forbidden(String, String),
}

/// Health of one server, as this daemon sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHealth {
    /// `host:port`.
    pub address: String,
    /// Whether decisions are sent to it: `closed` yes, `half_open` a few, `open` no.
    pub breaker: &'static str,
}

/// Whether a server can do what is needed.
pub(super) async fn check_server(node: &Arc<Node>, topology: Topology) -> Result<(), StartError> {
    let text = match node.upkeep(redis::cmd("INFO").arg("server"), INFO_MAX).await {
        Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Err(Failure::Forbidden(why)) => return Err(StartError::Forbidden(node.address.clone(), why)),
        // Not allowed to ask: then the operator has to know.
        _ => return Ok(()),
    };
    let field = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    if let Some(version) = field("redis_version") {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0_u32));
        let version_found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version_found < VERSION_MIN {
            return Err(StartError::TooOld(node.address.clone(), version.to_owned()));
        }
    }
    let clustered = field("redis_mode") == Some("cluster");
    match (topology, clustered) {
        (Topology::Cluster, false) => Err(StartError::NoCluster(node.address.clone())),
        (Topology::Single | Topology::Ring | Topology::Sentinel, true) => {
            Err(StartError::IsCluster(node.address.clone()))
        }
        _ => Ok(()),
    }
}
