//! The findings of a run: lines for a terminal, and a page with the verdict on each promise.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Shown;
use super::judge::{Happened, Kept, Promise};
use crate::drive::Outcome;
use crate::plan::{Plan, Way};
use crate::report::html::escaped;
use crate::run::write_plots;

/// Prints figures and verdicts of one way.
pub(super) fn print(
    way: Way,
    shown: &Shown,
    simulated: &[Outcome],
    out: &mut impl Write,
) -> std::io::Result<()> {
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
    if let Some(Outcome { figures, .. }) = of_way(simulated, way) {
        writeln!(
            out,
            "    in virtual time: used {:.2} %, above the limit {:.2} % at most and {:.3} % on average",
            figures.used, figures.over_max, figures.over_mean
        )?;
    }
    for verdict in shown.verdicts.iter().filter(|verdict| verdict.says_something()) {
        writeln!(out, "    {:<10}  {}", verdict.kept.word(), verdict.promise.title)?;
        writeln!(out, "                {}", verdict.found)?;
        if verdict.kept == Kept::No && !verdict.promise.manual.is_empty() {
            writeln!(out, "                the manual: {}", verdict.promise.manual)?;
        }
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
    beside(&mut page, all, simulated);
    for shown in all {
        let _ = write!(
            page,
            "<h2>{}: promises</h2><p>Answers took{}.</p>",
            shown.outcome.way.title(),
            latencies(shown).trim_start_matches("answers take")
        );
        faults(&mut page, &shown.faults);
        page.push_str("<table class=\"wide\"><tr><th>promise<th>verdict<th>found</tr>");
        // A reader looks for broken promises first.
        let mut judged: Vec<_> = shown.verdicts.iter().filter(|verdict| verdict.says_something()).collect();
        judged.sort_by_key(|verdict| verdict.kept != Kept::No);
        for verdict in judged {
            let class = if verdict.kept == Kept::No { " class=\"bad\"" } else { "" };
            let _ = write!(
                page,
                "<tr><td>{}<td{class}>{}<td>{}</tr>",
                in_words(verdict.promise),
                verdict.kept.word(),
                escaped(&verdict.found)
            );
        }
        page.push_str("</table>");
        let others = shown.verdicts.iter().filter(|verdict| !verdict.says_something());
        let others: Vec<String> =
            others.map(|verdict| format!("<li>{}", in_words(verdict.promise))).collect();
        if !others.is_empty() {
            let _ = write!(
                page,
                "<details class=\"small\"><summary>{} more promises not judged: nothing in this run could break them</summary><ul>{}</ul></details>",
                others.len(),
                others.concat()
            );
        }
    }
    page
}

/// A promise and, in small letters, the sentence of the manual that it is.
fn in_words(promise: Promise) -> String {
    let title = escaped(promise.title);
    if promise.manual.is_empty() {
        return title;
    }
    format!("{title}<div class=\"small\">{}</div>", escaped(&promise.manual.replace('`', "")))
}

/// The figures of real daemons and those of the same story in virtual time, side by side.
fn beside(page: &mut String, all: &[Shown], simulated: &[Outcome]) {
    let pairs: Vec<(&Outcome, &Outcome)> = all
        .iter()
        .filter_map(|shown| Some((&shown.outcome, of_way(simulated, shown.outcome.way)?)))
        .collect();
    if pairs.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Beside the same in virtual time</h2><table><tr><th>way<th>over max %<th>simulated<th>over mean %<th>simulated\
         <th>use %<th>simulated<th>use min %<th>simulated</tr>",
    );
    for (real, simulated) in pairs {
        let (real_figures, figures) = (&real.figures, &simulated.figures);
        let _ = write!(
            page,
            "<tr><td>{}<td>{:.2}<td>{:.2}<td>{:.3}<td>{:.3}<td>{:.2}<td>{:.2}<td>{:.1}<td>{:.1}</tr>",
            real.way.title(),
            real_figures.over_max,
            figures.over_max,
            real_figures.over_mean,
            figures.over_mean,
            real_figures.used,
            figures.used,
            real_figures.used_min,
            figures.used_min
        );
    }
    page.push_str("</table>");
}

/// The outcome of this way.
fn of_way(outcomes: &[Outcome], way: Way) -> Option<&Outcome> {
    outcomes.iter().find(|outcome| outcome.way == way)
}

fn faults(page: &mut String, faults: &[Happened]) {
    if faults.is_empty() {
        return;
    }
    page.push_str("<p>What happened:");
    for fault in faults {
        let (from, until) = (fault.from.as_secs_f64(), fault.until.as_secs_f64());
        let _ = write!(page, " <b>{}</b> from {from:.1} s to {until:.1} s;", fault.kind.word());
    }
    page.pop();
    page.push_str(".</p>");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::judge::Verdict;
    use super::*;
    use crate::drive::{Observed, drive};
    use crate::plan::read;

    #[test]
    fn a_page_begins_with_what_is_broken_and_shows_nothing_that_is_not_known() {
        let text = "[rule]\nlimit = 10\nwindow = \"1s\"\n[demand]\npattern = \"bal2\"\n";
        let mut plan = read("s.toml", text).unwrap();
        plan.length = tidegate::core::time::Span::from_secs(10);
        let mut outcome = drive(&plan, Way::Gossip).unwrap();
        let latencies = vec![(0.0, 0.5, 2.0), (1.0, 0.5, 3.0)];
        outcome.observed = Some(Observed {
            kept: 1,
            broken: 1,
            latencies,
            faults: vec![("roll", 1.0, 4.0)],
            ..Observed::default()
        });
        let verdict = |title, kept, found: &str| Verdict {
            promise: Promise { title, manual: "" },
            kept,
            found: found.to_owned(),
        };
        let verdicts = vec![
            verdict("It is so", Kept::Yes, "seven"),
            verdict("It is not so", Kept::No, "none"),
            verdict("Who knows", Kept::NotJudged, super::super::judge::NOTHING),
        ];
        let faults = vec![Happened {
            kind: crate::plan::FaultKind::Roll,
            from: Duration::from_secs(1),
            until: Duration::from_secs(4),
        }];
        let shown = Shown { outcome, verdicts, latencies: [Duration::from_millis(1); 3], faults, logs: None };
        let folder = tempfile::tempdir().unwrap();
        crate::report::plot::prepare().unwrap();
        let simulated = drive(&plan, Way::Gossip).unwrap();
        let path = write(&plan, &[shown], &[simulated], (folder.path(), "story")).unwrap();
        let page = std::fs::read_to_string(path).unwrap();
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text:?} is not on the page"));
        assert!(at("1 BROKEN</span>, 1 kept") < at("<b>roll</b> from 1.0 s to 4.0 s"));
        assert!(at("<b>roll</b>") < at("It is not so") && at("It is not so") < at("It is so"));
        assert!(
            at("It is so") < at("1 more promises not judged")
                && at("1 more promises not judged") < at("Who knows")
        );
        assert!(at("Beside the same in virtual time") < at("It is not so"));
        assert!(page.contains("answers took, ms") && !page.contains("lag, ms"));
        assert!(!page.contains("kB/s"), "what real daemons send is not known");
    }
}
