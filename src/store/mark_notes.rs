//! Notes of marks outside of the process, and what a store in memory remembers of those of its rules.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use crate::core::key::Shape;
use crate::core::regions::escrow::window::marks::{MarkNote, RuleMarks, UnknownWindows};

/// What became of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// It outlives the process.
    Kept,
    /// Nothing is noted any more, and nothing that was is used: the next process burns.
    Off,
    /// Nothing can be noted, and what was noted cannot be taken away.
    Stuck,
}

/// A place outside of the process for notes of marks. Once it was [`Noted::Off`] or [`Noted::Stuck`] it stays
/// so.
pub trait MarkNotes: Send + Sync + std::fmt::Debug {
    /// Notes all of these, or says that it does not.
    fn note(&self, notes: &[MarkNote]) -> Noted;

    /// True if most of what is there counts no more.
    fn is_long(&self) -> bool;

    /// From here on notes are also written to a place of their own, where what still counts is to be written
    /// again. `false`: there is no such place.
    fn begin_anew(&self) -> bool;

    /// All that counts was noted since: what is older goes.
    fn end_anew(&self);
}

/// The first marks of rules, by the numbers of their shapes.
pub(super) type MarkedRules = HashMap<u32, RuleMarks, foldhash::fast::RandomState>;

/// What the store as a whole knows of marks.
#[derive(Debug)]
pub(super) struct MarkBook {
    pub(super) notes: Arc<dyn MarkNotes>,
    pub(super) noted: Mutex<NotedRules>,
    /// Windows of which notes of earlier processes say nothing.
    pub(super) unknown: Arc<UnknownWindows>,
}

#[derive(Debug, Default)]
pub(super) struct NotedRules {
    pub(super) rules: Arc<MarkedRules>,
    pub(super) identities: HashMap<u32, String>,
    /// Rules that this process has noted.
    pub(super) own: BTreeSet<u32>,
    /// All shapes from here on are new to this process; `None`: no rule has been in force.
    pub(super) next: Option<u32>,
    /// All shapes from here on are new to every process that noted anything.
    pub(super) above: u32,
}

impl NotedRules {
    /// These first marks as notes.
    pub(super) fn notes(&self, rules: &MarkedRules) -> Vec<MarkNote> {
        let note = |(shape, firsts): (&u32, &RuleMarks)| MarkNote::Rule {
            identity: self.identities.get(shape).cloned().unwrap_or_default(),
            shape: Shape(*shape),
            next: self.above,
            firsts: firsts.clone(),
        };
        rules.iter().filter(|(_, firsts)| **firsts != RuleMarks::default()).map(note).collect()
    }
}
