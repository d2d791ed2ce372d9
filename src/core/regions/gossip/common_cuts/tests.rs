//! Tests of common cuts.

use proptest::prelude::*;

use super::*;

const WINDOW: Span = Span::from_secs(1);
const START: Timestamp = Timestamp(1_700_000_000_000_000);
const PARTIES: [(RegionId, u64); 3] = [(0, 1), (1, 1), (2, 1)];

fn scope(limit: u64, policy: Policy) -> DivisionScope<'static> {
    let horizon = Span::from_millis(60);
    DivisionScope {
        limit,
        windows: WINDOW.into(),
        horizon,
        ahead: Span::from_secs(1),
        parties: &PARTIES,
        silent: &[],
        whole: true,
        policy,
        rounding_seed: 77,
        lingering: &[],
        fades: false,
    }
}

fn report(at: Timestamp, admitted: u64, per_second: u64) -> WindowReport {
    let account = ReportFigures { stamp: at, admitted, demand: per_second * 1_000_000 };
    WindowReport { window: at.window_index(WINDOW), account }
}

/// A region that does nothing.
fn still(at: Timestamp) -> ReportFigures {
    ReportFigures { stamp: at, admitted: 0, demand: 0 }
}

/// Hears every report after a delay of its own (below the horizon) and looks at its own pace.
fn follow(
    reports: &[(RegionId, WindowReport)],
    delays: &[u64],
    tick: u64,
    end: Timestamp,
    policy: Policy,
) -> Vec<u32> {
    let mut cut = CommonCuts::default();
    let mut arrivals: Vec<_> = reports
        .iter()
        .zip(delays.iter().cycle())
        .map(|(&(region, report), &delay)| (report.account.stamp + Span::from_millis(delay), region, report))
        .collect();
    arrivals.sort_by_key(|&(at, region, report)| (at, region, report.account.stamp));
    let mut arrivals = arrivals.into_iter().peekable();
    let mut now = START;
    while now < end {
        now = (now + Span::from_millis(tick)).min(end);
        while let Some((at, region, report)) = arrivals.next_if(|(at, ..)| *at <= now) {
            cut.hear(at, region, report, scope(100, policy));
        }
        cut.advance(now, scope(100, policy));
    }
    cut.before.0.to_vec()
}

proptest! {
    /// Every region numbers itself first.
    #[test]
    fn regions_that_number_the_others_in_other_orders_divide_alike(
        limit in 1_u64..400,
        history in proptest::collection::vec((0_usize..3, 0_u64..3, 0_u64..8, 0_u64..3_000), 1..60),
    ) {
        let given = |own: usize| {
            let id = |place: usize| (place + 3 - own) % 3;
            let parties = [0, 1, 2].map(|place| (id(place), 1));
            let scope = DivisionScope { parties: &parties, ..scope(limit, Policy::Tidegate) };
            let (mut cut, mut at, mut admitted) = (CommonCuts::default(), START, [0; 3]);
            for &(place, pause, more, demand) in &history {
                at = at + Span::from_millis(pause * 5);
                admitted[place] += more;
                cut.hear(at, id(place), report(at, admitted[place], demand), scope);
            }
            cut.advance(at + Span::from_millis(100), scope);
            [0, 1, 2].map(|place| cut.given(id(place)))
        };
        prop_assert_eq!(given(0), given(1));
        prop_assert_eq!(given(0), given(2));
    }
}

proptest! {
    #[test]
    fn all_regions_divide_alike_whatever_came_first_and_however_they_tick(
        steps in proptest::collection::vec((0..3_usize, 2..90_u64, 0..60_u64, 0..400_u64), 1..60),
        delays in proptest::collection::vec(proptest::collection::vec(0..59_u64, 1..20), 3),
        ticks in proptest::collection::vec(1..40_u64, 3),
    ) {
        let mut at = START;
        let reports: Vec<_> = steps
            .into_iter()
            .map(|(region, step, admitted, demand)| {
                at = at + Span::from_millis(step);
                (region, report(at, admitted, demand))
            })
            .collect();
        let end = at + Span::from_millis(61);
        for policy in [Policy::Tidegate, Policy::Cut] {
            let views: Vec<_> =
                delays.iter().zip(&ticks).map(|(delays, &tick)| follow(&reports, delays, tick, end, policy)).collect();
            for view in &views {
                prop_assert_eq!(view, &views[0]);
                let sum: u32 = view.iter().sum();
                // More than the limit only if more has probably been admitted already.
                prop_assert!(view.is_empty() || (100..=300).contains(&sum), "{:?}", view);
            }
        }
    }
}

#[test]
fn a_region_that_asks_alone_has_the_whole_limit() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Tidegate);
    cut.hear(START, 0, report(START, 1, 500), scope);
    let later = START + Span::from_millis(200);
    cut.advance(later, scope);
    assert_eq!(cut.allowance(still(later), scope), WindowBudgets { now: 100, next: 100 });
}

#[test]
fn a_region_that_is_new_has_its_part_of_what_nobody_asks_for() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Cut);
    cut.hear(START, 1, report(START, 40, 0), scope);
    let later = START + Span::from_millis(100);
    cut.advance(later, scope);
    assert_eq!(cut.allowance(still(later), scope).now, 20);
}

#[test]
fn what_nobody_asks_for_lies_mostly_where_the_bucket_is_at_home() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Tidegate);
    cut.hear(START, 0, report(START, 1, 1), scope);
    let later = START + Span::from_millis(100);
    cut.advance(later, scope);
    assert!(cut.allowance(still(later), scope).now >= 90);
    // Many windows later another region asks: it is at home in neither.
    let at = START + Span::from_secs(3);
    cut.hear(at, 1, report(at, 1, 1), scope);
    let later = at + Span::from_millis(100);
    cut.advance(later, scope);
    assert!(cut.allowance(still(later), scope).now <= 40);
}

#[test]
fn several_regions_that_start_at_once_never_get_more_than_the_limit() {
    // Their first words come one by one: for some milliseconds each cut knows of one of them only.
    for policy in [Policy::Tidegate, Policy::Cut] {
        let mut views = [CommonCuts::default(), CommonCuts::default(), CommonCuts::default()];
        let scope = scope(90, policy);
        for step in 0..200_u64 {
            let now = START + Span::from_millis(step);
            for (own, cut) in views.iter_mut().enumerate() {
                for region in 0..3_usize {
                    let begun = u64::try_from(region).unwrap() * 6;
                    let at = |told: u64| START + Span::from_millis(begun + told);
                    for told in [0, 20, 40] {
                        let delay = if region == own { 0 } else { 50 };
                        if now == at(told) + Span::from_millis(delay) {
                            let id = (region + 3 - own) % 3;
                            cut.hear(now, id, report(at(told), 0, 100 + told * 40), scope);
                        }
                    }
                }
                cut.advance(now, scope);
            }
            let budgets = views.iter_mut().map(|cut| cut.allowance(still(now), scope).now);
            let sum: u64 = budgets.sum();
            assert!(sum <= 90 + 3, "{sum} at {step} ms");
        }
    }
}

#[test]
fn what_lasts_is_what_would_be_found_anew() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Tidegate);
    for region in [0, 1, 2] {
        cut.hear(START, region, report(START, 0, 20 + 70 * region as u64), scope);
    }
    let at = |ms| START + Span::from_millis(ms);
    cut.advance(at(61), scope);
    // What the last cut gave may be held back yet.
    cut.allowance(still(at(61)), scope);
    assert_eq!(cut.lasting(cut.window), None);
    cut.advance(at(100), scope);
    let found = cut.allowance(ReportFigures { admitted: 7, ..still(at(100)) }, scope);
    assert_eq!(cut.lasting(cut.window), Some(found));
    assert_eq!(cut.lasting(cut.window + 1), None);
    assert_eq!(cut.allowance(ReportFigures { admitted: 11, ..still(at(900)) }, scope), found);
    cut.hear(at(910), 1, report(at(905), 30, 500), scope);
    assert_eq!(cut.lasting(cut.window), None);
}

#[test]
fn two_regions_that_want_too_much_get_half_each_also_in_the_next_window() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Tidegate);
    for region in [0, 1] {
        cut.hear(START, region, report(START, 0, 500), scope);
    }
    let later = START + Span::from_millis(100);
    cut.advance(later, scope);
    assert_eq!(cut.allowance(still(later), scope), WindowBudgets { now: 50, next: 50 });
}

#[test]
fn what_has_arrived_shrinks_a_budget_at_once_and_raises_it_only_when_all_have_it() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Tidegate);
    cut.hear(START, 0, report(START, 0, 100), scope);
    let later = START + Span::from_millis(100);
    cut.advance(later, scope);
    cut.hear(later, 1, report(later, 0, 500), scope);
    assert_eq!(cut.allowance(still(later), scope).now, 50);
    let after = later + Span::from_millis(70);
    cut.advance(after, scope);
    cut.hear(after, 1, report(after, 10, 0), scope);
    assert_eq!(cut.allowance(still(after), scope).now, 50);
    let last = after + Span::from_millis(60);
    cut.advance(last, scope);
    assert_eq!(cut.allowance(still(last), scope).now, 50);
    let last = last + GROWTH_DELAY;
    cut.advance(last, scope);
    assert!(cut.allowance(still(last), scope).now >= 60, "{:?}", cut.allowance(still(last), scope));
}

#[test]
fn what_a_later_report_raises_again_stays_shrunk_until_that_is_used() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Tidegate);
    let at = |ms| START + Span::from_millis(ms);
    for region in [0, 1] {
        cut.hear(START, region, report(START, 0, 500), scope);
    }
    let own = |ms| still(at(ms));
    cut.advance(at(100), scope);
    assert_eq!(cut.allowance(own(100), scope).now, 50);
    // The own region asks for little for a moment: from 260 on the others use the rest, until its next word
    // is used.
    for (told, demand) in [(200, 5), (230, 500)] {
        cut.hear(at(told), 0, report(at(told), 0, demand), scope);
        cut.advance(at(told), scope);
        assert!(cut.allowance(own(told), scope).now < 10);
    }
    for ms in [250, 265, 285] {
        cut.advance(at(ms), scope);
        assert!(cut.allowance(own(ms), scope).now < 10, "at {ms} ms");
    }
    cut.advance(at(311), scope);
    assert_eq!(cut.allowance(own(311), scope).now, 50);
}

#[test]
fn a_region_that_has_not_asked_for_two_windows_is_out_of_play() {
    let mut cut = CommonCuts::default();
    let scope = scope(100, Policy::Tidegate);
    for region in [0, 1] {
        cut.hear(START, region, report(START, 0, 500), scope);
    }
    let mut at = START;
    for _ in 0..3 {
        at = at + WINDOW;
        cut.hear(at, 0, report(at, 0, 500), scope);
        cut.hear(at, 1, report(at, 0, 0), scope);
        cut.advance(at + Span::from_millis(60), scope);
    }
    assert_eq!(cut.allowance(still(at + Span::from_millis(60)), scope).now, 100);
}
