//! nginx with `deploy/nginx`, for the table; `tests/nginx.rs` asks it everything else.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use tempfile::TempDir;

use super::support::{self, free_tcp, http, origin};
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

#[test]
fn client_and_service_learn_from_nginx_what_to_use_instead() {
    every::tells_what_to_use_instead(|daemons| start_with(daemons, |config| config));
}

#[test]
fn whoever_asks_is_counted_at_nginx_whatever_stands_beside_it() {
    every::counts_whoever_asks(|daemons| start_with(daemons, |config| config));
}

#[test]
fn nginx_names_no_length_of_a_body_that_it_does_not_send() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = listener.local_addr().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut buffer = [0; 4_096];
                while let Ok(len @ 1..) = socket.read(&mut buffer) {
                    let _ = tell.send(String::from_utf8_lossy(&buffer[..len]).to_ascii_lowercase());
                    let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                }
            });
        }
    });
    let front = start_with(&[daemon], |config| config);
    while told.try_recv().is_ok() {}
    for body in
        ["content-length: 5\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
    {
        let request = format!("POST /open HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{body}");
        assert_eq!(http::raw(front.addr, request.as_bytes()).unwrap().status, 200);
        let question = told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(question.starts_with("get /v1/authorize "), "{question}");
        assert!(
            !question.contains("content-length") && !question.contains("transfer-encoding"),
            "{question}"
        );
    }
}
