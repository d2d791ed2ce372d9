//! Readiness of a daemon: gateways should ask it while it has rules, and while no background task is missing.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::database_rules::Offer;
use crate::api::Readiness;
use crate::engine::tasks::Tasks;

/// Keeps the readiness that the servers tell.
#[derive(Clone)]
pub(super) struct Follow {
    pub(super) readiness: Arc<watch::Sender<Readiness>>,
    /// Offers of rules, if the daemon may have to wait for its first set.
    pub(super) rules: Option<watch::Receiver<Option<Offer>>>,
    /// Health of the stand-in for Envoy's rate limit service, if it is one.
    pub(super) stand_in: Option<watch::Receiver<bool>>,
    pub(super) tasks: Tasks,
}

impl Follow {
    /// Follows all of these until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.tasks.changes();
        loop {
            self.once();
            let rules = async {
                if let Some(rules) = &mut self.rules
                    && rules.changed().await.is_ok()
                {
                    return;
                }
                std::future::pending::<()>().await;
            };
            let stand_in = async {
                if let Some(healthy) = &mut self.stand_in
                    && healthy.changed().await.is_ok()
                {
                    return;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = changes.next() => {}
                () = rules => {}
                () = stand_in => {}
            }
        }
    }

    /// Sets it as it is now. A daemon that drains goes on draining.
    pub(super) fn once(&self) {
        let has_rules = self.rules.as_ref().is_none_or(|rules| rules.borrow().is_some())
            && self.stand_in.as_ref().is_none_or(|healthy| *healthy.borrow());
        let now = match (has_rules, self.tasks.missing().is_empty()) {
            (false, _) => Readiness::Starting,
            (true, false) => Readiness::Impaired,
            (true, true) => Readiness::Serving,
        };
        self.readiness.send_if_modified(|state| {
            let changes = *state != Readiness::Draining && *state != now;
            if changes {
                *state = now;
            }
            changes
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::core::regions::NodeName;
    use crate::core::time::Span;
    use crate::daemon::{Daemon, IdentitySetup, RulesSource, Setup, StoreSetup};

    fn setup() -> Setup {
        Setup {
            name: NodeName { region: "eu".into(), node: "1".into() },
            http: Some("127.0.0.1:0".into()),
            grpc: None,
            resp: None,
            resp_tls: None,
            resp_passwords: None,
            rules: RulesSource::Nothing,
            shadow: false,
            store: StoreSetup::Memory { keys_max: 1_000 },
            redis_tls: None,
            peers: None,
            regions: Vec::new(),
            shares: None,
            interval: Span::from_millis(50),
            world_keys_max: 1_000,
            trusted_proxies: 1,
            ipv6_prefix: 64,
            credentials: crate::api::CredentialHeaders::default(),
            normalize: true,
            origin: crate::core::uri::Origin::Any,
            admin_tokens: None,
            drain: Duration::ZERO,
            connections_max: 100,
            address_connections_max: 0,
            http_tls: None,
            grpc_tls: None,
            http_refunds: true,
            held_answers_max: 256,
            metrics: None,
            admin_socket: crate::daemon::AdminSocket::Off,
            admin_local: false,
            postgres: None,
            identity: IdentitySetup::default(),
            audit: None,
            events: None,
            traces: None,
            stand_in: None,
        }
    }

    async fn get(daemon: &Daemon, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(daemon.http_address().unwrap()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn until(daemon: &Daemon, path: &str, parts: &[&str]) {
        let mut answer = String::new();
        for _ in 0..1_000 {
            answer = get(daemon, path).await;
            if parts.iter().all(|part| answer.contains(part)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{parts:?} is not in {answer}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_daemon_that_misses_a_task_is_not_ready_and_names_it() {
        let daemon = Daemon::start(setup()).await.unwrap();
        until(&daemon, "/readyz", &["200 OK", "\"state\":\"serving\""]).await;
        let broken = Arc::new(AtomicBool::new(true));
        let (still, stop) = (Arc::clone(&broken), daemon.stop.clone());
        daemon.tasks.spawn("injected", &daemon.stop, move || {
            let (broken, stop) = (still.load(Ordering::Relaxed), stop.clone());
            async move {
                assert!(!broken, "injected");
                stop.cancelled().await;
            }
        });
        let named = ["503", "\"state\":\"impaired\"", "\"tasks_missing\":[\"injected\"]"];
        until(&daemon, "/readyz", &named).await;
        assert!(get(&daemon, "/healthz").await.contains("200 OK"));
        broken.store(false, Ordering::Relaxed);
        until(&daemon, "/readyz", &["200 OK", "\"state\":\"serving\""]).await;
        let metrics = get(&daemon, "/metrics").await;
        assert!(!metrics.contains("tidegate_task_ends_total{task=\"injected\"} 0"), "{metrics}");
        assert!(metrics.contains("tidegate_task_ends_total{task=\"upkeep\"} 0"), "{metrics}");
        daemon.drain().await;
    }
}
