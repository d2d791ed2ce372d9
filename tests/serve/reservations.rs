//! Permits reserved before a cost is known: never more than the limit is used, whoever comes at once.

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::reservations::{
    ALGORITHMS, PLACES, an_id_holds_what_it_held_first, charging_rules, commit, remaining, reserve, rules,
    what_lapsed_stays_charged,
};
use super::support::resp::Connection;
use super::support::{eventually, free_tcp, http};

#[test]
fn five_at_once_of_20_each_and_then_more_use_100_at_most() {
    let daemon = Daemon::with_rules(&rules());
    for how in ALGORITHMS {
        let who = (how, "race");
        let made: Vec<Value> = std::thread::scope(|scope| {
            let one = || reserve(&daemon, who, &json!({ "amount": 20 }));
            let all: Vec<_> = (0..12).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let held: Vec<&Value> = made.iter().filter(|made| made["allowed"] == true).collect();
        assert_eq!(held.len(), 5, "{how}");
        assert!(made.iter().all(|made| (made["allowed"] == true) == made["reservation"].is_string()));
        assert_eq!(remaining(&daemon, who), 0, "{how}");
        for reserved in &held {
            assert_eq!(commit(&daemon, reserved, 15)["committed"], true, "{how}");
        }
        let left = remaining(&daemon, who);
        assert!((24..=25).contains(&left), "{how}: five used 15 each, and {left} are left");
    }
}

#[test]
fn a_commit_charges_once_what_was_used_and_a_cancellation_nothing() {
    let daemon = Daemon::with_rules(&rules());
    for how in ALGORITHMS {
        let who = (how, "once");
        let more = reserve(&daemon, who, &json!({ "amount": 20 }));
        assert_eq!(
            commit(&daemon, &more, 50),
            json!({ "committed": true, "lapsed": false, "degraded": false })
        );
        assert_eq!(commit(&daemon, &more, 50)["committed"], false, "{how}");
        assert!((49..=50).contains(&remaining(&daemon, who)), "{how}");
        let none = reserve(&daemon, who, &json!({ "amount": 30, "id": "the same" }));
        let again = reserve(&daemon, who, &json!({ "amount": 30, "id": "the same" }));
        assert_eq!(again["allowed"], true, "an id reserves once: {again}");
        let left = remaining(&daemon, who);
        assert!((19..=20).contains(&left), "{how}: {left}");
        let cancelled = daemon.post("/v1/cancel", &json!({ "reservation": none["reservation"] }));
        assert_eq!(cancelled.json()["committed"], true, "{how}: {cancelled:?}");
        let left = remaining(&daemon, who);
        assert!((49..=50).contains(&left), "{how}: {left}");
        let owes = reserve(&daemon, who, &json!({ "amount": 1 }));
        assert_eq!(commit(&daemon, &owes, 1 << 63)["committed"], true, "{how}");
        assert_eq!(reserve(&daemon, who, &json!({ "amount": 1 }))["allowed"], false, "{how}");
    }
}

#[test]
fn a_rule_that_was_changed_meanwhile_charges_as_it_is_now() {
    let rule = |per: &str, limit: u64| {
        format!(
            "[[rules]]\nname = \"t\"\nper = {per}\nalgorithm = \"fixed_window\"\nlimit = {limit}\nwindow = \"24h\"\n"
        )
    };
    let daemon = Daemon::with_rules(&rule("[\"user\"]", 100));
    let made = || reserve(&daemon, ("any", "ann"), &json!({ "amount": 10 }));
    let (shared, uncounted) = (made(), made());
    daemon.reload(&rule("[]", 101), "t", 101);
    let in_full = json!({ "committed": true, "lapsed": true, "degraded": false });
    assert_eq!(commit(&daemon, &shared, 7), in_full, "all share one bucket now");
    assert_eq!(daemon.get("/v1/buckets?rule=t").json()["used"], 7);
    daemon.reload(&rule("[\"user\", \"how\"]", 102), "t", 102);
    let nothing = json!({ "committed": false, "lapsed": false, "degraded": false });
    assert_eq!(commit(&daemon, &uncounted, 7), nothing, "nobody knows its bucket");
}

#[test]
fn permits_that_a_commit_does_not_charge_are_counted() {
    let rule = |how: &str, more: &str| {
        format!(
            "[[rules]]\nname = \"{how}\"\nmatch = {{ how = \"{how}\" }}\nper = [\"user\"]\nlimit = 10\nwindow = \"24h\"\n{more}\n"
        )
    };
    let carries = rule("carry", "algorithm = \"fixed_window\"\ndebt_max = 5");
    let forgives = rule("forgive", "algorithm = \"token_bucket\"\ndebt = \"forgive\"");
    let daemon = Daemon::with_rules(&(carries + &forgives));
    for (how, reason, charged) in [("carry", "debt_max", 15.0), ("forgive", "forgiven", 10.0)] {
        let made = reserve(&daemon, (how, "ann"), &json!({ "amount": 10 }));
        assert_eq!(commit(&daemon, &made, 500)["committed"], true, "{how}");
        assert_eq!(commit(&daemon, &made, 500)["committed"], false, "{how}");
        let metric = format!("tidegate_reports_uncharged_permits_total{{reason=\"{reason}\"}}");
        assert_eq!(daemon.metric(&metric), Some(500.0 - charged), "{how}");
    }
}

#[test]
fn what_lapsed_is_free_again_and_is_charged_in_full_when_it_is_committed_late() {
    let daemon = Daemon::with_rules(&rules());
    for how in ALGORITHMS {
        let who = (how, "late");
        let late = reserve(&daemon, who, &json!({ "amount": 100, "ttl": "300ms" }));
        assert_eq!((&late["allowed"], &late["expires_ms"]), (&json!(true), &json!(300)), "{late}");
        eventually("the lapse", || {
            (reserve(&daemon, who, &json!({ "amount": 90, "id": "next" }))["allowed"] == true).then_some(())
        });
        let done = commit(&daemon, &late, 7);
        assert_eq!(done, json!({ "committed": true, "lapsed": true, "degraded": false }), "{how}");
        let left = remaining(&daemon, who);
        assert!((2..=3).contains(&left), "{how}: {left}");
    }
}

#[test]
fn an_id_that_asks_for_another_amount_is_told_what_it_holds() {
    an_id_holds_what_it_held_first(&Daemon::with_rules(&format!("{}{PLACES}", rules())));
}

#[test]
fn a_narrower_rule_beside_a_budget_keeps_one_client_from_taking_all_its_reservations() {
    let shared =
        "[[rules]]\nname = \"budget\"\nalgorithm = \"fixed_window\"\nlimit = 1000000\nwindow = \"24h\"\n";
    let own = "[[rules]]\nname = \"own\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 500\nwindow = \"24h\"\n";
    // Beyond what one bucket holds at once.
    let all = "TG.RESERVE default 1 10m \"\" user greedy\r\n".repeat(10_050);
    for (rules, passes) in [(shared.to_owned(), false), (format!("{shared}{own}"), true)] {
        let at = free_tcp();
        let daemon = Daemon::with(&rules, &format!("[listen]\nresp = \"{at}\"\n"), &[]);
        let mut greedy = Connection::open(at);
        // What was answered and not read is given back.
        for part in all.split_inclusive('\n').collect::<Vec<_>>().chunks(500) {
            greedy.send(part.concat().as_bytes());
            part.iter().for_each(|_| drop(greedy.answer()));
        }
        let other = daemon.post("/v1/reserve", &json!({ "attributes": { "user": "other" }, "amount": 1 }));
        let told = other.json();
        assert_eq!(told["allowed"], passes, "{told}");
        assert_eq!(told["message"].is_string(), !passes, "{told}");
    }
}

#[test]
fn where_the_rule_says_so_what_lapsed_stays_charged_until_it_is_settled() {
    what_lapsed_stays_charged(&Daemon::with_rules(&charging_rules()));
}

#[test]
fn what_is_no_reservation_is_refused_by_its_field() {
    let daemon = Daemon::with_rules(&rules());
    for body in [
        r#"{"attributes":{},"amount":0}"#,
        r#"{"attributes":{},"amount":-1}"#,
        r#"{"attributes":{},"amount":NaN}"#,
        r#"{"attributes":{},"amount":9223372036854775808}"#,
        r#"{"attributes":{},"amount":1,"ttl":"never"}"#,
        r#"{"attributes":{},"amount":1,"cost":1}"#,
    ] {
        assert_eq!(http::post(daemon.http, "/v1/reserve", body).status, 400, "{body}");
    }
    let made = reserve(&daemon, ("gcra", "bad"), &json!({ "amount": 1 }));
    for actual in ["-1", "NaN", "1.5", "18446744073709551616", "\"1\""] {
        let body = format!(r#"{{"reservation":{},"actual":{actual}}}"#, made["reservation"]);
        assert_eq!(http::post(daemon.http, "/v1/commit", body).status, 400, "{actual}");
    }
    let unknown = daemon.post("/v1/commit", &json!({ "reservation": "AAAA", "actual": 1 }));
    assert_eq!((unknown.status, &unknown.json()["error"]["field"]), (400, &json!("reservation")));
}
