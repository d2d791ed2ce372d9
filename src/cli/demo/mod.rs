//! `tidegate demo`: three regions on this machine hold one worldwide limit, live.
//!
//! Nothing in it is pretended: every region is a complete daemon with its own store, HTTP and gRPC ports, QUIC endpoint
//! and certificate; the load comes in through the HTTP ports; only the ocean is a relay that holds datagrams back.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::time::{MissedTickBehavior, interval};

use super::{Ended, Failure, say};
use crate::core::rule::Mode;
use crate::core::time::{Span, Timestamp};
use crate::daemon::{self, Daemon, certificate};
use crate::engine::clock::Clock;

mod load;
mod relay;
mod screen;

use load::{Count, Counts, Load};
use relay::Relay;
use screen::{History, Picture, Row, Screen};

/// Regions of the demo, in order.
const REGIONS: [&str; 8] =
    ["eu-west", "us-east", "ap-south", "sa-east", "us-west", "ap-north", "af-south", "me-central"];
/// After the end of a window, until its last answers are in.
const SETTLE: Span = Span::from_millis(300);

/// Holds one limit over several regions on this machine and shows it.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Permits per window, worldwide.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// The window.
    #[arg(long, default_value = "1s", value_parser = window)]
    window: Span,
    /// How many regions.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=8))]
    regions: u8,
    /// Round trip between any two regions.
    #[arg(long, default_value = "80ms", value_parser = rtt)]
    rtt: Span,
    /// How the limit is held: gossip, split or escrow.
    #[arg(long, default_value = "gossip")]
    mode: String,
    /// Requests per window worldwide, as a multiple of the limit.
    #[arg(long, default_value_t = 3.0)]
    load: f64,
    /// Ends after this many seconds; without it, with Ctrl-C.
    #[arg(long)]
    seconds: Option<u64>,
}

fn window(text: &str) -> Result<Span, String> {
    let window = daemon::read_span(text)?;
    let fits = (Span::from_millis(100)..=Span::from_secs(3_600)).contains(&window);
    if fits { Ok(window) } else { Err("the demo's window is 100ms to 1h".to_owned()) }
}

fn rtt(text: &str) -> Result<Span, String> {
    let rtt = daemon::read_span(text)?;
    if rtt <= Span::from_secs(2) { Ok(rtt) } else { Err("the demo's round trip is at most 2s".to_owned()) }
}

impl Demo {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        let mode = match self.mode.as_str() {
            "gossip" => Mode::Gossip,
            "split" => Mode::Split,
            "escrow" => Mode::Escrow,
            other => return Err(Failure::Usage(format!("--mode {other}: expected gossip, split or escrow"))),
        };
        if !(0.0..=100.0).contains(&self.load) {
            return Err(Failure::Usage(format!("--load {}: expected 0 to 100", self.load)));
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(anyhow::Error::from)?;
        let ended = runtime.block_on(self.play(mode));
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(ended?)
    }

    async fn play(&self, mode: Mode) -> anyhow::Result<ExitCode> {
        say(format_args!(
            "Starting {} regions, {} ms apart; one limit of {} per {} over all of them; load {} times the limit.",
            self.regions,
            self.rtt.millis_up(),
            self.limit,
            super::table::span(self.window.millis_up()),
            self.load,
        ));
        let daemons = self.start(mode).await?;
        self.introduce(&daemons);
        let counts = self.load(&daemons);
        self.watch(&daemons, &counts).await?;
        for daemon in daemons {
            daemon.drain().await;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Starts a daemon in each region, behind a relay of its own.
    async fn start(&self, mode: Mode) -> anyhow::Result<Vec<Daemon>> {
        let names: Vec<String> =
            REGIONS.iter().take(usize::from(self.regions)).map(|name| (*name).to_owned()).collect();
        let ca = certificate::create_ca(Clock::System.now())?;
        let one_way = self.rtt.to_std() / 2;
        let mut relays = Vec::new();
        for _ in &names {
            relays.push(Relay::open(one_way).await.context("no port for the relay")?);
        }
        let addresses = relays.iter().map(Relay::address).collect::<Result<Vec<_>, _>>()?;
        let mut daemons = Vec::new();
        for (index, (region, relay)) in names.iter().zip(relays).enumerate() {
            let setup = daemon::demo_setup(daemon::DemoRegion {
                region,
                regions: &names,
                ca: &ca,
                advertise: relay.address()?,
                join: &addresses,
                rule: daemon::DemoRule { limit: self.limit, window: self.window, mode },
                default_ports: index == 0,
            })?;
            let daemon =
                Daemon::start(setup).await.with_context(|| format!("region {region} did not start"))?;
            let target = daemon.peer_address().context("the daemon has no peer port")?;
            tokio::spawn(relay.run(target));
            daemons.push(daemon);
        }
        Ok(daemons)
    }

    /// Says how to ask the first region.
    fn introduce(&self, daemons: &[Daemon]) {
        let Some((http, grpc)) =
            daemons.first().and_then(|first| Some((first.http_address()?, first.grpc_address()?)))
        else {
            return;
        };
        say(format_args!(
            "\nRegion {} answers meanwhile. Ask it over HTTP:\n\n  curl -s http://{http}/v1/check -d '{{\"attributes\":{{\"path\":\"/demo\"}}}}'\n",
            REGIONS[0]
        ));
        say(format_args!(
            "or from a stock Envoy, with this HTTP filter and cluster (and `rate_limits` on a route):\n{}",
            envoy(grpc)
        ));
    }

    /// Starts the load on every region.
    fn load(&self, daemons: &[Daemon]) -> Vec<Counts> {
        #[expect(clippy::cast_precision_loss, reason = "a rate is a float")]
        let rate =
            f64::from(self.limit) * self.load * 1e6 / self.window.micros() as f64 / f64::from(self.regions);
        let mut all = Vec::new();
        for (seed, daemon) in (1..).zip(daemons) {
            let counts = Counts::default();
            all.push(counts.clone());
            if let Some(target) = daemon.http_address() {
                let load = Load { target, rate, window: self.window, counts, seed };
                tokio::spawn(async move {
                    if let Err(error) = load.run().await {
                        tracing::warn!(%error, "the load on a region ended");
                    }
                });
            }
        }
        all
    }

    /// Shows every finished window, until the time is up or Ctrl-C.
    async fn watch(&self, daemons: &[Daemon], counts: &[Counts]) -> anyhow::Result<()> {
        let clock = Clock::System;
        let started = clock.now();
        let until = self.seconds.map(|seconds| started + Span::from_secs(seconds));
        // The first whole window after everyone knows everyone.
        let mut next = (started + Span::from_millis(700)).window_index(self.window) + 1;
        let mut history = History::default();
        let mut screen = Screen::open();
        let mut ticks = interval(Duration::from_millis(100));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last_drawn = clock.now();
        loop {
            tokio::select! {
                biased;
                _ = tokio::signal::ctrl_c() => break,
                _ = ticks.tick() => {}
            }
            let now = clock.now();
            let finished = now.since(Timestamp::window_start(next + 1, self.window)) >= SETTLE;
            if finished {
                let sum = |sum: (u64, u64), count: Count| (sum.0 + count.asked, sum.1 + count.admitted);
                let (asked, admitted) = counts.iter().map(|counts| counts.of(next)).fold((0, 0), sum);
                history.add(asked, admitted, u64::from(self.limit));
                next += 1;
            }
            // A line a second: the window that ended last, or the one that runs where windows are long.
            let second = now.since(last_drawn) >= Span::from_millis(950);
            let shown = match self.window.micros() {
                2_000_001.. => second.then_some(next),
                900_000.. => finished.then_some(next.saturating_sub(1)),
                _ => (second && history.windows > 0).then_some(next.saturating_sub(1)),
            };
            if let Some(window) = shown {
                screen.draw(&self.picture(daemons, counts, window, &history));
                last_drawn = now;
            }
            if until.is_some_and(|until| now >= until) {
                break;
            }
        }
        self.summarize(&history, daemons);
        Ok(())
    }

    fn picture(&self, daemons: &[Daemon], counts: &[Counts], window: u64, history: &History) -> Picture {
        let rows = daemons.iter().zip(counts).map(|(daemon, counts)| {
            let world = daemon.engine().world();
            Row {
                region: daemon.engine().name().region.clone(),
                count: counts.of(window),
                rtt_ms: world.peers.iter().filter_map(|peer| peer.rtt).max().map(Span::millis_up),
                lag_ms: world.peers.iter().filter_map(|peer| peer.lag).max().map(Span::millis_up),
            }
        });
        Picture { rows: rows.collect(), limit: u64::from(self.limit), history: history.clone() }
    }

    fn summarize(&self, history: &History, daemons: &[Daemon]) {
        let limit = u64::from(self.limit);
        let links = daemons.len() * daemons.len().saturating_sub(1);
        let bytes: u64 = daemons
            .iter()
            .flat_map(|daemon| daemon.engine().world().peers.clone())
            .map(|peer| peer.bytes.0)
            .sum();
        let seconds = (history.windows * self.window.micros()).div_ceil(1_000_000).max(1);
        say(format_args!(
            "\n{} windows of {}: {} asked, {} admitted of at most {}; overshoot worst {:.1} %, mean {:.2} %; use {:.1} %; about {} bytes/s on each of {links} links.",
            history.windows,
            super::table::span(self.window.millis_up()),
            history.asked,
            history.admitted,
            limit * history.windows,
            History::percent(history.over_max, limit),
            history.over_mean(limit),
            history.used(),
            bytes / u64::try_from(links.max(1)).unwrap_or(1) / seconds,
        ));
    }
}

/// The part of an Envoy configuration that asks this daemon.
fn envoy(grpc: SocketAddr) -> String {
    format!(
        r"
  http_filters:
  - name: envoy.filters.http.ratelimit
    typed_config:
      '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
      domain: default
      enable_x_ratelimit_headers: DRAFT_VERSION_03
      rate_limit_service:
        transport_api_version: V3
        grpc_service: {{ envoy_grpc: {{ cluster_name: tidegate }} }}
  # …before envoy.filters.http.router. On the route:
  #   rate_limits: [{{ actions: [{{ request_headers: {{ header_name: ':path', descriptor_key: path }} }}] }}]
  clusters:
  - name: tidegate
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: tidegate
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {} }} }} }} }}] }}]
",
        grpc.ip(),
        grpc.port()
    )
}
