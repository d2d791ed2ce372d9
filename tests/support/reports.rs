//! Reports by an id, as one daemon or several of a region count them.

use serde_json::{Value, json};

use super::daemon::Daemon;

/// Sends reports of the user `once` anew, to each of two daemons that count together. The rule of this name
/// admits a thousand.
pub(crate) fn sent_again_it_is_charged_once(daemons: [&Daemon; 2], how: &str) {
    let used =
        || daemons[1].get(&format!("/v1/buckets?rule={how}&user=once")).json()["used"].as_u64().unwrap_or(0);
    let report = |at: usize, id: &str, cost: u64| {
        let report = json!({ "attributes": { "user": "once", "how": how }, "cost": cost, "id": id });
        let reply = daemons[at].post("/v1/report", &report);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    // A permit or two drain meanwhile.
    let is_about = |most: u64| {
        let used = used();
        assert!((most - 3..=most).contains(&used), "{how}: {used} of {most}");
    };
    for at in [0, 1, 0] {
        let told = report(at, "r1", 400);
        assert_eq!(told["allowed"], true, "{how}: {told}");
        is_about(400);
    }
    let told = report(1, "r2", 300);
    assert!(matches!(told["remaining"].as_u64(), Some(300..=303)), "{how}: {told}");
    is_about(700);
    let beyond = report(0, "r3", 500);
    assert_eq!(beyond["allowed"], false, "{how}: {beyond}");
    let again = report(1, "r3", 500);
    let answer = |told: &Value| (told["allowed"].clone(), told["status"].clone(), told["cause"].clone());
    assert_eq!(answer(&again), answer(&beyond), "{how}: whoever got no answer gets the same one: {again}");
    assert!(again["retry_after_ms"].as_u64().unwrap() > 0, "{how}: {again}");
    is_about(1_200);
}
