use tidegate::core::time::Span;

use super::*;
use crate::chaos::answers::Decision;
use crate::model::Ask;
use crate::plan::read;

/// Seconds since the epoch at which a run begins.
const BEGUN: u64 = 1_000;

fn plan(text: &str) -> Plan {
    let rest = "[demand]\npattern = \"bal2\"\n";
    let (of_story, of_rule) = if text.starts_with("gateway") { (text, "") } else { ("", text) };
    read("s.toml", &format!("{of_story}[rule]\nlimit = 10\nwindow = \"1s\"\n{of_rule}{rest}")).unwrap()
}

/// All promises that are judged, whatever the mode.
pub(in super::super) fn promises() -> std::collections::BTreeSet<Promise> {
    let plan = plan("");
    let of = |way| evidence(&plan, way, &[], &[]).verdicts().into_iter().map(|verdict| verdict.promise);
    of(Way::Gossip).chain(of(Way::Split)).chain(of(Way::Escrow)).collect()
}

/// Text without its markup and line ends, in small letters.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    // A link is read by its text.
    while let Some((before, link)) = rest.split_once("](") {
        plain += before;
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    plain += rest;
    let letters: String = plain.chars().filter(|letter| !"*`[".contains(*letter)).collect();
    letters.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

#[test]
fn every_promise_is_a_sentence_of_the_manual() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut own = Vec::new();
    for promise in promises() {
        let Some((sentence, page)) = promise.manual.split_once(" (docs/") else {
            own.push(promise.title);
            continue;
        };
        let end = page.find(".md").unwrap();
        let text = std::fs::read_to_string(root.join("docs").join(format!("{}.md", &page[..end]))).unwrap();
        assert!(plain(&text).contains(&plain(sentence)), "{sentence:?} is not in docs/{}.md", &page[..end]);
    }
    assert_eq!(own.len(), 2, "of the judge itself, and not of the manual: {own:?}");
}

/// A request `at` so many ms, answered a millisecond later.
fn seen(at: u64, answer: Answer) -> Seen {
    let sent = Duration::from_millis(BEGUN * 1_000 + at);
    let ask = Ask { region: 0, user: 0, cost: 1, id: at };
    Seen { ask, sent, answered: sent + Duration::from_millis(1), answer, denied_before: None }
}

fn decided(admitted: bool, believed: (u64, u64)) -> Answer {
    let reset = Duration::from_millis(500);
    let believed = Some(believed);
    Answer::Decided(Decision { admitted, reset, believed, retry_after: None, degraded: false })
}

fn evidence<'a>(plan: &'a Plan, way: Way, seen: &'a [Seen], faults: &[Happened]) -> Evidence<'a> {
    told(plan, way, seen, Told { faults: faults.to_vec(), ..Told::default() })
}

fn told<'a>(plan: &'a Plan, way: Way, seen: &'a [Seen], told: Told) -> Evidence<'a> {
    let begun = Duration::from_secs(BEGUN);
    // A test is over before this matters.
    let told = Box::leak(Box::new(told));
    let (daemons, stalls) = (Vec::new(), Vec::new());
    Evidence { plan, way, begun, seen, unsent: 0, stalls, told, daemons, remembered: None }
}

/// The page of a daemon of this region.
fn page(region: usize, metrics: &str) -> Page {
    Page { daemon: "a".to_owned(), region, metrics: metrics.to_owned() }
}

fn admitted_in_turn(times: u64) -> Vec<Seen> {
    (0..times).map(|place| seen(100 + place, decided(true, (place, 10)))).collect()
}

#[test]
fn a_first_request_that_is_denied_while_a_tenth_is_free_is_noticed() {
    let mut plan = plan("");
    plan.rule.limit = 100;
    let of = |at: u64, (user, region): (u64, usize), admitted: bool| {
        let mut one = seen(at, decided(admitted, (0, 0)));
        (one.ask.user, one.ask.region) = (user, region);
        one
    };
    // Ten users ask in each region in turn, one request each, of a hundred permits a second.
    let world = |denied: Option<(u64, usize)>| -> Vec<Seen> {
        (0..10)
            .flat_map(|user| (0..3).map(move |region| (user, region)))
            .zip(0..)
            .map(|(who, place)| of(3_000 + place * 10, who, denied != Some(who)))
            .collect()
    };
    let kept = |all: &[Seen]| evidence(&plan, Way::Gossip, all, &[]).first_requests_pass().kept;
    assert_eq!(kept(&world(None)), Kept::Yes);
    assert_eq!(kept(&world(Some((4, 1)))), Kept::No);
    assert_eq!(evidence(&plan, Way::Escrow, &world(None), &[]).first_requests_pass().kept, Kept::NotJudged);
    // Once all but a tenth is used nothing is promised.
    let mut full: Vec<Seen> = (0..95).map(|place| of(2_900 + place, (4, 0), true)).collect();
    full.extend(world(Some((4, 1))));
    assert_eq!(kept(&full), Kept::Yes);
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
    let plan = plan("gateway = \"envoy\"\n");
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
    let log = "region region-2 is cut off\nregion region-2 is heard\n";
    for (ends, log, kept) in [(0, log, Kept::Yes), (1, "region region-2 is cut off\n", Kept::No)] {
        let healthy = vec![page(0, &format!("tidegate_task_ends_total{{task=\"sweep\"}} {ends}\n"))];
        let all = Told { faults: cut.to_vec(), healthy, ..Told::default() };
        let mut judged = told(&plan, Way::Gossip, &[], all);
        judged.daemons = vec![("a".to_owned(), 0, log.to_owned())];
        assert_eq!((judged.health_is_quiet().kept, judged.cut_is_named().kept), (kept, kept));
    }
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
                let free = if (1_000..back).contains(&at) { 5 } else { 10 };
                seen(at, decided(place % 20 < free, (0, 0)))
            })
            .collect()
    };
    assert_eq!(evidence(&plan, Way::Gossip, &run(5_000), &cut).used_again().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Gossip, &run(8_000), &cut).used_again().kept, Kept::No);
    // Where the machine was too busy to answer in time, nobody knows why it took so long.
    let mut slow = run(8_000);
    slow.iter_mut().for_each(|seen| seen.answered = seen.sent + Duration::from_millis(70));
    assert_eq!(evidence(&plan, Way::Gossip, &slow, &cut).used_again().kept, Kept::NotJudged);
}

#[test]
fn a_denial_that_is_forgotten_or_written_twice_is_noticed() {
    let plan = plan("");
    let all: Vec<Seen> = (0..9).map(|place| seen(1_000 + place * 500, decided(false, (0, 0)))).collect();
    let judged = |denials: &[(u64, u64)], dropped: u64| {
        let mut judged = evidence(&plan, Way::Gossip, &all, &[]);
        let row = |at: u64| (plan.regions[0].name.clone(), Duration::from_millis(BEGUN * 1_000 + at));
        let denials = denials.iter().flat_map(|(at, times)| (0..*times).map(move |_| row(*at))).collect();
        judged.remembered = Some(Remembered { denials, dropped });
        judged.denials_are_remembered().kept
    };
    let without = |places: &[u64]| -> Vec<(u64, u64)> {
        (0..9).filter(|place| !places.contains(place)).map(|place| (1_000 + place * 500, 1)).collect()
    };
    assert_eq!(judged(&without(&[]), 0), Kept::Yes);
    assert_eq!(judged(&without(&[2, 5]), 2), Kept::Yes);
    assert_eq!(judged(&without(&[5]), 3), Kept::Yes, "what was dropped may have been admitted");
    assert_eq!(judged(&without(&[5]), 0), Kept::No, "one is missing");
    let mut twice = without(&[]);
    twice[3].1 = 2;
    assert_eq!(judged(&twice, 0), Kept::No, "one is there twice");
    let mut instead = without(&[5]);
    instead[3].1 = 2;
    assert_eq!(judged(&instead, 0), Kept::No, "one is missing, and another is there twice");
}

#[test]
fn a_decision_that_waits_for_the_database_is_noticed() {
    let plan = plan("");
    let kind = FaultKind::DatabaseFrozen;
    let frozen = [Happened { kind, from: Duration::ZERO, until: Duration::from_secs(9) }];
    let mut all: Vec<Seen> = (0..50).map(|place| seen(100 + place * 10, decided(false, (0, 0)))).collect();
    let judged = |all: &[Seen]| evidence(&plan, Way::Gossip, all, &frozen).nothing_waits_for_the_database();
    assert_eq!(judged(&all).kept, Kept::Yes);
    all[7].answered += Duration::from_secs(1);
    assert_eq!(judged(&all).kept, Kept::No);
}

#[test]
fn a_clock_that_others_do_not_know_to_be_wrong_is_noticed() {
    let mut plan = plan("");
    plan.regions[1].ahead = 300_000;
    for (shown, kept) in [("0.28", Kept::Yes), ("0.01", Kept::No)] {
        let metrics = format!("tidegate_peer_clock_offset_seconds{{region=\"region-1\"}} {shown}\n");
        let meanwhile = vec![(Duration::from_secs(9), vec![page(0, &metrics)])];
        let judged = told(&plan, Way::Gossip, &[], Told { meanwhile, ..Told::default() });
        assert_eq!(judged.clocks_are_known().kept, kept, "{shown}");
    }
}

#[test]
fn a_window_is_that_of_the_clock_of_its_region() {
    let mut plan = plan("");
    plan.regions[0].ahead = 300_000;
    // At 0.8 s the next window has begun there, so both halves are in one window.
    let all: Vec<Seen> =
        (0..11).map(|place| seen(if place < 6 { 800 } else { 1_500 }, decided(true, (0, 0)))).collect();
    assert_eq!(evidence(&plan, Way::Escrow, &all, &[]).limit_holds().kept, Kept::No);
    let kind = FaultKind::ClockStep { region: 0, by: -300_000 };
    let step = [Happened { kind, from: Duration::from_millis(700), until: Duration::from_secs(1_100) }];
    assert_eq!(evidence(&plan, Way::Escrow, &all, &step).limit_holds().kept, Kept::Yes);
}

#[test]
fn waiting_in_vain_is_noticed() {
    let plan = plan("");
    let run = |admitted: u64| -> Vec<Seen> {
        let again = |place: u64| {
            let at = 1_000 * (place + 1) + 5;
            let mut seen = seen(at, decided(place < admitted, (0, 0)));
            seen.denied_before = Some(Duration::from_millis(BEGUN * 1_000 + at - 500));
            seen
        };
        (0..30).map(again).collect()
    };
    assert_eq!(evidence(&plan, Way::Gossip, &run(30), &[]).waiting_helps().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Gossip, &run(20), &[]).waiting_helps().kept, Kept::No);
    // Others ask meanwhile.
    let mut all = run(20);
    all.extend((0..30).map(|place| seen(1_000 * (place + 1) + 1, decided(true, (0, 0)))));
    assert_eq!(evidence(&plan, Way::Gossip, &all, &[]).waiting_helps().kept, Kept::NotJudged);
}

#[test]
fn a_bucket_is_judged_by_the_limit_in_force() {
    let plan = plan("algorithm = \"gcra\"\nburst = 10\n");
    let at = Duration::from_secs(1);
    let raised = [Happened { kind: FaultKind::Limit(20), from: at, until: at }];
    let every = |millis: u64| -> Vec<Seen> {
        (0..120).map(|place| seen(5_000 + place * millis, decided(true, (0, 0)))).collect()
    };
    assert_eq!(evidence(&plan, Way::Split, &every(50), &raised).limit_holds().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Split, &every(33), &raised).limit_holds().kept, Kept::No);
    assert_eq!(evidence(&plan, Way::Split, &every(50), &[]).limit_holds().kept, Kept::No);
}

/// Twenty requests a second for so many seconds, of which in each second the first so many are admitted. They
/// go to the three regions in turn.
fn seconds_with(admitted: &[u64]) -> Vec<Seen> {
    let of_second = |(second, admitted): (usize, &u64)| {
        let (second, admitted) = (u64::try_from(second).unwrap(), *admitted);
        (0..20).map(move |place| {
            let mut seen = seen(second * 1_000 + place * 45, decided(place < admitted, (0, 0)));
            seen.ask.region = usize::try_from(place % 3).unwrap();
            seen
        })
    };
    admitted.iter().enumerate().flat_map(of_second).collect()
}

#[test]
fn a_limit_that_is_not_used_in_health_is_noticed() {
    let mut plan = plan("");
    plan.length = Span::from_secs(12);
    let judged = |admitted: u64, way| {
        let all = seconds_with(&[admitted; 12]);
        evidence(&plan, way, &all, &[]).limit_is_used().kept
    };
    assert_eq!(judged(10, Way::Gossip), Kept::Yes);
    assert_eq!(judged(9, Way::Gossip), Kept::No);
    assert_eq!(judged(9, Way::Escrow), Kept::No);
    // Fixed shares leave unused what they are not asked for.
    assert_eq!(judged(9, Way::Split), Kept::NotJudged);
}

#[test]
fn seconds_in_which_daemons_had_too_little_of_the_machine_say_nothing_of_use() {
    let mut plan = plan("");
    plan.length = Span::from_secs(14);
    let mut all = seconds_with(&[10, 10, 10, 10, 10, 10, 0, 10, 10, 10, 10, 10, 10, 10]);
    assert_eq!(evidence(&plan, Way::Gossip, &all, &[]).limit_is_used().kept, Kept::No);
    for seen in &mut all[6 * 20..7 * 20] {
        seen.answered = seen.sent + Duration::from_millis(80);
    }
    let verdict = evidence(&plan, Way::Gossip, &all, &[]).limit_is_used();
    assert_eq!(verdict.kept, Kept::Yes, "{}", verdict.found);
    all.iter_mut().for_each(|seen| seen.answered = seen.sent + Duration::from_millis(80));
    assert_eq!(evidence(&plan, Way::Gossip, &all, &[]).limit_is_used().kept, Kept::NotJudged);
}

#[test]
fn a_side_that_does_otherwise_than_its_policy_is_noticed() {
    let kind = FaultKind::Cut { regions: vec![2], inward: true, outward: true };
    let cut = [Happened { kind, from: Duration::ZERO, until: Duration::from_secs(9) }];
    let judged = |policy: &str, admitted: u64| {
        let mut plan = plan(&format!("on_partition = \"{policy}\"\n"));
        plan.length = Span::from_secs(9);
        let all = seconds_with(&[admitted; 9]);
        evidence(&plan, Way::Gossip, &all, &cut).sides_keep_to_policy().kept
    };
    for policy in ["freeze", "last_known"] {
        assert_eq!(judged(policy, 10), Kept::Yes, "{policy}");
        assert_eq!(judged(policy, 8), Kept::No, "{policy} leaves a share unused");
        assert_eq!(judged(policy, 12), Kept::No, "{policy} lets both sides have the same");
    }
    // Of twenty requests six go to the region that is cut off: all of them, and ten of the others.
    assert_eq!(judged("ignore", 20), Kept::No, "the others have fourteen");
    assert_eq!(judged("ignore", 15), Kept::No, "who is cut off uses only five of six");
    assert_eq!(judged("deny", 0), Kept::Yes);
    assert_eq!(judged("deny", 1), Kept::No);
    assert_eq!(judged("share", 20), Kept::NotJudged, "the limit itself is the judge");
    let mut plan = plan("on_partition = \"ignore\"\n");
    plan.length = Span::from_secs(9);
    let mut all = seconds_with(&[20; 9]);
    let mut of_others = 0;
    for seen in &mut all {
        of_others = if seen.ask.id % 1_000 == 0 { 0 } else { of_others };
        of_others += u64::from(seen.ask.region != 2);
        let admitted = seen.ask.region == 2 || of_others <= 10;
        seen.answer = decided(admitted, (0, 0));
    }
    assert_eq!(evidence(&plan, Way::Gossip, &all, &cut).sides_keep_to_policy().kept, Kept::Yes);
}

#[test]
fn a_log_that_is_held_by_its_windows_alone_is_noticed() {
    let mut plan = plan("algorithm = \"sliding_log\"\n");
    plan.rule.limit = 100;
    // A hundred in each window: at its beginning and end in turn, or evenly.
    let run = |at: &dyn Fn(u64, u64) -> u64| -> Vec<Seen> {
        let all = (0..8).flat_map(|second| (0..100).map(move |place| (second, place)));
        all.map(|(second, place)| seen(second * 1_000 + at(second, place), decided(true, (0, 0)))).collect()
    };
    let evenly = run(&|_, place| place * 10);
    let by_turns = run(&|second, place| if second % 2 == 0 { 800 + place } else { place });
    assert_eq!(evidence(&plan, Way::Gossip, &evenly, &[]).logs_are_held().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Gossip, &by_turns, &[]).logs_are_held().kept, Kept::No);
}

#[test]
fn a_queue_between_regions_that_was_full_is_an_alarm() {
    let plan = plan("");
    for (line, kept) in [
        ("tidegate_peer_dropped_total{queue=\"queue_full\"} 0", Kept::Yes),
        ("tidegate_peer_dropped_total{queue=\"queue_full\"} 3", Kept::No),
        ("tidegate_frames_rejected_total{reason=\"rights_beyond\"} 1", Kept::No),
        // Before there is a link nothing can go out by it.
        ("tidegate_task_ends_total 0\ntidegate_peer_dropped_total{queue=\"unconnected\"} 9", Kept::Yes),
    ] {
        let all = Told { healthy: vec![page(0, line)], ..Told::default() };
        assert_eq!(told(&plan, Way::Gossip, &[], all).health_is_quiet().kept, kept, "{line}");
    }
}

/// The same where a failure policy decided.
fn degraded(at: u64, user: u64) -> Seen {
    let decision =
        Decision { admitted: true, reset: Duration::from_millis(500), degraded: true, ..Decision::default() };
    let mut seen = seen(at, Answer::Decided(decision));
    seen.ask.user = user;
    seen
}

#[test]
fn a_key_that_gets_more_than_its_limit_without_redis_is_noticed() {
    let plan = plan("");
    let ten = |user: u64| (0..10).map(move |place| degraded(100 + place, user));
    let mut all: Vec<Seen> = ten(1).chain(ten(2)).collect();
    // What Redis admitted is not the policy's.
    all.extend(admitted_in_turn(5));
    assert_eq!(evidence(&plan, Way::Gossip, &all, &[]).local_is_held().kept, Kept::Yes);
    assert_eq!(evidence(&plan, Way::Gossip, &all[20..], &[]).local_is_held().kept, Kept::NotJudged);
    all.push(degraded(300, 2));
    let verdict = evidence(&plan, Way::Gossip, &all, &[]).local_is_held();
    assert_eq!(verdict.kept, Kept::No);
    assert!(verdict.found.contains("1 above; the most that one got is 11 of 10"), "{}", verdict.found);
    // Two outages in one window let each through once.
    let frozen = |from: u64| Happened {
        kind: FaultKind::StoreFrozen { region: 0 },
        from: Duration::from_millis(from),
        until: Duration::from_millis(from + 50),
    };
    assert_eq!(
        evidence(&plan, Way::Gossip, &all, &[frozen(90), frozen(250)]).local_is_held().kept,
        Kept::Yes
    );
}

#[test]
fn a_share_that_nobody_spends_when_its_region_is_removed_is_noticed() {
    let mut plan = plan("");
    plan.length = Span::from_secs(20);
    let left = [Happened {
        kind: FaultKind::Leave { region: 2 },
        from: Duration::from_secs(1),
        until: Duration::from_secs(4),
    }];
    // Of the seconds from the tenth on, the others' fourteen requests each.
    let judged = |admitted: u64| {
        let all = seconds_with(&[admitted; 20]);
        let of_others: Vec<Seen> = all.into_iter().filter(|seen| seen.ask.region != 2).collect();
        evidence(&plan, Way::Split, &of_others, &left).share_is_inherited().kept
    };
    assert_eq!(judged(15), Kept::Yes, "ten of the first fifteen are the others'");
    assert_eq!(judged(10), Kept::No, "seven of the first ten");
}

#[test]
fn a_certificate_that_ends_and_a_disk_that_fills_in_silence_are_noticed() {
    let plan = plan("");
    let span = |kind: FaultKind, from: u64, until: u64| Happened {
        kind,
        from: Duration::from_secs(from),
        until: Duration::from_secs(until),
    };
    let ends = FaultKind::CertificatesEnd { region: 1, after: Span::from_secs(2) };
    let cut = FaultKind::Cut { regions: vec![1], inward: true, outward: true };
    let judged = |faults: &[Happened], pages: Vec<Page>| {
        let (faults, meanwhile) = (faults.to_vec(), vec![(Duration::from_secs(19), pages)]);
        told(&plan, Way::Gossip, &[], Told { faults, meanwhile, ..Told::default() }).faults_are_told()
    };
    let own = |warns: u32| page(1, &format!("tidegate_notices{{about=\"certificate\"}} {warns}\n"));
    let other = |refuses: u32| page(0, &format!("tidegate_notices{{about=\"refused\"}} {refuses}\n"));
    let ended = [span(ends.clone(), 1, 20)];
    assert_eq!(judged(&ended, vec![own(1), other(0)]).kept, Kept::Yes, "links that are up stay");
    assert_eq!(judged(&ended, vec![own(0), other(0)]).kept, Kept::No);
    let both = [span(ends, 1, 20), span(cut, 4, 10)];
    assert_eq!(judged(&both, vec![own(1), other(1)]).kept, Kept::Yes);
    assert_eq!(
        judged(&both, vec![own(1), other(0)]).kept,
        Kept::No,
        "a link was made with a certificate that ended"
    );
    let full = span(FaultKind::DiskFull { region: 0, daemon: 0 }, 1, 20);
    let lost = span(FaultKind::DatabaseLost, 4, 14);
    let dropped = |many: u32| {
        vec![page(0, &format!("tidegate_audit_dropped_total{{reason=\"spool_failed\"}} {many}\n"))]
    };
    assert_eq!(judged(&[full.clone(), lost.clone()], dropped(3)).kept, Kept::Yes);
    assert_eq!(judged(&[full.clone(), lost], dropped(0)).kept, Kept::No);
    assert_eq!(judged(&[full], dropped(0)).kept, Kept::NotJudged, "records went on to PostgreSQL");
}

#[test]
fn a_fault_that_this_machine_cannot_play_is_told() {
    let plan = plan("");
    let unplayed = vec!["the disk of a did not fill: mount: must be superuser".to_owned()];
    let verdict = told(&plan, Way::Gossip, &[], Told { unplayed, ..Told::default() }).all_was_played();
    assert!(verdict.kept == Kept::NotJudged && verdict.says_something(), "{verdict:?}");
    assert!(!evidence(&plan, Way::Gossip, &[], &[]).all_was_played().says_something());
}

#[test]
fn a_limit_that_gossip_exceeds_in_health_is_noticed() {
    let mut plan = plan("");
    plan.rule.limit = 100;
    plan.length = Span::from_secs(10);
    // Two hundred requests a second, of which so many are admitted.
    let judged = |admitted: u64| {
        let all: Vec<Seen> = (0..10)
            .flat_map(|second| (0..200).map(move |place| (second, place)))
            .map(|(second, place)| seen(second * 1_000 + place * 4, decided(place < admitted, (0, 0))))
            .collect();
        evidence(&plan, Way::Gossip, &all, &[]).gossip_is_near().kept
    };
    assert_eq!(judged(100), Kept::Yes);
    assert_eq!(judged(101), Kept::Yes, "a permit is rounding");
    assert_eq!(judged(103), Kept::No);
    assert_eq!(judged(120), Kept::No);
}

#[test]
fn a_sliding_window_is_judged_by_windows_and_by_its_estimate() {
    let plan = plan("algorithm = \"sliding_window\"\n");
    let many = |from: u64, times: u64| (0..times).map(move |place| seen(from + place, decided(true, (0, 0))));
    let kept = |all: &[Seen]| evidence(&plan, Way::Split, all, &[]).limit_holds().kept;
    let fine: Vec<Seen> = many(900, 10).chain(many(1_500, 5)).collect();
    assert_eq!(kept(&fine), Kept::Yes);
    let aligned: Vec<Seen> = many(100, 11).collect();
    assert_eq!(kept(&aligned), Kept::No);
    let straddling: Vec<Seen> = many(900, 10).chain(many(1_100, 10)).collect();
    assert_eq!(kept(&straddling), Kept::No, "nine of the ten before still count beside these ten");
}

#[test]
fn a_cause_that_the_log_does_not_name_is_noticed() {
    let mut plan = plan("");
    plan.length = Span::from_secs(20);
    let fault = |kind: FaultKind| {
        vec![Happened { kind, from: Duration::from_secs(2), until: Duration::from_secs(12) }]
    };
    let all = seconds_with(&[10; 20]);
    let judged = |kind: FaultKind, log: &str| {
        let mut judged = told(&plan, Way::Gossip, &all, Told { faults: fault(kind), ..Told::default() });
        judged.daemons = (0..3).map(|region| (format!("d{region}"), region, log.to_owned())).collect();
        judged.causes_are_named().kept
    };
    for (kind, line) in [
        (FaultKind::StoreFull { region: 1 }, "redis has no memory left: on_failure of the rules decides"),
        (FaultKind::StoreFrozen { region: 1 }, "redis answers too late"),
        (FaultKind::DatabaseLost, "records of decisions wait in the spool: broken"),
        (FaultKind::DatabaseFrozen, "records of decisions wait in the spool: late"),
        (FaultKind::DatabaseReadOnly, "records of decisions wait in the spool: read-only"),
        (
            FaultKind::CertificatesEnd { region: 0, after: Span::from_secs(2) },
            "this daemon's certificate ends on 1970-01-01, in 0 days",
        ),
        (FaultKind::Join { region: 2, listed: false }, "region ap is not in the peers.regions of eu/a"),
    ] {
        assert_eq!(judged(kind.clone(), line), Kept::Yes, "{kind:?}");
        assert_eq!(judged(kind.clone(), "rules in force"), Kept::No, "{kind:?}");
    }
    let lost = FaultKind::LogLost { region: 0, daemon: 0 };
    assert_eq!(judged(lost, ""), Kept::NotJudged);
}

#[test]
fn what_an_operator_deletes_is_nothing_that_escrow_promised() {
    let plan = plan("");
    let eleven = admitted_in_turn(11);
    let at = Duration::from_millis(105);
    let flushed = [Happened { kind: FaultKind::StoreFlushed { region: 0 }, from: at, until: at }];
    assert_eq!(evidence(&plan, Way::Escrow, &eleven, &flushed).limit_holds().kept, Kept::NotJudged);
    let later =
        [Happened { from: Duration::from_secs(9), until: Duration::from_secs(9), ..flushed[0].clone() }];
    assert_eq!(evidence(&plan, Way::Escrow, &eleven, &later).limit_holds().kept, Kept::No);
}

#[test]
fn a_gauge_that_is_zero_where_it_should_not_be_is_an_alarm() {
    let plan = plan("");
    for (line, kept) in [
        ("tidegate_peer_connected{region=\"region-1\"} 1\ntidegate_notices 0", Kept::Yes),
        ("tidegate_peer_connected{region=\"region-1\"} 0\ntidegate_notices 0", Kept::No),
        ("tidegate_peer_connected{region=\"region-0\"} 0\ntidegate_notices 0", Kept::Yes),
        ("tidegate_rules_source_up 0\ntidegate_notices 0", Kept::No),
    ] {
        let all = Told { healthy: vec![page(0, line)], ..Told::default() };
        assert_eq!(told(&plan, Way::Gossip, &[], all).health_is_quiet().kept, kept, "{line}");
    }
}
