//! The Debian package: built from the binary under test, installed below a folder, started as its unit says,
//! upgraded and removed.
//!
//! dpkg changes owners, so installing needs root: elsewhere the test says that it judged less.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::{SOON, command, eventually, free_tcp, http, not_judged};
use crate::{done, tool, with_mdbook};

const UNIT: &str = include_str!("../../deploy/debian/tidegate.service");

fn build(version: &str, folder: &Path) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/debian/build");
    let mut build = with_mdbook(Command::new(script));
    let said = done(build.arg(command::TIDEGATE).arg(version).arg(folder));
    PathBuf::from(said.lines().last().unwrap())
}

fn dpkg(root: &Path, arguments: &[&str]) {
    let mut dpkg = Command::new("dpkg");
    // Scripts run with the programs of this machine, and change only what is below the folder.
    dpkg.arg(format!("--root={}", root.display())).args(["--force-script-chrootless", "--force-depends"]);
    done(dpkg.args(arguments));
}

/// The next message to a supervisor.
fn heard(socket: &UnixDatagram) -> String {
    let mut message = [0; 256];
    let length = socket.recv(&mut message).expect("the daemon tells its supervisor");
    String::from_utf8_lossy(&message[..length]).into_owned()
}

#[test]
fn the_package_installs_starts_as_its_unit_says_upgrades_and_goes() {
    let folder = TempDir::new().unwrap();
    let package = build("0.1.0", folder.path());
    let listed = done(Command::new("dpkg-deb").arg("-c").arg(&package));
    assert!(
        listed.contains("./usr/bin/tidegate") && listed.contains("./etc/tidegate/tidegate.toml"),
        "{listed}"
    );
    // Without mdBook the pages are there as they are written.
    let manual = if tool("bin/mdbook").is_some() {
        ["manual/docs/reference/rules.html", "manual/index.html"]
    } else {
        ["manual/docs/reference/rules.md", "manual/deploy/envoy/envoy.yaml"]
    };
    for shipped in manual.into_iter().chain([
        "man/man1/tidegate-serve.1.gz",
        "man/man5/tidegate.toml.5.gz",
        "man/man5/tidegate-rules.toml.5.gz",
        "bash-completion/completions/tidegate",
        "examples/envoy/envoy.yaml",
        "examples/traefik/tidegate.yaml",
        "examples/prometheus/tidegate.rules.yml",
        "examples/grafana/worldwide.json",
    ]) {
        assert!(listed.contains(shipped), "{shipped}: {listed}");
    }
    if done(Command::new("id").arg("-u")).trim() != "0" {
        return not_judged("dpkg needs root to install");
    }
    let root = folder.path().join("root");
    for made in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
        std::fs::create_dir_all(root.join(made)).unwrap();
    }
    std::fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    dpkg(&root, &["-i", package.to_str().unwrap()]);
    let users = std::fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(users.contains("tidegate:"), "the user was made: {users}");
    starts_as_the_unit_says(&root, folder.path());

    let file = root.join("etc/tidegate/tidegate.toml");
    let changed = std::fs::read_to_string(&file).unwrap() + "# a change of the operator's\n";
    std::fs::write(&file, &changed).unwrap();
    std::fs::create_dir_all(root.join("var/lib/tidegate")).unwrap();
    dpkg(&root, &["-i", build("0.1.1", folder.path()).to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), changed, "an upgrade keeps the configuration");
    dpkg(&root, &["-r", "tidegate"]);
    assert!(!root.join("usr/bin/tidegate").exists() && file.exists(), "removal keeps the configuration");
    assert!(root.join("var/lib/tidegate").exists(), "and the state");
    dpkg(&root, &["-P", "tidegate"]);
    assert!(!file.exists() && !root.join("var/lib/tidegate").exists(), "purging keeps nothing");
}

fn starts_as_the_unit_says(root: &Path, folder: &Path) {
    let start = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let mut words = start.split(' ').map(|word| match word.strip_prefix('/') {
        Some(path) => root.join(path).display().to_string(),
        None => word.to_owned(),
    });
    let (socket, http) = (folder.join("notify"), free_tcp());
    let supervisor = UnixDatagram::bind(&socket).unwrap();
    supervisor.set_read_timeout(Some(SOON)).unwrap();
    let mut daemon = command::of(&words.next().unwrap(), folder);
    daemon.args(words).env("NOTIFY_SOCKET", &socket).env("TIDEGATE_LISTEN__DRAIN", "0s");
    daemon.env("TIDEGATE_LISTEN__HTTP", http.to_string());
    daemon.env("TIDEGATE_LISTEN__GRPC", free_tcp().to_string());
    let mut daemon = Process::start(&mut daemon, &folder.join("daemon.log"));
    assert_eq!(heard(&supervisor), "READY=1", "{}", daemon.output());
    assert_eq!(http::get(http, "/readyz", &[]).status, 200, "ready means ready");
    daemon.signal("HUP");
    assert_eq!([heard(&supervisor), heard(&supervisor)], ["RELOADING=1", "READY=1"]);
    daemon.signal("TERM");
    assert_eq!(heard(&supervisor), "STOPPING=1");
    assert_eq!(daemon.wait(Duration::from_secs(30)).code(), Some(0));
}

#[test]
fn a_supervisor_that_is_gone_stops_nothing() {
    let folder = TempDir::new().unwrap();
    let http = free_tcp();
    let mut daemon = command::command(folder.path());
    daemon.args(["serve", "--http", &http.to_string(), "--grpc", &free_tcp().to_string()]);
    daemon.env("NOTIFY_SOCKET", "@nobody-listens-here").env("TIDEGATE_LISTEN__DRAIN", "0s");
    let daemon = Process::start(&mut daemon, &folder.path().join("daemon.log"));
    eventually("the daemon serves", || {
        http::raw(http, b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    });
    eventually("it says so", || daemon.output().contains("NOTIFY_SOCKET").then_some(()));
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let verified = Command::new("systemd-analyze").arg("--version").output();
    if !verified.is_ok_and(|output| output.status.success()) {
        return not_judged("systemd-analyze is not installed");
    }
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tidegate.service");
    std::fs::write(&file, UNIT.replace("/usr/bin/tidegate", command::TIDEGATE)).unwrap();
    let said = done(Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&file));
    assert!(!said.contains("tidegate.service:"), "{said}");
    let exposed = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20"])
        .arg(&file)
        .output();
    let exposed = exposed.unwrap();
    // At most 2.0 of 10.
    assert!(exposed.status.success(), "{}", String::from_utf8_lossy(&exposed.stdout));
}
