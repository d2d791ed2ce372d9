//! The rules of the protocol, each left out once: its name, and all rules but that one. A world in which it
//! is missed must notice.

use tidegate_core::regions::GossipSafety;
use tidegate_core::regions::escrow::EscrowSafety;
use tidegate_core::regions::split::StartSafety;

const ESCROW: EscrowSafety = EscrowSafety::ALL;
const GOSSIP: GossipSafety = GossipSafety::ALL;

/// The switches of rights of windows.
pub(crate) const OF_WINDOWS: [(&str, EscrowSafety); 6] = [
    ("gives_only_what_is_free", EscrowSafety { gives_only_what_is_free: false, ..ESCROW }),
    ("takes_are_cumulative", EscrowSafety { takes_are_cumulative: false, ..ESCROW }),
    ("sessions_are_fenced", EscrowSafety { sessions_are_fenced: false, ..ESCROW }),
    ("windows_are_labels", EscrowSafety { windows_are_labels: false, ..ESCROW }),
    ("doubt_is_burnt", EscrowSafety { doubt_is_burnt: false, ..ESCROW }),
    ("debits_before_credits", EscrowSafety { debits_before_credits: false, ..ESCROW }),
];

/// The switches that only buckets without windows need.
pub(crate) const OF_LEVELS: [(&str, EscrowSafety); 2] = [
    ("forwarded_stays_charged", EscrowSafety { forwarded_stays_charged: false, ..ESCROW }),
    ("kept_stays_charged", EscrowSafety { kept_stays_charged: false, ..ESCROW }),
];

/// The switches of places that are lent.
pub(crate) const OF_PLACES: [(&str, EscrowSafety); 9] = [
    ("gives_only_what_is_free", EscrowSafety { gives_only_what_is_free: false, ..ESCROW }),
    ("takes_are_cumulative", EscrowSafety { takes_are_cumulative: false, ..ESCROW }),
    ("sessions_are_fenced", EscrowSafety { sessions_are_fenced: false, ..ESCROW }),
    ("doubt_is_burnt", EscrowSafety { doubt_is_burnt: false, ..ESCROW }),
    ("debits_before_credits", EscrowSafety { debits_before_credits: false, ..ESCROW }),
    ("lends_only_its_own", EscrowSafety { lends_only_its_own: false, ..ESCROW }),
    ("loans_lapse", EscrowSafety { loans_lapse: false, ..ESCROW }),
    ("lost_loans_are_burnt", EscrowSafety { lost_loans_are_burnt: false, ..ESCROW }),
    ("gives_back_only_what_is_counted", EscrowSafety { gives_back_only_what_is_counted: false, ..ESCROW }),
];

/// The switches of stores that are full.
pub(crate) const OF_FULL_STORES: [(&str, EscrowSafety); 1] =
    [("never_forgets_for_room", EscrowSafety { never_forgets_for_room: false, ..ESCROW })];

/// The switches of stores that are left to the next process.
pub(crate) const OF_KEPT_STORES: [(&str, EscrowSafety); 1] =
    [("seals_what_is_left", EscrowSafety { seals_what_is_left: false, ..ESCROW })];

/// The switches of marks, by which a store that is lost is known to have spent no more.
pub(crate) const OF_MARKS: [(&str, EscrowSafety); 3] = [
    ("spends_only_below_the_mark", EscrowSafety { spends_only_below_the_mark: false, ..ESCROW }),
    ("marks_go_on_above_what_was_lost", EscrowSafety { marks_go_on_above_what_was_lost: false, ..ESCROW }),
    ("marks_have_a_beginning", EscrowSafety { marks_have_a_beginning: false, ..ESCROW }),
];

/// The switches of buckets whose rights do not move, as with sliding algorithms.
pub(crate) const OF_SLIDING: [(&str, EscrowSafety); 1] =
    [("doubt_is_burnt", EscrowSafety { doubt_is_burnt: false, ..ESCROW })];

/// The switches of requests that wait.
pub(crate) const OF_WAITS: [(&str, EscrowSafety); 1] =
    [("says_who_is_dry", EscrowSafety { says_who_is_dry: false, ..ESCROW })];

/// The switches of `gossip`, in cuts and over restarts.
pub(crate) const OF_CUTS: [(&str, GossipSafety); 4] = [
    ("divides_levels", GossipSafety { divides_levels: false, ..GOSSIP }),
    ("corrects_levels", GossipSafety { corrects_levels: false, ..GOSSIP }),
    ("notices_who_is_deaf", GossipSafety { notices_who_is_deaf: false, ..GOSSIP }),
    ("hears_former", GossipSafety { hears_former: false, ..GOSSIP }),
];

/// The switches of what is denied in a cut.
pub(crate) const OF_DENIAL: [(&str, GossipSafety); 2] = [
    ("divides_levels", GossipSafety { divides_levels: false, ..GOSSIP }),
    ("notices_who_is_deaf", GossipSafety { notices_who_is_deaf: false, ..GOSSIP }),
];

/// The switches of replicas whose table of buckets is full.
pub(crate) const OF_FULL_TABLES: [(&str, GossipSafety); 2] = [
    ("keeps_to_shares", GossipSafety { keeps_to_shares: false, ..GOSSIP }),
    ("leaves_shares", GossipSafety { leaves_shares: false, ..GOSSIP }),
];

/// The switches of what is said of the others' use.
pub(crate) const OF_BOUNDS: [(&str, GossipSafety); 3] = [
    ("doubts_what_is_late", GossipSafety { doubts_what_is_late: false, ..GOSSIP }),
    ("counts_all_given", GossipSafety { counts_all_given: false, ..GOSSIP }),
    ("leaves_allowances", GossipSafety { leaves_allowances: false, ..GOSSIP }),
];

/// The switches of a cluster's first start.
pub(crate) const OF_STARTS: [(&str, StartSafety); 2] = [
    ("others_vouch", StartSafety { others_vouch: false, ..StartSafety::ALL }),
    ("processes_are_named", StartSafety { processes_are_named: false, ..StartSafety::ALL }),
];
