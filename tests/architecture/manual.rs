//! Holds the manual to itself and to the code: every link leads somewhere, the index lists every page, and
//! the reference names every metric and every command.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use tidegate::telemetry::METRICS;

use super::root;

/// Pages of the manual, and the others that link to it.
fn pages() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "simulations/README.md"]
            .map(PathBuf::from)
            .to_vec();
    for folder in ["docs", "deploy"] {
        collect(Path::new(folder), &mut found);
    }
    found
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let name = entry.unwrap().file_name();
        let path = folder.join(name);
        if root().join(&path).is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text without what stands in fences, where brackets are no links and hashes no headings.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The anchors of a page's headings, as they are shown on the web: lower case, blanks as hyphens, without
/// other signs.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(text).lines() {
        let Some(heading) = line.strip_prefix('#') else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter_map(|sign| match sign {
            ' ' => Some('-'),
            '-' | '_' => Some(sign),
            _ => sign.is_alphanumeric().then_some(sign),
        });
        let anchor: String = kept.collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// Where a page's links lead.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let ends = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    ends.map(|link| link.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// What is wrong with a link of a page.
fn fault(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { page.to_owned() } else { normal(&page.parent()?.join(path)) };
    if !root().join(&target).exists() {
        return Some(format!("{}: {link} leads nowhere", page.display()));
    }
    let is_page = target.extension().is_some_and(|extension| extension == "md");
    let known = anchor.is_empty() || !is_page || anchors(&read(&target)).contains(anchor);
    (!known).then(|| format!("{}: {link} leads to no heading", page.display()))
}

#[test]
fn every_link_of_the_manual_leads_somewhere() {
    let pages = pages();
    assert!(pages.len() > 30, "the manual has pages");
    super::assert_no(pages.iter().flat_map(|page| {
        links(&read(page)).into_iter().filter_map(|link| fault(page, &link)).collect::<Vec<_>>()
    }));
}

#[test]
fn the_index_lists_every_page() {
    let index = Path::new("docs/README.md");
    let listed: BTreeSet<PathBuf> = links(&read(index))
        .iter()
        .map(|link| normal(&Path::new("docs").join(link.split('#').next().unwrap_or_default())))
        .collect();
    let lists = [index, Path::new("docs/SUMMARY.md")];
    let of_the_manual = |page: &PathBuf| page.starts_with("docs") && !lists.contains(&page.as_path());
    let missing = pages().into_iter().filter(of_the_manual).filter(|page| !listed.contains(page));
    super::assert_no(missing.map(|page| format!("docs/README.md does not list {}", page.display())));
}

#[test]
fn the_site_has_every_page_once_by_its_own_title() {
    let summary = Path::new("docs/SUMMARY.md");
    let text = read(summary);
    let listed: Vec<PathBuf> = links(&text).iter().map(|link| Path::new("docs").join(link)).collect();
    let of_the_manual = |page: &PathBuf| page.starts_with("docs") && page != summary;
    let faults = pages().into_iter().filter(of_the_manual).filter_map(|page| {
        let times = listed.iter().filter(|one| **one == page).count();
        let own = read(&page).lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
        let below = page.strip_prefix("docs").unwrap_or(&page).display().to_string();
        let entry = format!("[{own}]({below})");
        (times != 1 || !text.contains(&entry)).then(|| format!("docs/SUMMARY.md lists {entry} {times} times"))
    });
    super::assert_no(faults);
}

#[test]
fn the_reference_names_every_metric_as_the_daemon_does() {
    let page = read(Path::new("docs/reference/metrics.md"));
    let faults = METRICS.iter().filter_map(|(name, kind, labels, meaning)| {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let row = format!("| `{name}{labels}` | {} | {meaning} |", format!("{kind:?}").to_lowercase());
        (!page.contains(&row)).then(|| format!("docs/reference/metrics.md has no row {row}"))
    });
    super::assert_no(faults);
    let listed = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next());
    let known: BTreeSet<&str> = METRICS.iter().map(|(name, ..)| *name).collect();
    let gone = listed.filter(|name| !name.starts_with("tidegate_") && !known.contains(name));
    super::assert_no(gone.map(|name| format!("docs/reference/metrics.md names {name}, which no daemon has")));
}

#[test]
fn a_link_without_a_target_is_found() {
    let page = Path::new("docs/README.md");
    assert_eq!(fault(page, "start-here.md"), None);
    assert_eq!(fault(page, "https://example.com/x"), None);
    assert!(fault(page, "gone.md").is_some());
    assert!(fault(page, "start-here.md#no-such-heading").is_some());
    assert_eq!(links("a [b](c.md#d) `[x]` [e](f \"title\")"), ["c.md#d", "f"]);
    let text = "# The `gossip` mode, and more\n```\n# no heading\n```\n## Twice\n## Twice\n";
    assert_eq!(
        anchors(text).into_iter().collect::<Vec<_>>(),
        ["the-gossip-mode-and-more", "twice", "twice-1"]
    );
}
