//! A stock gateway before the daemons of a region: Envoy or nginx, by the file that `deploy/` gives to users,
//! with other ports.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::clients::get;
use super::process::{PATIENCE, Process, free_port};
use crate::plan::GatewayKind;

const ENVOY: &str = include_str!("../../../deploy/envoy/envoy.yaml");
const NGINX: &str = include_str!("../../../deploy/nginx/tidegate.conf");
/// nginx asks a server again that did not answer when `fail_timeout` is over.
const FAIL_TIMEOUT: Duration = Duration::from_secs(1);

/// The service behind all gateways: it answers every request with 200.
pub(super) async fn service() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::task::spawn_local(async move {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => drop(tokio::task::spawn_local(serve(socket))),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    Ok(address)
}

/// Answers what comes on one connection. No request has a body.
async fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    loop {
        while let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            head.drain(..end + 4);
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nserved\n").await?;
        }
        if socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
}

/// One gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    kind: GatewayKind,
    pub(super) address: SocketAddr,
    /// Address at which Envoy tells its state.
    admin: SocketAddr,
    log: PathBuf,
    command: Command,
    process: Option<Process>,
}

impl Gateway {
    /// Starts it before these daemons, given with the address that it asks of each.
    pub(super) fn start(
        kind: GatewayKind,
        folder: &Path,
        daemons: &[SocketAddr],
        service: SocketAddr,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let (address, admin) = (free_port()?, free_port()?);
        let log = folder.join("gateway.log");
        let command = if kind == GatewayKind::Envoy {
            let file = folder.join("envoy.yaml");
            std::fs::write(&file, envoy_file((address, admin, service), daemons)?)?;
            let mut command = Command::new(program(&["target/envoy"], "envoy", "TIDEGATE_TEST_ENVOY"));
            command.arg("-c").arg(&file).args(["--concurrency", "1", "--disable-hot-restart"]);
            command.args(["--log-level", "warning"]);
            command
        } else {
            std::fs::write(folder.join("tidegate.conf"), nginx_file(address, service, daemons)?)?;
            let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
            let temporary: String = kinds.map(|kind| format!("{kind}_temp_path {kind};\n")).concat();
            let main = format!(
                "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {{}}\n\
                 http {{\naccess_log off;\n{temporary}include tidegate.conf;\n}}\n"
            );
            let file = folder.join("nginx.conf");
            std::fs::write(&file, main)?;
            let mut command = Command::new(program(&["/usr/sbin/nginx"], "nginx", "TIDEGATE_TEST_NGINX"));
            command.arg("-p").arg(folder).args(["-e", "stderr"]).arg("-c").arg(&file);
            command
        };
        let mut gateway = Self { kind, address, admin, log, command, process: None };
        gateway.start_again()?;
        Ok(gateway)
    }

    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        let process = Process::start(&mut self.command, &self.log)
            .context("clients ask a gateway here: tests/run installs Envoy and nginx")?;
        self.process = Some(process);
        Ok(())
    }

    /// Waits until it asks this daemon, of which it knows this address.
    pub(super) async fn asks(&mut self, daemon: SocketAddr) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asks = if self.kind == GatewayKind::Envoy {
                let healthy = format!("tidegate::{daemon}::health_flags::healthy");
                get(self.admin, "/clusters").await.is_some_and(|(_, page)| page.contains(&healthy))
            } else {
                TcpStream::connect(self.address).await.is_ok()
            };
            if asks {
                break;
            }
            if self.process.as_mut().is_none_or(Process::has_ended) || Instant::now() > deadline {
                let log = std::fs::read(&self.log).unwrap_or_default();
                bail!("the gateway does not ask {daemon}:\n{}", String::from_utf8_lossy(&log));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if self.kind == GatewayKind::Nginx {
            tokio::time::sleep(FAIL_TIMEOUT * 3 / 2).await;
        }
        Ok(())
    }
}

/// A text of a file of ours is exchanged. It must be there once, so that what is played is what users are
/// given.
fn exchange(file: &str, from: &str, to: &str) -> anyhow::Result<String> {
    ensure!(file.matches(from).count() == 1, "the file in deploy/ says {from:?} once");
    Ok(file.replace(from, to))
}

fn envoy_file(
    (address, admin, service): (SocketAddr, SocketAddr, SocketAddr),
    daemons: &[SocketAddr],
) -> anyhow::Result<String> {
    const ENDPOINT: &str = "              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8081 } } }\n";
    let mut file = ENVOY.to_owned();
    for (from, to) in [("10000", address), ("9901", admin), ("8000", service)] {
        file = exchange(&file, &format!("port_value: {from}"), &format!("port_value: {}", to.port()))?;
    }
    let of = |daemon: &SocketAddr| ENDPOINT.replace("8081", &daemon.port().to_string());
    exchange(&file, ENDPOINT, &daemons.iter().map(of).collect::<String>())
}

fn nginx_file(address: SocketAddr, service: SocketAddr, daemons: &[SocketAddr]) -> anyhow::Result<String> {
    const SERVER: &str = "    server 127.0.0.1:8080 fail_timeout=1s;\n";
    let mut file = exchange(NGINX, "listen 127.0.0.1:8088;", &format!("listen {address};"))?;
    file = exchange(&file, "proxy_pass http://127.0.0.1:8000;", &format!("proxy_pass http://{service};"))?;
    let of = |daemon: &SocketAddr| SERVER.replace("8080", &daemon.port().to_string());
    exchange(&file, SERVER, &daemons.iter().map(of).collect::<String>())
}

/// Returns the path of a gateway's program: named by this variable, at one of these paths, or in `PATH`.
fn program(paths: &[&str], name: &str, variable: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let ours = paths.iter().map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path));
    named.into_iter().chain(ours).find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_for_users_are_played_with_other_ports_alone() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let daemons = [at(2_001), at(2_002)];
        let envoy = envoy_file((at(2_003), at(2_004), at(2_005)), &daemons).unwrap();
        let nginx = nginx_file(at(2_003), at(2_005), &daemons).unwrap();
        for port in ["2001", "2002", "2003", "2005"] {
            assert!(envoy.contains(&format!("port_value: {port} ")), "{port}: {envoy}");
            assert!(nginx.contains(&format!("127.0.0.1:{port}")), "{port}: {nginx}");
        }
        assert_eq!(envoy.lines().count(), ENVOY.lines().count() + 1);
        assert_eq!(nginx.lines().count(), NGINX.lines().count() + 1);
    }
}
