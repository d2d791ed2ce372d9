//! Worlds in which regions are added, removed and given other weights, daemon by daemon, in the order of the
//! manual and in others. The judge sees what clients see: `split` and `escrow` are never above the limit, a
//! daemon without a memory of an agreement spends nothing before every region that it lists has said the
//! same, and in the end all are served.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate::core::algorithm::{Algorithm, Counting};
use tidegate::core::region_list::RegionList;
use tidegate::core::request::Cost;
use tidegate::core::share::Weights;
use tidegate::core::time::Span;

use super::play::Summary;
use super::whole::{Held, Play, SECOND, STEP, engines, names, weather};
use crate::model::engine::DaemonEngine;
use crate::number::{float, index, place};
use crate::plan::{Plan, Way};
use crate::virtual_world::Dice;

/// Until those who are there from the beginning have agreed.
const BEGUN: u64 = 3 * SECOND;
/// So long after the last change a larger share has come into force.
const SETTLED: u64 = 6 * SECOND;
const USERS: u64 = 2;

/// The acts of an operator on one daemon, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Starts it for the first time.
    Begin(usize),
    /// Gives it the list of regions that all shall have.
    List(usize),
    /// The same with a list that lacks the first region.
    Mislist(usize),
    /// Gives it the rule with the weights that all shall have.
    Weigh(usize),
    /// The same with weights on the way to those: a region that leaves has none.
    Lighten(usize),
    /// Ends it for good.
    End(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Join,
    Leave,
    Reweigh,
}

/// A world whose regions change.
#[derive(Debug, Clone)]
pub(crate) struct JoinsCase {
    held: Held,
    plan: Plan,
    kind: Kind,
    /// True if everything is done in the order of the manual.
    ordered: bool,
    /// Daemons that run are told another list, as by a command, and not started again with it.
    live: bool,
    /// The region that leaves is lost with its shares, and the others are told that it is gone.
    gone: bool,
    keeps_stores: bool,
    /// The weights before, on the way and after; none: the list of regions shares alike.
    weights: [Vec<(String, u32)>; 3],
    acts: Vec<(u64, Act)>,
    /// A region that is cut off, and a daemon that dies, each from one step to another.
    cuts: Vec<(usize, u64, u64)>,
    deaths: Vec<(usize, u64, u64)>,
    end: u64,
}

impl JoinsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 73);
        let regions = index(dice.between(3, 4));
        let last = regions - 1;
        let way = if dice.chance(0.5) { Way::Split } else { Way::Escrow };
        let limit = u32::try_from(dice.between(12, 40)).unwrap_or(12);
        let held = Held {
            way: Some(way),
            algorithm: if dice.chance(0.75) { Algorithm::FixedWindow } else { Algorithm::TokenBucket },
            limit,
            burst: limit,
            window: Span::from_millis(dice.between(3, 10) * 100),
        };
        let weather = weather(&mut dice, regions, 0.1);
        let mut plan = held.plan(seed, regions, weather);
        for region in &mut plan.regions {
            region.ahead = i64::try_from(dice.below(800_000)).unwrap_or(0) - 400_000;
        }
        let kind = *dice.pick(&[Kind::Join, Kind::Join, Kind::Leave, Kind::Reweigh]).unwrap_or(&Kind::Join);
        let ordered = dice.chance(0.4);
        let all = names(&plan);
        let mut draw = |regions: &[String]| -> Vec<(String, u32)> {
            regions
                .iter()
                .map(|name| (name.clone(), u32::try_from(dice.between(1, 5)).unwrap_or(1)))
                .collect()
        };
        let (before, after) = match kind {
            Kind::Join => (draw(&all[..last]), draw(&all)),
            Kind::Leave => (draw(&all), draw(&all[..last])),
            Kind::Reweigh => (draw(&all), draw(&all)),
        };
        let mut between = after.clone();
        if kind == Kind::Leave {
            between.push((all[last].clone(), 0));
        }
        // A region that leaves is given no weight first, and weights that change are weights.
        let plain =
            kind == Kind::Join && dice.chance(0.5) || kind == Kind::Leave && !ordered && dice.chance(0.3);
        let weights = if plain { Default::default() } else { [before, between, after] };
        let mut acts = acts(&mut dice, kind, regions, (ordered, plain));
        // Dice of their own, so that the rest is drawn as it was before there were commands.
        let mut commands = Dice::new(seed, 79);
        let live = commands.chance(0.5);
        let gone = live && ordered && kind == Kind::Leave && commands.chance(0.4);
        if gone {
            acts.retain(|act| !matches!(act, Act::Lighten(_)));
        }
        let mut at = BEGUN;
        let mut timed = Vec::new();
        for act in acts {
            // The manual has the next step wait until nothing waits any more.
            let waits = ordered && matches!(act, Act::End(_));
            at += if waits { SETTLED } else { dice.below(SECOND * 3 / 2) };
            timed.push((at, act));
        }
        let end = at + SECOND;
        let mut spans = |count: u64, most: u64| -> Vec<(usize, u64, u64)> {
            let one = |dice: &mut Dice| {
                let from = dice.below(end);
                (index(dice.below(place(regions))), from, (from + dice.between(10, most)).min(end))
            };
            (0..count).map(|_| one(&mut dice)).collect()
        };
        let (cuts, deaths) = (spans(2, 2 * SECOND), spans(2, SECOND));
        // Once a region is gone nobody can tell a wrong order from a cut.
        let troubled = !ordered || dice.chance(0.3);
        Self {
            held,
            plan,
            kind,
            ordered,
            live,
            gone,
            keeps_stores: way == Way::Split || dice.chance(0.5),
            weights,
            acts: timed,
            cuts: if troubled { cuts } else { Vec::new() },
            deaths: if troubled { deaths } else { Vec::new() },
            end,
        }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        let acts: Vec<String> =
            self.acts.iter().map(|(at, act)| format!("{} ms {act:?}", at * STEP.0 / 1_000)).collect();
        format!(
            "{}, {:?} of {} regions{}{}{}{}, weights {:?}, cuts {:?}, deaths {:?}: {}",
            self.held.describe(),
            self.kind,
            self.plan.regions.len(),
            if self.ordered { " in order" } else { "" },
            if self.live { ", by commands" } else { "" },
            if self.gone { ", lost with its shares" } else { "" },
            if self.keeps_stores { ", stores outlive daemons" } else { "" },
            self.weights,
            self.cuts,
            self.deaths,
            acts.join(", ")
        )
    }

    fn last(&self) -> usize {
        self.plan.regions.len() - 1
    }

    /// The list that all have in the end.
    fn list(&self) -> RegionList {
        let mut list = RegionList::of(names(&self.plan));
        if self.kind == Kind::Leave {
            let left = list.names.split_off(self.last());
            if self.live {
                list.removed = left;
            }
            if self.gone {
                list.gone.clone_from(&list.removed);
            }
        }
        list
    }

    /// The list in which the region that leaves has no share any more.
    fn drained(&self) -> RegionList {
        let names = names(&self.plan);
        RegionList { drained: names.last().cloned().into_iter().collect(), ..RegionList::of(names) }
    }
}

/// Returns what is done, one after the other.
fn acts(dice: &mut Dice, kind: Kind, regions: usize, (ordered, plain): (bool, bool)) -> Vec<Act> {
    let last = regions - 1;
    let mut acts: Vec<Act> = Vec::new();
    let mut each = |daemons: std::ops::Range<usize>, act: fn(usize) -> Act| {
        let mut daemons: Vec<usize> = daemons.collect();
        shuffle(dice, &mut daemons);
        acts.extend(daemons.into_iter().map(act));
    };
    match kind {
        Kind::Join => {
            each(0..last, Act::List);
            if !plain {
                each(0..regions, Act::Weigh);
            }
            each(last..regions, Act::Begin);
        }
        Kind::Leave => {
            if !plain {
                each(0..regions, Act::Lighten);
            }
            each(last..regions, Act::End);
            if !plain {
                each(0..last, Act::Weigh);
            }
            each(0..last, Act::List);
        }
        Kind::Reweigh => each(0..regions, Act::Weigh),
    }
    if !ordered {
        if dice.chance(0.3) && kind == Kind::Join {
            acts.push(Act::Mislist(index(dice.below(place(regions)))));
        }
        shuffle(dice, &mut acts);
        // A fault in a list is mended in the end.
        let wrong = acts.iter().find_map(|act| match act {
            Act::Mislist(at) => Some(*at),
            _ => None,
        });
        acts.extend(wrong.map(Act::List));
    }
    acts
}

fn shuffle<T>(dice: &mut Dice, list: &mut [T]) {
    for at in (1..list.len()).rev() {
        list.swap(at, index(dice.below(place(at + 1))));
    }
}

/// The knowledge of a daemon: its list of regions, and the rule in force.
type Ground = (RegionList, String);

struct Game<'c> {
    case: &'c JoinsCase,
    play: Play,
    /// By daemon: whether it runs, but for deaths.
    runs: Vec<bool>,
    /// By daemon: all that it went by so far.
    grounds: Vec<BTreeSet<Ground>>,
    /// By daemon: whether it began without a memory of an agreement and has spent nothing since.
    fresh: Vec<bool>,
}

/// Plays a case; `agrees` is whether daemons wait for an agreement before they spend.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &JoinsCase, agrees: bool) -> Result<Summary, String> {
    let [before, ..] = &case.weights;
    let daemons = case.plan.regions.len();
    let mut engines = engines(&case.plan, &case.held.written(before));
    engines.keeps_stores = case.keeps_stores;
    engines.agrees = agrees;
    if case.kind == Kind::Join {
        engines.lists.iter_mut().for_each(|list| list.names.truncate(case.last()));
    }
    let mut play = Play::new(&case.plan, case.held, engines)?;
    let mut runs = vec![true; daemons];
    if case.kind == Kind::Join {
        runs[case.last()] = false;
        if let Some(daemon) = play.world.daemons_mut().get_mut(case.last()) {
            (daemon.alive, daemon.known) = (false, false);
        }
        play.world.meet();
    }
    let (grounds, fresh) = (vec![BTreeSet::new(); daemons], vec![true; daemons]);
    let mut game = Game { case, play, runs, grounds, fresh };
    for step in 0..case.end {
        game.turn(step).map_err(|why| format!("{why}, {} ms after the start", step * STEP.0 / 1_000))?;
    }
    game.peace();
    for _ in 0..SETTLED {
        game.play.step();
    }
    game.judge()?;
    Ok(game.play.summary())
}

impl Game<'_> {
    fn turn(&mut self, step: u64) -> Result<(), String> {
        for (at, act) in &self.case.acts {
            if *at == step {
                self.act(*act);
            }
        }
        for (region, from, to) in self.case.cuts.clone() {
            if [from, to].contains(&step) {
                self.play.world.network_mut().cut(&[region], true, true, step == from && from < to);
                self.play.faults += 1;
            }
        }
        for (at, from, to) in self.case.deaths.clone() {
            if step == from && self.is_alive(at) {
                self.play.world.kill(at);
                self.play.faults += 1;
            } else if step == to && self.runs[at] && !self.is_alive(at) {
                self.start(at, true);
            }
        }
        self.note();
        let per_step = 2.0 * f64::from(self.case.held.limit) * float(STEP.0) / float(self.case.held.window.0);
        for at in 0..self.runs.len() {
            for user in 0..USERS {
                for _ in 0..self.play.dice.poisson(per_step) {
                    self.request(at, user)?;
                }
            }
        }
        self.play.step();
        Ok(())
    }

    fn is_alive(&self, at: usize) -> bool {
        self.play.world.daemons().get(at).is_some_and(|daemon| daemon.alive)
    }

    fn act(&mut self, act: Act) {
        let [_, between, after] = &self.case.weights;
        let rule = |weights: &[(String, u32)]| self.case.held.written(weights);
        let (between, after) = (rule(between), rule(after));
        let mut list = self.case.list();
        let runs = self.is_alive_of(act);
        let Some(engines) = &mut self.play.world.engines else { return };
        let mut put = |at: usize, list: Option<RegionList>, rule: Option<Value>| {
            if let (Some(list), Some(known)) = (list, engines.lists.get_mut(at)) {
                *known = list;
            }
            if let (Some(rule), Some(known)) = (rule, engines.rules.get_mut(at)) {
                *known = rule;
            }
        };
        match act {
            Act::Begin(at) => {
                put(at, Some(list), Some(after));
                self.runs[at] = true;
                self.start(at, false);
            }
            Act::List(at) | Act::Mislist(at) => {
                if matches!(act, Act::Mislist(_)) {
                    list.names.remove(0);
                }
                put(at, Some(list.clone()), None);
                if self.case.live && runs {
                    self.play.world.relist(at, list);
                } else if self.runs[at] {
                    self.start(at, true);
                }
            }
            Act::Lighten(at) if self.case.live => {
                put(at, Some(self.case.drained()), None);
                if runs {
                    self.play.world.relist(at, self.case.drained());
                } else if self.runs[at] {
                    self.start(at, true);
                }
            }
            Act::Weigh(at) | Act::Lighten(at) => {
                put(at, None, Some(if matches!(act, Act::Weigh(_)) { after } else { between }));
                if self.is_alive(at) {
                    self.play.world.reload(at);
                } else if self.runs[at] {
                    self.start(at, true);
                }
            }
            Act::End(at) => {
                self.runs[at] = false;
                self.play.world.kill(at);
            }
        }
    }

    /// True if the daemon runs that something is done to.
    fn is_alive_of(&self, act: Act) -> bool {
        let (Act::Begin(at)
        | Act::List(at)
        | Act::Mislist(at)
        | Act::Weigh(at)
        | Act::Lighten(at)
        | Act::End(at)) = act;
        self.is_alive(at)
    }

    /// Starts a daemon, again with what it noted or for the first time. With rules that it refuses it does
    /// not begin.
    fn start(&mut self, at: usize, again: bool) {
        let world = &mut self.play.world;
        if again {
            world.restart(at);
        } else {
            world.restart_with(at, None);
        }
        let engine = world.daemons().get(at).and_then(|daemon| daemon.node.engine.as_ref());
        if engine.is_some_and(|engine| engine.in_force().is_empty()) {
            world.kill(at);
        }
    }

    /// Notes what each daemon goes by.
    fn note(&mut self) {
        let daemons = self.play.world.daemons().iter().zip(&mut self.grounds);
        for (daemon, grounds) in daemons.filter(|(daemon, _)| daemon.alive) {
            if let Some(engine) = &daemon.node.engine {
                grounds.insert(ground(engine));
            }
        }
    }

    fn request(&mut self, at: usize, user: u64) -> Result<(), String> {
        let Some(decision) = self.play.request(at, user, Cost::Take(1)) else { return Ok(()) };
        if !decision.allowed {
            return Ok(());
        }
        if std::mem::take(&mut self.fresh[at]) {
            self.has_agreed(at)?;
        }
        self.play.never_above(user, at)
    }

    /// Every region that a daemon lists has gone by the same as it does now.
    fn has_agreed(&self, at: usize) -> Result<(), String> {
        let daemon = self.play.world.daemons().get(at).and_then(|daemon| daemon.node.engine.as_ref());
        let Some(engine) = daemon else { return Ok(()) };
        let ground = ground(engine);
        for (other, daemon) in self.play.world.daemons().iter().enumerate().filter(|(other, _)| *other != at)
        {
            let region = &daemon.name.region;
            if engine.regions().names.contains(region)
                && !self.grounds[other].iter().any(|known| means(known, &ground))
            {
                return Err(format!(
                    "daemon {at} admits before {region} has said the same regions and weights"
                ));
            }
        }
        Ok(())
    }

    fn peace(&mut self) {
        self.play.world.network_mut().mend();
        self.play.world.network_mut().weather.loss = 0.0;
        for at in 0..self.runs.len() {
            if self.runs[at] && !self.is_alive(at) {
                self.start(at, true);
            }
        }
    }

    /// All who run, and whose share holds a permit, serve somebody whom nobody has seen yet. Shares may wait
    /// for ever for a region that went in another order than the manual's; without windows they wait for
    /// longer than is played.
    fn judge(&mut self) -> Result<(), String> {
        let waits = self.case.kind == Kind::Leave && !self.case.ordered && !self.case.gone;
        if waits || self.case.held.algorithm.counting() == Counting::Level {
            return Ok(());
        }
        let list = self.case.list();
        let weights = Weights::among(&self.case.weights[2], &[], &list);
        let holds = |at: &usize| {
            list.names.get(*at).is_some_and(|region| weights.of(self.case.held.limit.into(), region) > 0)
        };
        for at in (0..self.runs.len()).filter(|at| self.runs[*at] && holds(at)).collect::<Vec<_>>() {
            let stranger = 1_000 + place(at);
            let served = self.play.request(at, stranger, Cost::Take(1));
            if !served.is_some_and(|decision| decision.allowed) {
                return Err(format!("daemon {at} refuses a user whom nobody has seen yet"));
            }
        }
        Ok(())
    }
}

/// True if both list the same regions and give the same weights, however these are written: a region without
/// a weight need not be named.
fn means(one: &Ground, other: &Ground) -> bool {
    one.0.names == other.0.names && weights(one) == weights(other)
}

/// The regions that share, sorted, with their weights.
fn weights((regions, rule): &Ground) -> Vec<(String, u32)> {
    let rule: Value = serde_json::from_str(rule).unwrap_or_default();
    let shares = rule["global"]["shares"].as_object().into_iter().flatten();
    let shares = shares.map(|(region, weight)| {
        let weight = weight.as_u64().and_then(|weight| u32::try_from(weight).ok());
        (region.clone(), weight.unwrap_or(0))
    });
    let weights = Weights::among(&shares.collect::<Vec<_>>(), &[], regions);
    let shares = weights.parts().filter(|(_, weight, _)| *weight > 0);
    shares.map(|(region, weight, _)| (region.to_owned(), weight)).collect()
}

/// The list and the rule that a daemon goes by now.
fn ground(engine: &DaemonEngine) -> Ground {
    let mut list = engine.regions().clone();
    list.names.sort();
    (list, engine.in_force().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_without_a_weight_says_the_same_named_or_not_and_another_weight_does_not() {
        let held = Held {
            way: Some(Way::Escrow),
            algorithm: Algorithm::FixedWindow,
            limit: 40,
            burst: 40,
            window: Span::from_millis(300),
        };
        let listed = || RegionList::of(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]);
        let ground = |shares: &[(&str, u32)]| -> Ground {
            let shares: Vec<(String, u32)> =
                shares.iter().map(|(region, weight)| ((*region).to_owned(), *weight)).collect();
            (listed(), held.written(&shares).to_string())
        };
        let named = ground(&[("a", 1), ("b", 2), ("c", 0)]);
        assert!(means(&named, &ground(&[("b", 2), ("a", 1)])));
        assert!(means(&ground(&[]), &ground(&[("a", 1), ("b", 1), ("c", 1)])));
        assert!(!means(&named, &ground(&[("a", 1), ("b", 2), ("c", 1)])));
        assert!(!means(&named, &ground(&[])));
        let fewer = (RegionList::of(vec!["a".to_owned(), "b".to_owned()]), named.1.clone());
        assert!(!means(&named, &fewer));
    }
}
