//! First requests in a region: each finds something while more than a tenth of the limit is free, whoever
//! used the rest, and however long the window is.

use super::*;
use crate::virtual_world::Dice;

const WINDOWS: [u64; 4] = [60, 3_600, 86_400, 31 * 86_400];

/// One user's bucket: a region spends a part of it, and later every other one is asked for the first time.
/// Returns how many first requests were judged, and which were refused.
fn journey(seed: u64) -> (usize, Vec<String>) {
    let mut dice = Dice::new(seed, 3);
    let regions = *dice.pick(&[2, 3, 3, 5, 10]).unwrap();
    let permits = u32::try_from(dice.between(4, 40) * *dice.pick(&[1_u64, 10, 100]).unwrap()).unwrap();
    let window = Span::from_secs(*dice.pick(&WINDOWS).unwrap());
    let limit = Limit { calendar: None, permits, window, burst: permits, queue: 0 };
    let (owd, jitter) = (Span::from_millis(dice.between(5, 120)), Span::from_millis(dice.below(40)));
    let weather = Weather { owd, jitter, seed, ..CALM };
    let mut world = EscrowWorld::held_to(limit, Algorithm::FixedWindow, regions, weather, EscrowSafety::ALL);
    let all = u64::from(permits);
    let wishes = all * dice.between(1, 85) / 100;
    let (cost, gap) = ((wishes / dice.between(1, 50)).max(1), dice.between(1, 30));
    let mut turns = 0;
    while world.admitted.values().sum::<u64>() + cost <= wishes && turns < 400 {
        world.request(0, cost);
        (0..gap).for_each(|_| world.tick());
        turns += 1;
    }
    (0..dice.between(0, 300)).for_each(|_| world.tick());
    let (mut judged, mut refused) = (0, Vec::new());
    for place in 1..regions {
        let index = world.now().window_index(window);
        let ends = Timestamp::window_start(index + 1, window);
        let used = world.admitted.get(&index).copied().unwrap_or(0);
        let free = all.saturating_sub(used);
        let served = world.request(place, 1);
        // In the last seconds of a window the rights go to whoever asks.
        if free > (all / 10).max(u64::try_from(regions).unwrap()) + 1
            && ends.since(world.now()) > Span::from_secs(3)
        {
            judged += 1;
            if !served {
                refused.push(format!(
                    "seed {seed}: r{place} of {regions}, {free} of {permits} free in {window:?}"
                ));
            }
        }
        (0..dice.between(1, 200)).for_each(|_| world.tick());
    }
    assert_eq!(world.check(), Ok(()), "seed {seed}");
    (judged, refused)
}

#[test]
fn a_first_request_finds_something_while_a_tenth_of_the_limit_is_free() {
    let (mut judged, mut refused) = (0, Vec::new());
    for (count, found) in (1..=150).map(journey) {
        judged += count;
        refused.extend(found);
    }
    assert!(judged > 60, "{judged}");
    assert_eq!(refused, Vec::<String>::new(), "{} of {judged}", refused.len());
}

#[test]
fn of_a_demand_that_lasts_one_region_finds_all_the_same() {
    for permits in [300, 30_000] {
        let window = Span::from_secs(60);
        let limit = Limit { calendar: None, permits, window, burst: permits, queue: 0 };
        let mut world = EscrowWorld::held_to(limit, Algorithm::FixedWindow, 3, CALM, EscrowSafety::ALL);
        // From the start of a window, somewhat more than the limit in all of it.
        while world.now().window_index(window) == START.window_index(window) {
            world.tick();
        }
        let index = world.now().window_index(window);
        let mut asked = 0;
        for tick in 0..5_990 {
            while asked * 6_000 < u64::from(permits) * 21 / 20 * tick {
                world.request(1, 1);
                asked += 1;
            }
            world.tick();
        }
        let used = world.admitted.get(&index).copied().unwrap_or(0);
        assert!(used * 1_000 >= u64::from(permits) * 995, "{used} of {permits}");
        assert_eq!(world.check(), Ok(()));
    }
}
