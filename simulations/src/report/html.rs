//! One page for one scenario: what it is, the figures, and a picture for each way. Nothing is loaded from
//! anywhere.

use std::fmt::Write;

use crate::drive::{Observed, Outcome};
use crate::model::shell::windowed;
use crate::plan::Plan;

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;font-size:14px}td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}.bad{color:#b00;font-weight:bold}.small{font-size:14px;color:#555}.wide td,.wide th{text-align:left;vertical-align:top}.wide .small{font-size:12px}h2{margin-top:2.5rem}";

/// The page. `pictures` in the order of `outcomes`, as SVG; `sections` come between table and pictures, as
/// HTML.
pub(crate) fn page(plan: &Plan, outcomes: &[Outcome], pictures: &[String], sections: &str) -> String {
    let mut page = String::new();
    let name = escaped(&plan.name);
    let _ = write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{name}</title><style>{STYLE}</style>\
         <h1>{name}</h1><p>{}</p><p>{}</p>",
        escaped(&plan.about),
        escaped(&conditions(plan))
    );
    table(&mut page, plan, outcomes);
    page.push_str(&meaning(plan, outcomes.iter().all(|outcome| outcome.observed.is_some())));
    page.push_str(sections);
    for (outcome, picture) in outcomes.iter().zip(pictures) {
        let _ = write!(page, "<h2 id=\"{0}\">{1}</h2>{picture}", outcome.way.word(), outcome.way.title());
    }
    page.push_str("</html>\n");
    page
}

/// Returns what was simulated, in one sentence.
pub(crate) fn conditions(plan: &Plan) -> String {
    let rule = &plan.rule;
    format!(
        "{} regions, {} per {}, longest way {} ms, jitter {} %, loss {} %, demand {}, {} s, seed {}.",
        plan.regions.len(),
        rule.limit,
        tidegate::core::written::format_span(rule.window),
        plan.weather.longest().0 / 1_000,
        plan.weather.jitter * 100.0,
        plan.weather.loss * 100.0,
        plan.demand.pattern.name(),
        plan.length.0 / 1_000_000,
        plan.seed
    )
}

fn table(page: &mut String, plan: &Plan, outcomes: &[Outcome]) {
    let over = if windowed(plan.rule.algorithm) {
        ["overshoot max %", "overshoot mean %"]
    } else {
        ["debt max % of burst", "above the long run %"]
    };
    // Nobody knows what real daemons send, and a delay is a part of the answer's.
    let is_observed = outcomes.iter().all(|outcome| outcome.observed.is_some());
    let last = if is_observed { "promises" } else { "delay ms<th>msg/s link<th>kB/s link" };
    let _ = write!(
        page,
        "<table><tr><th>way<th>{}<th>{}<th>use %<th>use min %<th>false denials %<th>{last}</tr>",
        over[0], over[1]
    );
    for outcome in outcomes {
        let figures = &outcome.figures;
        // The promises say whether that is too much, if they are judged.
        let class = if figures.over_max > 0.0 && !is_observed { " class=\"bad\"" } else { "" };
        let last = match &outcome.observed {
            Some(Observed { kept, broken: 0, .. }) => format!("all {kept} judged are kept"),
            Some(Observed { kept, broken, .. }) => {
                format!("<span class=\"bad\">{broken} BROKEN</span>, {kept} kept")
            }
            None => {
                format!("{:.1}<td>{:.1}<td>{:.2}", figures.delay, outcome.frames, outcome.bytes / 1_000.0)
            }
        };
        let _ = write!(
            page,
            "<tr><td><a href=\"#{}\">{}</a><td{class}>{:.2}<td>{:.3}<td>{:.2}<td>{:.1}<td>{:.2}<td>{last}</tr>",
            outcome.way.word(),
            outcome.way.title(),
            figures.over_max,
            figures.over_mean,
            figures.used,
            figures.used_min,
            figures.falsely_denied
        );
    }
    page.push_str("</table>");
}

/// Returns what the columns are.
fn meaning(plan: &Plan, is_observed: bool) -> String {
    let over = if windowed(plan.rule.algorithm) {
        "<i>overshoot</i>: admitted above the limit in a window, in percent of the limit"
    } else {
        "<i>debt</i>: how far one bucket for the whole world would be above its burst, in percent of that; <i>above the long \
         run</i>: admitted beyond burst and rate over the whole run"
    };
    let sure = if is_observed {
        " A request counts in the window, and at the instant, that its answer most likely belongs to. The promises count only \
         what is sure, and leave out what the manual excepts."
    } else {
        ""
    };
    format!(
        "<p class=\"small\">{over}; <i>use</i>: admitted of what a perfect limiter would have admitted, in all and in the worst \
         window; <i>false denials</i>: refused while the world had room, in percent of all requests.{sure}</p>"
    )
}

/// Text that is safe in a page.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
