//! The first start of a cluster: nothing can have been spent before it, if nobody knows of an earlier life.
//!
//! A daemon without a note on its disk, and with a store that remembers nothing, may be new, or may have lost
//! both. Only the others can tell: nobody spends anything before a daemon of every listed region has said the
//! same ([`super::Split::among`]). So a daemon takes this for the first start of all once every daemon of the
//! listed regions has said so of *these very processes*, and has noted it on its disk before.
//!
//! A process that begins after one that had spent something has another name, and nobody ever says so of two
//! sets of processes: it is new to nobody. And nobody begins, in whichever way, before all others have noted
//! that they are new no more: else somebody who never heard of the first process could vouch for the second.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::super::super::time::{Span, Timestamp};
use super::super::NodeName;

/// So long a daemon that is new waits for the others to say that all are. Then it begins as after a loss.
const PATIENCE: Span = Span::from_secs(30);

/// A daemon's word on its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub enum Birth {
    /// It may have had an earlier life, or has seen somebody who may.
    #[default]
    Known,
    /// It knows of no earlier life of anybody.
    New {
        /// Number that names the process of the daemon.
        life: u64,
    },
    /// The same, and these processes are all that there are. It never says so of others.
    First {
        /// Number that names the process of the daemon.
        life: u64,
        /// Names all processes of the listed regions.
        all: u64,
    },
}

impl Birth {
    const fn life(self) -> Option<u64> {
        match self {
            Self::Known => None,
            Self::New { life } | Self::First { life, .. } => Some(life),
        }
    }

    /// The word that travels; a daemon that says none is known.
    #[must_use]
    pub fn text(self) -> Option<String> {
        match self {
            Self::Known => None,
            Self::New { life } => Some(format!("new:{life}")),
            Self::First { life, all } => Some(format!("first:{life}:{all}")),
        }
    }

    /// Reads what [`Self::text`] wrote.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut parts = text.split(':');
        let word = parts.next();
        let (life, all) = (parts.next().map(str::parse), parts.next().map(str::parse));
        match (word, life, all) {
            (Some("new"), Some(Ok(life)), None) => Self::New { life },
            (Some("first"), Some(Ok(life)), Some(Ok(all))) => Self::First { life, all },
            _ => Self::Known,
        }
    }
}

/// The rules of a first start, each of which a test can switch off to show that it matters.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartSafety {
    /// A daemon does not take its own word for it.
    pub others_vouch: bool,
    /// A statement on one process is not made of the next.
    pub processes_are_named: bool,
}

impl StartSafety {
    /// Every rule in force.
    pub const ALL: Self = Self { others_vouch: true, processes_are_named: true };
}

/// The beginning of this daemon.
#[derive(Debug)]
pub(super) struct Beginning {
    birth: Birth,
    /// True if its store remembers nothing; `None`: it has not been asked.
    store_is_new: Option<bool>,
    /// Instant since which it waits for the others.
    since: Option<Timestamp>,
    /// True if this is the first start of all, once that is settled.
    is_first: Option<bool>,
    pub(super) safety: StartSafety,
}

impl Beginning {
    /// One that may have had an earlier life.
    pub(super) const fn known() -> Self {
        let birth = Birth::Known;
        Self { birth, store_is_new: None, since: None, is_first: None, safety: StartSafety::ALL }
    }

    /// Its process is `life`, and neither disk nor store tell of another.
    pub(super) const fn be_new(&mut self, life: u64) {
        self.birth = Birth::New { life };
    }

    pub(super) const fn birth(&self) -> Birth {
        self.birth
    }

    /// Names the first start of all, where this is it.
    pub(super) const fn first(&self) -> Option<u64> {
        match (self.is_first, self.birth) {
            (Some(true), Birth::First { all, .. }) => Some(all),
            _ => None,
        }
    }

    /// True if the store is to be asked whether it is new.
    pub(super) const fn asks_store(&self) -> bool {
        self.store_is_new.is_none() && matches!(self.birth, Birth::New { .. })
    }

    pub(super) const fn handle_store(&mut self, is_new: bool) {
        self.store_is_new = Some(is_new);
        if !is_new {
            self.be_known();
        }
    }

    /// It may have had an earlier life, or cannot note that it had none.
    pub(super) const fn be_known(&mut self) {
        if self.is_first.is_none() {
            self.birth = Birth::Known;
        }
    }

    /// Hears what others say of theirs. A daemon that has seen one that may have lived is new no more.
    pub(super) fn hear(&mut self, mut others: impl Iterator<Item = Birth>) {
        let new = matches!(self.birth, Birth::New { .. });
        if new && self.safety.others_vouch && others.any(|birth| birth == Birth::Known) {
            self.be_known();
        }
    }

    /// Every listed region has said the same. Returns whether this daemon may begin: it is settled how, and
    /// nobody is new any more, so that whoever comes back without its disk is known to the others. `others`
    /// are the daemons of the other listed regions, and its siblings.
    pub(super) fn settles(
        &mut self,
        now: Timestamp,
        own: &NodeName,
        others: &[(&NodeName, Option<Birth>)],
    ) -> bool {
        if self.is_first.is_none() {
            self.decide(now, own, others);
        }
        let noted = |birth: &Option<Birth>| birth.is_some_and(|birth| !matches!(birth, Birth::New { .. }));
        let all_noted = || others.iter().all(|(_, birth)| noted(birth)) || !self.safety.others_vouch;
        self.is_first.is_some_and(|_| all_noted())
    }

    fn decide(&mut self, now: Timestamp, own: &NodeName, others: &[(&NodeName, Option<Birth>)]) {
        if let Birth::New { life } = self.birth
            && !self.safety.others_vouch
        {
            (self.birth, self.is_first) = (Birth::First { life, all: life }, Some(true));
            return;
        }
        let vouched = others.iter().any(|(name, _)| name.region != own.region);
        let all = self.name_all(own, others).filter(|_| vouched);
        let said = |birth: &Option<Birth>| match birth {
            Some(Birth::First { all, .. }) => Some(*all),
            _ => None,
        };
        let since = *self.since.get_or_insert(now);
        let patient = now.since(since) < PATIENCE;
        match (self.birth, all) {
            (Birth::New { life }, Some(all)) if patient => {
                let differs = others.iter().filter_map(|(_, birth)| said(birth)).any(|other| other != all);
                if differs {
                    self.begin_known();
                } else if self.store_is_new == Some(true) {
                    self.birth = Birth::First { life, all };
                }
            }
            (Birth::First { all: own, .. }, Some(all)) if patient && own == all => {
                if others.iter().all(|(_, birth)| said(birth) == Some(all)) {
                    self.is_first = Some(true);
                }
            }
            _ => self.begin_known(),
        }
    }

    const fn begin_known(&mut self) {
        (self.birth, self.is_first) = (Birth::Known, Some(false));
    }

    /// Names all processes; `None`: some may have had an earlier life.
    fn name_all(&self, own: &NodeName, others: &[(&NodeName, Option<Birth>)]) -> Option<u64> {
        let mut all = vec![(own, self.birth.life()?)];
        for (name, birth) in others {
            all.push((name, birth.and_then(Birth::life)?));
        }
        all.sort_unstable();
        let mut hasher = SipHasher13::new_with_keys(0x7469_6465, 0x6269_7274);
        for (name, life) in all {
            for part in [&name.region, &name.node] {
                hasher.write_u64(part.len() as u64);
                hasher.write(part.as_bytes());
            }
            hasher.write_u64(if self.safety.processes_are_named { life } else { 0 });
        }
        Some(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_beginning_comes_back_and_anything_else_is_no_beginning() {
        for birth in [Birth::New { life: 7 }, Birth::First { life: 7, all: 9 }] {
            assert_eq!(Birth::read(&birth.text().unwrap()), birth);
        }
        assert_eq!(Birth::Known.text(), None);
        for text in ["", "new", "new:x", "new:1:2", "first:1", "first:1:x", "later:1"] {
            assert_eq!(Birth::read(text), Birth::Known, "{text}");
        }
    }
}
