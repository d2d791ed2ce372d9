//! The Redis protocol: bytes as clients send them, and real clients.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::support::daemon::Daemon;
use super::support::resp::Connection;
use super::support::{free_tcp, not_judged};

const RULES: &str =
    "[[rules]]\nname = \"a\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 3\nwindow = \"1d\"\n";

/// A daemon that speaks the protocol, with this at the end of `[listen]`.
pub(super) fn daemon(more: &str) -> (Daemon, SocketAddr) {
    let resp = free_tcp();
    let daemon = Daemon::with(RULES, &format!("[listen]\nresp = \"{resp}\"\n{more}"), &[]);
    (daemon, resp)
}

/// Commands on fresh keys (`%` stands for one) and the last answer, each by the row of the contract that it
/// is from.
const ROWS: &[(&str, &str, &str)] = &[
    ("1", "CL.THROTTLE % 15 30 60", "[0 16 15 -1 2]"),
    ("2", "CL.THROTTLE % 0 1 60; CL.THROTTLE % 0 1 60", "[1 1 0 60 60]"),
    ("3", "CL.THROTTLE % 5 5 3600", "[0 6 5 -1 720]"),
    ("4", "CL.THROTTLE % 15 30 60 5", "[0 16 11 -1 10]"),
    ("5", "CL.THROTTLE % 15 30 60 0", "[0 16 16 -1 0]"),
    ("6", "CL.THROTTLE % 15 30 60 17", "[1 16 16 -1 0]"),
    ("7", "CL.THROTTLE % 15 30 6000 5; CL.THROTTLE % 15 30 6000 12", "[1 16 11 200 1000]"),
    ("8", "CL.THROTTLE % 15 30 60; CL.THROTTLE % 15 30 60 1", "[0 16 14 -1 4]"),
    (
        "9",
        "CL.THROTTLE % 1 2",
        "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]",
    ),
    ("10", "CL.THROTTLE % abc 30 60", "-Cell error: Store error: Couldn't parse as integer: abc"),
    ("11", "CL.THROTTLE % 15 30 \"\"", "-Cell error: Store error: Couldn't parse as integer: "),
    ("12", "CL.THROTTLE % 15 0 60", "-Cell error: Store error: Zero rates are not supported"),
    ("13", "CL.THROTTLE % 15 2000000000 1", "-Cell error: Store error: Zero rates are not supported"),
    ("14", "CL.THROTTLE % 15 30 60 -1", "-ERR value is not an integer or out of range"),
    ("15", "CL.THROTTLE % -5 30 60", "-ERR value is not an integer or out of range"),
    (
        "16",
        "INCREX %; CL.THROTTLE % 15 30 60",
        "-WRONGTYPE Operation against a key holding the wrong kind of value",
    ),
    ("17", "CL.THROTTLE \"%\\xff\\x00\" 15 30 60", "[0 16 15 -1 2]"),
    ("18", "cl.Throttle % 15 30 60", "[0 16 15 -1 2]"),
    ("19", "CL.THROTTLE % 15 30 60; CL.THROTTLE % 15 10 60", "[0 16 14 -1 8]"),
    ("20", "CL.THROTTLE % 0 1 60; DEL %; CL.THROTTLE % 0 1 60", "[0 1 0 -1 60]"),
    ("20", "CL.THROTTLE % 0 1 60; EXISTS %", "1"),
    ("20", "CL.THROTTLE % 0 1 600; TTL %", "600"),
    (
        "23",
        "EVAL \"return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3],ARGV[4])\" 1 % 15 30 60 1",
        "[0 16 15 -1 2]",
    ),
    (
        "23",
        "EVAL \"return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3],ARGV[4])[3]\" 1 % 15 30 60 1",
        "15",
    ),
    ("24", "MODULE LIST", "[[name redis-cell ver 500] [name tidegate ver 1]]"),
    ("24", "COMMAND INFO CL.THROTTLE", "[[cl.throttle -5 [write fast] 1 1 1]]"),
    (
        "29",
        "THROTTLE % 10 100 60",
        "-ERR unknown command 'THROTTLE': use CL.THROTTLE, which answers in another order and whose limit is max_burst + 1",
    ),
    ("30", "INCREX % UBOUND 2 EX 60 ENX", "[1 1]"),
    ("30", "INCREX % UBOUND 2; INCREX % UBOUND 2; INCREX % UBOUND 2", "[2 0]"),
    ("31", "INCREX % BYINT 5 UBOUND 3; EXISTS %", "0"),
    ("32", "INCREX % BYINT 5 UBOUND 3 SATURATE EX 60", "[3 3]"),
    ("33", "INCREX % EX 600 ENX; INCREX % EX 5 ENX; TTL %", "600"),
    ("34", "INCREX %", "[1 1]"),
    ("35", "INCREX % PERSIST EX 5", "-ERR syntax error"),
    ("36", "INCREX % BYFLOAT inf", "-ERR value cannot be Infinity"),
    ("36", "INCREX % BYFLOAT 0.5", "[0.5 0.5]"),
    ("37", "INCREX % LBOUND 2 UBOUND 1", "-ERR LBOUND can't be greater than UBOUND"),
    ("38", "INCREX % EX 0", "-ERR invalid expire time in 'increx' command"),
    ("38", "INCREX % EXAT 1; EXISTS %", "0"),
    (
        "39",
        "CL.THROTTLE % 1 1 60; INCREX %",
        "-WRONGTYPE Operation against a key holding the wrong kind of value",
    ),
    ("40", "INCREX % UBOUND 1 EX 60 ENX; INCREX % UBOUND 1; INCREX % UBOUND 2", "[2 1]"),
    ("58", "HELLO 4", "-NOPROTO unsupported protocol version"),
    ("58", "HELLO x", "-ERR Protocol version is not an integer or out of range"),
    (
        "61",
        "AUTH p",
        "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
    ),
    ("62", "PING", "PONG"),
    ("62", "PING x", "x"),
    ("63", "ECHO \"a b\"", "a b"),
    ("64", "SELECT 0", "OK"),
    ("64", "SELECT 1", "-ERR DB index is out of range"),
    ("64", "SELECT x", "-ERR value is not an integer or out of range"),
    ("65", "CLIENT GETNAME", "nil"),
    ("65", "CLIENT SETINFO LIB-NAME x", "OK"),
    ("65", "CLIENT FOO", "-ERR unknown subcommand 'FOO'. Try CLIENT HELP."),
    (
        "65",
        "CLIENT SETNAME \"a b\"",
        "-ERR Client names cannot contain spaces, newlines or special characters.",
    ),
    ("67", "COMMAND DOCS", "[]"),
    ("67", "COMMAND INFO nothing", "[nil]"),
    ("67a", "EVALSHA abc 0", "-NOSCRIPT No matching script. Please use EVAL."),
    ("51", "CONFIG GET save", "[save ]"),
    ("51", "CONFIG GET Appendonly", "[appendonly no]"),
    ("68", "CONFIG GET maxmemory", "[]"),
    ("69", "CLUSTER SLOTS", "-ERR This instance has cluster support disabled"),
    ("71", "MULTI 1 2", "-ERR unknown command 'MULTI', with args beginning with: '1' '2' "),
    ("71", "PING 1 2", "-ERR wrong number of arguments for 'ping' command"),
    ("76", "INCREX % BYINT +5", "-ERR value is not an integer or out of range"),
];

#[test]
fn each_row_of_the_contract_is_answered_as_it_says() {
    let (_daemon, resp) = daemon("");
    let mut connection = Connection::open(resp);
    for (number, (row, commands, expected)) in ROWS.iter().enumerate() {
        let commands = commands.replace('%', &format!("key{number}"));
        let last = commands.split("; ").map(|command| connection.ask(command)).last().unwrap();
        assert_eq!(&last, expected, "row {row}: {commands}");
    }
    // A script that was sent once is known by its sum.
    let script = "return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3])";
    let sum = connection.ask(&format!("SCRIPT LOAD \"{script}\""));
    assert_eq!(connection.ask(&format!("EVALSHA {sum} 1 sha 15 30 60")), "[0 16 15 -1 2]");
}

#[test]
fn versions_of_the_protocol_pipelines_and_ends() {
    let (daemon, resp) = daemon("");
    let mut connection = Connection::open(resp);
    for (hello, proto) in [("HELLO", 2), ("HELLO 3 SETNAME me", 3)] {
        let told = connection.ask(hello);
        let parts = [format!(" proto {proto} id "), " mode standalone role master modules [".to_owned()];
        assert!(told.starts_with("[server redis version "), "rows 57, 58: {told}");
        assert!(parts.iter().all(|part| told.contains(part)), "rows 57, 58: {told}");
    }
    assert_eq!(connection.ask("CLIENT GETNAME"), "me", "row 59");
    assert_eq!(connection.ask("GET nothing"), "null", "row 77");
    assert_eq!(connection.ask("RESET"), "RESET", "row 70");
    assert_eq!(connection.ask("GET nothing"), "nil", "row 70");
    // Row 72: empty lines are skipped, and lines may end as they do on Unix; row 73: so are empty arrays.
    connection.send(b"\r\n\n*0\r\n*-1\r\nECHO \"a b\"\n");
    assert_eq!(connection.answer(), "a b", "rows 72, 73");
    // Row 74: answers come in order, and an error in one leaves the others.
    let mut pipeline = Vec::new();
    for number in 0..500 {
        pipeline.extend(format!("*2\r\n$4\r\nECHO\r\n$3\r\n{number:03}\r\nNOTHING\r\n").bytes());
    }
    connection.send(&pipeline);
    for number in 0..500 {
        assert_eq!(connection.answer(), format!("{number:03}"));
        assert!(connection.answer().starts_with("-ERR unknown command 'NOTHING'"));
    }
    // Row 75: half a command waits for its rest.
    connection.send(b"*1\r\n$4\r\nPI");
    std::thread::sleep(Duration::from_millis(50));
    connection.send(b"NG\r\n");
    assert_eq!(connection.answer(), "PONG");
    // Rows 72, 73: garbage closes one connection, and no other one.
    let mut other = Connection::open(resp);
    for (garbage, error) in [
        (&b"*x\r\n"[..], "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\nPING\r\n", "-ERR Protocol error: expected '$', got 'P'"),
        (b"*1\r\n$600000000\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"ECHO \"a\r\n", "-ERR Protocol error: unbalanced quotes in request"),
    ] {
        let mut wrong = Connection::open(resp);
        wrong.send(garbage);
        assert_eq!(wrong.answer(), error);
        assert!(wrong.is_closed());
    }
    assert_eq!(other.ask("PING"), "PONG");
    assert_eq!(connection.ask("QUIT"), "OK", "row 70");
    assert!(connection.is_closed(), "row 70");
    assert_eq!(daemon.metric("tidegate_requests_rejected_total{listener=\"resp\"}"), Some(4.0));
}

#[test]
fn a_page_that_posts_commands_charges_nobody() {
    let (daemon, resp) = daemon("");
    let body = "TG.REPORT default 3 '' user victim\r\n";
    for head in ["POST / HTTP/1.1\r\nHost: x\r\n", "PUT / HTTP/1.1\r\nhost: x\r\n"] {
        let mut connection = Connection::open(resp);
        connection.send(format!("{head}Content-Type: text/plain\r\n\r\n{body}").as_bytes());
        let mut answer = connection.answer();
        while answer.starts_with("-ERR unknown command") {
            answer = connection.answer();
        }
        assert!(answer.contains("this is HTTP"), "{answer}");
    }
    assert_eq!(daemon.check_cost(&[("user", "victim")], 0)["remaining"], 3);
}

#[test]
fn decisions_are_those_of_the_rules() {
    let (daemon, resp) = daemon("");
    let mut connection = Connection::open(resp);
    let first = connection.ask("TG.CHECK default 1 user u");
    assert!(first.starts_with("[1 3 2 0 ") && first.ends_with(" 0 0 a]"), "{first}");
    // The same bucket as over HTTP.
    assert_eq!(daemon.check(&[("user", "u")])["remaining"], 1);
    assert!(connection.ask("TG.REPORT default 1 once user u").starts_with("[1 3 0 0 "));
    assert!(connection.ask("TG.REPORT default 1 once user u").starts_with("[1 3 0 0 "));
    let denied = connection.ask("TG.CHECK default 1 user u");
    assert!(denied.starts_with("[0 3 0 ") && !denied.starts_with("[0 3 0 -1"), "{denied}");
    assert_eq!(connection.ask("TG.CHECK default 1 nobody x"), "[1 nil nil 0 nil 0 0 nil]");
    assert!(connection.ask("TG.CHECK default 4 user other").starts_with("[0 3 3 -1 "));
    let held = connection.ask("TG.RESERVE default 3 30s \"\" user r");
    let reservation = held.split(' ').nth(8).unwrap().to_owned();
    assert!(connection.ask("TG.CHECK default 1 user r").starts_with("[0 "));
    assert_eq!(connection.ask(&format!("TG.COMMIT {reservation} 1")), "[1 0 0]");
    assert_eq!(connection.ask(&format!("TG.CANCEL {reservation}")), "[0 0 0]");
    assert!(connection.ask("TG.CHECK default 2 user r").starts_with("[1 3 0 "));
    for (wrong, part) in [
        ("TG.CHECK default", "wrong number of arguments"),
        ("TG.CHECK default 1 user", "a name and a value"),
        ("TG.CHECK default -1 user u", "out of range"),
        ("TG.COMMIT nothing 1", "this is no reservation"),
    ] {
        let answer = connection.ask(wrong);
        assert!(answer.starts_with("-ERR") && answer.contains(part), "{wrong}: {answer}");
    }
}

#[test]
fn clients_show_a_password_where_there_are_some() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("passwords");
    std::fs::write(&file, "# for gateways\nfirst\nsecond\n").unwrap();
    let (_daemon, resp) = daemon(&format!("resp_passwords = \"{}\"\n", file.display()));
    let mut connection = Connection::open(resp);
    assert_eq!(connection.ask("CL.THROTTLE k 1 1 60"), "-NOAUTH Authentication required.", "row 60");
    assert!(connection.ask("HELLO 3").starts_with("-NOAUTH HELLO must be called"), "row 60");
    assert!(connection.ask("AUTH wrong").starts_with("-WRONGPASS"), "row 61");
    assert!(connection.ask("HELLO 3 AUTH default wrong").starts_with("-WRONGPASS"), "row 59");
    assert_eq!(connection.ask("PING"), "-NOAUTH Authentication required.");
    assert!(connection.ask("HELLO 3 AUTH default second").starts_with("[server redis"), "row 59");
    assert_eq!(connection.ask("CL.THROTTLE k 1 1 60"), "[0 2 1 -1 60]");
    assert_eq!(connection.ask("RESET"), "RESET");
    assert_eq!(connection.ask("PING"), "-NOAUTH Authentication required.");
    assert_eq!(connection.ask("AUTH first"), "OK", "row 61");
}

fn installed(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/redis-clients").join(name);
    path.exists().then_some(path)
}

/// What a real client does, in Python: the version of redis-py is the one on its path.
const PYTHON: &str = r#"
import os, redis
port = int(os.environ["PORT"])
for protocol in (2, 3):
    client = redis.Redis(port=port, protocol=protocol)
    key = f"py{redis.__version__}{protocol}"
    assert client.ping()
    told = [client.execute_command("CL.THROTTLE", key, 1, 1, 3600) for _ in range(3)]
    assert [one[0] for one in told] == [0, 0, 1], told
    pipe = client.pipeline(transaction=False)
    for _ in range(100):
        pipe.execute_command("CL.THROTTLE", key + "p", 49, 1, 3600)
    assert sum(one[0] for one in pipe.execute()) == 50
    script = client.register_script("return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3],ARGV[4])")
    assert list(script(keys=[key + "s"], args=[15, 30, 60, 1]))[:3] == [0, 16, 15]
    assert client.delete(key) == 1
    assert list(client.execute_command("TG.CHECK", "default", 1, "user", key))[:3] == [1, 3, 2]
print("ok", redis.__version__)
"#;

#[test]
fn real_clients_in_python_and_node_ask_as_they_ask_redis() {
    let (_daemon, resp) = daemon("");
    let mut judged = 0;
    for version in ["5", "6", "7", "8"] {
        let Some(library) = installed(&format!("redis-py-{version}")) else { continue };
        let mut python = Command::new("python3");
        python.args(["-c", PYTHON]).env("PYTHONPATH", library).env("PORT", resp.port().to_string());
        let ran = python.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "rows 41 to 44: redis-py {version}: {said}");
        judged += 1;
    }
    if let Some(modules) = installed("node/node_modules") {
        let script = format!(
            "const Redis = require('ioredis'); const {{ createClient }} = require('redis');
            (async () => {{
              const one = new Redis({port});
              const told = await one.call('CL.THROTTLE', 'io', 0, 1, 60);
              if (told.join() !== '0,1,0,-1,60') throw new Error(told.join());
              const denied = await one.pipeline([['call', 'CL.THROTTLE', 'io', 0, 1, 60]]).exec();
              if (denied[0][1][0] !== 1) throw new Error(JSON.stringify(denied));
              await one.quit();
              const other = await createClient({{ url: 'redis://127.0.0.1:{port}' }}).connect();
              const all = await Promise.all(Array.from({{ length: 50 }}, () => other.sendCommand(['CL.THROTTLE', 'node', '9', '1', '3600'])));
              if (all.filter((one) => one[0] === 0).length !== 10) throw new Error(JSON.stringify(all));
              const asked = ['CL.THROTTLE', 'piped', '0', '1', '3600'];
              const piped = await other.multi().addCommand(asked).addCommand(asked).execAsPipeline();
              if (piped.map((one) => one[0]).join() !== '0,1') throw new Error(JSON.stringify(piped));
              await other.close();
            }})().catch((error) => {{ console.error(error); process.exit(1); }});",
            port = resp.port()
        );
        let mut node = Command::new("node");
        let ran = node.args(["-e", &script]).env("NODE_PATH", modules).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "rows 45, 47: ioredis or node-redis: {said}");
        judged += 1;
    }
    let run = |program: &str, arguments: &[&str]| {
        let port = resp.port().to_string();
        let ran = Command::new(program).args(["-p", &port]).args(arguments).output().unwrap();
        let warned = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && !warned.contains("WARNING"), "{program}: {warned}");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let told = run("redis-cli", &["-3", "CL.THROTTLE", "cli", "15", "30", "60"]);
    assert_eq!(told.lines().count(), 5, "row 50: {told}");
    let said =
        run("redis-benchmark", &["-q", "-n", "2000", "-P", "64", "CL.THROTTLE", "bench", "15", "30", "60"]);
    assert!(said.contains("requests per second"), "row 51: {said}");
    if judged < 5 {
        not_judged("not all of redis-py 5 to 8, ioredis and node-redis are installed: tests/run does so");
    }
}
