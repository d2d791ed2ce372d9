//! One Redis server as seen from here: a connection, the breaker around it, and a task that mends it.
//!
//! A call never waits for a connection: without one it fails at once. The client's own waits have no bound that a decision
//! could live with, so every wait here carries the caller's deadline, and a connection that fails is not repaired but
//! replaced, in the background.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, Pipeline, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::breaker::{Breaker, Phase};
use super::failure::Failure;
use super::notes::Notes;
use crate::core::time::Span;
use crate::engine::clock::{Deadline, Stopwatch};

/// For a connection with its greeting.
const CONNECT_MAX: Duration = Duration::from_millis(250);
/// Between attempts to connect.
const RECONNECT: Duration = Duration::from_millis(100);
/// Between looks at whether it still answers, so that an idle daemon knows.
const FEEL_EVERY: Duration = Duration::from_secs(1);
/// Commands that wait for one connection's socket. Full: the caller waits, until its deadline.
const QUEUE_LEN_MAX: usize = 512;
/// Commands without an answer on one connection. Full: the caller waits, until its deadline.
const IN_FLIGHT_MAX: usize = 1_024;

/// One server.
pub(super) struct Node {
    /// `host:port`.
    pub(super) address: String,
    client: Client,
    link: ArcSwapOption<MultiplexedConnection>,
    breaker: Mutex<Breaker>,
    broken: Notify,
    /// For its operator.
    pub(super) notes: Notes,
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
    pub(super) fn start(info: ConnectionInfo, common: &Common) -> Result<Arc<Self>, redis::RedisError> {
        let address = address_of(&info);
        // What the client would tell of itself needs a right of its own, which older servers do not even know.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        let client = Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))?;
        let node = Arc::new(Self {
            address,
            client,
            link: ArcSwapOption::empty(),
            breaker: Mutex::default(),
            broken: Notify::new(),
            notes: Notes::default(),
            trouble: Arc::clone(&common.trouble),
            started: common.started,
            timeout: common.timeout,
            stop: common.stop.child_token(),
        });
        tokio::spawn(Arc::clone(&node).tend());
        Ok(node)
    }

    /// Ends its task.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        self.link.store(None);
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

    /// Sends one command and waits for its answer, at most until `deadline`.
    pub(super) async fn call(&self, command: &Cmd, deadline: Deadline) -> Result<Value, Failure> {
        self.guarded(deadline, async |link| command.query_async(link).await).await
    }

    /// The same after `ASKING`, for a slot that is on its way to this node.
    pub(super) async fn call_asking(&self, command: &Cmd, deadline: Deadline) -> Result<Value, Failure> {
        let mut both = Pipeline::new();
        both.cmd("ASKING").ignore().add_command(command.clone());
        let answers = self.guarded(deadline, async |link| both.query_async(link).await).await?;
        match answers {
            Value::Array(mut answers) => {
                answers.pop().ok_or_else(|| Failure::Unexpected("no answer".to_owned()))
            }
            _ => Err(Failure::Unexpected("no array".to_owned())),
        }
    }

    async fn guarded(
        &self,
        deadline: Deadline,
        send: impl AsyncFnOnce(&mut MultiplexedConnection) -> redis::RedisResult<Value>,
    ) -> Result<Value, Failure> {
        let link = self.link.load_full().ok_or(Failure::Down)?;
        let mut pass = Pass::get(self).ok_or(Failure::Down)?;
        let mut own = MultiplexedConnection::clone(&link);
        let answer = match deadline.wait(send(&mut own)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Failure::from(error)),
            Err(_) => Err(Failure::Timeout),
        };
        match &answer {
            Ok(_) => pass.ended(true),
            Err(failure) => {
                self.notes.failed(failure, self.started.elapsed());
                if pass.ended(!failure.is_the_nodes()) || matches!(failure, Failure::Broken(_)) {
                    self.give_up(&link);
                }
                if matches!(failure, Failure::NotServing(_) | Failure::Moved(_)) {
                    self.trouble.notify_one();
                }
                true
            }
        };
        answer
    }

    /// Lets go of a connection that does not serve. A later one is left alone.
    fn give_up(&self, link: &Arc<MultiplexedConnection>) {
        let current = self.link.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            self.link.store(None);
            self.breaker().open(self.started.elapsed());
            tracing::warn!(node = %self.address, "redis does not answer; its rules' failure policies apply");
            self.trouble.notify_one();
            self.broken.notify_one();
        }
    }

    async fn tend(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.mend() => {}
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.broken.notified() => {}
                () = self.feel() => {}
            }
        }
    }

    /// Asks now and then whether it is there. An answer or none counts like a decision's.
    async fn feel(&self) {
        let ping = redis::cmd("PING");
        while self.link.load().is_some() {
            let sent = Stopwatch::start();
            if self.call(&ping, Deadline::after(self.timeout)).await.is_ok() {
                self.notes.answered(sent.elapsed());
            }
            sleep(FEEL_EVERY).await;
        }
        // The connection is gone, and whoever let go of it says so.
        std::future::pending().await
    }

    /// Notes a trouble.
    pub(super) fn note(&self, trouble: &str) {
        self.notes.trouble(trouble, self.started.elapsed());
    }

    /// The newest trouble, and how long ago it was.
    pub(super) fn newest_trouble(&self) -> Option<(String, Span)> {
        self.notes.newest_trouble(self.started.elapsed())
    }

    /// Connects, as often as it takes.
    async fn mend(&self) {
        let mut logged = false;
        loop {
            let failure = match timeout(CONNECT_MAX, self.connect()).await {
                Ok(Ok(link)) => {
                    tracing::info!(node = %self.address, "redis connected");
                    self.notes.connected(None);
                    self.link.store(Some(Arc::new(link)));
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
            if !logged {
                logged = true;
                tracing::warn!(node = %self.address, error = %failure, "cannot connect to redis; trying on");
            }
            sleep(RECONNECT).await;
        }
    }

    /// A connection that has proven to answer as soon as decisions need.
    async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(CONNECT_MAX))
            .set_pipeline_buffer_size(QUEUE_LEN_MAX)
            .set_concurrency_limit(IN_FLIGHT_MAX);
        let mut link = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        let ping = redis::cmd("PING");
        timeout(self.timeout, ping.query_async::<Value>(&mut link)).await.map_err(|_| Failure::Timeout)??;
        Ok(link)
    }

    /// Sends a command of upkeep, past the breaker.
    pub(super) async fn upkeep(&self, command: &Cmd, most: Duration) -> Result<Value, Failure> {
        let link = self.link.load_full().ok_or(Failure::Down)?;
        let mut own = MultiplexedConnection::clone(&link);
        timeout(most, command.query_async(&mut own))
            .await
            .map_err(|_| Failure::Timeout)?
            .map_err(Failure::from)
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.link.load().is_some()
    }

    /// Waits for the first connection, at most `most`, or until the server refuses this user. Says whether there is one.
    pub(super) async fn connected(&self, most: Duration) -> bool {
        let wait = async {
            while self.link.load().is_none() && self.notes.refusal().is_none() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(most, wait).await.is_ok() && self.is_connected()
    }
}

/// One call that the breaker has let through. Dropped without an end, it gives a probe's place back.
struct Pass<'a> {
    node: &'a Node,
    open: bool,
}

impl<'a> Pass<'a> {
    fn get(node: &'a Node) -> Option<Self> {
        let admitted = node.breaker().admit(node.started.elapsed());
        admitted.then_some(Self { node, open: true })
    }

    /// Says whether this opened the breaker.
    fn ended(&mut self, success: bool) -> bool {
        self.open = false;
        self.node.breaker().ended(Some(success), self.node.started.elapsed())
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.open {
            self.node.breaker().ended(None, self.node.started.elapsed());
        }
    }
}
