//! Answers to what clients of Redis ask before their first command.

use std::borrow::Cow;

use super::reply::Answers;

/// The version that clients are told, whose commands and errors these are.
const VERSION: &str = "7.4.0";

/// A command as `COMMAND` tells it.
struct RespCommand {
    name: &'static str,
    /// Number of words; negative: at least so many.
    arity: i64,
    flags: &'static [&'static str],
    /// Place of the first key; zero: it has none.
    first: i64,
    /// Place of the last key; negative: counted from the end.
    last: i64,
}

const COMMANDS: [RespCommand; 22] = [
    RespCommand { name: "cl.throttle", arity: -5, flags: &["write", "fast"], first: 1, last: 1 },
    RespCommand { name: "increx", arity: -2, flags: &["write", "fast"], first: 1, last: 1 },
    RespCommand { name: "tg.check", arity: -3, flags: &["write"], first: 0, last: 0 },
    RespCommand { name: "tg.report", arity: -4, flags: &["write"], first: 0, last: 0 },
    RespCommand { name: "tg.reserve", arity: -5, flags: &["write"], first: 0, last: 0 },
    RespCommand { name: "tg.commit", arity: 3, flags: &["write"], first: 0, last: 0 },
    RespCommand { name: "tg.cancel", arity: 2, flags: &["write"], first: 0, last: 0 },
    RespCommand { name: "get", arity: 2, flags: &["readonly", "fast"], first: 1, last: 1 },
    RespCommand { name: "del", arity: -2, flags: &["write"], first: 1, last: -1 },
    RespCommand { name: "exists", arity: -2, flags: &["readonly", "fast"], first: 1, last: -1 },
    RespCommand { name: "ttl", arity: 2, flags: &["readonly", "fast"], first: 1, last: 1 },
    RespCommand { name: "pttl", arity: 2, flags: &["readonly", "fast"], first: 1, last: 1 },
    RespCommand { name: "eval", arity: -3, flags: &["noscript"], first: 0, last: 0 },
    RespCommand { name: "evalsha", arity: -3, flags: &["noscript"], first: 0, last: 0 },
    RespCommand { name: "ping", arity: -1, flags: &["fast"], first: 0, last: 0 },
    RespCommand { name: "echo", arity: 2, flags: &["fast"], first: 0, last: 0 },
    RespCommand { name: "hello", arity: -1, flags: &["noscript", "fast"], first: 0, last: 0 },
    RespCommand { name: "auth", arity: -2, flags: &["noscript", "fast"], first: 0, last: 0 },
    RespCommand { name: "select", arity: 2, flags: &["fast"], first: 0, last: 0 },
    RespCommand { name: "client", arity: -2, flags: &["noscript"], first: 0, last: 0 },
    RespCommand { name: "info", arity: -1, flags: &[], first: 0, last: 0 },
    RespCommand { name: "command", arity: -1, flags: &[], first: 0, last: 0 },
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
                match COMMANDS.iter().find(|known| name.eq_ignore_ascii_case(known.name.as_bytes())) {
                    Some(command) => describe(answers, command),
                    None => answers.null(),
                }
            }
        }
        Some(_) => answers.array(0),
    }
}

fn describe(answers: &mut Answers, command: &RespCommand) {
    let RespCommand { name, arity, flags, first, last } = command;
    answers.array(6);
    answers.bulk(name.as_bytes());
    answers.integer(*arity);
    answers.array(flags.len());
    flags.iter().for_each(|flag| answers.simple(flag));
    answers.integer(*first);
    answers.integer(*last);
    answers.integer(i64::from(*first != 0));
}
