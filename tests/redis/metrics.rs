//! Metrics of a daemon that uses everything: whoever watches a counter finds it before anything has happened.

use super::redis_servers::Server;
use super::support::authority::Authority;
use super::support::command::TIDEGATE;
use super::support::daemon::Daemon;
use super::support::postgres::Postgres;
use super::support::{eventually, free_udp};
use tidegate::telemetry::{METRICS, MetricKind};

const RULES: &str = r#"[{"name":"r","per":["user"],"algorithm":"fixed_window","limit":5,"window":"24h","warn_at":80,"penalty":{"threshold":3,"window":"1h"},"global":{"mode":"escrow"}}]"#;

/// An increase from nothing to one is none to an alert: a counter must be at 0 before its first event.
#[test]
fn every_counter_is_there_before_its_first_event() {
    let (postgres, redis, authority) = (Postgres::start(), Server::start(&[]), Authority::new());
    let database = postgres.migrated(TIDEGATE);
    postgres.sql(
        &database,
        &format!("INSERT INTO rules (document) SELECT * FROM jsonb_array_elements('{RULES}')"),
    );
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    std::fs::write(&keys, r#"{"keys":[{"kty":"oct","k":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}]}"#)
        .unwrap();
    let config = format!(
        "region = \"eu\"\nnode = \"eu-1\"\n[listen]\nresp = \"127.0.0.1:0\"\npeer = \"{}\"\n[rules]\nsource = \"postgres\"\n\
         [postgres]\nurl = {:?}\n[audit]\nspool = {:?}\n[identity]\njwt = {{ keys = {keys:?} }}\n\
         [store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\nnodes = [{:?}]\n\
         [peers]\nregions = [\"eu\", \"us\"]\n{}",
        free_udp(),
        postgres.url(&database),
        folder.path().join("spool"),
        redis.url(),
        authority.issue("eu", "eu-1"),
    );
    let daemon = Daemon::with("", &config, &[]);
    let shown = || daemon.metrics();
    eventually("the servers of the store were looked at", || {
        shown().contains("tidegate_store_keys{").then_some(())
    });
    let text = shown();
    let missing: Vec<&str> = METRICS
        .iter()
        .filter(|(_, kind, ..)| *kind == MetricKind::Counter)
        .map(|(name, ..)| *name)
        .filter(|name| {
            let name = format!("tidegate_{name}");
            !text
                .lines()
                .any(|line| line.strip_prefix(&*name).is_some_and(|rest| rest.starts_with([' ', '{'])))
        })
        .collect();
    assert_eq!(missing, [""; 0]);
    for line in [
        "tidegate_audit_dropped_total{reason=\"queue_full\"}",
        "tidegate_audit_dropped_total{reason=\"spool_full\"}",
        "tidegate_peer_rules_refused_total{reason=\"digest\"}",
        "tidegate_rights_moved_total{from=\"eu\",to=\"us\"}",
        "tidegate_peer_dropped_total{queue=\"queue_full\"}",
        "tidegate_sync_bytes_total{region=\"us\",direction=\"sent\"}",
        "tidegate_keys_full_total",
        "tidegate_keys_evicted_total",
    ] {
        assert_eq!(daemon.metric(line), Some(0.0), "{line}");
    }
    eventually("a listed region that was never heard is out of reach", || {
        (daemon.metric("tidegate_peer_connected{region=\"us\"}") == Some(0.0)).then_some(())
    });
    assert_eq!(daemon.metric("tidegate_peer_connected{region=\"eu\"}"), None, "not to itself");
    assert!(text.contains("# TYPE tidegate_keys_full_total counter"), "{text}");
}
