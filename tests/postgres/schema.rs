//! The schema: how it comes about, and what it refuses.

use super::support::command::{self, Ran, TIDEGATE};
use super::support::postgres::Postgres;

fn migrate(server: &Postgres, database: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let output = command::command(folder.path())
        .arg("migrate")
        .env("TIDEGATE_POSTGRES__URL", server.url(database))
        .output();
    let output = output.unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn many_may_migrate_at_once_and_again() {
    let server = Postgres::start();
    let database = server.database();
    let all: Vec<Ran> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| migrate(&server, &database))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(all.iter().all(|ran| ran.code == 0), "{all:?}");
    assert!(migrate(&server, &database).out.contains("nothing to do"));
    let tables = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relkind IN ('r', 'p') \
                  AND relnamespace = 'public'::regnamespace AND NOT relispartition";
    let tables = server.sql(&database, tables);
    for table in [
        "rules",
        "rule_revisions",
        "tiers",
        "users",
        "api_keys",
        "region_quotas",
        "audit_log",
        "usage_minute",
    ] {
        assert!(tables.split(' ').any(|known| known == table), "{table} is not among {tables}");
    }
}

#[test]
fn a_newer_schema_is_refused_with_a_sentence() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    server.sql(
        &database,
        "INSERT INTO _sqlx_migrations SELECT 9000, 'future', now(), true, '\\x00', 0; UPDATE schema_compatibility SET oldest_version = 9000",
    );
    let ran = migrate(&server, &database);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("newer tidegate") && ran.err.contains("9000"), "{ran:?}");
}

#[test]
fn no_server_and_no_configuration_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let ran = command::run(folder.path(), &["migrate"]);
    assert!(ran.code == 1 && ran.err.contains("TIDEGATE_POSTGRES__URL"), "{ran:?}");
    let mut server = Postgres::start();
    server.stop();
    let output = command::command(folder.path())
        .arg("migrate")
        .env("TIDEGATE_POSTGRES__URL", server.url("nothing"))
        .env("TIDEGATE_POSTGRES__TIMEOUT", "300ms")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("does not answer"), "{text}");
}

#[test]
fn constraints_do_the_refusing() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let refuses = |sql: &str, why: &str| {
        let error = server.try_sql(&database, sql).unwrap_err();
        assert!(error.contains(why), "{sql}: {error}");
    };
    let rule = |fields: &str| format!("INSERT INTO rules (document) VALUES ('{{{fields}}}')");
    refuses(&rule(r#""limit": 1"#), "name");
    refuses(&rule(r#""name": "r", "limit": -1"#), "rules_limit_is_from_0_to_4294967295");
    refuses(&rule(r#""name": "r", "limit": 1.5"#), "rules_limit_is_from_0_to_4294967295");
    refuses(&rule(r#""name": "r", "limit": "many""#), "rules_limit_is_from_0_to_4294967295");
    refuses(&rule(r#""name": "r", "window": "1 minute""#), "rules_window_is_a_duration");
    refuses(&rule(r#""name": "r", "algorithm": "magic""#), "rules_algorithm_is_known");
    refuses(&rule(r#""name": "r", "hold": "half a minute""#), "rules_hold_is_a_duration");
    refuses(&rule(r#""name": "r", "action": 7"#), "rules_action_is_known");
    refuses(&rule(r#""name": "r", "status": 200"#), "rules_status_is_from_400_to_599");
    refuses("INSERT INTO rules (document) VALUES ('[]')", "name");
    server.sql(&database, &rule(r#""name": "r", "limit": 1, "window": "1s""#));
    refuses(&rule(r#""name": "r""#), "rules_pkey");
    server.sql(&database, &rule(r#""name": "h", "algorithm": "concurrency", "limit": 1, "hold": "30s""#));
    refuses("INSERT INTO region_quotas VALUES ('nothing', 'eu', 1, 0)", "region_quotas_rule_fkey");
    refuses("INSERT INTO region_quotas VALUES ('r', 'eu', 0, 0)", "above 0");
    refuses("INSERT INTO region_quotas VALUES ('r', 'eu', 1, 60), ('r', 'us', 1, 60)", "120 percent");
    refuses("INSERT INTO users (id, tier) VALUES ('u', 'nothing')", "users_tier_fkey");
    refuses("INSERT INTO users (id, blocked_reason) VALUES ('u', 'abuse')", "users_block_is_whole");
    refuses("INSERT INTO api_keys (id, hash) VALUES ('k', '\\x00')", "api_keys_hash_check");
}

#[test]
fn every_change_by_sql_is_one_revision_with_its_rules_before_and_after() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let sql = |text: &str| server.sql(&database, text);
    sql(
        r#"INSERT INTO rules (document) VALUES ('{"name": "a", "limit": 5}'), ('{"name": "b", "limit": 6}')"#,
    );
    sql(
        "BEGIN; UPDATE rules SET document = document || '{\"limit\": 7}' WHERE name = 'a'; DELETE FROM rules WHERE name = 'b'; \
         INSERT INTO region_quotas VALUES ('a', 'eu', 1, 10); COMMIT",
    );
    // What changes nothing is no revision.
    sql("UPDATE rules SET document = document || '{\"limit\": 7}' WHERE name = 'a'");
    assert_eq!(sql("SELECT revision FROM rules_head"), "2");
    assert_eq!(
        sql("SELECT count(*) FROM rule_revisions WHERE actor = 'role postgres' AND source IS NOT NULL"),
        "2"
    );
    let changes = "SELECT kind, rule, region, before ->> 'limit', after ->> 'limit' FROM rule_changes WHERE revision = 2 ORDER BY kind, rule";
    assert_eq!(sql(changes), "quota|a|eu||\nrule|a||5|7\nrule|b||6|");
    sql("TRUNCATE rules, region_quotas");
    assert_eq!(sql("SELECT count(*) FROM rule_changes WHERE revision = 3 AND after IS NULL"), "2");
}
