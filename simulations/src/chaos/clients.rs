//! Clients of a region: they ask its daemons over HTTP as a gateway would, and note what they saw.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use bytes::BytesMut;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::load::http::body;
use crate::model::Ask;

/// The longest that a client waits for an answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A client that cannot send a request in time does not send it: nobody is asked later for what was missed.
const SENT_WITHIN: Duration = Duration::from_millis(100);
/// How often a client looks which daemons are ready, as the health checks of a gateway do.
const LOOK: Duration = Duration::from_millis(100);

/// One request as its client saw it. Times are since the epoch.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) ask: Ask,
    pub(super) sent: Duration,
    pub(super) answered: Duration,
    pub(super) answer: Answer,
}

/// The answer to a request, if there was one.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Decided {
        admitted: bool,
        /// Until the bucket's window ends or it is full again.
        reset: Duration,
        /// The permits that the region believed to be used worldwide, and how many more it may be.
        believed: Option<(u64, u64)>,
    },
    /// No answer, or none that says anything.
    Failed(String),
    /// No daemon of the region was ready, so nobody was asked.
    NobodyReady,
}

/// A request that a client shall send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    /// When, since the epoch.
    pub(super) at: Duration,
    pub(super) ask: Ask,
}

/// A daemon as its clients know it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) http: SocketAddr,
    ready: AtomicBool,
}

impl Target {
    pub(super) fn new(http: SocketAddr) -> Self {
        Self { http, ready: AtomicBool::new(true) }
    }

    /// Follows `/readyz` until the clients stop.
    pub(super) async fn follow(self: Arc<Self>, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            let ready = timeout(LOOK * 5, get(self.http, "/readyz")).await.ok().flatten();
            self.ready.store(ready.is_some_and(|(status, _)| status == 200), Ordering::Relaxed);
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Where all clients note what they saw.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) seen: Mutex<Vec<Seen>>,
    /// Requests that came due and were not sent, since no connection was free in time.
    pub(super) unsent: AtomicU64,
    pub(super) stalls: Mutex<Vec<Stall>>,
}

/// This machine kept the clients from running, until this instant since the epoch, for so long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stall {
    pub(super) until: Duration,
    pub(super) length: Duration,
}

pub(super) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// One connection's worth of clients: asks one after the other, whichever daemon of the region is ready.
pub(super) async fn keep_asking(
    targets: Rc<Vec<Arc<Target>>>,
    asks: tokio_util::sync::CancellationToken,
    queue: Rc<tokio::sync::Mutex<tokio::sync::mpsc::Receiver<Due>>>,
    (first, book): (usize, Arc<Book>),
) {
    let mut open: Option<(usize, TcpStream, BytesMut)> = None;
    let mut next = first;
    loop {
        let ask = {
            let mut queue = queue.lock().await;
            tokio::select! {
                ask = queue.recv() => ask,
                () = asks.cancelled() => queue.try_recv().ok(),
            }
        };
        let Some(Due { at, ask }) = ask else { return };
        if since_epoch().saturating_sub(at) > SENT_WITHIN {
            book.unsent.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let ready = (0..targets.len())
            .map(|step| (next + step) % targets.len())
            .find(|place| targets.get(*place).is_some_and(|target| target.ready.load(Ordering::Relaxed)));
        let sent = since_epoch();
        let Some((place, target)) = ready.and_then(|place| Some((place, targets.get(place)?))) else {
            note(&book, Seen { ask, sent, answered: sent, answer: Answer::NobodyReady });
            continue;
        };
        if open.as_ref().is_some_and(|(known, socket, _)| *known != place || is_closed(socket)) {
            open = None;
        }
        let answer = match timeout(ANSWER_WITHIN, asked(&mut open, (place, target.http), ask)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Failed(format!("{error:#}")),
            Err(_) => Answer::Failed(format!("no answer within {ANSWER_WITHIN:?}")),
        };
        if matches!(answer, Answer::Failed(_)) {
            open = None;
            next = place + 1;
        }
        note(&book, Seen { ask, sent, answered: since_epoch(), answer });
    }
}

/// True where the server has closed a connection on which nothing is asked. A gateway sees that, too, and takes another one.
fn is_closed(socket: &TcpStream) -> bool {
    !matches!(socket.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

fn note(book: &Book, seen: Seen) {
    book.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
}

async fn asked(
    open: &mut Option<(usize, TcpStream, BytesMut)>,
    (place, http): (usize, SocketAddr),
    ask: Ask,
) -> anyhow::Result<Answer> {
    let (_, socket, buffer) = match open {
        Some(open) => open,
        None => {
            let socket = TcpStream::connect(http).await?;
            socket.set_nodelay(true)?;
            open.insert((place, socket, BytesMut::with_capacity(8 << 10)))
        }
    };
    let json = format!("{{\"attributes\":{{\"who\":\"u{}\"}},\"cost\":{}}}", ask.user, ask.cost);
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: tidegate\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    );
    socket.write_all(request.as_bytes()).await?;
    let (closes, text) = body(socket, buffer).await?;
    if closes {
        *open = None;
    }
    decided(&serde_json::from_slice(&text)?)
}

/// Reads a decision.
fn decided(answer: &Value) -> anyhow::Result<Answer> {
    let Some(admitted) = answer.get("allowed").and_then(Value::as_bool) else {
        bail!("an answer that decides nothing: {answer}");
    };
    let rule = answer.get("rules").and_then(|rules| rules.get(0));
    let of = |name: &str| rule?.get(name)?.as_u64();
    let worldwide = |name: &str| rule?.get("global")?.get(name)?.as_u64();
    let believed = worldwide("believed_used").zip(worldwide("error_bound"));
    let reset = Duration::from_millis(of("reset_ms").unwrap_or_default());
    Ok(Answer::Decided { admitted, reset, believed })
}

/// The status and body of one page; `None` where nobody answers.
pub(super) async fn get(http: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(http).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    socket.take(4 << 20).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_says_what_is_believed() {
        let text = r#"{"allowed":false,"rules":[{"rule":"w","reset_ms":250,"global":{"mode":"gossip","believed_used":7,"error_bound":3}}]}"#;
        let Ok(Answer::Decided { admitted, reset, believed }) = decided(&serde_json::from_str(text).unwrap())
        else {
            panic!("it is a decision");
        };
        assert_eq!((admitted, reset, believed), (false, Duration::from_millis(250), Some((7, 3))));
        assert!(decided(&serde_json::json!({"error": "no"})).is_err());
    }
}
