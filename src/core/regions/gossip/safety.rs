//! Rules of the protocol that simulations switch off, to see that it is noticed.

/// Rules of `gossip` that each keep a promise. Simulations switch them off one by one, to see that it is
/// noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one switch for each rule")]
pub struct GossipSafety {
    /// In a cut the level of a bucket without windows is divided between the sides.
    pub divides_levels: bool,
    /// A region that uses more of a level than was assumed here to be left shows that it was there.
    pub corrects_levels: bool,
    /// A region that does not hear this one is cut off, as one that is not heard.
    pub notices_who_is_deaf: bool,
    /// After something came late or was lost, every other region may have used the whole limit.
    pub doubts_what_is_late: bool,
    /// A region may have used, since it told, all that it was given lately, also what was taken back since.
    pub counts_all_given: bool,
    /// The others' knowledge of a daemon's former life is used.
    pub hears_former: bool,
    /// A new daemon leaves a store that outlived the last one the allowances that it had, until the others
    /// know of it.
    pub leaves_allowances: bool,
    /// A region that lacks room for buckets in use keeps to its share of their rules.
    pub keeps_to_shares: bool,
    /// A region that says it lacks room is left its share by those that have room.
    pub leaves_shares: bool,
}

impl GossipSafety {
    /// All of them.
    pub const ALL: Self = Self {
        divides_levels: true,
        corrects_levels: true,
        notices_who_is_deaf: true,
        doubts_what_is_late: true,
        counts_all_given: true,
        hears_former: true,
        leaves_allowances: true,
        keeps_to_shares: true,
        leaves_shares: true,
    };
}
