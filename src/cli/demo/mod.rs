//! `tidegate demo`: three regions on this machine hold one worldwide limit, live.
//!
//! Nothing in it is pretended: every region is a complete daemon with its own store, HTTP and gRPC ports,
//! QUIC endpoint and certificate; the load comes in through the HTTP ports; only the ocean is a relay that
//! holds datagrams back.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::time::{MissedTickBehavior, interval};

use super::{Ended, Failure, say, say_prose};
use crate::core::regions::escrow::RECOVERY_MARGIN;
use crate::core::rule::Mode;
use crate::core::time::{Span, Timestamp};
use crate::daemon::{self, Daemon, certificate};
use crate::engine::clock::Clock;

mod demand;
mod load;
mod moved;
mod relay;
mod screen;

use demand::Demand;
use load::{Count, Counts, Load};
use moved::{Moved, Movements, moved};
use relay::Relay;
use screen::{History, Phase, Picture, Row, Screen, in_terminal};

/// Regions of the demo, in order.
const REGIONS: [&str; 8] =
    ["eu-west", "us-east", "ap-south", "sa-east", "us-west", "ap-north", "af-south", "me-central"];
/// From the start until everyone knows everyone. Under `escrow` also until a memory that has just begun
/// trusts itself: rights of windows that began earlier are burnt.
const GREETING: Span = Span::from_millis(700);
const GREETING_ESCROW: Span = Span(RECOVERY_MARGIN.0 + 500_000);
/// Windows longer than this are shown while they run.
const SHOWN_WHOLE_MAX: Span = Span::from_secs(2);
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
    /// Requests per window worldwide, as a multiple of the limit; nearly all of them in one region, and then
    /// in another.
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
            "Starting {} regions, {} ms apart, with one limit of {} per {} for all of them\n(mode {}). Asked for is {} times the limit: nineteen of twenty requests\ncome to one region, another one every {}.",
            self.regions,
            self.rtt.millis_up(),
            self.limit,
            super::table::span(self.window.millis_up()),
            self.mode,
            self.load,
            super::table::span(self.demand().stay().millis_up()),
        ));
        let daemons = Box::pin(self.start(mode)).await?;
        self.introduce(&daemons);
        let counts = self.load(&daemons);
        self.watch(mode, &daemons, &counts).await?;
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
            let advertise = relay.address()?;
            let setup = |default_ports| {
                daemon::demo_setup(daemon::DemoRegion {
                    region,
                    regions: &names,
                    ca: &ca,
                    advertise,
                    join: &addresses,
                    rule: daemon::DemoRule { limit: self.limit, window: self.window, mode },
                    default_ports,
                })
            };
            let first = index == 0;
            let started = match Daemon::start(setup(first)?).await {
                // Someone may have taken a usual port since it was found free, as another demo that begins
                // now does.
                Err(_) if first => Daemon::start(setup(false)?).await,
                started => started,
            };
            let daemon = started.with_context(|| format!("region {region} did not start"))?;
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
        if in_terminal() {
            // All of it would push the line above out of sight.
            say_prose(format_args!(
                "or from an Envoy, by gRPC at {grpc} (`tidegate demo | cat` says how).\n"
            ));
            return;
        }
        say(format_args!(
            "or from a stock Envoy, with this HTTP filter and cluster (and `rate_limits` on a route):\n{}",
            envoy(grpc)
        ));
    }

    fn demand(&self) -> Demand {
        Demand::new(self.limit, self.window, self.load, self.regions)
    }

    /// Starts the load on every region.
    fn load(&self, daemons: &[Daemon]) -> Vec<Counts> {
        let mut all = Vec::new();
        for (place, daemon) in (0..).zip(daemons) {
            let counts = Counts::default();
            all.push(counts.clone());
            if let Some(target) = daemon.http_address() {
                let demand = self.demand();
                let load = Load { target, demand, place, window: self.window, counts, seed: place + 1 };
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
    async fn watch(&self, mode: Mode, daemons: &[Daemon], counts: &[Counts]) -> anyhow::Result<()> {
        let clock = Clock::System;
        let started = clock.now();
        let sent_before = sent(daemons);
        let until = self.seconds.map(|seconds| started + Span::from_secs(seconds));
        let greeting = if mode == Mode::Escrow { GREETING_ESCROW } else { GREETING };
        // The first whole window after that.
        let first = (started + greeting).window_index(self.window) + 1;
        let mut next = first;
        let mut history = History::default();
        let mut movements = Movements::default();
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
            let second = now.since(last_drawn) >= Span::from_millis(950);
            let running = now.window_index(self.window);
            if mode == Mode::Escrow && (second || movements.turns(running)) {
                let metrics: Vec<_> =
                    daemons.iter().map(|daemon| daemon.engine().metrics().render()).collect();
                movements.take(running, moved(&metrics));
            }
            let finished = now.since(Timestamp::window_start(next + 1, self.window)) >= SETTLE;
            if finished {
                let sum = |sum: (u64, u64), count: Count| (sum.0 + count.asked, sum.1 + count.admitted);
                let (asked, admitted) = counts.iter().map(|counts| counts.of(next)).fold((0, 0), sum);
                history.add(asked, admitted, u64::from(self.limit));
                next += 1;
            }
            // A line a second: the window that ended last, or the one that runs where windows are long.
            let ended = next.saturating_sub(1);
            let shown = if self.window > SHOWN_WHOLE_MAX {
                second.then(|| next.min(running))
            } else if self.window.micros() >= 900_000 {
                finished.then_some(ended)
            } else {
                (second && history.windows > 0).then_some(ended)
            };
            if let Some(window) = shown {
                let rows = daemons.iter().zip(counts).map(|(daemon, counts)| {
                    let region = daemon.engine().name().region.clone();
                    let moved = movements.of(window, &region);
                    row(daemon, region, counts.of(window), moved)
                });
                screen.draw(&Picture {
                    mode,
                    rows: rows.collect(),
                    limit: u64::from(self.limit),
                    phase: match window {
                        window if window < first => Phase::Starting,
                        window if window < next => Phase::Ended,
                        _ => Phase::Running,
                    },
                    history: history.clone(),
                });
                last_drawn = now;
            }
            if until.is_some_and(|until| now >= until) {
                break;
            }
        }
        let seconds = clock.now().since(started).micros().div_ceil(1_000_000).max(1);
        let bytes = sent(daemons).saturating_sub(sent_before) / seconds;
        self.summarize(&history, daemons.len(), bytes);
        Ok(())
    }

    /// Says what all whole windows were like. `bytes`: sent by all regions together in a second.
    fn summarize(&self, history: &History, regions: usize, bytes: u64) {
        if history.windows == 0 {
            say(format_args!(
                "\nNo whole window of {} has passed.",
                super::table::span(self.window.millis_up())
            ));
            return;
        }
        let limit = u64::from(self.limit);
        let links = regions * regions.saturating_sub(1);
        say_prose(format_args!(
            "\n{} of {} held by {}: {} asked, {} admitted of at most {}; overshoot worst {:.1} %, mean {:.2} %; use {:.1} %; about {} bytes/s on each of {links} links.",
            history.counted(),
            super::table::span(self.window.millis_up()),
            self.mode,
            history.asked,
            history.admitted,
            limit * history.windows,
            History::percent(history.over_max, limit),
            history.over_mean(limit),
            history.used(),
            bytes / u64::try_from(links.max(1)).unwrap_or(1),
        ));
    }
}

/// Returns what a region did in a window, and how far from the others it is.
fn row(daemon: &Daemon, region: String, count: Count, moved: Option<Moved>) -> Row {
    let world = daemon.engine().world();
    Row {
        region,
        count,
        moved,
        rtt_ms: world.peers.iter().filter_map(|peer| peer.rtt).max().map(Span::millis_up),
        lag_ms: world.peers.iter().filter_map(|peer| peer.lag).max().map(Span::millis_up),
    }
}

/// Bytes that all regions have sent each other since the start.
fn sent(daemons: &[Daemon]) -> u64 {
    daemons.iter().flat_map(|daemon| daemon.engine().world().peers.clone()).map(|peer| peer.bytes.0).sum()
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
      timeout: 10s
      enable_x_ratelimit_headers: DRAFT_VERSION_03
      rate_limit_service:
        transport_api_version: V3
        grpc_service: {{ envoy_grpc: {{ cluster_name: tidegate }} }}
  # …before envoy.filters.http.router. On the route:
  #   rate_limits: [{{ actions: [{{ request_headers: {{ header_name: ':path', descriptor_key: path }} }}] }}]
  clusters:
  - name: tidegate
    type: STATIC
    circuit_breakers:
      thresholds: [{{ max_connections: 65536, max_pending_requests: 65536, max_requests: 65536 }}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options: {{ max_outbound_control_frames: 1000000, max_outbound_frames: 1000000 }}
    load_assignment:
      cluster_name: tidegate
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {} }} }} }} }}] }}]
",
        grpc.ip(),
        grpc.port()
    )
}
