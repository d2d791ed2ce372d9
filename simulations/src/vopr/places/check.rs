//! What must hold in a world of holders at every step, and after peace.

use tidegate::core::hold::{Hold, HoldStep, Holder};
use tidegate::core::regions::escrow::slides;

use super::{FLYING_MAX, LOOK_STEPS, Region, World};
use crate::virtual_world::{RightsHost, Seat};

/// So long all places may take to come to one region: whoever was refused before wants its own for two
/// seconds more, and then come a few round trips.
pub(super) const GATHER_STEPS: u64 = 500;

impl World<'_> {
    /// How many places of a user's bucket have holders, whoever remembers them, by region.
    fn held(&self, user: usize) -> Vec<u64> {
        let of = |(at, seat): (usize, &Seat<RightsHost<Region>>)| {
            let region = &seat.node.store;
            let now = self.world.clock(at);
            let known = region.holders.iter().filter(|one| one.0 == user && one.3 > now).map(|one| one.2);
            let ghosts = region.ghosts.iter().filter(|one| one.0 == user && one.2 > now).map(|one| one.1);
            known.chain(ghosts).sum()
        };
        self.regions().iter().enumerate().map(of).collect()
    }

    /// Who has a user's places, for who reads of a failure.
    pub(super) fn places_of(&self, user: usize) -> String {
        let of = |(at, seat): (usize, &Seat<RightsHost<Region>>)| {
            let region = &seat.node.store;
            let Some(balance) = region.vaults.get(user).map(|vault| vault.balance(self.world.clock(at)))
            else {
                return String::new();
            };
            let ledger = &balance.ledger;
            let pairs = ledger.given().zip(ledger.taken());
            let totals: Vec<String> =
                pairs.map(|(given, taken)| format!("{}/{}", given.permits, taken.permits)).collect();
            let (own, capacity) = (ledger.minted(), ledger.budget());
            format!("r{at} owns {own}, may hold {capacity}, holds {}, gave and took {totals:?}", balance.used)
        };
        self.regions().iter().enumerate().map(of).collect::<Vec<_>>().join("; ")
    }

    /// The invariants, at every step.
    pub(super) fn check(&mut self) -> Result<(), String> {
        for at in 0..self.regions().len() {
            let now = self.world.clock(at);
            // Who was over once is over, also if the clock is set back.
            if let Some(region) = self.region_mut(at) {
                region.holders.retain(|one| one.3 > now);
                region.ghosts.retain(|one| one.2 > now);
            }
        }
        self.judge_what_slides()?;
        for user in 0..self.users() {
            let held = self.held(user);
            let sum: u64 = held.iter().sum();
            if sum > u64::from(self.case.limit) {
                return Err(format!(
                    "{sum} places of {} have holders, by region {held:?}, of user {user}",
                    self.case.limit
                ));
            }
        }
        self.steps += 1;
        if self.steps.is_multiple_of(LOOK_STEPS) {
            self.lent_is_owned()?;
        }
        if self.world.network.flying().len() > FLYING_MAX {
            return Err(format!("{} messages are under way", self.world.network.flying().len()));
        }
        Ok(())
    }

    /// What was taken was given, and no more is lent than there is.
    fn lent_is_owned(&self) -> Result<(), String> {
        for user in 0..self.users() {
            let balances: Vec<_> = (0..self.regions().len())
                .filter_map(|at| Some(self.region(at)?.vaults.get(user)?.balance(self.world.clock(at))))
                .collect();
            for (one, balance) in balances.iter().enumerate() {
                let Some(ledger) = balance.ledger.as_places() else { continue };
                for taken in balance.ledger.taken() {
                    let giver = balances.iter().enumerate().find(|(at, _)| format!("r{at}") == taken.region);
                    let Some((_, other)) = giver.filter(|(_, other)| other.ledger.session() == taken.session)
                    else {
                        continue;
                    };
                    let uncounted = ledger.partner(taken.region).is_some_and(|partner| partner.is_uncounted);
                    let given = other.ledger.given_to(&format!("r{one}"), ledger.session);
                    if taken.permits > given && !uncounted {
                        return Err(format!(
                            "r{one} took {} of {given} places that {} gave, of user {user}",
                            taken.permits, taken.region
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Every holder of a user's places in a region does this.
    fn all(&mut self, at: usize, user: usize, step: HoldStep) {
        let known: Vec<Holder> = self.region(at).map_or_else(Vec::new, |region| {
            region.holders.iter().filter(|one| one.0 == user).map(|one| one.1).collect()
        });
        for holder in known {
            self.hold(at, user, Hold { step, holder, places: 0 });
        }
    }

    /// After peace and silence, each region in turn can have all of the places, whatever its share.
    pub(super) fn everyone_serves(&mut self) -> Result<(), String> {
        let limit = u64::from(self.case.limit);
        // What was under way when a share shrank below what is lent stays there.
        if self.case.reshare > 0.0 {
            return Ok(());
        }
        if slides(self.case.algorithm) {
            return self.everyone_is_admitted();
        }
        for at in 0..self.regions().len() {
            for user in 0..self.users() {
                let mut own = 0;
                for step in 0..GATHER_STEPS {
                    // Asked for faster than they are given, and given up only by time.
                    for _ in 0..limit.div_ceil(10).max(1) {
                        self.acquire(at, user, 1);
                    }
                    // Often enough that nobody's hold ends.
                    if step % 10 == 0 {
                        self.all(at, user, HoldStep::Renew);
                    }
                    self.step()?;
                    own = self.held(user).get(at).copied().unwrap_or(0);
                    if own == limit {
                        break;
                    }
                }
                if own < limit {
                    let where_they_are = self.places_of(user);
                    return Err(format!(
                        "r{at} has {own} of {limit} places of user {user} that nobody else wants: {where_they_are}"
                    ));
                }
                self.all(at, user, HoldStep::Release);
            }
        }
        Ok(())
    }
}
