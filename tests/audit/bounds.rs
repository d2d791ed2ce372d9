//! How much is remembered: a part of the denials, so many rows a second, sums for so many users, sums for so
//! long.

use std::time::Instant;

use tempfile::TempDir;

use super::daemon::{block, rows, start};
use super::records::Server;
use super::support::daemon::Daemon;
use super::support::eventually;

/// Denials that the sums by day have of nobody in particular.
const ALL_DENIED: &str = "SELECT coalesce(sum(denied), 0) FROM usage_day WHERE user_id = '' AND path = ''";

fn denies(daemon: &Daemon, users: u64, times: u64) {
    (0..times).for_each(|n| block(daemon, &format!("u_{}", n % users)));
}

#[test]
fn of_denials_a_part_is_sampled_and_the_sums_have_all() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let mut daemon = start(&server, folder.path(), "denied_sample = 0.1\ndenied_rows_max = 0");
    denies(&daemon, 5, 2_000);
    assert!(daemon.terminate().success());
    let kept = rows(&server);
    // By chance: 200 of 2,000, and all but one run in a billion are within 6 deviations of it.
    assert!((120..=280).contains(&kept), "{kept} of 2000 denials are remembered");
    assert_eq!(server.number("SELECT count(*) FROM audit_log WHERE weight <> 1"), 0);
    let _daemon = start(&server, folder.path(), "denied_sample = 0\nallowed_sample = 1");
    eventually("the sums count those without a row as well", || {
        (server.number(ALL_DENIED) == 2_000).then_some(())
    });
    let users = "SELECT count(*), min(denied), max(denied) FROM usage_day WHERE user_id <> ''";
    assert_eq!(server.sql(users), "5|400|400");
}

#[test]
fn where_no_denials_are_sampled_none_is_remembered() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let mut daemon = start(&server, folder.path(), "denied_sample = 0\nallowed_sample = 1");
    denies(&daemon, 5, 100);
    assert_eq!(daemon.check(&[("user", "ann"), ("path", "/a")])["allowed"], true);
    assert!(daemon.terminate().success());
    // A daemon that ends waits for PostgreSQL only so long; the next one delivers what is left on its disk.
    let _daemon = start(&server, folder.path(), "denied_sample = 0\nallowed_sample = 1");
    let outcomes = || server.sql("SELECT string_agg(outcome, ' ') FROM audit_log");
    eventually("what is admitted is delivered", || (!outcomes().is_empty()).then_some(()));
    assert_eq!(outcomes(), "allowed");
}

#[test]
fn beyond_so_many_rows_a_second_denials_are_in_the_sums_alone() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "denied_rows_max = 5");
    let begun = Instant::now();
    denies(&daemon, 100, 1_000);
    let seconds = begun.elapsed().as_secs() + 2;
    eventually("every denial is in the sums", || (server.number(ALL_DENIED) == 1_000).then_some(()));
    let users = "SELECT count(*), min(denied), max(denied) FROM usage_day WHERE user_id <> ''";
    eventually("and in those of whoever asked", || (server.sql(users) == "100|10|10").then_some(()));
    let named = server.number("SELECT count(*) FROM audit_log WHERE user_id IS NOT NULL");
    assert!(named >= 5 && named <= 5 * seconds, "{named} rows of users in {seconds} s");
    let unlisted = server.number("SELECT coalesce(sum(weight), 0) FROM audit_log WHERE user_id IS NULL");
    assert_eq!(named + unlisted, 1_000);
    assert_eq!(
        daemon.metric("tidegate_audit_unlisted_total"),
        Some(f64::from(u32::try_from(unlisted).unwrap()))
    );
}

#[test]
fn so_many_users_of_a_rule_have_sums_of_their_own_and_the_others_share_one() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "users_max = 3\npaths_max = 2");
    denies(&daemon, 20, 200);
    eventually("every denial is in the sums", || (server.number(ALL_DENIED) == 200).then_some(()));
    let users = "SELECT count(DISTINCT user_id), sum(denied) FROM usage_day WHERE user_id <> ''";
    assert_eq!(server.sql(users), "4|200", "three and the one of all others");
    assert_eq!(server.number("SELECT sum(denied) FROM usage_day WHERE user_id = '*'"), 170);
    assert_eq!(rows(&server), 200, "each has its row all the same");
    let merged = daemon.metric("tidegate_audit_merged_total");
    assert_eq!(merged, Some(170.0));
}

#[test]
fn so_many_keys_of_a_rule_have_sums_of_their_own_and_the_others_share_one() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "keys_max = 3");
    for n in 0..200 {
        let key = format!("sk_{}", n % 20);
        let answer = daemon.check(&[("api_key", &key), ("path", "/closed")]);
        assert_eq!(answer["allowed"], false);
    }
    let keys = "SELECT count(DISTINCT key_id), coalesce(sum(denied), 0) FROM usage_key";
    eventually("three keys and the one of all others", || (server.sql(keys) == "4|200").then_some(()));
    assert_eq!(server.number("SELECT sum(denied) FROM usage_key WHERE key_id = '*'"), 170);
    assert_eq!(server.number("SELECT count(*) FROM usage_key WHERE key_id LIKE '%sk%'"), 0, "no secret");
    assert_eq!(daemon.metric("tidegate_audit_merged_total"), Some(170.0));
}

#[test]
fn sums_older_than_they_are_to_stay_go_a_part_at_a_time() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    // More than one statement may take, in each table.
    for table in ["usage_hour", "usage_day"] {
        server.sql(&format!(
            "INSERT INTO {table} (bucket, region, rule, user_id, denied) \
             SELECT date_trunc('day', now()) - interval '40 days', 'eu', 'r', 'old' || n, 1 FROM generate_series(1, 45000) AS n \
             UNION ALL \
             SELECT date_trunc('day', now()) - interval '20 days', 'eu', 'r', 'new' || n, 1 FROM generate_series(1, 100) AS n"
        ));
        server.sql(&format!(
            "CREATE TABLE parts_of_{table} (many bigint);
             CREATE FUNCTION note_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO parts_of_{table} SELECT count(*) FROM gone; RETURN NULL; END $$;
             CREATE TRIGGER note AFTER DELETE ON {table} REFERENCING OLD TABLE AS gone
                 FOR EACH STATEMENT EXECUTE FUNCTION note_{table}()"
        ));
    }
    server.sql(
        "INSERT INTO usage_key (bucket, region, rule, key_id) SELECT now() - age, 'eu', 'r', 'k' \
         FROM unnest(ARRAY[interval '40 days', interval '20 days']) AS age",
    );
    server.sql(
        "INSERT INTO usage_total (step, bucket, region, denied) SELECT step, now() - age, 'eu', 1 \
         FROM unnest(ARRAY['hour', 'day']) AS step, unnest(ARRAY[interval '40 days', interval '20 days']) AS age",
    );
    let _daemon = start(&server, folder.path(), "retain = \"1d\"\nretain_sums = \"30d\"");
    let left = "SELECT (SELECT count(*) FROM usage_hour), (SELECT count(*) FROM usage_day), (SELECT count(*) FROM usage_denied), \
                (SELECT count(*) FROM usage_total WHERE step <> 'minute'), (SELECT count(*) FROM usage_key)";
    eventually("what is old is gone, and nothing else", || {
        (server.sql(left) == "100|100|100|2|1").then_some(())
    });
    for table in ["usage_hour", "usage_day"] {
        let parts = server.sql(&format!("SELECT max(many) <= 20000, sum(many) FROM parts_of_{table}"));
        assert_eq!(parts, "t|45000", "{table}");
    }
}
