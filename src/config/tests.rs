//! Configurations as people write them, right and wrong, and who wins.

use proptest::prelude::*;

use super::*;

fn read(text: &str, env: &[(&str, &str)], flags: &Flags) -> Result<Config, Vec<String>> {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::from_text("tidegate.toml", text, std::path::Path::new("/etc/tidegate"), env, flags)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn of_file(text: &str) -> Result<Config, Vec<String>> {
    read(text, &[], &Flags::default())
}

fn of_env(env: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    read("", env, &Flags::default())
}

#[test]
fn nothing_at_all_is_a_configuration() {
    let config = Config::load(None, std::iter::empty(), &Flags::default()).unwrap();
    assert_eq!(config.region, "local");
    assert!(!config.node.is_empty());
    assert_eq!(config.listen.http.to_string(), "127.0.0.1:8080");
    assert_eq!(config.listen.grpc.to_string(), "127.0.0.1:8081");
    assert_eq!(config.listen.peer.to_string(), "127.0.0.1:7946");
    assert_eq!((config.rules.file, config.rules.file_required), (PathBuf::from("rules.toml"), false));
    assert_eq!((config.store.backend, config.store.max_keys), (Backend::Memory, 10_000_000));
    assert_eq!((config.peers.tls, config.peers.interval), (None, Span::from_millis(50)));
    assert_eq!((config.identity.trusted_proxies, config.identity.ipv6_prefix), (1, 64));
    assert!(config.requests.normalize);
}

/// The page of the manual, without what this version refuses.
const MANUAL: &str = r#"
region = "eu-west"
node = "eu-west-1"

[listen]
http = "0.0.0.0:8080"
grpc = "unix:/run/tidegate/grpc.sock"
peer = "0.0.0.0:7946"

[rules]
source = "file"
file = "rules.toml"
shadow = true

[store]
backend = "memory"
max_keys = 20_000_000
[store.redis]
topology = "cluster"
nodes = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]
timeout = "20ms"
on_failure = "local"
[store.lease]
max = 1000
ttl = "200ms"

[peers]
join = ["10.1.0.1:7946", "eu.example.com:7946", "[2001:db8::1]:7946"]
advertise = "203.0.113.7:7946"
interval = "20ms"
regions = ["eu-west", "us-east", "ap-south"]
[peers.tls]
ca = "ca.pem"
cert = "/run/secrets/node.pem"
key = "node.key"
revoked = "revoked.pem"

[requests]
normalize = false

[identity]
trusted_proxies = 2
ipv6_prefix = 56
"#;

#[test]
fn the_page_of_the_manual_is_read() {
    let config = of_file(MANUAL).unwrap();
    assert_eq!((config.region.as_str(), config.node.as_str()), ("eu-west", "eu-west-1"));
    assert_eq!(config.listen.grpc, Listener::Unix(PathBuf::from("/run/tidegate/grpc.sock")));
    assert_eq!(config.rules.file, PathBuf::from("/etc/tidegate/rules.toml"));
    assert!(config.rules.shadow && config.rules.file_required);
    assert_eq!(config.store.max_keys, 20_000_000);
    assert_eq!(config.peers.join.len(), 3);
    let tls = config.peers.tls.unwrap();
    assert_eq!(
        (tls.ca, tls.cert),
        (PathBuf::from("/etc/tidegate/ca.pem"), PathBuf::from("/run/secrets/node.pem"))
    );
    assert_eq!(tls.revoked, Some(PathBuf::from("/etc/tidegate/revoked.pem")));
    assert_eq!((config.identity.trusted_proxies, config.identity.ipv6_prefix), (2, 56));
    assert!(!config.requests.normalize);
}

#[test]
fn what_would_run_reads_back_the_same() {
    let config = of_file(MANUAL).unwrap();
    assert_eq!(of_file(&config.to_toml()).unwrap(), config);
    let bare = of_file("node = \"n\"").unwrap();
    let again = of_file(&bare.to_toml()).unwrap();
    assert_eq!(again.to_toml(), bare.to_toml());
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let text = "region = \"file\"\nnode = \"file\"\n[listen]\nhttp = \"127.0.0.1:1\"";
    let env = [("TIDEGATE_REGION", "env"), ("TIDEGATE_NODE", "env")];
    let flags = Flags { region: Some("flag".to_owned()), ..Flags::default() };
    let config = read(text, &env, &flags).unwrap();
    assert_eq!((config.region.as_str(), config.node.as_str()), ("flag", "env"));
    assert_eq!(config.listen.http.to_string(), "127.0.0.1:1");
}

#[test]
fn variables_reach_every_kind_of_value() {
    let config = of_env(&[
        ("TIDEGATE_STORE__MAX_KEYS", "5_000"),
        ("TIDEGATE_RULES__SHADOW", "true"),
        ("TIDEGATE_PEERS__INTERVAL", "1s"),
        ("TIDEGATE_PEERS__JOIN", "a:1, b:2"),
        ("TIDEGATE_PEERS__TLS__CA", "ca.pem"),
        ("TIDEGATE_PEERS__TLS__CERT", "cert.pem"),
        ("TIDEGATE_PEERS__TLS__KEY", "key.pem"),
        ("TIDEGATE_STORE__BACKEND", "memory"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    assert_eq!((config.store.max_keys, config.rules.shadow), (5_000, true));
    assert_eq!(config.peers.join, ["a:1", "b:2"]);
    assert_eq!(config.peers.tls.unwrap().ca, PathBuf::from("ca.pem"));
}

#[test]
fn flags_reach_the_keys_they_name() {
    let flags = Flags {
        node: Some("n".to_owned()),
        rules: Some("mine.toml".to_owned()),
        http: Some("unix:/h".to_owned()),
        grpc: Some("[::1]:9".to_owned()),
        peer: Some("127.0.0.1:0".to_owned()),
        ..Flags::default()
    };
    let config = read("", &[], &flags).unwrap();
    assert_eq!((config.rules.file, config.rules.file_required), (PathBuf::from("mine.toml"), true));
    assert_eq!(config.listen.http, Listener::Unix(PathBuf::from("/h")));
    assert_eq!((config.listen.grpc.to_string(), config.listen.peer.port()), ("[::1]:9".to_owned(), 0));
}

#[test]
fn variables_of_clients_and_of_kubernetes_are_no_configuration() {
    let env = [
        ("TIDEGATE_SERVER", "x"),
        ("TIDEGATE_TOKEN", "x"),
        ("TIDEGATE_TLS_CA", "x"),
        ("TIDEGATE_CONFIG", "x"),
        ("TIDEGATE_LOG", "x"),
        ("TIDEGATE_PORT", "tcp://10.0.0.1:8080"),
        ("TIDEGATE_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("TIDEGATE_SERVICE_HOST", "10.0.0.1"),
        ("TIDEGATE_SERVICE_PORT_HTTP", "8080"),
        ("TIDEGATE_EU_SERVICE_HOST", "10.0.0.1"),
    ];
    assert!(of_env(&env).is_ok());
}

/// Every `TIDEGATE_…` that the text of a script or a test names.
fn variables(text: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_ascii_uppercase() || letter == '_';
    let names = text.split("TIDEGATE_").skip(1).map(|rest| rest.split(|c| !is_part(c)).next().unwrap());
    names.filter(|name| !name.is_empty()).map(|name| format!("TIDEGATE_{name}")).collect()
}

#[test]
fn variables_of_the_scripts_beside_the_daemon_do_not_stop_it() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let scripts = ["deploy/redis/local-cluster", "deploy/postgres/drill", "tests/run", "tests/schemathesis"];
    let texts = scripts.map(|script| std::fs::read_to_string(root.join(script)).unwrap());
    let named: Vec<String> = texts.iter().flat_map(|text| variables(text)).collect();
    assert!(named.iter().any(|name| name == "TIDEGATE_REDIS_DIR"), "{named:?}");
    // What is configuration is set to what it may be; the rest may be anything.
    let value = |name: &str| match name.rsplit_once("__") {
        Some((_, "URL")) => "postgres://u@h/d",
        Some((_, "DRAIN")) => "0s",
        Some((_, "LOCAL")) => "true",
        _ => "x",
    };
    let env: Vec<(&str, &str)> = named.iter().map(|name| (name.as_str(), value(name))).collect();
    assert_eq!(of_env(&env).map(drop), Ok(()));
}

#[test]
fn every_problem_is_told_at_once_with_its_place() {
    let text = r#"
region = "eu west"
colour = "blue"
[listen]
http = "localhost"
peer = "unix:/p"
[store]
max_keyz = 5
max_keys = 10
[rules]
shadow = "no"
[peers]
interval = "1m"
"#;
    let env = [("TIDEGATE_STOER__BACKEND", "redis"), ("TIDEGATE_IDENTITY__IPV6_PREFIX", "wide")];
    let flags = Flags { grpc: Some("nowhere".to_owned()), ..Flags::default() };
    let expected = [
        "tidegate.toml:2:10: region must consist of letters, digits, \".\", \"_\" and \"-\", not \"eu west\"",
        "tidegate.toml:3:1: unknown key \"colour\"",
        "tidegate.toml:5:8: http must be an address with a port such as \"127.0.0.1:8080\", or \"unix:/path\", not \"localhost\"",
        "tidegate.toml:6:8: peer must be an address with a port such as \"127.0.0.1:7946\", not \"unix:/p\"",
        "tidegate.toml:8:1: unknown key \"max_keyz\"; did you mean \"max_keys\"?",
        "tidegate.toml:9:12: max_keys must be from 1000 to 4000000000, not 10",
        "tidegate.toml:11:10: shadow must be true or false, not a text",
        "tidegate.toml:13:12: interval must be from 1ms to 10s, not 1m",
        "--grpc: grpc must be an address with a port such as \"127.0.0.1:8080\", or \"unix:/path\", not \"nowhere\"",
        "TIDEGATE_IDENTITY__IPV6_PREFIX: ipv6_prefix must be a whole number from 1 to 128, not \"wide\"",
        "TIDEGATE_STOER__BACKEND: unknown key \"stoer\"; did you mean \"store\"?",
    ];
    assert_eq!(read(text, &env, &flags).unwrap_err(), expected);
}

#[test]
fn a_text_that_is_no_toml_says_where() {
    let problems = of_file("region = \"a\"\nregion = \"b\"").unwrap_err();
    assert_eq!(problems, ["tidegate.toml:2:1: duplicate key"]);
}

#[test]
fn peers_without_certificates_are_refused_with_the_way_out() {
    let sentence = "peers need certificates: make them with `tidegate cert ca` and `tidegate cert issue`, then name them in [peers.tls]";
    assert_eq!(of_file("[peers]\njoin = [\"a:1\"]").unwrap_err(), [format!("tidegate.toml:2:1: {sentence}")]);
    let flags = Flags { join: vec!["a:1".to_owned()], ..Flags::default() };
    assert_eq!(read("", &[], &flags).unwrap_err(), [format!("--join: {sentence}")]);
    assert_eq!(
        of_file("[peers]\nadvertise = \"a:1\"").unwrap_err(),
        [format!("tidegate.toml:2:1: {sentence}")]
    );
    assert!(of_file("[peers]\njoin = []").is_ok());
    assert_eq!(
        of_file("[peers.tls]\nca = \"ca.pem\"\ncert = \"c\"").unwrap_err(),
        ["tidegate.toml:1:1: key is missing: [peers.tls] needs ca, cert and key; `tidegate cert` makes them",]
    );
}

#[test]
fn addresses_of_peers_have_a_host_and_a_port() {
    let tls = "[peers.tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n";
    let problems =
        of_file(&format!("[peers]\njoin = [\"10.0.0.1\", \"a:0\", \"a b:1\"]\nadvertise = \":7946\"\n{tls}"))
            .unwrap_err();
    assert_eq!(
        problems,
        [
            "tidegate.toml:2:8: join must list host:port, not \"10.0.0.1\"",
            "tidegate.toml:2:8: join must list host:port, not \"a:0\"",
            "tidegate.toml:2:8: join must list host:port, not \"a b:1\"",
            "tidegate.toml:3:13: advertise must be host:port, not \":7946\"",
        ]
    );
}

#[test]
fn the_own_region_is_one_of_the_regions() {
    let problems = of_file("region = \"eu\"\n[peers]\nregions = [\"us\", \"ap\"]").unwrap_err();
    assert_eq!(problems, ["tidegate.toml:3:11: regions must list this daemon's own region \"eu\" too"]);
}

#[test]
fn what_this_version_cannot_do_is_refused_not_ignored() {
    let text = "[rules]\nsource = \"postgres\"\n[store]\nbackend = \"redis\"\n[postgres]\nurl = \"u\"\n[audit]\n[admin]\n[identity]\njwt = {}";
    assert_eq!(
        of_file(text).unwrap_err(),
        [
            "tidegate.toml:4:11: backend \"redis\" needs servers: name at least one in store.redis.nodes",
            "tidegate.toml:6:7: url must be postgres://user:password@host:port/database",
            "tidegate.toml:10:7: keys is missing: identity.jwt needs a JWKS file, such as keys = \"jwks.json\"",
        ]
    );
    assert_eq!(
        of_env(&[("TIDEGATE_STORE__BACKEND", "redis")]).unwrap_err(),
        ["TIDEGATE_STORE__BACKEND: backend \"redis\" needs servers: name at least one in store.redis.nodes"]
    );
}

#[test]
fn tls_of_a_listener_needs_a_certificate_its_key_and_tcp() {
    let text = "[listen.http_tls]\ncert = \"c.pem\"\nkey = \"k.pem\"\nclients = \"ca.pem\"\n\
                names = [\"gateway.example\", \"10.0.0.7\"]";
    let tls = of_file(text).unwrap().listen.http_tls.unwrap();
    assert_eq!(tls.names, ["gateway.example", "10.0.0.7"]);
    assert_eq!(
        (tls.cert, tls.clients),
        (PathBuf::from("/etc/tidegate/c.pem"), Some(PathBuf::from("/etc/tidegate/ca.pem")))
    );
    let nobody = "[listen.http_tls]\ncert = \"c.pem\"\nkey = \"k.pem\"\nclients = \"ca.pem\"\nnames = []";
    assert_eq!(
        of_file(nobody).unwrap_err(),
        [
            "tidegate.toml:1:1: [listen.http_tls]: names must list at least one; leave it out where every certificate \
          may pass"
        ]
    );
    let text = "[listen]\ngrpc = \"unix:/g\"\n[listen.http_tls]\ncert = \"c.pem\"\n[listen.grpc_tls]\n\
                cert = \"c.pem\"\nkey = \"k.pem\"\nrevoked = \"crl.pem\"\nnames = [\"a.example\"]";
    assert_eq!(
        of_file(text).unwrap_err(),
        [
            "tidegate.toml:3:1: key is missing: [listen.http_tls] needs cert and key",
            "tidegate.toml:5:1: [listen.grpc_tls]: this listener is a Unix socket, which never leaves the machine: \
             TLS is for TCP",
            "tidegate.toml:5:1: [listen.grpc_tls]: revoked has no effect without clients, the authorities whose \
             certificates it is about",
            "tidegate.toml:5:1: [listen.grpc_tls]: names has no effect without clients, the authorities whose \
             certificates have these names",
        ]
    );
}

#[test]
fn who_is_asking_is_configured_in_one_place() {
    let plain = of_file("").unwrap().identity;
    assert_eq!((plain.source, plain.lookup_timeout, plain.jwt), (Source::File, Span::from_millis(5), None));
    let text = "[postgres]\nurl = \"postgres://h/d\"\n[identity]\ndefault_tier = \"free\"\nlookup_timeout = \"2ms\"\n\
                jwt = { keys = \"jwks.json\", issuers = [\"i\"], audiences = [\"a\", \"b\"], on_invalid = \"refuse\" }";
    let identity = of_file(text).unwrap().identity;
    assert_eq!((identity.source, identity.default_tier.as_deref()), (Source::Postgres, Some("free")));
    let jwt = identity.jwt.unwrap();
    assert_eq!(
        (jwt.user_claim.as_str(), jwt.leeway, jwt.on_invalid),
        ("sub", Span::from_secs(30), OnInvalid::Refuse)
    );
    assert!(jwt.keys.ends_with("jwks.json"));
    let text = "[identity]\nsource = \"postgres\"\nlookup_timeout = \"2s\"\n[identity.jwt]\nkeys = \"k\"\nkey = \"k\"";
    assert_eq!(
        of_file(text).unwrap_err(),
        [
            "tidegate.toml:2:10: identity.source = \"postgres\" needs [postgres] with url",
            "tidegate.toml:3:18: lookup_timeout must be from 0ms to 1s, not 2s",
            "tidegate.toml:6:1: unknown key \"key\"; did you mean \"keys\"?",
        ]
    );
}

#[test]
fn the_regions_redis_is_read_and_its_passwords_are_not_shown() {
    let text = "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"ring\"\nnodes = [\"redis://u:secret@a:1\", \"rediss://b:2\"]\ntimeout = \"5ms\"\non_failure = \"closed\"\n[store.lease]\nmax = 7";
    let store = of_file(text).unwrap().store;
    assert_eq!((store.backend, store.redis.topology, store.lease.max), (Backend::Redis, Topology::Ring, 7));
    assert_eq!(store.redis.on_failure, OnFailure::Closed);
    let shown = serde_json::to_string(&store).unwrap();
    assert!(shown.contains("a:1") && !shown.contains("secret"), "{shown}");
    let text = "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"http://secret\"]";
    assert_eq!(
        of_file(text).unwrap_err(),
        ["tidegate.toml:4:9: nodes must list redis://host:port, rediss://host:port or redis+unix:///path"]
    );
    let auth = "nodes = [\"redis://:one@a:1\"]\nsentinel_master_auth = \"u:secret\"";
    let with = |topology: &str| {
        of_file(&format!("[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"{topology}\"\n{auth}"))
    };
    let redis = with("sentinel").unwrap().store.redis;
    assert_eq!(redis.sentinel_master_auth.as_deref(), Some("u:secret"));
    assert!(!serde_json::to_string(&redis).unwrap().contains("secret"));
    assert_eq!(
        with("single").unwrap_err(),
        ["tidegate.toml:6:24: sentinel_master_auth has no effect without topology = \"sentinel\""]
    );
    let unix = |topology: &str| {
        let nodes = "nodes = [\"redis+unix:///run/redis.sock?user=u&pass=secret\"]";
        of_file(&format!("[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"{topology}\"\n{nodes}"))
    };
    let shown = serde_json::to_string(&unix("single").unwrap().store).unwrap();
    assert!(shown.contains("redis+unix:///run/redis.sock?…") && !shown.contains("secret"), "{shown}");
    assert_eq!(
        unix("cluster").unwrap_err(),
        [
            "tidegate.toml:5:9: a Unix socket is one server of this machine: topology must be \"single\" or \"ring\""
        ]
    );
}

#[test]
fn the_files_for_tls_with_redis_are_read_and_belong_together() {
    let text = |more: &str| {
        format!(
            "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"rediss://a:1\"]\n[store.redis.tls]\n{more}"
        )
    };
    let tls = of_file(&text("ca = \"ca.crt\"")).unwrap().store.redis.tls;
    assert!(tls.ca.is_some_and(|path| path.ends_with("ca.crt")) && tls.cert.is_none());
    let problem = |text: &str| of_file(text).unwrap_err().join("; ");
    assert!(problem(&text("cert = \"c\"")).contains("belong together"));
    assert!(problem(&text("ca = \"c\"").replace("rediss:", "redis:")).contains("begin with rediss://"));
}

#[test]
fn a_variable_cannot_go_through_a_value() {
    let problems = read("region = \"eu\"", &[("TIDEGATE_REGION__X", "1")], &Flags::default()).unwrap_err();
    assert_eq!(problems, ["TIDEGATE_REGION__X: there is no \"x\": what holds it is no section"]);
    assert_eq!(
        of_env(&[("TIDEGATE_STORE", "redis")]).unwrap_err(),
        ["TIDEGATE_STORE: expected a table, found a text"]
    );
}

#[test]
fn a_missing_file_is_a_problem() {
    let path = std::path::Path::new("/nonexistent/tidegate.toml");
    let problems = Config::load(Some(path), std::iter::empty(), &Flags::default()).unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "/nonexistent/tidegate.toml: cannot be read: No such file or directory (os error 2)"
    );
}

proptest! {
    #[test]
    fn random_texts_and_variables_never_panic(text in ".{0,200}", name in "[A-Z_]{0,20}", value in ".{0,40}") {
        let _ = read(&text, &[(&format!("TIDEGATE_{name}"), &value)], &Flags { join: vec![value.clone()], ..Flags::default() });
    }

    #[test]
    fn a_damaged_configuration_never_panics(at in 0..MANUAL.len(), len in 0..9_usize, put in "[\\[\\]{}=\"\\n0-9a-z.,-]{0,4}") {
        let mut bytes = MANUAL.as_bytes().to_vec();
        bytes.splice(at..(at + len).min(MANUAL.len()), put.bytes());
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = of_file(&text);
        }
    }
}

#[test]
fn rules_from_postgres_need_one() {
    let problems = of_file("[rules]\nsource = \"postgres\"").unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("needs [postgres]"), "{problems:?}");
    let text = "[rules]\nsource = \"postgres\"\n[postgres]\nurl = \"postgres://t:secret@db/tidegate\"\ntimeout = \"1s\"";
    let config = of_file(text).unwrap();
    let postgres = config.postgres.clone().unwrap();
    assert_eq!((postgres.timeout, postgres.connections), (Span::from_secs(1), 8));
    let shown = config.to_toml();
    assert!(shown.contains("postgres://…@db/tidegate") && !shown.contains("secret"), "{shown}");
}

#[test]
fn options_of_the_database_that_nobody_reads_are_refused() {
    let of = |url: &str| of_file(&format!("[postgres]\nurl = \"{url}\""));
    for good in
        ["", "?sslmode=verify-full&sslrootcert=ca.pem", "?options[geqo]=off", "?options%5Bgeqo%5D=off", "?"]
    {
        assert!(of(&format!("postgres://u:p%3F@db/t{good}")).is_ok(), "{good}");
    }
    let problems = of("postgres://u@db/t?sslmode=require&sslmod=x").unwrap_err();
    assert!(problems.len() == 1 && problems[0].contains("unknown option \"sslmod\""), "{problems:?}");
}

#[test]
fn what_is_remembered_needs_a_place() {
    let problems = of_file("[audit]\nretain = \"30d\"").unwrap_err();
    assert_eq!(problems, ["tidegate.toml:1:2: [audit] needs [postgres], which keeps what it records"]);
    assert_eq!(of_file("").unwrap().audit, None);
    let postgres = "[postgres]\nurl = \"postgres://db/t\"\n[audit]\n";
    let audit = |text: &str| of_file(&format!("{postgres}{text}"));
    let bare = audit("").unwrap().audit.unwrap();
    assert_eq!((bare.allowed_sample, bare.retain), (Sample(100), Span::from_secs(90 * 86_400)));
    assert_eq!(bare.retain_archive, Span::from_secs(2_557 * 86_400));
    let long = audit("retain = \"3650d\"").unwrap().audit.unwrap();
    assert_eq!(long.retain_archive, Span::from_secs(7_300 * 86_400), "a file stays a while");
    assert_eq!(bare.spool, PathBuf::from("/etc/tidegate/audit-spool"));
    let config =
        audit("allowed_sample = 0.3\nexact = [\"bill\"]\nkeys_max = 7\nspool = \"/s\"\narchive = \"s3://b/p\"\nretain = \"30d\"").unwrap();
    let given = config.audit.clone().unwrap();
    assert_eq!((given.allowed_sample, given.archive.as_deref()), (Sample(3), Some("s3://b/p")));
    assert_eq!((given.exact.as_slice(), given.keys_max), (&["bill".to_owned()][..], 7));
    assert_eq!(of_file(&config.to_toml()).unwrap().audit, Some(given));
    for (none, some) in [("0", 0), ("1", 1), ("0.0", 0), ("1.0", 1)] {
        let config = audit(&format!("allowed_sample = {none}")).unwrap();
        assert_eq!(config.audit.unwrap().allowed_sample, Sample(some));
    }
    for (text, word) in [
        ("allowed_sample = 2", "from 0 to 1"),
        ("allowed_sample = nan", "from 0 to 1"),
        ("denied_sample = -1", "from 0 to 1"),
        ("denied_rows_max = -1", "from 0 to 1000000"),
        ("retain_sums = \"1h\"", "from 1d"),
        ("archive = \"http://x\"", "s3://bucket/prefix"),
        ("archive = \"file:///\"", "file:///folder"),
        ("retain = \"1h\"", "from 1d"),
        ("retain = \"30d\"\nretain_archive = \"30d\"", "longer than retain"),
        ("keep = 1", "keep"),
    ] {
        let problems = audit(text).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(word), "{problems:?}");
    }
}
