//! A limit while regions are cut off, or do not tell of all buckets: how much of it is kept for those, and
//! who divides the rest.
//!
//! `Regions::judge` (`regions/membership.rs`) says which region is cut off, by the patience of `delays.rs`.

use smallvec::SmallVec;

use crate::regions::WorldRule;
use crate::regions::membership::{Region, RegionId, Regions};
use crate::rule::OnPartition;

/// Weights are taken this many times, so that a region of weight zero still has the smallest part of a scrap.
const SCALE: u64 = 1_000;

/// The regions that take part in a division, by name, with their weights.
pub(super) type Parties = SmallVec<[(RegionId, u64); 4]>;

/// The regions that divide a limit in a cut, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartitionPlan {
    /// Permits to be divided among the parties.
    pub(super) limit: u64,
    pub(super) parties: Parties,
    /// Parties that are silent: their last words stand.
    pub(super) silent: SmallVec<[RegionId; 2]>,
    /// True if all regions take part and speak.
    pub(super) whole: bool,
}

/// Works out who divides how much of a rule's limit. `admitted` and `given` say what a region that is silent,
/// or listed no more, was last known to have admitted, and what the last common cut gave it.
pub(super) fn plan(
    rule: &WorldRule,
    regions: &Regions,
    admitted: impl Fn(RegionId) -> u64,
    given: impl Fn(RegionId) -> Option<u64>,
) -> PartitionPlan {
    // A region that was taken out of the list has used what it used before.
    let gone = regions.unlisted().map(&admitted).fold(0, u64::saturating_add);
    let limit = u64::from(rule.limit.permits).saturating_sub(gone);
    let all: Parties = regions.by_name().map(|id| (id, weight(rule, regions.name(id)))).collect();
    let silent = |id: RegionId| regions.get(id).is_some_and(|region| region.cut_off);
    let mute: SmallVec<[RegionId; 2]> = all.iter().map(|&(id, _)| id).filter(|&id| silent(id)).collect();
    let crowded = |id: RegionId| regions.is_crowded(id, &rule.name);
    let none_is_crowded = !all.iter().any(|&(id, _)| crowded(id));
    if none_is_crowded && (rule.global.on_partition == OnPartition::LastKnown || mute.is_empty()) {
        return PartitionPlan { limit, parties: all, whole: mute.is_empty(), silent: mute };
    }
    let share = shares(limit, &all);
    let (mut parties, mut silent_parties) = (Parties::new(), SmallVec::new());
    // The use of regions that are heard is known all the time, and they divide what they keep among
    // themselves: together they count once. Nobody knows on which side a silent one is.
    let (mut kept, mut kept_of_deaf, mut known_of_deaf) = (0_u64, 0_u64, 0_u64);
    for (&(id, weight), share) in all.iter().zip(share) {
        let due = match rule.global.on_partition {
            OnPartition::Share if silent(id) => share,
            OnPartition::Freeze if silent(id) => given(id).unwrap_or(share),
            OnPartition::Ignore if silent(id) => 0,
            OnPartition::Deny if silent(id) => limit,
            _ if crowded(id) => share,
            _ => {
                parties.push((id, weight));
                silent_parties.extend(silent(id).then_some(id));
                continue;
            }
        };
        let known = admitted(id);
        if regions.get(id).is_some_and(|region| region.deaf) {
            kept_of_deaf = kept_of_deaf.saturating_add(due);
            known_of_deaf = known_of_deaf.saturating_add(known);
        } else {
            kept = kept.saturating_add(due.max(known));
        }
    }
    let kept = kept.saturating_add(kept_of_deaf.max(known_of_deaf));
    PartitionPlan { limit: limit.saturating_sub(kept), parties, silent: silent_parties, whole: false }
}

/// The regions that divide a bucket without windows in a cut, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LevelPartitionPlan {
    /// Permits of the limit that are divided on this side.
    pub(super) permits: u64,
    /// Regions of this side, among which `permits` are divided.
    pub(super) parties: Parties,
    /// The others, which are cut off or were until just now, or keep to their shares for want of room: a bit
    /// for each [`RegionId`].
    pub(super) apart: u64,
}

/// Works out who divides how much of a level and its refill. `by_demand` divides the limit among all by what
/// each asked for last. Nobody remembers what the last division gave, so `freeze` is `share`.
pub(super) fn sides(
    rule: &WorldRule,
    regions: &Regions,
    by_demand: impl FnOnce(&Parties) -> Vec<u64>,
) -> LevelPartitionPlan {
    let limit = u64::from(rule.limit.permits);
    let all: Parties = regions.by_name().map(|id| (id, weight(rule, regions.name(id)))).collect();
    let is_cut_off = |id: RegionId| regions.get(id).is_some_and(Region::is_apart);
    let is_apart = |id: RegionId| is_cut_off(id) || regions.is_crowded(id, &rule.name);
    let apart = all.iter().filter(|(id, _)| is_apart(*id)).fold(0, |mask, (id, _)| mask | bit(*id));
    if apart == 0 {
        return LevelPartitionPlan { permits: limit, parties: all, apart };
    }
    let share = shares(limit, &all);
    let by_demand = match rule.global.on_partition {
        OnPartition::LastKnown => by_demand(&all),
        _ => Vec::new(),
    };
    let kept_for = |place: usize, id: RegionId| -> u64 {
        let share = share.get(place).copied().unwrap_or(0);
        match rule.global.on_partition {
            _ if !is_cut_off(id) => share,
            OnPartition::Share | OnPartition::Freeze => share,
            OnPartition::LastKnown => by_demand.get(place).copied().unwrap_or(0),
            OnPartition::Ignore => 0,
            OnPartition::Deny => limit,
        }
    };
    let others = all.iter().enumerate().filter(|(_, (id, _))| is_apart(*id));
    let kept = others.map(|(place, &(id, _))| kept_for(place, id)).fold(0, u64::saturating_add);
    let parties = all.iter().copied().filter(|&(id, _)| !is_apart(id)).collect();
    LevelPartitionPlan { permits: limit.saturating_sub(kept), parties, apart }
}

/// The bit of a region in a set of them.
pub(super) const fn bit(region: RegionId) -> u64 {
    if region < 64 { 1 << region } else { 0 }
}

fn weight(rule: &WorldRule, region: &str) -> u64 {
    if rule.global.shares.is_empty() {
        return 1;
    }
    let share = rule.global.shares.iter().find(|(name, _)| name == region).map_or(0, |(_, weight)| *weight);
    u64::from(share).saturating_mul(SCALE).max(1)
}

/// The fixed shares of a limit by weight: the largest remainders get the permits that do not divide.
fn shares(limit: u64, parties: &[(RegionId, u64)]) -> SmallVec<[u64; 4]> {
    let sum = parties.iter().map(|&(_, weight)| u128::from(weight)).sum::<u128>().max(1);
    let exact = |weight: u64| u128::from(limit) * u128::from(weight);
    let floor = |weight: u64| u64::try_from(exact(weight) / sum).unwrap_or(limit);
    let mut shares: SmallVec<[u64; 4]> = parties.iter().map(|&(_, weight)| floor(weight)).collect();
    let mut rest = limit.saturating_sub(shares.iter().sum());
    let mut order: SmallVec<[usize; 4]> = (0..parties.len()).collect();
    order.sort_by_key(|&place| {
        std::cmp::Reverse(parties.get(place).map_or(0, |&(_, weight)| exact(weight) % sum))
    });
    for place in order {
        if rest == 0 {
            break;
        }
        if let Some(share) = shares.get_mut(place) {
            *share += 1;
            rest -= 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_limit() {
        for (limit, weights) in
            [(100, vec![1, 1, 1]), (7, vec![5, 3, 1]), (0, vec![1]), (2, vec![1, 1, 1, 1])]
        {
            let parties: Parties = weights.into_iter().enumerate().collect();
            assert_eq!(shares(limit, &parties).iter().sum::<u64>(), limit);
        }
    }

    #[test]
    fn the_largest_remainder_gets_the_odd_permit() {
        let parties: Parties = [(0, 1), (1, 1), (2, 2)].into_iter().collect();
        assert_eq!(shares(10, &parties).to_vec(), [3, 2, 5]);
    }
}
