//! `escrow`: never above the limit, whatever happens, and nearly all of it used wherever the demand is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::support::eventually;
use super::world::{Plan, Store, Window, World, rules, sums, window, windows};

const fn plan(regions: usize, rtt_ms: u64, store: Store) -> Plan {
    let rtt = Duration::from_millis(rtt_ms);
    Plan { regions, rtt, store, limit: 210, global: "mode = \"escrow\"" }
}

/// In every window: no noise of this machine excuses a single permit.
fn never_over(windows: &[Window], limit: u64) {
    eprintln!("{windows:?}");
    assert!(windows.iter().all(|window| window.admitted <= limit), "{windows:?}");
}

/// What was admitted, in percent of what could have been.
fn used(windows: &[Window], limit: u64) -> f64 {
    let could: u64 = windows.iter().map(|window| window.asked.min(limit)).sum();
    let did: u64 = windows.iter().map(|window| window.admitted).sum();
    did as f64 / could.max(1) as f64 * 100.0
}

/// All load in one region, then in another: rights are where they are needed.
fn follows_demand(plan: Plan) {
    let world = World::start(plan);
    let mut weights = vec![0; plan.regions];
    weights[0] = 1;
    let loads = world.load(2.0, &weights);
    let rate = plan.limit * 2;
    windows(3);
    for place in [1, 2, 0] {
        for (other, load) in loads.iter().enumerate() {
            load.set_rate(if other == place { rate } else { 0 });
        }
        let seen = sums(&loads, windows(4));
        never_over(&seen, plan.limit);
        // In the first window they have to notice.
        assert!(used(&seen[1..], plan.limit) >= 95.0, "{seen:?}");
    }
    let metric = |line: &str| world.daemons[1].metric(line);
    assert!(metric("tidegate_rights_moved_total{from=\"us-east\",to=\"eu-west\"}") > Some(0.0));
    assert_eq!(metric("tidegate_global_overshoot_permits_total{rule=\"world\"}"), Some(0.0));
}

#[test]
fn rights_follow_demand_between_three_regions() {
    follows_demand(plan(3, 80, Store::Memory));
}

#[test]
fn rights_follow_demand_around_the_world() {
    follows_demand(plan(5, 250, Store::Memory));
}

#[test]
fn rights_follow_demand_between_regions_that_count_in_redis() {
    follows_demand(plan(5, 20, Store::Redis));
}

/// A cost for which a region has not enough, which the others have: who asks again as it is told to finds it
/// gathered.
fn large_costs_gather(store: Store) {
    let plan = Plan { limit: 12, ..plan(3, 80, store) };
    let rule = rules(plan, "token_bucket").replace("window", "burst = 120\nwindow");
    let world = World::with_rules(plan, &rule);
    let begun = Instant::now();
    let ask = |place: usize, cost: u64| {
        world.daemons[place]
            .post("/v1/check", &json!({ "attributes": { "who": "one" }, "cost": cost }))
            .json()
    };
    let mut admitted = 0;
    for place in [2, 0] {
        // A region holds forty, as no memory before it has spent or forwarded anything.
        let first = ask(place, 50);
        assert_eq!(first["allowed"], false, "{first}");
        assert!(first["retry_after_ms"].as_u64().is_some(), "{first}");
        let tried = (0..30).position(|_| {
            std::thread::sleep(Duration::from_millis(1_000));
            ask(place, 50)["allowed"] == true
        });
        eprintln!("region {place} was served after {tried:?} more attempts, {:?}", begun.elapsed());
        assert!(tried.is_some(), "{}", world.daemons[place].get("/v1/regions").json());
        admitted += 50;
    }
    // A single permit too many would be an error: here not even all that refilled is used.
    assert!(admitted <= 120 + 12 * begun.elapsed().as_secs());
    let never = ask(1, 121);
    assert_eq!((&never["allowed"], &never["retry_after_ms"]), (&json!(false), &json!(null)), "{never}");
}

#[test]
fn a_cost_for_which_a_region_has_not_enough_gathers_its_permits() {
    large_costs_gather(Store::Memory);
}

#[test]
fn a_cost_for_which_a_region_has_not_enough_gathers_its_permits_in_redis() {
    large_costs_gather(Store::Redis);
}

/// All load in one region, then in another: what refills elsewhere flows there.
fn flows_to_demand(plan: Plan) {
    let burst = plan.limit * 3;
    let rule = rules(plan, "token_bucket").replace("window", &format!("burst = {burst}\nwindow"));
    let world = World::with_rules(plan, &rule);
    let loads = world.load(2.0, &[1, 0, 0]);
    let rate = plan.limit * 2;
    windows(3);
    for place in [1, 2, 0] {
        for (other, load) in loads.iter().enumerate() {
            load.set_rate(if other == place { rate } else { 0 });
        }
        let seen = sums(&loads, windows(5));
        eprintln!("{seen:?}");
        // In any run of seconds no more than one burst and what refilled; an answer may come a second late.
        for from in 0..seen.len() {
            for to in from..seen.len() {
                let sum: u64 = seen[from..=to].iter().map(|window| window.admitted).sum();
                assert!(sum <= burst + plan.limit * (to - from + 2) as u64, "{seen:?}");
            }
        }
        // Its own part is a third.
        assert!(used(&seen[1..], plan.limit) >= 80.0, "{seen:?}");
    }
    let line = "tidegate_rights_moved_total{from=\"us-east\",to=\"eu-west\"}";
    assert!(world.daemons[1].metric(line) > Some(0.0));
    let regions = world.daemons[1].get("/v1/regions").json();
    assert!(regions["rights"][0]["given"]["eu-west"].as_u64() > Some(0), "{regions}");
}

#[test]
fn a_bucket_flows_to_demand_between_three_regions() {
    flows_to_demand(plan(3, 80, Store::Memory));
}

#[test]
fn a_bucket_flows_to_demand_between_regions_that_count_in_redis() {
    flows_to_demand(plan(3, 20, Store::Redis));
}

#[test]
fn a_request_waits_for_rights_on_their_way_and_not_where_everyone_is_dry() {
    let wait = Duration::from_millis(400);
    let global = "mode = \"escrow\"\nwait = \"400ms\"";
    let plan = Plan { regions: 3, rtt: Duration::from_millis(80), store: Store::Memory, limit: 30, global };
    let world = World::with_rules(plan, &rules(plan, "fixed_window").replace("\"1s\"", "\"3s\""));
    let daemon = &world.daemons[1];
    windows(4);
    let turn = || window() / 3;
    let first = turn() + 1;
    let mut answers = Vec::new();
    // One client, which asks again when it was answered: it has no more demand than that.
    while turn() < first + 5 {
        let (before, asked) = (turn(), Instant::now());
        let allowed = daemon.check(&[("who", "one")])["allowed"] == true;
        if before == turn() && before >= first {
            answers.push((before, allowed, asked.elapsed()));
        }
    }
    let mut patient = 0;
    for at in first..first + 5 {
        let seen: Vec<_> = answers.iter().filter(|(turn, ..)| *turn == at).collect();
        let admitted = seen.iter().filter(|(_, allowed, _)| *allowed).count();
        assert!(admitted <= 30, "{admitted}");
        let last = seen.iter().rposition(|(_, allowed, _)| *allowed).unwrap_or(0);
        // The others release the last of their rights only towards the end of the window: a wait may end
        // before that.
        let at_once = |(_, allowed, took): &&(u64, bool, Duration)| !allowed && *took < wait / 2;
        let before = seen[..last].iter().copied().any(|answer| at_once(&answer));
        let after = seen[last..].iter().copied().any(|answer| at_once(&answer));
        eprintln!(
            "{admitted} admitted; refused at once while others held rights: {before}, afterwards: {after}"
        );
        // Its own region mints ten. An answer may come after the window's end.
        patient += usize::from(admitted >= 29 && !before && after);
    }
    // Where this machine stands still for too long a wait may end in vain.
    assert!(patient >= 3, "{patient} of 5 windows");
    assert!(daemon.metric("tidegate_rights_waits_total{outcome=\"admitted\"}") > Some(0.0));
}

/// Of a limit of a few permits each region's share is one or none: the region that is asked gathers all of
/// them, and nobody has one more.
fn the_last_permits_arrive(regions: usize) {
    const LIMIT: u64 = 3;
    const SECONDS: u64 = 4;
    const JUDGED: u64 = 3;
    let plan = Plan { limit: LIMIT, ..plan(regions, 80, Store::Memory) };
    let world = World::with_rules(plan, &rules(plan, "fixed_window").replace("\"1s\"", "\"4s\""));
    const USERS: usize = 6;
    // The window that is told, and whether it admitted.
    let ask = |place: usize, who: &str| {
        let answer = world.daemons[place].check(&[("who", who)]);
        let left = Duration::from_millis(answer["reset_ms"].as_u64().unwrap());
        let end = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + left).as_secs_f64();
        let window = (end / SECONDS as f64).round() as u64 - 1;
        (window, u64::from(answer["allowed"] == true))
    };
    // Until then all have agreed, and know of each other.
    let first = window() / SECONDS + 2;
    let mut admitted = BTreeMap::<(u64, usize), [u64; 2]>::new();
    let mut sums = BTreeMap::<(u64, String), u64>::new();
    loop {
        let now = window() / SECONDS;
        if now >= first + JUDGED {
            break;
        }
        // Most of a window its own region asks alone, and then all others try as well.
        let is_late = window() % SECONDS == SECONDS - 1;
        for nth in 0..USERS {
            // Others in each window: where the rest asked late in the one before, its region would not be
            // asked alone.
            let who = format!("w{nth}-{now}");
            for place in (0..regions).filter(|place| is_late || *place == nth % regions) {
                let (window, allowed) = ask(place, &who);
                // What is answered in the next window counts there, of the same user.
                *sums.entry((window, who.clone())).or_default() += allowed;
                if window == now {
                    let seen = admitted.entry((window, nth)).or_default();
                    seen[usize::from(place != nth % regions)] += allowed;
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("{admitted:?}");
    assert!(sums.values().all(|sum| *sum <= LIMIT), "{sums:?}");
    let gathered = |nth: usize| {
        (first..first + JUDGED)
            .filter(|window| admitted.get(&(*window, nth)).is_some_and(|seen| seen[0] == LIMIT))
            .count()
    };
    // A machine that stands still may cost one window.
    assert!((0..USERS).all(|nth| gathered(nth) + 1 >= JUDGED as usize), "{admitted:?}");
}

#[test]
fn the_last_permits_of_a_small_limit_arrive_between_two_regions() {
    the_last_permits_arrive(2);
}

#[test]
fn the_last_permits_of_a_small_limit_arrive_between_five_regions() {
    the_last_permits_arrive(5);
}

#[test]
fn no_cut_and_no_crash_lets_a_single_permit_too_many_through() {
    survives(plan(3, 80, Store::Memory));
}

#[test]
fn no_cut_and_no_crash_lets_a_single_permit_too_many_through_in_redis() {
    survives(plan(3, 80, Store::Redis));
}

fn survives(plan: Plan) {
    let mut world = World::start(plan);
    let loads = world.load(3.0, &[4, 1, 1]);
    let together = sums(&loads, windows(4));
    world.cut(2);
    let apart = sums(&loads, windows(5));
    world.heal(2);
    world.wait_until_connected();
    let healed = sums(&loads, windows(3));
    world.daemons[0].kill();
    world.daemons[0].start_again();
    world.wait_until_connected();
    let again = sums(&loads, windows(5));
    for seen in [&together, &apart, &healed, &again] {
        never_over(seen, plan.limit);
    }
    assert!(used(&together[2..], plan.limit) >= 97.0, "{together:?}");
    assert!(used(&again[3..], plan.limit) >= 95.0, "{again:?}");
}

#[test]
fn of_a_few_permits_a_day_a_denial_says_a_second_until_all_are_used_and_hours_from_then_on() {
    const LIMIT: u64 = 5;
    let plan = Plan { limit: LIMIT, ..plan(3, 80, Store::Memory) };
    let kinds = ["fixed_window", "sliding_window", "token_bucket", "gcra", "leaky_bucket"];
    let rules: String = kinds
        .iter()
        .map(|kind| {
            format!(
                "[[rules]]\nname = \"{kind}\"\nmatch = {{ by = \"{kind}\" }}\nper = [\"who\"]\n\
                 algorithm = \"{kind}\"\nlimit = {LIMIT}\nwindow = \"1d\"\n[rules.global]\n{}\n",
                plan.global
            )
        })
        .collect();
    let world = World::with_rules(plan, &rules);
    let ask = |kind: &str, who: &str| world.daemons[1].check(&[("who", who), ("by", kind)]);
    for kind in kinds {
        eventually("the regions have agreed", || (ask(kind, "first")["allowed"] == true).then_some(()));
        let (begun, mut used, mut hours) = (Instant::now(), 0, None);
        while used < LIMIT && begun.elapsed() < Duration::from_secs(20) {
            let answer = ask(kind, "user");
            if answer["allowed"] == true {
                used += 1;
                continue;
            }
            let retry = answer["retry_after_ms"].as_u64().unwrap();
            if retry > 1_000 {
                hours.get_or_insert(used);
            }
            std::thread::sleep(Duration::from_millis(retry.min(500)));
        }
        assert!(hours.is_none_or(|at| at == used), "{kind}: told hours after {hours:?} of {used}");
        assert!(used >= LIMIT - 1, "{kind}: {used} of {LIMIT}");
        eventually("it says that all is used", || {
            let answer = ask(kind, "user");
            let long = answer["retry_after_ms"].as_u64() > Some(60_000);
            (answer["cause"] == "used_up" && long).then_some(())
        });
    }
}
