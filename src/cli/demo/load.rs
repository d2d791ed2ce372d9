//! Load on one region's HTTP port: arrivals at random, as many as its part of the demand is.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::demand::Demand;
use crate::core::time::{Span, Timestamp};
use crate::engine::clock::Clock;

/// Arrivals of one tick go as one batch.
const TICK: Duration = Duration::from_millis(5);
/// Largest batch of `/v1/check`.
const BATCH_MAX: u64 = 1_000;
/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Windows remembered.
const WINDOWS_MAX: usize = 64;

/// The counts of one region in one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) window: u64,
    pub(super) asked: u64,
    pub(super) admitted: u64,
    pub(super) believed: u64,
}

/// The counts of the load on one region, by window.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts(Arc<Mutex<Vec<Count>>>);

impl Counts {
    fn add(&self, window: u64, admitted: bool, believed: u64) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = windows.iter().rposition(|count| count.window == window);
        let index = found.unwrap_or_else(|| {
            if windows.len() >= WINDOWS_MAX {
                windows.remove(0);
            }
            windows.push(Count { window, ..Count::default() });
            windows.len() - 1
        });
        if let Some(count) = windows.get_mut(index) {
            count.asked += 1;
            count.admitted += u64::from(admitted);
            count.believed = count.believed.max(believed);
        }
    }

    /// Returns what happened in a window.
    pub(super) fn of(&self, window: u64) -> Count {
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows
            .iter()
            .find(|count| count.window == window)
            .copied()
            .unwrap_or(Count { window, ..Count::default() })
    }
}

/// The load on one region.
pub(super) struct Load {
    /// The region's HTTP port, to which the requests go.
    pub(super) target: SocketAddr,
    /// The demand on all regions, and which of them this is.
    pub(super) demand: Demand,
    pub(super) place: u64,
    /// Window of the rule by which the load is counted.
    pub(super) window: Span,
    /// Counts of this region's load, which the screen reads.
    pub(super) counts: Counts,
    /// Starts the sequence of random numbers.
    pub(super) seed: u64,
}

#[derive(Deserialize)]
struct Answer {
    decisions: Vec<Decided>,
}

#[derive(Deserialize)]
struct Decided {
    allowed: bool,
    #[serde(default)]
    reset_ms: u64,
    rules: Vec<Ruled>,
}

#[derive(Deserialize)]
struct Ruled {
    global: Option<Global>,
}

#[derive(Deserialize)]
struct Global {
    believed_used: Option<u64>,
    used_here: Option<u64>,
}

impl Load {
    /// Asks until dropped.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let stream = TcpStream::connect(self.target).await.context("the load could not reach its daemon")?;
        stream.set_nodelay(true)?;
        let mut connection = BufReader::new(stream);
        let clock = Clock::System;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last = Instant::now();
        loop {
            let tick = ticks.tick().await;
            let mean = self.demand.rate(self.place, clock.now()) * tick.duration_since(last).as_secs_f64();
            last = tick;
            let mut arrivals = self.poisson(mean);
            while arrivals > 0 {
                let batch = arrivals.min(BATCH_MAX);
                arrivals -= batch;
                let answer = timeout(DEADLINE, ask(&mut connection, batch))
                    .await
                    .context("the daemon did not answer")??;
                self.count(&answer, clock.now());
            }
        }
    }

    fn count(&self, answer: &Answer, now: Timestamp) {
        for decided in &answer.decisions {
            // The window that a decision fell into is the one whose end it names; the answer took less than
            // half a window.
            let end = now + Span::from_millis(decided.reset_ms);
            let window = (end.micros() + self.window.micros() / 2) / self.window.micros().max(1);
            let believed = decided
                .rules
                .iter()
                .filter_map(|rule| rule.global.as_ref())
                .filter_map(|global| global.believed_used.or(global.used_here))
                .max();
            self.counts.add(window.saturating_sub(1), decided.allowed, believed.unwrap_or(0));
        }
    }

    /// Returns how many arrive where `mean` are expected (Knuth's product of uniforms, in parts so that it
    /// never underflows).
    fn poisson(&mut self, mean: f64) -> u64 {
        let mut left = mean;
        let mut arrivals = 0;
        while left > 0.0 {
            let part = left.min(16.0);
            left -= part;
            let floor = (-part).exp();
            let mut product = self.uniform();
            while product > floor {
                arrivals += 1;
                product *= self.uniform();
            }
        }
        arrivals
    }

    /// Uniform in [0, 1): splitmix64 (Steele, Lea and Flood 2014).
    fn uniform(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a float")]
        let uniform = (mixed >> 11) as f64 / (1_u64 << 53) as f64;
        uniform
    }
}

async fn ask(connection: &mut BufReader<TcpStream>, batch: u64) -> anyhow::Result<Answer> {
    const CHECK: &str = r#"{"attributes":{"path":"/demo"}}"#;
    let checks = vec![CHECK; usize::try_from(batch).unwrap_or(1)].join(",");
    let body = format!(r#"{{"checks":[{checks}]}}"#);
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: demo\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.get_mut().write_all(format!("{head}{body}").as_bytes()).await?;
    let mut len = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if connection.read_line(&mut line).await? == 0 {
            bail!("the daemon closed the connection");
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            len = value.trim().parse().context("the daemon sent no length")?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; len];
    connection.read_exact(&mut body).await?;
    serde_json::from_slice(&body)
        .with_context(|| format!("the daemon answered {}", String::from_utf8_lossy(&body)))
}
