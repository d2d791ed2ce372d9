//! Requests that are sent at once, and how far apart they are answered.

use std::time::{Duration, Instant};

use super::http::Reply;

/// Between two requests of [`RULE`].
const PACE: Duration = Duration::from_millis(200);
/// Requests that are sent at once.
const REQUESTS: u32 = 8;
/// A rule that admits one request each 200 ms, and holds the others back.
pub(crate) const RULE: &str = "[[rules]]\nname = \"paced\"\nmatch = { path = \"/paced\" }\nalgorithm = \"token_bucket\"\n\
    limit = 5\nburst = 1\nwindow = \"1s\"\naction = \"throttle\"\nmax_delay = \"4s\"\ndelay = \"hold\"\n";

/// Sends requests at once, all of which pass, and fails the test where they come faster than the rule's pace.
pub(crate) fn are_paced(ask: impl Fn() -> Reply + Sync) {
    let begun = Instant::now();
    let mut passed: Vec<Duration> = std::thread::scope(|scope| {
        let one = || {
            let reply = ask();
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_eq!(reply.header("x-ratelimit-delay-ms"), None, "nothing is left of the delay: {reply:?}");
            begun.elapsed()
        };
        let all: Vec<_> = (0..REQUESTS).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    passed.sort_unstable();
    for (place, at) in (0..REQUESTS).zip(&passed) {
        // Timers count whole milliseconds.
        assert!(*at + Duration::from_millis(5) >= PACE * place, "request {place} of {passed:?}");
    }
    let mut gaps: Vec<Duration> = passed.windows(2).map(|two| two[1] - two[0]).collect();
    gaps.sort_unstable();
    let median = gaps[gaps.len() / 2];
    assert!(median >= PACE / 2, "the median of {gaps:?}");
    eprintln!("{REQUESTS} requests at once: the median distance is {median:?}, at least {:?}", gaps[0]);
}
