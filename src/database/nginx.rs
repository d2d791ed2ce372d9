//! Limits of nginx (`limit_req`, `limit_conn`), read as ours: `tidegate rules import --from nginx`.
//!
//! nginx serves a request by one server and one location: the one whose path it is, else the one with the
//! longest prefix. Here the places that limit differently are a group in that order. A place without limits
//! that stands before one with limits is a rule that allows.

mod place;
mod syntax;
mod zone;

use std::collections::{BTreeMap, HashMap};

use self::place::{LimitFamily, Place, places};
use self::zone::{LimitKind, Zone};
use super::imported::{Imported, ImportedRule, Remarks, Unread};

/// The hold of a place in flight that nobody renews: nginx needs none, since it sees requests end.
const HOLD: &str = "1m";
/// The longest that the daemon holds an answer back, and the longest that it can ask others to.
const HELD_MS_MAX: u64 = 60_000;
const DELAY_MS_MAX: u64 = 3_600_000;

/// Reads files, each by the name that sentences give it and its text, as if one included the others.
///
/// # Errors
/// Every text that is no such file at all.
pub fn import(files: &[(String, String)]) -> Result<Imported, Vec<Unread>> {
    let (mut directives, mut unread) = (Vec::new(), Vec::new());
    for (file, text) in files {
        match syntax::read(file, text) {
            Ok(read) => directives.extend(read),
            Err(problem) => unread.push(problem),
        }
    }
    if !unread.is_empty() {
        return Err(unread);
    }
    let mut remarks = Remarks::default();
    let places = places(directives, &mut remarks);
    let mut writer = Writer { zones: places.zones, used: HashMap::new(), remarks };
    let mut rules = Vec::new();
    for counted in [LimitFamily::Requests, LimitFamily::Connections] {
        let most = places.list.iter().map(|place| place.limits(counted).len()).max().unwrap_or(0);
        for ordinal in 0..most {
            let entries = entries(&places.list, counted, ordinal);
            let group = (entries.len() > 1).then(|| format!("nginx {} {}", counted.directive(), ordinal + 1));
            for (order, entry) in (0..).zip(entries) {
                let priority = group.as_ref().map(|_| 100 + order);
                rules.push(ImportedRule { group: group.clone(), priority, ..writer.rule(&entry) });
            }
        }
    }
    writer.tell_shared_zones();
    Ok(writer.remarks.with(rules))
}

/// Hosts and paths for which one limit holds, or none does.
#[derive(Debug, Clone)]
struct Entry {
    hosts: Vec<String>,
    /// As rules match them; empty: every path.
    paths: Vec<String>,
    limit: Option<place::Applied>,
}

impl Entry {
    /// True if this one would take every request that the other one takes.
    fn covers(&self, other: &Self) -> bool {
        let host = |host: &String| self.hosts.contains(host);
        let path = |path: &String| {
            self.paths
                .iter()
                .any(|own| own == path || own.strip_suffix('*').is_some_and(|own| path.starts_with(own)))
        };
        (self.hosts.is_empty() || !other.hosts.is_empty() && other.hosts.iter().all(host))
            && (self.paths.is_empty() || !other.paths.is_empty() && other.paths.iter().all(path))
    }

    /// True if both may take the same request. Patterns of hosts may fit any.
    fn overlaps(&self, other: &Self) -> bool {
        let host = |host: &String| host.contains('*') || other.hosts.contains(host);
        let patterns = || other.hosts.iter().any(|host| host.contains('*'));
        let hosts =
            self.hosts.is_empty() || other.hosts.is_empty() || patterns() || self.hosts.iter().any(host);
        let prefix = |path: &String| path.trim_end_matches('*').to_owned();
        let (own, others): (Vec<_>, Vec<_>) =
            (self.paths.iter().map(prefix).collect(), other.paths.iter().map(prefix).collect());
        let path = |path: &String| {
            others.iter().any(|other| path.starts_with(other.as_str()) || other.starts_with(path.as_str()))
        };
        hosts && (own.is_empty() || others.is_empty() || own.iter().any(path))
    }
}

/// Returns the places of one limit among those of a place, without those that change nothing.
fn entries(places: &[Place], counted: LimitFamily, ordinal: usize) -> Vec<Entry> {
    let all = places.iter().map(|place| Entry {
        hosts: place.hosts.clone(),
        paths: place.path.iter().cloned().collect(),
        limit: place.limits(counted).get(ordinal).cloned(),
    });
    let all: Vec<Entry> = all.collect();
    let changes = |index: usize, entry: &Entry| {
        // Up to the first that would take all of its requests, each that would take some counts.
        let behind = all.get(index + 1..).unwrap_or_default();
        let covering = behind.iter().position(|later| later.covers(entry));
        let mut taking = behind.iter().take(covering.map_or(behind.len(), |place| place + 1));
        (covering.is_none() && entry.limit.is_some())
            || taking.any(|later| later.overlaps(entry) && later.limit != entry.limit)
    };
    let mut kept: Vec<Entry> = Vec::new();
    for (_, entry) in all.iter().enumerate().filter(|(index, entry)| changes(*index, entry)) {
        // Places that share a zone and all else are one rule, unless it would then stand before a narrower
        // one.
        let same = kept.iter().position(|own| own.limit == entry.limit && can_join(own, entry));
        let free = |from: usize| !kept.iter().skip(from + 1).any(|between| entry.covers(between));
        match same.filter(|place| free(*place)) {
            Some(place) => {
                if let Some(own) = kept.get_mut(place) {
                    own.join(entry);
                }
            }
            None => kept.push(entry.clone()),
        }
    }
    kept
}

/// True if both are for the same hosts, or for the same paths of named hosts.
fn can_join(own: &Entry, other: &Entry) -> bool {
    let paths = own.hosts == other.hosts && !own.paths.is_empty() && !other.paths.is_empty();
    let hosts = own.paths == other.paths && !own.hosts.is_empty() && !other.hosts.is_empty();
    own.limit.is_some() && (paths || hosts)
}

impl Entry {
    fn join(&mut self, other: &Self) {
        let (hosts, paths) = (self.hosts.clone(), self.paths.clone());
        self.hosts.extend(other.hosts.iter().filter(|host| !hosts.contains(host)).cloned());
        self.paths.extend(other.paths.iter().filter(|path| !paths.contains(path)).cloned());
    }
}

/// Writes rules.
struct Writer {
    zones: HashMap<String, Zone>,
    /// The number of rules that count by a zone.
    used: HashMap<String, usize>,
    remarks: Remarks,
}

impl Writer {
    fn rule(&mut self, entry: &Entry) -> ImportedRule {
        let mut conditions = BTreeMap::new();
        for (name, values) in [("host", &entry.hosts), ("path", &entry.paths)] {
            if !values.is_empty() {
                conditions.insert(name.to_owned(), values.clone());
            }
        }
        let zone = entry.limit.as_ref().and_then(|applied| self.zones.get(&applied.limit.zone)).cloned();
        let (Some(applied), Some(zone)) = (&entry.limit, zone) else {
            let name = "not-limited".to_owned();
            return ImportedRule { name, action: Some("allow"), conditions, ..ImportedRule::default() };
        };
        *self.used.entry(zone.name.clone()).or_default() += 1;
        let common = ImportedRule {
            name: zone.name.clone(),
            per: zone.per.clone(),
            action: applied.dry_run.then_some("log_only"),
            status: (!applied.dry_run).then_some(applied.status),
            conditions,
            ..ImportedRule::default()
        };
        match (applied.limit.kind, zone.rate) {
            (LimitKind::Requests { burst, undelayed }, Some((limit, window))) => {
                let delayed = if applied.dry_run { 0 } else { burst - undelayed };
                let bucket = ImportedRule {
                    algorithm: Some("token_bucket"),
                    limit: Some(limit),
                    window: Some(window.into()),
                    // nginx counts the burst besides the request that the rate lets pass.
                    burst: Some((burst - delayed).saturating_add(1)),
                    ..common
                };
                self.delayed(bucket, delayed, &applied.place)
            }
            (LimitKind::Connections(limit), _) => ImportedRule {
                algorithm: Some("concurrency"),
                limit: Some(limit),
                hold: Some(HOLD),
                ..common
            },
            (LimitKind::Requests { .. }, None) => common,
        }
    }

    /// Has requests wait for their turn, as nginx does without `nodelay`.
    fn delayed(&mut self, bucket: ImportedRule, delayed: u32, place: &str) -> ImportedRule {
        let Some(limit) = bucket.limit.filter(|_| delayed > 0) else { return bucket };
        let window = if bucket.window.as_deref() == Some("1m") { 60_000 } else { 1_000 };
        let wait = (u64::from(delayed) * window).div_ceil(u64::from(limit));
        if wait > DELAY_MS_MAX {
            self.remarks.left_out(place, "waits of more than an hour are cut to one hour");
        } else if wait > HELD_MS_MAX {
            self.remarks.left_out(
                place,
                "the daemon holds no answer back for more than a minute: these waits are told (`X-RateLimit-Delay-Ms`), not held",
            );
        }
        ImportedRule {
            action: Some("throttle"),
            max_delay: Some(format!("{}ms", wait.min(DELAY_MS_MAX))),
            delay: (wait <= HELD_MS_MAX).then_some("hold"),
            ..bucket
        }
    }

    fn tell_shared_zones(&mut self) {
        let mut shared: Vec<_> = self.used.iter().filter(|(_, rules)| **rules > 1).collect();
        shared.sort_unstable();
        self.remarks.inexact.extend(shared.into_iter().map(|(zone, rules)| {
            format!("zone={zone} is used with different parameters: {rules} rules count it, each by itself, where nginx counts it once")
        }));
    }
}

#[cfg(test)]
mod tests;
