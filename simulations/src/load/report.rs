//! The measurements, for people and for scripts.

use std::io::Write;

use serde::Serialize;

use super::pace::{Plan, Tally};
use super::process::Usage;

/// The figures of one run. The names are those of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    work: &'static str,
    connections: u16,
    depth: u16,
    batch: u16,
    keys: u32,
    seconds: f64,
    requests_per_second: f64,
    checks_per_second: f64,
    ok: u64,
    over_limit: u64,
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<Server>,
}

/// The use of processor and memory by the server's process in the measured time.
#[derive(Debug, Clone, Copy, Serialize)]
struct Server {
    cpu_us_per_request: f64,
    cpu_us_per_check: f64,
    cores: f64,
    rss_mib: f64,
}

#[allow(clippy::cast_precision_loss, reason = "figures for people: 52 bits are plenty")]
fn real(count: u64) -> f64 {
    count as f64
}

impl Report {
    /// Works the figures out.
    pub(super) fn new(
        work: &'static str,
        plan: &Plan,
        (depth, batch): (u16, u16),
        keys: u32,
        tally: &Tally,
        usage: Option<Usage>,
    ) -> Self {
        let seconds = plan.measured.as_secs_f64();
        let answered = tally.ok + tally.over_limit;
        let micros = |per_mille| real(tally.latency.quantile_ns(per_mille)) / 1_000.0;
        let server = usage.map(|usage| {
            let cpu_us_per_request = real(usage.cpu_ms) * 1_000.0 / real(answered.max(1));
            Server {
                cpu_us_per_request,
                cpu_us_per_check: cpu_us_per_request / f64::from(batch),
                cores: real(usage.cpu_ms) / 1_000.0 / seconds,
                rss_mib: real(usage.rss_kib) / 1_024.0,
            }
        });
        Self {
            work,
            connections: plan.connections,
            depth,
            batch,
            keys,
            seconds,
            requests_per_second: real(answered) / seconds,
            checks_per_second: real(answered) / seconds * f64::from(batch),
            ok: tally.ok,
            over_limit: tally.over_limit,
            errors: tally.errors,
            first_error: tally.first_error.clone(),
            p50_us: micros(500),
            p99_us: micros(990),
            p999_us: micros(999),
            max_us: real(tally.latency.max_ns()) / 1_000.0,
            server,
        }
    }

    /// Requests that got a usable answer in the measured time.
    pub(super) fn answered(&self) -> u64 {
        self.ok + self.over_limit
    }

    /// Writes it to `out`.
    ///
    /// # Errors
    /// When `out` is closed.
    pub(super) fn print(&self, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
        if json {
            serde_json::to_writer(&mut *out, self)?;
            writeln!(out)?;
        } else {
            write!(out, "{self}")?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { work, connections, depth, batch, keys, seconds, .. } = self;
        writeln!(
            f,
            "{work}: {connections} connections x {depth} in flight, batch {batch}, {keys} keys, {seconds} s"
        )?;
        writeln!(
            f,
            "  requests/s {:>12.0}   checks/s {:.0}",
            self.requests_per_second, self.checks_per_second
        )?;
        writeln!(f, "  ok {}   over limit {}   errors {}", self.ok, self.over_limit, self.errors)?;
        writeln!(
            f,
            "  latency    p50 {:.0} us   p99 {:.0} us   p99.9 {:.0} us   max {:.0} us",
            self.p50_us, self.p99_us, self.p999_us, self.max_us
        )?;
        if let Some(server) = self.server {
            writeln!(
                f,
                "  server     {:.2} us CPU/request ({:.2} a check), {:.2} cores, {:.1} MiB resident",
                server.cpu_us_per_request, server.cpu_us_per_check, server.cores, server.rss_mib
            )?;
        }
        match &self.first_error {
            Some(error) => writeln!(f, "  first error: {error}"),
            None => Ok(()),
        }
    }
}
