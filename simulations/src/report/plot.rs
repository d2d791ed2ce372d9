//! One picture for each way to hold the limit: admitted per region and worldwide against the limit, overshoot, and lag.

use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use crate::drive::{Belief, Outcome};
use crate::model::shell::windowed;
use crate::number::{float, len, seconds};
use crate::plan::Plan;
use tidegate::core::time::Span;

const SIZE: (u32, u32) = (960, 800);
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
    draw(&SVGBackend::with_string(&mut text, SIZE).into_drawing_area(), plan, outcome)?;
    Ok(text)
}

/// The picture as PNG, into a file.
pub(crate) fn png(plan: &Plan, outcome: &Outcome, path: &Path) -> anyhow::Result<()> {
    draw(&BitMapBackend::new(path, SIZE).into_drawing_area(), plan, outcome)
        .with_context(|| format!("{} cannot be written", path.display()))
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
        single(&middle, "overshoot, % of the limit", &overshoot(plan, outcome), LIMIT.filled())?;
        bottom
    } else {
        rest
    };
    if outcome.beliefs.is_empty() {
        single(&bottom, "lag, ms", &lag(outcome), COLOURS[0].filled())?;
    } else {
        beliefs(&bottom, outcome)?;
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
    let highest = world.iter().map(|&(_, y)| y).fold(limit, f64::max) * 1.35;
    let end = at(outcome, outcome.points.len());
    let mut chart = chart(area, "permits per second", end, highest)?;
    for fault in &plan.faults {
        let from = seconds(fault.at);
        let until = if fault.lasts > Span::ZERO { from + seconds(fault.lasts) } else { from };
        let shade = RGBColor(255, 160, 60);
        chart.draw_series([Rectangle::new(
            [(from, 0.0), (until.min(end), highest)],
            shade.mix(0.15).filled(),
        )])?;
        chart.draw_series([PathElement::new([(from, 0.0), (from, highest)], shade.stroke_width(1))])?;
        let label = Text::new(fault.kind.word(), (from, highest * 0.97), (FONT, 12).into_font());
        chart.draw_series([label])?;
    }
    let asked = asked.into_iter().map(|(x, y)| (x, y.min(highest)));
    let grey = RGBColor(190, 190, 190);
    chart
        .draw_series(LineSeries::new(asked, grey.stroke_width(1)))?
        .label("asked for")
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], grey.stroke_width(1)));
    if plan.regions.len() <= REGIONS_MAX {
        for (place, region) in plan.regions.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let line = of(&|point| point.admitted.get(place).copied().unwrap_or(0));
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(1)))?
                .label(region.name.clone())
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
    }
    chart
        .draw_series(LineSeries::new(world, WORLD.stroke_width(2)))?
        .label("world")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], WORLD.stroke_width(2)));
    if plan.demand.users == 1 {
        chart
            .draw_series(LineSeries::new([(0.0, limit), (end, limit)], LIMIT.stroke_width(2)))?
            .label("limit")
            .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], LIMIT.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
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
        .build_cartesian_2d(0.0..end.max(1e-6), 0.0..highest.max(1e-6))?;
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
    series: &Series,
    style: ShapeStyle,
) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    let end = series.last().map_or(1.0, |&(x, _)| x);
    let highest = series.iter().map(|&(_, y)| y).fold(0.0, f64::max);
    // A picture of nothing should look like nothing: below one the axis ends at one.
    let mut chart = chart(area, what, end, (highest * 1.15).max(1.0))?;
    chart.draw_series(LineSeries::new(series.iter().copied(), style.stroke_width(2)))?;
    Ok(())
}

/// What regions believed to be used, with and without the error bound, beside what was.
fn beliefs<B: DrawingBackend>(area: &DrawingArea<B, Shift>, outcome: &Outcome) -> anyhow::Result<()>
where
    B::ErrorType: 'static,
{
    let of = |value: &dyn Fn(&Belief) -> f64| -> Series {
        outcome.beliefs.iter().map(|belief| (belief.at, value(belief))).collect()
    };
    let end = at(outcome, outcome.points.len());
    let highest = outcome.beliefs.iter().map(|belief| belief.most.max(belief.used)).fold(1.0, f64::max);
    let mut chart = chart(area, "permits of the window", end, highest * 1.35)?;
    let lines = [
        ("believed and bound", of(&|belief| belief.most), COLOURS[6]),
        ("believed", of(&|belief| belief.believed), COLOURS[0]),
        ("used", of(&|belief| belief.used), WORLD),
    ];
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

/// How far above the limit the world was, in percent, as the window (or the bucket) went on.
pub(crate) fn overshoot(plan: &Plan, outcome: &Outcome) -> Series {
    let limit = f64::from(plan.rule.limit);
    let burst = f64::from(plan.rule.burst).max(1.0);
    let (mut window, mut sum, mut tokens) = (None, 0.0, burst);
    let mut series = Series::new();
    for (place, point) in outcome.points.iter().enumerate() {
        let admitted = float(point.admitted.iter().sum());
        let over = if windowed(plan.rule.algorithm) {
            let begins = crate::number::place(place) * outcome.point_len.0;
            let index = begins / plan.rule.window.0.max(1);
            sum = if window.replace(index) == Some(index) { sum + admitted } else { admitted };
            sum / limit - 1.0
        } else {
            let gained = limit * seconds(outcome.point_len) / seconds(plan.rule.window);
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
