//! The store that a daemon counts in, and the work that must be done for it while it runs.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use super::marks::MarksFile;
use super::redis_tls::WatchedRedisTls;
use crate::config;
use crate::core::rule::OnFailure;
use crate::core::time::Timestamp;
use crate::engine::Engine;
use crate::engine::identity::Shelf;
use crate::engine::port::{CellStore, Store};
use crate::engine::tasks::Tasks;
use crate::store::cells::MemoryCells;
use crate::store::memory::MemoryStore;
use crate::store::redis::{RedisSettings, RedisStore, StartError};
use crate::telemetry::Metrics;

/// Stores that keep buckets.
#[derive(Debug, Clone)]
pub enum StoreSetup {
    /// In this process: at most so many.
    Memory {
        /// Most buckets that the store keeps at once.
        keys_max: usize,
    },
    /// In the region's Redis, which all its daemons share.
    Redis(Box<RedisSettings>),
}

/// The store of a running daemon.
pub(super) struct Opened {
    pub(super) store: Arc<dyn Store>,
    redis: Option<Arc<RedisStore>>,
    memory: Option<Arc<MemoryStore>>,
    /// Where it is noted what is spent of the one in memory, once that is known.
    marks: OnceLock<Arc<MarksFile>>,
    /// Live daemons of this region, this one included: what a share of a limit is divided by while Redis is
    /// away.
    pub(super) live: Arc<AtomicUsize>,
}

impl Opened {
    /// Opens the store. A Redis that does not answer yet is no error.
    pub(super) async fn open(
        setup: &StoreSetup,
        now: Timestamp,
        metrics: &Arc<Metrics>,
        tasks: &Tasks,
    ) -> Result<Self, StartError> {
        let (live, marks) = (Arc::new(AtomicUsize::new(1)), OnceLock::new());
        match setup {
            StoreSetup::Memory { keys_max } => {
                let memory = Arc::new(MemoryStore::new(*keys_max).begun(now));
                Ok(Self { store: Arc::clone(&memory) as _, redis: None, memory: Some(memory), marks, live })
            }
            StoreSetup::Redis(settings) => {
                let settings = RedisSettings { tasks: tasks.clone(), ..settings.as_ref().clone() };
                let redis = RedisStore::start(settings, Arc::clone(&live), metrics).await?;
                let redis = Arc::new(redis);
                Ok(Self { store: Arc::clone(&redis) as _, redis: Some(redis), memory: None, marks, live })
            }
        }
    }

    /// True if all daemons of the region count in it together.
    pub(super) const fn is_shared(&self) -> bool {
        self.redis.is_some()
    }

    /// The store that is lost with this process.
    pub(super) const fn memory(&self) -> Option<&Arc<MemoryStore>> {
        self.memory.as_ref()
    }

    /// Notes in this file what is spent of the store in memory.
    pub(super) fn note_in(&self, file: Arc<MarksFile>) {
        // One that is set stays.
        let _ = self.marks.set(file);
    }

    /// The file where it is noted what is spent of the store in memory.
    pub(super) fn marks(&self) -> Option<&Arc<MarksFile>> {
        self.marks.get()
    }

    /// Returns where the daemons of the region keep facts for each other, if they share a store.
    pub(super) fn shelf(&self) -> Option<Arc<dyn Shelf>> {
        self.redis.as_ref().map(|redis| Arc::new(redis.shelf()) as _)
    }

    /// Counters whose limits callers bring, kept where rules' counters are.
    pub(super) fn cells(&self, setup: &StoreSetup, metrics: &Metrics) -> Arc<dyn CellStore> {
        match (&self.redis, setup) {
            (Some(redis), StoreSetup::Redis(settings)) => {
                let refuses = settings.on_failure == OnFailure::Closed;
                Arc::new(redis.cells((!refuses).then(|| MemoryCells::new(settings.keys_max, metrics))))
            }
            (_, StoreSetup::Memory { keys_max }) => Arc::new(MemoryCells::new(*keys_max, metrics)),
            (None, StoreSetup::Redis(settings)) => Arc::new(MemoryCells::new(settings.keys_max, metrics)),
        }
    }

    /// Returns what follows the files of TLS towards Redis, where there are any.
    pub(super) fn watched_tls(
        &self,
        files: Option<&config::RedisTls>,
        engine: &Arc<Engine>,
    ) -> Option<Arc<WatchedRedisTls>> {
        let (store, files) = (self.redis.clone()?, files?.clone());
        Some(Arc::new(WatchedRedisTls { files, store, engine: Arc::clone(engine) }))
    }

    /// Gives back what was drawn ahead.
    pub(super) async fn drain(&self) {
        if let Some(redis) = &self.redis {
            redis.drain().await;
        }
    }
}
