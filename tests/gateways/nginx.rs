//! nginx with `deploy/nginx`, for the table; `tests/nginx.rs` asks it everything else.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::support::{self, free_tcp, origin};
use super::{Gateway, every, replaced};

pub(super) fn start_with(daemons: &[SocketAddr], change: impl Fn(String) -> String) -> Gateway {
    let folder = TempDir::new().unwrap();
    let (addr, service) = (free_tcp(), origin::start());
    let config = include_str!("../../deploy/nginx/tidegate.conf");
    let config = replaced(config, "listen 127.0.0.1:8088;", &format!("listen {addr};"));
    let config =
        replaced(&config, "proxy_pass http://127.0.0.1:8000;", &format!("proxy_pass http://{service};"));
    let servers: String = daemons.iter().map(|at| format!("    server {at} fail_timeout=1s;\n")).collect();
    let config = replaced(&config, "    server 127.0.0.1:8080 fail_timeout=1s;\n", &servers);
    let process = support::nginx::start(folder.path(), &change(config));
    Gateway::serving(addr, process, folder)
}

#[test]
fn client_and_service_learn_from_nginx_what_tidegate_says() {
    every::tells_what_tidegate_says(|daemons| start_with(daemons, |config| config), false);
}
