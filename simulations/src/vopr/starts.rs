//! Worlds that are started for the first time, under `escrow`, with windows that outlast whatever happens to
//! them: daemons begin one after the other, end while they agree or later, in good order or not, and come
//! back with their disks or, in one region, without. Spent permits are never minted again, a first window is
//! used at once if nothing is lost, and a daemon that was killed mints what lies above its marks.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::escrow::window::marks::MARKED_WINDOW;
use tidegate::core::regions::escrow::{EscrowSafety, Step, StepRequest, StepResult};
use tidegate::core::regions::split::StartSafety;
use tidegate::core::request::Cost;
use tidegate::core::time::{Span, Timestamp};
use tidegate::store::KeptStore;

use super::play::Summary;
use super::whole::{Held, Play, SECOND, STEP, engines, weather};
use crate::model::marks::MarksDisk;
use crate::model::shell::{windowed, world_key};
use crate::number::{float, index, place};
use crate::plan::{Plan, Way};
use crate::virtual_world::Dice;

const USERS: u64 = 2;
/// After so long daemons that began together have agreed.
const AGREED: u64 = 5 * SECOND;

/// The ways in which a daemon ends and comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Killed; it finds its disk.
    Killed,
    /// Ended in good order: it finds what it left, too.
    Ordered,
    /// Its disk is lost with it.
    Lost,
}

/// The rules that are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) starts: StartSafety,
    pub(crate) safety: EscrowSafety,
    /// Rights that a process left are taken back once.
    pub(crate) taken_once: bool,
}

impl Kept {
    /// All of them.
    pub(crate) const ALL: Self =
        Self { starts: StartSafety::ALL, safety: EscrowSafety::ALL, taken_once: true };
}

/// So many steps a daemon that ends in good order serves on after it left its rights.
const SERVES_ON: u64 = 4;

/// A cluster's first minutes.
#[derive(Debug, Clone)]
pub(crate) struct StartsCase {
    held: Held,
    plan: Plan,
    /// By daemon, the step at which it begins.
    starts: Vec<u64>,
    fates: Vec<(usize, u64, u64, Fate)>,
    cuts: Vec<(usize, u64, u64)>,
    end: u64,
    /// True if daemons note what they spend.
    notes: bool,
}

impl StartsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 83);
        let regions = index(dice.between(2, 4));
        let algorithm = match dice.below(20) {
            0..12 => Algorithm::FixedWindow,
            12..15 => Algorithm::TokenBucket,
            15..17 => Algorithm::Gcra,
            17 => Algorithm::SlidingLog,
            18 => Algorithm::SlidingWindow,
            _ => Algorithm::LeakyBucket,
        };
        let limit = u32::try_from(dice.between(4, 60)).unwrap_or(4);
        // From one second to a month, each length of time as likely as another.
        let window = Span::from_millis(1_000 << dice.below(22));
        let held = Held { way: Some(Way::Escrow), algorithm, limit, burst: limit, window };
        let weather = weather(&mut dice, regions, 0.1);
        let mut plan = held.plan(seed, regions, weather);
        for region in &mut plan.regions {
            region.ahead = i64::try_from(dice.below(800_000)).unwrap_or(0) - 400_000;
        }
        let starts: Vec<u64> = (0..regions).map(|_| dice.below(2 * SECOND)).collect();
        let all = starts.iter().copied().max().unwrap_or(0);
        let end = all + dice.between(6, 14) * SECOND;
        let troubled = dice.chance(0.8);
        // The disks of all but one are safe: if all are lost nobody knows anything.
        let loser = index(dice.below(place(regions)));
        let count = if troubled { dice.between(1, 5) } else { 0 };
        let fates = (0..count)
            .map(|_| {
                let at = if dice.chance(0.6) { loser } else { index(dice.below(place(regions))) };
                let from = dice.below(end);
                let fate = match dice.unit() {
                    lost if at == loser && lost < 0.5 => Fate::Lost,
                    ordered if ordered > 0.7 => Fate::Ordered,
                    _ => Fate::Killed,
                };
                (at, from, from + dice.between(1, SECOND), fate)
            })
            .collect();
        let cuts = if troubled { dice.below(3) } else { 0 };
        let cuts = (0..cuts)
            .map(|_| {
                let from = dice.below(end);
                (index(dice.below(place(regions))), from, from + dice.between(10, 3 * SECOND))
            })
            .collect();
        Self { held, plan, starts, fates, cuts, end, notes: !seed.is_multiple_of(3) }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        let Self { held, plan, starts, fates, cuts, notes, .. } = self;
        let regions = plan.regions.len();
        format!(
            "{}, {regions} regions begin at {starts:?}, fates {fates:?}, cuts {cuts:?}, notes {notes}",
            held.describe()
        )
    }
}

/// Plays a case.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &StartsCase, rules: Kept) -> Result<Summary, String> {
    let mut engines = engines(&case.plan, &case.held.written(&[]));
    (engines.starts, engines.safety) = (rules.starts, rules.safety);
    if case.notes {
        engines.disks = (0..case.plan.regions.len()).map(|_| Arc::default()).collect();
    }
    let disks = engines.disks.clone();
    let mut play = Play::new(&case.plan, case.held, engines)?;
    for daemon in play.world.daemons_mut() {
        (daemon.alive, daemon.known) = (false, false);
    }
    play.world.meet();
    let regions = case.plan.regions.len();
    let mut left: Vec<Option<KeptStore>> = vec![None; regions];
    let mut lost = Losses::default();
    // Enough to use the limit within seconds, however long the window is.
    let per_step = 3.0 * f64::from(case.held.limit) / float(4 * SECOND);
    for step in 0..case.end {
        for at in 0..regions {
            lost.look_before((case, at, step), &play);
            turn((case, rules), &mut play, &mut left, (at, step));
            lose_disk((case, &disks), (at, step));
            if rules.safety == EscrowSafety::ALL {
                lost.judge((case, at, step), &play)?;
            }
        }
        for (region, from, to) in &case.cuts {
            if [*from, *to].contains(&step) {
                play.world.network_mut().cut(&[*region], true, true, step == *from);
                play.faults += 1;
            }
        }
        for at in 0..regions {
            for user in 0..USERS {
                for _ in 0..play.dice.poisson(per_step) {
                    if play.request(at, user, Cost::Take(1)).is_some_and(|decision| decision.allowed) {
                        play.never_above(user, at)
                            .map_err(|why| format!("{why}, {} ms after the start", step * STEP.0 / 1_000))?;
                    }
                }
            }
        }
        play.step();
    }
    judge(case, &play)?;
    Ok(play.summary())
}

/// Begins a daemon, ends it, or begins it again.
fn turn(
    (case, rules): (&StartsCase, Kept),
    play: &mut Play,
    left: &mut [Option<KeptStore>],
    (at, step): (usize, u64),
) {
    if case.starts.get(at) == Some(&step) {
        play.world.restart_with(at, None);
        return;
    }
    for (_, from, to, fate) in case.fates.iter().filter(|(daemon, ..)| *daemon == at) {
        let daemon = play.world.daemons().get(at);
        let alive = daemon.is_some_and(|daemon| daemon.alive);
        let engine = daemon.and_then(|daemon| daemon.node.engine()).filter(|_| alive);
        if *fate == Fate::Ordered
            && step + SERVES_ON == *from
            && let Some(engine) = engine
        {
            left[at] = engine.leave();
        }
        let begun = case.starts.get(at).is_some_and(|start| *start < step);
        if step == *from && alive {
            play.world.kill(at);
            play.faults += 1;
        } else if step == *to && begun && !alive {
            if *fate == Fate::Lost {
                left[at] = None;
                play.world.restart_with(at, None);
            } else {
                play.world.restart(at);
            }
            let kept = if rules.taken_once { left[at].take() } else { left[at].clone() };
            let engine = play.world.daemons().get(at).and_then(|daemon| daemon.node.engine());
            if let Some((engine, kept)) = engine.zip(kept) {
                engine.take_back(kept);
            }
        }
    }
}

/// A disk that is lost tells the next process nothing.
fn lose_disk((case, disks): (&StartsCase, &[Arc<MarksDisk>]), (at, step): (usize, u64)) {
    let lost = |(daemon, from, _, fate): &&(usize, u64, u64, Fate)| {
        *daemon == at && *from == step && *fate == Fate::Lost
    };
    if let Some(disk) = disks.get(at).filter(|_| case.fates.iter().any(|fate| lost(&fate))) {
        disk.lose();
    }
}

/// The rights that killed daemons had, until their next processes have theirs.
#[derive(Debug, Default)]
struct Losses(BTreeMap<(usize, u64), StepResult>);

impl Losses {
    fn balance(play: &Play, at: usize, user: u64) -> Option<StepResult> {
        let daemon = play.world.daemons().get(at).filter(|daemon| daemon.alive)?;
        let ask = StepRequest { key: world_key(user), step: Step::Read, own: None };
        daemon.node.engine()?.rights(&ask, play.world.clock(at))
    }

    /// Remembers what a daemon has that is killed now.
    fn look_before(&mut self, (case, at, step): (&StartsCase, usize, u64), play: &Play) {
        let dies = |(daemon, from, _, fate): &(usize, u64, u64, Fate)| {
            *daemon == at && *from == step && *fate == Fate::Killed
        };
        let marked = case.notes && case.held.algorithm == Algorithm::FixedWindow;
        if !marked || case.held.window < MARKED_WINDOW {
            return;
        }
        // However it ends once more, it need not have what it had before.
        let ends = |(daemon, from, ..): &(usize, u64, u64, Fate)| *daemon == at && *from == step;
        if case.fates.iter().any(ends) {
            self.0.retain(|(daemon, _), _| *daemon != at);
        }
        if case.fates.iter().any(dies) {
            // Of a window that began after its last sign of life, which it gives each second, all burns.
            let vouched = |had: &StepResult| {
                let window = had.ledger.as_window().map_or(0, |ledger| ledger.window);
                let start = Timestamp::window_start(window, case.held.window);
                play.world.clock(at).since(start) > Span::from_secs(2)
            };
            let had = (0..USERS).filter_map(|user| Some(((at, user), Self::balance(play, at, user)?)));
            self.0.extend(had.filter(|(_, had)| vouched(had)));
        }
    }

    /// The next process mints all but what was spent and two eighths of the share.
    fn judge(&mut self, (case, at, step): (&StartsCase, usize, u64), play: &Play) -> Result<(), String> {
        let comes = |(daemon, _, to, fate): &(usize, u64, u64, Fate)| {
            *daemon == at && *to < step && *fate == Fate::Killed
        };
        if !case.fates.iter().any(comes) {
            return Ok(());
        }
        for user in 0..USERS {
            let Some(had) = self.0.get(&(at, user)) else { continue };
            let Some(has) = Self::balance(play, at, user) else { continue };
            let moved = had.ledger.given().chain(had.ledger.taken()).any(|moved| moved.permits > 0);
            let (before, after) = (had.ledger.minted(), has.ledger.minted());
            let regions = case.plan.regions.len();
            let step = case.held.part(case.held.limit, at, regions).div_ceil(8);
            let lost = (had.used + step).max(2 * step);
            let same = had.ledger.kind() == has.ledger.kind();
            let used = had.used;
            self.0.remove(&(at, user));
            if same && !moved && after + lost < before {
                return Err(format!(
                    "r{at} had {before} permits for user {user} and used {used}: its next process mints {after}"
                ));
            }
        }
        Ok(())
    }
}

/// Checks that all of a first window is there for whoever asks, if nothing is lost.
fn judge(case: &StartsCase, play: &Play) -> Result<(), String> {
    let last = case.starts.iter().copied().max().unwrap_or(0);
    let keeps = |fate: &(usize, u64, u64, Fate)| fate.3 == Fate::Ordered && fate.2 + AGREED < case.end;
    let calm = case.fates.iter().all(keeps) && case.cuts.is_empty() && case.plan.weather.loss == 0.0;
    let within = case.held.window.0 > case.end * STEP.0 + 2_000_000;
    if !calm || !within || !windowed(case.held.algorithm) || case.end < last + 2 * AGREED {
        return Ok(());
    }
    // None of the clocks may have come to another window.
    let windows: Vec<u64> = (0..case.plan.regions.len())
        .map(|region| play.world.clock(region).window_index(case.held.window))
        .collect();
    let begun = crate::model::START.window_index(case.held.window);
    if windows.iter().any(|window| *window != begun) {
        return Ok(());
    }
    for user in 0..USERS {
        let of = play.of_window(user, begun);
        let sum: u64 = of.iter().sum();
        if sum + place(case.plan.regions.len()) < u64::from(case.held.limit) {
            return Err(format!("user {user} was given {sum} permits of a first window, by region {of:?}"));
        }
    }
    Ok(())
}
