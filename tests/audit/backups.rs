//! Backups of the database and of Redis in a bucket: the scripts of `deploy`, with the daemon's own client
//! for it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::bucket::Bucket;
use super::support::process::Process;
use super::support::{command, eventually, free_tcp};

/// A script of `deploy` with what reaches this bucket.
fn script(name: &str, bucket: &Bucket) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name));
    reaching(&mut command, bucket);
    command.env("TIDEGATE", command::TIDEGATE);
    command
}

fn reaching(command: &mut Command, bucket: &Bucket) {
    command.env("AWS_ENDPOINT", format!("http://{}", bucket.address)).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_REGION", "eu").env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// A store that answers every question with 403.
fn forbidding() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let mut question = BufReader::new(&socket).lines().map_while(Result::ok);
            let _ = question.find(String::is_empty);
            let answer = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = (&socket).write_all(answer);
        }
    });
    address
}

#[test]
fn files_of_a_bucket_are_put_listed_fetched_and_removed() {
    let (folder, bucket) = (TempDir::new().unwrap(), Bucket::start());
    let object = |arguments: &[&str]| {
        let mut command = command::command(folder.path());
        reaching(&mut command, &bucket);
        let output = command.arg("object").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), said)
    };
    std::fs::write(folder.path().join("one"), "first").unwrap();
    std::fs::write(folder.path().join("two"), "second").unwrap();
    let url = "s3://backups/here/a/one";
    for _ in 0..2 {
        assert_eq!(object(&["put", "--new", "one", url]), (Some(0), String::new()), "the same file, again");
    }
    let (code, said) = object(&["put", "--new", "two", url]);
    assert!(code == Some(1) && said.contains("another file"), "{said}");
    assert_eq!(object(&["put", "two", "s3://backups/here-too/two"]).0, Some(0));
    assert_eq!(object(&["list", "s3://backups/here"]), (Some(0), "a/one\n".to_owned()));
    let both = ["one", "two"].map(|file| {
        let mut put = command::command(folder.path());
        reaching(&mut put, &bucket);
        put.args(["object", "put", "--new", file, "s3://backups/here/raced"]);
        put.stderr(Stdio::null()).spawn().unwrap()
    });
    let ended = both.map(|mut put| put.wait().unwrap().success());
    assert!(ended[0] != ended[1], "two that are not the same: {ended:?}");
    assert_eq!(object(&["get", url, "back"]), (Some(0), String::new()));
    assert_eq!(std::fs::read_to_string(folder.path().join("back")).unwrap(), "first");
    assert_eq!(object(&["remove", url, url]).0, Some(0));
    let (code, said) = object(&["get", url, "gone"]);
    assert_eq!(code, Some(1), "PostgreSQL takes it for the end of the archive: {said}");
    let forbidding = forbidding();
    for url in [url, "nowhere"] {
        let mut refused = command::command(folder.path());
        reaching(&mut refused, &bucket);
        refused.env("AWS_ENDPOINT", format!("http://{forbidding}"));
        let output = refused.args(["object", "get", url, "gone"]).output().unwrap();
        assert_eq!(output.status.code(), Some(126), "PostgreSQL stops there: {output:?}");
    }
    assert!(!folder.path().join("gone").exists() && !folder.path().join("gone.part").exists());
}

#[test]
fn the_database_recovers_from_a_bucket_to_a_moment() {
    let bucket = Bucket::start();
    let said = done(script("postgres/drill", &bucket).arg(command::TIDEGATE).arg("s3://backups/postgres"));
    assert!(said.contains("rules and audit log are as they were"), "{said}");
    let objects = bucket.objects();
    let some = |part: &str| {
        objects.iter().any(|(path, _)| path.starts_with("/backups/postgres/") && path.contains(part))
    };
    assert!(some("base/") && some("wal/0000"), "{objects:?}");
}

#[test]
fn a_primary_of_redis_comes_back_from_a_bucket() {
    let (folder, bucket) = (TempDir::new().unwrap(), Bucket::start());
    let port = free_tcp().port();
    let ask = |arguments: &[&str]| {
        let output =
            Command::new("redis-cli").args(["-p", &port.to_string()]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let start = |data: &Path, appendonly: &str| {
        let mut server = Command::new("redis-server");
        server.args(["--port", &port.to_string(), "--save", "", "--appendonly", appendonly]);
        server.args(["--repl-diskless-sync-delay", "0", "--dir"]).arg(data);
        let server = Process::start(&mut server, &folder.path().join(format!("redis-{appendonly}.log")));
        eventually("Redis answers", || (ask(&["PING"]) == "PONG").then_some(()));
        server
    };
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let server = start(&data, "no");
    assert_eq!(ask(&["SET", "counted", "7"]), "OK");
    let primary = format!("127.0.0.1:{port}");
    let backup = || {
        let mut backup = script("redis/backup", &bucket);
        let said = done(backup.env("KEEP", "1").args(["s3://backups/redis", &primary]));
        // Two of one second would have one name.
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        said.lines().last().unwrap().to_owned()
    };
    let (first, newest) = (backup(), backup());
    assert_ne!(first, newest);
    assert_eq!(bucket.objects().len(), 1, "the last one is kept");
    drop(server);
    let restored = folder.path().join("restored");
    let snapshot = format!("{newest}/127.0.0.1_{port}");
    done(script("redis/restore", &bucket).arg(&snapshot).arg(&restored));
    let _server = start(&restored, "yes");
    assert_eq!(ask(&["GET", "counted"]), "7");
}
