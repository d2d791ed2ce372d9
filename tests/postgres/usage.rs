//! Questions about the past that must not slow down with rules or users, asked through a daemon.

use serde_json::Value;

use super::rules::Place;
use super::support::daemon::Daemon;
use super::support::eventually;

/// Sums of today for a rule: 3,000 users in three regions, each denied so often there.
fn fill(place: &Place, rule: &str, denied: &str) {
    place.sql(&format!(
        "INSERT INTO usage_day (bucket, region, rule, user_id, allowed, denied, cost) \
         SELECT date_trunc('day', now(), 'UTC'), region, '{rule}', 'u' || n, n % 5, {denied}, n % 5 \
         FROM generate_series(1, 3000) AS n, unnest(ARRAY['ap', 'eu', 'us']) WITH ORDINALITY AS of_region (region, r)"
    ));
    place.sql(&format!(
        "INSERT INTO usage_day (bucket, region, rule, allowed, denied, cost) \
         SELECT bucket, region, rule, sum(allowed), sum(denied), sum(cost) FROM usage_day WHERE rule = '{rule}' GROUP BY 1, 2, 3"
    ));
}

fn top(daemon: &Daemon, rule: &str, limit: usize, region: &str) -> Vec<(String, u64)> {
    let region = if region.is_empty() { String::new() } else { format!("&region={region}") };
    let reply = daemon.get(&format!("/v1/usage?by=day&group=user&rule={rule}&limit={limit}&from=0d{region}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    let json = reply.json();
    let rows = json["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["user"].as_str().unwrap().to_owned(), row["denied"].as_u64().unwrap())).collect()
}

/// The same, by adding up everybody: those who were denied, and then those who were only admitted.
fn expected(place: &Place, rule: &str, limit: usize, region: &str) -> Vec<(String, u64)> {
    let text = place.sql(&format!(
        "SELECT user_id, sum(denied) FROM usage_day WHERE rule = '{rule}' AND user_id <> '' \
             AND ('{region}' = '' OR region = '{region}') \
         GROUP BY 1 ORDER BY 2 DESC, CASE WHEN sum(denied) = 0 THEN sum(allowed) END DESC NULLS LAST, 1 LIMIT {limit}"
    ));
    let pair = |line: &str| {
        let (user, denied) = line.split_once('|').unwrap();
        (user.to_owned(), denied.parse().unwrap())
    };
    text.lines().map(pair).collect()
}

#[test]
fn the_top_violators_are_those_who_were_denied_most_in_all_regions() {
    let place = Place::new();
    let kinds = [
        // A few stand out; everybody about the same; nearly nobody denied at all.
        ("skewed", "(1e6 / n)::bigint * r % 9973"),
        ("flat", "1 + (n * r) % 3"),
        ("rare", "CASE WHEN n % 400 = 0 THEN r ELSE 0 END"),
        // In one region each, so that no single sum tells much; and the first by many small sums.
        ("apart", "CASE WHEN n % 3 = r - 1 THEN 1 << (n % 20) ELSE 0 END"),
        ("spread", "CASE WHEN n = 77 THEN 700 WHEN n % 3 = r - 1 THEN 1000 + n % 7 ELSE 0 END"),
    ];
    for (rule, denied) in kinds {
        fill(&place, rule, denied);
    }
    place.sql("ANALYZE usage_day");
    let daemon = place.daemon();
    for (rule, _) in kinds {
        for (limit, region) in [(1, ""), (10, ""), (10, "eu"), (1_000, "")] {
            let wanted = expected(&place, rule, limit, region);
            assert_eq!(top(&daemon, rule, limit, region), wanted, "{rule} {limit} {region}");
        }
    }
    assert_eq!(top(&daemon, "spread", 1, "")[0], ("u77".to_owned(), 2_100));
    assert_eq!(top(&daemon, "nothing", 10, ""), []);
    // Of days without a denial, too, what was admitted counts.
    place.sql(
        "INSERT INTO usage_day (bucket, region, rule, user_id, allowed, denied, cost) \
         SELECT date_trunc('day', now(), 'UTC') - days * interval '24 hours', 'eu', 'days', who, 5, denied, 7 \
         FROM (VALUES (0, 'refused', 2), (1, 'refused', 0), (1, 'passed', 0), (0, '', 2), (1, '', 0)) AS made (days, who, denied)",
    );
    let days = daemon.get("/v1/usage?by=day&group=user&rule=days&from=2d").json();
    let rows = days["rows"].as_array().unwrap().iter();
    let told: Vec<_> = rows
        .map(|row| {
            (row["user"].as_str().unwrap(), ["allowed", "denied", "cost"].map(|sum| row[sum].as_u64()))
        })
        .collect();
    let of = |sums: [u64; 3]| sums.map(Some);
    assert_eq!(told, [("refused", of([10, 2, 14])), ("passed", of([5, 0, 7]))], "{days}");
}

/// Users and days whose denials in all regions are not what their sums by day come to.
const ASTRAY: &str = "SELECT count(*) FROM usage_denied FULL JOIN (SELECT bucket, rule, user_id, sum(denied) AS whole \
         FROM usage_day WHERE user_id <> '' GROUP BY 1, 2, 3 HAVING sum(denied) > 0) AS sums USING (bucket, rule, user_id) \
     WHERE denied <> 0 AND denied IS DISTINCT FROM whole OR denied IS NULL";

#[test]
fn denials_in_all_regions_follow_the_sums_whoever_writes_them() {
    let place = Place::new();
    fill(&place, "r", "(n * r) % 3");
    assert_eq!(place.sql(ASTRAY), "0");
    let some = "WHERE user_id <> '' AND right(user_id, 1)";
    for change in [
        // As a daemon adds to what is there and to what is not, in one statement.
        "INSERT INTO usage_day AS own (bucket, region, rule, user_id, denied) \
             SELECT date_trunc('day', now(), 'UTC'), 'eu', 'r', 'u' || n, n % 4 FROM generate_series(2900, 3100) AS n \
             ON CONFLICT (bucket, region, rule, user_id, path) DO UPDATE SET denied = own.denied + excluded.denied"
            .to_owned(),
        format!("UPDATE usage_day SET denied = denied + 5 {some} = '1'"),
        format!("UPDATE usage_day SET denied = denied / 2 {some} = '1'"),
        format!("UPDATE usage_day SET user_id = user_id || 'x' {some} = '2'"),
        format!("DELETE FROM usage_day {some} = '3'"),
        "DELETE FROM usage_day WHERE region <> 'us'".to_owned(),
    ] {
        place.sql(&change);
        assert_eq!(place.sql(ASTRAY), "0", "{change}");
        assert_ne!(place.sql("SELECT sum(denied) FROM usage_denied"), "0", "{change}");
    }
    place.sql("DELETE FROM usage_day");
    assert_eq!(place.sql("SELECT count(*) FROM usage_denied WHERE denied <> 0"), "0");
}

#[test]
fn decisions_over_time_are_the_sums_of_all_rules() {
    let place = Place::new();
    let rule = |name: &str, path: &str, limit: u32| serde_json::json!({ "name": name, "match": { "path": path }, "algorithm": "fixed_window", "limit": limit, "window": "24h" });
    place.sql(&super::rules::insert(&rule("a", "/a", 2)));
    place.sql(&super::rules::insert(&rule("b", "/b", 3)));
    let config = format!("{}[audit]\nallowed_sample = 1.0\nspool = \"spool\"\n", place.config());
    let daemon = Daemon::with("", &config, &[]);
    daemon.admitted(&[("user", "u"), ("path", "/a")], 5);
    daemon.admitted(&[("user", "u"), ("path", "/b")], 5);
    for by in ["minute", "hour", "day"] {
        let sums = |json: &Value| {
            let rows = json["rows"].as_array().unwrap();
            let of = |field: &str| rows.iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
            (of("allowed"), of("denied"))
        };
        eventually(&format!("everything is in the totals by {by}"), || {
            let json = daemon.get(&format!("/v1/usage?by={by}&from=1d")).json();
            (sums(&json) == (5, 5)).then(|| assert!(json["rows"][0]["latency_us"]["p99"].is_u64(), "{json}"))
        });
        let of_rule = daemon.get(&format!("/v1/usage?by={by}&from=1d&rule=a")).json();
        assert_eq!(sums(&of_rule), (2, 3), "{of_rule}");
    }
}

#[test]
fn months_are_the_sums_of_their_days_in_utc_wherever_the_session_is() {
    let place = Place::new();
    // The last and first moments of months are others in New York.
    place.sql(&format!("ALTER DATABASE {} SET timezone = 'America/New_York'", place.database));
    place.sql(
        "INSERT INTO usage_day (bucket, region, rule, user_id, allowed, denied, cost) \
         SELECT day AT TIME ZONE 'UTC', region, rule, whose, 1, CASE WHEN whose = 'u2' THEN 2 ELSE 1 END, 10 \
         FROM generate_series(timestamp '2025-11-01', '2026-03-31', '1 day') AS day, \
             unnest(ARRAY['eu', 'us']) AS region, unnest(ARRAY['a', 'b']) AS rule, \
             unnest(ARRAY['', 'u1', 'u2']) AS whose; \
         INSERT INTO usage_total (step, bucket, region, allowed, denied, cost) \
         SELECT 'day', bucket, region, sum(allowed), sum(denied), sum(cost) FROM usage_day WHERE user_id = '' \
         GROUP BY 2, 3",
    );
    let daemon = place.daemon();
    let months = |query: &str| {
        let reply = daemon.get(&format!("/v1/usage?by=month&{query}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        let rows = reply.json()["rows"].as_array().unwrap().clone();
        let row =
            |row: &Value| (row["at"].as_str().unwrap()[..7].to_owned(), row["allowed"].as_u64().unwrap());
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let month = |name: &str, allowed: u64| (name.to_owned(), allowed);
    let winter = "from=2025-12-15T12:00:00Z&to=2026-03-01T00:00:00Z";
    let told = |days_times: u64| {
        [
            month("2026-02", 28 * days_times),
            month("2026-01", 31 * days_times),
            month("2025-12", 31 * days_times),
        ]
    };
    assert_eq!(months(winter), told(4));
    assert_eq!(months(&format!("{winter}&rule=a")), told(2));
    assert_eq!(months(&format!("{winter}&user=u1")), told(4));
    assert_eq!(months(&format!("{winter}&user=u1&rule=b&region=eu")), told(1));
    let with_march = "from=2026-02-28T23:59:59Z&to=2026-03-01T00:00:01Z";
    assert_eq!(months(with_march), [month("2026-03", 31 * 4), month("2026-02", 28 * 4)]);
    let top = daemon.get(&format!("/v1/usage?by=month&group=user&rule=a&{with_march}")).json();
    let top: Vec<_> =
        top["rows"].as_array().unwrap().iter().map(|row| (&row["user"], row["denied"].as_u64())).collect();
    let days = 2 * (28 + 31);
    assert_eq!(top, [(&"u2".into(), Some(2 * days)), (&"u1".into(), Some(days))]);

    // A year back unless said; the present month first.
    place.sql(
        "INSERT INTO usage_day (bucket, region, rule, user_id, allowed) \
         SELECT date_trunc('day', now(), 'UTC') - n * interval '24 hours', 'eu', 'c', 'long', 1 \
         FROM generate_series(0, 500) AS n",
    );
    let year = months("user=long");
    assert_eq!(year.len(), 13, "{year:?}");
    let ran = daemon.run(&["usage", "--user", "long", "--by", "month"]);
    let lines: Vec<&str> = ran.out.lines().filter(|line| line.contains("-01T00:00:00Z")).collect();
    assert!(ran.code == 0 && lines.len() == 13 && lines[0].contains(&year[0].0), "{}", ran.both());
}

#[test]
fn the_newest_decisions_are_read_off_an_index_and_not_out_of_the_whole_log() {
    let place = Place::new();
    place.sql(
        "INSERT INTO audit_log (at, region, node, domain, rule, user_id, outcome, cost, status) \
         SELECT now() - n * interval '1 ms', 'eu', 'n1', 'default', 'r' || n % 7, 'u' || n % 11, 'denied', 1, 429 \
         FROM generate_series(1, 20000) AS n",
    );
    place.sql("ANALYZE audit_log");
    let daemon = place.daemon();
    let scans = || {
        let text = place.sql(
            "SELECT sum(idx_scan) FROM pg_stat_user_indexes \
             WHERE relname LIKE 'audit_log_2%' AND indexrelname NOT LIKE '%rule%' AND indexrelname NOT LIKE '%user%'",
        );
        text.parse::<u64>().unwrap()
    };
    let before = scans();
    let rows = daemon.get("/v1/audit?from=1h&limit=5").json();
    assert_eq!(rows["decisions"].as_array().map(Vec::len), Some(5), "{rows}");
    eventually("the index by time was read", || (scans() > before).then_some(()));
}
