//! What users and API keys used and have left, by day and by month, as `tidegate usage` and its route tell
//! it.

use serde_json::{Value, json};

use super::redis_servers::Server as Redis;
use super::rules::{Place, send};
use super::support::command::Ran;
use super::support::daemon::Daemon;
use super::support::eventually;

const RULES: &str = r#"
[[rules]]
name = "key-month"
per = ["api_key"]
limit = 1000
calendar = "month"
time_zone = "Europe/Berlin"

[[rules]]
name = "user-month"
per = ["user"]
limit = 5000
calendar = "month"
time_zone = "America/New_York"

[[rules]]
name = "user-day"
per = ["user"]
limit = 300
calendar = "day"
time_zone = "Asia/Tokyo"

[[rules]]
name = "key-burst"
per = ["api_key"]
algorithm = "token_bucket"
limit = 50
window = "1h"

[[rules]]
name = "others"
match = { user = "other" }
per = ["api_key"]
limit = 1
window = "1h"
"#;
const BERLIN_MONTH: &str = "month Europe/Berlin";
const NEW_YORK_MONTH: &str = "month America/New_York";
const TOKYO_DAY: &str = "day Asia/Tokyo";

/// With these lines of `[audit]`, and of what follows it.
fn daemon(place: &Place, audit: &str) -> Daemon {
    let config = format!(
        "[postgres]\nurl = {:?}\ntimeout = \"2s\"\n[identity]\nlookup_timeout = \"500ms\"\n\
         [audit]\nspool = \"spool\"\n{audit}\n",
        place.server.url(&place.database)
    );
    Daemon::with(RULES, &config, &[])
}

/// When the present window of this period and zone ends, as PostgreSQL's calendar says it.
fn end_of(place: &Place, window: &str) -> String {
    let (period, zone) = window.split_once(' ').unwrap();
    place.sql(&format!(
        "SELECT to_char((date_trunc('{period}', now() AT TIME ZONE '{zone}') + interval '1 {period}') \
             AT TIME ZONE '{zone}' AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
    ))
}

/// An API key of this user: its public name, and the whole.
fn make_key(daemon: &Daemon, user: &str) -> (String, String) {
    assert_eq!(send(daemon, "PUT", &format!("/v1/users/{user}"), &[], &json!({})).status, 200);
    let made = daemon.post("/v1/keys", &json!({ "user": user })).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&made["key"]["id"]), text(&made["secret"]))
}

fn usage(daemon: &Daemon, query: &str) -> Value {
    let reply = daemon.get(&format!("/v1/usage?{query}"));
    assert_eq!(reply.status, 200, "{query}: {reply:?}");
    reply.json()
}

/// What is told of the quota of this rule: limit, used, left, and when it resets.
fn quota(answer: &Value, rule: &str) -> (u64, u64, u64, String) {
    let quotas = answer["quotas"].as_array().unwrap();
    let quota = quotas.iter().find(|quota| quota["rule"] == rule).unwrap_or_else(|| panic!("{answer}"));
    let number = |name: &str| quota[name].as_u64().unwrap_or_else(|| panic!("{name} of {quota}"));
    let left_ms = number("reset_ms");
    assert!((1..=31 * 25 * 3_600_000).contains(&left_ms), "{quota}");
    let at = quota["resets_at"].as_str().unwrap_or_default().to_owned();
    (number("limit"), number("used"), number("remaining"), at)
}

fn rules_of(answer: &Value) -> Vec<&str> {
    answer["quotas"].as_array().unwrap().iter().map(|quota| quota["rule"].as_str().unwrap()).collect()
}

/// What a command shows, which fits into 80 columns.
fn shown(ran: Ran) -> String {
    assert_eq!(ran.code, 0, "{}", ran.both());
    for line in ran.out.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line:?} is wider than 80 columns");
    }
    ran.out
}

/// The cells of the first line that begins with this.
fn cells(shown: &str, first: &str) -> Vec<String> {
    let line = shown.lines().map(str::trim).find(|line| line.starts_with(first));
    let line = line.unwrap_or_else(|| panic!("no line begins with {first}: {shown}"));
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

#[test]
fn calendar_quotas_of_a_user_are_told_as_used_limit_and_when_they_reset() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 1.0");
    let (month, day) = (end_of(&place, NEW_YORK_MONTH), end_of(&place, TOKYO_DAY));
    // Nobody has asked yet, and the windows end all the same.
    let before = usage(&daemon, "user=u_42");
    assert_eq!(quota(&before, "user-month"), (5_000, 0, 5_000, month.clone()));
    assert_eq!(quota(&before, "user-day"), (300, 0, 300, day.clone()));
    assert_eq!(rules_of(&before), ["user-day", "user-month"], "rules of keys are none of the user's");
    for _ in 0..4 {
        daemon.check_cost(&[("user", "u_42")], 60);
    }
    let after = usage(&daemon, "user=u_42");
    assert_eq!(quota(&after, "user-month"), (5_000, 240, 4_760, month.clone()));
    assert_eq!(quota(&after, "user-day"), (300, 240, 60, day.clone()));
    let denied = daemon.check_cost(&[("user", "u_42")], 61);
    assert_eq!(denied["allowed"], false, "{denied}");

    let table = shown(daemon.run(&["usage", "--user", "u_42"]));
    assert!(table.contains("Left for u_42 now, in this region:"), "{table}");
    let line = cells(&table, "user-month");
    assert_eq!((&line[1..4], &line[5]), (&["5000", "240", "4760"].map(str::to_owned)[..], &month), "{table}");
    assert_eq!(cells(&table, "user-day")[5], day, "{table}");
    eventually("the month has all of it, and says that it is complete", || {
        let sums = usage(&daemon, "user=u_42&by=month");
        let row = &sums["rows"][0];
        (row["cost"] == 240).then(|| {
            assert_eq!((&row["allowed"], &row["denied"]), (&json!(4), &json!(1)), "{sums}");
            assert_eq!(sums["allowed_sample"], 1.0);
        })
    });
}

#[test]
fn quotas_and_months_of_a_key_are_told_by_its_public_name() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 1.0");
    let (id, secret) = make_key(&daemon, "acme");
    let (other, other_secret) = make_key(&daemon, "acme");
    let (month, owners) = (end_of(&place, BERLIN_MONTH), end_of(&place, NEW_YORK_MONTH));
    for (secret, times) in [(&secret, 3), (&other_secret, 2)] {
        for _ in 0..times {
            assert_eq!(daemon.check_cost(&[("api_key", secret)], 10)["allowed"], true);
        }
    }
    let answer = usage(&daemon, &format!("key={id}"));
    assert_eq!(quota(&answer, "key-month"), (1_000, 30, 970, month.clone()));
    assert_eq!(quota(&answer, "user-month"), (5_000, 50, 4_950, owners.clone()), "both keys count here");
    let burst = answer["quotas"].as_array().unwrap().iter().find(|quota| quota["rule"] == "key-burst");
    assert!((29..=30).contains(&burst.unwrap()["used"].as_u64().unwrap()), "{answer}");
    assert!(!rules_of(&answer).contains(&"others"), "{answer}");
    assert_eq!((&answer["by"], &answer["owner"]), (&json!("day"), &json!("acme")));
    assert_eq!(answer["quotas"][0]["identity"].as_object().map(serde_json::Map::len), Some(1), "{answer}");

    let table = shown(daemon.run(&["usage", "--key", &id]));
    assert!(table.contains(&format!("Left for {id} now, in this region:")), "{table}");
    assert!(table.contains("Left for acme, whose key it is, whichever key asks:"), "{table}");
    let line = cells(&table, "key-month");
    assert_eq!((&line[1..4], &line[5]), (&["1000", "30", "970"].map(str::to_owned)[..], &month), "{table}");
    assert_eq!(cells(&table, "user-month")[5], owners, "{table}");

    // Who pastes the whole key is told the same, and its secret goes nowhere.
    let pasted = shown(daemon.run(&["usage", "--key", &secret]));
    assert!(pasted.contains(&id) && !pasted.contains(&secret), "{pasted}");
    assert!(!daemon.log().contains(&secret));

    // Sums of keys, by day and by month, each complete.
    for by in ["day", "month"] {
        eventually(&format!("the sums of the key by {by}"), || {
            let sums = usage(&daemon, &format!("key={id}&by={by}"));
            (sums["rows"][0]["cost"] == 30).then(|| assert_eq!(sums["rows"][0]["allowed"], 3, "{sums}"))
        });
    }
    eventually("every key of this month", || {
        let rows = usage(&daemon, "group=key&by=month&from=0d")["rows"].clone();
        let costs: Vec<_> = rows.as_array().unwrap().iter().map(|row| (&row["key"], &row["cost"])).collect();
        (costs == [(&json!(id), &json!(30)), (&json!(other), &json!(20))]).then_some(())
    });
    let table = shown(daemon.run(&["usage", "--group", "key", "--by", "month", "--from", "0d"]));
    assert_eq!(cells(&table, &id), [&*id, "3", "0", "30"], "{table}");
    let of_rule = usage(&daemon, &format!("key={id}&by=month&group=rule"));
    let all: u64 = of_rule["rows"].as_array().unwrap().iter().map(|row| row["cost"].as_u64().unwrap()).sum();
    assert_eq!(all, 30, "{of_rule}");

    // A bucket is found by the key's name as well, which is no way to ask.
    let bucket = daemon.get(&format!("/v1/buckets?rule=key-month&api_key={id}"));
    assert_eq!((bucket.status, &bucket.json()["used"]), (200, &json!(30)), "{bucket:?}");
    let named = daemon.check_cost(&[("api_key", &id)], 1);
    assert_eq!(named["rule"], Value::Null, "a name is no key: {named}");

    // Why a key is limited is found by its name, too.
    assert_eq!(daemon.check_cost(&[("api_key", &secret)], 50)["allowed"], false);
    let why = daemon.get(&format!("/v1/why?api_key={id}")).json();
    let buckets = why["buckets"].as_array().unwrap_or_else(|| panic!("{why}"));
    assert!(buckets.iter().any(|bucket| bucket["rule"] == "key-burst"), "{why}");
    let counting = buckets.iter().find(|bucket| bucket["rule"] == "key-month").unwrap_or(&Value::Null);
    assert_eq!((&counting["matches"], &counting["used"]), (&json!(true), &json!(30)), "{why}");

    // A revoked key has something left, and may not use it.
    assert_eq!(send(&daemon, "POST", &format!("/v1/keys/{id}/revoke"), &[], &Value::Null).status, 200);
    eventually("it is told that the key is refused", || {
        (usage(&daemon, &format!("key={id}"))["refused"] == "key_revoked").then_some(())
    });
    let table = shown(daemon.run(&["usage", "--key", &id]));
    assert!(table.contains("is refused now, whatever is left: key_revoked"), "{table}");
    let why = daemon.get(&format!("/v1/why?api_key={id}")).json();
    assert_eq!((&why["limited"], &why["decision"]["rule"]), (&json!(true), &json!("key_revoked")), "{why}");
}

#[test]
fn quotas_in_redis_end_when_the_calendar_says() {
    let place = Place::new();
    let redis = Redis::start(&[]);
    let store = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\nnodes = [{:?}]\ntimeout = \"500ms\"",
        redis.url()
    );
    let daemon = daemon(&place, &store);
    let (id, secret) = make_key(&daemon, "acme");
    let [key_month, user_month, user_day] =
        [BERLIN_MONTH, NEW_YORK_MONTH, TOKYO_DAY].map(|of| end_of(&place, of));
    for cost in [0, 30_u32] {
        if cost > 0 {
            assert_eq!(daemon.check_cost(&[("api_key", &secret)], cost.into())["allowed"], true);
        }
        let cost = u64::from(cost);
        let answer = usage(&daemon, &format!("key={id}"));
        assert_eq!(quota(&answer, "key-month"), (1_000, cost, 1_000 - cost, key_month.clone()));
        let answer = usage(&daemon, "user=acme");
        assert_eq!(quota(&answer, "user-month"), (5_000, cost, 5_000 - cost, user_month.clone()));
        assert_eq!(quota(&answer, "user-day"), (300, cost, 300 - cost, user_day.clone()));
    }
}

#[test]
fn a_key_that_is_none_is_refused_and_one_that_was_removed_is_remembered() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 1.0");
    let (id, secret) = make_key(&daemon, "acme");
    assert_eq!(daemon.check(&[("api_key", &secret)])["allowed"], true);
    eventually("it is in the sums", || {
        (usage(&daemon, &format!("key={id}"))["rows"][0]["allowed"] == 1).then_some(())
    });
    place.sql("DELETE FROM users");
    eventually("its past is told, and no quota", || {
        let answer = usage(&daemon, &format!("key={id}"));
        (answer["quotas"] == json!([])).then(|| assert_eq!(answer["rows"][0]["allowed"], 1, "{answer}"))
    });
    let ran = daemon.run(&["usage", "--key", "tgk_nobodysnamed"]);
    assert!(ran.code == 1 && ran.err.contains("there is no such API key"), "{}", ran.both());
    for (query, field) in [
        ("key=k&by=hour", "by"),
        ("group=key&by=minute", "by"),
        ("key=k&user=u", "key"),
        ("key=k&group=user", "key"),
        ("user=u&group=key", "key"),
        ("key=k&path=/a", "path"),
        ("by=quarter", "by"),
    ] {
        let reply = daemon.get(&format!("/v1/usage?{query}"));
        assert_eq!(
            (reply.status, &reply.json()["error"]["field"]),
            (400, &json!(field)),
            "{query}: {reply:?}"
        );
    }
}

#[test]
fn where_allowed_decisions_are_sampled_sums_and_quotas_are_exact_all_the_same() {
    let place = Place::new();
    let daemon = daemon(&place, "");
    for _ in 0..250 {
        daemon.check(&[("user", "u")]);
    }
    daemon.check_cost(&[("user", "u")], 9_000);
    eventually("every decision is in the sums", || {
        let row = usage(&daemon, "user=u&by=month")["rows"][0].clone();
        ((&row["allowed"], &row["denied"], &row["cost"]) == (&json!(250), &json!(1), &json!(250)))
            .then_some(())
    });
    let answer = usage(&daemon, "user=u&by=month");
    assert_eq!((quota(&answer, "user-month").1, &answer["allowed_sample"]), (250, &json!(0.01)));
    let table = shown(daemon.run(&["usage", "--user", "u", "--by", "month"]));
    assert!(table.contains("250") && !table.contains("estimate"), "{table}");
    let admitted = daemon.get("/v1/audit?outcome=allowed&user=u&limit=1000").json();
    assert!(admitted["decisions"].as_array().unwrap().len() < 100, "rows are a sample: {admitted}");
}

#[test]
fn of_a_rule_that_is_to_be_exact_every_decision_has_a_row_and_of_the_others_the_sums_alone() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 0\nexact = [\"key-month\"]");
    let (id, secret) = make_key(&daemon, "acme");
    for _ in 0..37 {
        assert_eq!(daemon.check(&[("api_key", &secret)])["allowed"], true);
        // Of no exact rule, and so without a row.
        assert_eq!(daemon.check(&[("user", "acme")])["allowed"], true);
    }
    eventually("the month of the key is whole", || {
        (usage(&daemon, &format!("key={id}&by=month"))["rows"][0]["allowed"] == 37).then_some(())
    });
    eventually("and so is what its user did with it and without", || {
        (usage(&daemon, "user=acme&by=month")["rows"][0]["cost"] == 74).then_some(())
    });
    assert_eq!(place.sql("SELECT count(*), count(key_id) FROM audit_log"), "37|37");
    let answer = usage(&daemon, &format!("key={id}"));
    assert_eq!((&answer["allowed_sample"], &answer["exact_rules"]), (&json!(0.0), &json!(["key-month"])));
}

#[test]
fn sums_are_what_reservations_used_and_not_what_they_reserved() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 0\nexact = [\"key-month\"]");
    let (id, secret) = make_key(&daemon, "acme");
    let reserve = |amount: u64| {
        let asked = json!({ "attributes": { "api_key": secret }, "amount": amount, "ttl": "1m" });
        let reply = daemon.post("/v1/reserve", &asked).json();
        assert_eq!(reply["allowed"], true, "{reply}");
        reply["reservation"].clone()
    };
    let commit = |reservation: &Value, actual: u64| {
        let committed = json!({ "reservation": reservation, "actual": actual });
        assert_eq!(daemon.post("/v1/commit", &committed).status, 200);
    };
    // Less than reserved, twice told; more than reserved; and nothing at all.
    let (less, more, nothing) = (reserve(30), reserve(10), reserve(5));
    commit(&less, 4);
    commit(&less, 4);
    commit(&more, 12);
    let cancelled = json!({ "reservation": nothing });
    assert_eq!(daemon.post("/v1/cancel", &cancelled).status, 200);
    let sums = |query: &str| {
        let row = usage(&daemon, query)["rows"][0].clone();
        (row["allowed"].clone(), row["cost"].clone())
    };
    for query in [format!("key={id}&by=month"), "user=acme&by=month".to_owned()] {
        eventually("three decisions used 16 permits", || {
            (sums(&query) == (json!(3), json!(16))).then_some(())
        });
    }
    assert_eq!(quota(&usage(&daemon, &format!("key={id}")), "key-month").1, 16, "as the bucket counts");
    let log = daemon.get("/v1/audit?outcome=committed&user=acme").json();
    let costs: Vec<i64> =
        log["decisions"].as_array().unwrap().iter().map(|row| row["cost"].as_i64().unwrap()).collect();
    assert_eq!(costs, [-5, 2, -26], "newest first: {log}");
    let by_rule = usage(&daemon, "group=rule&by=month");
    for row in by_rule["rows"].as_array().unwrap() {
        assert!(row["cost"].as_i64() >= Some(0), "a commit counts under the rule that decided: {by_rule}");
    }
    let listed = daemon.run(&["audit", "--outcome", "committed"]);
    assert!(listed.code == 0 && listed.out.matches("committed").count() == 3, "{}", listed.both());
}

#[test]
fn sums_hold_reports_that_did_not_fit_as_their_buckets_do() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 1");
    let report = |cost: u64| {
        let asked = json!({ "attributes": { "user": "late" }, "cost": cost });
        daemon.post("/v1/report", &asked).json()["allowed"].clone()
    };
    // Far more than any rule here has left.
    assert_eq!([report(3), report(500_000), report(20)], [true, false, false]);
    assert_eq!(
        daemon.check(&[("user", "late")])["allowed"],
        false,
        "and nothing is taken of what is refused"
    );
    eventually("all that was used is in the sums", || {
        let row = usage(&daemon, "user=late&by=month")["rows"][0].clone();
        ((&row["allowed"], &row["denied"], &row["cost"]) == (&json!(1), &json!(3), &json!(500_023)))
            .then_some(())
    });
}

#[test]
fn sums_take_what_is_sent_again_under_its_id_once_as_buckets_do() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 1");
    let attributes = |user: &str| json!({ "user": user });
    let report = |user: &str, cost: u64, id: &str| {
        let asked = json!({ "attributes": attributes(user), "cost": cost, "id": id });
        assert!(daemon.post("/v1/report", &asked).json()["allowed"].is_boolean());
    };
    for _ in 0..3 {
        report("told", 9, "once");
        // Far more than any rule here has left: denied and charged the first time, and then denied as known.
        report("beyond", 500_000, "far");
    }
    report("told", 4, "another");
    let reserve = || {
        let asked = json!({ "attributes": attributes("held"), "amount": 20, "ttl": "1m", "id": "r" });
        daemon.post("/v1/reserve", &asked).json()["reservation"].clone()
    };
    let held = [(); 3].map(|()| reserve());
    let committed = json!({ "reservation": held[2], "actual": 8 });
    assert_eq!(daemon.post("/v1/commit", &committed).status, 200);
    let sums = |user: &str| {
        let row = usage(&daemon, &format!("user={user}&by=month"))["rows"][0].clone();
        [row["allowed"].clone(), row["denied"].clone(), row["cost"].clone()]
    };
    for (user, expected) in [("told", [4, 0, 13]), ("beyond", [0, 3, 500_000]), ("held", [3, 0, 8])] {
        let expected = expected.map(|number| json!(number));
        eventually("a repeat is a decision, and costs nothing", || (sums(user) == expected).then_some(()));
    }
}

#[test]
fn costs_beyond_all_numbers_hold_up_no_sums() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 1");
    for turn in 1..=3 {
        let attributes = json!({ "user": format!("more-{turn}") });
        let asked = json!({ "attributes": attributes, "amount": 1, "ttl": "1m" });
        let held = daemon.post("/v1/reserve", &asked).json()["reservation"].clone();
        let committed = json!({ "reservation": held, "actual": i64::MAX });
        assert_eq!(daemon.post("/v1/commit", &committed).status, 200);
        // Each turn is in the sums before the next: what is added up in the daemon stops by itself.
        let user = format!("turn-{turn}");
        daemon.check(&[("user", &user)]);
        eventually("the turn is in the sums", || {
            (usage(&daemon, &format!("user={user}&by=month"))["rows"][0]["allowed"] == 1).then_some(())
        });
    }
    let cost = |query: &str| usage(&daemon, query)["rows"][0]["cost"].as_i64().unwrap();
    let most = 1_i64 << 50;
    assert_eq!(cost("user=more-1&by=month"), most);
    // What is there stops at the most before more is added.
    assert!((most..=most * 2).contains(&cost("by=month")), "{}", cost("by=month"));
}

#[test]
fn a_database_that_hangs_holds_up_an_answer_about_a_key_for_seconds_and_not_for_ever() {
    let place = Place::new();
    let daemon = daemon(&place, "allowed_sample = 1.0");
    let (id, _) = make_key(&daemon, "acme");
    assert_eq!(rules_of(&usage(&daemon, &format!("key={id}"))).len(), 4);
    place.server.signal_all("STOP");
    let began = std::time::Instant::now();
    let reply = daemon.get(&format!("/v1/usage?key={id}"));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("unavailable")), "{reply:?}");
    // What is known of the key is at hand: its bucket is shown without the database.
    let bucket = daemon.get(&format!("/v1/buckets?rule=key-month&api_key={id}"));
    assert_eq!(bucket.status, 200, "{bucket:?}");
    // Of one that is not, the answer is awaited briefly.
    let unknown = daemon.get("/v1/buckets?rule=key-month&api_key=tgk_nobodysnamed");
    assert_eq!(
        (unknown.status, &unknown.json()["used"]),
        (200, &json!(0)),
        "counted by its name: {unknown:?}"
    );
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    place.server.signal_all("CONT");
    eventually("it is told again", || {
        (daemon.get(&format!("/v1/usage?key={id}")).status == 200).then_some(())
    });
}
