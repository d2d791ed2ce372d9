//! One Redis server as seen from here: a connection, the breaker around it, and a task that mends it.
//!
//! A call never waits for a connection: without one it fails at once. Every wait carries its caller's
//! deadline, and a connection that fails is not repaired but replaced, in the background.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::core::time::Span;
use crate::engine::clock::{Deadline, Stopwatch};
use crate::engine::tasks::Tasks;
use crate::store::redis::batch::batch_queue::BatchQueue;
use crate::store::redis::client::breaker::{Breaker, Phase};
use crate::store::redis::client::condition::{Cause, Conditions, Trouble};
use crate::store::redis::client::diagnostics::NodeDiagnostics;
use crate::store::redis::client::dial::{Opened, SharedTls, open};
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::info;
use crate::store::redis::client::link::{Awaiting, Completion, Link};
use crate::store::redis::client::resp;

/// For a connection with its greeting.
const CONNECT_MAX: Duration = Duration::from_millis(250);
/// Between attempts to connect.
const RECONNECT: Duration = Duration::from_millis(100);
/// Between looks at whether it still answers, so that an idle daemon knows.
const FEEL_EVERY: Duration = Duration::from_secs(1);
/// Looks at its memory: at every second of those.
const MEMORY_EVERY: u32 = 2;
/// For one of them.
const MEMORY_MAX: Duration = Duration::from_millis(500);

/// One server.
pub(in crate::store::redis) struct Node {
    /// Address of the server, as `host:port` or as the path of its socket.
    pub(in crate::store::redis) address: String,
    /// Parts on their way to it.
    pub(in crate::store::redis) queue: BatchQueue,
    info: ConnectionInfo,
    tls: SharedTls,
    /// Facts about the server that are shown to its operator.
    pub(in crate::store::redis) notes: NodeDiagnostics,
    conditions: Conditions,
    /// Keys that it may hold before no new ones are made; the largest number for no bound.
    keys_bound: AtomicU64,
    /// Bound on its keys by configuration; `None`: as its memory allows.
    keys_max: Option<u64>,
    /// In milliseconds since the start: until then nothing is decided there, since another server may take
    /// over.
    paused_until: AtomicU64,
    link: ArcSwapOption<Link>,
    breaker: Mutex<Breaker>,
    broken: Notify,
    /// Told when something is wrong that a new look at the topology may cure.
    trouble: Arc<Notify>,
    started: Stopwatch,
    /// Time within which a node that wants to be asked again must answer.
    timeout: Duration,
    stop: CancellationToken,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The common part of the nodes of one store.
#[derive(Debug, Clone)]
pub(in crate::store::redis) struct Common {
    pub(in crate::store::redis) trouble: Arc<Notify>,
    pub(in crate::store::redis) started: Stopwatch,
    pub(in crate::store::redis) timeout: Duration,
    /// Keys that one server may hold, where its operator says so.
    pub(in crate::store::redis) keys_max: Option<u64>,
    /// For `rediss://`, where the system's certificate authorities are not to be used.
    pub(in crate::store::redis) tls: SharedTls,
    pub(in crate::store::redis) stop: CancellationToken,
    pub(in crate::store::redis) tasks: Tasks,
}

/// `host:port` of an address, or the path of its socket.
pub(in crate::store::redis) fn address_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        other => other.to_string(),
    }
}

/// The same server settings at another address.
pub(in crate::store::redis) fn elsewhere(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
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
    pub(in crate::store::redis) fn start(info: ConnectionInfo, common: &Common) -> Arc<Self> {
        let node = Arc::new(Self {
            address: address_of(&info),
            queue: BatchQueue::default(),
            info,
            tls: common.tls.clone(),
            notes: NodeDiagnostics::default(),
            conditions: Conditions::default(),
            keys_bound: AtomicU64::new(common.keys_max.unwrap_or(u64::MAX)),
            keys_max: common.keys_max,
            paused_until: AtomicU64::new(0),
            link: ArcSwapOption::empty(),
            breaker: Mutex::default(),
            broken: Notify::new(),
            trouble: Arc::clone(&common.trouble),
            started: common.started,
            timeout: common.timeout,
            stop: common.stop.child_token(),
        });
        let own = Arc::clone(&node);
        common.tasks.spawn("redis_connection", &node.stop, move || Arc::clone(&own).tend());
        node
    }

    /// Ends its task.
    pub(in crate::store::redis) fn stop(&self) {
        self.stop.cancel();
        if let Some(link) = self.link.swap(None) {
            link.close();
        }
    }

    /// Returns where its breaker stands; open without a connection.
    pub(in crate::store::redis) fn phase(&self) -> Phase {
        if self.link.load().is_none() || self.is_paused() {
            return Phase::Open;
        }
        self.breaker().phase(self.started.elapsed())
    }

    /// Has nothing decided there for a while.
    pub(in crate::store::redis) fn pause(&self, most: Duration) {
        let until = u64::try_from((self.started.elapsed() + most).as_millis()).unwrap_or(u64::MAX);
        if !self.is_paused() {
            tracing::warn!(node = %self.address, "a failover is under way: on_failure of the rules decides until the sentinels name the primary");
        }
        self.paused_until.store(until, Ordering::Relaxed);
    }

    /// Ends a pause.
    pub(in crate::store::redis) fn resume(&self) {
        self.paused_until.store(0, Ordering::Relaxed);
    }

    fn is_paused(&self) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        until > 0 && self.started.elapsed() < Duration::from_millis(until)
    }

    /// Takes in that it is not what is needed; `None`: that it is.
    pub(in crate::store::redis) fn unsuitable(&self, why: Option<&str>) {
        let now = self.started.elapsed();
        match why {
            Some(why) => {
                self.notes.trouble(why, now);
                self.conditions.suffers(&self.address, Cause::Unsuitable, why, now);
            }
            None => self.conditions.clear(&self.address, Cause::Unsuitable, now),
        }
    }

    /// Returns what it suffers from now.
    pub(in crate::store::redis) fn troubles(&self) -> Vec<Trouble> {
        self.conditions.now(self.phase() == Phase::Closed, self.started.elapsed())
    }

    /// Logs what it no longer suffers from.
    pub(in crate::store::redis) fn review(&self) {
        self.conditions.review(&self.address, self.phase() == Phase::Closed, self.started.elapsed());
    }

    /// Keys that it may hold before no new ones are made.
    pub(in crate::store::redis) fn keys_bound(&self) -> Option<u64> {
        Some(self.keys_bound.load(Ordering::Relaxed)).filter(|bound| *bound < u64::MAX)
    }

    /// Takes in that it did not do what it was asked, though it answered.
    pub(in crate::store::redis) fn failed(&self, failure: &Failure) {
        let now = self.started.elapsed();
        self.notes.failed(failure, now);
        self.conditions.failed(&self.address, failure, now);
    }

    /// True if it takes no new keys, as far as was heard in the last seconds.
    pub(in crate::store::redis) fn is_crowded(&self) -> bool {
        self.conditions.has(Cause::Crowded)
    }

    /// Takes in its `INFO`.
    pub(in crate::store::redis) fn take_in(&self, info: &str) {
        let Some(memory) = info::memory_of(info, self.info.redis_settings().db()) else { return };
        self.notes.remember(memory);
        self.keys_bound.store(memory.keys_bound(self.keys_max).unwrap_or(u64::MAX), Ordering::Relaxed);
        let now = self.started.elapsed();
        if memory.max > 0 && memory.used >= memory.max {
            self.conditions.failed(&self.address, &Failure::Full, now);
        }
        if let Some(policy) = info::evicting(info, &memory) {
            let evicted = memory.evicted;
            let text =
                format!("maxmemory-policy is {policy}, keys evicted so far: {evicted}; set it to noeviction");
            self.conditions.suffers(&self.address, Cause::Evicting, &text, now);
        }
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what commands are sent through now; `None` without a connection.
    pub(in crate::store::redis) fn wire(self: &Arc<Self>) -> Option<Wire> {
        let link = self.link.load_full()?;
        Some(Wire { node: Arc::clone(self), link })
    }

    /// Sends one command and waits for its answer, at most until `deadline`.
    pub(in crate::store::redis) async fn call(
        self: &Arc<Self>,
        packed: &[u8],
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let wire = self.wire().ok_or(Failure::Down)?;
        let pass = wire.pass().ok_or(Failure::Down)?;
        wire.ask(packed, false, Some(pass), deadline).await
    }

    /// The same after `ASKING`, for a slot that is on its way to this node.
    pub(in crate::store::redis) async fn call_asking(
        self: &Arc<Self>,
        packed: &[u8],
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let wire = self.wire().ok_or(Failure::Down)?;
        let pass = wire.pass().ok_or(Failure::Down)?;
        wire.ask(packed, true, Some(pass), deadline).await
    }

    /// Sends a command of upkeep, past the breaker.
    pub(in crate::store::redis) async fn upkeep(
        self: &Arc<Self>,
        command: &Cmd,
        most: Duration,
    ) -> Result<Value, Failure> {
        self.upkeep_packed(&command.get_packed_command(), most).await
    }

    /// The same of a command that is packed already.
    pub(in crate::store::redis) async fn upkeep_packed(
        self: &Arc<Self>,
        packed: &[u8],
        most: Duration,
    ) -> Result<Value, Failure> {
        let wire = self.wire().ok_or(Failure::Down)?;
        wire.ask(packed, false, None, Deadline::after(most)).await
    }

    /// True if there is a connection.
    pub(in crate::store::redis) fn is_connected(&self) -> bool {
        self.link.load().is_some()
    }

    /// Waits for the first connection, at most `most`, or until the server refuses this user. Says whether
    /// there is one.
    pub(in crate::store::redis) async fn connected(&self, most: Duration) -> bool {
        let wait = async {
            while !self.is_connected() && self.notes.refusal().is_none() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(most, wait).await.is_ok() && self.is_connected()
    }

    /// Notes a trouble.
    pub(in crate::store::redis) fn note(&self, trouble: &str) {
        self.notes.trouble(trouble, self.started.elapsed());
    }

    /// The newest trouble, and how long ago it was.
    pub(in crate::store::redis) fn newest_trouble(&self) -> Option<(String, Span)> {
        self.notes.newest_trouble(self.started.elapsed())
    }

    /// Takes in how a call ended.
    pub(in crate::store::redis) fn judge(
        &self,
        link: &Weak<Link>,
        mut pass: BreakerPermit,
        answer: &Result<Value, Failure>,
    ) {
        match answer {
            Ok(_) => {
                pass.ended(true);
            }
            Err(failure) => {
                self.notes.failed(failure, self.started.elapsed());
                self.conditions.failed(&self.address, failure, self.started.elapsed());
                if pass.ended(!failure.is_the_nodes()) || matches!(failure, Failure::Broken(_)) {
                    self.give_up(link);
                }
                if matches!(failure, Failure::NotServing(_) | Failure::Moved(_)) {
                    self.trouble.notify_one();
                }
            }
        }
    }

    /// Lets go of a connection that does not serve, and says why.
    fn give_up(&self, link: &Weak<Link>) {
        if self.let_go(link) {
            let trouble = self.newest_trouble().map_or_else(|| "no answer".to_owned(), |(text, _)| text);
            self.conditions.suffers(&self.address, Cause::Away, &trouble, self.started.elapsed());
        }
    }

    /// Lets go of a connection. A later one is left alone. The next attempt to connect tells why one ended by
    /// itself.
    fn let_go(&self, link: &Weak<Link>) -> bool {
        let current = self.link.load();
        let Some(current) = current.as_ref().filter(|current| Weak::as_ptr(link) == Arc::as_ptr(current))
        else {
            return false;
        };
        self.link.store(None);
        self.breaker().open(self.started.elapsed());
        self.trouble.notify_one();
        self.broken.notify_one();
        current.close();
        true
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
                    self.let_go(&Arc::downgrade(&link));
                }
                () = self.feel() => {}
            }
        }
    }

    /// Asks now and then whether it is there. An answer or none counts like a decision's. Ends with the
    /// connection.
    async fn feel(self: &Arc<Self>) {
        let ping = resp::command(&[b"PING"]);
        for turn in 1_u32.. {
            if !self.is_connected() {
                return;
            }
            let sent = Stopwatch::start();
            if self.call(&ping, Deadline::after(self.timeout)).await.is_ok() {
                self.notes.answered(sent.elapsed());
            }
            if turn.is_multiple_of(MEMORY_EVERY)
                && let Ok(Value::BulkString(info)) = self.upkeep(&redis::cmd("INFO"), MEMORY_MAX).await
            {
                self.take_in(&String::from_utf8_lossy(&info));
            }
            sleep(FEEL_EVERY).await;
        }
    }

    /// Connects where there is no connection, as often as it takes.
    async fn mend(self: &Arc<Self>) {
        while self.link.load().is_none() {
            let failure = match self.connect().await {
                Ok((link, opened)) => {
                    if !self.conditions.has(Cause::Away) {
                        tracing::info!(node = %self.address, "redis connected");
                    }
                    let link = Arc::new(link);
                    self.serve(&link, opened);
                    self.notes.connected(None);
                    self.link.store(Some(link));
                    self.trouble.notify_one();
                    return;
                }
                Err(failure) => failure,
            };
            self.notes.failed(&failure, self.started.elapsed());
            let now = self.started.elapsed();
            if let Failure::Forbidden(why) = &failure {
                self.notes.connected(Some(why.clone()));
                self.conditions.failed(&self.address, &failure, now);
            }
            self.conditions.suffers(&self.address, Cause::Away, &format!("cannot connect: {failure}"), now);
            sleep(RECONNECT).await;
        }
    }

    /// One attempt.
    async fn connect(&self) -> Result<(Link, Opened), Failure> {
        open(&self.info, &self.tls, self.timeout, CONNECT_MAX).await
    }

    /// Starts the tasks of a connection. They end with it.
    fn serve(self: &Arc<Self>, link: &Arc<Link>, opened: Opened) {
        let node = Arc::downgrade(self);
        let tick = move |now| node.upgrade().and_then(|node| node.queue.expire(now));
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
            Opened::Unix(socket) => {
                let (reader, writer) = socket.into_split();
                tokio::spawn(Arc::clone(link).write(writer));
                tokio::spawn(own.read(reader, self.timeout, tick));
            }
        }
    }
}

/// A node's connection, for as long as some commands take.
#[derive(Debug)]
pub(in crate::store::redis) struct Wire {
    node: Arc<Node>,
    link: Arc<Link>,
}

impl Wire {
    /// Leave to make one call; `None` from a breaker that is open.
    pub(in crate::store::redis) fn pass(&self) -> Option<BreakerPermit> {
        let node = &self.node;
        if node.is_paused() {
            return None;
        }
        let admitted = node.breaker().admit(node.started.elapsed());
        admitted.then(|| BreakerPermit { node: Arc::clone(node), open: true })
    }

    /// Keys that its server may hold before no new ones are made.
    pub(in crate::store::redis) fn keys_bound(&self) -> Option<u64> {
        self.node.keys_bound()
    }

    /// The connection, to tell of how a call ended.
    pub(in crate::store::redis) fn link(&self) -> Weak<Link> {
        Arc::downgrade(&self.link)
    }

    /// Puts a command in line; it leaves with the next [`Self::flush`].
    pub(in crate::store::redis) fn post(
        &self,
        write: impl FnOnce(&mut Vec<u8>),
        awaiting: Awaiting,
    ) -> Result<(), Awaiting> {
        self.link.post(write, 0, awaiting)
    }

    /// Sends what was posted.
    pub(in crate::store::redis) fn flush(&self) {
        self.link.flush();
    }

    async fn ask(
        self,
        packed: &[u8],
        asking: bool,
        pass: Option<BreakerPermit>,
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
            Err(awaiting) => awaiting.complete(Err(Failure::Down)),
        }
        drop(self);
        answered.await.unwrap_or(Err(Failure::Timeout))
    }
}

/// One caller who waits for one reply.
struct Single {
    link: Weak<Link>,
    pass: Option<BreakerPermit>,
    answer: oneshot::Sender<Result<Value, Failure>>,
    deadline: Deadline,
}

impl Completion for Single {
    fn complete(self: Box<Self>, answer: Result<Value, Failure>) {
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
pub(in crate::store::redis) struct BreakerPermit {
    node: Arc<Node>,
    open: bool,
}

impl BreakerPermit {
    /// Returns the node whose call it is.
    pub(in crate::store::redis) const fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Says whether this opened the breaker.
    fn ended(&mut self, success: bool) -> bool {
        self.open = false;
        self.node.breaker().ended(Some(success), self.node.started.elapsed())
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.open {
            self.node.breaker().ended(None, self.node.started.elapsed());
        }
    }
}
