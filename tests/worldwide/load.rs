//! Load on one region's gRPC port, and what was admitted of it, by window.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::support::rls::{self, Client};

/// Admissions come in bursts this far apart.
const TICK: Duration = Duration::from_millis(5);

/// What one region was asked and admitted in a window.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
}

/// One request: how long after the epoch it was sent and answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) sent: Duration,
    pub(crate) answered: Duration,
    pub(crate) admitted: bool,
}

/// Asks one region, at a rate that can be changed, until dropped.
pub(crate) struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    /// Requests per second.
    rate: AtomicU64,
    window: Duration,
    counts: Mutex<BTreeMap<u64, Count>>,
    asks: Mutex<Vec<Ask>>,
    /// The longest that this thread was not let run though it wanted to, by window.
    stalls: Mutex<BTreeMap<u64, Duration>>,
}

impl Load {
    pub(crate) fn start(grpc: SocketAddr, rate: u64, window: Duration) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            rate: AtomicU64::new(rate),
            window,
            counts: Mutex::default(),
            asks: Mutex::default(),
            stalls: Mutex::default(),
        });
        let mine = Arc::clone(&shared);
        let thread = std::thread::spawn(move || mine.run(grpc));
        Self { shared, thread: Some(thread) }
    }

    pub(crate) fn set_rate(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, window: u64) -> Count {
        self.shared.counts.lock().unwrap().get(&window).copied().unwrap_or_default()
    }

    /// All that was asked until now.
    pub(crate) fn asks(&self) -> Vec<Ask> {
        self.shared.asks.lock().unwrap().clone()
    }

    /// How long this machine kept the load from running, at worst, in a window.
    pub(crate) fn stall(&self, window: u64) -> Duration {
        self.shared.stalls.lock().unwrap().get(&window).copied().unwrap_or_default()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, grpc: SocketAddr) {
        let mut client = None;
        let mut last = Instant::now();
        let mut owed = 0.0;
        while !self.stop.load(Ordering::Relaxed) {
            let slept = Instant::now();
            std::thread::sleep(TICK);
            self.stalled(slept.elapsed().saturating_sub(TICK));
            let rate = self.rate.load(Ordering::Relaxed) as f64;
            // A daemon that was away is not asked for what it missed.
            owed += rate * last.elapsed().min(Duration::from_millis(200)).as_secs_f64();
            last = Instant::now();
            if client.is_none() {
                client = Client::try_connect(grpc);
            }
            while owed >= 1.0 {
                owed -= 1.0;
                let Some(connected) = &client else { continue };
                if !self.ask(connected) {
                    client = None;
                }
            }
        }
    }

    /// `false`: the daemon did not answer.
    fn ask(&self, client: &Client) -> bool {
        let sent = since_epoch();
        let Ok(answer) = client.ask(rls::request(vec![rls::descriptor(&[("who", "world"), ("user", "u")])]))
        else {
            return false;
        };
        let answered = since_epoch();
        let status = &answer.statuses[0];
        let admitted = status.code == 1;
        self.asks.lock().unwrap().push(Ask { sent, answered, admitted });
        // Of what was asked in one window and answered in another nobody knows which has charged it.
        let window_of = |at: Duration| (at.as_secs_f64() / self.window.as_secs_f64()) as u64;
        let window = window_of(answered);
        if window != window_of(sent) {
            return true;
        }
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry(window).or_default();
        count.asked += 1;
        count.admitted += u64::from(admitted);
        true
    }

    fn stalled(&self, late: Duration) {
        let now = since_epoch();
        let window = (now.as_secs_f64() / self.window.as_secs_f64()) as u64;
        let mut stalls = self.stalls.lock().unwrap();
        let worst = stalls.entry(window).or_default();
        *worst = late.max(*worst);
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
