//! Daemons that share a Redis know of each other through it, with or without peers.

use serde_json::json;

use crate::redis_servers::Server;
use crate::support::daemon::Daemon;
use crate::support::eventually;

const RULES: &str = r#"
[[rules]]
name = "per-user"
per = ["user"]
algorithm = "fixed_window"
limit = 99
window = "365d"
on_failure = "local"
"#;

fn on(topology: &str, nodes: &[String], node: &str) -> String {
    format!(
        "node = \"{node}\"\n[store]\nbackend = \"redis\"\n[store.lease]\nmax = 0\n[store.redis]\n\
         topology = \"{topology}\"\nnodes = {nodes:?}\ntimeout = \"200ms\"\n"
    )
}

fn daemons(daemon: &Daemon) -> u64 {
    daemon.get("/v1/regions").json()["store"]["daemons"].as_u64().unwrap_or(0)
}

#[test]
fn three_daemons_without_peers_divide_a_limit_by_three_while_redis_is_away() {
    let server = Server::start(&[]);
    let start = |node: &str| Daemon::with(RULES, &on("single", &[server.url()], node), &[]);
    let mut all = vec![start("a"), start("b"), start("c")];
    eventually("each knows of all", || all.iter().all(|daemon| daemons(daemon) == 3).then_some(()));
    eventually("a metric tells", || (all[0].metric("tidegate_store_daemons") == Some(3.0)).then_some(()));

    server.signal("-STOP");
    let admitted: Vec<usize> = all.iter().map(|daemon| daemon.admitted(&[("user", "u")], 60)).collect();
    assert_eq!(admitted, [33, 33, 33], "the last known number holds while Redis is away");

    // Who leaves is counted no longer, and who dies neither, a little later.
    server.signal("-CONT");
    let mut last = all.pop().unwrap();
    assert!(last.terminate().success());
    all.pop().unwrap().kill();
    eventually("one is left", || (daemons(&all[0]) == 1).then_some(()));
}

#[test]
fn daemons_of_a_ring_that_list_other_servers_are_noticed() {
    let servers = [Server::start(&[]), Server::start(&[]), Server::start(&[])];
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let one = Daemon::with(RULES, &on("ring", &urls[..2], "one"), &[]);
    let same = Daemon::with(RULES, &on("ring", &[urls[1].clone(), urls[0].clone()], "same"), &[]);
    eventually("both know of each other", || (daemons(&one) == 2 && daemons(&same) == 2).then_some(()));
    assert_eq!(one.get("/readyz").json()["store_problems"].as_array().map(Vec::len), Some(0));
    let other = Daemon::with(RULES, &on("ring", &urls, "other"), &[]);
    let told = |daemon: &Daemon, name: &str| {
        let problems = daemon.get("/readyz").json()["store_problems"].to_string();
        let sentence = format!("store.redis.nodes of local/{name} differs");
        (problems.contains(&sentence) && daemon.log().contains(&sentence)).then_some(())
    };
    eventually("the first tells of it", || told(&one, "other"));
    let problems = other.get("/readyz").json()["store_problems"].to_string();
    assert!(problems.contains("local/one") && problems.contains("local/same"), "{problems}");
    assert!(one.run(&["regions"]).out.contains("list the same servers everywhere"));
}

/// A rule of fifty permits for each algorithm that is drawn ahead.
fn drawn_ahead() -> String {
    let rules = ["fixed_window", "sliding_window", "token_bucket", "gcra"].map(|algorithm| {
        format!(
            "[[rules]]\nname = {algorithm:?}\nmatch = {{ how = {algorithm:?} }}\nper = [\"user\"]\n\
             algorithm = {algorithm:?}\nlimit = 50\nwindow = \"10m\"\n"
        )
    });
    rules.concat()
}

/// A daemon that draws ahead, and waits for its Redis however busy the machine is.
fn drawing(server: &Server) -> String {
    let config = on("single", &[server.url()], "one").replace("[store.lease]\nmax = 0\n", "");
    config.replace("timeout = \"200ms\"", "timeout = \"5s\"")
}

#[test]
fn what_was_drawn_ahead_for_a_hot_key_refuses_no_larger_cost_and_no_reservation() {
    let server = Server::start(&[]);
    let daemon = Daemon::with(&drawn_ahead(), &drawing(&server), &[]);
    let mut true_looks = 0;
    for turn in 0..4 {
        for how in ["fixed_window", "sliding_window", "token_bucket", "gcra"] {
            for (path, cost) in [("/v1/check", "cost"), ("/v1/reserve", "amount")] {
                let user = format!("u{turn}{path}");
                // Fast enough that permits are drawn ahead.
                let who = [("how", how), ("user", &*user)];
                assert_eq!(daemon.admitted(&who, 20), 20);
                true_looks += i32::from(daemon.check_cost(&who, 0)["remaining"] == 30);
                let body = json!({"attributes": {"how": how, "user": user}, cost: 30});
                let answer = daemon.post(path, &body).json();
                assert_eq!(answer["allowed"], true, "{how} {user}: {answer}");
            }
        }
    }
    // A look may come while the newest draw is on its way here.
    assert!(true_looks >= 16, "{true_looks} of 32 looks found free what was drawn and not used");
}

#[test]
fn clients_at_once_get_all_that_was_drawn_ahead_for_a_hot_key() {
    let server = Server::start(&[]);
    let daemon = Daemon::with(&drawn_ahead(), &drawing(&server), &[]);
    for turn in 0..6 {
        for how in ["fixed_window", "sliding_window", "token_bucket", "gcra"] {
            let user = format!("u{turn}");
            let who = [("how", how), ("user", &*user)];
            let at_once: usize = std::thread::scope(|scope| {
                let all: Vec<_> = (0..12).map(|_| scope.spawn(|| daemon.admitted(&who, 12))).collect();
                all.into_iter().map(|one| one.join().unwrap()).sum()
            });
            // What the last draw brought may have come after the last of them.
            let admitted = at_once + daemon.admitted(&who, 3);
            assert_eq!(admitted, 50, "{how} {user}: {at_once} of them at once");
        }
    }
}
