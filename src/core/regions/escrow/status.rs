//! What the machine can say of the world's rights, for operators and metrics.

use std::collections::BTreeMap;

use super::super::super::time::Timestamp;
use super::super::super::wire::RuleName;
use super::super::WorldKey;
use super::Escrow;

use super::ledger::StepResult;
use super::totals::MovedRights;

/// What the machine has seen since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EscrowTally {
    /// Frames taken in.
    pub frames_in: u64,
    /// Frames handed out.
    pub frames_out: u64,
    /// Statements and transfers taken in.
    pub entries_in: u64,
    /// Statements and transfers handed out.
    pub entries_out: u64,
    /// Rights taken out for other regions.
    pub given: u64,
    /// Rights of other regions taken in.
    pub taken: u64,
    /// Transfers that were meant for a memory that was lost.
    pub fenced: u64,
    /// Statements and transfers of other windows.
    pub other_windows: u64,
    /// Transfers of what their sender was given by a third region that has not told of it here yet: they come
    /// again.
    pub early: u64,
    /// Transfers of more than their sender can have.
    pub beyond: u64,
    /// Statements and transfers of rules that are not known here, or count in another way here.
    pub unknown_rules: u64,
    /// Buckets that were not followed for want of room; they keep their static shares.
    pub no_room: u64,
}

/// What the machine knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscrowStatus {
    /// All of each rule's buckets together, in the order of the rules' names.
    pub rules: Vec<EscrowRule>,
    /// Buckets followed.
    pub keys_len: usize,
    /// Rights that were given and not yet acknowledged, in all buckets.
    pub under_way: u64,
    /// Buckets whose window began before the store's memory did.
    pub in_doubt: usize,
    /// Statements and transfers that wait to be sent.
    pub backlog: usize,
    /// Counters since the start.
    pub tally: EscrowTally,
}

/// The rights of one rule in this region: of all its buckets that are followed, as the store last told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EscrowRule {
    /// The rule's name.
    pub rule: String,
    /// Buckets followed.
    pub buckets: usize,
    /// What this region mints for them; without windows, what their levels hold at most.
    pub minted: u64,
    /// What could be spent at once.
    pub free: u64,
    /// What was given to others, and is not known to have arrived.
    pub under_way: u64,
    /// Buckets of which rights are burnt: the memory of the store began too late to know what was spent of
    /// them.
    pub in_doubt: usize,
    /// What was given to each other region: in the window, or without windows since the ledger began.
    pub given: BTreeMap<String, u64>,
    /// What was taken from each; see `given`.
    pub taken: BTreeMap<String, u64>,
}

impl EscrowRule {
    fn add(&mut self, balance: &StepResult, share: u64, under_way: u64) {
        let ledger = &balance.ledger;
        self.buckets += 1;
        self.minted = self.minted.saturating_add(ledger.minted());
        self.free = self.free.saturating_add(balance.free());
        self.under_way = self.under_way.saturating_add(under_way);
        self.in_doubt += usize::from(ledger.is_recovering(share));
        add_up(ledger.given(), &mut self.given);
        add_up(ledger.taken(), &mut self.taken);
    }
}

fn add_up<'l>(totals: impl Iterator<Item = MovedRights<'l>>, sums: &mut BTreeMap<String, u64>) {
    for total in totals {
        let sum = sums.entry(total.region.to_owned()).or_default();
        *sum = sum.saturating_add(total.permits);
    }
}

impl Escrow {
    /// What this machine knows at `now`.
    #[must_use]
    pub fn status(&self, now: Timestamp) -> EscrowStatus {
        let mut rules: BTreeMap<&RuleName, EscrowRule> =
            self.rules.keys().map(|rule| (rule, EscrowRule::default())).collect();
        for (key, id) in &self.index {
            let Some(bucket) = self.bucket(*id) else { continue };
            let Some((balance, rule)) = bucket.current(now).zip(rules.get_mut(&key.rule)) else { continue };
            let under_way =
                bucket.partners().map(|(region, partner)| self.under_way(balance, partner, region));
            rule.add(balance, bucket.rule.minted(self.own_region()), under_way.fold(0, u64::saturating_add));
        }
        let rules: Vec<EscrowRule> =
            rules.into_iter().map(|(name, rule)| EscrowRule { rule: name.name.clone(), ..rule }).collect();
        EscrowStatus {
            keys_len: self.index.len(),
            under_way: rules.iter().map(|rule| rule.under_way).fold(0, u64::saturating_add),
            in_doubt: rules.iter().map(|rule| rule.in_doubt).sum(),
            rules,
            backlog: self.links.values().map(super::EscrowLink::backlog).sum(),
            tally: self.tally,
        }
    }

    /// Counters since the start.
    #[must_use]
    pub const fn tally(&self) -> EscrowTally {
        self.tally
    }

    /// Whether another region is believed to hold rights of a bucket, so that some may be on their way here.
    #[must_use]
    pub fn others_hold(&self, now: Timestamp, key: &WorldKey) -> bool {
        let Some(bucket) = self.index.get(key).and_then(|id| self.bucket(*id)) else { return false };
        let kind = bucket.kind_at(now);
        (1..self.regions.len()).any(|region| {
            let audible = self.heard(region).is_some_and(|heard| now.since(heard).0 < 2_000_000);
            let partner = bucket.partner(region).filter(|partner| partner.kind() == kind);
            audible && partner.is_none_or(|partner| partner.free > 0)
        })
    }
}
