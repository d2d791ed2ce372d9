//! What a run showed: lines for a terminal, and a page with the verdict on each promise.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Shown;
use super::judge::{Happened, Kept};
use crate::drive::Outcome;
use crate::plan::{Plan, Way};
use crate::report::html::escaped;
use crate::run::write_plots;

/// Prints figures and verdicts of one way.
pub(super) fn print(way: Way, shown: &Shown, out: &mut impl Write) -> std::io::Result<()> {
    let figures = &shown.outcome.figures;
    writeln!(
        out,
        "  {}: used {:.2} %, above the limit {:.2} % at most and {:.3} % on average; {}",
        way.word(),
        figures.used,
        figures.over_max,
        figures.over_mean,
        latencies(shown)
    )?;
    for verdict in shown.verdicts.iter().filter(|verdict| verdict.says_something()) {
        writeln!(out, "    {:<10}  {}", verdict.kept.word(), verdict.promise)?;
        writeln!(out, "                {}", verdict.found)?;
    }
    match shown.verdicts.iter().filter(|verdict| !verdict.says_something()).count() {
        0 => {}
        1 => writeln!(out, "    not judged  one more promise: nothing here could break it")?,
        more => writeln!(out, "    not judged  {more} more promises: nothing here could break them")?,
    }
    if let Some(logs) = &shown.logs {
        writeln!(out, "    logs: {}", logs.display())?;
    }
    Ok(())
}

fn latencies(shown: &Shown) -> String {
    let [median, high, longest] = shown.latencies.map(|latency| latency.as_secs_f64() * 1e3);
    format!("answers take {median:.2} ms (p50), {high:.2} ms (p99), {longest:.1} ms at most")
}

/// Writes the page of a story, and returns where it is.
pub(super) fn write(
    plan: &Plan,
    all: &[Shown],
    simulated: &[Outcome],
    to: (&Path, &str),
) -> anyhow::Result<PathBuf> {
    let outcomes: Vec<Outcome> = all.iter().map(|shown| shown.outcome.clone()).collect();
    write_plots(plan, &outcomes, to, &sections(all, simulated))
}

fn sections(all: &[Shown], simulated: &[Outcome]) -> String {
    let mut page = String::new();
    if !simulated.is_empty() {
        page.push_str(
            "<h2>The same in virtual time</h2><table><tr><th>way<th>over max %<th>over mean %<th>use %</tr>",
        );
        for outcome in simulated {
            let figures = &outcome.figures;
            let _ = write!(
                page,
                "<tr><td>{}<td>{:.2}<td>{:.3}<td>{:.2}</tr>",
                outcome.way.title(),
                figures.over_max,
                figures.over_mean,
                figures.used
            );
        }
        page.push_str("</table>");
    }
    for shown in all {
        let _ = write!(page, "<h2>{}: promises</h2><p>{}.</p>", shown.outcome.way.title(), latencies(shown));
        page.push_str("<table><tr><th>promise<th>verdict<th>found</tr>");
        for verdict in &shown.verdicts {
            let class = if verdict.kept == Kept::No { " class=\"bad\"" } else { "" };
            let _ = write!(
                page,
                "<tr><td>{}<td{class}>{}<td>{}</tr>",
                escaped(verdict.promise),
                verdict.kept.word(),
                escaped(&verdict.found)
            );
        }
        page.push_str("</table>");
        faults(&mut page, &shown.faults);
    }
    page
}

fn faults(page: &mut String, faults: &[Happened]) {
    if faults.is_empty() {
        return;
    }
    page.push_str("<p>What was broken:");
    for fault in faults {
        let (from, until) = (fault.from.as_secs_f64(), fault.until.as_secs_f64());
        let _ = write!(page, " {} from {from:.2} s to {until:.2} s;", fault.kind.word());
    }
    page.pop();
    page.push_str(".</p>");
}
