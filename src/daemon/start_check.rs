//! The files that a daemon would refuse to start with, found without starting one: for `tidegate config
//! check` and `tidegate doctor`.

use std::io;

use super::peer_certificates::{checked, named};
use super::redis_tls::redis_tls;
use super::setup::read_tls;
use super::{begin, identity, listener_tls, tokens};
use crate::config::{Backend, Config};
use crate::core::regions::NodeName;
use crate::core::time::Timestamp;
use crate::database::events;
use crate::peer::tls;
use anyhow::Context as _;

/// One file that a daemon would not start with.
#[derive(Debug)]
pub struct FileProblem {
    /// The kind of file, in a word.
    pub about: &'static str,
    /// The problem, in a sentence that names the file.
    pub text: String,
}

/// The judgement of a daemon on the files of its configuration.
#[derive(Debug, Default)]
pub struct FileProblems {
    /// Reasons for which it refuses to start.
    pub wrong: Vec<FileProblem>,
    /// Files that are not on this machine: it may be another one that serves.
    pub missing: Vec<FileProblem>,
}

impl FileProblems {
    fn add<T>(&mut self, about: &'static str, looked: anyhow::Result<T>) {
        let Err(error) = looked else { return };
        let absent = |cause: &io::Error| cause.kind() == io::ErrorKind::NotFound;
        let is_missing = error.chain().any(|cause| cause.downcast_ref().is_some_and(absent));
        let list = if is_missing { &mut self.missing } else { &mut self.wrong };
        list.push(FileProblem { about, text: format!("{error:#}") });
    }
}

/// Looks at everything that a daemon of this configuration reads of certificates, tokens, keys, secrets and
/// passwords when it starts, as it does then.
#[must_use]
pub fn check_files(config: &Config, now: Timestamp) -> FileProblems {
    let mut problems = FileProblems::default();
    let listen = &config.listen;
    let listeners = [(&listen.http_tls, "http"), (&listen.grpc_tls, "grpc"), (&listen.resp_tls, "resp")];
    for (files, name) in listeners {
        if let Some(files) = files {
            problems.add("certificate", listener_tls::check(files, name, now));
        }
    }
    if let Some(files) = &config.peers.tls {
        let name = NodeName { region: config.region.clone(), node: config.node.clone() };
        let looked = read_tls(files).and_then(|pem| {
            checked(&pem, Some(files), now)?;
            tls::check_name(&pem, &name).with_context(|| named(Some(files)))
        });
        problems.add("certificate", looked);
    }
    if config.store.backend == Backend::Redis {
        let looked = redis_tls(&config.store.redis.tls)
            .and_then(|tls| tls.check().map_err(|why| anyhow::anyhow!("store.redis.tls: {why}")));
        problems.add("certificate", looked);
    }
    problems.add("tokens", tokens::load(config.admin.tokens.as_deref()));
    if let Some(jwt) = &config.identity.jwt {
        problems.add("keys", identity::load(&jwt.keys));
    }
    if let Some(events) = &config.events {
        problems.add("secret", events::read_secret(&events.secret));
    }
    if listen.resp.is_some() {
        problems.add("passwords", begin::passwords(listen.resp_passwords.as_deref()));
    }
    problems
}
