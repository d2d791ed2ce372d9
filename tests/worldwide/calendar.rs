//! A day's budget for the whole world, over midnight: real daemons whose clocks are all ahead by the same.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::support::command::faketime;
use super::support::daemon::Launch;
use super::support::not_judged;
use super::world::{Plan, Store, World};

const DAY: Duration = Duration::from_secs(86_400);
/// How long after the test begins the daemons' midnight comes: so long they may take to start.
const MIDNIGHT: Duration = Duration::from_secs(30);
const LIMIT: u64 = 60;

/// Asks the regions in turn until all have denied ten times in a row. How many were admitted.
fn asked_for(world: &World, places: &[usize]) -> u64 {
    let (mut admitted, mut denied) = (0, 0);
    while denied < 10 {
        let before = admitted;
        for place in places {
            let answer =
                world.daemons[*place].post("/v1/check", &json!({ "attributes": { "who": "one" } })).json();
            admitted += u64::from(answer["allowed"] == true);
        }
        denied = if admitted == before { denied + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(50));
    }
    admitted
}

/// What all regions admitted before midnight, and what they did afterwards where only `after` are asked.
fn over_midnight(mode: &'static str, after: &[usize]) -> Option<(u64, u64)> {
    if faketime().is_none() {
        not_judged("libfaketime is not installed; tests/run installs it");
        return None;
    }
    let begun = Instant::now();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let passed = Duration::from_micros(u64::try_from(since.as_micros() % DAY.as_micros()).unwrap());
    let ahead = (DAY + DAY - passed - MIDNIGHT).as_secs_f64() % DAY.as_secs_f64();
    let ahead = Box::leak(format!("+{ahead:.3}").into_boxed_str());
    let (rtt, store) = (Duration::from_millis(20), Store::Memory);
    let plan = Plan { regions: 3, rtt, store, limit: LIMIT, global: mode };
    let rules = format!(
        "[[rules]]\nname = \"world\"\nper = [\"who\"]\nlimit = {LIMIT}\ncalendar = \"day\"\n\
         [rules.global]\nmode = \"{mode}\"\n"
    );
    let world = World::launch(plan, &rules, "", Launch { clock_ahead: Some(ahead), ..Launch::default() });
    let before = asked_for(&world, &[0, 1, 2]);
    if begun.elapsed() > MIDNIGHT - Duration::from_secs(2) {
        not_judged("the daemons took longer than half a minute to start");
        return None;
    }
    std::thread::sleep((MIDNIGHT + Duration::from_secs(2)).saturating_sub(begun.elapsed()));
    let answer = world.daemons[0].post("/v1/check", &json!({ "attributes": { "who": "one" }, "cost": 0 }));
    assert_eq!(answer.json()["rules"][0]["window_ms"], json!(86_400_000), "{}", answer.body);
    Some((before, asked_for(&world, after)))
}

#[test]
fn shares_of_a_day_are_new_at_midnight() {
    let Some(admitted) = over_midnight("split", &[0, 1, 2]) else { return };
    assert_eq!(admitted, (LIMIT, LIMIT));
}

#[test]
fn regions_tell_each_other_of_a_day_and_of_the_next_one() {
    let Some((before, after)) = over_midnight("gossip", &[0, 1, 2]) else { return };
    // They are asked one after the other, slower than reports travel.
    for admitted in [before, after] {
        assert!((LIMIT * 9 / 10..=LIMIT * 11 / 10).contains(&admitted), "{before} and {after}");
    }
}

#[test]
fn rights_of_a_day_move_to_where_they_are_wanted_and_are_never_exceeded() {
    let Some((before, after)) = over_midnight("escrow", &[1]) else { return };
    for admitted in [before, after] {
        assert!((LIMIT * 9 / 10..=LIMIT).contains(&admitted), "{before} and {after}");
    }
}
