//! The rules of a set by name, and the numbers that they keep from one set to the next.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::Compiled;

/// Rules by name. Copying it copies no name.
#[derive(Debug, Clone, Default)]
pub(super) struct ByName {
    rules: HashTable<Arc<Compiled>>,
}

impl ByName {
    pub(super) fn get(&self, name: &str) -> Option<&Arc<Compiled>> {
        self.rules.find(hash(name), |own| own.rule.name == name)
    }

    /// Adds a rule; its name where another has it.
    pub(super) fn insert(&mut self, compiled: &Arc<Compiled>) -> Result<(), String> {
        let name = &compiled.rule.name;
        if self.get(name).is_some() {
            return Err(name.clone());
        }
        self.rules.insert_unique(hash(name), Arc::clone(compiled), |own| hash(&own.rule.name));
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Arc<Compiled>> {
        let entry = self.rules.find_entry(hash(name), |own| own.rule.name == name).ok()?;
        Some(entry.remove().0)
    }
}

fn hash(name: &str) -> u64 {
    FixedState::default().hash_one(name)
}

/// Numbers for rules, each given to one at a time.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers {
    next: u32,
    free: Vec<u32>,
}

impl Numbers {
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next = self.next.saturating_add(1);
            self.next - 1
        })
    }

    pub(super) fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    /// One more than the highest ever given.
    pub(super) fn bound(&self) -> usize {
        usize::try_from(self.next).unwrap_or(usize::MAX)
    }
}
