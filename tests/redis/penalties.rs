//! Penalties that are noted in Redis: counted over several daemons, and decided in the one call of a
//! decision.

use serde_json::json;

use crate::redis_servers::{Cluster, Server};
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::penalties::{deny, metric, penalty, rules};

fn on(topology: &str, nodes: &[String]) -> String {
    format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"{topology}\"\nnodes = {nodes:?}\n\
         timeout = \"2s\"\n"
    )
}

#[test]
fn denials_by_two_daemons_of_a_cluster_begin_one_penalty_that_both_keep() {
    let cluster = Cluster::start_patient();
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra"]
    {
        let rules = rules("1h", "[1, 2]").replace("fixed_window", algorithm);
        let rules = rules.replace("polite", &format!("polite-{algorithm}")).replace("365d", "24h");
        let config = on("cluster", &cluster.urls());
        let daemons = [Daemon::with(&rules, &config, &[]), Daemon::with(&rules, &config, &[])];
        assert!(penalty(&deny(&daemons[0], "ann")).is_null(), "{algorithm}");
        let second = deny(&daemons[1], "ann");
        assert_eq!(penalty(&second)["begun"], true, "{algorithm}: {second}");
        for daemon in &daemons {
            let shut = daemon.check(&[("user", "ann")]);
            let ends = penalty(&shut)["ends_ms"].as_u64().unwrap_or(0);
            assert!((3_000_000..=3_600_000).contains(&ends), "{algorithm}: {shut}");
            assert_eq!((&shut["allowed"], &shut["retry_after_ms"]), (&json!(false), &json!(ends)), "{shut}");
            assert_eq!(daemon.check(&[("user", "bob")])["allowed"], true, "{algorithm}");
        }
        let begun: f64 = daemons.iter().map(|daemon| metric(daemon, "penalties_total")).sum();
        assert!((begun - 1.0).abs() < f64::EPSILON, "{algorithm}: {begun}");
        let name = format!("polite-{algorithm}");
        let reset = daemons[1].run(&["buckets", "reset", &name, "user=ann"]);
        assert!(reset.out.contains("counts from zero"), "{algorithm}: {reset:?}");
        assert_eq!(daemons[0].check(&[("user", "ann")])["allowed"], true, "{algorithm}");
    }
}

/// A hot key is answered by what was drawn ahead and by denials that are remembered: not where each denial
/// counts.
#[test]
fn a_hot_key_reaches_its_threshold_by_the_number() {
    let server = Server::start(&[]);
    let rules =
        rules("1h", "[1]").replace("threshold = 2", "threshold = 50").replace("limit = 100", "limit = 5");
    let daemon = Daemon::with(&rules, &on("single", &[server.url()]), &[]);
    let answers: Vec<_> = (0..60).map(|_| daemon.check(&[("user", "hot")])).collect();
    let first = answers.iter().position(|answer| !penalty(answer).is_null());
    assert_eq!(first, Some(54), "five pass, and the fiftieth denial begins the penalty");
}

#[test]
fn a_record_is_gone_when_it_matters_no_more() {
    let server = Server::start(&[]);
    let rules = rules("100ms", "[1]").replace("window = \"1h\"", "window = \"100ms\"");
    let daemon = Daemon::with(&rules, &on("single", &[server.url()]), &[]);
    deny(&daemon, "ann");
    let kept = || server.command(&["EXISTS", "tg:{user=ann}:polite:penalty"]).unwrap();
    eventually("the record expires", || kept().contains(":0").then_some(()));
}

#[test]
fn a_server_that_is_away_and_back_is_told_as_events() {
    let mut server = Server::start(&[]);
    let config = on("single", &[server.url()]).replace("2s", "200ms");
    let daemon = Daemon::with(&rules("1h", "[1]"), &config, &[]);
    let told = |kind: &str| {
        let line = format!("tidegate_events_total{{kind=\"{kind}\"}}");
        eventually(kind, || {
            daemon.check(&[("user", "ann")]);
            (daemon.metric(&line)? > 0.0).then_some(())
        });
    };
    server.kill();
    told("breaker_open");
    let _server = server.restart();
    told("breaker_closed");
}
