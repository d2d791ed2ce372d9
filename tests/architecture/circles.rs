//! Holds that files do not import each other in circles, except a module and those below it, and that the
//! rooms of the store in Redis import one way.
//!
//! Reads `use` paths, and those in the midst of code, outside of tests. A name that a module passes on counts
//! as that module's.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, sources};

/// The rooms of the store in Redis: each imports only those before it.
const ROOMS: [&str; 4] = ["client", "batch", "servers", "policy"];

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The module that a file is, from the top of `src/`.
fn module(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.strip_suffix("/mod").unwrap_or(path).replace('/', "::")
}

/// All paths of a `use`, whose groups may lie in each other.
fn paths(text: &str) -> Vec<String> {
    let Some((head, group)) = text.split_once('{') else { return vec![text.trim().to_owned()] };
    let group = group.rsplit_once('}').map_or(group, |(inside, _)| inside);
    let (mut depth, mut from, mut all) = (0_usize, 0, Vec::new());
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                all.extend(paths(&group[from..at]).into_iter().map(|path| format!("{}{path}", head.trim())));
                from = at + 1;
            }
            _ => {}
        }
    }
    all
}

/// What follows each `use` in the code.
fn uses(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("use ").filter_map(move |(at, found)| {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        let begins = line.is_empty() || line == "pub" || (line.starts_with("pub(") && line.ends_with(')'));
        let rest = &code[at + found.len()..];
        begins.then(|| rest.split(';').next().unwrap_or_default())
    })
}

/// Paths from `crate`, `super` or `self` in the midst of code, such as `super::x::y()`. Visibilities name
/// modules above their own alone.
fn inline_paths(code: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let begins = |at: usize| !code[..at].ends_with(|c: char| is_word(c) || c == ':' || c == '$');
    let heads = ["crate::", "super::", "self::"].into_iter().flat_map(|head| code.match_indices(head));
    let rest = |at: usize| code[at..].split(|c: char| !is_word(c) && c != ':').next().unwrap_or_default();
    heads.filter(|(at, _)| begins(*at)).map(|(at, _)| rest(at).trim_end_matches(':').to_owned()).collect()
}

/// From the top of `src/`; `None` for a name from elsewhere.
fn absolute(own: &str, path: &str) -> Option<String> {
    let core = own.starts_with("core");
    let mut words = path.split("::").map(str::trim).peekable();
    let mut at: Vec<&str> = own.split("::").collect();
    match words.next()? {
        "crate" => at.truncate(usize::from(core)),
        "self" => {}
        "super" => {
            at.pop();
            while words.next_if_eq(&"super").is_some() {
                at.pop();
            }
        }
        _ => return None,
    }
    at.extend(words);
    Some(at.join("::"))
}

fn is_below(one: &str, other: &str) -> bool {
    one.strip_prefix(other).is_some_and(|rest| rest.starts_with("::"))
}

/// Which module imports which; a module and those below it are not told apart.
fn arrows(sources: &[Source]) -> Arrows {
    let known: BTreeSet<String> = sources.iter().map(|source| module(&source.path)).collect();
    let mut arrows = Arrows::new();
    for source in sources.iter().filter(|source| !source.for_tests) {
        let own = module(&source.path);
        let named = uses(&source.code).flat_map(paths).chain(inline_paths(&source.code));
        let named = named.filter_map(|path| absolute(&own, &path));
        for mut path in named {
            while !known.contains(&path) {
                let Some((shorter, _)) = path.rsplit_once("::") else { break };
                path.truncate(shorter.len());
            }
            if known.contains(&path) && path != own && !is_below(&path, &own) && !is_below(&own, &path) {
                arrows.entry(own.clone()).or_default().insert(path);
            }
        }
    }
    arrows
}

/// The arrows from which a way leads back to where they begin.
fn circular(arrows: &Arrows) -> Vec<(String, String)> {
    let leads_back = |from: &String, to: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![to]);
        while let Some(module) = next.pop() {
            if module == from {
                return true;
            }
            if seen.insert(module) {
                next.extend(arrows.get(module).into_iter().flatten());
            }
        }
        false
    };
    let all = arrows.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
    all.filter(|(from, to)| leads_back(from, to)).map(|(from, to)| (from.clone(), to.clone())).collect()
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let arrows = arrows(&sources());
    assert!(arrows.len() > 100, "few imports were found: {}", arrows.len());
    let told: Vec<String> = circular(&arrows).iter().map(|(from, to)| format!("{from} -> {to}")).collect();
    assert!(told.is_empty(), "imports that lie on a circle:\n{}\n", told.join("\n"));
}

#[test]
fn rooms_of_the_store_in_redis_import_one_way() {
    let room = |module: &str| {
        let below = module.strip_prefix("store::redis::")?;
        ROOMS.iter().position(|room| below.split("::").next() == Some(room))
    };
    let mut judged = 0;
    for (from, all) in arrows(&sources()) {
        for to in all {
            if let (Some(own), Some(other)) = (room(&from), room(&to)) {
                judged += 1;
                assert!(other <= own, "{from} imports {to}, of a room after its own");
            }
        }
    }
    assert!(judged > 50, "few imports were found: {judged}");
}

#[test]
fn a_circle_is_found_through_groups_and_relative_paths_but_not_between_a_module_and_its_child() {
    let files = [
        Source::new("a/mod.rs", "mod c;\npub use self::c::C;"),
        Source::new("a/c.rs", "use super::super::b::{self, d::{D, E}};\nuse super::A;"),
        Source::new("b/mod.rs", "mod d;"),
        Source::new("b/d.rs", "pub(super) use crate::{\n    a::c::C,\n    f::F,\n};"),
        Source::new("f.rs", "use std::fmt;\nuse other::a::c;"),
        Source::new("g.rs", "use crate::h::H;\nfn g() -> other::crate_::h::G {}"),
        Source::new("h.rs", "fn h() { super::g::g(H) }"),
    ];
    let found = circular(&arrows(&files));
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(found, [pair("a::c", "b::d"), pair("b::d", "a::c"), pair("g", "h"), pair("h", "g")]);
}
