//! Divides a limit among regions: a pure function that every region evaluates on the same reports and gets
//! the same answer from, so that what they may admit adds up to the limit without a vote.
//!
//! Exact integers throughout: permits in millionths, time in microseconds. No floats, on any machine.

use smallvec::SmallVec;

use super::super::time::{Span, Timestamp};
use super::super::wire::DEMAND_MAX;

/// Millionths in a permit.
pub(super) const UNIT: i128 = 1_000_000;
/// A region may want as much again as it has used, if it is asked for that within so long: its demand has
/// lasted.
const LASTED: Span = Span::from_secs(10);
/// A region that asks for nothing keeps its part of one in so many permits of those that nobody will soon
/// need.
const SLICES: i128 = 10;

/// One region's part in a division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionInput {
    /// Weight of the region among all, at least 1.
    pub weight: u64,
    /// Its part of what nobody asks for, as a weight too; at least 1.
    pub reserve: u64,
    /// The newest that it told, if anything.
    pub told: Option<ReportFigures>,
    /// Permits that it was given before in this window; the whole limit if it was given none.
    pub before: u64,
    /// Permits that it has used, if that is known exactly.
    pub exact: Option<u64>,
    /// Permits that it admitted in the window before and that still count: of a `sliding_log`.
    pub lingering: u64,
    /// Nothing more will be heard of it: what it told last stands for as long as the window.
    pub silent: bool,
}

/// The figures that a region told of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportFigures {
    /// Instant of the report, by the reporting region's clock.
    pub stamp: Timestamp,
    /// Permits that it had admitted in the window by then.
    pub admitted: u64,
    /// Permits per second that it is asked for, in millionths.
    pub demand: u64,
}

/// The limit that is divided, and by which terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DivisionInput {
    /// Permits of the limit that is divided among all regions.
    pub limit: u64,
    /// Instant at which the window begins.
    pub start: Timestamp,
    /// Instant at which the window ends; after `start`.
    pub end: Timestamp,
    /// The instant for which use is guessed.
    pub cut: Timestamp,
    /// Standard deviations more than it asks for that a region is taken to want, in thousandths.
    pub caution: u64,
    /// The point at which fractions of a permit tip over, in millionths; the same in every region.
    pub rounding_offset: u64,
    /// For so long a demand counts that has not lasted: until a later division takes force. `None`: all that
    /// is asked for until the end counts, and nothing is kept for those that ask for nothing.
    pub ahead: Option<Span>,
    /// Permits that a region which asks for nothing keeps at least, while there are as many for each.
    pub slice_min: u64,
    /// While more permits than this are left of the limit, whole wishes that exceed what is left leave every
    /// region its slice of it. A limit that is not larger is never so much.
    pub scarce: u64,
    /// True if wishes are whole permits: less than half of one is none, so that the last ones go to whoever
    /// asks.
    pub whole: bool,
    /// Permits of the limit that the window before fills at `cut`: of a `sliding_window`, whose store leaves
    /// a region the same part of its budget.
    pub fading: u64,
}

impl DivisionInput {
    /// The budget of which so much may be used, as long as the window before fills so much of the limit.
    fn budget_for(&self, amount: i128) -> i128 {
        let (limit, usable) = (i128::from(self.limit), i128::from(self.limit.saturating_sub(self.fading)));
        if usable == limit { amount } else { (amount * limit + usable - 1) / usable.max(1) }
    }

    /// Returns how much of a budget may be used.
    fn usable_of(&self, budget: u64) -> i128 {
        let usable = i128::from(budget) * i128::from(self.limit.saturating_sub(self.fading));
        usable * UNIT / i128::from(self.limit.max(1))
    }
}

/// The permits that one region has probably used, and those that it will want, in millionths.
#[derive(Debug, Clone, Copy)]
struct Projection {
    weight: i128,
    reserve: i128,
    used: i128,
    /// Until a later division takes force.
    soon: i128,
    /// In the whole window, as far as its demand has lasted.
    wanted: i128,
}

/// The permits that each region may admit, in the order of the inputs.
pub type Budgets = SmallVec<[u64; 8]>;

/// The instant at which all regions use these reports: the newest stamp and the horizon.
pub fn common_cut(start: Timestamp, horizon: Span, inputs: &[RegionInput]) -> Timestamp {
    let stamps = inputs.iter().filter_map(|input| input.told).map(|told| told.stamp + horizon);
    stamps.fold(start, Timestamp::max)
}

/// Returns what each region may admit in the whole window, in whole permits. The sum is the limit, unless
/// more is known to have been admitted already.
///
/// Everyone gets its wish and a part of the rest by its reserve, while all wishes fit. Else it is the
/// weighted max-min division of all wishes, never below what was probably used. Every region keeps a slice of
/// what nobody will soon need, whether or not it asks.
pub fn budgets(division: DivisionInput, inputs: &[RegionInput]) -> Budgets {
    let limit = i128::from(division.limit) * UNIT;
    let claims: SmallVec<[Projection; 8]> = inputs.iter().map(|input| claim(division, input)).collect();
    let used: i128 = claims.iter().map(|claim| claim.used).sum();
    let wanted: i128 = claims.iter().map(|claim| claim.wanted).sum();
    let lingers = inputs.iter().any(|input| input.lingering > 0) || (division.whole && division.fading > 0);
    let parts: SmallVec<[i128; 8]> = if used >= limit && lingers {
        // Lingering use is partly guessed, and leaves soon: nobody may admit more before it has.
        claims.iter().map(|claim| claim.used * limit / used.max(1)).collect()
    } else if used >= limit {
        claims.iter().map(|claim| claim.used).collect()
    } else {
        let mut parts = match wanted <= limit {
            true => with_reserve(limit - wanted, &claims),
            false if division.whole => levelled(limit, &soon_first(limit, &claims)),
            false => levelled(limit, &claims),
        };
        if division.ahead.is_some() {
            keep_slices(division, &claims, &mut parts);
        }
        parts
    };
    whole(division, &parts)
}

fn claim(division: DivisionInput, input: &RegionInput) -> Projection {
    let (weight, reserve) = (i128::from(input.weight.max(1)), i128::from(input.reserve.max(1)));
    let lingering = i128::from(input.lingering) * UNIT;
    let Some(told) = input.told else {
        return Projection { weight, reserve, used: lingering, soon: lingering, wanted: lingering };
    };
    let (admitted, from) = if told.stamp >= division.start {
        (i128::from(told.admitted) * UNIT, told.stamp)
    } else {
        (0, division.start)
    };
    let demand = i128::from(told.demand.min(DEMAND_MAX));
    let asked_in = |span: Span| in_units(demand * i128::from(span.0));
    let (ahead, wholes) = (division.ahead.filter(|_| !input.silent), division.whole);
    let known = admitted + lingering;
    // A region that uses more tells so sooner than that.
    let since = division.cut.since(from);
    let unheard = asked_in(ahead.map_or(since, |ahead| since.min(ahead + ahead)));
    let (unheard, before) = match wholes {
        true => (unheard / UNIT * UNIT, division.usable_of(input.before)),
        false => (unheard, i128::from(input.before) * UNIT),
    };
    let guessed = known.max((known + unheard).min(before));
    let used = input.exact.map_or(guessed, |used| i128::from(used) * UNIT + lingering);
    let all = asked_in(division.end.since(from));
    let soon = ahead.map_or(all, |ahead| all.min(asked_in(ahead)));
    let lasting = ahead.map_or(all, |_| soon.max(all.min(admitted).min(asked_in(LASTED))));
    let cautious = lasting + root(lasting * UNIT) * i128::from(division.caution) / 1_000;
    if !wholes {
        let (soon, wanted) = (used.max(admitted + soon), used.max(admitted + cautious));
        return Projection { weight, reserve, used, soon, wanted };
    }
    // Lingering use does not leave before the next division.
    let rounded = |amount: i128| used.max(known + (amount + UNIT / 2) / UNIT * UNIT);
    let needs = |amount: i128| match division.budget_for(amount) {
        budget if amount > used => (budget + UNIT - 1) / UNIT * UNIT,
        budget => budget,
    };
    let (soon, wanted) = (needs(rounded(soon)), needs(rounded(cautious)));
    Projection { weight, reserve, used: needs(used), soon, wanted: wanted.max(soon) }
}

/// Leaves every region a slice beyond what it has used: a first request then finds something wherever it
/// comes. It is a part of what is left while more than a tenth of the limit is, and of what nobody will soon
/// need after that. Each has at least a permit while there is one for every region. Missing permits are taken
/// from regions that have more than they will soon need, by how much more that is.
fn keep_slices(division: DivisionInput, claims: &[Projection], parts: &mut [i128]) {
    if division.fading >= division.limit {
        return;
    }
    // Whole wishes are budgets already.
    let budget = |amount: i128| if division.whole { amount } else { division.budget_for(amount) };
    let limit = i128::from(division.limit) * UNIT;
    let regions = i128::try_from(claims.len()).unwrap_or(i128::MAX).max(1);
    let soon = claims.iter().map(|claim| budget(claim.soon)).sum::<i128>();
    let left = limit - claims.iter().map(|claim| budget(claim.used)).sum::<i128>();
    let roomy = division.whole && left > division.budget_for(i128::from(division.scarce) * UNIT);
    let least = division.budget_for(i128::from(division.slice_min.max(1)) * UNIT);
    // Rounding may take a part of a permit.
    let least = if division.fading > 0 { ((least + UNIT - 1) / UNIT + 1) * UNIT } else { least };
    // Needs that all fit are met, and so are the last permits of a region that alone asks. Each of several
    // that do not fit is cut anyway, and so is a need of more than all that is left.
    let several = claims.iter().filter(|claim| claim.soon > claim.used).count() > 1;
    let cut = division.whole && (several || roomy) && soon > limit;
    let shared = match roomy {
        true if cut => left / SLICES,
        true => (limit - soon).min(left / SLICES),
        false => (limit - soon) / SLICES,
    };
    let slice = (shared / regions / UNIT * UNIT).max(least);
    let floor = |claim: &Projection| budget(claim.used) + slice;
    let kept = |claim: &Projection| if cut { floor(claim) } else { budget(claim.soon).max(floor(claim)) };
    if claims.iter().map(kept).sum::<i128>() > limit {
        return;
    }
    let mut missing = 0;
    let mut more = 0;
    for (claim, part) in claims.iter().zip(parts.iter_mut()) {
        let lacks = (floor(claim) - *part).max(0);
        missing += lacks;
        *part += lacks;
        more += (*part - kept(claim)).max(0);
    }
    // Whole permits, and what does not divide from the first that can give it.
    let mut left = missing;
    for turn in 0..2 {
        for (claim, part) in claims.iter().zip(parts.iter_mut()) {
            let can = (*part - kept(claim)).max(0);
            let due = if turn == 0 { missing * can / more.max(1) / UNIT * UNIT } else { left };
            let gives = due.min(can).min(left);
            *part -= gives;
            left -= gives;
        }
    }
}

/// An amount in millionths of millionths, in millionths. Most are small, and of those a quotient costs a
/// tenth.
fn in_units(amount: i128) -> i128 {
    i64::try_from(amount).map_or(amount / UNIT, |small| i128::from(small / 1_000_000))
}

/// The square root, rounded down; the same of most.
fn root(amount: i128) -> i128 {
    u64::try_from(amount).map_or_else(|_| amount.isqrt(), |small| i128::from(small.isqrt()))
}

/// Everyone's wish, and a part of what is left over.
fn with_reserve(rest: i128, claims: &[Projection]) -> SmallVec<[i128; 8]> {
    let reserves: i128 = claims.iter().map(|claim| claim.reserve).sum();
    let mut parts: SmallVec<[i128; 8]> =
        claims.iter().map(|claim| claim.wanted + rest * claim.reserve / reserves.max(1)).collect();
    let given: i128 = claims.iter().zip(&parts).map(|(claim, part)| part - claim.wanted).sum();
    if let Some(first) = parts.first_mut() {
        *first += rest - given;
    }
    parts
}

/// Needs of the near future come before wishes of a region whose demand has lasted: that may have ended.
fn soon_first(limit: i128, claims: &[Projection]) -> SmallVec<[Projection; 8]> {
    let soon: i128 = claims.iter().map(|claim| claim.soon).sum();
    let first = |claim: &Projection| match soon <= limit {
        true => Projection { used: claim.soon, ..*claim },
        false => Projection { wanted: claim.soon, ..*claim },
    };
    claims.iter().map(first).collect()
}

/// A point at which the level meets a region's use or wish: the level is the first divided by the second.
type LevelPoint = (i128, i128);

/// The weighted max-min division: a level that rises over all alike until the limit is reached. Exact: the
/// sum is piecewise linear in the level and bends only at the points.
fn levelled(limit: i128, claims: &[Projection]) -> SmallVec<[i128; 8]> {
    let at = |claim: &Projection, (num, den): LevelPoint| {
        claim.used.max(claim.wanted.min(num * claim.weight / den))
    };
    let total = |point: LevelPoint| claims.iter().map(|claim| at(claim, point)).sum::<i128>();
    let mut points: SmallVec<[LevelPoint; 16]> =
        claims.iter().flat_map(|claim| [(claim.used, claim.weight), (claim.wanted, claim.weight)]).collect();
    // Products in place of quotients, which would be most of what a division of the limit costs.
    points.sort_unstable_by(|one, other| (one.0 * other.1).cmp(&(other.0 * one.1)).then(one.cmp(other)));
    points.dedup();
    let reached = points.partition_point(|&point| total(point) < limit).min(points.len().saturating_sub(1));
    let high = points.get(reached).copied().unwrap_or((limit, 1));
    let low = reached.checked_sub(1).and_then(|below| points.get(below)).copied().unwrap_or((0, 1));
    let moves = |claim: &Projection| {
        claim.used * high.1 < high.0 * claim.weight && claim.wanted * low.1 > low.0 * claim.weight
    };
    let fixed: i128 = claims.iter().filter(|claim| !moves(claim)).map(|claim| at(claim, low)).sum();
    let weights: i128 = claims.iter().filter(|claim| moves(claim)).map(|claim| claim.weight).sum();
    let level = (limit - fixed, weights.max(1));
    let mut parts: SmallVec<[i128; 8]> =
        claims.iter().map(|claim| at(claim, if moves(claim) { level } else { low })).collect();
    // A few millionths of rounding are left: the first that can take them does.
    let mut rest = limit - parts.iter().sum::<i128>();
    for (part, claim) in parts.iter_mut().zip(claims) {
        let step = (claim.used - *part).max(rest.min(claim.wanted - *part));
        *part += step;
        rest -= step;
        if rest == 0 {
            break;
        }
    }
    parts
}

/// Whole permits from running sums, so that the total is exact and a part moves by less than one permit.
fn whole(division: DivisionInput, parts: &[i128]) -> Budgets {
    let sum: i128 = parts.iter().sum();
    let all = i128::from(division.limit).max((sum + UNIT - 1).div_euclid(UNIT));
    let (mut running, mut given) = (0_i128, 0_i128);
    let mut out = Budgets::new();
    for (index, part) in parts.iter().enumerate() {
        running += part;
        let last = index + 1 == parts.len();
        let tipped = running + i128::from(division.rounding_offset);
        let up_to = if last { all } else { in_units(tipped) }.max(given);
        out.push(u64::try_from(up_to - given).unwrap_or(0));
        given = up_to;
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    struct Vector {
        #[serde(rename = "L")]
        limit: u64,
        st: u64,
        en: u64,
        delta: u64,
        wt: Vec<u64>,
        rep: Vec<Option<(u64, u64, u64)>>,
        prev: Vec<u64>,
        /// How far is looked ahead, where that is not the whole window.
        ahead: Option<u64>,
        whole: bool,
        fading: u64,
        out: Vec<u64>,
    }

    #[test]
    fn all_golden_vectors_of_the_reference_are_reproduced() {
        let vectors: Vec<Vector> = serde_json::from_str(include_str!("golden-budgets.json")).unwrap();
        assert_eq!(vectors.len(), 600);
        for (number, vector) in vectors.iter().enumerate() {
            let inputs: Vec<RegionInput> = (0..vector.wt.len())
                .map(|k| RegionInput {
                    weight: vector.wt[k],
                    reserve: vector.wt[k],
                    told: vector.rep[k].map(|(stamp, admitted, demand)| ReportFigures {
                        stamp: Timestamp(stamp),
                        admitted,
                        demand,
                    }),
                    before: vector.prev[k],
                    exact: None,
                    lingering: 0,
                    silent: false,
                })
                .collect();
            let division = DivisionInput {
                limit: vector.limit,
                start: Timestamp(vector.st),
                end: Timestamp(vector.en),
                cut: common_cut(Timestamp(vector.st), Span(vector.delta), &inputs),
                caution: 1_000,
                rounding_offset: 500_000,
                ahead: vector.ahead.map(Span),
                slice_min: 1,
                scarce: vector.limit / 10,
                whole: vector.whole,
                fading: vector.fading,
            };
            assert_eq!(budgets(division, &inputs).to_vec(), vector.out, "vector {number}");
        }
    }

    const START: u64 = 1_700_000_000_000_000;

    fn inputs() -> impl Strategy<Value = Vec<RegionInput>> {
        let told = (0..1_000_000_u64, 0..40_u64, prop_oneof![0..300_000_000_u64, 0..=DEMAND_MAX]).prop_map(
            |(ago, admitted, demand)| ReportFigures { stamp: Timestamp(START + ago), admitted, demand },
        );
        let one = (1..10_u64, proptest::option::of(told), 0..200_u64).prop_map(|(weight, told, before)| {
            RegionInput { weight, reserve: weight, told, before, exact: None, lingering: 0, silent: false }
        });
        proptest::collection::vec(one, 1..8)
    }

    fn second(limit: u64) -> DivisionInput {
        let (start, end) = (Timestamp(START), Timestamp(START + 1_000_000));
        DivisionInput {
            limit,
            start,
            end,
            cut: start + Span(1_050_000),
            caution: 1_000,
            rounding_offset: 123_456,
            ahead: Some(Span::from_secs(1)),
            slice_min: 1,
            scarce: limit / 10,
            whole: false,
            fading: 0,
        }
    }

    /// A day of which half is to come.
    fn day(limit: u64) -> DivisionInput {
        let half = 12 * 3_600 * 1_000_000;
        let (start, end) = (Timestamp(START - half), Timestamp(START + half));
        DivisionInput { start, end, cut: Timestamp(START + 1_050_000), whole: true, ..second(limit) }
    }

    fn region(told: Option<(u64, u64)>) -> RegionInput {
        let told = told.map(|(admitted, demand)| ReportFigures {
            stamp: Timestamp(START + 1_000_000),
            admitted,
            demand,
        });
        RegionInput { weight: 1, reserve: 1, told, before: 100, exact: None, lingering: 0, silent: false }
    }

    #[test]
    fn ten_requests_of_a_second_are_no_demand_until_midnight() {
        let used = |admitted, demand| region(Some((admitted, demand)));
        let inputs = [used(10, 10_000_000), region(None), region(None)];
        let out = budgets(day(100), &inputs);
        assert_eq!(out.iter().sum::<u64>(), 100);
        assert!(out.iter().all(|part| *part >= 20), "{out:?}");
        let home = RegionInput { reserve: 28, ..inputs[0] };
        assert_eq!(
            budgets(day(100), &[home, inputs[1], inputs[2]]).to_vec(),
            [94, 3, 3],
            "a tenth in slices"
        );
    }

    #[test]
    fn whoever_is_refused_gets_the_last_permit_whole() {
        // Of four permits two are used where nobody asks any more, one where one more is asked for.
        let idle = region(Some((2, 2_000)));
        let asks = region(Some((1, 1_250_000)));
        for rounding_offset in [0, 123_456, 500_000, 999_999] {
            let division = DivisionInput { rounding_offset, caution: 250, ..day(4) };
            assert_eq!(budgets(division, &[idle, asks]).to_vec(), [2, 2]);
            assert_eq!(budgets(division, &[asks, idle]).to_vec(), [2, 2]);
        }
    }

    #[test]
    fn where_not_all_needs_fit_who_begins_to_ask_finds_a_permit_and_one_need_may_take_all() {
        let needs = |permits: u64| region(Some((0, permits * 1_000_000)));
        let idle = region(None);
        assert_eq!(budgets(day(100), &[needs(60), needs(60), idle]).to_vec(), [48, 49, 3]);
        assert_eq!(budgets(day(100), &[needs(100), idle, idle]).to_vec(), [100, 0, 0]);
    }

    #[test]
    fn while_more_than_a_tenth_is_left_a_need_of_more_than_that_leaves_each_region_its_slice() {
        let asks = |used: u64, permits: u64| region(Some((used, permits * 1_000_000)));
        let idle = region(None);
        let of = |asks| budgets(day(1_000), &[asks, idle, idle]).to_vec();
        assert_eq!(of(asks(400, 2_000)), [960, 20, 20]);
        let home = RegionInput { reserve: 280, ..asks(400, 500) };
        assert_eq!(of(home), [960, 20, 20], "a slice of what is left, also where the need fits");
        assert_eq!(of(asks(400, 580)), [988, 6, 6], "what the need leaves");
        assert_eq!(of(asks(400, 600)), [1_000, 0, 0], "it fits");
        assert_eq!(of(asks(900, 2_000)), [1_000, 0, 0], "no more than a tenth is left");
    }

    #[test]
    fn where_the_past_fills_half_of_a_window_a_slice_is_a_permit_all_the_same() {
        let inputs = [region(Some((10, 0))), region(None), region(None)];
        let home = RegionInput { reserve: 280, ..inputs[0] };
        let division = DivisionInput { fading: 50, ..day(100) };
        // Of what a budget says half may be used.
        assert_eq!(budgets(division, &[home, inputs[1], inputs[2]]).to_vec(), [94, 3, 3]);
        let division = DivisionInput { fading: 98, ..day(100) };
        let out = budgets(division, &[home, inputs[1], inputs[2]]);
        assert_eq!(out.iter().sum::<u64>(), 100, "nothing is left to be used");
    }

    proptest! {
        #[test]
        fn budgets_add_up_to_the_limit_unless_more_was_used(inputs in inputs(), limit in 1..400_u64) {
            let out = budgets(second(limit), &inputs);
            let used: u64 = inputs.iter().filter_map(|input| input.told).map(|told| told.admitted).sum();
            let probably: u64 = used + inputs.iter().map(|input| input.before).sum::<u64>();
            let sum: u64 = out.iter().sum();
            prop_assert!(sum >= limit);
            prop_assert!(sum <= limit.max(probably));
        }

        #[test]
        fn while_as_many_permits_are_free_as_there_are_regions_each_has_one(
            regions in 2_usize..=10,
            used in 1..100_u64,
            demand in 0..400_000_000_u64,
            limit in 4..400_u64,
            reserve in 1..200_u64,
        ) {
            let mut inputs = vec![region(None); regions];
            inputs[regions / 2] = RegionInput { reserve, before: limit, ..region(Some((used, demand))) };
            let out = budgets(day(limit), &inputs);
            prop_assert_eq!(out.iter().sum::<u64>(), limit.max(used));
            let needed = u64::try_from(regions).unwrap() + used + demand / 1_000_000 + 1;
            prop_assert!(needed > limit || out.iter().all(|part| *part >= 1), "{:?}", out);
        }

        #[test]
        fn nobody_gets_less_than_it_has_used(inputs in inputs(), limit in 1..400_u64) {
            let out = budgets(second(limit), &inputs);
            for (input, budget) in inputs.iter().zip(out) {
                // One permit of rounding.
                prop_assert!(budget + 1 >= input.told.map_or(0, |told| told.admitted));
            }
        }

        #[test]
        fn no_input_overflows(weights in proptest::collection::vec(1..=4_294_967_295_000_u64, 1..8), limit in 0..=u64::from(u32::MAX)) {
            let told = Some(ReportFigures { stamp: Timestamp(START), admitted: u64::from(u32::MAX), demand: u64::MAX });
            let inputs: Vec<_> = weights.iter().map(|&weight| RegionInput { weight, reserve: weight, told, before: limit, exact: None, lingering: 0, silent: false }).collect();
            let end = Timestamp(START + 366 * 24 * 3_600 * 1_000_000);
            let _ = budgets(DivisionInput { limit, end, ..second(limit) }, &inputs);
        }
    }
}
