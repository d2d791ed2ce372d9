//! What counting a decision among the heaviest costs: hash, lock, count. Prints nanoseconds (median of
//! rounds).
//!
//! `cargo bench --bench hot` measures; `tests/bench/instructions` counts instructions with callgrind, which
//! runs this with `--count KEYS N`.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout, reason = "a benchmark")]

use std::hash::BuildHasher as _;
use std::sync::Mutex;
use std::time::Instant;

use tidegate::core::algorithm::Counting;
use tidegate::core::hot::{HotCharge, HotTable};
use tidegate::core::key::{Key, Shape};
use tidegate::core::time::{Span, Timestamp};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const COUNTS: usize = 200_000;
const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

/// As the engine has them.
struct Tables {
    tables: Vec<Mutex<HotTable>>,
    hasher: foldhash::fast::RandomState,
}

impl Tables {
    fn new() -> Self {
        let tables = (0..64).map(|_| Mutex::new(HotTable::new(512))).collect();
        Self { tables, hasher: foldhash::fast::RandomState::default() }
    }

    fn count(&self, key: &Key) {
        let charge = HotCharge {
            denied: false,
            taken: std::hint::black_box(1),
            windows: Span::from_secs(60).into(),
            counting: Counting::Window,
        };
        let hash = self.hasher.hash_one(key.bytes());
        self.tables[usize::try_from(hash >> 58).unwrap()].lock().unwrap().count(hash, key, &charge, NOW);
    }
}

/// Keys in an order that caches cannot foresee.
fn keys(count: usize) -> Vec<Key> {
    let mut keys: Vec<Key> =
        (0..count).map(|index| Key::new(Shape(8), [format!("u_{index}").as_str()])).collect();
    let mut seed = 1_u64;
    for index in (1..keys.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        keys.swap(index, (seed >> 33) as usize % (index + 1));
    }
    keys
}

fn measure(count: usize) -> f64 {
    let (tables, keys) = (Tables::new(), keys(count));
    keys.iter().for_each(|key| tables.count(key));
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let started = Instant::now();
            for key in keys.iter().cycle().skip(round * COUNTS % keys.len()).take(COUNTS) {
                tables.count(key);
            }
            started.elapsed().as_nanos() as f64 / COUNTS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Callgrind counts the instructions of this function alone.
#[inline(never)]
fn counted(tables: &Tables, keys: &[Key], counts: usize) {
    keys.iter().cycle().take(counts).for_each(|key| tables.count(key));
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--count") {
        let (tables, keys) = (Tables::new(), keys(arguments[at + 1].parse().unwrap()));
        let counts: usize = arguments[at + 2].parse().unwrap();
        counted(&tables, &keys, counts);
        return;
    }
    for (what, count) in [("a hot key", 1), ("1,000 keys", 1_000), ("a million keys at random", 1_000_000)] {
        println!("{what:<28} {:>6.0} ns a count", measure(count));
    }
}
