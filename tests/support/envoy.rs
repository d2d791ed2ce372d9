//! A stock Envoy. `tests/run` installs it and says where it is; without that its tests fail, they do not
//! skip.

use std::path::Path;
use std::process::Command;

use super::process::Process;

/// Starts Envoy with this configuration; its files go into `folder`.
pub(crate) fn start(folder: &Path, config: &str) -> Process {
    let file = folder.join("envoy.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(program());
    command.arg("-c").arg(&file).args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]);
    Process::start(&mut command, &folder.join("envoy.log"))
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
