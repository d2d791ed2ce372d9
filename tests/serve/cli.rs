//! The command line: what it prints and with which exit code it ends.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::command::run;
use super::support::daemon::Daemon;
use super::support::free_tcp;

const RULES: &str = r#"
[[rules]]
name = "per-user"
per = ["user"]
algorithm = "fixed_window"
limit = 2
window = "24h"
message = "Two a day."
"#;

const BAD_RULES: &str = "[[rules]]\nname = \"a\"\nlimit = 0.5\nwindow = \"1m\"\nalgorithm = \"fixed_window\"\ncolour = \"red\"\n\n\
                         [[rules]]\nname = \"a\"\nlimit = 1\nwindow = \"1m\"\nalgorithm = \"gcra\"\naction = \"explode\"\n";

#[test]
fn check_exits_with_0_when_allowed_and_4_when_denied() {
    let daemon = Daemon::with_rules(RULES);
    for code in [0, 0, 4, 4] {
        let ran = daemon.run(&["check", "user=u_42", "path=/search"]);
        assert_eq!(ran.code, code, "{ran:?}");
    }
    let denied = daemon.run(&["check", "user=u_42"]);
    assert!(denied.both().contains("per-user") && denied.both().contains("Two a day."), "{denied:?}");
    assert_eq!(daemon.run(&["check", "user=u_43", "--cost", "3"]).code, 4);
    assert_eq!(daemon.run(&["check", "user=u_43", "--cost", "0"]).code, 0);
    assert_eq!(daemon.run(&["check", "user=u_42", "--domain", "elsewhere"]).code, 0);
}

#[test]
fn json_is_exactly_what_the_api_returned() {
    let daemon = Daemon::with_rules(RULES);
    let ran = daemon.run(&["check", "user=u_42", "--json"]);
    let decision: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(true), &json!(1)));
    let ran = daemon.run(&["rules", "list", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&ran.out).unwrap(), daemon.get("/v1/rules").json());
}

#[test]
fn explain_shows_why_and_charges_nothing() {
    let daemon = Daemon::with_rules(RULES);
    for _ in 0..4 {
        let ran = daemon.run(&["explain", "user=u_42"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains("per-user"), "{ran:?}");
    }
    assert_eq!(daemon.check(&[("user", "u_42")])["remaining"], 1);
}

#[test]
fn rules_and_regions_are_shown_as_tables() {
    let daemon = Daemon::with_rules(RULES);
    let list = daemon.run(&["rules", "list"]);
    assert!(list.code == 0 && list.out.contains("per-user"), "{list:?}");
    let show = daemon.run(&["rules", "show", "per-user"]);
    assert!(show.code == 0 && show.out.contains("fixed_window"), "{show:?}");
    let missing = daemon.run(&["rules", "show", "nothing"]);
    assert_eq!(missing.code, 1, "{missing:?}");
    assert!(missing.err.contains("nothing"), "{missing:?}");
    assert_eq!(daemon.run(&["regions"]).code, 0);
}

#[test]
fn no_daemon_is_exit_3_and_names_the_address() {
    let folder = TempDir::new().unwrap();
    let nowhere = free_tcp();
    for arguments in [&["check", "user=u"][..], &["explain", "user=u"], &["rules", "list"], &["regions"]] {
        let mut all = arguments.to_vec();
        let server = format!("http://{nowhere}");
        all.extend(["--server", &server]);
        let ran = run(folder.path(), &all);
        assert_eq!(ran.code, 3, "{arguments:?}: {ran:?}");
        assert!(ran.err.contains(&nowhere.to_string()), "{ran:?}");
    }
}

#[test]
fn wrong_usage_is_exit_2() {
    let folder = TempDir::new().unwrap();
    for arguments in [
        &["frobnicate"][..],
        &["check", "user"],
        &["check", "user=u", "--cost", "much"],
        &["serve", "--nope"],
        &[],
    ] {
        let ran = run(folder.path(), arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert!(!ran.err.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_and_version_are_no_failures() {
    let folder = TempDir::new().unwrap();
    for arguments in [&["--help"][..], &["serve", "--help"], &["--version"]] {
        let ran = run(folder.path(), arguments);
        assert!(ran.code == 0 && ran.out.contains("tidegate"), "{ran:?}");
    }
}

#[test]
fn validate_names_every_problem_with_its_place() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("good.toml"), RULES).unwrap();
    std::fs::write(folder.path().join("bad.toml"), BAD_RULES).unwrap();
    assert_eq!(run(folder.path(), &["rules", "validate", "good.toml"]).code, 0);
    let ran = run(folder.path(), &["rules", "validate", "bad.toml"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    for place in ["bad.toml:3:", "bad.toml:6:", "bad.toml:9:", "bad.toml:13:"] {
        assert!(ran.both().contains(place), "{place} is not in:\n{}", ran.both());
    }
    assert_ne!(run(folder.path(), &["rules", "validate", "missing.toml"]).code, 0);
}

#[test]
fn rules_of_the_envoy_rate_limit_service_are_printed_as_ours() {
    let folder = TempDir::new().unwrap();
    let file = "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: { unit: minute, requests_per_unit: 10 }\n";
    std::fs::write(folder.path().join("config.yaml"), file).unwrap();
    let import = ["rules", "import", "--from", "envoy", "config.yaml"];
    let ran = run(folder.path(), &import);
    assert!(ran.code == 0 && ran.err.is_empty(), "{ran:?}");
    std::fs::write(folder.path().join("rules.toml"), &ran.out).unwrap();
    let valid = run(folder.path(), &["rules", "validate", "rules.toml"]);
    assert!(valid.code == 0 && valid.out.contains("rules: 1"), "{valid:?}");
    // What is left out is told, and what is not is printed all the same.
    let more = format!("{file}  - key: other\n    rate_limit: {{ unit: eon, requests_per_unit: 1 }}\n");
    std::fs::write(folder.path().join("config.yaml"), more).unwrap();
    let ran = run(folder.path(), &import);
    assert!(ran.code == 1 && ran.err.contains("config.yaml: descriptors[1].rate_limit.unit"), "{ran:?}");
    assert!(ran.out.contains("\"shop.tenant\""), "{ran:?}");
    assert_eq!(run(folder.path(), &["rules", "import", "--from", "envoy", "missing.yaml"]).code, 2);
}

#[test]
fn rules_of_kong_and_limitador_are_printed_as_ours() {
    let folder = TempDir::new().unwrap();
    let kong = "_format_version: '3.0'\nplugins:\n- { name: rate-limiting, config: { minute: 5 } }\n";
    let limitador =
        "- { namespace: n, max_value: 1, seconds: 60, conditions: [\"a == 'b'\"], variables: [c] }\n";
    for (from, text, rules) in [("kong", kong, "rules: 2"), ("limitador", limitador, "rules: 1")] {
        std::fs::write(folder.path().join("file.yaml"), text).unwrap();
        let ran = run(folder.path(), &["rules", "import", "--from", from, "file.yaml"]);
        assert!(ran.code == 0 && ran.err.is_empty() && ran.out.starts_with("# file.yaml: "), "{ran:?}");
        std::fs::write(folder.path().join("rules.toml"), &ran.out).unwrap();
        let valid = run(folder.path(), &["rules", "validate", "rules.toml"]);
        assert!(valid.code == 0 && valid.out.contains(rules), "{valid:?}");
        std::fs::write(folder.path().join("file.yaml"), "other: file").unwrap();
        let ran = run(folder.path(), &["rules", "import", "--from", from, "file.yaml"]);
        assert!(ran.code == 2 && ran.err.contains("file.yaml: is no "), "{ran:?}");
    }
}

#[test]
fn config_check_prints_what_would_run_or_every_problem() {
    let folder = TempDir::new().unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("tidegate.toml"), text).unwrap();
    let check = || run(folder.path(), &["config", "check", "--config", "tidegate.toml"]);
    write("region = \"eu-west\"\n[listen]\nhttp = \"127.0.0.1:18080\"\n");
    let good = check();
    assert!(
        good.code == 0 && good.out.contains("eu-west") && good.out.contains("127.0.0.1:18080"),
        "{good:?}"
    );
    write(
        "region = \"eu-west\"\n[listen]\nhttp = \"nowhere at all\"\nhtpp = \"x\"\n[store]\nmax_keys = -3\nbackend = \"disk\"\n",
    );
    let bad = check();
    assert_eq!(bad.code, 2, "{bad:?}");
    for place in ["tidegate.toml:3:", "tidegate.toml:4:", "tidegate.toml:6:", "tidegate.toml:7:"] {
        assert!(bad.both().contains(place), "{place} is not in:\n{}", bad.both());
    }
}

#[test]
fn config_check_says_that_it_did_not_ask_postgresql() {
    let folder = TempDir::new().unwrap();
    let config =
        "[rules]\nsource = \"postgres\"\n[postgres]\nurl = \"postgres://tidegate@127.0.0.1:1/tidegate\"\n";
    std::fs::write(folder.path().join("tidegate.toml"), config).unwrap();
    let ran = run(folder.path(), &["config", "check", "--config", "tidegate.toml"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.ends_with("# Rules are in PostgreSQL, which was not asked\n"), "{}", ran.out);
    assert!(!ran.out.contains("Rules that would be in force"), "{}", ran.out);
}

#[test]
fn without_rules_a_daemon_with_a_file_is_sent_to_its_file() {
    let daemon = Daemon::with_rules("");
    let listed = daemon.run(&["rules", "list"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    assert!(listed.out.contains("No rules are in force: everything passes."), "{}", listed.out);
    assert!(listed.out.contains("rules file") && !listed.out.contains("rules apply"), "{}", listed.out);
}

#[test]
fn a_refusal_names_its_field_where_the_sentence_does_not() {
    let daemon = Daemon::with_rules(RULES);
    let ran = daemon.run(&["users", "set", "ann", "--limit", "gone=1"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.starts_with("error: overrides.gone: there is no rule \"gone\""), "{}", ran.err);
    // One that the sentence names is not named twice.
    let ran = daemon.run(&["users", "block", "ann", "--until", "2020-01-01T00:00:00Z"]);
    assert!(ran.code == 1 && ran.err.starts_with("error: until must lie ahead"), "{ran:?}");
}

#[test]
fn a_difference_is_an_exit_code_where_it_is_asked_for() {
    let daemon = Daemon::with_rules(RULES);
    let file = daemon.folder().join("wanted.toml");
    let diff = |limit: &str, more: &[&str]| {
        std::fs::write(&file, RULES.replace("limit = 2", limit)).unwrap();
        let mut all = vec!["rules", "diff", "wanted.toml"];
        all.extend(more);
        daemon.run(&all).code
    };
    assert_eq!(diff("limit = 2", &["--exit-code"]), 0);
    assert_eq!(diff("limit = 3", &["--exit-code"]), 5);
    assert_eq!(diff("limit = 3", &["--exit-code", "--json"]), 5);
    assert_eq!(diff("limit = 3", &[]), 0);
    assert_eq!(diff("limit = \"many\"", &["--exit-code"]), 2);
}

#[test]
fn use_of_exact_limits_is_headed_as_this_regions() {
    let rules = |modes: &[&str]| -> String {
        let rule = |mode: &&str| {
            format!(
                "[[rules]]\nname = \"{mode}\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 60\nwindow = \"24h\"\n\
                 [rules.global]\nmode = \"{mode}\"\n"
            )
        };
        modes.iter().map(rule).collect()
    };
    let config = "region = \"eu\"\n[peers]\nregions = [\"eu\", \"us\"]\n";
    for (modes, heading) in [
        (&["split"][..], "used here (others may hold)"),
        (&["split", "escrow"], "used here (others may hold)"),
        (&["gossip"], "used worldwide (may be off by)"),
        (&["split", "gossip"], "used worldwide (may be off by), exact: here (others may hold)"),
    ] {
        let daemon = Daemon::with(&rules(modes), config, &[]);
        let ran = daemon.run(&["check", "user=ann"]);
        let headings = ran.out.lines().find(|line| line.contains("resets in")).unwrap_or_default();
        let last = headings.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).last();
        assert_eq!(last, Some(heading), "{modes:?}:\n{}", ran.out);
    }
}

#[test]
fn serve_refuses_a_wrong_configuration_before_it_listens() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("rules.toml"), BAD_RULES).unwrap();
    let ran = run(
        folder.path(),
        &["serve", "--rules", "rules.toml", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
    );
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.both().contains("rules.toml:3:"), "{ran:?}");
}

#[test]
fn an_address_in_use_is_exit_1_and_named() {
    let folder = TempDir::new().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = run(folder.path(), &["serve", "--http", &address, "--grpc", "127.0.0.1:0"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.both().contains(&address) && ran.both().contains("one that still drains"), "{ran:?}");
}

#[test]
fn environment_overrides_the_file_and_flags_override_both() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("tidegate.toml"), "region = \"from-file\"\n").unwrap();
    let mut command = super::support::command::command(folder.path());
    command.args(["config", "check", "--config", "tidegate.toml"]).env("TIDEGATE_REGION", "from-environment");
    let output = command.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("from-environment"), "{output:?}");
    let daemon = Daemon::with("", "region = \"from-file\"\n", &["--region", "from-flag"]);
    assert_eq!(daemon.check(&[("user", "u")])["region"], "from-flag");
}

#[test]
fn certificates_are_made_and_their_keys_kept_private() {
    let folder = TempDir::new().unwrap();
    assert_eq!(run(folder.path(), &["cert", "ca", "--out", "ca"]).code, 0);
    let issue = ["cert", "issue", "--ca", "ca", "--region", "eu-west", "--node", "n1", "--out", "n1"];
    assert_eq!(run(folder.path(), &issue).code, 0);
    for file in ["ca/ca.pem", "ca/ca.key", "n1/node.pem", "n1/node.key"] {
        let path = folder.path().join(file);
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("-----BEGIN "), "{file}");
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert!(!file.ends_with(".key") || mode & 0o077 == 0, "{file} may be read by others: {mode:o}");
    }
    let shown = run(folder.path(), &["cert", "show", "n1/node.pem", "ca/ca.pem"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    let lines: Vec<_> = shown.out.lines().collect();
    assert_eq!(lines.len(), 10, "{}", shown.out);
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{}", shown.out);
    assert_eq!(lines[0], "n1/node.pem: node n1 of region eu-west");
    assert!(lines[1].starts_with("  signed by  CN=Tidegate cluster authority "), "{}", lines[1]);
    assert!(lines[2].ends_with(" 365 days left") || lines[2].ends_with(" 364 days left"), "{}", lines[2]);
    assert!(lines[4].starts_with("  SHA-256    "), "{}", lines[4]);
    assert!(lines[5].starts_with("ca/ca.pem: authority CN="), "{}", lines[5]);
    for (file, why) in [("n1/node.key", "certificate"), ("nowhere.pem", "nowhere.pem")] {
        let refused = run(folder.path(), &["cert", "show", file]);
        assert!(refused.code == 1 && refused.out.is_empty() && refused.err.contains(why), "{refused:?}");
    }
    assert_ne!(
        run(
            folder.path(),
            &["cert", "issue", "--ca", "nowhere", "--region", "r", "--node", "n", "--out", "x"]
        )
        .code,
        0
    );
}

#[test]
fn a_reservation_is_made_and_settled_by_hand() {
    let daemon = Daemon::with_rules(
        "[[rules]]\nname = \"tokens\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 50\nwindow = \"365d\"\n",
    );
    let reserve = ["reserve", "user=u_42", "--amount", "30", "--ttl", "60s"];
    let made = daemon.run(&reserve);
    assert_eq!(made.code, 0, "{}", made.err);
    let reservation = made.out.lines().last().unwrap().to_owned();
    assert!(made.out.contains("Reserved 30 for 1 min") && made.out.contains("20 left of 50"), "{}", made.out);
    assert_eq!(daemon.run(&reserve).code, 4, "no more than 20 are left");

    let done = daemon.run(&["commit", &reservation, "--actual", "5"]);
    assert!(done.code == 0 && done.out.contains("Charged 5"), "{} {}", done.out, done.err);
    let again = daemon.run(&["commit", &reservation, "--actual", "5"]);
    assert!(again.code == 0 && again.out.contains("settled before"), "{} {}", again.out, again.err);

    let made = daemon.run(&[&reserve[..], &["--id", "mine", "--json"]].concat());
    let made: Value = serde_json::from_str(&made.out).unwrap();
    let cancelled = daemon.run(&["cancel", made["reservation"].as_str().unwrap()]);
    assert!(cancelled.code == 0 && cancelled.out.contains("nothing was charged"), "{}", cancelled.out);
    assert_eq!(daemon.check_cost(&[("user", "u_42")], 0)["remaining"], 45);

    for wrong in [&["reserve", "user=u_42", "--amount", "0"][..], &["commit", "x"]] {
        assert_eq!(daemon.run(wrong).code, 2, "{wrong:?}");
    }
    assert_eq!(daemon.run(&["cancel", "AAAA"]).code, 1);
}
