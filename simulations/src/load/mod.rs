//! `sim load`: asks a running daemon as fast as it answers, and says what that cost.
//!
//! For capacity figures that others can repeat: `rls` speaks Envoy's protocol, `http` the check route, and
//! `floor` serves a constant on both, so that a figure can be read against what the transport alone takes. It
//! measures; it does not judge whether the answers are right. Client and server usually share a machine, so
//! compare ratios, and CPU per request before requests per second.

mod floor;
mod histogram;
pub(crate) mod http;
mod pace;
mod process;
mod report;
mod rls;
mod script;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use clap::{Args, Subcommand};

use pace::{Plan, Tally};
use report::Report;
use script::Entries;

/// What to do: ask over gRPC, ask over HTTP, or be the server that answers a constant.
#[derive(Debug, Subcommand)]
pub(crate) enum Load {
    /// Envoy's `ShouldRateLimit` over HTTP/2.
    Rls(RlsArgs),
    /// `POST /v1/check` over HTTP/1.1 with keep-alive.
    Http(HttpArgs),
    /// A server that answers every request with the same "OK": what the transport alone costs.
    Floor(FloorArgs),
}

/// What both kinds of load have in common.
#[derive(Debug, Args)]
pub(crate) struct Shared {
    /// Measured time, in seconds.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Time before it that is not counted, in seconds.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// The domain asked about.
    #[arg(long, default_value = "default")]
    domain: String,
    /// Attributes, `name=value` separated by commas; `{n}` in a value becomes the number of the key.
    #[arg(long, default_value = "user=u_{n}")]
    entries: Entries,
    /// How many different keys to ask about, drawn evenly.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(script::KEYS_MAX)))]
    keys: u32,
    /// Threads of the generator; each runs its part of the connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// The server's process: reports its CPU time per request and its memory.
    #[arg(long)]
    pid: Option<u32>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Arguments of `sim load rls`.
#[derive(Debug, Args)]
pub(crate) struct RlsArgs {
    /// Where the daemon serves gRPC.
    #[arg(long, default_value = "127.0.0.1:8081")]
    addr: SocketAddr,
    /// Connections.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Requests in flight on each connection.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    #[command(flatten)]
    shared: Shared,
}

/// Arguments of `sim load http`.
#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// Where the daemon serves HTTP.
    #[arg(long, default_value = "127.0.0.1:8080")]
    addr: SocketAddr,
    /// Connections, each with one request in flight.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Checks in one request; 1 asks the single form.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    #[command(flatten)]
    shared: Shared,
}

/// Arguments of `sim load floor`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct FloorArgs {
    /// Serve a constant `RateLimitResponse` over HTTP/2 here.
    #[arg(long)]
    grpc: Option<SocketAddr>,
    /// Serve a constant decision over HTTP/1.1 here.
    #[arg(long)]
    http: Option<SocketAddr>,
}

impl Load {
    /// Runs to the end (`floor`: until it is stopped) and writes what was measured to `out`.
    ///
    /// # Errors
    /// When the server cannot be reached, answers nothing, or its process cannot be read.
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<()> {
        match self {
            Self::Floor(args) => floor::serve(args.grpc, args.http),
            Self::Rls(args) => {
                let shared = &args.shared;
                let script = Arc::new(script::rls(&shared.domain, &shared.entries, shared.keys));
                let plan = shared.plan(args.connections)?;
                let tally = pace::drive(&plan, async |plan, share| {
                    rls::ask(plan, args.addr, share, args.depth, &script).await
                })?;
                shared.finish("rls", &plan, (args.depth, 1), tally, out)
            }
            Self::Http(args) => {
                let shared = &args.shared;
                let script =
                    script::http(args.addr, &shared.domain, &shared.entries, shared.keys, args.batch)?;
                let script = Arc::new(script);
                let plan = shared.plan(args.connections)?;
                let tally =
                    pace::drive(&plan, async |plan, share| http::ask(plan, args.addr, share, &script).await)?;
                shared.finish("http", &plan, (1, args.batch), tally, out)
            }
        }
    }
}

impl Shared {
    fn plan(&self, connections: u16) -> anyhow::Result<Arc<Plan>> {
        Plan::new(self.warm_up, self.seconds, connections, self.threads, self.pid)
    }

    fn finish(
        &self,
        work: &'static str,
        plan: &Plan,
        (depth, batch): (u16, u16),
        (tally, usage): (Tally, Option<process::Usage>),
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let report = Report::new(work, plan, (depth, batch), self.keys, &tally, usage);
        report.print(self.json, out)?;
        if report.answered() == 0 {
            anyhow::bail!(
                "no request was answered{}",
                tally.first_error.map(|error| format!(": {error}")).unwrap_or_default()
            );
        }
        Ok(())
    }
}
