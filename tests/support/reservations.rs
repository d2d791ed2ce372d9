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
