//! The certificates that a daemon would refuse to start with, found without starting one: for `tidegate
//! config check` and `tidegate doctor`.

use std::io;

use super::peer_certificates::{checked, named};
use super::redis_tls::redis_tls;
use super::setup::read_tls;
use super::{listener_tls, tokens};
use crate::config::{Backend, Config};
use crate::core::regions::NodeName;
use crate::core::time::Timestamp;
use crate::peer::tls;
use anyhow::Context as _;

/// The judgement of a daemon on its certificates.
#[derive(Debug, Default)]
pub struct CertificateProblems {
    /// Reasons for which it refuses to start, a sentence each.
    pub wrong: Vec<String>,
    /// Files that are not on this machine, a sentence each: it may be another one that serves.
    pub missing: Vec<String>,
}

impl CertificateProblems {
    fn add<T>(&mut self, looked: anyhow::Result<T>) {
        let Err(error) = looked else { return };
        let absent = |cause: &io::Error| cause.kind() == io::ErrorKind::NotFound;
        let is_missing = error.chain().any(|cause| cause.downcast_ref().is_some_and(absent));
        let list = if is_missing { &mut self.missing } else { &mut self.wrong };
        list.push(format!("{error:#}"));
    }
}

/// Looks at everything that a daemon of this configuration reads of certificates and admin tokens when it
/// starts, as it does then.
#[must_use]
pub fn check_certificates(config: &Config, now: Timestamp) -> CertificateProblems {
    let mut problems = CertificateProblems::default();
    let listen = &config.listen;
    let listeners = [(&listen.http_tls, "http"), (&listen.grpc_tls, "grpc"), (&listen.resp_tls, "resp")];
    for (files, name) in listeners {
        if let Some(files) = files {
            problems.add(listener_tls::check(files, name, now));
        }
    }
    if let Some(files) = &config.peers.tls {
        let name = NodeName { region: config.region.clone(), node: config.node.clone() };
        problems.add(read_tls(files).and_then(|pem| {
            checked(&pem, Some(files), now)?;
            tls::check_name(&pem, &name).with_context(|| named(Some(files)))
        }));
    }
    if config.store.backend == Backend::Redis {
        problems.add(
            redis_tls(&config.store.redis.tls)
                .and_then(|tls| tls.check().map_err(|why| anyhow::anyhow!("store.redis.tls: {why}"))),
        );
    }
    problems.add(tokens::load(config.admin.tokens.as_deref()));
    problems
}
