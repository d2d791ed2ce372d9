//! Answers to what clients of Redis ask before their first command.

use std::borrow::Cow;

use super::reply::Answers;

/// The version that clients are told, whose commands and errors these are.
const VERSION: &str = "7.4.0";

/// Name, arity (negative: at least), flags, and where the first and the last key stand, of each command.
const COMMANDS: [(&str, i64, &[&str], i64, i64); 22] = [
    ("cl.throttle", -5, &["write", "fast"], 1, 1),
    ("increx", -2, &["write", "fast"], 1, 1),
    ("tg.check", -3, &["write"], 0, 0),
    ("tg.report", -4, &["write"], 0, 0),
    ("tg.reserve", -5, &["write"], 0, 0),
    ("tg.commit", 3, &["write"], 0, 0),
    ("tg.cancel", 2, &["write"], 0, 0),
    ("get", 2, &["readonly", "fast"], 1, 1),
    ("del", -2, &["write"], 1, -1),
    ("exists", -2, &["readonly", "fast"], 1, -1),
    ("ttl", 2, &["readonly", "fast"], 1, 1),
    ("pttl", 2, &["readonly", "fast"], 1, 1),
    ("eval", -3, &["noscript"], 0, 0),
    ("evalsha", -3, &["noscript"], 0, 0),
    ("ping", -1, &["fast"], 0, 0),
    ("echo", 2, &["fast"], 0, 0),
    ("hello", -1, &["noscript", "fast"], 0, 0),
    ("auth", -2, &["noscript", "fast"], 0, 0),
    ("select", 2, &["fast"], 0, 0),
    ("client", -2, &["noscript"], 0, 0),
    ("info", -1, &[], 0, 0),
    ("command", -1, &[], 0, 0),
];

/// Settings that redis-benchmark looks at: nothing is written to a disk here.
const SETTINGS: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];

/// Modules that libraries look for before they send `CL.THROTTLE`, and their versions.
const MODULES: [(&str, i64); 2] = [("redis-cell", 500), ("tidegate", 1)];

/// Answers `HELLO`.
pub(super) fn hello(answers: &mut Answers, id: i64) {
    let protocol = answers.protocol.number();
    answers.map(7);
    for (name, value) in [("server", "redis"), ("version", VERSION)] {
        answers.bulk(name.as_bytes());
        answers.bulk(value.as_bytes());
    }
    for (name, value) in [("proto", protocol), ("id", id)] {
        answers.bulk(name.as_bytes());
        answers.integer(value);
    }
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        answers.bulk(name.as_bytes());
        answers.bulk(value.as_bytes());
    }
    answers.bulk(b"modules");
    modules(answers);
}

/// Answers `MODULE LIST`.
pub(super) fn modules(answers: &mut Answers) {
    answers.array(MODULES.len());
    for (name, version) in MODULES {
        answers.map(2);
        answers.bulk(b"name");
        answers.bulk(name.as_bytes());
        answers.bulk(b"ver");
        answers.integer(version);
    }
}

/// Answers `INFO`, whatever section is asked for.
pub(super) fn info(answers: &mut Answers) {
    let text = format!(
        "# Server\r\nredis_version:{VERSION}\r\nredis_mode:standalone\r\ntidegate_version:{}\r\n\r\n\
         # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n",
        env!("CARGO_PKG_VERSION")
    );
    answers.bulk(text.as_bytes());
}

/// Answers `CONFIG GET` with the settings of these names that there are.
pub(super) fn settings(answers: &mut Answers, names: &[Cow<'_, [u8]>]) {
    let is_asked = |known: &str| names.iter().any(|name| name.eq_ignore_ascii_case(known.as_bytes()));
    let asked: Vec<_> = SETTINGS.into_iter().filter(|(name, _)| is_asked(name)).collect();
    answers.map(asked.len());
    for (name, value) in asked {
        answers.bulk(name.as_bytes());
        answers.bulk(value.as_bytes());
    }
}

/// Answers `COMMAND` and its subcommands.
pub(super) fn command(answers: &mut Answers, words: &[Cow<'_, [u8]>]) {
    let sub = words.first().map(|word| word.to_ascii_uppercase());
    match sub.as_deref() {
        None => {
            answers.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(answers, command));
        }
        Some(b"COUNT") => answers.integer(i64::try_from(COMMANDS.len()).unwrap_or_default()),
        Some(b"DOCS") => answers.map(0),
        Some(b"INFO") => {
            let names = words.get(1..).unwrap_or_default();
            answers.array(names.len());
            for name in names {
                match COMMANDS.iter().find(|(known, ..)| name.eq_ignore_ascii_case(known.as_bytes())) {
                    Some(command) => describe(answers, command),
                    None => answers.null(),
                }
            }
        }
        Some(_) => answers.array(0),
    }
}

fn describe(answers: &mut Answers, (name, arity, flags, first, last): &(&str, i64, &[&str], i64, i64)) {
    answers.array(6);
    answers.bulk(name.as_bytes());
    answers.integer(*arity);
    answers.array(flags.len());
    flags.iter().for_each(|flag| answers.simple(flag));
    answers.integer(*first);
    answers.integer(*last);
    answers.integer(i64::from(*first != 0));
}
