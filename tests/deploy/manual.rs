//! The manual as a site: made by `deploy/manual`, and looked at as it would lie on a disk.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::not_judged;
use crate::{done, shipped, tool, with_mdbook};

/// Files of a folder and all below it.
fn collect(folder: &Path, into: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        }
        into.insert(path);
    }
}

/// The file that a link of a page leads to; nothing for one that leads out of the site.
fn target(page: &Path, link: &str) -> Option<PathBuf> {
    let path = link.split('#').next().unwrap();
    if path.is_empty() || link.contains(':') {
        return None;
    }
    let mut target = page.parent().unwrap().to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                target.pop();
            }
            Component::CurDir => {}
            other => target.push(other),
        }
    }
    Some(target)
}

#[test]
fn the_site_of_the_manual_can_be_searched_and_its_links_lead_somewhere() {
    if tool("bin/mdbook").is_none() {
        return not_judged("mdBook is not installed: tests/run does so");
    }
    let folder = TempDir::new().unwrap();
    let site = folder.path().join("site");
    let said = done(with_mdbook(Command::new(shipped("manual"))).arg(&site));
    assert!(said.trim().ends_with("site/index.html"), "{said}");
    let mut files = BTreeSet::new();
    collect(&site, &mut files);
    let pages: Vec<&PathBuf> =
        files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "html")).collect();
    assert!(pages.len() > 60, "{} pages", pages.len());
    let (mut links, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap();
        for link in text.split(" href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let Some(target) = target(page, link) else { continue };
            links += 1;
            if !files.contains(&target) {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {links} links: {wrong:#?}", wrong.len());
    let is_index = |file: &&PathBuf| file.display().to_string().contains("/searchindex");
    let index = std::fs::read_to_string(files.iter().find(is_index).expect("it can be searched")).unwrap();
    assert!(index.contains("on_partition") && links > 1_000, "{links} links");
}
