//! What a `gossip` rule's `on_partition` promises while a region is cut off: one region has all of the demand
//! when it comes, and later the region that was cut off wants as much.

use std::time::Duration;

use super::support::{eventually, not_judged};
use super::world::{Plan, Store, World, window, windows};

const LIMIT: u64 = 210;

/// What a cut that is noticed lets through in percent of the limit, in a median window.
#[derive(Debug, Clone, Copy)]
struct Through {
    /// Of both sides, while the demand is as it was before.
    before: u64,
    /// Of the region that is cut off, once it wants all as well.
    cut_off: u64,
    /// Of both sides then.
    both: u64,
}

/// `None`: the machine was too slow to ask for all of the limit in a median window, and the test says so.
fn cut(global: &'static str) -> Option<Through> {
    let rtt = Duration::from_millis(20);
    let world = World::start(Plan { regions: 3, rtt, store: Store::Memory, limit: LIMIT, global });
    let loads = world.load(2.0, &[1, 0, 0]);
    windows(4);
    world.cut(2);
    windows(3);
    let median = |windows: std::ops::Range<u64>, of: &dyn Fn(u64) -> u64| {
        let mut sums: Vec<u64> = windows.map(of).collect();
        sums.sort_unstable();
        sums[sums.len() / 2]
    };
    let admitted = |windows, places: &[usize]| {
        let of = |window| places.iter().map(|place| loads[*place].of(window).admitted).sum();
        median(windows, &of) * 100 / LIMIT
    };
    let first = windows(3);
    loads[2].set_rate(LIMIT * 2);
    let begun = window();
    windows(2);
    let after = windows(3);
    assert!(after.start > begun);
    let wanting = [(0, first.clone()), (0, after.clone()), (2, after.clone())];
    let asked = |(place, windows): (usize, _)| median(windows, &|window| loads[place].of(window).asked);
    let least = wanting.map(asked).into_iter().min().unwrap_or(0);
    let before = admitted(first, &[0, 2]);
    let through = Through { before, cut_off: admitted(after.clone(), &[2]), both: admitted(after, &[0, 2]) };
    eprintln!("{global}: {through:?}, where at least {least} were asked for in a median window");
    if least < LIMIT {
        not_judged(&format!("only {least} of {LIMIT} were asked for in a median window"));
        return None;
    }
    Some(through)
}

#[test]
fn whoever_is_refused_after_a_cut_while_the_world_has_room_is_told_to_come_back_soon() {
    let plan = Plan {
        regions: 3,
        rtt: Duration::from_millis(20),
        store: Store::Memory,
        limit: 30,
        global: "mode = \"gossip\"",
    };
    let rules = "[[rules]]\nname = \"world\"\nper = [\"who\"]\nalgorithm = \"fixed_window\"\nlimit = 30\nwindow = \"24h\"\n\
                 [rules.global]\nmode = \"gossip\"\n";
    let world = World::with_rules(plan, rules);
    let first = &world.daemons[0];
    let burst = |user: String| (0..20).map(move |_| first.check(&[("who", user.as_str())]));
    let before = burst("before".to_owned()).filter(|answer| answer["allowed"] == true).count();
    assert!(before > 0);
    world.cut(2);
    std::thread::sleep(Duration::from_millis(1_600));
    world.heal(2);
    eventually("nobody is cut off any more", || {
        let regions = first.get("/v1/regions").json();
        regions["cut_off"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    // Bounds go by the silence for ten seconds yet.
    let mut refused = 0;
    for user in 0..20 {
        for answer in burst(format!("after {user}")).filter(|answer| answer["cause"] == "elsewhere") {
            assert!(answer["retry_after_ms"].as_u64().is_some_and(|wait| wait <= 1_000), "{answer}");
            refused += 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(refused > 0, "a burst of two thirds finds more than this region's part");
}

#[test]
fn freeze_leaves_each_region_what_it_had_when_the_cut_came() {
    let Some(Through { before, cut_off, both }) = cut("mode = \"gossip\"\non_partition = \"freeze\"") else {
        return;
    };
    // Its configured share would be two thirds.
    assert!((85..=103).contains(&before), "{before} %");
    assert!(cut_off <= 15, "{cut_off} % of a region that had next to nothing");
    assert!((85..=115).contains(&both), "{both} %");
}

#[test]
fn last_known_goes_on_dividing_by_the_demand_that_each_side_knows() {
    let Some(Through { before, cut_off, both }) = cut("mode = \"gossip\"\non_partition = \"last_known\"")
    else {
        return;
    };
    assert!((85..=103).contains(&before), "{before} %");
    // It knows that the others want as much as itself; they do not know of it.
    assert!((35..=65).contains(&cut_off), "{cut_off} %");
    assert!((120..=200).contains(&both), "{both} %");
}

#[test]
fn ignore_gives_each_side_the_whole_limit() {
    let Some(Through { before, cut_off, both }) = cut("mode = \"gossip\"\non_partition = \"ignore\"") else {
        return;
    };
    assert!((85..=103).contains(&before), "{before} %");
    assert!((85..=100).contains(&cut_off), "{cut_off} %");
    assert!((170..=200).contains(&both), "{both} %");
}
