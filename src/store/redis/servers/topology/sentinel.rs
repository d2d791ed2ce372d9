//! The sentinels' word on the primary: asked for now and then, and listened to all the time.
//!
//! A planned failover makes the replica a primary before any sentinel names it, and the old primary goes on
//! taking charges until then, which are lost. So nothing is decided there from the moment a sentinel begins
//! the failover until the new primary is named. If sentinels contradict each other, the one with the newest
//! configuration epoch is right.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::clock::Deadline;
use crate::store::redis::client::dial::{Opened, open};
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::link::Completion;
use crate::store::redis::client::resp;
use crate::store::redis::servers::node::Node;
use crate::store::redis::servers::topology::{Places, QUESTION_MAX};
use crate::store::redis::settings::StartError;

/// Nothing is decided on a primary for so long after a failover of it began, at most.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The word of all sentinels is believed after so long, whatever its epoch: they may have been set up anew.
const EPOCH_DOUBTED: Duration = Duration::from_secs(10);
/// To connect to a sentinel, and before the next attempt.
const CONNECT_MAX: Duration = Duration::from_secs(1);
const RECONNECT: Duration = Duration::from_millis(500);
/// Time after which a sentinel that tells nothing is asked for a sign of life, and how often in vain before
/// it is given up.
const PING_EVERY: Duration = Duration::from_secs(5);
const SILENT_MAX: u32 = 2;
/// Names of primaries that are told.
const NAMES_MAX: usize = 20;

/// The messages by which a failover is followed.
const CHANNELS: [&str; 6] = [
    "+switch-master",
    "+elected-leader",
    "+selected-slave",
    "+promoted-slave",
    "+failover-state-*",
    "-failover-abort-*",
];

/// The answer of one sentinel.
pub(in crate::store::redis) enum Said {
    Primary {
        address: String,
        epoch: u64,
    },
    /// It is not enough, and why.
    Unsuitable(StartError),
    Nothing(Failure),
}

/// The primary that is in force.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct InForce {
    epoch: u64,
    /// Instant since which only older epochs are told.
    doubted: Option<Duration>,
}

/// The fields of a reply that lists names and values in turn.
fn fields(values: &[Value]) -> HashMap<String, String> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    values.chunks_exact(2).filter_map(|pair| Some((text(pair.first()?), text(pair.get(1)?)))).collect()
}

async fn ask(sentinel: &Arc<Node>, primary: &str) -> Said {
    let mut question = Cmd::new();
    question.arg("SENTINEL").arg("MASTER").arg(primary);
    match sentinel.upkeep(&question, QUESTION_MAX).await {
        Ok(Value::Array(values)) => {
            let fields = fields(&values);
            let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
            match (fields.get("ip"), fields.get("port")) {
                (Some(ip), Some(port)) => Said::Primary { address: format!("{ip}:{port}"), epoch },
                _ => Said::Nothing(Failure::Unexpected("a primary without address".to_owned())),
            }
        }
        Ok(_) => Said::Nothing(Failure::Unexpected("no list of a primary's fields".to_owned())),
        Err(Failure::Unexpected(why)) if why.contains("No such master") => {
            let watches = watched(sentinel).await;
            Said::Unsuitable(StartError::NoPrimary(sentinel.address.clone(), primary.to_owned(), watches))
        }
        Err(Failure::Unexpected(why)) if why.to_lowercase().contains("unknown command") => {
            Said::Unsuitable(StartError::NoSentinel(sentinel.address.clone()))
        }
        Err(Failure::Forbidden(why)) => {
            Said::Unsuitable(StartError::Forbidden(sentinel.address.clone(), why))
        }
        Err(failure) => Said::Nothing(failure),
    }
}

/// The primaries that a sentinel watches, in words.
async fn watched(sentinel: &Arc<Node>) -> String {
    let answer = sentinel.upkeep(redis::cmd("SENTINEL").arg("MASTERS"), QUESTION_MAX).await;
    let Ok(Value::Array(all)) = answer else { return "others".to_owned() };
    let name = |one: &Value| match one {
        Value::Array(values) => fields(values).remove("name"),
        _ => None,
    };
    let names: Vec<String> = all.iter().filter_map(name).take(NAMES_MAX).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl Places {
    /// Asks all sentinels at once. Notes which of them are not enough.
    async fn ask_sentinels(&self) -> Vec<Said> {
        let said = join_all(self.advisers().iter().map(|sentinel| ask(sentinel, self.primary_name()))).await;
        for (sentinel, said) in self.advisers().iter().zip(&said) {
            match said {
                Said::Primary { .. } => sentinel.unsuitable(None),
                Said::Unsuitable(error) => sentinel.unsuitable(Some(&error.to_string())),
                Said::Nothing(_) => {}
            }
        }
        said
    }

    /// Checks whether the sentinels that answer can name the primary.
    pub(in crate::store::redis) async fn try_sentinels(&self) -> Result<(), StartError> {
        let said = join_all(self.advisers().iter().map(|sentinel| ask(sentinel, self.primary_name()))).await;
        if said.iter().any(|said| matches!(said, Said::Primary { .. })) {
            return Ok(());
        }
        let refusal = said.into_iter().find_map(|said| match said {
            Said::Unsuitable(error) => Some(error),
            _ => None,
        });
        refusal.map_or(Ok(()), Err)
    }

    /// Puts in force what the sentinels say now.
    pub(in crate::store::redis) async fn look_at_sentinels(&self) -> Result<(), Failure> {
        let said = self.ask_sentinels().await;
        let named = said.iter().filter_map(|said| match said {
            Said::Primary { address, epoch } => Some((*epoch, address)),
            _ => None,
        });
        let Some((epoch, address)) = named.max_by_key(|(epoch, _)| *epoch) else {
            return Err(said
                .into_iter()
                .find_map(|said| match said {
                    Said::Nothing(failure) => Some(failure),
                    Said::Unsuitable(error) => Some(Failure::Unexpected(error.to_string())),
                    Said::Primary { .. } => None,
                })
                .unwrap_or(Failure::NoNode));
        };
        {
            let now = self.elapsed();
            let mut known = self.in_force().lock().unwrap_or_else(PoisonError::into_inner);
            if epoch < known.epoch {
                let since = *known.doubted.get_or_insert(now);
                if now.saturating_sub(since) < EPOCH_DOUBTED {
                    return Ok(());
                }
            }
            *known = InForce { epoch, doubted: None };
        }
        self.name_primary(address)
    }

    /// Hears what all sentinels publish, until `stop`.
    pub(in crate::store::redis) async fn listen(self: Arc<Self>, stop: CancellationToken) {
        let each = (0..self.advisers().len()).map(|place| self.listen_to(place));
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            _ = join_all(each) => {}
        }
    }

    /// Hears one, again and again.
    async fn listen_to(&self, place: usize) {
        loop {
            if let Err(failure) = self.listen_once(place).await {
                tracing::debug!(%failure, "a sentinel is not heard");
            }
            sleep(RECONNECT).await;
        }
    }

    async fn listen_once(&self, place: usize) -> Result<(), Failure> {
        let Some((info, tls)) = self.seed(place) else { return std::future::pending().await };
        let (link, opened) = open(info, tls, QUESTION_MAX, CONNECT_MAX).await?;
        let words: Vec<&[u8]> = std::iter::once("PSUBSCRIBE").chain(CHANNELS).map(str::as_bytes).collect();
        let subscribe = resp::command(&words);
        let ping = resp::command(&[b"PING"]);
        match opened {
            Opened::Plain(reader) => {
                let send = |bytes: &[u8]| {
                    let _ = link.post(|into| into.extend_from_slice(bytes), 0, Box::new(Nobody));
                    link.flush();
                };
                send(&subscribe);
                let mut events = Events { socket: reader, bytes: Vec::new(), silent: 0 };
                loop {
                    if self.hear(&mut events).await? {
                        send(&ping);
                    }
                }
            }
            Opened::Tls(socket) => self.listen_on(*socket, &subscribe, &ping).await,
            Opened::Unix(socket) => self.listen_on(socket, &subscribe, &ping).await,
        }
    }

    /// Subscribes on a connection that nobody else writes, and hears what comes, until it fails.
    async fn listen_on(
        &self,
        socket: impl AsyncRead + AsyncWrite + Unpin,
        subscribe: &[u8],
        ping: &[u8],
    ) -> Result<(), Failure> {
        let broken = |error: std::io::Error| Failure::Broken(error.to_string());
        let mut events = Events { socket, bytes: Vec::new(), silent: 0 };
        events.socket.write_all(subscribe).await.map_err(broken)?;
        events.socket.flush().await.map_err(broken)?;
        loop {
            if self.hear(&mut events).await? {
                events.socket.write_all(ping).await.map_err(broken)?;
                events.socket.flush().await.map_err(broken)?;
            }
        }
    }

    /// Hears one event. `true`: nothing came for a while, and a sign of life should be asked for.
    async fn hear(&self, events: &mut Events<impl AsyncRead + Unpin>) -> Result<bool, Failure> {
        let event = match timeout(PING_EVERY, events.next()).await {
            Ok(event) => event?,
            Err(_) if events.silent >= SILENT_MAX => return Err(Failure::Timeout),
            Err(_) => {
                events.silent += 1;
                return Ok(true);
            }
        };
        events.silent = 0;
        if let Value::Array(values) = event {
            let text = |place: usize| match values.get(place) {
                Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
                _ => String::new(),
            };
            if text(0) == "pmessage" {
                self.heard(&text(2), &text(3));
            }
        }
        Ok(false)
    }

    /// Acts on what a sentinel published.
    fn heard(&self, channel: &str, text: &str) {
        let words: Vec<&str> = text.split(' ').collect();
        if let ("+switch-master", [name, _, _, host, port]) = (channel, words.as_slice()) {
            if *name == self.primary_name() {
                {
                    // A sentinel that has not heard of it yet tells an older epoch.
                    let mut known = self.in_force().lock().unwrap_or_else(PoisonError::into_inner);
                    *known = InForce { epoch: known.epoch.saturating_add(1), doubted: None };
                }
                let _ = self.name_primary(&format!("{host}:{port}"));
                self.trouble();
            }
            return;
        }
        // "master NAME host port", or "slave ID host port @ NAME host port".
        let is_ours = |pair: &[&str]| matches!(pair, ["master" | "@", name] if *name == self.primary_name());
        if !words.windows(2).any(is_ours) {
            return;
        }
        let map = self.map();
        let Some(primary) = map.nodes().first() else { return };
        if channel.starts_with("-failover-abort") {
            primary.resume();
        } else {
            primary.pause(PAUSE_MAX);
        }
    }
}

/// Takes a reply that nobody waits for.
struct Nobody;

impl Completion for Nobody {
    fn complete(self: Box<Self>, _: Result<Value, Failure>) {}

    fn expire(&mut self, _: Deadline) -> Option<Deadline> {
        None
    }
}

/// The messages of a connection that only listens.
struct Events<S> {
    socket: S,
    bytes: Vec<u8>,
    /// Signs of life that were asked for since anything came.
    silent: u32,
}

impl<S: AsyncRead + Unpin> Events<S> {
    /// The next reply or event. Cancelled, it loses nothing.
    async fn next(&mut self) -> Result<Value, Failure> {
        loop {
            let garbled = |error: resp::Garbled| Failure::Broken(error.to_string());
            if let Some((event, len)) = resp::read(&self.bytes).map_err(garbled)? {
                self.bytes.drain(..len);
                return event;
            }
            match self.socket.read_buf(&mut self.bytes).await {
                Ok(1..) => {}
                Ok(_) => return Err(Failure::Broken("closed by the sentinel".to_owned())),
                Err(error) => return Err(Failure::Broken(error.to_string())),
            }
        }
    }
}
