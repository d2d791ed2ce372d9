//! Figures as tables.

use std::io::{self, Write};

use crate::drive::Outcome;
use crate::number::len;

/// One line for each pattern, and their mean.
pub(crate) fn patterns(
    outcomes: &[(String, Outcome)],
    windowed: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    head("pattern", windowed, out)?;
    for (name, outcome) in outcomes {
        line(name, outcome, out)?;
    }
    if outcomes.len() > 1 {
        let count = len(outcomes.len());
        let mean = |figure: fn(&Outcome) -> f64| {
            outcomes.iter().map(|(_, outcome)| figure(outcome)).sum::<f64>() / count
        };
        writeln!(
            out,
            "{:<20} {:>9.2} {:>9.3} {:>8.2} {:>8.1} {:>9.2} {:>8.1} {:>10.1} {:>10.0} {:>6}",
            "mean (worst)",
            outcomes.iter().map(|(_, one)| one.figures.over_max).fold(0.0, f64::max),
            mean(|one| one.figures.over_mean),
            mean(|one| one.figures.used),
            outcomes.iter().map(|(_, one)| one.figures.used).fold(100.0, f64::min),
            mean(|one| one.figures.falsely_denied),
            mean(|one| one.figures.delay),
            mean(|one| one.frames),
            mean(|one| one.bytes),
            outcomes.iter().map(|(_, one)| one.late).sum::<u64>(),
        )?;
    }
    Ok(())
}

/// One line for each way.
pub(crate) fn ways(outcomes: &[Outcome], windowed: bool, out: &mut impl Write) -> io::Result<()> {
    head("way", windowed, out)?;
    for outcome in outcomes {
        line(outcome.way.title(), outcome, out)?;
    }
    Ok(())
}

fn head(what: &str, windowed: bool, out: &mut impl Write) -> io::Result<()> {
    let over = if windowed { ["over max%", "over mean"] } else { ["debt max%", "long run%"] };
    writeln!(
        out,
        "{what:<20} {:>9} {:>9} {:>8} {:>8} {:>9} {:>8} {:>10} {:>10} {:>6}",
        over[0], over[1], "use %", "use min", "false %", "delay ms", "msg/s link", "B/s link", "late"
    )
}

fn line(name: &str, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let figures = &outcome.figures;
    writeln!(
        out,
        "{name:<20} {:>9.2} {:>9.3} {:>8.2} {:>8.1} {:>9.2} {:>8.1} {:>10.1} {:>10.0} {:>6}",
        figures.over_max,
        figures.over_mean,
        figures.used,
        figures.used_min,
        figures.falsely_denied,
        figures.delay,
        outcome.frames,
        outcome.bytes,
        outcome.late
    )
}
