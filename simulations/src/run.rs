//! `sim run`: one scenario, every way it names, as a table, plots and a page.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use rayon::prelude::*;

use crate::BadInput;
use crate::drive::{Outcome, drive};
use crate::model::shell::windowed;
use crate::plan::{self, Plan, Way};
use crate::report::{html, plot, table};

/// The folder of the scenarios.
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");

/// What to run.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// A scenario file, or the name of one in simulations/scenarios/; `all` runs every one of those.
    pub(crate) scenario: String,
    /// Where plots and pages go.
    #[arg(long, default_value = "target/simulations")]
    pub(crate) out: PathBuf,
    /// Only the table.
    #[arg(long)]
    pub(crate) no_plots: bool,
    /// Another seed than the file's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Only these ways (comma-separated) instead of the file's.
    #[arg(long, value_delimiter = ',')]
    pub(crate) ways: Vec<String>,
}

/// Runs one scenario, or all.
pub(crate) fn run(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    let files = match settings.scenario.as_str() {
        "all" => all()?,
        name => vec![find(name)],
    };
    if !settings.no_plots {
        plot::prepare()?;
    }
    for file in files {
        let mut plan = load(&file)?;
        plan.seed = settings.seed.unwrap_or(plan.seed);
        if !settings.ways.is_empty() {
            plan.ways = named(&settings.ways)?;
        }
        one(&plan, settings, &stem(&file), out)?;
    }
    Ok(())
}

/// The ways with these words.
pub(crate) fn named(words: &[String]) -> anyhow::Result<Vec<Way>> {
    let known = Way::WORDS.map(|(word, _)| word).join(", ");
    let way = |word: &String| {
        let found = Way::WORDS.iter().find(|(known, _)| known == word).map(|(_, way)| *way);
        found.ok_or_else(|| BadInput(format!("--ways: {word:?} is none of {known}")).into())
    };
    words.iter().map(way).collect()
}

/// Every scenario of ours, by name.
pub(crate) fn all() -> anyhow::Result<Vec<PathBuf>> {
    all_of(SCENARIOS)
}

/// Every file of a folder that could be a scenario, by name.
pub(crate) fn all_of(folder: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| format!("{folder} cannot be read"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    Ok(files)
}

fn find(name: &str) -> PathBuf {
    find_in(SCENARIOS, name)
}

/// A file, or that of this name in `folder`.
pub(crate) fn find_in(folder: &str, name: &str) -> PathBuf {
    let ours = Path::new(folder).join(format!("{name}.toml"));
    let given = PathBuf::from(name);
    if !given.exists() && ours.exists() { ours } else { given }
}

/// The name of a file without its folder and ending.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("scenario").to_owned()
}

/// Reads a scenario file.
pub(crate) fn load(path: &Path) -> anyhow::Result<Plan> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| BadInput(format!("{}: {error}. Scenarios are in {SCENARIOS}", path.display())))?;
    plan::read(&path.display().to_string(), &text).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        BadInput(problems.join("\n")).into()
    })
}

fn one(plan: &Plan, settings: &Settings, stem: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let outcomes: Vec<Outcome> =
        plan.ways.par_iter().map(|&way| drive(plan, way)).collect::<anyhow::Result<_>>()?;
    writeln!(out, "{}\n{}\n{}", plan.name, plan.about, html::conditions(plan))?;
    table::ways(&outcomes, windowed(plan.rule.algorithm), out)?;
    if !settings.no_plots {
        let page = write_plots(plan, &outcomes, (&settings.out, stem), "")?;
        writeln!(out, "report: {}", page.display())?;
    }
    writeln!(out)?;
    Ok(())
}

/// Writes plots and page, and returns where the page is.
pub(crate) fn write_plots(
    plan: &Plan,
    outcomes: &[Outcome],
    (dir, stem): (&Path, &str),
    sections: &str,
) -> anyhow::Result<PathBuf> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    };
    std::fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    let mut pictures = Vec::new();
    for outcome in outcomes {
        let base = format!("{stem}-{}", outcome.way.word());
        let picture = plot::svg(plan, outcome)?;
        write(&dir.join(format!("{base}.svg")), &picture)?;
        plot::png(plan, outcome, &dir.join(format!("{base}.png")))?;
        pictures.push(picture);
    }
    let page = dir.join(format!("{stem}.html"));
    write(&page, &html::page(plan, outcomes, &pictures, sections))?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_becomes_a_table_plots_and_a_page() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("short.toml");
        let text = "name = \"Short\"\nlength = \"5s\"\n[rule]\nlimit = 100\nwindow = \"1s\"\n[demand]\npattern = \"bal2\"\n";
        std::fs::write(&file, text).unwrap();
        let settings = Settings {
            scenario: file.display().to_string(),
            out: folder.path().join("reports"),
            no_plots: false,
            seed: Some(7),
            ways: vec!["gossip".to_owned(), "split".to_owned()],
        };
        let mut printed = Vec::new();
        run(&settings, &mut printed).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert!(printed.contains("seed 7") && printed.contains("short.html"), "{printed}");
        let read = |name: &str| std::fs::read(settings.out.join(name)).unwrap();
        let page = String::from_utf8(read("short.html")).unwrap();
        for way in ["gossip", "split"] {
            assert!(printed.lines().any(|line| line.starts_with(way)), "{printed}");
            let picture = String::from_utf8(read(&format!("short-{way}.svg"))).unwrap();
            assert!(picture.starts_with("<svg") && picture.contains("<polyline"), "{picture}");
            assert!(page.contains(&picture), "the page shows the picture of {way}");
            let png = read(&format!("short-{way}.png"));
            assert!(png.starts_with(b"\x89PNG") && png.len() > 1_000, "{} bytes", png.len());
        }
        assert_eq!(std::fs::read_dir(&settings.out).unwrap().count(), 5);
    }
}
