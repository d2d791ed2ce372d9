//! Events from outside: a receiver of webhooks sees each at least once, signed, and in order for each bucket,
//! also where it was away and the daemon was killed meanwhile.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::command;
use super::support::daemon::Daemon;
use super::support::eventually;
use super::support::penalties::metric;
use super::support::receiver::{Posted, Receiver};
use super::support::web_authority::WebAuthority;

const SECRET: &str = "a secret of the test";
const RULES: &str = "[[rules]]\nname = \"polite\"\nmatch = { user = \"*\" }\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                     limit = 10\nwindow = \"365d\"\nwarn_at = 80\n[rules.penalty]\nthreshold = 2\nwindow = \"1h\"\n\
                     cool_down = \"1h\"\n[[rules]]\nname = \"wall\"\nmatch = { bad = \"yes\" }\naction = \"block\"\n";

fn config(receiver: &Receiver, folder: &TempDir, more: &str) -> String {
    let secret = folder.path().join("secret");
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    format!("[events]\nurl = \"http://{}/hook?token=t\"\nsecret = {secret:?}\n{more}", receiver.address)
}

/// Uses a bucket up beyond its warning, and then asks on until its client is shut out.
fn use_up(daemon: &Daemon, user: &str) {
    for _ in 0..12 {
        daemon.check(&[("user", user)]);
    }
}

/// What the receiver has heard of a user, without what came again.
fn heard(receiver: &Receiver, user: &str) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for event in receiver.events().iter().filter(|event| event["identity"]["user"] == user) {
        let kind = event["kind"].as_str().unwrap().to_owned();
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Events that wait in the spool.
fn on_disk(daemon: &Daemon) -> usize {
    let files = std::fs::read_dir(daemon.folder().join("events-spool")).into_iter().flatten().flatten();
    let whole =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "events"));
    let texts = whole.filter_map(|path| std::fs::read_to_string(path).ok());
    texts.map(|text| text.matches("\"kind\":").count()).sum()
}

fn is_signed(posted: &Posted) -> bool {
    let (id, at) = (posted.header("webhook-id"), posted.header("webhook-timestamp"));
    let text = format!("{id}.{at}.{}", posted.body);
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = posted.header("webhook-signature").strip_prefix("v1,").unwrap();
    let body: Value = serde_json::from_str(&posted.body).unwrap();
    body["id"] == id && hmac::verify(&key, text.as_bytes(), &STANDARD.decode(signature).unwrap()).is_ok()
}

#[test]
fn every_crossing_arrives_signed_and_in_order_also_when_the_daemon_is_killed() {
    let (receiver, folder) = (Receiver::start(503), TempDir::new().unwrap());
    let mut daemon = Daemon::with(RULES, &config(&receiver, &folder, ""), &[]);
    let users: Vec<String> = (0..20).map(|user| format!("u{user}")).collect();
    users.iter().for_each(|user| use_up(&daemon, user));
    assert_eq!(metric(&daemon, "warnings_total"), 20.0);
    eventually("the receiver was asked, and refused", || (receiver.refused() > 1).then_some(()));
    eventually("the events are on the disk", || (on_disk(&daemon) == 40).then_some(()));
    daemon.kill();
    daemon.start_again();
    receiver.answer_with(200);
    for user in &users {
        eventually("all of it arrives", || (heard(&receiver, user).len() == 2).then_some(()));
        assert_eq!(heard(&receiver, user), ["warning", "penalty"], "{user}");
    }
    assert!(receiver.taken().iter().all(is_signed));
    let events = receiver.events();
    let warning = events.iter().find(|event| event["kind"] == "warning").unwrap();
    assert_eq!(
        (&warning["rule"], &warning["domain"], &warning["used"], &warning["limit"], &warning["warn_at"]),
        (&json!("polite"), &json!("default"), &json!(8), &json!(10), &json!(80)),
        "{warning}"
    );
    // Used on, the bucket is new to the daemon that has just begun: it warns again, and in order.
    use_up(&daemon, "later");
    eventually("what comes later arrives", || (heard(&receiver, "later").len() == 2).then_some(()));
    eventually("nothing waits any more", || {
        (daemon.metric("tidegate_events_spooled_bytes") == Some(0.0)).then_some(())
    });
    assert_eq!(metric(&daemon, "events_dropped_total"), 0.0);
}

#[test]
fn the_end_of_a_listeners_certificate_is_told_once() {
    let (receiver, folder) = (Receiver::start(200), TempDir::new().unwrap());
    let soon = SystemTime::now() + Duration::from_secs(5 * 24 * 3_600 + 600);
    let made = WebAuthority::new().issue_until(1, soon);
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (cert, key) = (file("server.pem", &made.cert), file("server.key", &made.key));
    let tls = format!("[listen.grpc_tls]\ncert = {cert:?}\nkey = {key:?}\n");
    let daemon = Daemon::with(RULES, &config(&receiver, &folder, &tls), &[]);
    let told = || receiver.events().into_iter().filter(|event| event["kind"] == "certificate");
    let event = eventually("it arrives", || told().next());
    assert_eq!(event["subject"], "listen.grpc", "{event}");
    let text = event["text"].as_str().unwrap();
    assert!(
        text.starts_with("the certificate of listen.grpc ends on ") && text.contains("in 5 days"),
        "{text}"
    );
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(told().count(), 1, "{}", daemon.log());
    assert_eq!(daemon.metric("tidegate_events_total{kind=\"certificate\"}"), Some(1.0));
}

#[test]
fn what_is_told_last_is_delivered_before_the_daemon_ends_or_after_its_next_start() {
    let (receiver, folder) = (Receiver::start(200), TempDir::new().unwrap());
    let mut daemon = Daemon::with(RULES, &config(&receiver, &folder, ""), &[]);
    use_up(&daemon, "ann");
    daemon.terminate();
    daemon.start_again();
    eventually("it arrives", || (heard(&receiver, "ann") == ["warning", "penalty"]).then_some(()));
}

#[test]
fn nothing_waits_for_a_receiver_that_is_not_there() {
    let folder = TempDir::new().unwrap();
    let nobody = Receiver::start(200);
    let config = config(&nobody, &folder, "timeout = \"1s\"\n");
    // A port that nobody listens at.
    let config = config.replace(&nobody.address.to_string(), &super::support::free_tcp().to_string());
    let daemon = Daemon::with(RULES, &config, &[]);
    (0..50).for_each(|user| use_up(&daemon, &format!("u{user}")));
    assert_eq!(daemon.check(&[("user", "other")])["allowed"], true);
    eventually("attempts fail", || {
        (daemon.metric("tidegate_events_batches_total{outcome=\"failed\"}")? > 0.0).then_some(())
    });
    assert!(daemon.log().contains("events wait in the spool"), "{}", daemon.log());
    assert!(!daemon.log().contains("token=t"), "what stands in the address may be secret");
}

#[test]
fn a_block_is_told_once_in_a_while_and_in_the_log_without_a_receiver() {
    let daemon = Daemon::with_rules(RULES);
    for _ in 0..30 {
        assert_eq!(daemon.check(&[("bad", "yes")])["allowed"], false);
    }
    use_up(&daemon, "ann");
    assert_eq!(daemon.metric("tidegate_events_total{kind=\"block\"}"), Some(1.0));
    for line in ["a block rule denies requests", "8 of 10 are used", "a client is shut out for 3600 s"] {
        eventually("the log says so", || daemon.log().contains(line).then_some(()));
    }
}

#[test]
fn what_cannot_be_sent_to_is_refused_at_its_place() {
    let folder = TempDir::new().unwrap();
    let short = folder.path().join("short");
    std::fs::write(&short, "short").unwrap();
    let check = |text: &str| {
        std::fs::write(folder.path().join("tidegate.toml"), text).unwrap();
        let ran = command::run(folder.path(), &["config", "check", "--config", "tidegate.toml"]);
        (ran.code, format!("{}{}", ran.out, ran.err))
    };
    for (text, expected) in [
        ("[events]\nsecret = \"s\"", "url is missing"),
        ("[events]\nurl = \"https://h/\"", "secret is missing"),
        ("[events]\nurl = \"ftp://h/\"\nsecret = \"s\"", "tidegate.toml:2:7: url must be https://host/path"),
        ("[events]\nurl = \"https://h/\"\nsecret = \"s\"\nkeep = \"1s\"", "keep must be from 1m"),
    ] {
        let (code, told) = check(text);
        assert!(code != 0 && told.contains(expected), "{text}: {told}");
    }
    let (code, told) = check("[events]\nurl = \"https://u:p@h/x?token=t\"\nsecret = \"s\"");
    assert!(code == 0 && !told.contains("token=t") && !told.contains("u:p"), "{told}");
    std::fs::write(folder.path().join("rules.toml"), "").unwrap();
    std::fs::write(folder.path().join("tidegate.toml"), "[events]\nurl = \"https://h/\"\nsecret = \"short\"")
        .unwrap();
    let any = "127.0.0.1:0";
    let ran =
        command::run(folder.path(), &["serve", "--config", "tidegate.toml", "--http", any, "--grpc", any]);
    assert!(ran.code != 0 && ran.err.contains("a secret has at least 16 bytes"), "{ran:?}");
}
