//! Keeps the house in order: which layer may name which, where a crate may be named, and how files look.
//!
//! The rules are data with their reasons. One that turns out wrong is changed here, with the reason. Reading
//! is textual, on the code without its comments and literals: enough for these rules, and in milliseconds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[path = "architecture/protocol.rs"]
mod protocol;

#[path = "architecture/circles.rs"]
mod circles;

#[path = "architecture/manual.rs"]
mod manual;

#[path = "architecture/names.rs"]
mod names;

#[path = "architecture/tuples.rs"]
mod tuples;

/// Which layers of `src/` each layer may name, besides itself, and why. The core is a crate that knows no
/// other: Cargo keeps that.
const LAYERS: &[(&str, &[&str], &str)] = &[
    ("engine", &["core", "telemetry"], "knows the others only by the ports it defines"),
    ("telemetry", &["core"], "names and handles; whoever measures comes to it"),
    ("config", &["core"], "what was typed, turned into plain values"),
    ("store", &["core", "engine", "telemetry"], "adapters meet in the engine's ports, never each other"),
    ("peer", &["core", "engine", "telemetry"], "adapters meet in the engine's ports, never each other"),
    ("database", &["core", "engine", "telemetry"], "adapters meet in the engine's ports, never each other"),
    ("api", &["core", "engine", "telemetry"], "adapters meet in the engine's ports, never each other"),
    (
        "daemon",
        &["core", "engine", "telemetry", "config", "store", "peer", "database", "api"],
        "the only place that wires everything",
    ),
    (
        "cli",
        &["core", "engine", "telemetry", "config", "daemon"],
        "speaks to a daemon over HTTP; only `serve` and `demo` start one, through `daemon`",
    ),
    ("main", &["cli"], "parses the command line and runs it"),
    (
        "lib",
        &["core", "engine", "telemetry", "config", "store", "peer", "database", "api", "daemon", "cli"],
        "the map",
    ),
];

/// Names that may occur only under some paths, and why. Paths are below `src/`; one that ends in `/` is a
/// folder.
const NAMES: &[(&str, &[&str], &str)] = &[
    ("quinn::", &["peer/"], "one transport between daemons, replaceable in one place"),
    ("quinn_proto::", &["peer/"], "what quinn does not pass on of itself"),
    ("chitchat::", &["peer/"], "membership is the peer layer's; its last usable version is pinned"),
    ("bincode::", &["peer/codec.rs"], "unmaintained: changing the format must stay a one-file change"),
    ("rcgen::", &["peer/"], "certificates are made in one place"),
    ("x509_parser::", &["peer/"], "certificates are read in one place"),
    ("envoy_types::", &["api/rls"], "Envoy's words end at its server"),
    ("tonic::", &["api/"], "gRPC ends at the servers"),
    ("hashring::", &["core/ring.rs"], "its hash must be fed fixed bytes: one place knows how"),
    ("redis::", &["store/redis/"], "one store knows Redis"),
    ("sqlx::", &["database/"], "one layer knows SQL"),
    ("object_store::", &["database/audit/archive/"], "the archive is one place"),
    ("parquet::", &["database/audit/archive/"], "the archive is one place"),
    ("opentelemetry_proto::", &["telemetry/traces/"], "one place writes what collectors read"),
    ("ureq::", &["cli/"], "only client commands call out over HTTP, and may block"),
    ("comfy_table::", &["cli/"], "tables are the command line's"),
    ("ratatui::", &["cli/top/"], "one command draws on the whole terminal"),
    ("clap::", &["cli/", "main.rs"], "arguments end at the command line"),
    ("metrics_exporter_prometheus::", &["telemetry/"], "metrics are declared once"),
    ("counter!", &["telemetry/"], "metrics are declared once; others keep handles"),
    ("gauge!", &["telemetry/"], "metrics are declared once; others keep handles"),
    ("histogram!", &["telemetry/"], "metrics are declared once; others keep handles"),
    ("println!", &["cli/"], "standard output belongs to the command line"),
    ("eprintln!", &["cli/", "main.rs"], "a daemon logs facts with fields instead"),
    ("print!", &["cli/"], "standard output belongs to the command line"),
    ("eprint!", &["cli/"], "a daemon logs facts with fields instead"),
    ("dbg!", &[], "left over from a search for a bug"),
    ("todo!", &[], "what is not there is not called done"),
    ("unimplemented!", &[], "what is not there is not called done"),
    (
        "Instant::now",
        &["engine/clock.rs", "cli/demo/"],
        "one clock; everything else takes time as an argument (the demo's load and ocean stand for the world outside)",
    ),
    ("SystemTime::now", &["engine/clock.rs"], "one clock; everything else takes time as an argument"),
    (
        "lookup_host",
        &["engine/names.rs"],
        "one place looks names up: a name service that does not answer holds one thread a name",
    ),
    ("ToSocketAddrs", &["engine/names.rs"], "one place looks names up"),
    (".to_socket_addrs(", &["engine/names.rs"], "one place looks names up"),
    ("process::exit", &[], "return from main, so that what is open is closed"),
    (".unwrap()", &[], "a panic on a request path is an outage"),
    (".expect(", &[], "a panic on a request path is an outage"),
];

/// What starts a task or a thread that nobody watches. What must not be missing is started by
/// `engine::tasks::Tasks`, which starts it again and says so.
const UNWATCHED: &[&str] = &[
    "tokio::spawn",
    "runtime.spawn(",
    "Handle::current().spawn",
    "TaskTracker",
    "JoinSet",
    "thread::Builder",
    "thread::spawn",
];

/// The files that may, and why nobody misses what they start when it ends too early.
const STARTERS: &[(&str, &str)] = &[
    ("engine/tasks.rs", "it watches"),
    ("engine/names.rs", "one look-up, which ends"),
    ("engine/identity/load.rs", "one batch of look-ups; the watched `identity_lookups` takes the next"),
    ("database/file.rs", "its end closes the channel of the watched task that reads it, which begins anew"),
    ("database/postgres/listen.rs", "the same"),
    ("api/listener.rs", "one connection; the watched listener takes the next"),
    ("api/rls/mod.rs", "one call of a connection"),
    ("api/rls/quota/mod.rs", "one stream, which Envoy opens again"),
    ("api/http/given.rs", "one decision, which the connection that asked waits for"),
    ("api/http/deciding.rs", "one decision, whose client has left"),
    ("api/delivery.rs", "gives back what an answer gave that nobody got; without it that lapses"),
    ("peer/peers.rs", "counts the connections that are to end; watched where they are accepted"),
    ("peer/links.rs", "one link, which dials again by itself for as long as its daemon is a member"),
    ("peer/inbound.rs", "one connection or stream of another daemon, which makes another"),
    ("peer/rights.rs", "one step on rights; asked again when it has no answer"),
    ("store/redis/policy/background.rs", "one command"),
    ("store/redis/servers/dispatcher.rs", "one call that goes on"),
    (
        "store/redis/servers/node.rs",
        "reads and writes one connection; the watched `redis_connection` opens the next",
    ),
    ("telemetry/log.rs", "the log's own thread: nothing could say that it ended"),
    ("cli/demo/relay.rs", "the ocean of the demonstration"),
    ("cli/demo/mod.rs", "the regions of the demonstration"),
    ("cli/top/mod.rs", "asks while the screen reads keys; ends with it"),
];

/// What the standard library has and the pure core may not use.
const IMPURE: &[&str] = &["std::net::", "std::fs::", "std::thread::", "Mutex", "RwLock", "async "];

/// Crates that its manifest may not list.
const IMPURE_CRATES: &[&str] = &[
    "tokio", "futures", "tracing", "metrics", "rand", "ring", "quinn", "chitchat", "redis", "sqlx", "hyper",
];

/// Words that say nothing about what a file is for.
const EMPTY_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "manager", "common", "misc"];

/// Widest comment, in columns; rustfmt holds code to the same.
const COMMENT_COLUMNS_MAX: usize = 110;

/// Longest file, in lines, tests included.
const FILE_LINES_MAX: usize = 700;

/// Crates that must never enter the tree: a second TLS provider, or one that needs more than a C compiler.
const BANNED_CRATES: &[&str] = &["aws-lc-rs", "aws-lc-sys", "openssl-sys", "native-tls", "serde_yaml"];

/// What may lie at the top of the repository; configuration of tools is in dotfiles.
const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "SECURITY.md",
    "src",
    "tests",
    "simulations",
    "deploy",
    "docs",
    "clients",
    "fuzz",
    "lua",
    "migrations",
    // Inputs that once failed a property; proptest tries them first.
    "proptest-regressions",
    "target",
    "openapi.json",
];

#[test]
fn every_layer_names_only_the_layers_it_may() {
    assert_no(sources().iter().flat_map(layer_faults));
}

#[test]
fn every_crate_and_effect_is_named_only_where_it_belongs() {
    assert_no(sources().iter().flat_map(name_faults));
}

#[test]
fn the_core_is_pure() {
    assert_no(sources().iter().flat_map(purity_faults));
    let manifest = std::fs::read_to_string(root().join("src/core/Cargo.toml")).unwrap();
    let lists =
        |name: &&&str| manifest.lines().any(|line| line.split(['.', ' ', '-']).next() == Some(**name));
    assert_no(IMPURE_CRATES.iter().filter(lists).map(|name| format!("src/core/Cargo.toml: lists {name}")));
}

#[test]
fn every_background_task_is_watched_or_named_with_the_reason_why_not() {
    let sources = sources();
    assert_no(sources.iter().flat_map(starter_faults));
    // An exception that nobody needs any more is none.
    let needed =
        |path: &str| sources.iter().any(|source| source.path == path && starts_unwatched(source).is_some());
    assert_no(
        STARTERS
            .iter()
            .filter(|(path, _)| !needed(path))
            .map(|(path, _)| format!("src/{path}: starts nothing unwatched, and STARTERS lists it")),
    );
}

#[test]
fn every_file_says_what_it_is_for_and_stays_short() {
    assert_no(sources().iter().flat_map(shape_faults));
}

#[test]
fn comments_are_read_in_a_window_of_110_columns() {
    let mut paths = Vec::new();
    for folder in ["src", "lua", "tests", "simulations", "clients/rust", "deploy", ".ci"] {
        collect(&root().join(folder), &mut paths, &|_| true);
    }
    let files = paths.iter().filter_map(|path| Some((path, std::fs::read_to_string(path).ok()?)));
    let files: Vec<_> =
        files.filter_map(|(path, text)| Some((path, comment_sign(path, &text)?, text))).collect();
    assert!(files.len() > 500, "only {} files with comments were found", files.len());
    assert_no(files.iter().flat_map(|(path, sign, text)| {
        let path = path.strip_prefix(root()).unwrap().display();
        long_comments(sign, text)
            .map(move |line| format!("{path}: longer than {COMMENT_COLUMNS_MAX} columns: {line}"))
    }));
}

#[test]
fn no_banned_crate_is_in_the_tree() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let found: Vec<_> =
        BANNED_CRATES.iter().filter(|name| lock.contains(&format!("name = \"{name}\""))).collect();
    assert!(found.is_empty(), "Cargo.lock holds banned crates: {found:?}");
}

#[test]
fn the_top_level_holds_only_what_is_listed() {
    let names =
        std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let strange: Vec<_> =
        names.filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "not listed in TOP_LEVEL of tests/architecture.rs: {strange:?}");
}

/// One file of `src/`.
struct Source {
    /// Below `src/`, with `/`.
    path: String,
    /// As it is.
    text: String,
    /// Without comments, literals and what is compiled for tests only.
    code: String,
    /// Whether the whole file is compiled for tests only.
    for_tests: bool,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let code = without_tests(&without_comments(text));
        Self { path: path.to_owned(), text: text.to_owned(), code, for_tests: false }
    }

    /// The folder below `src/`, or the name of a file beside it.
    fn layer(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// Whether it lies at `place`: a file, a folder (`peer/`), or a file and its folder alike (`api/rls`).
    fn is_at(&self, place: &str) -> bool {
        let stem = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        if place.ends_with('/') {
            return self.path.starts_with(place);
        }
        self.path == place || stem == place || self.path.starts_with(&format!("{place}/"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    collect(&root().join("src"), &mut paths, &|path| path.extension().is_some_and(|kind| kind == "rs"));
    paths.sort();
    let mut sources: Vec<_> = paths
        .iter()
        .map(|path| {
            let below = path.strip_prefix(root().join("src")).unwrap();
            Source::new(&below.to_string_lossy().replace('\\', "/"), &std::fs::read_to_string(path).unwrap())
        })
        .collect();
    assert!(sources.len() > 10, "src/ was not found");
    let for_tests: BTreeSet<_> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        let below = |file: &String| source.path.starts_with(&format!("{}/", file.trim_end_matches(".rs")));
        source.for_tests = for_tests.contains(&source.path) || for_tests.iter().any(below);
    }
    sources
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>, wanted: &dyn Fn(&Path) -> bool) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into, wanted);
        } else if wanted(&path) {
            into.push(path);
        }
    }
}

/// Lines of comments beyond 110 columns. A row of a table has no place to break.
fn long_comments<'a>(sign: &'a str, text: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter(move |line| {
        let shown = line.trim_start();
        line.chars().count() > COMMENT_COLUMNS_MAX && shown.starts_with(sign) && !shown.starts_with("//! |")
    })
}

/// The sign that begins a comment: in Rust, in Lua, and in scripts.
fn comment_sign(path: &Path, text: &str) -> Option<&'static str> {
    match path.extension().and_then(|kind| kind.to_str()) {
        Some("rs") => Some("//"),
        Some("lua") => Some("--"),
        Some("sh" | "py") => Some("#"),
        None => text.starts_with("#!").then_some("#"),
        Some(_) => None,
    }
}

fn assert_no(faults: impl Iterator<Item = String>) {
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

fn layer_faults(source: &Source) -> Vec<String> {
    let layer = source.layer();
    if layer == "core" {
        return Vec::new();
    }
    let Some((_, may, why)) = LAYERS.iter().find(|(name, ..)| *name == layer) else {
        return vec![format!(
            "src/{}: a layer that LAYERS of tests/architecture.rs does not list",
            source.path
        )];
    };
    named_layers(source)
        .into_iter()
        .filter(|named| named != layer && !may.contains(&named.as_str()))
        .map(|named| format!("src/{}: `{layer}` names `{named}`, but {layer} is: {why}", source.path))
        .collect()
}

fn name_faults(source: &Source) -> Vec<String> {
    if source.for_tests {
        return Vec::new();
    }
    NAMES
        .iter()
        .filter(|(name, places, _)| {
            occurs(&source.code, name) && !places.iter().any(|place| source.is_at(place))
        })
        .map(|(name, places, why)| {
            format!("src/{}: names `{name}`, which belongs to {places:?} only: {why}", source.path)
        })
        .collect()
}

fn purity_faults(source: &Source) -> Vec<String> {
    if source.layer() != "core" || source.for_tests {
        return Vec::new();
    }
    // Address types are values; only sockets are effects.
    let code = ["IpAddr", "Ipv4Addr", "Ipv6Addr"]
        .iter()
        .fold(source.code.clone(), |code, kind| code.replace(&format!("std::net::{kind}"), ""))
        .replace("std::net::{IpAddr, Ipv4Addr, Ipv6Addr}", "");
    let found = IMPURE.iter().filter(|name| occurs(&code, name));
    found.map(|name| format!("src/{}: the core is pure and has no `{name}`", source.path)).collect()
}

/// The first name in a file by which it starts something that nobody watches.
fn starts_unwatched(source: &Source) -> Option<&'static str> {
    UNWATCHED.iter().copied().find(|name| !source.for_tests && occurs(&source.code, name))
}

fn starter_faults(source: &Source) -> Vec<String> {
    let listed = STARTERS.iter().any(|(path, _)| *path == source.path);
    let found = starts_unwatched(source).filter(|_| !listed);
    found
        .map(|name| {
            format!("src/{}: `{name}` starts what nobody watches: use `engine::tasks::Tasks`", source.path)
        })
        .into_iter()
        .collect()
}

fn shape_faults(source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = source.text.lines().count();
    if !source.text.starts_with("//!") {
        faults.push(format!("src/{}: does not open with `//!`: what it is for and what not", source.path));
    }
    if lines > FILE_LINES_MAX {
        faults.push(format!(
            "src/{}: {lines} lines; one file holds one idea, {FILE_LINES_MAX} at most",
            source.path
        ));
    }
    for part in source.path.trim_end_matches(".rs").split('/') {
        if EMPTY_NAMES.contains(&part) {
            faults.push(format!("src/{}: `{part}` says nothing about what it is for", source.path));
        }
    }
    faults
}

/// The layers that a file names as `crate::X`, `tidegate::X`, in a group `crate::{X, Y::Z}`, or by `super`
/// from the top of its layer.
fn named_layers(source: &Source) -> BTreeSet<String> {
    let known = |name: &str| LAYERS.iter().any(|(layer, ..)| *layer == name);
    let depth = source.path.matches('/').count() - usize::from(source.path.ends_with("/mod.rs"));
    let above = format!("{}super::", "super::".repeat(depth));
    let mut named = BTreeSet::new();
    for start in ["crate::", "tidegate::", above.as_str()] {
        for at in places(&source.code, start) {
            let rest = &source.code[at + start.len()..];
            match rest.strip_prefix('{') {
                Some(group) => named.extend(heads_of_group(group)),
                None => named.extend(head(rest)),
            }
        }
    }
    named.retain(|name| known(name));
    named
}

/// The first word of a path.
fn head(path: &str) -> Option<String> {
    let word: String = path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

/// The first words of all paths in `{…}`, whose opening brace was taken off.
fn heads_of_group(group: &str) -> Vec<String> {
    let (mut depth, mut heads) = (1, Vec::from_iter(head(group)));
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => heads.extend(head(&group[at + 1..])),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    heads
}

/// Whether `name` occurs as a word of its own, not as the tail of a longer word or path.
fn occurs(code: &str, name: &str) -> bool {
    !places(code, name).is_empty()
}

fn places(code: &str, name: &str) -> Vec<usize> {
    let starts_a_word = name.starts_with(|c: char| c.is_alphanumeric());
    code.match_indices(name)
        .map(|(at, _)| at)
        .filter(|&at| {
            let before = code[..at].chars().next_back();
            let joined = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let deeper = name.ends_with("::") && code[..at].ends_with("::");
            !starts_a_word || !(joined || deeper)
        })
        .collect()
}

/// Files that are compiled for tests only: those whose module is declared under `#[cfg(test)]`, and all below
/// them.
fn test_modules(source: &Source) -> Vec<String> {
    let folder = match source.path.strip_suffix("/mod.rs") {
        Some(folder) => folder.to_owned(),
        None => source.path.trim_end_matches(".rs").to_owned(),
    };
    let plain = without_comments(&source.text);
    let declared = plain.split("#[cfg(test)]").skip(1).filter_map(|rest| {
        let declared = rest.trim_start().trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ");
        let name = head(declared.strip_prefix("mod ")?)?;
        declared[4 + name.len()..].starts_with(';').then_some(name)
    });
    declared.flat_map(|name| [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]).collect()
}

/// The code without what follows `#[cfg(test)]`, which is one item: to its closing brace, or to its
/// semicolon.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let (mut depth, mut end) = (0_usize, rest.len());
        for (at, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && (c == '}' || c == ';') {
                end = at + 1;
                break;
            }
        }
        rest = &rest[end..];
    }
    kept + rest
}

/// The code with comments and the insides of literals blanked out.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("r\"") || rest.starts_with("r#") {
            raw_string(rest)
        } else if c == '"' {
            string(rest)
        } else if c == '\'' {
            character(rest)
        } else {
            0
        };
        if skipped > 0 {
            kept.push(' ');
            rest = &rest[skipped..];
        } else {
            kept.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    kept
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

/// Zero for `r#name`, which is an identifier.
fn raw_string(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[2 + hashes..].find(&end).map_or(text.len(), |at| 2 + hashes + at + end.len())
}

/// Zero for a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, c))) => {
            let from = at + c.len_utf8();
            text[from..].find('\'').map_or(0, |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

/// The tests of the tester: a rule that cannot fail keeps nothing.
mod tester {
    use super::*;

    #[test]
    fn a_forbidden_layer_is_found_however_it_is_named() {
        for text in [
            "use crate::engine::Engine;",
            "use crate::{core::key::Key, engine::{Engine, port}};",
            "fn f() { let e = crate::engine::Engine::new(); }",
            "use super::super::engine::Engine;",
        ] {
            assert_eq!(layer_faults(&Source::new("config/read.rs", text)).len(), 1, "{text}");
        }
        assert_eq!(layer_faults(&Source::new("config/mod.rs", "use super::engine::Engine;")).len(), 1);
        assert_eq!(layer_faults(&Source::new("store/memory.rs", "use crate::peer::codec;")).len(), 1);
        assert_eq!(layer_faults(&Source::new("main.rs", "use tidegate::store::memory;")).len(), 1);
        assert_eq!(layer_faults(&Source::new("shelf/book.rs", "")).len(), 1);
    }

    #[test]
    fn an_allowed_layer_a_comment_and_a_text_are_no_fault() {
        for text in [
            "use crate::core::{engine_words, key};",
            "// crate::engine is where this is used",
            "/// See [`crate::engine::Engine`].\nfn f() {}",
            "const TEXT: &str = \"crate::engine::Engine \\\" crate::engine\";",
            "const TEXT: &str = r#\"crate::engine \" \"#;",
            "use super::engine::Engine;",
        ] {
            assert_eq!(layer_faults(&Source::new("config/read.rs", text)), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_name_out_of_its_place_is_found() {
        let faults = |path: &str, text: &str| name_faults(&Source::new(path, text)).len();
        assert_eq!(faults("peer/codec.rs", "bincode::decode(bytes)"), 0);
        assert_eq!(faults("peer/sync.rs", "bincode::decode(bytes)"), 1);
        assert_eq!(faults("api/rls.rs", "use envoy_types::pb;"), 0);
        assert_eq!(faults("api/rls/answer.rs", "use envoy_types::pb;"), 0);
        assert_eq!(faults("api/http/check.rs", "use envoy_types::pb;"), 1);
        assert_eq!(faults("daemon/mod.rs", "println!(\"ready\")"), 1);
        assert_eq!(faults("cli/mod.rs", "println!(\"ready\")"), 0);
        assert_eq!(faults("daemon/mod.rs", "let now = std::time::Instant::now();"), 1);
        assert_eq!(faults("daemon/mod.rs", "value.unwrap()"), 1);
        assert_eq!(faults("daemon/mod.rs", "value.unwrap_or(0)"), 0);
        assert_eq!(faults("core/shape.rs", "crate::store::redis::script()"), 0);
    }

    #[test]
    fn a_task_that_nobody_watches_is_found() {
        let faults = |path: &str, text: &str| starter_faults(&Source::new(path, text)).len();
        assert_eq!(faults("daemon/mod.rs", "fn f() { tokio::spawn(async {}); }"), 1);
        assert_eq!(faults("daemon/mod.rs", "fn f() { std::thread::spawn(|| {}); }"), 1);
        assert_eq!(faults("daemon/mod.rs", "fn f() { self.runtime.spawn(g()); }"), 1);
        assert_eq!(faults("daemon/mod.rs", "fn f() { tasks.spawn(\"name\", &stop, g); }"), 0);
        assert_eq!(faults("engine/tasks.rs", "fn f() { tokio::spawn(async {}); }"), 0);
        assert_eq!(faults("daemon/mod.rs", "#[cfg(test)]\nmod tests { fn f() { tokio::spawn(g()); } }"), 0);
    }

    #[test]
    fn tests_may_do_what_code_may_not() {
        let text = "fn f() {}\n#[cfg(test)]\nmod tests {\n fn g() { x.unwrap(); }\n}\nfn h() { '{'; }";
        assert_eq!(name_faults(&Source::new("core/key.rs", text)), [""; 0]);
        let text = "#[cfg(test)]\nmod tests {}\nfn h() { x.unwrap(); }";
        assert_eq!(name_faults(&Source::new("core/key.rs", text)).len(), 1);
        let parent = Source::new("core/key.rs", "#[cfg(test)]\nmod oracle;\nmod plain;");
        assert_eq!(test_modules(&parent), ["core/key/oracle.rs", "core/key/oracle/mod.rs"]);
    }

    #[test]
    fn effects_in_the_core_are_found_and_addresses_are_none() {
        assert_eq!(purity_faults(&Source::new("core/key.rs", "use std::net::IpAddr;")), [""; 0]);
        assert_eq!(purity_faults(&Source::new("core/key.rs", "use std::net::UdpSocket;")).len(), 1);
        assert_eq!(purity_faults(&Source::new("core/key.rs", "async fn f() {}")).len(), 1);
        assert_eq!(purity_faults(&Source::new("engine/mod.rs", "async fn f() {}")), [""; 0]);
    }

    #[test]
    fn a_file_without_a_purpose_a_long_one_and_an_empty_name_are_found() {
        assert_eq!(shape_faults(&Source::new("core/utils.rs", "fn f() {}")).len(), 2);
        let long = format!("//! Long.\n{}", "\n".repeat(FILE_LINES_MAX));
        assert_eq!(shape_faults(&Source::new("core/key.rs", &long)).len(), 1);
    }

    #[test]
    fn long_comments_are_found_and_long_texts_are_none() {
        let wide = format!(
            "//! {}\n//! | {}\nlet text = \"{}\";",
            "w".repeat(108),
            "w".repeat(120),
            "w".repeat(120)
        );
        assert_eq!(long_comments("//", &wide).count(), 1);
        assert_eq!(long_comments("--", &wide.replace("//!", "--")).count(), 2);
        assert_eq!(comment_sign(Path::new("lua/decide.lua"), ""), Some("--"));
        assert_eq!(comment_sign(Path::new("tests/run"), "#!/usr/bin/env bash\n"), Some("#"));
        assert_eq!(comment_sign(Path::new("deploy/LICENSE"), "Apache"), None);
    }

    #[test]
    fn lifetimes_and_characters_are_told_apart() {
        assert_eq!(without_comments("fn f<'a>(x: &'a str) { '\"'; '\\''; // 'x\n}").matches("'a").count(), 2);
        assert_eq!(without_comments("('\"', \"//\") /* '\" */;").replace(' ', ""), "(,);");
    }
}
