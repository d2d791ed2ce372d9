//! Clients of a region: they ask its daemons over HTTP as a gateway would, and note what they saw.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answers::{Answer, decided, of_gateway};
use crate::load::http::body;
use crate::model::Ask;
use crate::plan::GatewayKind;

/// The longest that a client waits for an answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A client that cannot send a request in time does not send it: nobody is asked later for what was missed.
const SENT_WITHIN: Duration = Duration::from_millis(100);
/// The time between two looks of a client which daemons are ready, as the health checks of a gateway have it.
const LOOK: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(2);

/// One request as its client saw it. Times are since the epoch.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) ask: Ask,
    pub(super) sent: Duration,
    pub(super) answered: Duration,
    pub(super) answer: Answer,
    /// When it had been denied before, where the client asks again because it was told to.
    pub(super) denied_before: Option<Duration>,
}

/// A request that a client shall send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    /// When, since the epoch.
    pub(super) at: Duration,
    pub(super) ask: Ask,
    /// When it was denied before.
    pub(super) denied_before: Option<Duration>,
}

/// A daemon, or the gateway before all daemons of a region, as its clients know it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) http: SocketAddr,
    gateway: GatewayKind,
    ready: AtomicBool,
}

impl Target {
    pub(super) fn new(http: SocketAddr, gateway: GatewayKind) -> Self {
        Self { http, gateway, ready: AtomicBool::new(true) }
    }

    /// Follows `/readyz` until the clients stop. A gateway is always asked: it looks itself which daemons are
    /// ready.
    pub(super) async fn follow(self: Arc<Self>, stop: Arc<AtomicBool>) {
        if self.gateway != GatewayKind::Direct {
            return;
        }
        while !stop.load(Ordering::Relaxed) {
            let ready = timeout(LOOK * 5, get(self.http, "/readyz")).await.ok().flatten();
            self.ready.store(ready.is_some_and(|(status, _)| status == 200), Ordering::Relaxed);
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The notes of all clients on what they saw.
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

/// The work of a region's clients.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    pub(super) targets: Rc<Vec<Arc<Target>>>,
    pub(super) requests: Rc<tokio::sync::Mutex<mpsc::Receiver<Due>>>,
    /// Queue by which a client that was denied puts its request again, when it has waited as long as it was
    /// told.
    pub(super) again: Option<mpsc::Sender<Due>>,
    pub(super) over: CancellationToken,
    pub(super) book: Arc<Book>,
}

type Connection = (usize, TcpStream, BytesMut);

impl Clients {
    /// One connection's worth of clients: asks one after the other, whichever daemon of the region is ready.
    pub(super) async fn keep_asking(self, first: usize) {
        let mut open: Option<Connection> = None;
        let mut next = first;
        loop {
            let due = {
                let mut queue = self.requests.lock().await;
                tokio::select! {
                    due = queue.recv() => due,
                    () = self.over.cancelled() => queue.try_recv().ok(),
                }
            };
            let Some(Due { at, ask, denied_before }) = due else { return };
            if since_epoch().saturating_sub(at) > SENT_WITHIN {
                self.book.unsent.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let sent = since_epoch();
            let Some((place, target)) = self.ready(next) else {
                let answer = Answer::NobodyReady;
                self.note(Seen { ask, sent, answered: sent, answer, denied_before });
                continue;
            };
            if open.as_ref().is_some_and(|(known, socket, _)| *known != place || is_closed(socket)) {
                open = None;
            }
            let answer = match timeout(ANSWER_WITHIN, asked(&mut open, (place, target), ask)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => Answer::Failed(format!("{error:#}")),
                Err(_) => Answer::Failed(format!("no answer within {ANSWER_WITHIN:?}")),
            };
            if matches!(answer, Answer::Failed(_)) {
                open = None;
                next = place + 1;
            }
            self.note(Seen { ask, sent, answered: since_epoch(), answer, denied_before });
        }
    }

    fn ready(&self, next: usize) -> Option<(usize, &Target)> {
        let mut places = (0..self.targets.len()).map(|step| (next + step) % self.targets.len());
        let ready = |place: usize| {
            let target = self.targets.get(place)?;
            target.ready.load(Ordering::Relaxed).then_some((place, &**target))
        };
        places.find_map(ready)
    }

    fn note(&self, seen: Seen) {
        let wait = seen.answer.decision().and_then(|decision| decision.retry_after);
        if let (Some(again), Some(wait), None) = (&self.again, wait, seen.denied_before) {
            let (again, ask, denied) = (again.clone(), seen.ask, seen.answered);
            tokio::task::spawn_local(async move {
                // A timer may be a millisecond early, and the client must not be.
                tokio::time::sleep(wait + TICK).await;
                let due = Due { at: since_epoch(), ask, denied_before: Some(denied) };
                let _ = again.try_send(due);
            });
        }
        self.book.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }
}

/// True where the server has closed a connection on which nothing is asked. A gateway sees that, too, and
/// takes another one.
fn is_closed(socket: &TcpStream) -> bool {
    !matches!(socket.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

async fn asked(
    open: &mut Option<Connection>,
    (place, target): (usize, &Target),
    ask: Ask,
) -> anyhow::Result<Answer> {
    let (_, socket, buffer) = match open {
        Some(open) => open,
        None => {
            let socket = TcpStream::connect(target.http).await?;
            socket.set_nodelay(true)?;
            open.insert((place, socket, BytesMut::with_capacity(8 << 10)))
        }
    };
    socket.write_all(request(target.gateway, ask).as_bytes()).await?;
    let (closes, answer) = if target.gateway == GatewayKind::Direct {
        let (closes, text) = body(socket, buffer).await?;
        (closes, decided(&serde_json::from_slice(&text)?)?)
    } else {
        of_gateway(socket, buffer).await?
    };
    if closes {
        *open = None;
    }
    Ok(answer)
}

/// Returns what a client sends: a question to a daemon, or a request for the service behind a gateway.
fn request(gateway: GatewayKind, Ask { user, cost, .. }: Ask) -> String {
    match gateway {
        GatewayKind::Direct => {
            let json = format!("{{\"attributes\":{{\"user\":\"u{user}\"}},\"cost\":{cost}}}");
            let length = json.len();
            format!(
                "POST /v1/check HTTP/1.1\r\nhost: tidegate\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}"
            )
        }
        GatewayKind::Envoy => format!("GET /page HTTP/1.1\r\nhost: service\r\nx-user: u{user}\r\n\r\n"),
        GatewayKind::Nginx => format!("GET /page HTTP/1.1\r\nhost: service\r\nx-api-key: u{user}\r\n\r\n"),
    }
}

/// The status and body of one page; `None` where nobody answers.
pub(super) async fn get(http: SocketAddr, path: &str) -> Option<(u16, String)> {
    exchange(http, &format!("GET {path} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n\r\n")).await
}

/// A daemon's answer about a user whom nobody else asks for, charging nothing; `None` where nobody answers.
pub(super) async fn peek(http: SocketAddr) -> Option<Value> {
    let json = r#"{"attributes":{"user":"nobody","api_key":"nobody"},"cost":0}"#;
    let length = json.len();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{json}"
    );
    let (_, body) = timeout(ANSWER_WITHIN, exchange(http, &request)).await.ok()??;
    serde_json::from_str(&body).ok()
}

/// One request on a connection of its own, and its answer.
async fn exchange(http: SocketAddr, request: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(http).await.ok()?;
    socket.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    socket.take(4 << 20).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
