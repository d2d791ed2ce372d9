//! Why a request was denied: the same word in answers, on the command line, in metrics and in `why`.

use serde_json::{Value, json};

use super::regions::{Authority, REGIONS};
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};

const ANN: &[(&str, &str)] = &[("user", "ann")];

#[test]
fn a_limit_that_is_used_up_is_told_as_a_cause_everywhere() {
    let rules = "[[rules]]\nname = \"few\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 2\nwindow = \"24h\"\n\
                 [[rules]]\nname = \"mallory\"\nmatch = { user = \"mallory\" }\naction = \"block\"\n";
    let daemon = Daemon::with_rules(rules);
    let allowed = daemon.check(ANN);
    assert!(allowed.get("cause").is_none() && allowed["rules"][0].get("cause").is_none(), "{allowed}");
    let large = daemon.check_cost(ANN, 3);
    assert_eq!((&large["cause"], &large["rules"][0]["cause"]), (&json!("too_large"), &json!("too_large")));
    daemon.check(ANN);
    let batch = daemon.post("/v1/check", &json!({ "checks": [{ "attributes": { "user": "ann" } }] })).json();
    assert_eq!(batch["decisions"][0]["cause"], "used_up", "{batch}");
    assert_eq!(daemon.check(&[("user", "mallory")])["cause"], "blocked");
    let blocked = daemon.run(&["check", "user=mallory"]).out;
    assert!(blocked.contains("until somebody lifts it") && !blocked.contains("never pass"), "{blocked}");
    let large = daemon.run(&["check", "user=bob", "--cost", "1000"]).out;
    assert!(large.contains("it asks for 1000, and 2 is the most that can ever pass"), "{large}");
    let reserved =
        daemon.post("/v1/reserve", &json!({ "attributes": { "user": "ann" }, "amount": 1 })).json();
    assert_eq!(reserved["cause"], "used_up", "{reserved}");
    for arguments in [["check", "user=ann"], ["explain", "user=ann"], ["why", "user=ann"]] {
        let told = daemon.run(&arguments).out;
        assert!(told.contains("the limit is used up"), "{arguments:?}: {told}");
    }
    let why = daemon.get("/v1/why?user=ann").json();
    assert_eq!(why["buckets"][0]["cause"], "used_up", "{why}");
    let denials = |rule: &str, cause: &str| {
        daemon.metric(&format!("tidegate_denials_total{{rule=\"{rule}\",cause=\"{cause}\"}}"))
    };
    assert_eq!(denials("few", "too_large"), Some(2.0), "the check, and `tidegate check`");
    assert_eq!(denials("few", "used_up"), Some(3.0), "the batch, the reservation, and `tidegate check`");
    assert_eq!(denials("mallory", "blocked"), Some(2.0));
}

#[test]
fn under_split_a_share_that_is_used_is_no_limit_that_is_used_up() {
    let config = format!("region = \"{}\"\n[peers]\nregions = {REGIONS:?}\n", REGIONS[0]);
    let rules = "[[rules]]\nname = \"parts\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 30\nwindow = \"24h\"\n\
                 [rules.global]\nmode = \"split\"\n";
    let daemon = Daemon::with(rules, &config, &[]);
    assert_eq!(daemon.admitted(ANN, 30), 10);
    let denied = daemon.check(ANN);
    assert_eq!(denied["cause"], "elsewhere", "{denied}");
    // Nothing comes from the others, so it is the share that has to be free again. At midnight that is soon.
    assert_eq!(denied["retry_after_ms"], denied["reset_ms"], "{denied}");
    let global = &denied["rules"][0]["global"];
    assert_eq!((&global["believed_used"], &global["used_here"]), (&Value::Null, &json!(10)), "{denied}");
    for command in ["check", "explain", "why"] {
        let told = daemon.run(&[command, "user=ann"]).out;
        assert!(told.contains("this region's part of the limit is used"), "{command}: {told}");
    }
}

#[test]
fn a_first_agreement_that_waits_is_told_and_nothing_unknown_is_zero() {
    let authority = Authority::new();
    let peers = [free_udp(), free_udp()];
    let config = authority.config(REGIONS[0], "a-1", peers[0], &peers[1..]);
    let rules = "[[rules]]\nname = \"orders\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 300\nwindow = \"24h\"\n\
                 [rules.global]\nmode = \"escrow\"\n";
    let daemon = Daemon::with(rules, &config, &[]);
    let denied = daemon.check(ANN);
    assert_eq!((&denied["allowed"], &denied["cause"]), (&json!(false), &json!("not_agreed")), "{denied}");
    let global = &denied["rules"][0]["global"];
    assert_eq!((&global["believed_used"], &global["error_bound"]), (&Value::Null, &json!(300)), "{denied}");
    let sentence = "nothing is admitted before all regions have agreed on their shares";
    let told = ["check", "explain", "why"].map(|command| daemon.run(&[command, "user=ann"]).out);
    for told in &told {
        assert!(told.contains(sentence), "{told}");
        assert!(told.contains("300") && !told.contains("limit 0"), "the limit of later: {told}");
        assert!(told.contains("waiting for ") && told.contains(REGIONS[1]), "it says for whom: {told}");
        assert!(!told.contains("in 1 s;") && !told.contains("free in"), "no time ends it: {told}");
    }
    assert_eq!(denied["limit"], 300, "{denied}");
    assert!(told[0].contains("not known"), "{}", told[0]);
    assert!(!told[2].contains("used by other regions: 0"), "{}", told[2]);
    eventually("it lasts, so /readyz says it", || {
        let ready = daemon.get("/readyz").json().to_string();
        ready.contains("until every region says the same").then_some(())
    });
}
