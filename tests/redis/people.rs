//! Redis, PostgreSQL and daemons together: who is asking is kept in memory, then in the region's Redis, then
//! in the database; a change is known everywhere at once; and what was decided says whose key it was.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::redis_servers::Server;
use super::support::command::TIDEGATE;
use super::support::daemon::Daemon;
use super::support::eventually;
use super::support::postgres::Postgres;

const RULES: &str = r#"
[[rules]]
name = "free"
match = { tier = "free" }
per = ["user"]
limit = 5
window = "24h"
[[rules]]
name = "pro"
match = { tier = "pro" }
per = ["user"]
limit = 100
window = "24h"
[[rules]]
name = "closed"
match = { path = "/closed" }
action = "block"
group = "closed"
"#;

struct Region {
    postgres: Postgres,
    database: String,
    redis: Server,
    spool: TempDir,
}

impl Region {
    fn start() -> Self {
        let postgres = Postgres::start();
        let database = postgres.migrated(TIDEGATE);
        Self { postgres, database, redis: Server::start(&[]), spool: TempDir::new().unwrap() }
    }

    fn daemon(&self, node: &str) -> Daemon {
        let (url, redis) = (self.postgres.url(&self.database), self.redis.url());
        let spool = self.spool.path().join(node);
        let config = format!(
            "region = \"eu\"\nnode = {node:?}\n[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\n\
             nodes = [{redis:?}]\ntimeout = \"500ms\"\n[postgres]\nurl = {url:?}\ntimeout = \"2s\"\n\
             [identity]\ndefault_tier = \"free\"\nlookup_timeout = \"500ms\"\n[audit]\nspool = {spool:?}\n"
        );
        Daemon::with(RULES, &config, &[])
    }

    fn sql(&self, sql: &str) -> String {
        self.postgres.sql(&self.database, sql)
    }
}

fn rule(daemon: &Daemon, attributes: &[(&str, &str)]) -> String {
    daemon.check_cost(attributes, 0)["rule"].as_str().unwrap_or_default().to_owned()
}

fn becomes(daemon: &Daemon, user: &str, wanted: &str) {
    let what = format!("{user} is {wanted}");
    eventually(&what, || (rule(daemon, &[("user", user)]) == wanted).then_some(()));
}

#[test]
fn a_daemon_learns_of_people_from_redis_where_the_database_is_away() {
    let mut region = Region::start();
    region.sql("INSERT INTO tiers (name) VALUES ('free'), ('pro'); INSERT INTO users (id, tier) VALUES ('known', 'pro'), ('other', 'pro')");
    let first = region.daemon("eu-1");
    becomes(&first, "known", "pro");
    // Time for what was found to reach Redis.
    eventually("it lies in Redis", || {
        let keys = region.redis.command(&["DBSIZE"])?;
        keys.trim_start_matches(':').trim().parse::<u64>().ok().filter(|keys| *keys > 0)
    });
    std::thread::sleep(Duration::from_millis(200));
    region.postgres.kill();
    // Its memory is empty, and the database is away: only Redis can have told it.
    let second = region.daemon("eu-2");
    becomes(&second, "known", "pro");
    assert_eq!(rule(&second, &[("user", "other")]), "free", "nobody could say");
    // Without Redis, too, what is held in memory stays in use.
    region.redis.kill();
    for _ in 0..20 {
        assert_eq!(rule(&second, &[("user", "known")]), "pro");
    }
    region.postgres.run();
    becomes(&second, "other", "pro");
}

#[test]
fn a_change_reaches_every_daemon_at_once_through_every_cache() {
    let region = Region::start();
    region.sql("INSERT INTO tiers (name) VALUES ('free'), ('pro'); INSERT INTO users (id, tier) VALUES ('u', 'free')");
    let daemons = [region.daemon("eu-1"), region.daemon("eu-2")];
    daemons.iter().for_each(|daemon| becomes(daemon, "u", "free"));
    let mut times = Vec::new();
    for round in 0..12 {
        let tier = if round % 2 == 0 { "pro" } else { "free" };
        region.sql(&format!("UPDATE users SET tier = '{tier}' WHERE id = 'u'"));
        let began = Instant::now();
        while !daemons.iter().all(|daemon| rule(daemon, &[("user", "u")]) == tier) {
            assert!(began.elapsed() < Duration::from_secs(10), "{tier} is not known everywhere");
        }
        times.push(began.elapsed());
        // Nobody brings the old one back from a cache.
        for daemon in &daemons {
            assert_eq!(rule(daemon, &[("user", "u")]), tier);
        }
    }
    times.sort();
    eprintln!("from commit to effect on both: median {:?}, longest {:?}", times[6], times[11]);
    // Told, not found out when some cache forgets.
    assert!(times[6] < Duration::from_secs(2), "{times:?}");
}

#[test]
fn what_is_remembered_of_a_key_is_its_name_and_its_owner() {
    let region = Region::start();
    let daemon = region.daemon("eu-1");
    let made = |arguments: &[&str]| {
        let ran = daemon.run(arguments);
        assert_eq!(ran.code, 0, "{}", ran.both());
        ran.out
    };
    made(&["users", "set", "acme"]);
    let made: Value = serde_json::from_str(&made(&["keys", "create", "--user", "acme", "--json"])).unwrap();
    let (secret, id) = (made["secret"].as_str().unwrap(), made["key"]["id"].as_str().unwrap());
    eventually("the key is known", || {
        let decision = daemon.check(&[("api_key", secret), ("path", "/closed")]);
        assert_eq!(decision["allowed"], json!(false));
        let owned = format!("SELECT count(*) FROM audit_log WHERE user_id = 'acme' AND key_id = '{id}'");
        (region.sql(&owned) != "0").then_some(())
    });
    assert_eq!(daemon.run(&["keys", "revoke", id]).code, 0);
    eventually("its refusals say whose it was", || {
        daemon.check(&[("api_key", secret)]);
        let refused = format!(
            "SELECT count(*) FROM audit_log WHERE user_id = 'acme' AND key_id = '{id}' AND rule = 'key_revoked'"
        );
        (region.sql(&refused) != "0").then_some(())
    });
    let page: Value = daemon.get(&format!("/v1/audit?key={id}&limit=1")).json();
    assert_eq!(page["decisions"][0]["user"], json!("acme"), "{page}");
    let whole =
        region.sql(&format!("SELECT count(*) FROM audit_log WHERE audit_log::text LIKE '%{secret}%'"));
    assert_eq!(whole, "0", "the secret itself is remembered");
    // A user whom the request names goes before the key's owner.
    daemon.check(&[("user", "named"), ("api_key", secret)]);
    eventually("the user named", || {
        (region.sql("SELECT count(*) FROM audit_log WHERE user_id = 'named'") != "0").then_some(())
    });
}
