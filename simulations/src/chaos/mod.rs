//! `sim chaos`: a scenario on real daemons, with real stores and real packets, broken on purpose and judged
//! by what clients saw.
//!
//! It reads the files that `sim run` reads, so the same story can be told in virtual time and by processes.
#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

mod answers;
mod clients;
mod clock;
mod cluster;
mod daemon;
mod deployment;
mod disk;
mod draw;
mod gateway;
mod judge;
mod kept;
mod page;
mod postgres;
mod process;
mod reverted;
mod system;
mod wan;
mod world;

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tidegate::core::time::Span;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use self::answers::Answer;
use self::clients::{Book, Clients, Due, Seen, Stall, since_epoch};
use self::deployment::Deployment;
use self::judge::{Evidence, Happened, Kept, Remembered, Told, Verdict};
pub(crate) use self::reverted::Reverted;
use self::system::System;
use self::world::World;
use crate::BadInput;
use crate::drive::{Arrivals, Observed, Outcome, drive};
use crate::measure::Measure;
use crate::model::START;
use crate::plan::{FaultKind, Plan, Way};
use crate::report::plot;
use crate::run;

/// The folder of the stories for real daemons.
const STORIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stories");
/// Connections of the clients of one region.
const CONNECTIONS: usize = 16;
/// Requests of one region that wait for a free connection; what comes beyond is not sent.
const QUEUE: usize = 4_096;
/// The time after which clients send what has come due.
const TICK: Duration = Duration::from_millis(2);
/// Shorter ones happen all the time.
const STALL: Duration = Duration::from_millis(50);
/// Between the last fault or request and the end, so that late answers are seen.
const AFTER: Duration = Duration::from_millis(500);

/// The stories to play, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Scenario files, or names of stories in simulations/stories/; `all` plays every one of those.
    #[arg(required_unless_present_any = ["draw", "seed"])]
    scenarios: Vec<String>,
    /// Draws so many stories besides, from this seed (`--seed`, 1 unless given) and those that follow; each
    /// is printed, and kept as a file beside its page. One that cannot be played does not stop the others.
    /// A seed without a story draws one.
    #[arg(long)]
    draw: Option<u32>,
    /// Only these ways (comma-separated) of gossip, split and escrow instead of the file's.
    #[arg(long, value_delimiter = ',')]
    ways: Vec<String>,
    /// Another seed than the file's, for demand and network; without a file the seed from which a story is
    /// drawn.
    #[arg(long)]
    seed: Option<u64>,
    /// Plays the story on daemons that are there: a file with their addresses and the commands that break
    /// them. Give the one way that they hold the rule by.
    #[arg(long, conflicts_with = "draw", requires = "scenarios")]
    deployment: Option<PathBuf>,
    /// The daemon's program; without it the one beside this program.
    #[arg(long)]
    tidegate: Option<PathBuf>,
    /// Where pages and plots go, and below it in `broken` the logs of the last few runs that broke a promise.
    #[arg(long, default_value = "target/chaos")]
    out: PathBuf,
    /// Writes no pages.
    #[arg(long)]
    no_plots: bool,
}

/// A promise was broken: exit code 1.
#[derive(Debug, thiserror::Error)]
#[error("{broken} of {runs} runs broke a promise{}", unplayed_in_words(*.unplayed))]
struct Broken {
    runs: usize,
    broken: usize,
    unplayed: usize,
}

/// No promise was broken, but not all that was drawn could be played: exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("{runs} runs broke no promise{}", unplayed_in_words(*.unplayed))]
pub(crate) struct Unplayed {
    runs: usize,
    unplayed: usize,
}

fn unplayed_in_words(unplayed: usize) -> String {
    match unplayed {
        0 => String::new(),
        1 => ", and one story could not be played".to_owned(),
        more => format!(", and {more} stories could not be played"),
    }
}

/// The figures and verdicts of one run.
struct Shown {
    outcome: Outcome,
    verdicts: Vec<Verdict>,
    latencies: [Duration; 3],
    faults: Vec<Happened>,
    /// Folder of the logs, if a promise was broken.
    logs: Option<PathBuf>,
}

impl Shown {
    fn is_broken(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.kept == Kept::No)
    }
}

/// Plays every story in every way that it names.
pub(crate) fn run(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    let program = world::program(settings.tidegate.as_ref())?;
    let (mut files, mut drawn) = (Vec::new(), Vec::new());
    for name in &settings.scenarios {
        match name.as_str() {
            "all" => files.extend(run::all_of(STORIES)?),
            name => files.push(run::find_in(STORIES, name)),
        }
    }
    plot::prepare()?;
    let (mut runs, mut broken, mut unplayed) = (0, 0, 0);
    let draws_one = settings.scenarios.is_empty();
    if let Some(times) = settings.draw.or(draws_one.then_some(1)) {
        std::fs::create_dir_all(&settings.out)?;
        for (name, text) in draw::stories(times, settings.seed.unwrap_or(1), clock::can_be_moved()) {
            let file = settings.out.join(name).with_extension("toml");
            std::fs::write(&file, text).with_context(|| format!("{} cannot be written", file.display()))?;
            drawn.push(file);
        }
    }
    for (file, is_drawn) in
        files.iter().map(|file| (file, false)).chain(drawn.iter().map(|file| (file, true)))
    {
        let mut plan = run::load(file)?;
        if is_drawn {
            writeln!(out, "{}", std::fs::read_to_string(file)?)?;
        } else {
            plan.seed = settings.seed.unwrap_or(plan.seed);
        }
        let named = if settings.ways.is_empty() { plan.ways.clone() } else { run::named(&settings.ways)? };
        plan.ways =
            named.into_iter().filter(|way| matches!(way, Way::Gossip | Way::Split | Way::Escrow)).collect();
        writeln!(out, "{}\n{}", plan.name, plan.about)?;
        let (mut all, simulated) =
            (Vec::new(), if is_drawn { simulated(&plan).unwrap_or_default() } else { simulated(&plan)? });
        for &way in &plan.ways {
            let name = format!("{}-{}", run::stem(file), way.word());
            let system = || system(&plan, way, settings, &program);
            let played =
                system().and_then(|system| play(&plan, way, system, (&settings.out.join("broken"), &name)));
            let shown = match played.with_context(|| format!("{}, {}", plan.name, way.word())) {
                Ok(shown) => shown,
                // A run of many drawn stories tells of all the others too.
                Err(why) if is_drawn => {
                    writeln!(out, "  {}: could not be played: {why:#}", way.word())?;
                    unplayed += 1;
                    continue;
                }
                Err(why) => return Err(why),
            };
            page::print(way, &shown, &simulated, out)?;
            runs += 1;
            broken += usize::from(shown.is_broken());
            all.push(shown);
        }
        if !settings.no_plots && !all.is_empty() {
            let path = page::write(&plan, &all, &simulated, (&settings.out, &run::stem(file)))?;
            writeln!(out, "report: {}", path.display())?;
        }
        writeln!(out)?;
    }
    match (broken, unplayed) {
        (0, 0) => Ok(()),
        (0, _) => Err(Unplayed { runs, unplayed }.into()),
        _ => Err(Broken { runs, broken, unplayed }.into()),
    }
}

/// The same in virtual time, as far as that knows it.
fn simulated(plan: &Plan) -> anyhow::Result<Vec<Outcome>> {
    if plan.faults.iter().any(|fault| fault.kind.needs_processes()) {
        return Ok(Vec::new());
    }
    plan.ways.iter().map(|&way| drive(plan, way)).collect()
}

/// Makes the system that a story is played on in one way.
fn system(plan: &Plan, way: Way, settings: &Settings, program: &Path) -> anyhow::Result<System> {
    let Some(file) = &settings.deployment else {
        return Ok(System::Started(Box::new(World::new(plan, way, program)?)));
    };
    if plan.ways.len() != 1 {
        return Err(BadInput("a deployment holds the rule in one way: name it with --ways".to_owned()).into());
    }
    Ok(System::Deployed(Deployment::read(file, plan)?))
}

/// Plays a story in one way. The logs of its processes stay in a folder below this one if it breaks a promise
/// or cannot be played.
fn play(plan: &Plan, way: Way, mut system: System, broken: (&Path, &str)) -> anyhow::Result<Shown> {
    // The relays have a runtime of their own, and drop it: not within this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let ran = runtime.block_on(local.run_until(async {
        system.start(plan, way).await?;
        happen(plan, &mut system).await
    }));
    let keep = |system: &System| {
        let kept = system.folder().map(|folder| kept::keep(folder, broken.0, broken.1));
        kept.transpose()
    };
    let Run { begun, seen, unsent, stalls, told, remembered } = match ran {
        Ok(ran) => ran,
        Err(why) => {
            let Some(logs) = keep(&system)? else { return Err(why) };
            return Err(why.context(format!("its logs are in {}", logs.display())));
        }
    };
    let daemons = system.logs();
    let evidence =
        Evidence { plan, way, begun, seen: &seen, unsent, stalls, told: &told, daemons, remembered };
    let (verdicts, latencies) = (evidence.verdicts(), evidence.latencies());
    let of = |kept: Kept| verdicts.iter().filter(|verdict| verdict.kept == kept).count();
    let spans = told.faults.iter().map(|fault| {
        // One that is never put right is drawn until what it asked for was done.
        (fault.kind.word(), fault.from.as_secs_f64(), fault.until.as_secs_f64())
    });
    let observed = Observed {
        kept: of(Kept::Yes),
        broken: of(Kept::No),
        beliefs: evidence.beliefs(),
        latencies: evidence.latencies_in_time(),
        faults: spans.collect(),
    };
    let outcome = Outcome { observed: Some(observed), ..outcome(plan, way, begun, (&seen, &told.faults)) };
    let mut shown = Shown { outcome, verdicts, latencies, faults: told.faults, logs: None };
    if shown.is_broken() {
        shown.logs = keep(&system)?;
    }
    Ok(shown)
}

/// All that was seen of one run.
struct Run {
    /// When the first request could be sent, since the epoch.
    begun: Duration,
    seen: Vec<Seen>,
    unsent: u64,
    stalls: Vec<Stall>,
    told: Told,
    /// Rows that PostgreSQL has, if daemons share one.
    remembered: Option<Remembered>,
}

/// Lets clients ask, and breaks what the plan breaks.
async fn happen(plan: &Plan, system: &mut System) -> anyhow::Result<Run> {
    let book: Arc<Book> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let over = CancellationToken::new();
    let (mut queues, mut clients) = (Vec::new(), Vec::new());
    for region in 0..plan.regions.len() {
        let targets = system.targets(region, plan);
        for target in &targets {
            tokio::task::spawn_local(Arc::clone(target).follow(Arc::clone(&stop)));
        }
        let (queue, requests) = mpsc::channel(QUEUE);
        let of_region = Clients {
            targets: Rc::new(targets),
            requests: Rc::new(tokio::sync::Mutex::new(requests)),
            again: plan.demand.retry.then(|| queue.clone()),
            over: over.clone(),
            book: Arc::clone(&book),
        };
        queues.push(queue);
        for first in 0..CONNECTIONS {
            clients.push(tokio::task::spawn_local(of_region.clone().keep_asking(first)));
        }
    }
    let begun = beginning(plan);
    tokio::time::sleep(begun.saturating_sub(since_epoch())).await;
    let pace = tokio::task::spawn_local(pace(plan.clone(), begun, queues, Arc::clone(&book)));
    let told = break_things(plan, system, begun).await?;
    pace.await?;
    tokio::time::sleep(AFTER).await;
    over.cancel();
    for client in clients {
        client.await?;
    }
    stop.store(true, Ordering::Relaxed);
    let seen = std::mem::take(&mut *book.seen.lock().unwrap_or_else(PoisonError::into_inner));
    let stalls = std::mem::take(&mut *book.stalls.lock().unwrap_or_else(PoisonError::into_inner));
    let denied = seen.iter().filter(|seen| seen.answer.denied()).count();
    let remembered = system.remembered(crate::number::place(denied)).await?;
    Ok(Run { begun, seen, unsent: book.unsent.load(Ordering::Relaxed), stalls, told, remembered })
}

/// The beginning of the next window, and of a second.
fn beginning(plan: &Plan) -> Duration {
    let each = u128::from(plan.rule.window.0.clamp(1_000_000, 60_000_000));
    let soon = (since_epoch() + Duration::from_millis(200)).as_micros();
    Duration::from_micros(u64::try_from(soon.div_ceil(each) * each).unwrap_or(u64::MAX))
}

/// Hands out the requests of every step when it is due.
async fn pace(plan: Plan, begun: Duration, queues: Vec<mpsc::Sender<Due>>, book: Arc<Book>) {
    let mut arrivals = Arrivals::new(&plan);
    let steps = plan.length.0 / plan.step.0.max(1);
    for at in 0..steps {
        let due = begun + Duration::from_micros(at * plan.step.0);
        while since_epoch() < due {
            let slept = since_epoch();
            tokio::time::sleep(TICK).await;
            let until = since_epoch();
            let length = until.saturating_sub(slept).saturating_sub(TICK);
            if length > STALL {
                let stall = Stall { until, length };
                book.stalls.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
            }
        }
        arrivals.of_step(at, |ask| {
            let queue = queues.get(ask.region);
            if queue.is_none_or(|queue| queue.try_send(Due { at: due, ask, denied_before: None }).is_err()) {
                book.unsent.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Carries out the faults in time, and notes when each truly began and was over. It looks at `/metrics`
/// before the first, before one is put right, and at the end.
async fn break_things(plan: &Plan, system: &mut System, begun: Duration) -> anyhow::Result<Told> {
    let both = plan.faults.iter().enumerate().flat_map(|(fault, planned)| {
        let ends = planned.at + planned.lasts;
        let end = (planned.lasts > Span::ZERO).then_some((ends, false, fault));
        std::iter::once((planned.at, true, fault)).chain(end)
    });
    let mut events: Vec<(Span, bool, usize)> = both.collect();
    events.sort_unstable();
    let mut events = VecDeque::from(events);
    let end = begun + Duration::from_micros(plan.length.0);
    let mut happened: Vec<Option<Happened>> = vec![None; plan.faults.len()];
    let first = events.front().map_or(end, |(at, ..)| begun + Duration::from_micros(at.0));
    tokio::time::sleep(first.saturating_sub(since_epoch())).await;
    let mut told = Told { healthy: system.pages().await, ..Told::default() };
    while let Some((at, broken, fault)) = events.pop_front() {
        let due = begun + Duration::from_micros(at.0);
        tokio::time::sleep(due.saturating_sub(since_epoch())).await;
        let Some(planned) = plan.faults.get(fault) else { continue };
        if !broken {
            told.meanwhile.push((since_epoch().saturating_sub(begun), system.pages().await));
        }
        let from = since_epoch().saturating_sub(begun);
        system.fault(plan, fault, broken).await?;
        let until = since_epoch().saturating_sub(begun);
        if let Some(place) = happened.get_mut(fault) {
            let whole_run =
                if planned.lasts > Span::ZERO { Duration::from_micros(plan.length.0) } else { until };
            match place {
                Some(known) => known.until = until,
                None => *place = Some(Happened { kind: planned.kind.clone(), from, until: whole_run }),
            }
        }
    }
    tokio::time::sleep(end.saturating_sub(since_epoch())).await;
    told.meanwhile.push((since_epoch().saturating_sub(begun), system.pages().await));
    told.faults = happened.into_iter().flatten().collect();
    told.unplayed = system.unplayed();
    Ok(told)
}

/// The figures and the picture, by the same measure as in virtual time.
fn outcome(plan: &Plan, way: Way, begun: Duration, (seen, faults): (&[Seen], &[Happened])) -> Outcome {
    let mut measure = Measure::new(plan);
    let at = |instant: Duration| {
        START + Span(u64::try_from(instant.saturating_sub(begun).as_micros()).unwrap_or(u64::MAX))
    };
    let mut changes: VecDeque<(Duration, u32)> = faults
        .iter()
        .filter_map(|fault| match fault.kind {
            FaultKind::Limit(limit) => Some((begun + fault.from, limit)),
            _ => None,
        })
        .collect();
    let mut in_order: Vec<&Seen> = seen.iter().collect();
    in_order.sort_by_key(|seen| seen.sent);
    for seen in in_order {
        while let Some((since, limit)) = changes.pop_front_if(|(since, _)| *since <= seen.sent) {
            measure.limit_changed(at(since), limit);
        }
        measure.asked(at(seen.sent), seen.ask);
        match &seen.answer {
            Answer::Decided(decision) if decision.admitted => {
                let window = charged_window(plan, begun, seen, decision.reset);
                measure.admitted(at(seen.sent), seen.ask, window, Span::ZERO);
            }
            Answer::Decided(_) => measure.refused(at(seen.sent), seen.ask),
            Answer::Unasked => {
                let window = charged_window(plan, begun, seen, Duration::ZERO);
                measure.admitted(at(seen.sent), seen.ask, window, Span::ZERO);
            }
            Answer::Failed(_) | Answer::NobodyReady => {}
        }
    }
    Outcome {
        way,
        figures: measure.figures(),
        frames: 0.0,
        bytes: 0.0,
        frames_all: 0.0,
        bytes_all: 0.0,
        late: 0,
        points: measure.points().to_vec(),
        point_len: measure.point_len(),
        limits: measure.limits(),
        observed: None,
    }
}

/// The window that a request was most likely charged to: its answer says when that ends.
fn charged_window(plan: &Plan, begun: Duration, seen: &Seen, reset: Duration) -> u64 {
    let length = plan.rule.window.0.max(1);
    let index = |instant: Duration| {
        let since = u64::try_from(instant.saturating_sub(begun).as_micros()).unwrap_or(u64::MAX);
        (START + Span(since)).window_index(Span(length))
    };
    let ends = seen.answered + reset;
    // The answer took a little while, so the end is a little behind a boundary.
    let middle = ends.saturating_sub(Duration::from_micros(length / 2));
    index(middle).clamp(index(seen.sent), index(seen.answered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_story_can_be_read() {
        let stories = run::all_of(STORIES).unwrap();
        assert!(!stories.is_empty());
        for story in stories {
            let plan = run::load(&story).unwrap();
            assert!(plan.ways.iter().any(|way| matches!(way, Way::Gossip | Way::Split | Way::Escrow)));
        }
    }
}
