//! The container image's root filesystem: assembled by the script that the Dockerfile calls, and run as a
//! container engine would: by a user without rights, on a filesystem that cannot be written.

use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::{command, eventually, free_tcp, http, not_judged};
use crate::{done, shipped};

const RULES: &str = "[[rules]]\nname = \"a\"\nalgorithm = \"fixed_window\"\nlimit = 1\nwindow = \"24h\"\n";

#[test]
fn the_image_serves_without_rights_on_a_filesystem_that_cannot_be_written() {
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("root");
    done(Command::new(shipped("image/rootfs")).arg(command::TIDEGATE).arg(&root));
    let files = done(Command::new("find").arg(&root).args(["-type", "f", "-name", "*sh"]));
    assert_eq!(files.trim(), "", "no shell is in the image");
    let again = Command::new(shipped("image/rootfs")).arg(command::TIDEGATE).arg(&root).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "a folder that is there already is left alone");
    if done(Command::new("id").arg("-u")).trim() != "0" {
        return not_judged("only root may change the root of a process");
    }

    std::fs::write(root.join("etc/tidegate/rules.toml"), RULES).unwrap();
    let (http, log) = (free_tcp(), folder.path().join("daemon.log"));
    // Volumes where the Dockerfile has them, everything else cannot be written.
    let enter = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" \
        && for place in var/lib/tidegate run/tidegate; do mount -t tmpfs -o uid=65532,mode=0700 none \"$0/$place\"; done \
        && cd \"$0\" && exec chroot --userspec=65532:65532 \"$0\" /usr/bin/tidegate serve";
    let mut contained = command::of("unshare", folder.path());
    contained.args(["--mount", "--propagation", "private", "sh", "-c", enter]).arg(&root);
    contained.env("TIDEGATE_CONFIG", "/etc/tidegate/tidegate.toml").env("RUNTIME_DIRECTORY", "/run/tidegate");
    contained.env("TIDEGATE_LISTEN__HTTP", http.to_string()).env("TIDEGATE_LISTEN__DRAIN", "0s");
    contained.env("TIDEGATE_LISTEN__GRPC", free_tcp().to_string());
    let mut daemon = Process::start(&mut contained, &log);
    eventually(&format!("the daemon serves: {}", daemon.output()), || {
        http::raw(http, b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .filter(|reply| reply.status == 200)
    });
    let ask = || http::post(http, "/v1/check", json!({ "attributes": { "user": "a" } }).to_string()).json();
    let answers = [ask()["allowed"].clone(), ask()["allowed"].clone()];
    assert_eq!(answers, [json!(true), json!(false)], "{}", daemon.output());
    let owner = done(Command::new("stat").args(["-c", "%u"]).arg(format!("/proc/{}", daemon.id())));
    assert_eq!(owner.trim(), "65532", "it runs as nobody of importance");
    daemon.signal("TERM");
    assert_eq!(daemon.wait(Duration::from_secs(30)).code(), Some(0), "{}", daemon.output());
}

#[test]
fn the_dockerfile_builds_what_the_script_assembles() {
    let dockerfile = std::fs::read_to_string(shipped("image/Dockerfile")).unwrap();
    for line in ["FROM scratch", "USER 65532:65532", "deploy/image/rootfs target/release/tidegate /rootfs"] {
        assert!(dockerfile.contains(line), "{line}");
    }
    let ignored = std::fs::read_to_string(shipped("../.dockerignore")).unwrap();
    assert!(ignored.lines().any(|line| line == "target"), "a build does not send what was built before");
}
