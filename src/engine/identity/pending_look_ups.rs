//! Lookups that are under way: one for each name, however many wait for it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{IdentityName, NameRef};

/// Most names under way. More are not looked up now: their requests are decided without, and the next one
/// tries again.
pub(super) const FLIGHTS_MAX: usize = 20_000;

/// The lookups under way.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    open: Mutex<HashMap<IdentityName, PendingLookUp, foldhash::fast::RandomState>>,
}

#[derive(Debug)]
struct PendingLookUp {
    landed: CancellationToken,
    began: Duration,
    /// Somebody changed since it was read, perhaps: look again.
    again: bool,
}

/// The outcome of asking for a flight.
#[derive(Debug)]
pub(super) enum Joined {
    /// It is new: somebody has to carry it out.
    New(CancellationToken),
    /// It was there already, since then.
    Already(CancellationToken, Duration),
    /// There is no room.
    Full,
}

impl LookUps {
    fn open(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<IdentityName, PendingLookUp, foldhash::fast::RandomState>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the flight of this name, or opens one.
    pub(super) fn join(&self, name: NameRef<'_>, now: Duration) -> Joined {
        let mut open = self.open();
        let owned = name.to_owned();
        if let Some(flight) = open.get(&owned) {
            return Joined::Already(flight.landed.clone(), flight.began);
        }
        if open.len() >= FLIGHTS_MAX {
            return Joined::Full;
        }
        let landed = CancellationToken::new();
        open.insert(owned, PendingLookUp { landed: landed.clone(), began: now, again: false });
        Joined::New(landed)
    }

    /// Marks what is on the way, which may be outdated on arrival. Returns whether there is such a flight.
    pub(super) fn taint(&self, name: &IdentityName) -> bool {
        self.open().get_mut(name).map(|flight| flight.again = true).is_some()
    }

    /// The same for every flight.
    pub(super) fn taint_all(&self) {
        self.open().values_mut().for_each(|flight| flight.again = true);
    }

    /// Before it is carried out: what changed until now is in what will be read.
    pub(super) fn begin(&self, name: &IdentityName) {
        if let Some(flight) = self.open().get_mut(name) {
            flight.again = false;
        }
    }

    /// Ends a flight, unless it must be flown again: then `false`, and nobody is told yet.
    pub(super) fn finish(&self, name: &IdentityName) -> bool {
        let mut open = self.open();
        if open.get(name).is_some_and(|flight| flight.again) {
            return false;
        }
        if let Some(flight) = open.remove(name) {
            flight.landed.cancel();
        }
        true
    }

    /// Ends a flight that brought nothing.
    pub(super) fn fail(&self, name: &IdentityName) {
        if let Some(flight) = self.open().remove(name) {
            flight.landed.cancel();
        }
    }

    /// Returns how many are under way.
    pub(super) fn len(&self) -> usize {
        self.open().len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn one_look_up_serves_all_who_ask_and_is_made_again_when_tainted() {
        let look_ups = LookUps::default();
        let name = NameRef { kind: Kind::User, id: "u" };
        assert!(matches!(look_ups.join(name, Duration::ZERO), Joined::New(_)));
        let Joined::Already(landed, began) = look_ups.join(name, Duration::from_secs(1)) else {
            panic!("not joined")
        };
        assert_eq!(began, Duration::ZERO);
        look_ups.begin(&name.to_owned());
        assert!(look_ups.taint(&name.to_owned()));
        assert!(!look_ups.finish(&name.to_owned()) && !landed.is_cancelled());
        look_ups.begin(&name.to_owned());
        assert!(look_ups.finish(&name.to_owned()) && landed.is_cancelled());
        assert_eq!(look_ups.len(), 0);
        assert!(!look_ups.taint(&name.to_owned()));
    }

    #[test]
    fn there_is_only_so_much_room() {
        let look_ups = LookUps::default();
        for id in 0..FLIGHTS_MAX {
            let id = id.to_string();
            assert!(matches!(
                look_ups.join(NameRef { kind: Kind::Key, id: &id }, Duration::ZERO),
                Joined::New(_)
            ));
        }
        assert!(matches!(look_ups.join(NameRef { kind: Kind::Key, id: "x" }, Duration::ZERO), Joined::Full));
    }
}
