//! The check whether a server can do what is needed: asked once for each connection. At the start an answer
//! that is not enough keeps the daemon from starting; later it is logged, and shown with the server.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::core::algorithm::{Algorithm, Limit};
use crate::core::hold::{Hold, HoldStep, Holder};
use crate::core::request::Cost;
use crate::core::reservation::{Commit, RESERVATION_BYTES, ReservationId, ReservedCost};
use crate::core::reservation_terms::OnLapse;
use crate::core::time::Span;
use crate::store::redis::batch::call::{Action, Bucket, CallTerms, DecideCall, Item, Part};
use crate::store::redis::batch::epochs::ReplicationEpochs;
use crate::store::redis::batch::names;
use crate::store::redis::batch::scripts::DECIDE;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::info::field;
use crate::store::redis::client::slots::{ClusterSlot, slot_of_tag};
use crate::store::redis::servers::map::Map;
use crate::store::redis::servers::node::Node;
use crate::store::redis::settings::{StartError, Topology};

/// Oldest server that the scripts and commands need.
const VERSION_MIN: (u32, u32) = (6, 2);
/// For each answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Told of a server whose keys cannot be counted.
const NO_SIZE: &str = "this user may not run DBSIZE, so a flood of distinct keys is not bounded: grant it as deploy/redis/users.acl does";
/// Names tried to find one that lies on a server; with a thousand servers one in a thousand does.
const NAMES_MAX: u32 = 20_000;

/// Checks whether a server is one of those that `topology` takes.
pub(in crate::store::redis) async fn identify(
    node: &Arc<Node>,
    topology: Topology,
) -> Result<(), StartError> {
    let text = match node.upkeep(&redis::cmd("INFO"), ANSWER_MAX).await {
        Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Err(Failure::Forbidden(why)) => return Err(StartError::Forbidden(node.address.clone(), why)),
        // It went away: whoever connects anew asks anew.
        _ => return Ok(()),
    };
    let before = node.notes.warning();
    node.notes.warn(policy_warning(&text));
    if let Some(warning) = node.notes.warning().filter(|warning| before.as_ref() != Some(warning)) {
        tracing::warn!(node = %node.address, "{warning}");
    }
    node.take_in(&text);
    suits(&node.address, &text, topology)
}

/// Reads `INFO`.
fn suits(address: &str, info: &str, topology: Topology) -> Result<(), StartError> {
    let address = || address.to_owned();
    // Valkey calls itself the Redis that it is compatible with, too.
    if let Some(version) = field(info, "redis_version") {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0_u32));
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found < VERSION_MIN {
            return Err(StartError::TooOld(address(), version.to_owned()));
        }
    }
    match (topology, field(info, "redis_mode")) {
        (Topology::Cluster, Some("standalone" | "sentinel")) => Err(StartError::NoCluster(address())),
        (Topology::Single | Topology::Ring | Topology::Sentinel, Some("cluster")) => {
            Err(StartError::IsCluster(address()))
        }
        (Topology::Single | Topology::Ring, Some("sentinel")) => Err(StartError::IsSentinel(address())),
        (Topology::Single | Topology::Ring, _) if is_read_only(info) => {
            let host = field(info, "master_host").unwrap_or("?");
            let primary = format!("{host}:{}", field(info, "master_port").unwrap_or("?"));
            Err(StartError::IsReplica(address(), primary))
        }
        _ => Ok(()),
    }
}

fn is_read_only(info: &str) -> bool {
    field(info, "role") == Some("slave") && field(info, "slave_read_only") != Some("0")
}

fn policy_warning(info: &str) -> Option<String> {
    let policy = field(info, "maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    let bound = field(info, "maxmemory").is_some_and(|bound| bound != "0");
    bound.then(|| {
        format!(
            "maxmemory-policy is {policy}: when memory is full, counters are forgotten at their limit; set noeviction, with which writes fail and on_failure applies"
        )
    })
}

/// Checks whether the user may do all that decisions do: the script runs on three keys, and on what is
/// reserved of two of them.
pub(in crate::store::redis) async fn try_script(
    node: &Arc<Node>,
    map: &Map,
    topology: Topology,
) -> Result<(), StartError> {
    let Some(tag) = tag_on(node, map, topology) else { return Ok(()) };
    // A trial that broke off may have left something, and with it other commands would do.
    let mut clear = redis::cmd("DEL");
    for key in ["level", "log", "held"].map(|name| trial_key(&tag, name)) {
        clear.arg(names::notes(key.as_bytes()).as_slice()).arg(key);
    }
    accept(node, &tag, node.upkeep(&clear, ANSWER_MAX).await).await?;
    if let Err(Failure::Forbidden(_)) = node.upkeep(&redis::cmd("DBSIZE"), ANSWER_MAX).await {
        node.notes.warn(Some(NO_SIZE.to_owned()));
        tracing::warn!(node = %node.address, "{NO_SIZE}");
    }
    // The second call finds the script and what the first has left, so that every command is used.
    let parts = |costs: &[Cost]| costs.iter().map(|cost| trial(&tag, *cost)).collect::<Vec<_>>();
    let noted = |costs: &[Cost]| costs.iter().map(|cost| trial(&tag, *cost).with_notes()).collect();
    let id = |number| ReservationId([number; RESERVATION_BYTES]);
    let reserve = |number| {
        let (ttl, on_lapse) = (Span::from_secs(2), OnLapse::Release);
        Cost::Reserve(ReservedCost { id: id(number), permits: 2, ttl, on_lapse })
    };
    let commit = |number, actual| Cost::Commit(Commit { id: id(number), actual, debt_max: 0 });
    let calls: [(Vec<Part>, bool); 5] = [
        (parts(&[Cost::Take(2), Cost::Take(1)]), true),
        (parts(&[Cost::Take(1), Cost::Refund(1_000_000)]), false),
        // At two instants.
        (noted(&[reserve(1)]), false),
        (noted(&[reserve(2)]), false),
        (noted(&[commit(2, 1), commit(1, 0)]), false),
    ];
    for (parts, whole) in calls {
        let mut call = DecideCall::new();
        for part in parts {
            // Fails only for two limits of one bucket.
            let _ = call.add(Arc::new(part));
        }
        let mut packed = Vec::new();
        let terms = CallTerms { clock: None, epochs: &ReplicationEpochs::default(), keys_bound: None };
        call.write(&mut packed, &DECIDE, whole, terms);
        accept(node, &tag, node.upkeep_packed(&packed, ANSWER_MAX).await).await?;
    }
    accept(node, &tag, node.upkeep(&clear, ANSWER_MAX).await).await
}

/// Checks whether an answer speaks against the server for good.
async fn accept(node: &Arc<Node>, tag: &str, answer: Result<Value, Failure>) -> Result<(), StartError> {
    match answer {
        Err(Failure::Forbidden(why)) => {
            let why = format!("{why}{}", missing_rights(node, tag).await);
            Err(StartError::Forbidden(node.address.clone(), why))
        }
        Err(Failure::Unexpected(why)) => Err(StartError::Unusable(node.address.clone(), why)),
        // Full, moved, gone: no matter of what it can do.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn trial_key(tag: &str, name: &str) -> String {
    format!("tg:{{{tag}}}:{name}")
}

/// Returns which of the scripts' commands the user may not run, as the end of a sentence. A server tells of a
/// script only that it did what it must not.
async fn missing_rights(node: &Arc<Node>, tag: &str) -> String {
    let key = trial_key(tag, "right");
    let commands: [(&str, &[&str]); 26] = [
        ("TIME", &[]),
        ("GET", &[&key]),
        ("SET", &[&key, "", "PX", "1000"]),
        ("PEXPIRE", &[&key, "1000"]),
        ("DEL", &[&key]),
        ("LPUSH", &[&key, ""]),
        ("RPUSH", &[&key, ""]),
        ("LINDEX", &[&key, "0"]),
        ("LLEN", &[&key]),
        ("LTRIM", &[&key, "0", "0"]),
        ("RPOP", &[&key]),
        ("LRANGE", &[&key, "0", "0"]),
        ("LSET", &[&key, "0", ""]),
        ("HGET", &[&key, ""]),
        ("HSET", &[&key, "", ""]),
        ("HDEL", &[&key, ""]),
        ("HEXISTS", &[&key, ""]),
        ("HINCRBY", &[&key, "", "0"]),
        ("HMGET", &[&key, ""]),
        ("ZADD", &[&key, "0", ""]),
        ("ZREM", &[&key, ""]),
        ("ZCARD", &[&key]),
        ("ZCOUNT", &[&key, "0", "0"]),
        ("ZSCORE", &[&key, ""]),
        ("ZRANGE", &[&key, "0", "0"]),
        ("ZREMRANGEBYSCORE", &[&key, "0", "0"]),
    ];
    let mut missing = Vec::new();
    for (name, arguments) in commands {
        let mut command = redis::cmd(name);
        command.arg(arguments);
        if let Err(Failure::Forbidden(_)) = node.upkeep(&command, ANSWER_MAX).await {
            missing.push(name);
        }
    }
    let _ = node.upkeep(redis::cmd("DEL").arg(&key), ANSWER_MAX).await;
    if missing.is_empty() {
        String::new()
    } else {
        format!(" (not permitted on {key}: {})", missing.join(", "))
    }
}

/// A hash tag that no identity has, on this server.
fn tag_on(node: &Arc<Node>, map: &Map, topology: Topology) -> Option<String> {
    let lies_here = |tag: &String| {
        topology != Topology::Cluster
            || map.node(slot_of_tag(tag.as_bytes())).is_some_and(|own| Arc::ptr_eq(own, node))
    };
    (0..NAMES_MAX).map(|number| format!("trial:{number}")).find(lies_here)
}

fn trial(tag: &str, cost: Cost) -> Part {
    let bucket = |algorithm: Algorithm, name: &str| Bucket {
        key: trial_key(tag, name).into_bytes(),
        shape: u32::from(algorithm.code()) << 24,
        algorithm,
        limit: Limit { calendar: None, permits: 100, window: Span::from_secs(2), burst: 100, queue: 0 },
        share: None,
        worldwide: false,
        refunds_whole: false,
        first: None,
        escrowed: false,
        lends: false,
        gathered: 0,
        noted: false,
        penalty: None,
    };
    let item = |bucket, cost| Item { bucket, ..Item::put(cost) };
    let step = if cost.taken() > 0 { HoldStep::Acquire } else { HoldStep::Release };
    let hold = Cost::Hold(Hold { step, holder: Holder::UNKNOWN, places: cost.taken() });
    Part {
        slot: ClusterSlot(0),
        action: if cost.is_reserved() { Action::Charge } else { Action::Put },
        buckets: SmallVec::from_iter([
            bucket(Algorithm::TokenBucket, "level"),
            bucket(Algorithm::SlidingLog, "log"),
            bucket(Algorithm::Concurrency, "held"),
        ]),
        charges: SmallVec::from_iter([item(0, cost), item(1, cost), item(2, hold)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(info: &str, topology: Topology) -> String {
        suits("10.0.0.1:6379", info, topology).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn an_old_server_is_refused_and_told_by_its_version() {
        for old in ["2.8.24", "5.0.14", "6.0.20", "6.1.999"] {
            let told = sentence(&format!("redis_version:{old}\r\nredis_mode:cluster\r\n"), Topology::Cluster);
            assert!(told.contains(old) && told.contains("6.2"), "{told}");
        }
        for new in ["6.2.0", "6.2.14", "7.0.15", "8.0.1", "10.1.2"] {
            assert_eq!(
                sentence(&format!("redis_version:{new}\r\nredis_mode:cluster\r\n"), Topology::Cluster),
                ""
            );
        }
    }

    #[test]
    fn valkey_is_taken_for_the_redis_that_it_is_compatible_with() {
        let info =
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.3\r\nserver_mode:cluster\r\n";
        assert_eq!(sentence(info, Topology::Cluster), "");
    }

    #[test]
    fn a_server_of_another_topology_is_refused() {
        let info = |mode: &str| format!("redis_version:7.0.15\r\nredis_mode:{mode}\r\n");
        assert!(sentence(&info("standalone"), Topology::Cluster).contains("not part of a Redis Cluster"));
        assert!(sentence(&info("cluster"), Topology::Ring).contains("part of a Redis Cluster"));
        assert!(sentence(&info("sentinel"), Topology::Single).contains("sentinel"));
    }

    #[test]
    fn a_read_only_replica_is_refused_and_its_primary_named() {
        let info = |more: &str| {
            format!(
                "redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:slave\r\nmaster_host:10.0.0.2\r\nmaster_port:6380\r\n{more}"
            )
        };
        let told = sentence(&info("slave_read_only:1\r\n"), Topology::Single);
        assert!(told.contains("read-only replica of 10.0.0.2:6380"), "{told}");
        assert_eq!(sentence(&info("slave_read_only:0\r\n"), Topology::Single), "");
        assert_eq!(sentence(&info("slave_read_only:1\r\n"), Topology::Sentinel), "");
    }

    #[test]
    fn a_policy_that_evicts_is_warned_of_only_where_memory_is_bounded() {
        let info = |policy: &str, bound: &str| format!("maxmemory:{bound}\r\nmaxmemory_policy:{policy}\r\n");
        assert!(
            policy_warning(&info("allkeys-lru", "1000")).is_some_and(|text| text.contains("allkeys-lru"))
        );
        assert_eq!(policy_warning(&info("allkeys-lru", "0")), None);
        assert_eq!(policy_warning(&info("noeviction", "1000")), None);
    }
}
