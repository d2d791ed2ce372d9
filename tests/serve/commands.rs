//! Commands for operators: buckets, the doctor, capacity, and what shells and manuals are given.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::command::{command, of, run};
use super::support::daemon::Daemon;
use super::support::{free_tcp, http};

const RULES: &str = r#"
[[rules]]
name = "per-user"
per = ["user"]
match = { path = ["/a", "/b*"] }
algorithm = "fixed_window"
limit = 2
window = "24h"
headers = { "x-plan" = "free" }

[[rules]]
name = "spread"
algorithm = "token_bucket"
limit = 100
burst = 10
window = "1m"

[rules.global]
mode = "gossip"
"#;

#[test]
fn a_bucket_is_shown_and_reset() {
    let daemon = Daemon::with_rules(RULES);
    let ask = || daemon.run(&["check", "user=u_42", "path=/a"]).code;
    assert_eq!([ask(), ask(), ask()], [0, 0, 4]);
    let shown = daemon.run(&["buckets", "show", "per-user", "user=u_42"]);
    assert!(shown.code == 0 && shown.out.contains("per-user user=u_42"), "{shown:?}");
    let json = daemon.run(&["buckets", "show", "per-user", "user=u_42", "--json"]);
    let bucket: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((bucket["used"].as_u64(), bucket["remaining"].as_u64()), (Some(2), Some(0)));
    let reset = daemon.run(&["buckets", "reset", "per-user", "user=u_42"]);
    assert!(reset.code == 0 && reset.out.contains("per-user user=u_42 counts from zero"), "{reset:?}");
    assert_eq!(ask(), 0);
    let nobody = daemon.run(&["buckets", "reset", "per-user", "user=nobody"]);
    assert!(nobody.out.contains("held nothing"), "{nobody:?}");
    let lacking = daemon.run(&["buckets", "show", "per-user"]);
    assert!(lacking.code == 1 && lacking.err.contains("user"), "{lacking:?}");
    assert_eq!(daemon.run(&["buckets", "show", "per-user", "user"]).code, 2);
}

#[test]
fn the_rules_in_force_are_printed_as_a_file_that_says_the_same() {
    let daemon = Daemon::with_rules(RULES);
    let file = daemon.run(&["rules", "list", "--toml"]);
    assert_eq!(file.code, 0, "{file:?}");
    std::fs::write(daemon.folder().join("printed.toml"), &file.out).unwrap();
    let diff = daemon.run(&["rules", "diff", "printed.toml", "--prune", "--exit-code"]);
    assert_eq!(diff.code, 0, "{diff:?}\n{}", file.out);
}

/// Tiers, users and a block beside a rule, as an operator's file has them.
const WITH_PEOPLE: &str = r#"
[[tiers]]
name = "pro"
description = "paying"

[[users]]
id = "evil"
blocked = { reason = "abuse" }

[[users]]
id = "ann"
tier = "pro"
overrides = { "per-user" = { limit = 1 } }

[[rules]]
name = "per-user"
per = ["user"]
algorithm = "fixed_window"
limit = 2
window = "24h"
"#;

#[test]
fn a_file_with_fractional_prices_is_applied_and_comes_back_as_it_was() {
    let daemon = Daemon::with_rules("");
    let rule = |price: &str| {
        let lines = "name = \"tokens\"\nper = [\"user\"]\nlimit = 100\nwindow = \"24h\"\n";
        format!("[[rules]]\n{lines}price = {{ \"model=small\" = {price}, default = 1 }}\n")
    };
    std::fs::write(daemon.folder().join("f.toml"), rule("0.25")).unwrap();
    let diff = daemon.run(&["rules", "diff", "f.toml", "--exit-code"]);
    assert!(diff.code == 5, "{diff:?}");
    let applied = daemon.run(&["rules", "apply", "f.toml"]);
    assert!(applied.code == 0, "{applied:?}");
    let attributes = json!({ "user": "u", "model": "small" });
    let asked = daemon.post("/v1/check", &json!({ "attributes": attributes, "cost": 40 })).json();
    assert_eq!((&asked["allowed"], &asked["remaining"]), (&json!(true), &json!(90)), "{asked}");
    let printed = daemon.run(&["rules", "list", "--toml"]);
    std::fs::write(daemon.folder().join("printed.toml"), &printed.out).unwrap();
    for file in ["f.toml", "printed.toml"] {
        let same = daemon.run(&["rules", "diff", file, "--prune", "--exit-code"]);
        assert!(same.code == 0, "{file}: {same:?}\n{}", printed.out);
    }
    let fine = json!({ "per": ["user"], "limit": 5, "window": "1s", "price": { "default": 0.000_001 } });
    let body = fine.to_string();
    let json_type = [("content-type", "application/json")];
    let put = http::request(daemon.http, "PUT", "/v1/rules/fine", &json_type, body.as_bytes());
    assert!(put.status < 300, "{put:?}");
    assert_eq!(daemon.get("/v1/rules/fine").json()["rule"]["price"]["default"], "0.000001");
}

#[test]
fn a_file_with_users_is_applied_whole_to_a_daemons_file() {
    let daemon = Daemon::with_rules("");
    std::fs::write(daemon.folder().join("f.toml"), WITH_PEOPLE).unwrap();
    let valid = daemon.run(&["rules", "validate", "f.toml"]);
    assert!(valid.out.contains("rules: 1, tiers: 1, users: 2"), "{valid:?}");
    let diff = daemon.run(&["rules", "diff", "f.toml", "--exit-code"]);
    assert!(
        diff.code == 5 && diff.out.contains("+user evil") && diff.out.contains("4 to change"),
        "{diff:?}"
    );
    let applied = daemon.run(&["rules", "apply", "f.toml"]);
    assert!(applied.code == 0 && applied.out.contains("4 changed"), "{applied:?}");
    assert_eq!(daemon.check(&[("user", "evil")])["rule"], "user_blocked");
    assert_eq!(daemon.admitted(&[("user", "ann")], 3), 1);
    let same = daemon.run(&["rules", "diff", "f.toml", "--exit-code"]);
    assert_eq!(same.code, 0, "{same:?}");
    let printed = daemon.run(&["rules", "list", "--toml"]);
    std::fs::write(daemon.folder().join("printed.toml"), &printed.out).unwrap();
    let same = daemon.run(&["rules", "diff", "printed.toml", "--prune", "--exit-code"]);
    assert!(same.code == 0 && printed.out.contains("evil"), "{same:?}\n{}", printed.out);

    // A key is made by a daemon, not by a file: then nothing of the file is applied.
    let key = format!(
        "[[keys]]\nid = \"tgk_abcdefghijkl\"\nsalt = {:?}\nhash = {:?}\n{}",
        "0".repeat(32),
        "0".repeat(64),
        WITH_PEOPLE.replace("limit = 2", "limit = 9")
    );
    std::fs::write(daemon.folder().join("k.toml"), key).unwrap();
    let refused = daemon.run(&["rules", "apply", "k.toml"]);
    assert!(refused.code == 2 && refused.err.contains("tgk_abcdefghijkl"), "{refused:?}");
    assert!(daemon.run(&["rules", "show", "per-user"]).out.contains('2'));
}

#[test]
fn a_file_that_is_shared_by_regions_can_be_checked_without_a_daemon() {
    let folder = TempDir::new().unwrap();
    let file =
        WITH_PEOPLE.replace("window = \"24h\"\n", "window = \"24h\"\n[rules.global]\nmode = \"escrow\"\n");
    std::fs::write(folder.path().join("f.toml"), file).unwrap();
    let alone = run(folder.path(), &["rules", "validate", "f.toml"]);
    assert!(alone.code == 0 && alone.out.contains("1 rules are shared by regions"), "{alone:?}");
    let named = run(folder.path(), &["rules", "validate", "f.toml", "--regions", "eu,us"]);
    assert!(named.code == 0 && named.out.contains("all right"), "{named:?}");
    let config = "region = \"eu\"\n[peers]\nregions = [\"eu\", \"us\"]\n";
    std::fs::write(folder.path().join("tidegate.toml"), config).unwrap();
    let configured = run(folder.path(), &["rules", "validate", "f.toml", "--config", "tidegate.toml"]);
    assert!(configured.code == 0 && configured.out.contains("all right"), "{configured:?}");
}

#[test]
fn certificates_that_a_daemon_refuses_are_told_without_starting_one() {
    let daemon = Daemon::with_rules("");
    let folder = daemon.folder();
    let made = |words: &[&str]| assert_eq!(run(folder, words).code, 0, "{words:?}");
    made(&["cert", "ca", "--out", "ca"]);
    for node in ["a", "b"] {
        made(&["cert", "issue", "--ca", "ca", "--region", "eu", "--node", node, "--out", node]);
    }
    let config = |region: &str, cert: &str, key: &str| {
        let text = format!(
            "region = {region:?}\nnode = \"a\"\n[peers.tls]\nca = \"ca/ca.pem\"\ncert = {cert:?}\nkey = {key:?}\n"
        );
        std::fs::write(folder.join("peers.toml"), text).unwrap();
        let check = run(folder, &["config", "check", "--config", "peers.toml"]);
        let doctor = daemon.run(&["doctor", "--config", "peers.toml"]);
        (check, doctor)
    };
    let (check, doctor) = config("eu", "a/node.pem", "a/node.key");
    assert_eq!((check.code, doctor.code), (0, 0), "{check:?} {doctor:?}");
    for (region, cert, key, word) in [
        ("eu", "a/node.pem", "b/node.key", "does not belong to its certificate"),
        ("us", "a/node.pem", "a/node.key", "eu"),
        ("eu", "a/node.key", "a/node.pem", "certificate"),
    ] {
        let (check, doctor) = config(region, cert, key);
        assert!(check.code == 1 && check.err.contains(word), "{check:?}");
        assert!(doctor.code == 1 && doctor.out.contains("broken    certificate"), "{doctor:?}");
    }
    // Another machine may have them.
    let (check, _) = config("eu", "elsewhere/node.pem", "elsewhere/node.key");
    assert!(check.code == 0 && check.out.contains("# Not on this machine"), "{check:?}");
    for (cert, key) in [("a/node.pem", "b/node.key"), ("a/node.key", "a/node.pem")] {
        let text = format!("[listen.http_tls]\ncert = {cert:?}\nkey = {key:?}\n");
        std::fs::write(folder.join("listen.toml"), text).unwrap();
        let check = run(folder, &["config", "check", "--config", "listen.toml"]);
        assert!(check.code == 1 && check.err.contains("listen.http_tls"), "{check:?}");
    }
}

#[test]
fn secrets_keys_and_passwords_that_a_daemon_refuses_are_told_without_starting_one() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    let nobody = format!("http://{}", free_tcp());
    for (about, text, file, wrong) in [
        ("secret", "[events]\nurl = \"http://127.0.0.1:9/\"\nsecret = \"FILE\"\n", "hook.secret", "short"),
        ("keys", "[identity.jwt]\nkeys = \"FILE\"\n", "jwks.json", "nothing"),
        ("passwords", "[listen]\nresp = \"127.0.0.1:6390\"\nresp_passwords = \"FILE\"\n", "passwords", "\n"),
        ("tokens", "[admin]\ntokens = \"FILE\"\n", "tokens.toml", "tokens = 1"),
    ] {
        std::fs::write(folder.join("tidegate.toml"), text.replace("FILE", file)).unwrap();
        let check = || run(folder, &["config", "check", "--config", "tidegate.toml"]);
        let absent = check();
        assert!(absent.code == 0 && absent.out.contains("# Not on this machine"), "{about}: {absent:?}");
        assert!(
            absent.out.lines().any(|line| line.starts_with("# Not") && line.contains(file)),
            "{absent:?}"
        );
        let doctor = run(folder, &["doctor", "--config", "tidegate.toml", "--server", &nobody]);
        assert!(doctor.out.contains(&format!("broken    {about}")), "{about}: {doctor:?}");
        std::fs::write(folder.join(file), wrong).unwrap();
        let refused = check();
        assert!(refused.code == 1 && refused.err.contains(file), "{about}: {refused:?}");
    }
}

/// Standard output that takes nothing, as a file does on a disk that is full.
fn full_disk() -> std::fs::File {
    std::fs::File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn what_cannot_be_printed_is_a_failure_and_a_secret_that_is_lost_is_told() {
    let daemon = Daemon::with_rules(RULES);
    let server = format!("http://{}", daemon.http);
    let lost = |words: &[&str]| {
        let mut ran = command(daemon.folder());
        let output = ran.args(words).args(["--server", &server]).stdout(full_disk()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for words in [&["rules", "list", "--toml"][..], &["rules", "list", "--json"], &["regions"]] {
        let (code, err) = lost(words);
        assert!(code == Some(1) && err.contains("standard output"), "{words:?}: {err}");
    }
    let completions = command(daemon.folder()).args(["completions", "bash"]).stdout(full_disk()).output();
    assert_eq!(completions.unwrap().status.code(), Some(1));
    for words in [&["keys", "create", "--note", "one"][..], &["keys", "create", "--note", "two", "--json"]] {
        let (code, err) = lost(words);
        assert!(code == Some(1) && err.contains("was made") && err.contains("keys revoke tgk_"), "{err}");
    }
    let token = command(daemon.folder())
        .args(["admin", "token", "ann", "--role", "viewer", "--add-to", "tokens.toml"])
        .stdout(full_disk())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&token.stderr);
    assert!(token.status.code() == Some(1) && err.contains("tokens.toml"), "{err}");
    // A reader that has read enough is no failure.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut ran = command(daemon.folder());
    let output = ran.args(["rules", "list", "--server", &server]).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn certificates_are_made_once_however_often_it_is_asked() {
    let folder = TempDir::new().unwrap();
    let ca = ["cert", "ca", "--out", "ca", "--if-missing"];
    let issue = |node| {
        ["cert", "issue", "--ca", "ca", "--region", "eu", "--node", node, "--out", "n", "--if-missing"]
    };
    for _ in 0..2 {
        for words in [&ca[..], &issue("a")[..]] {
            let ran = run(folder.path(), words);
            assert_eq!(ran.code, 0, "{ran:?}");
        }
    }
    let before = std::fs::read(folder.path().join("n/node.pem")).unwrap();
    let other = run(folder.path(), &issue("b"));
    assert!(other.code == 1 && other.err.contains("not what is asked for"), "{other:?}");
    assert_eq!(std::fs::read(folder.path().join("n/node.pem")).unwrap(), before);
    std::fs::remove_file(folder.path().join("n/node.key")).unwrap();
    assert_eq!(run(folder.path(), &issue("a")).code, 1, "half of a pair is none");
}

#[test]
fn the_doctor_names_what_to_mend() {
    let daemon = Daemon::with_rules(RULES);
    let folder = daemon.folder();
    let well = daemon.run(&["doctor", "--config", "tidegate.toml"]);
    assert_eq!(well.code, 0, "{well:?}");
    assert!(well.out.contains("2 are valid") && well.out.contains("is serving"), "{well:?}");

    std::fs::write(folder.join("ill.toml"), "[listen.http_tls]\ncert = \"no.pem\"\nkey = \"no.key\"\n")
        .unwrap();
    let ill = daemon.run(&["doctor", "--config", "ill.toml", "--json"]);
    assert_eq!(ill.code, 1, "{ill:?}");
    let found: Value = serde_json::from_str(&ill.out).unwrap();
    assert_eq!(found["verdict"], "broken");
    let texts: Vec<&str> =
        found["findings"].as_array().unwrap().iter().filter_map(|finding| finding["text"].as_str()).collect();
    assert!(texts.iter().any(|text| text.contains("no.pem")), "{texts:?}");

    // A configuration without rules says nothing of a daemon that has some.
    std::fs::create_dir(folder.join("bare")).unwrap();
    std::fs::write(folder.join("bare/tidegate.toml"), "").unwrap();
    let bare = daemon.run(&["doctor", "--config", "bare/tidegate.toml"]);
    assert!(bare.out.contains("this configuration has none"), "{bare:?}");

    // It goes on with the rules before; the doctor sees that those of the file are not in force.
    daemon.set_rules("[[rules]]\nname = \"per-user\"\nlimit = \"many\"\n");
    super::support::eventually("the rules of the file are refused", || {
        daemon.get("/readyz").json()["rules"]["problem"].is_string().then_some(())
    });
    let refused = daemon.run(&["doctor", "--config", "bare/tidegate.toml"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.out.contains("broken    rules") && refused.out.contains("refuses"), "{refused:?}");

    let nobody = format!("http://{}", free_tcp());
    let away = run(folder, &["doctor", "--server", &nobody]);
    assert!(away.code == 1 && away.out.contains("no daemon answered"), "{away:?}");
}

#[test]
fn a_value_that_is_refused_is_named() {
    let daemon = Daemon::with_rules(RULES);
    let refused = daemon.run(&["check", "user=u_42", "path=/a", "--cost", "-3", "--report"]);
    assert!(refused.code == 1 && refused.err.contains("cost: is what was used"), "{refused:?}");
}

#[test]
fn capacity_says_what_a_load_needs_without_a_daemon() {
    let folder = TempDir::new().unwrap();
    let asked = ["capacity", "--rps", "100000", "--keys", "1e7", "--regions", "5", "--rules", "200"];
    let told = run(folder.path(), &asked);
    assert!(told.code == 0 && told.out.contains("Redis primaries"), "{told:?}");
    assert!(told.out.lines().all(|line| line.trim_end().chars().count() <= 80), "{}", told.out);
    let wrong = run(folder.path(), &["capacity", "--rps", "0"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
}

#[test]
fn shells_and_manuals_know_every_command() {
    let folder = TempDir::new().unwrap();
    let bash = run(folder.path(), &["completions", "bash"]);
    assert!(bash.code == 0 && bash.out.contains("rollback"), "{}", bash.err);
    std::fs::write(folder.path().join("tidegate.bash"), &bash.out).unwrap();
    let script = "source tidegate.bash && COMP_WORDS=(tidegate rules ro) COMP_CWORD=2 && _tidegate tidegate ro rules \
                  && echo \"${COMPREPLY[@]}\"";
    let completed = of("bash", folder.path()).args(["-c", script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "rollback", "{completed:?}");

    assert_eq!(run(folder.path(), &["man", "pages"]).code, 0);
    let page = std::fs::read_to_string(folder.path().join("pages/tidegate-rules-rollback.1")).unwrap();
    assert!(page.contains("revision") && page.contains(".SH EXAMPLES"), "{page}");
    let rollback = run(folder.path(), &["rules", "rollback", "--help"]);
    assert!(
        rollback.out.contains("Examples:\n") && rollback.out.contains("tidegate rules rollback 41"),
        "{rollback:?}"
    );
    let help = command(folder.path()).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // What follows of a sentence stands further to the right.
    let entries = listed.filter_map(|line| line.strip_prefix("  ").filter(|entry| !entry.starts_with(' ')));
    let names = entries.filter_map(|entry| entry.split_whitespace().next());
    let manual = std::fs::read_to_string("docs/reference/cli.md").unwrap();
    let mut commands = 0;
    for name in names.filter(|name| *name != "help" && name.starts_with(char::is_alphabetic)) {
        assert!(folder.path().join(format!("pages/tidegate-{name}.1")).exists(), "{name}");
        let documented = [format!("`tidegate {name}"), format!("`{name} "), format!("`{name}`")];
        assert!(documented.iter().any(|text| manual.contains(text)), "docs/reference/cli.md lacks {name}");
        commands += 1;
    }
    assert!(commands > 20, "{help}");
}
