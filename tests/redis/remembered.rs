//! What a daemon remembers of Redis between two questions: a denial, and permits that it drew ahead.

use serde_json::{Value, json};

use crate::redis_servers::Server;
use crate::support::daemon::Daemon;

const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window", "token_bucket", "gcra"];

fn daemon(redis: &Server, window: &str) -> Daemon {
    let rule = |algorithm: &str| {
        format!(
            "[[rules]]\nname = \"{algorithm}\"\nmatch = {{ by = \"{algorithm}\" }}\nper = [\"user\"]\n\
             algorithm = \"{algorithm}\"\nlimit = 100\nwindow = \"{window}\"\n"
        )
    };
    let rules: String = ALGORITHMS.map(rule).concat();
    let config = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\nnodes = [{:?}]\ntimeout = \"2s\"\n",
        redis.url()
    );
    Daemon::with(&rules, &config, &[])
}

fn allowed(answer: &Value) -> bool {
    answer["allowed"] == true
}

#[test]
fn what_a_daemon_gave_back_itself_is_free_for_its_next_check() {
    let redis = Server::start(&[]);
    let daemon = daemon(&redis, "365d");
    for by in ALGORITHMS {
        let refunded = [("user", "refunded"), ("by", by)];
        let costs = [50, 50, 1].map(|cost| allowed(&daemon.check_cost(&refunded, cost)));
        assert_eq!(costs, [true, true, false], "{by}");
        assert!(allowed(&daemon.check_cost(&refunded, -40)), "{by}");
        assert!(allowed(&daemon.check(&refunded)), "{by}: 40 of 100 were given back");
        for (user, route, actual) in
            [("cancelled", "/v1/cancel", None), ("committed", "/v1/commit", Some(10))]
        {
            let attributes = json!({ "user": user, "by": by });
            assert!(allowed(&daemon.check(&[("user", user), ("by", by)])));
            let held = daemon.post("/v1/reserve", &json!({ "attributes": attributes, "amount": 99 })).json();
            assert!(!allowed(&daemon.check_cost(&[("user", user), ("by", by)], 5)), "{by} {held}");
            let mut body = json!({ "reservation": held["reservation"] });
            if let Some(actual) = actual {
                body["actual"] = json!(actual);
            }
            assert_eq!(daemon.post(route, &body).status, 200);
            assert!(allowed(&daemon.check_cost(&[("user", user), ("by", by)], 5)), "{by} after {route}");
        }
    }
}

#[test]
fn a_denial_of_one_cost_says_nothing_of_the_wait_of_a_larger_one() {
    let redis = Server::start(&[]);
    let daemon = daemon(&redis, "100d");
    for by in ["token_bucket", "gcra"] {
        let who = [("user", "u"), ("by", by)];
        assert!(allowed(&daemon.check_cost(&who, 98)));
        let wait = |cost| daemon.check_cost(&who, cost)["retry_after_ms"].as_u64().unwrap();
        // A permit a day: two are there.
        let days = [5, 20, 90].map(|cost| wait(cost).div_ceil(86_400_000));
        assert_eq!(days, [3, 18, 88], "{by}");
    }
}

#[test]
fn a_refund_of_more_than_was_used_leaves_the_limit_and_not_what_was_drawn_ahead_besides() {
    let redis = Server::start(&[]);
    let daemon = daemon(&redis, "365d");
    for by in ALGORITHMS {
        for user in ["a", "b", "c", "d"] {
            let who = [("user", user), ("by", by)];
            // Often enough that permits are drawn ahead.
            assert_eq!(daemon.admitted(&who, 60), 60, "{by}");
            daemon.check_cost(&who, -1_000_000);
            let passed = daemon.admitted(&who, 130);
            assert!((99..=100).contains(&passed), "{passed} of 100 pass after all was given back, by {by}");
        }
    }
}
