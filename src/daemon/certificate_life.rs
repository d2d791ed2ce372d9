//! The stage of a certificate in its life, and the stages that were told: each once.

use crate::core::time::Timestamp;

/// So long before a certificate ends its operator is told.
const WARN_SECONDS: i64 = 30 * DAY_SECONDS;
/// A day.
pub(super) const DAY_SECONDS: i64 = 24 * 3_600;

/// The stages of a certificate's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CertificateStage {
    Holds,
    EndsSoon,
    Ended,
}

/// A certificate that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CertificateLife {
    /// End of the certificate, in seconds since the epoch.
    ends: i64,
    /// The last stage that was told.
    told: CertificateStage,
}

impl CertificateLife {
    /// One that ends then, of which nothing was told.
    pub(super) const fn new(ends: i64) -> Self {
        Self { ends, told: CertificateStage::Holds }
    }

    /// Returns when it ends, in seconds since the epoch.
    pub(super) const fn ends(&self) -> i64 {
        self.ends
    }

    /// Another one may be in force now. The same one, read again, is told no more than before.
    pub(super) fn replace(&mut self, ends: i64) {
        if ends != self.ends {
            *self = Self::new(ends);
        }
    }

    /// Seconds until it ends.
    pub(super) fn left(&self, now: Timestamp) -> i64 {
        self.ends.saturating_sub(i64::try_from(now.micros() / 1_000_000).unwrap_or(i64::MAX))
    }

    /// Returns how far it is.
    pub(super) fn stage(&self, now: Timestamp) -> CertificateStage {
        match self.left(now) {
            ..=0 => CertificateStage::Ended,
            1..WARN_SECONDS => CertificateStage::EndsSoon,
            _ => CertificateStage::Holds,
        }
    }

    /// The stage that it has reached and that is to be told now.
    pub(super) fn next_to_tell(&mut self, now: Timestamp) -> Option<CertificateStage> {
        let stage = self.stage(now);
        let reached = stage > self.told;
        if reached {
            self.told = stage;
        }
        reached.then_some(stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(day: i64) -> Timestamp {
        Timestamp(u64::try_from(day * DAY_SECONDS).unwrap() * 1_000_000)
    }

    #[test]
    fn each_stage_is_told_once_for_each_certificate() {
        let mut life = CertificateLife::new(100 * DAY_SECONDS);
        assert_eq!(life.next_to_tell(day(60)), None);
        assert_eq!(life.next_to_tell(day(71)), Some(CertificateStage::EndsSoon));
        assert_eq!(life.next_to_tell(day(72)), None);
        life.replace(100 * DAY_SECONDS);
        assert_eq!(life.next_to_tell(day(73)), None, "the same file was read again");
        assert_eq!(life.next_to_tell(day(100)), Some(CertificateStage::Ended));
        assert_eq!(life.next_to_tell(day(101)), None);
        assert_eq!(life.next_to_tell(day(60)), None, "a clock that went back");
        life.replace(200 * DAY_SECONDS);
        assert_eq!(life.next_to_tell(day(101)), None);
        assert_eq!(life.next_to_tell(day(200)), Some(CertificateStage::Ended), "nobody looked before");
        assert_eq!(life.next_to_tell(day(201)), None);
    }
}
