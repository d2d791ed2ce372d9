use super::*;
use crate::chaos::answers::Decision;
use crate::model::Ask;
use crate::plan::read;

/// Seconds since the epoch at which a run begins.
const BEGUN: u64 = 1_000;

fn plan(text: &str) -> Plan {
    let rest = "[demand]\npattern = \"bal2\"\n";
    let (of_story, of_rule) = if text.starts_with("door") { (text, "") } else { ("", text) };
    read("s.toml", &format!("{of_story}[rule]\nlimit = 10\nwindow = \"1s\"\n{of_rule}{rest}")).unwrap()
}

/// A request `at` so many ms, answered a millisecond later.
fn seen(at: u64, answer: Answer) -> Seen {
    let sent = Duration::from_millis(BEGUN * 1_000 + at);
    let ask = Ask { region: 0, user: 0, cost: 1, id: at };
    Seen { ask, sent, answered: sent + Duration::from_millis(1), answer, denied_before: None }
}

fn decided(admitted: bool, believed: (u64, u64)) -> Answer {
    let reset = Duration::from_millis(500);
    Answer::Decided(Decision { admitted, reset, believed: Some(believed), retry_after: None })
}

fn evidence<'a>(plan: &'a Plan, way: Way, seen: &'a [Seen], faults: &'a [Happened]) -> Evidence<'a> {
    let begun = Duration::from_secs(BEGUN);
    let (daemons, healthy, stalls) = (Vec::new(), Vec::new(), Vec::new());
    Evidence { plan, way, begun, seen, unsent: 0, stalls, faults, daemons, healthy }
}

fn admitted_in_turn(times: u64) -> Vec<Seen> {
    (0..times).map(|place| seen(100 + place, decided(true, (place, 10)))).collect()
}

#[test]
fn one_permit_above_an_exact_limit_is_noticed() {
    let plan = plan("");
    let (ten, eleven) = (admitted_in_turn(10), admitted_in_turn(11));
    assert_eq!(evidence(&plan, Way::Escrow, &ten, &[]).limit_holds().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Escrow, &eleven, &[]).limit_holds().kept, Kept::No);
    // Outside of a cut `gossip` promises nothing exact.
    assert_eq!(evidence(&plan, Way::Gossip, &eleven, &[]).limit_holds().kept, Kept::NotJudged);
}

#[test]
fn an_answer_that_came_in_the_next_window_counts_for_none() {
    let plan = plan("");
    let mut all = admitted_in_turn(10);
    all.push(seen(999, decided(true, (10, 10))));
    let judged = evidence(&plan, Way::Escrow, &all, &[]);
    assert_eq!(judged.limit_holds().kept, Kept::Yes);
    assert_eq!(judged.enough_is_known().kept, Kept::Yes);
    assert!(judged.enough_is_known().found.contains("11 admitted, 9.09 % of unknown window"));
}

#[test]
fn a_cut_in_which_both_sides_use_the_limit_is_noticed() {
    let plan = plan("algorithm = \"token_bucket\"\nburst = 10\n");
    let kind = FaultKind::Cut { regions: vec![2], inward: true, outward: true };
    let cut = [Happened { kind, from: Duration::ZERO, until: Duration::from_secs(9) }];
    // Twenty a second instead of ten, for six seconds.
    let twice: Vec<Seen> = (0..120).map(|place| seen(2_500 + place * 50, decided(true, (0, 0)))).collect();
    let once: Vec<Seen> = (0..60).map(|place| seen(2_500 + place * 100, decided(true, (0, 0)))).collect();
    assert_eq!(evidence(&plan, Way::Gossip, &twice, &cut).limit_holds().kept, Kept::No);
    assert_eq!(evidence(&plan, Way::Gossip, &once, &cut).limit_holds().kept, Kept::Yes);
}

#[test]
fn an_interval_of_a_log_is_judged_wherever_it_begins() {
    let plan = plan("algorithm = \"sliding_log\"\n");
    let half = |from: u64| (0..6).map(move |place| seen(from + place, decided(true, (0, 0))));
    let straddling: Vec<Seen> = half(900).chain(half(1_100)).collect();
    let apart: Vec<Seen> = half(900).chain(half(2_000)).collect();
    assert_eq!(evidence(&plan, Way::Split, &straddling, &[]).limit_holds().kept, Kept::No);
    assert_eq!(evidence(&plan, Way::Split, &apart, &[]).limit_holds().kept, Kept::Yes);
}

#[test]
fn a_bound_that_is_too_small_is_noticed() {
    let plan = plan("");
    let mut all = admitted_in_turn(5);
    all.push(seen(300, decided(false, (3, 2))));
    assert_eq!(evidence(&plan, Way::Gossip, &all, &[]).bound_is_one().kept, Kept::Yes);
    all.push(seen(400, decided(false, (3, 1))));
    let verdict = evidence(&plan, Way::Gossip, &all, &[]).bound_is_one();
    assert_eq!(verdict.kept, Kept::No);
    assert!(
        verdict.found.contains("1 too small; at 0.40 s 5 were used, 3 ± 1 believed"),
        "{}",
        verdict.found
    );
}

#[test]
fn a_request_without_an_answer_is_noticed_unless_its_daemon_was_killed() {
    let plan = plan("");
    let lost = [seen(500, Answer::Failed("closed".to_owned()))];
    let of_region = |region| {
        let kind = FaultKind::Crash { region, daemon: 0 };
        [Happened { kind, from: Duration::from_millis(400), until: Duration::from_secs(2) }]
    };
    assert_eq!(evidence(&plan, Way::Gossip, &lost, &of_region(0)).everyone_is_answered().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Gossip, &lost, &of_region(1)).everyone_is_answered().kept, Kept::No);
    assert_eq!(evidence(&plan, Way::Gossip, &lost, &[]).everyone_is_answered().kept, Kept::No);
}

#[test]
fn a_request_that_a_gateway_lets_pass_undecided_is_noticed() {
    let plan = plan("door = \"envoy\"\n");
    let all = [seen(100, decided(true, (0, 0))), seen(500, Answer::Unasked)];
    assert_eq!(evidence(&plan, Way::Gossip, &all[..1], &[]).everyone_is_answered().kept, Kept::Yes);
    let verdict = evidence(&plan, Way::Gossip, &all, &[]).everyone_is_answered();
    assert_eq!(verdict.kept, Kept::No);
    assert!(verdict.found.contains("at 0.5 s: the gateway let it pass"), "{}", verdict.found);
}

#[test]
fn an_alarm_in_health_and_a_cause_that_is_not_named_are_noticed() {
    let plan = plan("");
    let kind = FaultKind::Cut { regions: vec![2], inward: true, outward: true };
    let cut = [Happened { kind, from: Duration::from_secs(3), until: Duration::from_secs(7) }];
    let mut judged = evidence(&plan, Way::Gossip, &[], &cut);
    judged.healthy = vec![("a".to_owned(), "tidegate_task_ends_total{task=\"sweep\"} 0\n".to_owned())];
    judged.daemons =
        vec![("a".to_owned(), 0, "region region-2 is cut off\nregion region-2 is heard\n".to_owned())];
    assert_eq!((judged.health_is_quiet().kept, judged.cause_is_named().kept), (Kept::Yes, Kept::Yes));
    judged.healthy[0].1 = "tidegate_task_ends_total{task=\"sweep\"} 1\n".to_owned();
    judged.daemons[0].2 = "region region-2 is cut off\n".to_owned();
    assert_eq!((judged.health_is_quiet().kept, judged.cause_is_named().kept), (Kept::No, Kept::No));
}

#[test]
fn a_limit_that_is_not_used_again_is_noticed() {
    let plan = plan("");
    let kind = FaultKind::Cut { regions: vec![2], inward: true, outward: true };
    let cut = [Happened { kind, from: Duration::from_secs(1), until: Duration::from_secs(3) }];
    // Ten a second may be admitted, and five are until `back`.
    let run = |back: u64| -> Vec<Seen> {
        (0..240)
            .map(|place| {
                let at = place * 50;
                let free = if at < back { 5 } else { 10 };
                seen(at, decided(place % 20 < free, (0, 0)))
            })
            .collect()
    };
    assert_eq!(evidence(&plan, Way::Gossip, &run(5_000), &cut).used_again().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Gossip, &run(8_000), &cut).used_again().kept, Kept::No);
}
