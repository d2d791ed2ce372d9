//! The manual as a site, made by `deploy/manual` and looked at as it would lie on a disk; and its reference
//! of files as pages of `man`.

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

#[test]
fn the_reference_of_files_is_a_page_of_man() {
    let folder = TempDir::new().unwrap();
    for (page, name, key) in [
        ("configuration", "tidegate.toml", "max_connections"),
        ("rules", "tidegate-rules.toml", "split_keys"),
    ] {
        let source = shipped("../docs/reference").join(format!("{page}.md"));
        let made = done(Command::new(shipped("manpage")).arg(&source).args([name, "0.1.0"]));
        assert!(made.starts_with(&format!(".TH {} 5 ", name.to_uppercase())), "{made}");
        assert!(made.contains(&format!("\n.TP\n\\fB{key}\\fR\n")), "{key} is an entry: {made}");
        // Links are their words, and no order to roff stands in a text.
        assert!(!made.contains("]("), "{made}");
        let file = folder.path().join(format!("{name}.5"));
        std::fs::write(&file, &made).unwrap();
        let Ok(set) =
            Command::new("groff").args(["-K", "utf8", "-man", "-Tutf8", "-ww", "-z"]).arg(&file).output()
        else {
            return not_judged("groff is not installed");
        };
        let warned = String::from_utf8_lossy(&set.stderr).into_owned();
        assert!(set.status.success() && warned.is_empty(), "{warned}");
    }
}
