//! Reservations over HTTP, as a caller makes and settles them, with whichever store the daemon has.

#![allow(dead_code, reason = "each test file uses a part of it")]

use serde_json::{Value, json};

use super::daemon::Daemon;

/// The algorithms that reservations go with.
pub(crate) const ALGORITHMS: [&str; 6] =
    ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra"];

/// One rule for each algorithm, met by its name, of 100 permits a day.
pub(crate) fn rules() -> String {
    let rule = |algorithm: &str| {
        format!(
            "[[rules]]\nname = \"{algorithm}\"\nmatch = {{ how = \"{algorithm}\" }}\nper = [\"user\"]\n\
             algorithm = \"{algorithm}\"\nlimit = 100\nwindow = \"24h\"\n"
        )
    };
    ALGORITHMS.map(rule).concat()
}

/// The same rules, of which each goes on charging what has lapsed.
pub(crate) fn charging_rules() -> String {
    rules().replace("limit = 100\n", "limit = 100\non_lapse = \"charge\"\n")
}

/// The rule whose places [`an_id_holds_what_it_held_first`] acquires.
pub(crate) const PLACES: &str = r#"
[[rules]]
name = "places"
match = { how = "places" }
per = ["user"]
algorithm = "concurrency"
limit = 10
hold = "1m"
"#;

/// Whoever asks again under an id is told what that holds, whatever the second one asks for.
pub(crate) fn an_id_holds_what_it_held_first(daemon: &Daemon) {
    for how in ALGORITHMS {
        let who = (how, "again");
        let again =
            |amount: u64| reserve(daemon, who, &json!({ "amount": amount, "id": format!("id of {how}") }));
        for amount in [40, 40, 90, 10, 4_000] {
            let told = again(amount);
            assert_eq!(
                (&told["allowed"], &told["cost"]),
                (&json!(true), &json!(40)),
                "{how}, {amount}: {told}"
            );
        }
        let left = remaining(daemon, who);
        assert!((60..=61).contains(&left), "{how}: {left}");
        assert_eq!(commit(daemon, &again(70), 40)["committed"], true, "{how}");
    }
    for cost in [3, 3, 7, 1] {
        let asked =
            json!({ "attributes": { "how": "places", "user": "again" }, "cost": cost, "id": "a place" });
        let told = daemon.post("/v1/acquire", &asked).json();
        assert_eq!((&told["allowed"], &told["cost"]), (&json!(true), &json!(3)), "{cost}: {told}");
    }
    let used = daemon.get("/v1/buckets?rule=places&user=again").json()["used"].clone();
    assert_eq!(used, 3);
}

/// What lapsed stays charged, and is settled by a commit that comes late.
pub(crate) fn what_lapsed_stays_charged(daemon: &Daemon) {
    for how in ALGORITHMS {
        let who = (how, "late");
        let late = reserve(daemon, who, &json!({ "amount": 60, "ttl": "300ms" }));
        let never = reserve(daemon, who, &json!({ "amount": 30, "ttl": "300ms" }));
        assert_eq!((&late["allowed"], &never["allowed"]), (&json!(true), &json!(true)), "{how}");
        // Both have lapsed a second later, wherever the clock is.
        std::thread::sleep(std::time::Duration::from_millis(1_000));
        assert_eq!(reserve(daemon, who, &json!({ "amount": 12 }))["allowed"], false, "{how}");
        let left = remaining(daemon, who);
        assert!((10..=11).contains(&left), "{how}: {left}");
        let done = commit(daemon, &late, 25);
        assert_eq!(done, json!({ "committed": true, "lapsed": false, "degraded": false }), "{how}");
        assert_eq!(commit(daemon, &late, 25)["committed"], false, "{how}");
        let left = remaining(daemon, who);
        assert!((44..=46).contains(&left), "{how}: {left} are left of 100 with 30 that lapsed and 25 used");
    }
}

/// Reserves by the rule of this algorithm, for this user; `more` are further fields of the body.
pub(crate) fn reserve(daemon: &Daemon, (how, user): (&str, &str), more: &Value) -> Value {
    let mut body = json!({ "attributes": { "how": how, "user": user } });
    more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    let reply = daemon.post("/v1/reserve", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Settles a reservation with what was used.
pub(crate) fn commit(daemon: &Daemon, reserved: &Value, actual: u64) -> Value {
    let reply =
        daemon.post("/v1/commit", &json!({ "reservation": reserved["reservation"], "actual": actual }));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Permits that a check of nothing finds left.
pub(crate) fn remaining(daemon: &Daemon, (how, user): (&str, &str)) -> u64 {
    daemon.check_cost(&[("user", user), ("how", how)], 0)["remaining"].as_u64().unwrap()
}
