//! Divides a limit among regions: a pure function that every region evaluates on the same reports and gets
//! the same answer from, so that what they may admit adds up to the limit without a vote.
//!
//! Exact integers throughout: permits in millionths, time in microseconds. No floats, on any machine.

use smallvec::SmallVec;

use super::super::time::{Span, Timestamp};
use super::super::wire::DEMAND_MAX;

/// Millionths in a permit.
pub(super) const UNIT: i128 = 1_000_000;

/// One region's part in a division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionInput {
    /// Its weight, at least 1.
    pub weight: u64,
    /// Its part of what nobody asks for, as a weight too; at least 1.
    pub reserve: u64,
    /// The newest that it told, if anything.
    pub told: Option<ReportFigures>,
    /// What it was given before in this window; the whole limit if nothing was.
    pub before: u64,
    /// What it has used, where that is known exactly.
    pub exact: Option<u64>,
    /// What it admitted in the window before that still counts: of a `sliding_log`.
    pub lingering: u64,
}

/// What a region told of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportFigures {
    /// When it told.
    pub stamp: Timestamp,
    /// What it had admitted in the window by then.
    pub admitted: u64,
    /// What it is asked for, per second, in millionths.
    pub demand: u64,
}

/// What is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DivisionInput {
    /// Permits.
    pub limit: u64,
    /// When the window begins.
    pub start: Timestamp,
    /// When it ends.
    pub end: Timestamp,
    /// The instant for which use is guessed.
    pub cut: Timestamp,
    /// How many standard deviations more than it asks for a region is taken to want, in thousandths.
    pub caution: u64,
    /// Where fractions of a permit tip over, in millionths; the same in every region.
    pub rounding_offset: u64,
}

/// What one region has probably used, and what it will want in the whole window, in millionths.
#[derive(Debug, Clone, Copy)]
struct Projection {
    weight: i128,
    reserve: i128,
    used: i128,
    wanted: i128,
}

/// The permits that each region may admit, in the order of the inputs.
pub type Budgets = SmallVec<[u64; 8]>;

/// The instant at which all regions use these reports: the newest stamp and the horizon.
pub fn common_cut(start: Timestamp, horizon: Span, inputs: &[RegionInput]) -> Timestamp {
    let stamps = inputs.iter().filter_map(|input| input.told).map(|told| told.stamp + horizon);
    stamps.fold(start, Timestamp::max)
}

/// What each region may admit in the whole window, in whole permits. The sum is the limit, unless more is
/// known to have been admitted already.
///
/// While all wishes fit, everyone gets its wish and a part of the rest by its reserve. When they do not, it
/// is the weighted max-min division over the whole window, never below what was probably used.
pub fn budgets(division: DivisionInput, inputs: &[RegionInput]) -> Budgets {
    let limit = i128::from(division.limit) * UNIT;
    let claims: SmallVec<[Projection; 8]> = inputs.iter().map(|input| claim(division, input)).collect();
    let used: i128 = claims.iter().map(|claim| claim.used).sum();
    let wanted: i128 = claims.iter().map(|claim| claim.wanted).sum();
    let lingers = inputs.iter().any(|input| input.lingering > 0);
    let parts: SmallVec<[i128; 8]> = if used >= limit && lingers {
        // What lingers is partly guessed, and leaves soon: nobody may admit more before it has.
        claims.iter().map(|claim| claim.used * limit / used.max(1)).collect()
    } else if used >= limit {
        claims.iter().map(|claim| claim.used).collect()
    } else if wanted <= limit {
        with_reserve(limit - wanted, &claims)
    } else {
        levelled(limit, &claims)
    };
    whole(division, &parts)
}

fn claim(division: DivisionInput, input: &RegionInput) -> Projection {
    let (weight, reserve) = (i128::from(input.weight.max(1)), i128::from(input.reserve.max(1)));
    let lingering = i128::from(input.lingering) * UNIT;
    let Some(told) = input.told else {
        return Projection { weight, reserve, used: lingering, wanted: lingering };
    };
    let (admitted, from) = if told.stamp >= division.start {
        (i128::from(told.admitted) * UNIT, told.stamp)
    } else {
        (0, division.start)
    };
    let demand = i128::from(told.demand.min(DEMAND_MAX));
    let asked = |until: Timestamp| in_units(demand * i128::from(until.since(from).0));
    let known = admitted + lingering;
    let guessed = known.max((known + asked(division.cut)).min(i128::from(input.before) * UNIT));
    let used = input.exact.map_or(guessed, |used| i128::from(used) * UNIT + lingering);
    let rest = asked(division.end);
    let wanted = used.max(admitted + rest + root(rest * UNIT) * i128::from(division.caution) / 1_000);
    Projection { weight, reserve, used, wanted }
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
        out: Vec<u64>,
    }

    #[test]
    fn all_golden_vectors_of_the_reference_are_reproduced() {
        let vectors: Vec<Vector> = serde_json::from_str(include_str!("golden-budgets.json")).unwrap();
        assert_eq!(vectors.len(), 400);
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
                })
                .collect();
            let division = DivisionInput {
                limit: vector.limit,
                start: Timestamp(vector.st),
                end: Timestamp(vector.en),
                cut: common_cut(Timestamp(vector.st), Span(vector.delta), &inputs),
                caution: 1_000,
                rounding_offset: 500_000,
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
            RegionInput { weight, reserve: weight, told, before, exact: None, lingering: 0 }
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
        }
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
            let inputs: Vec<_> = weights.iter().map(|&weight| RegionInput { weight, reserve: weight, told, before: limit, exact: None, lingering: 0 }).collect();
            let end = Timestamp(START + 366 * 24 * 3_600 * 1_000_000);
            let _ = budgets(DivisionInput { limit, end, ..second(limit) }, &inputs);
        }
    }
}
