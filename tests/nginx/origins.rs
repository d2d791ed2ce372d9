//! Paths as origins read them, beside what they are held to here: a real nginx, Node and Python.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use super::support::daemon::Daemon;
use super::support::http;
use super::{Front, free_tcp};

/// What paths are made of.
const PIECES: [&str; 20] = [
    "login",
    "login",
    "public",
    "public",
    "x",
    "..",
    "..",
    ".",
    "",
    "%2e%2e",
    "%2E.",
    "..;",
    "..;a=b",
    "%2e%2e;",
    "%6cogin",
    "publi%63",
    "a%2Fb",
    "..%2flogin",
    "..\\x",
    "..%5cx",
];
/// How many paths are asked for.
const PATHS: usize = 400;

/// One says nothing else but these two prefixes, and forbids the one and frees the other.
const RULES: &str = r#"
[[rules]]
name = "login"
domain = "held"
match = { path = "/login*" }
action = "block"

[[rules]]
name = "public"
domain = "exempt"
match = { path = "/public*" }
action = "allow"

[[rules]]
name = "nobody"
domain = "exempt"
limit = 0
window = "1h"
"#;

const SERVERS: &str = "
server {
    listen ADDR;
    merge_slashes MERGE;
    location / { return 200 other; }
    location /login { return 200 login; }
    location /public { return 200 public; }
}
";

/// What each path is to Node: as it came, as a URL, and decoded and normal.
const NODE: &str = r#"
const path = require("node:path");
const resolved = (text) => { try { return new URL(text, "http://x").pathname; } catch { return ""; } };
const paths = require("node:fs").readFileSync(0, "utf8").split("\n");
for (const text of paths) {
    const decoded = decodeURIComponent(text);
    console.log(JSON.stringify([text, new URL("http://x" + text).pathname, resolved(text), path.posix.normalize(decoded)]));
}
"#;

/// And to Python: decoded as WSGI does, and as its own web server takes it for a file.
const PYTHON: &str = r#"
import json, posixpath, sys, urllib.parse
for text in sys.stdin.read().split("\n"):
    decoded = urllib.parse.unquote(text)
    print(json.dumps([decoded, posixpath.normpath(decoded), urllib.parse.urlparse(text).path]))
"#;

/// Paths that look random, the same in every run.
fn paths() -> Vec<String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(most).unwrap()).unwrap()
    };
    let path = |_| (0..=below(5)).map(|_| format!("/{}", PIECES[below(PIECES.len())])).collect::<String>();
    (0..PATHS).map(path).collect()
}

/// What a program reads in these paths, a list for each.
fn readings(program: &str, flag: &str, script: &str, paths: &[String]) -> Vec<Vec<String>> {
    let mut command = Command::new(program);
    command.args([flag, script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    child.stdin.take().unwrap().write_all(paths.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} ended with {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let lists: Vec<Vec<String>> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lists.len(), paths.len());
    lists
}

#[test]
fn a_path_is_held_to_what_any_origin_serves_and_exempt_only_where_all_agree() {
    let daemon = Daemon::with_rules(RULES);
    let origins = [free_tcp(), free_tcp()];
    let servers: String = origins
        .iter()
        .zip(["on", "off"])
        .map(|(addr, merge)| SERVERS.replace("ADDR", &addr.to_string()).replace("MERGE", merge))
        .collect();
    let _nginx =
        Front::start_with(&[daemon.http], &[("upstream tidegate", &format!("{servers}\nupstream tidegate"))]);
    let paths = paths();
    let node = readings("node", "-e", NODE, &paths);
    let python = readings("python3", "-c", PYTHON, &paths);
    let (mut held, mut exempt) = (0, 0);
    for (place, path) in paths.iter().enumerate() {
        let mut served: Vec<&str> = Vec::new();
        let answers = origins.map(|origin| {
            let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            http::raw(origin, head.as_bytes()).unwrap()
        });
        // An origin that refuses a path serves nothing.
        served.extend(answers.iter().filter(|reply| reply.status == 200).map(|reply| reply.body.as_str()));
        served.extend(node[place].iter().chain(&python[place]).map(|reading| {
            let is = |prefix: &&str| reading.strip_prefix('/').is_some_and(|rest| rest.starts_with(prefix));
            ["login", "public"].into_iter().find(|prefix| is(prefix)).unwrap_or("other")
        }));
        let allowed = |domain: &str| {
            let asked = json!({ "domain": domain, "attributes": { "path": path } });
            let reply = daemon.post("/v1/check", &asked);
            // A path with too many readings is refused.
            assert!([200, 400].contains(&reply.status), "{path}: {reply:?}");
            reply.status == 200 && reply.json()["allowed"] == true
        };
        let is_held = !allowed("held");
        assert!(is_held || !served.contains(&"login"), "{path} is served as {served:?}");
        let is_exempt = allowed("exempt");
        assert!(!is_exempt || served.iter().all(|one| *one == "public"), "{path} is served as {served:?}");
        held += usize::from(is_held);
        exempt += usize::from(is_exempt);
    }
    assert!(held > PATHS / 10 && held < PATHS && exempt > 3, "{held} held, {exempt} exempt");
}
