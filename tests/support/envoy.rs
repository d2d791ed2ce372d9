//! A stock Envoy. `tests/run` installs it and says where it is; without that its tests fail, they do not
//! skip.

use std::path::Path;
use std::process::Command;

use super::process::Process;

/// Starts Envoy with this configuration; its files go into `folder`.
pub(crate) fn start(folder: &Path, config: &str) -> Process {
    start_with(folder, config, &["--disable-hot-restart"], "envoy.log")
}

/// Starts the Envoy of one epoch. A later one takes the place of that before it, which drains for two seconds
/// and ends after four.
pub(crate) fn start_epoch(folder: &Path, config: &str, base: u16, epoch: u8) -> Process {
    let (base, number) = (base.to_string(), epoch.to_string());
    let reload = ["--base-id", &base, "--restart-epoch", &number];
    let times = ["--drain-time-s", "2", "--parent-shutdown-time-s", "4"];
    start_with(folder, config, &[&reload[..], &times[..]].concat(), &format!("envoy-{epoch}.log"))
}

fn start_with(folder: &Path, config: &str, arguments: &[&str], log: &str) -> Process {
    let file = folder.join("envoy.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(program());
    command.arg("-c").arg(&file).args(["--concurrency", "1", "--log-level", "warning"]).args(arguments);
    Process::start(&mut command, &folder.join(log))
}

fn program() -> String {
    let named = std::env::var("TIDEGATE_TEST_ENVOY").ok();
    let usable = |path: &String| {
        Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/target/envoy");
    named.into_iter().chain([installed.to_owned(), "envoy".to_owned()]).find(usable).unwrap_or_else(|| {
        panic!("no Envoy: run tests/run, which installs it, or name one in TIDEGATE_TEST_ENVOY")
    })
}
