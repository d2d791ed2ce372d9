//! `sim chaos --deployment`: a story on daemons that somebody else started, broken by commands of their
//! operator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const RULES: &str = "[[rules]]\nname = \"world\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 200\nwindow = \"1s\"\n\
                     [rules.global]\nmode = \"gossip\"\n";

const STORY: &str = r#"
name = "A daemon stands still"
length = "6s"
ways = ["gossip"]
[rule]
limit = 200
window = "1s"
[demand]
pattern = "bal2"
[[regions]]
name = "eu"
[[regions]]
name = "us"
[[faults]]
at = "2s"
for = "1s"
kind = "stop"
region = "us"
"#;

/// A daemon that ends with the test.
struct Daemon {
    process: Child,
    http: u16,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The daemon's program, which is built beside this one.
fn tidegate() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_sim")).with_file_name("tidegate")
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Ports that were free a moment ago, for TCP and UDP.
fn ports<const COUNT: usize>() -> [u16; COUNT] {
    let held = [(); COUNT].map(|()| {
        loop {
            let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = tcp.local_addr().unwrap().port();
            if let Ok(udp) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) {
                break (port, tcp, udp);
            }
        }
    });
    held.each_ref().map(|(port, ..)| *port)
}

/// A region of one daemon on a rules file, in memory.
fn start(folder: &Path, region: &str, (own, other): (u16, u16), [http, grpc]: [u16; 2]) -> Daemon {
    done(
        Command::new(tidegate())
            .current_dir(folder)
            .args(["cert", "issue", "--ca", "ca", "--region", region, "--node", region, "--out", region]),
    );
    let config = format!(
        "region = \"{region}\"\nnode = \"{region}\"\n[listen]\npeer = \"127.0.0.1:{own}\"\n[peers]\njoin = [\"127.0.0.1:{other}\"]\n\
         regions = [\"eu\", \"us\"]\n[peers.tls]\nca = \"ca/ca.pem\"\ncert = \"{region}/node.pem\"\nkey = \"{region}/node.key\"\n"
    );
    std::fs::write(folder.join(format!("{region}.toml")), config).unwrap();
    let process = Command::new(tidegate())
        .current_dir(folder)
        .args(["serve", "--config", &format!("{region}.toml"), "--rules", "rules.toml"])
        .args(["--http", &format!("127.0.0.1:{http}"), "--grpc", &format!("127.0.0.1:{grpc}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Daemon { process, http }
}

struct Played {
    code: Option<i32>,
    said: String,
    error: String,
}

/// Plays the story on the daemons that this file names.
fn play(folder: &Path, deployment: &str) -> Played {
    std::fs::write(folder.join("story.toml"), STORY).unwrap();
    std::fs::write(folder.join("deployment.toml"), deployment).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .current_dir(folder)
        .args(["chaos", "story.toml", "--deployment", "deployment.toml", "--no-plots", "--out", "out"])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Played { code: output.status.code(), said: text(&output.stdout), error: text(&output.stderr) }
}

fn addresses(eu: u16, us: u16) -> String {
    format!(
        "[[regions]]\nname = \"us\"\ndaemons = [\"127.0.0.1:{us}\"]\n[[regions]]\nname = \"eu\"\ndaemons = [\"localhost:{eu}\"]\n"
    )
}

#[test]
fn a_story_is_played_on_daemons_that_are_there_and_broken_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    done(Command::new(tidegate()).current_dir(top).args(["cert", "ca", "--out", "ca"]));
    std::fs::write(top.join("rules.toml"), RULES).unwrap();
    let [one, two, a, b, c, d] = ports::<6>();
    let eu = start(top, "eu", (one, two), [a, b]);
    let us = start(top, "us", (two, one), [c, d]);
    let pid = us.process.id();
    let faults = format!(
        "[[faults]]\nbegin = \"kill -STOP {pid} && touch stopped\"\nend = \"kill -CONT {pid} && touch continued\"\n"
    );
    let deployment = addresses(eu.http, us.http) + &faults;
    // What a starved machine spoils is not spoiled twice.
    let played = play(top, &deployment);
    let played = if played.code == Some(0) { played } else { play(top, &deployment) };
    assert_eq!(played.code, Some(0), "{}{}", played.said, played.error);
    assert!(played.said.contains("gossip: used "), "{}", played.said);
    assert!(played.said.contains("kept"), "{}", played.said);
    assert!(top.join("stopped").exists() && top.join("continued").exists());

    // Another rule than the story's is named with the rules that it needs.
    std::fs::write(top.join("rules.toml"), RULES.replace("limit = 200", "limit = 90")).unwrap();
    done(Command::new("kill").args(["-HUP", &pid.to_string()]));
    done(Command::new("kill").args(["-HUP", &eu.process.id().to_string()]));
    std::thread::sleep(std::time::Duration::from_secs(3));
    let played = play(top, &deployment);
    assert_eq!(played.code, Some(2), "{}{}", played.said, played.error);
    assert!(played.error.contains("holds a limit of 90 by \"gossip\""), "{}", played.error);
    assert!(played.error.contains(RULES), "{}", played.error);
}

#[test]
fn what_a_deployment_file_lacks_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |deployment: &str, why: &str| {
        let played = play(folder.path(), deployment);
        assert_eq!(played.code, Some(2), "{}", played.error);
        assert!(played.error.contains(why), "{:?} is not in {}", why, played.error);
    };
    let both = addresses(1, 2);
    refused(&both, "0 [[faults]] with commands, and the story has 1");
    refused(&format!("{both}[[faults]]\nbegin = \"true\"\n"), "\"stop\" needs `end`");
    refused(&format!("{both}[[faults]]\nend = \"true\"\n"), "deployment.toml:7:1: a fault needs `begin`");
    refused(&both.replace("us", "ap"), "the story has a region \"us\", and the deployment has none");
    refused("[[regions]]\nname = \"eu\"\ndaemons = [\"nowhere\"]\n", "\"nowhere\" is no address");
}
