//! Carries lookups out: many names in one call, few calls at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::lookups::{Lookups, Wanted};
use super::{BAR_TIME, Fact, IdentityName, LookupSettings, SHELF_TIME, Shelf, Source, shelved};
use crate::engine::clock::Stopwatch;
use crate::engine::tasks::Tasks;
use crate::telemetry::Metrics;

/// Most names in one call to the database.
const BATCH_MAX: usize = 256;
/// Most calls at once: a database with many daemons must not drown in them.
const CALLS_MAX: usize = 4;
/// Time for which a call that failed keeps its place, so that a database that is away is not asked all the
/// time.
const PAUSE: Duration = Duration::from_millis(250);

/// One call's work.
#[derive(Debug, Default)]
struct Batch {
    look: Vec<IdentityName>,
    again: Vec<IdentityName>,
    bar: Vec<IdentityName>,
}

impl Lookups {
    /// Begins to look people up in `source`, through `shelf` where there is one, until `stop`.
    #[must_use]
    pub fn start(
        settings: LookupSettings,
        source: Arc<dyn Source>,
        shelf: Option<Arc<dyn Shelf>>,
        metrics: &Metrics,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Self::start_in(&Tasks::default(), settings, source, shelf, metrics, stop)
    }

    /// The same, its task watched among these.
    #[must_use]
    pub fn start_in(
        tasks: &Tasks,
        settings: LookupSettings,
        source: Arc<dyn Source>,
        shelf: Option<Arc<dyn Shelf>>,
        metrics: &Metrics,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (lookups, wanted) = Self::new(settings, metrics);
        let (own, wanted, ending) = (Arc::clone(&lookups), Arc::new(Mutex::new(wanted)), stop.clone());
        tasks.spawn("identity_lookups", &stop, move || {
            run(Arc::clone(&own), Arc::clone(&source), shelf.clone(), Arc::clone(&wanted), ending.clone())
        });
        lookups
    }
}

struct Loader {
    lookups: Arc<Lookups>,
    source: Arc<dyn Source>,
    shelf: Option<Arc<dyn Shelf>>,
}

/// Runs until `stop`, or until nobody asks any more.
async fn run(
    lookups: Arc<Lookups>,
    source: Arc<dyn Source>,
    shelf: Option<Arc<dyn Shelf>>,
    queue: Arc<Mutex<mpsc::Receiver<Wanted>>>,
    stop: CancellationToken,
) {
    // Held for as long as the task lives; whoever comes after it waits for that.
    let mut queue = queue.lock().await;
    let loader = Arc::new(Loader { lookups, source, shelf });
    let calls = Arc::new(Semaphore::new(CALLS_MAX));
    let mut wanted = Vec::with_capacity(BATCH_MAX);
    loop {
        let taken = async {
            let permit = Arc::clone(&calls).acquire_owned().await.ok()?;
            let taken = queue.recv_many(&mut wanted, BATCH_MAX).await;
            (taken > 0).then_some(permit)
        };
        let permit = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            permit = taken => permit,
        };
        let Some(permit) = permit else { return };
        let mut batch = Batch::default();
        for one in wanted.drain(..) {
            match one {
                Wanted::Look(name) => batch.look.push(name),
                Wanted::Again(name) => batch.again.push(name),
                Wanted::Bar(name) => batch.bar.push(name),
            }
        }
        let (loader, stop) = (Arc::clone(&loader), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = loader.carry_out(batch) => {}
            }
            drop(permit);
        });
    }
}

impl Loader {
    async fn carry_out(&self, mut batch: Batch) {
        let watch = Stopwatch::start();
        let generation = self.lookups.generation();
        self.clear_shelf(&batch).await;
        let shelf = self.shelf.as_deref().filter(|_| self.lookups.trusts_shelf());
        let mut left = match shelf {
            Some(shelf) => self.land_shelved(shelf, std::mem::take(&mut batch.look), generation).await,
            None => std::mem::take(&mut batch.look),
        };
        let changed = batch.again.clone();
        left.append(&mut batch.again);
        if left.is_empty() {
            return;
        }
        // Not before: what lay on the shelf may be from before a change that was heard of meanwhile.
        left.iter().for_each(|name| self.lookups.look_ups.begin(name));
        match self.source.load(&left).await {
            Ok(facts) => {
                self.lookups.metrics.from_database.increment(u64::try_from(left.len()).unwrap_or(u64::MAX));
                self.lookups.took(Some(watch.elapsed()));
                let kept = self.land(left, facts, generation);
                if let Some(shelf) = shelf.filter(|_| !kept.is_empty()) {
                    shelf.keep(&kept, SHELF_TIME).await;
                }
            }
            Err(error) => {
                self.lookups.metrics.failed.increment(u64::try_from(left.len()).unwrap_or(u64::MAX));
                self.lookups.took(None);
                tracing::debug!(%error, names = left.len(), "people were not looked up");
                let missed = self.missed(left, &changed);
                tokio::time::sleep(PAUSE).await;
                for name in missed {
                    self.lookups.send(Wanted::Again(name));
                }
            }
        }
    }

    /// Ends the flights of a call that failed, but for those of held facts that changed: these are outdated
    /// until they are read, and given back to be read again.
    fn missed(&self, mut left: Vec<IdentityName>, changed: &[IdentityName]) -> Vec<IdentityName> {
        let look_ups = &self.lookups.look_ups;
        for name in changed {
            look_ups.taint(name);
        }
        left.retain(|name| {
            if look_ups.finish(name) {
                return false;
            }
            let is_held = self.lookups.outdate(name);
            if !is_held {
                look_ups.fail(name);
            }
            is_held
        });
        left
    }

    async fn clear_shelf(&self, batch: &Batch) {
        let Some(shelf) = self.shelf.as_deref() else { return };
        let barred: Vec<String> =
            batch.again.iter().chain(&batch.bar).map(|name| shelved::name(name.as_ref())).collect();
        if barred.is_empty() {
            return;
        }
        if !shelf.bar(&barred, BAR_TIME).await {
            tracing::debug!(names = barred.len(), "the shelf of people was not cleared of what changed");
            self.lookups.distrust_shelf();
        }
        // Whoever asked for them meanwhile may have found them on the shelf.
        for name in &batch.bar {
            self.lookups.look_ups.taint(name);
            self.lookups.outdate(name);
        }
    }

    /// Lands what lies on the shelf; gives back the names of what does not.
    async fn land_shelved(
        &self,
        shelf: &dyn Shelf,
        look: Vec<IdentityName>,
        generation: u64,
    ) -> Vec<IdentityName> {
        if look.is_empty() {
            return look;
        }
        let watch = Stopwatch::start();
        let names: Vec<String> = look.iter().map(|name| shelved::name(name.as_ref())).collect();
        let mut lying = shelf.fetch(&names).await;
        lying.resize(look.len(), None);
        let mut left = Vec::new();
        for (name, bytes) in look.into_iter().zip(lying) {
            match bytes.and_then(|bytes| shelved::read(name.as_ref(), &bytes)) {
                Some(fact) => {
                    self.lookups.metrics.from_shelf.increment(1);
                    self.lookups.took(Some(watch.elapsed()));
                    self.land_one(name, fact, generation);
                }
                None => left.push(name),
            }
        }
        left
    }

    /// Lands what was read; gives back what may be put on the shelf.
    fn land(
        &self,
        names: Vec<IdentityName>,
        facts: Vec<(IdentityName, Fact)>,
        generation: u64,
    ) -> Vec<(String, Vec<u8>)> {
        let mut facts: HashMap<IdentityName, Fact> = facts.into_iter().collect();
        let mut kept = Vec::with_capacity(names.len());
        for name in names {
            let fact = facts.remove(&name).unwrap_or(Fact::absent(name.kind));
            let shelved = (shelved::name(name.as_ref()), shelved::write(&fact));
            if self.land_one(name, fact, generation) && self.shelf.is_some() {
                kept.push(shelved);
            }
        }
        kept
    }

    /// Takes up a fact and tells who waits for it; `false` if somebody changed meanwhile, and it is looked up
    /// again.
    fn land_one(&self, name: IdentityName, fact: Fact, generation: u64) -> bool {
        self.lookups.keep(name.clone(), fact, generation);
        let landed = self.lookups.look_ups.finish(&name);
        if !landed {
            self.lookups.send(Wanted::Again(name));
        }
        landed
    }
}
