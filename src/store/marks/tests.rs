//! What a process that is killed costs, and that it never costs exactness.

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{Algorithm, Limit};
use crate::core::regions::WorldKey;
use crate::core::regions::escrow::window::WindowStep;
use crate::core::regions::escrow::{Giving, Step, StepRequest, StepResult, Taking};
use crate::core::request::Cost;
use crate::core::rule::{Global, Mode, Rule};
use crate::core::ruleset::Compiled;
use crate::core::wire::RuleName;
use crate::engine::port::{Answer, Charge, HeldLimit, Intent, Store as _};

const HOUR: Span = Span::from_secs(3_600);
/// A window begins.
const WINDOW: Timestamp = Timestamp(1_790_000_000_000_000 - 1_790_000_000_000_000 % 3_600_000_000);
const SHAPE: Shape = Shape(8);

/// What outlives a process.
#[derive(Debug)]
struct Paper(Mutex<(Vec<MarkNote>, Noted)>);

impl Paper {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((Vec::new(), Noted::Kept))))
    }

    fn set(&self, noted: Noted) {
        let mut paper = self.0.lock().unwrap();
        paper.1 = noted;
        if noted == Noted::Off {
            paper.0.clear();
        }
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().0.len()
    }
}

impl MarkNotes for Paper {
    fn note(&self, notes: &[MarkNote]) -> Noted {
        let mut paper = self.0.lock().unwrap();
        if paper.1 == Noted::Kept {
            paper.0.extend_from_slice(notes);
        }
        paper.1
    }

    fn is_long(&self) -> bool {
        self.len() > 16
    }

    fn begin_anew(&self) -> bool {
        let mut paper = self.0.lock().unwrap();
        // All that counts is noted again.
        paper.0.clear();
        true
    }

    fn end_anew(&self) {}
}

fn rule(limit: u32) -> Compiled {
    let mut rule =
        Rule { per: vec!["user".into()], ..Rule::new("rule", Algorithm::FixedWindow, limit, HOUR) };
    rule.global = Some(Global::new(Mode::Escrow));
    let limit = Limit { calendar: None, permits: limit, window: HOUR, burst: limit, queue: 0 };
    let named = RuleName { domain: rule.domain.clone(), name: rule.name.clone() };
    Compiled { rule, named: Arc::new(named), number: 0, shape: SHAPE, limit }
}

fn key(user: impl ToString) -> Key {
    Key::new(SHAPE, [user.to_string().as_str()])
}

/// One region's part of a rule, and the lives of its daemon.
struct Region {
    rule: Compiled,
    share: u32,
    paper: Arc<Paper>,
    store: MemoryStore,
    now: Timestamp,
}

impl Region {
    /// It begins ten seconds before the window does.
    fn new(share: u32) -> Self {
        let now = Timestamp(WINDOW.0 - 10_000_000);
        let (rule, paper) = (rule(3 * share), Paper::new());
        let mut region = Self { rule, share, paper, store: MemoryStore::new(100), now };
        region.begin(true);
        region.now = WINDOW + Span::from_secs(1);
        region
    }

    fn begin(&mut self, escrowed: bool) {
        let mut known = RememberedMarks::default();
        self.paper.0.lock().unwrap().0.drain(..).for_each(|note| known.handle(note));
        known.prune(self.now);
        self.paper.0.lock().unwrap().0.extend(known.notes());
        self.store = MemoryStore::new(100).begun(self.now);
        let notes: Arc<dyn MarkNotes> = Arc::clone(&self.paper) as _;
        self.store.keep_marks(&notes, &known);
        self.load(escrowed);
    }

    fn load(&self, escrowed: bool) {
        let share = escrowed.then_some(u64::from(self.share));
        let foreseen = ForeseenRule { shape: SHAPE, identity: "rule".to_owned(), share };
        self.store.foresee(&[foreseen], 16, self.now);
    }

    fn is_killed(&mut self) {
        self.lives();
        self.now = self.now + Span::from_secs(5);
        self.begin(true);
    }

    /// It gives a sign of life, as it does each second.
    fn lives(&self) {
        self.paper.note(&[MarkNote::Alive(self.now)]);
    }

    fn held(&self) -> HeldLimit {
        HeldLimit { limit: self.rule.limit, share: Some(self.share) }
    }

    fn takes(&self, user: &str, cost: u64) -> bool {
        let key = key(user);
        let charge = Charge {
            rule: &self.rule,
            key: &key,
            limit: self.rule.limit,
            share: Some(self.share),
            whole: &self.rule.limit,
            first: None,
            cost: Cost::Take(cost),
            enforced: true,
        };
        self.store.try_decide(&[charge], Intent::Charge, self.now).unwrap().admitted
    }

    fn rest(&self, user: &str) -> u64 {
        (0..10_000).take_while(|_| self.takes(user, 1)).count().try_into().unwrap()
    }

    fn step(&self, user: &str, step: Step) -> Option<StepResult> {
        let key = key(user);
        let rule = RuleName { domain: "default".into(), name: "rule".into() };
        let world = WorldKey { rule, identity: key.identity().to_vec() };
        let ask = StepRequest { key: world, step, own: None };
        self.store
            .with(&key, |slot, named| slot.rights(&self.rule, &self.held(), named, &ask, self.now))
            .flatten()
    }

    fn moves(&self, user: &str, step: WindowStep) -> Option<StepResult> {
        self.step(user, Step::Window { window: WINDOW.0 / HOUR.0, step })
    }

    fn session(&self, user: &str) -> u64 {
        self.step(user, Step::Read).unwrap().ledger.session()
    }
}

proptest! {
    #[test]
    fn a_share_is_never_exceeded_and_each_kill_costs_an_eighth_beyond_the_first(
        share in 1_u32..300,
        acts in proptest::collection::vec((0_u8..3, 0_u64..40, 0_u8..6), 0..60),
    ) {
        let mut region = Region::new(share);
        let (mut admitted, mut kills) = ([0_u64; 3], 0);
        for (user, cost, fate) in acts {
            if fate == 0 {
                region.is_killed();
                kills += 1;
            }
            if region.takes(&user.to_string(), cost) {
                admitted[usize::from(user)] += cost;
            }
            if fate == 1 {
                region.store.carry_marks_on(region.now);
            }
        }
        for (user, before) in admitted.into_iter().enumerate() {
            let all = before + region.rest(&user.to_string());
            let (share, eighth) = (u64::from(share), u64::from(share.div_ceil(8)));
            prop_assert!(all <= share, "{all} of {share}");
            let lost = if kills > 0 { (kills + 1) * eighth } else { 0 };
            prop_assert!(all + lost >= share, "{all} of {share} after {kills} kills");
        }
    }
}

#[test]
fn eight_notes_are_enough_for_a_bucket_and_none_for_one_that_spends_little() {
    let region = Region::new(1_000);
    let before = region.paper.len();
    assert!((0..250).all(|_| region.takes("little", 1)));
    assert_eq!(region.paper.len(), before);
    assert_eq!(region.rest("much"), 1_000);
    assert_eq!(region.paper.len() - before, 6);
}

#[test]
fn what_was_given_away_is_not_minted_again_and_what_came_does_not_burn() {
    let mut region = Region::new(80);
    let give = Giving { to: "b".into(), session: 7, permits: 60 };
    let given = region.moves("u", WindowStep::Give(give)).unwrap();
    assert_eq!(given.ledger.given_to("b", 7), 60);
    region.is_killed();
    let now = region.step("u", Step::Read).unwrap();
    assert_eq!((now.ledger.minted(), now.ledger.given_to("b", 7)), (20, 0));

    let session = region.session("v");
    assert!(region.takes("v", 60));
    let take = Taking { from: "b".into(), session: 7, to_session: session, permits: 50 };
    assert_eq!(region.moves("v", WindowStep::Take(take)).unwrap().free(), 50);
    region.is_killed();
    // Ten of its own were gone, beside the twenty of the kill before, and less than two eighths are lost.
    let minted = region.step("v", Step::Read).unwrap().ledger.minted();
    assert!((30..=50).contains(&minted), "{minted}");
}

#[test]
fn where_nothing_can_be_noted_any_more_nobody_is_denied_and_the_next_process_burns() {
    let mut region = Region::new(80);
    assert!(region.takes("u", 30));
    region.paper.set(Noted::Off);
    assert_eq!(region.rest("u"), 50);
    region.paper.set(Noted::Kept);
    region.is_killed();
    assert_eq!((region.rest("u"), region.rest("other")), (0, 0));
}

#[test]
fn where_what_was_noted_cannot_be_taken_away_no_more_is_spent() {
    let mut region = Region::new(80);
    assert!(region.takes("u", 35));
    region.paper.set(Noted::Stuck);
    assert!(region.takes("u", 5), "up to the mark");
    let twice = [region.takes("u", 1), region.takes("u", 1)];
    assert_eq!(twice, [false, false]);
    assert_eq!(region.rest("other"), 20, "two eighths");
    region.paper.set(Noted::Kept);
    region.is_killed();
    assert_eq!((region.rest("u"), region.rest("other")), (40, 60));
}

#[test]
fn windows_burn_that_began_before_their_rule_kept_to_marks() {
    let mut region = Region::new(80);
    // Counted without marks for a while.
    region.load(false);
    region.load(true);
    assert_eq!(region.rest("u"), 80);
    region.is_killed();
    assert_eq!(region.rest("other"), 0);
    region.now = region.now + HOUR;
    region.is_killed();
    assert!(region.rest("u") >= 60, "the next window is known");
}

#[test]
fn at_a_first_start_the_window_in_progress_has_marks() {
    let mut region = Region::new(80);
    region.paper.set(Noted::Off);
    region.paper.set(Noted::Kept);
    region.begin(true);
    assert_eq!(region.rest("before"), 0);
    assert!(matches!(region.store.begin_first(1), Answer::Now(true)));
    assert!(region.takes("u", 35));
    region.is_killed();
    assert_eq!((region.rest("u"), region.rest("other")), (40, 60));
}

#[test]
fn a_process_that_ends_in_good_order_after_one_was_killed_costs_nothing() {
    let mut region = Region::new(80);
    assert!(region.takes("u", 35));
    region.is_killed();
    assert!(region.takes("u", 25) && region.takes("other", 15));
    let kept = region.store.keep([SHAPE], 16, region.now);
    region.lives();
    region.now = region.now + Span::from_secs(5);
    region.begin(true);
    region.store.take_back(kept);
    // Forty and twenty were burnt by the kill.
    assert_eq!((region.rest("u"), region.rest("other")), (15, 45));
    region.is_killed();
    assert_eq!((region.rest("u"), region.rest("other")), (0, 0));
}

/// Ends, is away for an hour and a half, in which another daemon may have served, and comes back.
fn away_over_the_begin_of_a_window(in_order: bool) -> Region {
    let mut region = Region::new(80);
    assert!(region.takes("u", 30));
    region.lives();
    let kept = in_order.then(|| region.store.keep([SHAPE], 16, region.now));
    region.now = region.now + Span::from_secs(5_400);
    region.begin(true);
    if let Some(kept) = kept {
        // As it is written and read.
        let text = serde_json::to_string(&kept).unwrap();
        region.store.take_back(serde_json::from_str(&text).unwrap());
    }
    region
}

#[test]
fn a_window_that_began_between_two_processes_burns_for_all_that_come_after() {
    for in_order in [false, true] {
        let mut region = away_over_the_begin_of_a_window(in_order);
        assert_eq!((region.rest("u"), region.rest("other")), (0, 0), "in order: {in_order}");
        region.is_killed();
        assert_eq!(region.rest("other"), 0, "in order: {in_order}");
        region.lives();
        let kept = region.store.keep([SHAPE], 16, region.now);
        region.now = region.now + Span::from_secs(5);
        region.begin(true);
        region.store.take_back(kept);
        assert_eq!(region.rest("other"), 0, "in order: {in_order}");
        // The next window is its own.
        region.now = region.now + HOUR;
        assert_eq!(region.rest("other"), 80);
    }
}

#[test]
fn what_a_clock_that_was_ahead_forgot_burns_once_it_is_right() {
    let mut region = Region::new(80);
    assert!(region.takes("u", 60));
    region.is_killed();
    let right = region.now;
    region.now = region.now + HOUR + HOUR;
    region.is_killed();
    region.now = right;
    region.is_killed();
    assert_eq!((region.rest("u"), region.rest("other")), (0, 0));
}

#[test]
fn a_file_that_is_written_anew_by_a_clock_that_was_ahead_says_what_it_forgot() {
    let mut region = Region::new(80);
    assert!(region.takes("u", 60));
    for number in 0..20 {
        assert!(region.takes(&format!("many {number}"), 30));
    }
    let right = region.now;
    let ahead = right + HOUR + HOUR;
    region.store.sweep(ahead);
    region.store.carry_marks_on(ahead);
    region.now = right;
    region.is_killed();
    assert_eq!((region.rest("u"), region.rest("other")), (0, 0));
}

#[test]
fn rules_that_are_no_more_are_remembered_up_to_a_bound() {
    let region = Region::new(80);
    for number in 2..1_100_u32 {
        let foreseen =
            ForeseenRule { shape: Shape(8 * number), identity: number.to_string(), share: Some(80) };
        region.store.foresee(&[foreseen], 8 * number + 8, region.now);
    }
    let noted = region.store.marks.get().unwrap().noted.lock().unwrap();
    assert_eq!((noted.rules.len(), noted.identities.len()), (OTHERS_MAX + 1, OTHERS_MAX + 1));
    assert!(!noted.rules.contains_key(&SHAPE.0), "the oldest goes");
    let mut known = RememberedMarks::default();
    region.paper.0.lock().unwrap().0.iter().for_each(|note| known.handle(note.clone()));
    known.handle(MarkNote::Alive(region.now));
    known.prune(region.now);
    assert_eq!(known.rules().count(), OTHERS_MAX + 1, "nor is it known to the next process");
}
