//! One Redis server as seen from here: a connection, the breaker around it, and a task that mends it.
//!
//! A call never waits for a connection: without one it fails at once. Every wait carries its caller's deadline, and a
//! connection that fails is not repaired but replaced, in the background.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};
use rustls::ClientConfig;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::breaker::{Breaker, Phase};
use super::dial::{Opened, dial};
use super::failure::Failure;
use super::lane::Lane;
use super::link::{Awaiting, Landing, Link};
use super::notes::Notes;
use super::resp;
use crate::core::time::Span;
use crate::engine::clock::{Deadline, Stopwatch};

/// For a connection with its greeting.
const CONNECT_MAX: Duration = Duration::from_millis(250);
/// Between attempts to connect.
const RECONNECT: Duration = Duration::from_millis(100);
/// Between looks at whether it still answers, so that an idle daemon knows.
const FEEL_EVERY: Duration = Duration::from_secs(1);

/// One server.
pub(super) struct Node {
    /// `host:port`.
    pub(super) address: String,
    /// Parts on their way to it.
    pub(super) lane: Lane,
    info: ConnectionInfo,
    tls: Option<Arc<ClientConfig>>,
    /// For its operator.
    pub(super) notes: Notes,
    link: ArcSwapOption<Link>,
    breaker: Mutex<Breaker>,
    broken: Notify,
    /// Told when something is wrong that a new look at the topology may cure.
    trouble: Arc<Notify>,
    started: Stopwatch,
    /// How soon a node that wants to be asked again must answer.
    timeout: Duration,
    stop: CancellationToken,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What nodes of one store have in common.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) trouble: Arc<Notify>,
    pub(super) started: Stopwatch,
    pub(super) timeout: Duration,
    /// For `rediss://`, where the system's certificate authorities are not to be used.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) stop: CancellationToken,
}

/// `host:port` of an address.
pub(super) fn address_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        other => other.to_string(),
    }
}

/// The same server settings at another address.
pub(super) fn elsewhere(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let address = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    };
    info.clone().set_addr(address)
}

impl Node {
    /// Begins to keep a connection to it. The task ends with `common.stop`.
    pub(super) fn start(info: ConnectionInfo, common: &Common) -> Arc<Self> {
        let node = Arc::new(Self {
            address: address_of(&info),
            lane: Lane::default(),
            info,
            tls: common.tls.clone(),
            notes: Notes::default(),
            link: ArcSwapOption::empty(),
            breaker: Mutex::default(),
            broken: Notify::new(),
            trouble: Arc::clone(&common.trouble),
            started: common.started,
            timeout: common.timeout,
            stop: common.stop.child_token(),
        });
        tokio::spawn(Arc::clone(&node).tend());
        node
    }

    /// Ends its task.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        if let Some(link) = self.link.swap(None) {
            link.close();
        }
    }

    /// Where its breaker stands; open without a connection.
    pub(super) fn phase(&self) -> Phase {
        if self.link.load().is_none() {
            return Phase::Open;
        }
        self.breaker().phase(self.started.elapsed())
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What commands are sent through now; `None` without a connection.
    pub(super) fn wire(self: &Arc<Self>) -> Option<Wire> {
        let link = self.link.load_full()?;
        Some(Wire { node: Arc::clone(self), link })
    }

    /// Sends one command and waits for its answer, at most until `deadline`.
    pub(super) async fn call(self: &Arc<Self>, packed: &[u8], deadline: Deadline) -> Result<Value, Failure> {
        let wire = self.wire().ok_or(Failure::Down)?;
        let pass = wire.pass().ok_or(Failure::Down)?;
        wire.ask(packed, false, Some(pass), deadline).await
    }

    /// The same after `ASKING`, for a slot that is on its way to this node.
    pub(super) async fn call_asking(
        self: &Arc<Self>,
        packed: &[u8],
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let wire = self.wire().ok_or(Failure::Down)?;
        let pass = wire.pass().ok_or(Failure::Down)?;
        wire.ask(packed, true, Some(pass), deadline).await
    }

    /// Sends a command of upkeep, past the breaker.
    pub(super) async fn upkeep(self: &Arc<Self>, command: &Cmd, most: Duration) -> Result<Value, Failure> {
        self.upkeep_packed(&command.get_packed_command(), most).await
    }

    /// The same of a command that is packed already.
    pub(super) async fn upkeep_packed(
        self: &Arc<Self>,
        packed: &[u8],
        most: Duration,
    ) -> Result<Value, Failure> {
        let wire = self.wire().ok_or(Failure::Down)?;
        wire.ask(packed, false, None, Deadline::after(most)).await
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.link.load().is_some()
    }

    /// Waits for the first connection, at most `most`, or until the server refuses this user. Says whether there is one.
    pub(super) async fn connected(&self, most: Duration) -> bool {
        let wait = async {
            while !self.is_connected() && self.notes.refusal().is_none() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(most, wait).await.is_ok() && self.is_connected()
    }

    /// Notes a trouble.
    pub(super) fn note(&self, trouble: &str) {
        self.notes.trouble(trouble, self.started.elapsed());
    }

    /// The newest trouble, and how long ago it was.
    pub(super) fn newest_trouble(&self) -> Option<(String, Span)> {
        self.notes.newest_trouble(self.started.elapsed())
    }

    /// Takes in how a call ended.
    pub(super) fn judge(&self, link: &Weak<Link>, mut pass: Pass, answer: &Result<Value, Failure>) {
        match answer {
            Ok(_) => {
                pass.ended(true);
            }
            Err(failure) => {
                self.notes.failed(failure, self.started.elapsed());
                if pass.ended(!failure.is_the_nodes()) || matches!(failure, Failure::Broken(_)) {
                    self.give_up(link);
                }
                if matches!(failure, Failure::NotServing(_) | Failure::Moved(_)) {
                    self.trouble.notify_one();
                }
            }
        }
    }

    /// Lets go of a connection that does not serve. A later one is left alone.
    fn give_up(&self, link: &Weak<Link>) {
        let current = self.link.load();
        let Some(current) = current.as_ref().filter(|current| Weak::as_ptr(link) == Arc::as_ptr(current))
        else {
            return;
        };
        self.link.store(None);
        self.breaker().open(self.started.elapsed());
        tracing::warn!(node = %self.address, "redis does not answer; its rules' failure policies apply");
        self.trouble.notify_one();
        self.broken.notify_one();
        current.close();
    }

    async fn tend(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.mend() => {}
            }
            let Some(link) = self.link.load_full() else { continue };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.broken.notified() => {}
                () = link.ended() => {
                    self.note("the connection broke");
                    self.give_up(&Arc::downgrade(&link));
                }
                () = self.feel() => {}
            }
        }
    }

    /// Asks now and then whether it is there. An answer or none counts like a decision's. Ends with the connection.
    async fn feel(self: &Arc<Self>) {
        let ping = resp::command(&[b"PING"]);
        while self.is_connected() {
            let sent = Stopwatch::start();
            if self.call(&ping, Deadline::after(self.timeout)).await.is_ok() {
                self.notes.answered(sent.elapsed());
            }
            sleep(FEEL_EVERY).await;
        }
    }

    /// Connects where there is no connection, as often as it takes.
    async fn mend(self: &Arc<Self>) {
        let mut logged = false;
        while self.link.load().is_none() {
            let dialled = timeout(CONNECT_MAX, dial(&self.info, self.tls.as_ref(), self.timeout)).await;
            let failure = match dialled {
                Ok(Ok((link, opened))) => {
                    tracing::info!(node = %self.address, "redis connected");
                    let link = Arc::new(link);
                    self.serve(&link, opened);
                    self.notes.connected(None);
                    self.link.store(Some(link));
                    self.trouble.notify_one();
                    return;
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Timeout,
            };
            self.notes.failed(&failure, self.started.elapsed());
            if let Failure::Forbidden(why) = &failure {
                self.notes.connected(Some(why.clone()));
            }
            if !std::mem::replace(&mut logged, true) {
                tracing::warn!(node = %self.address, error = %failure, "cannot connect to redis; trying on");
            }
            sleep(RECONNECT).await;
        }
    }

    /// Starts the tasks of a connection. They end with it.
    fn serve(self: &Arc<Self>, link: &Arc<Link>, opened: Opened) {
        let node = Arc::downgrade(self);
        let tick = move |now| node.upgrade().and_then(|node| node.lane.expire(now));
        let own = Arc::clone(link);
        match opened {
            Opened::Plain(reader) => {
                tokio::spawn(Arc::clone(link).write_backlog());
                tokio::spawn(own.read(reader, self.timeout, tick));
            }
            Opened::Tls(socket) => {
                let (reader, writer) = tokio::io::split(*socket);
                tokio::spawn(Arc::clone(link).write(writer));
                tokio::spawn(own.read(reader, self.timeout, tick));
            }
        }
    }
}

/// A node's connection, for as long as some commands take.
#[derive(Debug)]
pub(super) struct Wire {
    node: Arc<Node>,
    link: Arc<Link>,
}

impl Wire {
    /// Leave to make one call; `None` from a breaker that is open.
    pub(super) fn pass(&self) -> Option<Pass> {
        let node = &self.node;
        let admitted = node.breaker().admit(node.started.elapsed());
        admitted.then(|| Pass { node: Arc::clone(node), open: true })
    }

    /// The connection, to tell of how a call ended.
    pub(super) fn link(&self) -> Weak<Link> {
        Arc::downgrade(&self.link)
    }

    /// Puts a command in line; it leaves with the next [`Self::flush`].
    pub(super) fn post(&self, write: impl FnOnce(&mut Vec<u8>), awaiting: Awaiting) -> Result<(), Awaiting> {
        self.link.post(write, 0, awaiting)
    }

    /// Sends what was posted.
    pub(super) fn flush(&self) {
        self.link.flush();
    }

    async fn ask(
        self,
        packed: &[u8],
        asking: bool,
        pass: Option<Pass>,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let (answer, answered) = oneshot::channel();
        let single = Single { link: self.link(), pass, answer, deadline };
        let write = |bytes: &mut Vec<u8>| {
            if asking {
                bytes.extend_from_slice(&resp::command(&[b"ASKING"]));
            }
            bytes.extend_from_slice(packed);
        };
        // Its answer comes at the deadline at the latest: the connection sees to that.
        match self.link.post(write, usize::from(asking), Box::new(single)) {
            Ok(()) => self.link.flush(),
            Err(awaiting) => awaiting.land(Err(Failure::Down)),
        }
        drop(self);
        answered.await.unwrap_or(Err(Failure::Timeout))
    }
}

/// One caller who waits for one reply.
struct Single {
    link: Weak<Link>,
    pass: Option<Pass>,
    answer: oneshot::Sender<Result<Value, Failure>>,
    deadline: Deadline,
}

impl Landing for Single {
    fn land(self: Box<Self>, answer: Result<Value, Failure>) {
        let Self { link, pass, answer: waiting, .. } = *self;
        if let Some(pass) = pass {
            let node = Arc::clone(&pass.node);
            node.judge(&link, pass, &answer);
        }
        let _ = waiting.send(answer);
    }

    fn expire(&mut self, now: Deadline) -> Option<Deadline> {
        (self.deadline > now).then_some(self.deadline)
    }
}

/// One call that the breaker has let through. Dropped without an end, it gives a probe's place back.
pub(super) struct Pass {
    node: Arc<Node>,
    open: bool,
}

impl Pass {
    /// Whose call it is.
    pub(super) const fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Says whether this opened the breaker.
    fn ended(&mut self, success: bool) -> bool {
        self.open = false;
        self.node.breaker().ended(Some(success), self.node.started.elapsed())
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.open {
            self.node.breaker().ended(None, self.node.started.elapsed());
        }
    }
}
