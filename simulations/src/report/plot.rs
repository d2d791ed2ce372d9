//! One picture for each way to hold the limit: admitted per region and worldwide against the limit,
//! overshoot, and lag.

use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use crate::drive::{Belief, Observed, Outcome};
use crate::model::shell::windowed;
use crate::number::{float, len, seconds};
use crate::plan::Plan;

const SIZE: (u32, u32) = (960, 800);
/// The size with a picture more, of runs in which real daemons answered.
const SIZE_OBSERVED: (u32, u32) = (960, 970);
/// Up to so many times what is admitted, or the limit, what is asked for is shown in full.
const ASKED_SHOWN: f64 = 2.6;
const LETTERS: &[u8] = include_bytes!("../../assets/plot-sans.ttf");
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
    RGBColor(127, 127, 127),
];
const WORLD: RGBColor = RGBColor(20, 20, 20);
const LIMIT: RGBColor = RGBColor(214, 39, 40);
/// The breadths of the lines of regions, from the last one back to the first.
const WIDTHS: [u32; 4] = [1, 3, 5, 7];
/// The length of its axis in runs, so that the legend covers nothing.
const LEGEND: f64 = 1.2;
/// More regions than this are drawn as the world alone.
const REGIONS_MAX: usize = 8;

type Series = Vec<(f64, f64)>;

/// Makes the plots' letters known. Once before the first plot.
pub(crate) fn prepare() -> anyhow::Result<()> {
    for style in [FontStyle::Normal, FontStyle::Bold] {
        register_font(FONT, style, LETTERS).map_err(|_| anyhow!("the font of the plots cannot be read"))?;
    }
    Ok(())
}

/// The picture as SVG.
pub(crate) fn svg(plan: &Plan, outcome: &Outcome) -> anyhow::Result<String> {
    let mut text = String::new();
    draw(&SVGBackend::with_string(&mut text, size(outcome)).into_drawing_area(), plan, outcome)?;
    Ok(text)
}

/// The picture as PNG, into a file.
pub(crate) fn png(plan: &Plan, outcome: &Outcome, path: &Path) -> anyhow::Result<()> {
    draw(&BitMapBackend::new(path, size(outcome)).into_drawing_area(), plan, outcome)
        .with_context(|| format!("{} cannot be written", path.display()))
}

const fn size(outcome: &Outcome) -> (u32, u32) {
    match &outcome.observed {
        Some(observed) if !observed.beliefs.is_empty() => SIZE_OBSERVED,
        _ => SIZE,
    }
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, plan: &Plan, outcome: &Outcome) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    let title = format!("{}: {}", plan.name, outcome.way.title());
    area.fill(&WHITE)?;
    let area = area.titled(&title, (FONT, 22))?;
    let (top, rest) = area.split_vertically(430);
    rates(&top, plan, outcome)?;
    // Each user has a limit of its own, and what is drawn is of all together.
    let bottom = if plan.demand.users == 1 {
        let (middle, bottom) = rest.split_vertically(165);
        let over = overshoot(plan, outcome);
        let what = match windowed(plan.rule.algorithm) {
            true => "overshoot, % of the limit",
            false => "debt, % of the burst",
        };
        single(&middle, what, outcome, (&over, LIMIT.filled()))?;
        bottom
    } else {
        rest
    };
    match &outcome.observed {
        None => single(&bottom, "lag, ms", outcome, (&lag(outcome), COLOURS[0].filled()))?,
        Some(observed) if observed.beliefs.is_empty() => latencies(&bottom, outcome, observed)?,
        Some(observed) => {
            let (middle, bottom) = bottom.split_vertically(165);
            latencies(&middle, outcome, observed)?;
            beliefs(&bottom, outcome, observed)?;
        }
    }
    area.present()?;
    Ok(())
}

fn at(outcome: &Outcome, point: usize) -> f64 {
    len(point) * seconds(outcome.point_len)
}

fn rates<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    plan: &Plan,
    outcome: &Outcome,
) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    let per = seconds(outcome.point_len);
    let rate = |count: u64| float(count) / per;
    let of = |count: &dyn Fn(&crate::measure::Point) -> u64| -> Series {
        let points = outcome.points.iter().enumerate();
        points.map(|(place, point)| (at(outcome, place), rate(count(point)))).collect()
    };
    let limit = f64::from(plan.rule.limit) / seconds(plan.rule.window);
    let world = of(&|point| point.admitted.iter().sum());
    let asked = of(&|point| point.asked);
    let limits: Vec<(f64, f64)> = outcome
        .limits
        .iter()
        .map(|&(since, permits)| (since, f64::from(permits) / seconds(plan.rule.window)))
        .collect();
    let admitted = world.iter().chain(&limits).map(|&(_, y)| y).fold(limit, f64::max);
    let most_asked = asked.iter().map(|&(_, y)| y).fold(0.0, f64::max);
    let highest = (admitted * 1.35).max(most_asked.min(admitted * ASKED_SHOWN) * 1.1);
    let end = at(outcome, outcome.points.len());
    let mut chart = chart(area, "permits per second", end, highest)?;
    for (place, (word, from, until)) in faults(plan, outcome).into_iter().enumerate() {
        let shade = RGBColor(255, 160, 60);
        chart.draw_series([Rectangle::new(
            [(from, 0.0), (until.min(end), highest)],
            shade.mix(0.15).filled(),
        )])?;
        chart.draw_series([PathElement::new([(from, 0.0), (from, highest)], shade.stroke_width(1))])?;
        // One below the other: what happens soon after would be written over it.
        let height = 0.97 - 0.05 * len(place % 4);
        let label = Text::new(word, (from, highest * height), (FONT, 12).into_font());
        chart.draw_series([label])?;
    }
    let asked = asked.into_iter().map(|(x, y)| (x, y.min(highest)));
    let grey = RGBColor(190, 190, 190);
    chart
        .draw_series(LineSeries::new(asked, grey.stroke_width(1)))?
        .label("asked for")
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], grey.stroke_width(1)));
    // Broad and behind the others: what is admitted is often the limit, and both are to be seen.
    let pale = LIMIT.mix(0.45);
    if plan.demand.users == 1 {
        chart
            .draw_series(LineSeries::new(steps(&limits, end), pale.stroke_width(6)))?
            .label("limit")
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], pale.stroke_width(6)));
    }
    if plan.regions.len() <= REGIONS_MAX {
        for (place, region) in plan.regions.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let line = of(&|point| point.admitted.get(place).copied().unwrap_or(0));
            // Regions that admit the same are seen beside each other.
            let width = WIDTHS.get(plan.regions.len() - 1 - place).copied().unwrap_or(7);
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(width)))?
                .label(region.name.clone())
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
    }
    chart
        .draw_series(LineSeries::new(world, WORLD.stroke_width(2)))?
        .label("world")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], WORLD.stroke_width(2)));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

/// Returns what goes wrong, from when until when: as it happened where daemons are real, and as it is planned
/// otherwise.
fn faults(plan: &Plan, outcome: &Outcome) -> Vec<(&'static str, f64, f64)> {
    if let Some(observed) = &outcome.observed {
        return observed.faults.clone();
    }
    let planned = plan.faults.iter().map(|fault| {
        let from = seconds(fault.at);
        (fault.kind.word(), from, from + seconds(fault.lasts))
    });
    planned.collect()
}

/// A line that keeps each value until the next begins.
fn steps(values: &[(f64, f64)], end: f64) -> Series {
    let mut line = Series::new();
    for (place, &(since, value)) in values.iter().enumerate() {
        let until = values.get(place + 1).map_or(end, |&(next, _)| next);
        line.extend([(since, value), (until, value)]);
    }
    line
}

type Chart<'a, B> = ChartContext<
    'a,
    B,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn chart<'a, B: DrawingBackend + 'a>(
    area: &DrawingArea<B, Shift>,
    what: &str,
    end: f64,
    highest: f64,
) -> anyhow::Result<Chart<'a, B>>
where
    B::ErrorType: 'static,
{
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..(end * LEGEND).max(1e-6), 0.0..highest.max(1e-6))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .label_style((FONT, 12))
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .x_desc("seconds")
        .y_desc(what)
        .axis_desc_style((FONT, 13))
        .draw()?;
    Ok(chart)
}

/// A number of an axis, without the digits that floats leave behind.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn single<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    what: &str,
    outcome: &Outcome,
    (series, style): (&Series, ShapeStyle),
) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    let end = at(outcome, outcome.points.len());
    let highest = series.iter().map(|&(_, y)| y).fold(0.0, f64::max);
    // A picture of nothing should look like nothing: below one the axis ends at one.
    let mut chart = chart(area, what, end, (highest * 1.15).max(1.0))?;
    chart.draw_series(LineSeries::new(series.iter().copied(), style.stroke_width(2)))?;
    Ok(())
}

/// Draws what regions believed to be used, with and without the error bound, beside what was.
fn beliefs<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    outcome: &Outcome,
    observed: &Observed,
) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    let of = |value: &dyn Fn(&Belief) -> f64| -> Series {
        observed.beliefs.iter().map(|belief| (belief.at, value(belief))).collect()
    };
    let end = at(outcome, outcome.points.len());
    let highest = observed.beliefs.iter().map(|belief| belief.most.max(belief.used)).fold(1.0, f64::max);
    let chart = chart(area, "permits of the window", end, highest * 1.35)?;
    let lines = [
        ("believed and bound", of(&|belief| belief.most), COLOURS[6]),
        ("believed", of(&|belief| belief.believed), COLOURS[0]),
        ("used", of(&|belief| belief.used), WORLD),
    ];
    labelled(chart, lines)
}

/// Draws how long answers took.
fn latencies<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    outcome: &Outcome,
    observed: &Observed,
) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    let end = at(outcome, outcome.points.len());
    let highest = observed.latencies.iter().map(|&(.., high)| high).fold(1.0, f64::max);
    let chart = chart(area, "answers took, ms", end, highest * 1.35)?;
    let half = observed.latencies.iter().map(|&(at, median, _)| (at, median)).collect();
    let most = observed.latencies.iter().map(|&(at, _, high)| (at, high)).collect();
    labelled(chart, [("99 of 100", most, COLOURS[4]), ("half of them", half, COLOURS[0])])
}

/// Draws lines, each with its label.
fn labelled<'a, B: DrawingBackend + 'a, const N: usize>(
    mut chart: Chart<'a, B>,
    lines: [(&str, Series, RGBColor); N],
) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    for (label, line, colour) in lines {
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(1)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

/// Returns how far above the limit the world was, in percent, as the window (or the bucket) went on.
pub(crate) fn overshoot(plan: &Plan, outcome: &Outcome) -> Series {
    let burst = f64::from(plan.rule.burst).max(1.0);
    let in_force = |from: f64, until: f64| {
        let limits = outcome.limits.iter().enumerate().filter(|(place, (since, _))| {
            *since < until && outcome.limits.get(place + 1).is_none_or(|(next, _)| *next > from)
        });
        limits.map(|(_, (_, permits))| f64::from(*permits)).fold(0.0, f64::max)
    };
    let (mut window, mut sum, mut tokens) = (None, 0.0, burst);
    let mut series = Series::new();
    for (place, point) in outcome.points.iter().enumerate() {
        let admitted = float(point.admitted.iter().sum());
        let over = if windowed(plan.rule.algorithm) {
            let begins = crate::number::place(place) * outcome.point_len.0;
            let index = begins / plan.rule.window.0.max(1);
            let from = float(index) * seconds(plan.rule.window);
            let limit = in_force(from, from + seconds(plan.rule.window)).max(1.0);
            sum = if window.replace(index) == Some(index) { sum + admitted } else { admitted };
            sum / limit - 1.0
        } else {
            let now = at(outcome, place);
            let gained = in_force(now, now + seconds(outcome.point_len)) * seconds(outcome.point_len)
                / seconds(plan.rule.window);
            tokens = (tokens + gained).min(burst + gained) - admitted;
            let debt = -tokens;
            tokens = tokens.min(burst);
            debt / burst
        };
        series.push((at(outcome, place), over.max(0.0) * 100.0));
    }
    series
}

fn lag(outcome: &Outcome) -> Series {
    let points = outcome.points.iter().enumerate();
    points.map(|(place, point)| (at(outcome, place), point.lag * 1e3)).collect()
}
