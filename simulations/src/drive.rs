//! Lets a plan happen to a model, and measures it. Every way of holding a limit meets the very same requests.

use tidegate::core::time::{Span, Timestamp};

use crate::BadInput;
use crate::measure::{Figures, Measure, Point};
use crate::model::{self, Answer, Ask, Model, START};
use crate::number::{float, len, place, seconds};
use crate::pattern::Pattern;
use crate::plan::{Demand, FaultKind, Plan, Way};
use crate::virtual_world::Dice;

/// The time between two looks at the lag.
const LOOK: Span = Span::from_millis(100);

/// The outcome of one way to hold the limit.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) way: Way,
    pub(crate) figures: Figures,
    /// Messages and bytes per second on each directed link between regions.
    pub(crate) frames: f64,
    pub(crate) bytes: f64,
    /// Messages and bytes per second in all.
    pub(crate) frames_all: f64,
    pub(crate) bytes_all: f64,
    /// Reports that came too late to be used by all at once.
    pub(crate) late: u64,
    pub(crate) points: Vec<Point>,
    pub(crate) point_len: Span,
    /// The limits that were in force, each with the seconds since the start from which on.
    pub(crate) limits: Vec<(f64, u32)>,
    /// Observations that only real daemons give.
    pub(crate) observed: Option<Observed>,
}

/// The observations of real daemons.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// Promises that were kept, and broken.
    pub(crate) kept: usize,
    pub(crate) broken: usize,
    /// Beliefs of the daemons beside what was used.
    pub(crate) beliefs: Vec<Belief>,
    /// By the second since the start: how many ms half of the answers took at most, and 99 of 100.
    pub(crate) latencies: Vec<(f64, f64, f64)>,
    /// Faults that truly happened, from when until when, in seconds since the start.
    pub(crate) faults: Vec<(&'static str, f64, f64)>,
}

/// The belief of a region on the use of the first user's window, for plots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Belief {
    /// Seconds since the start.
    pub(crate) at: f64,
    pub(crate) used: f64,
    pub(crate) believed: f64,
    /// With the error bound.
    pub(crate) most: f64,
}

/// The source of requests: the same for every way.
#[derive(Debug)]
pub(crate) struct Arrivals {
    pattern: Pattern,
    users: Users,
    dice: Dice,
    /// Permits asked for per window where the load is one, and steps per window.
    limit: f64,
    step: f64,
    cost: u64,
    regions: usize,
    asked: u64,
}

/// Users by Zipf's law.
#[derive(Debug)]
struct Users {
    /// Shares of the first so many users, added up, as parts of the whole.
    sums: Vec<f64>,
    /// The whole, where the first user's part is one.
    whole: f64,
}

impl Users {
    fn new(demand: &Demand) -> Self {
        let mut whole = 0.0;
        let mut sums: Vec<f64> = (1..=demand.users.max(1))
            .map(|user| {
                whole += float(user).powf(-demand.zipf);
                whole
            })
            .collect();
        for sum in &mut sums {
            *sum /= whole;
        }
        Self { sums, whole }
    }

    fn draw(&self, dice: &mut Dice) -> u64 {
        if self.sums.len() == 1 {
            return 0;
        }
        let at = dice.unit();
        place(self.sums.partition_point(|&sum| sum < at).min(self.sums.len() - 1))
    }
}

impl Arrivals {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            pattern: plan.demand.pattern.clone(),
            users: Users::new(&plan.demand),
            dice: Dice::new(plan.seed, 2),
            limit: f64::from(plan.rule.limit),
            step: seconds(plan.step) / seconds(plan.rule.window),
            cost: plan.demand.cost.max(1),
            regions: plan.regions.len(),
            asked: 0,
        }
    }

    /// The requests of step `at`, handed out one by one.
    pub(crate) fn of_step(&mut self, at: u64, mut each: impl FnMut(Ask)) {
        self.pattern.advance(&mut self.dice, self.step);
        // The first region within a step must not always be the same.
        let first = crate::number::index(self.dice.below(place(self.regions)));
        for region in (0..self.regions).map(|region| (region + first) % self.regions) {
            let load = self.pattern.load(region, self.regions, float(at) * self.step);
            let mean = load * self.limit * self.step * self.users.whole / float(self.cost);
            for _ in 0..self.dice.poisson(mean) {
                let user = self.users.draw(&mut self.dice);
                // Users are at home in different regions.
                let home = (place(region) + user) % place(self.regions);
                self.asked += 1;
                let (region, id) = (crate::number::index(home), self.asked);
                each(Ask { region, user, cost: self.cost, id });
            }
        }
    }
}

/// Runs a plan with the limit held in one way.
pub(crate) fn drive(plan: &Plan, way: Way) -> anyhow::Result<Outcome> {
    if let Some(fault) = plan.faults.iter().find(|fault| fault.kind.needs_processes()) {
        let word = fault.kind.word();
        return Err(BadInput(format!("{}: only `sim chaos` knows the fault {word:?}", plan.name)).into());
    }
    let mut model = model::build(plan, way)?;
    let mut measure = Measure::new(plan);
    let mut arrivals = Arrivals::new(plan);
    let mut faults = Faults::new(plan);
    let steps = plan.length.0 / plan.step.0.max(1);
    let mut next_look = START;
    for at in 0..steps {
        let now = START + Span(at * plan.step.0);
        faults.due(now, |kind, broken| {
            model.fault(kind, broken);
            if let (FaultKind::Limit(permits), true) = (kind, broken) {
                measure.limit_changed(now, *permits);
            }
        });
        arrivals.of_step(at, |ask| {
            measure.asked(now, ask);
            match model.ask(ask) {
                Answer::Admitted { window } => measure.admitted(now, ask, window, Span::ZERO),
                Answer::Refused => measure.refused(now, ask),
                Answer::Waits => {}
            }
        });
        model.step(plan.step);
        for late in model.late() {
            match late.admitted {
                Some(window) => measure.admitted(now, late.ask, window, late.delay),
                None => measure.refused(now, late.ask),
            }
        }
        if now >= next_look {
            next_look = now + LOOK;
            measure.lag(now, model.lag());
        }
    }
    Ok(outcome(plan, way, &*model, &measure))
}

fn outcome(plan: &Plan, way: Way, model: &dyn Model, measure: &Measure) -> Outcome {
    let regions = plan.regions.len();
    let links = len((regions * regions.saturating_sub(1)).max(1));
    let traffic = model.traffic();
    let per_second = |count: u64| float(count) / seconds(plan.length).max(1e-6);
    Outcome {
        way,
        figures: measure.figures(),
        frames: per_second(traffic.frames) / links,
        bytes: per_second(traffic.bytes) / links,
        frames_all: per_second(traffic.frames),
        bytes_all: per_second(traffic.bytes),
        late: model.late_reports(),
        points: measure.points().to_vec(),
        point_len: measure.point_len(),
        limits: measure.limits(),
        observed: None,
    }
}

/// The faults of a plan, as they begin and end.
#[derive(Debug)]
struct Faults {
    /// Instant, whether it breaks, and what.
    events: std::collections::VecDeque<(Timestamp, bool, FaultKind)>,
}

impl Faults {
    fn new(plan: &Plan) -> Self {
        let both = plan.faults.iter().flat_map(|fault| {
            let begin = START + fault.at;
            let end = (fault.lasts > Span::ZERO).then(|| (begin + fault.lasts, false, fault.kind.clone()));
            std::iter::once((begin, true, fault.kind.clone())).chain(end)
        });
        let mut events: Vec<_> = both.collect();
        events.sort_by_key(|(at, broken, _)| (*at, *broken));
        Self { events: events.into() }
    }

    fn due(&mut self, now: Timestamp, mut each: impl FnMut(&FaultKind, bool)) {
        while let Some((_, broken, kind)) = self.events.pop_front_if(|(at, ..)| *at <= now) {
            each(&kind, broken);
        }
    }
}
