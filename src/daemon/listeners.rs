//! The addresses on which a daemon listens. All are bound before any is served, so that one that is taken
//! stops the start.

use std::io::ErrorKind;
use std::sync::Arc;

use super::bound::Bound;
use super::listener_tls::WatchedTls;
use super::setup::Setup;
use crate::api::{self, Listener, Servers, Shutdown};
use crate::engine::tasks::Tasks;
use crate::telemetry::Metrics;

/// Listeners that are bound, and not served yet.
pub(super) struct Listeners {
    http: Option<Listener>,
    grpc: Option<Listener>,
    resp: Option<Listener>,
    /// Listener for those who watch the daemon.
    watching: Option<Listener>,
    /// For those who look into a stand-in's rules.
    debug: Option<Listener>,
    /// Listener of the admin socket, for the user of the daemon.
    owner: Option<Listener>,
    /// The certificates of those that have some.
    pub(super) tls: Vec<WatchedTls>,
}

/// The addresses on which a daemon listens.
pub(super) struct Addresses {
    pub(super) http: Option<Bound>,
    pub(super) grpc: Option<Bound>,
    pub(super) resp: Option<Bound>,
    /// Address for those who watch the daemon.
    pub(super) watching: Option<Bound>,
    /// Address of the admin socket, for the user of the daemon.
    pub(super) owner: Option<Bound>,
}

impl Listeners {
    /// Binds all addresses of a daemon.
    ///
    /// # Errors
    /// An address that cannot be bound, a certificate that cannot be used.
    pub(super) async fn bind(setup: &Setup, metrics: &Arc<Metrics>) -> anyhow::Result<Self> {
        let http_tls = WatchedTls::load(setup.http_tls.as_ref(), "http", metrics)?;
        let grpc_tls = WatchedTls::load(setup.grpc_tls.as_ref(), "grpc", metrics)?;
        let resp_tls = WatchedTls::load(setup.resp_tls.as_ref(), "resp", metrics)?;
        let http = bind(setup.http.as_deref(), "HTTP", http_tls.as_ref()).await?;
        let grpc = bind(setup.grpc.as_deref(), "gRPC", grpc_tls.as_ref()).await?;
        let resp = bind(setup.resp.as_deref(), "the Redis protocol", resp_tls.as_ref()).await?;
        let watching = bind(setup.metrics.as_deref(), "metrics", None).await?;
        let debug = setup.stand_in.as_ref().map(|wanted| wanted.debug.as_str());
        let debug = bind(debug, "/rlconfig and /stats", None).await?;
        let owner = setup.admin_socket.open(http.as_ref().map(Bound::of).as_ref()).await?;
        let tls = http_tls.into_iter().chain(grpc_tls).chain(resp_tls).collect();
        Ok(Self { http, grpc, resp, watching, debug, owner, tls })
    }

    /// Returns where the admin socket is, for whoever is told to use it.
    pub(super) fn owner(&self) -> Option<String> {
        self.owner.as_ref().map(Listener::to_string)
    }

    /// Serves all of them until the servers are stopped.
    pub(super) fn serve(self, shared: &Arc<Servers>, servers: &Tasks, stop: &Shutdown) -> Addresses {
        let to = Served { shared, servers, stop };
        to.serve("listen_debug", self.debug, api::serve_metrics);
        Addresses {
            http: to.serve("listen_http", self.http, api::serve_http),
            grpc: to.serve("listen_grpc", self.grpc, api::serve_grpc),
            resp: to.serve("listen_resp", self.resp, api::serve_resp),
            watching: to.serve("listen_metrics", self.watching, api::serve_metrics),
            owner: to.serve("listen_admin", self.owner, api::serve_owner),
        }
    }
}

/// The servers of a daemon, and the tasks that they run in.
struct Served<'s> {
    shared: &'s Arc<Servers>,
    servers: &'s Tasks,
    stop: &'s Shutdown,
}

impl Served<'_> {
    fn serve<F, T>(&self, task: &'static str, listener: Option<Listener>, serve: F) -> Option<Bound>
    where
        F: Fn(Arc<Listener>, Arc<Servers>, Shutdown) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let listener = Arc::new(listener?);
        let bound = Bound::of(&listener);
        let (shared, ending) = (Arc::clone(self.shared), self.stop.clone());
        self.servers.spawn(task, &self.stop.stop, move || {
            serve(Arc::clone(&listener), Arc::clone(&shared), ending.clone())
        });
        Some(bound)
    }
}

async fn bind(
    address: Option<&str>,
    what: &str,
    tls: Option<&WatchedTls>,
) -> anyhow::Result<Option<Listener>> {
    let Some(address) = address else { return Ok(None) };
    let listener = Listener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => " (does another daemon run there, or one that still drains?)",
            _ => "",
        };
        anyhow::Error::new(error).context(format!("cannot listen on {address} for {what}{hint}"))
    })?;
    Ok(Some(listener.with_tls(tls.map(|watched| Arc::clone(&watched.tls)))))
}
