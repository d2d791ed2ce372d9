//! A proxy between daemon and Redis that makes bad weather.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::redis_store::runtime;

/// Passes bytes on, late or not at all.
pub struct Proxy {
    pub port: u16,
    pub delay_ms: Arc<AtomicUsize>,
    /// The same for replies.
    pub reply_ms: Arc<AtomicUsize>,
}

/// A delay that is for ever.
pub const SWALLOW: usize = usize::MAX;
/// In place of a delay: half of what comes is passed on, and then the connection ends.
pub const CUT: usize = usize::MAX - 1;

impl Proxy {
    pub fn start(to: u16) -> Self {
        let delay_ms = Arc::new(AtomicUsize::new(0));
        let delay = Arc::clone(&delay_ms);
        let reply_ms = Arc::new(AtomicUsize::new(0));
        let reply = Arc::clone(&reply_ms);
        let listener = runtime().block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0))).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        runtime().spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = tokio::net::TcpStream::connect(("127.0.0.1", to)).await else { continue };
                let (client_in, client_out) = client.into_split();
                let (server_in, server_out) = server.into_split();
                tokio::spawn(pass(client_in, server_out, Arc::clone(&delay)));
                tokio::spawn(pass(server_in, client_out, Arc::clone(&reply)));
            }
        });
        Self { port, delay_ms, reply_ms }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay_ms: Arc<AtomicUsize>,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut bytes = vec![0; 65_536];
    while let Ok(length) = from.read(&mut bytes).await {
        let delay = delay_ms.load(Ordering::Relaxed);
        if length == 0 {
            return;
        }
        if delay == SWALLOW {
            continue;
        }
        if delay == CUT {
            let _ = to.write_all(&bytes[..length / 2]).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(delay as u64)).await;
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
