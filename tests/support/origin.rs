//! The service behind a gateway: answers every request with 200 and its path, except `/fail`, which gets 500.
//! What follows `/tokens/` in a path is told in a header; what follows `/slow/` is how many milliseconds an
//! answer takes. `/keys` shows the credentials that came, `/delays` how long it should hold a request back,
//! and `/uses` what it should use instead of what was asked for.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::SOON;

/// Slow requests that are being answered, by all services of this process, and the most there were at once.
static SLOW: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The most slow requests that were being answered at once.
pub(crate) fn most_at_once() -> usize {
    SLOW[1].load(Ordering::SeqCst)
}

/// Starts it; its thread ends with the test's process.
pub(crate) fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || answer(socket));
        }
    });
    addr
}

/// One request, then the connection is closed: enough for a test, and no keep-alive to go stale.
fn answer(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_read_timeout(Some(SOON))?;
    let mut head = Vec::new();
    let mut buffer = [0; 4_096];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let len = socket.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..len]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    if let Some(millis) = path.strip_prefix("/slow/").and_then(|millis| millis.parse().ok()) {
        let now = SLOW[0].fetch_add(1, Ordering::SeqCst) + 1;
        SLOW[1].fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(millis));
        SLOW[0].fetch_sub(1, Ordering::SeqCst);
    }
    let status = if path == "/fail" { "500 Internal Server Error" } else { "200 OK" };
    let named = |names: &[&str]| {
        let is_named = |line: &&str| {
            let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase().replace('_', "-");
            names.contains(&name.as_str())
        };
        head.lines().filter(is_named).collect::<Vec<_>>().join("\n")
    };
    let body = match path {
        "/keys" => named(&["x-api-key", "authorization"]),
        "/delays" => named(&["x-ratelimit-delay-ms"]),
        "/uses" => named(&["x-tidegate-use"]),
        _ => format!("served {path}\n"),
    };
    let tokens = path.strip_prefix("/tokens/").map(|tokens| format!("x-tokens: {tokens}\r\n"));
    let tokens = tokens.unwrap_or_default();
    write!(
        socket,
        "HTTP/1.1 {status}\r\n{tokens}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    // A request's body may still be under way: a connection that is closed before that is reset.
    socket.shutdown(Shutdown::Write)?;
    while socket.read(&mut buffer)? > 0 {}
    Ok(())
}
