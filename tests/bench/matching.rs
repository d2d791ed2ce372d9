//! How long it takes to find the rules that decide a request, from one rule to ten thousand, for several
//! kinds of rules.
//!
//! `cargo bench --bench matching` prints one line for each kind: nanoseconds a request, keys of buckets
//! included, of a quiet pass. The rules of one set all differ, and requests go round through many of them, so
//! that caches are as cold as they would be.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock and prints what it found"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate::core::algorithm::Algorithm;
use tidegate::core::request::{Cost, Request};
use tidegate::core::rule::{Condition, Pattern, Rule};
use tidegate::core::ruleset::{RuleSet, Shapes};
use tidegate::core::time::Span;

const SIZES: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const REQUESTS: usize = 1_009;
const LONG_ENOUGH: Duration = Duration::from_millis(300);

/// Conditions of rule `n`: attribute and pattern.
type Conditions = Vec<(&'static str, String)>;
/// Attributes of a request that matches rule `n`.
type Attributes = [(&'static str, String); 5];

struct Kind {
    name: &'static str,
    rule: fn(usize) -> Conditions,
}

const KINDS: [Kind; 9] = [
    Kind { name: "own path", rule: |n| vec![("path", path(n))] },
    Kind { name: "own user and path", rule: |n| vec![("user", format!("u{n}")), ("path", path(n))] },
    Kind {
        name: "users x paths",
        rule: |n| vec![("user", format!("u{}", n / 100)), ("path", path(n % 100))],
    },
    Kind { name: "own network", rule: |n| vec![("ip", network(n))] },
    Kind { name: "own prefix", rule: |n| vec![("path", format!("/service-{n}/*"))] },
    Kind { name: "own suffix", rule: |n| vec![("host", format!("*.tenant-{n}.example.com"))] },
    Kind { name: "one method, own path", rule: |n| vec![("method", "GET".to_owned()), ("path", path(n))] },
    Kind { name: "list of four paths", rule: |n| vec![("path", format!("{}|/a{n}|/b{n}|/c{n}", path(n)))] },
    Kind { name: "mixed", rule: |n| KINDS[n % 7].conditions(n) },
];

impl Kind {
    fn conditions(&self, n: usize) -> Conditions {
        (self.rule)(n)
    }

    fn request(&self, n: usize) -> Attributes {
        let crossed = self.name == "users x paths" || (self.name == "mixed" && n % 7 == 2);
        let (user, place) = if crossed { (n / 100, n % 100) } else { (n, n) };
        [
            ("user", format!("u{user}")),
            ("ip", format!("10.{}.{}.77", (n >> 8) & 255, n & 255)),
            ("path", path(place)),
            ("method", "GET".to_owned()),
            ("host", format!("www.tenant-{n}.example.com")),
        ]
    }
}

fn path(n: usize) -> String {
    format!("/service-{n}/search")
}

fn network(n: usize) -> String {
    format!("10.{}.{}.0/24", (n >> 8) & 255, n & 255)
}

fn pattern(text: &str) -> Pattern {
    match text.parse() {
        Ok(network) => Pattern::Network(network),
        Err(_) if text.contains('*') => Pattern::Glob(text.to_owned()),
        Err(_) => Pattern::Exact(text.to_owned()),
    }
}

fn rule(kind: &Kind, n: usize) -> Rule {
    let condition = |(attribute, patterns): (&str, String)| Condition {
        attribute: attribute.to_owned(),
        any_of: patterns.split('|').map(pattern).collect(),
    };
    Rule {
        conditions: kind.conditions(n).into_iter().map(condition).collect(),
        per: vec!["user".to_owned()],
        ..Rule::new(format!("rule-{n}"), Algorithm::SlidingWindow, 100, Span::from_secs(60))
    }
}

/// Nanoseconds a request, and how many rules a request matched on average.
fn measure(set: &RuleSet, requests: &[Request<'_>]) -> (f64, f64) {
    let matched: usize = requests.iter().map(|request| set.matches(request).len()).sum();
    let mut passes = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < LONG_ENOUGH {
        let begin = Instant::now();
        for request in requests {
            black_box(set.matches(black_box(request)));
        }
        passes.push(begin.elapsed());
    }
    passes.sort_unstable();
    let requests_len = f64::from(u32::try_from(requests.len()).unwrap_or(1));
    // A quiet pass: most of the others were interrupted where the machine does other work.
    let quiet = passes.get(passes.len() / 10).copied().unwrap_or_default();
    (quiet.as_secs_f64() * 1e9 / requests_len, f64::from(u32::try_from(matched).unwrap_or(0)) / requests_len)
}

fn main() {
    print!("{:24}", "ns a request, rules:");
    SIZES.iter().for_each(|size| print!("{size:>9}"));
    println!("   10,000 over 10   compiled in   matched");
    for kind in &KINDS {
        print!("{:24}", kind.name);
        let mut times = Vec::new();
        let (mut compiled, mut matched) = (Duration::ZERO, 0.0);
        for size in SIZES {
            let rules = (0..size).map(|n| rule(kind, n)).collect();
            let begin = Instant::now();
            let Ok(set) = RuleSet::compile(rules, &mut Shapes::default()) else { continue };
            compiled = begin.elapsed();
            let attributes: Vec<Attributes> = (0..REQUESTS).map(|n| kind.request(n * 7_919 % size)).collect();
            let requests: Vec<Request<'_>> = attributes.iter().map(as_request).collect();
            let (nanos, average) = measure(&set, &requests);
            (times, matched) = ([times, vec![nanos]].concat(), average);
            print!("{nanos:>9.1}");
        }
        let over = times.last().zip(times.get(1)).map_or(0.0, |(last, ten)| last - ten);
        println!("{over:>+17.1}{compiled:>14.1?}{matched:>10.1}");
    }
}

fn as_request(attributes: &Attributes) -> Request<'_> {
    let attributes = attributes.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Request::new("default", attributes, Cost::Take(1))
}
