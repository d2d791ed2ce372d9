//! Faults between daemons, counted. Plain atomics: telemetry reads them, nothing here names a metric.

use std::sync::atomic::{AtomicU64, Ordering};

/// Reasons why something from or for a peer was refused or dropped. The words are metric labels, so there are
/// few and they are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A message of another version.
    Version,
    /// A message of an unknown kind.
    Kind,
    /// A message that cannot be read.
    Malformed,
    /// A message above its size, or with too many or too long parts.
    Oversize,
    /// Bytes after the end of a message.
    Trailing,
    /// A datagram that cannot be QUIC.
    Garbage,
    /// A certificate of another authority, expired, or none.
    Certificate,
    /// A certificate of our authority that does not name one region and node.
    Identity,
    /// Another protocol than ours was asked for.
    Protocol,
    /// A handshake that broke off.
    Handshake,
    /// More connections than are allowed at once, in all or from one peer.
    Connections,
    /// A member that says it is in a region or node that its certificate does not name.
    Impostor,
    /// A change of a region that no operator signed.
    Unsigned,
    /// More members or addresses than are kept.
    Members,
    /// A message for a peer whose queue was full: the oldest was dropped.
    QueueFull,
    /// A message for a peer that was not connected: the newest few are kept.
    Unconnected,
    /// A message for a peer that could not be written, or not in time.
    Unsent,
    /// A frame for a node that is not known.
    UnknownNode,
    /// A message received while the reader behind it was too slow.
    ReaderBusy,
    /// A handshake that took too long: one of the machines is short of processor time, or the way is lossy.
    SlowHandshake,
}

impl Refusal {
    /// Every reason, in the order of their counters.
    pub const ALL: [Self; 20] = [
        Self::Version,
        Self::Kind,
        Self::Malformed,
        Self::Oversize,
        Self::Trailing,
        Self::Garbage,
        Self::Certificate,
        Self::Identity,
        Self::Protocol,
        Self::Handshake,
        Self::Connections,
        Self::Impostor,
        Self::Unsigned,
        Self::Members,
        Self::QueueFull,
        Self::Unconnected,
        Self::Unsent,
        Self::UnknownNode,
        Self::ReaderBusy,
        Self::SlowHandshake,
    ];

    /// True if nothing was wrong with it but that there was no room or no way.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(
            self,
            Self::QueueFull
                | Self::Unconnected
                | Self::Unsent
                | Self::UnknownNode
                | Self::ReaderBusy
                | Self::SlowHandshake
        )
    }

    /// The word for a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Kind => "kind",
            Self::Malformed => "malformed",
            Self::Oversize => "oversize",
            Self::Trailing => "trailing",
            Self::Garbage => "garbage",
            Self::Certificate => "certificate",
            Self::Identity => "identity",
            Self::Protocol => "protocol",
            Self::Handshake => "handshake",
            Self::Connections => "connections",
            Self::Impostor => "impostor",
            Self::Unsigned => "unsigned",
            Self::Members => "members",
            Self::QueueFull => "queue_full",
            Self::Unconnected => "unconnected",
            Self::Unsent => "unsent",
            Self::UnknownNode => "unknown_node",
            Self::ReaderBusy => "reader_busy",
            Self::SlowHandshake => "slow_handshake",
        }
    }
}

/// One counter for each reason, since the start.
#[derive(Debug, Default)]
pub struct Counters {
    refused: [AtomicU64; Refusal::ALL.len()],
    gossip_restarts: AtomicU64,
}

impl Counters {
    /// Counts one.
    pub fn refuse(&self, why: Refusal) {
        self.refuse_many(why, 1);
    }

    /// Counts several.
    pub fn refuse_many(&self, why: Refusal, times: u64) {
        if let Some(counter) = self.refused.get(why as usize) {
            counter.fetch_add(times, Ordering::Relaxed);
        }
    }

    /// Returns how often this happened since the start.
    #[must_use]
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused.get(why as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Every reason with its count, for telemetry.
    pub fn all(&self) -> impl Iterator<Item = (Refusal, u64)> + '_ {
        Refusal::ALL.into_iter().map(|why| (why, self.refused(why)))
    }

    /// Counts a membership task that died and was started again.
    pub fn gossip_restarted(&self) {
        self.gossip_restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often the membership task died and was started again.
    #[must_use]
    pub fn gossip_restarts(&self) -> u64 {
        self.gossip_restarts.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_word() {
        let counters = Counters::default();
        for (nth, why) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, nth);
            counters.refuse_many(why, nth as u64 + 1);
        }
        for (nth, (_, count)) in counters.all().enumerate() {
            assert_eq!(count, nth as u64 + 1);
        }
        let words: std::collections::HashSet<_> = Refusal::ALL.iter().map(|why| why.as_str()).collect();
        assert_eq!(words.len(), Refusal::ALL.len());
    }
}
