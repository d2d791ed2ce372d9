//! A stock nginx. `tests/run` installs it and says where it is; without that its tests fail, they do not
//! skip.

use std::path::Path;
use std::process::Command;

use super::process::Process;

/// Starts nginx with this text as a file of `conf.d`; its files go into `folder`.
pub(crate) fn start(folder: &Path, config: &str) -> Process {
    std::fs::write(folder.join("tidegate.conf"), config).unwrap();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {kind};\n"))
        .collect();
    let main = format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {{ worker_connections 16384; }}\n\
         http {{\naccess_log off;\n{temporary}include tidegate.conf;\n}}\n"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, main).unwrap();
    let mut command = Command::new(program());
    command.arg("-p").arg(folder).arg("-e").arg("stderr").arg("-c").arg(&file);
    Process::start(&mut command, &folder.join("nginx.log"))
}

fn program() -> String {
    let named = std::env::var("TIDEGATE_TEST_NGINX").ok();
    let usable =
        |path: &String| Command::new(path).arg("-v").output().is_ok_and(|output| output.status.success());
    named.into_iter().chain(["nginx".to_owned(), "/usr/sbin/nginx".to_owned()]).find(usable).unwrap_or_else(
        || panic!("no nginx: run tests/run, which installs it, or name one in TIDEGATE_TEST_NGINX"),
    )
}
