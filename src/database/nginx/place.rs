//! Places: the servers and locations of nginx's files, with the limits that hold there.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::syntax::Directive;
use super::zone::{self, Limit, LimitKind, Zone};
use crate::database::imported::Remarks;

/// nginx's status where none is written.
const STATUS: u16 = 503;

/// A family of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitFamily {
    Requests,
    Connections,
}

impl LimitFamily {
    pub(super) fn directive(self) -> &'static str {
        match self {
            Self::Requests => "limit_req",
            Self::Connections => "limit_conn",
        }
    }
}

/// A server's location, or what remains of the server.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Empty: every host that no other place names.
    pub(super) hosts: Vec<String>,
    /// As rules match it: `/login`, or `/api/*`. `None`: every path that no other place names.
    pub(super) path: Option<String>,
    scope: Scope,
}

/// A limit as it holds at a place.
#[derive(Debug, Clone)]
pub(super) struct Applied {
    pub(super) limit: Limit,
    pub(super) status: u16,
    pub(super) dry_run: bool,
    /// `file:line`.
    pub(super) place: String,
}

/// Limits are the same wherever they are written.
impl PartialEq for Applied {
    fn eq(&self, other: &Self) -> bool {
        (&self.limit, self.status, self.dry_run) == (&other.limit, other.status, other.dry_run)
    }
}

impl Place {
    pub(super) fn limits(&self, counted: LimitFamily) -> &[Applied] {
        &self.scope.of(counted).limits
    }
}

/// The limits of a block: its own, else those of the block around it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Scope {
    requests: Limits,
    connections: Limits,
}

#[derive(Debug, Clone, PartialEq)]
struct Limits {
    limits: Vec<Applied>,
    status: u16,
    dry_run: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { limits: Vec::new(), status: STATUS, dry_run: false }
    }
}

impl Scope {
    fn of(&self, counted: LimitFamily) -> &Limits {
        match counted {
            LimitFamily::Requests => &self.requests,
            LimitFamily::Connections => &self.connections,
        }
    }

    fn is_without_limits(&self) -> bool {
        self.requests.limits.is_empty() && self.connections.limits.is_empty()
    }
}

/// The places of files, in the order in which nginx looks for one, and the zones that their limits name.
pub(super) struct Places {
    pub(super) list: Vec<Place>,
    pub(super) zones: HashMap<String, Zone>,
}

/// Finds the places of files.
pub(super) fn places(directives: Vec<Directive>, remarks: &mut Remarks) -> Places {
    let mut finder = Finder { zones: HashMap::new(), remarks };
    let directives = finder.http(directives);
    for directive in &directives {
        if matches!(directive.name.as_str(), "limit_req_zone" | "limit_conn_zone")
            && let Some(zone) = zone::zone(directive, finder.remarks)
        {
            finder.zones.insert(zone.name.clone(), zone);
        }
    }
    let scope = finder.scope(&Scope::default(), &directives);
    let blocks = directives.iter().filter(|directive| directive.name == "server");
    let mut servers: Vec<Server> = blocks.map(|block| finder.server(block, &scope)).collect();
    // A file that others include within a server.
    if servers.is_empty() {
        servers.push(Server {
            hosts: Vec::new(),
            default: true,
            places: finder.locations(&directives, &scope),
        });
    }
    let list = in_order(servers, finder.remarks);
    Places { list, zones: finder.zones }
}

struct Server {
    hosts: Vec<String>,
    default: bool,
    places: Vec<Place>,
}

impl Server {
    fn is_without_limits(&self) -> bool {
        self.places.iter().all(|place| place.scope.is_without_limits())
    }
}

/// Returns the places of all servers: those with names of hosts first, the default server last.
fn in_order(mut servers: Vec<Server>, remarks: &mut Remarks) -> Vec<Place> {
    // A server of the same name without limits is that of another port, such as one that redirects.
    let limited: Vec<String> = servers
        .iter()
        .filter(|server| !server.is_without_limits())
        .flat_map(|server| server.hosts.clone())
        .collect();
    servers.retain(|server| {
        server.hosts.is_empty()
            || !server.is_without_limits()
            || !server.hosts.iter().all(|host| limited.contains(host))
    });
    let default = servers.iter().position(|server| server.default).unwrap_or(0);
    if let Some(server) = servers.get_mut(default) {
        server.hosts.clear();
    }
    let mut seen: Vec<Vec<String>> = Vec::new();
    servers.retain(|server| {
        let first = !seen.contains(&server.hosts);
        if !first {
            let hosts = if server.hosts.is_empty() { "any host".to_owned() } else { server.hosts.join(", ") };
            remarks.inexact.push(format!(
                "a further server for {hosts} is left out: rules see no port, so the limits of the first one hold for both"
            ));
        }
        seen.push(server.hosts.clone());
        first
    });
    let wild = |host: &String| host.contains('*');
    servers.sort_by_key(|server| (server.hosts.is_empty(), server.hosts.iter().any(wild)));
    let with_hosts = |server: Server| {
        server.places.into_iter().map(move |place| Place { hosts: server.hosts.clone(), ..place })
    };
    servers.into_iter().flat_map(with_hosts).collect()
}

struct Finder<'a> {
    zones: HashMap<String, Zone>,
    remarks: &'a mut Remarks,
}

impl Finder<'_> {
    /// Returns what stands in `http`, there or at the top of a file that others include there.
    fn http(&mut self, directives: Vec<Directive>) -> Vec<Directive> {
        let mut all = Vec::new();
        for directive in directives {
            match directive.name.as_str() {
                "http" => all.extend(self.http(directive.block.unwrap_or_default())),
                "stream" => {
                    self.remarks.left_out(
                        &directive.place,
                        "limits of `stream` are left out: nothing asks a rate limiter there",
                    );
                }
                _ => {
                    self.tell_includes(&directive);
                    all.push(directive);
                }
            }
        }
        all
    }

    /// Says which files are not followed, but for lists that hold no limits.
    fn tell_includes(&mut self, directive: &Directive) {
        if directive.name == "include"
            && let Some(path) = directive.words.first()
            && !["mime.types", "_params"].iter().any(|end| path.ends_with(end))
        {
            self.remarks.left_out(
                &directive.place,
                format_args!("include {path} is not followed: name its files on the command line too, or put them in its place"),
            );
        }
        for inner in directive.block.iter().flatten() {
            self.tell_includes(inner);
        }
    }

    fn server(&mut self, server: &Directive, around: &Scope) -> Server {
        let block = server.block.as_deref().unwrap_or_default();
        let words = |name: &str| {
            let named = block.iter().filter(move |directive| directive.name == name);
            named.flat_map(|directive| directive.words.iter().cloned()).collect::<Vec<_>>()
        };
        let mut hosts = Vec::new();
        for name in words("server_name") {
            match name.strip_prefix('.') {
                Some(domain) => hosts.extend([domain.to_owned(), format!("*.{domain}")]),
                None if name.starts_with('~') => self.remarks.left_out(
                    &server.place,
                    format_args!(
                        "server_name {name}: rules match hosts by texts and `*`, so this name is left out"
                    ),
                ),
                None if matches!(name.as_str(), "_" | "" | "$hostname") => {}
                None => hosts.push(name.to_ascii_lowercase()),
            }
        }
        let default =
            words("listen").iter().any(|word| matches!(word.as_str(), "default_server" | "default"));
        let scope = self.scope(around, block);
        Server { hosts, default, places: self.locations(block, &scope) }
    }

    /// Returns a server's locations, the most specific first, and the rest of it.
    fn locations(&mut self, block: &[Directive], scope: &Scope) -> Vec<Place> {
        let (mut places, mut regular) = (Vec::new(), Vec::new());
        self.collect(block, scope, &mut places, &mut regular);
        let differs = places.iter().any(|place: &Place| place.scope != *scope);
        for (place, own) in regular {
            if differs || own != *scope {
                self.remarks.left_out(
                    &place,
                    "rules match paths by texts and `*`, not by regular expressions: requests of this location are counted by the prefix that fits",
                );
            }
        }
        if !places.iter().any(|place| place.path.is_none()) {
            places.push(Place { hosts: Vec::new(), path: None, scope: scope.clone() });
        }
        places.sort_by_key(|place| {
            let path = place.path.as_deref().unwrap_or("*");
            (path.ends_with('*'), Reverse(path.len()))
        });
        places
    }

    fn collect(
        &mut self,
        block: &[Directive],
        around: &Scope,
        places: &mut Vec<Place>,
        regular: &mut Vec<(String, Scope)>,
    ) {
        for location in block.iter().filter(|directive| directive.name == "location") {
            let inner = location.block.as_deref().unwrap_or_default();
            let scope = self.scope(around, inner);
            let path = location.words.concat();
            match (path.strip_prefix('='), path.strip_prefix("^~").unwrap_or(&path)) {
                (Some(exact), _) if is_plain(exact) => {
                    places.push(Place {
                        hosts: Vec::new(),
                        path: Some(exact.to_owned()),
                        scope: scope.clone(),
                    });
                }
                (None, "/") => places.push(Place { hosts: Vec::new(), path: None, scope: scope.clone() }),
                (None, prefix) if is_plain(prefix) => {
                    let path = Some(format!("{prefix}*"));
                    places.push(Place { hosts: Vec::new(), path, scope: scope.clone() });
                }
                // No request comes there from outside.
                (None, name) if name.starts_with('@') => {}
                _ => regular.push((location.place.clone(), scope.clone())),
            }
            self.collect(inner, &scope, places, regular);
        }
    }

    fn scope(&mut self, around: &Scope, block: &[Directive]) -> Scope {
        Scope {
            requests: self.limits(LimitFamily::Requests, &around.requests, block),
            connections: self.limits(LimitFamily::Connections, &around.connections, block),
        }
    }

    fn limits(&mut self, counted: LimitFamily, around: &Limits, block: &[Directive]) -> Limits {
        let name = counted.directive();
        let mut own = around.clone();
        let mut limits = None;
        for directive in block {
            let value = directive.words.first().map(String::as_str).unwrap_or_default();
            match directive.name.strip_prefix(name) {
                Some("_status") => match value.parse() {
                    Ok(status) => own.status = status,
                    Err(_) => self
                        .remarks
                        .left_out(&directive.place, format_args!("{value:?} is no status and dropped")),
                },
                Some("_dry_run") => own.dry_run = value == "on",
                Some("") => limits.get_or_insert_with(Vec::new).extend(self.limit(counted, directive)),
                _ => {}
            }
        }
        own.limits = limits.unwrap_or(own.limits);
        for applied in &mut own.limits {
            (applied.status, applied.dry_run) = (own.status, own.dry_run);
        }
        own
    }

    fn limit(&mut self, counted: LimitFamily, directive: &Directive) -> Option<Applied> {
        let limit = match counted {
            LimitFamily::Requests => zone::limit_req(directive, self.remarks),
            LimitFamily::Connections => zone::limit_conn(directive, self.remarks),
        }?;
        let requests = matches!(limit.kind, LimitKind::Requests { .. });
        let known = self.zones.get(&limit.zone).filter(|zone| zone.rate.is_some() == requests);
        if known.is_none() {
            self.remarks.left_out(
                &directive.place,
                format_args!(
                    "no {}_zone of these files is called {}: the limit is left out",
                    directive.name, limit.zone
                ),
            );
            return None;
        }
        Some(Applied { limit, status: STATUS, dry_run: false, place: directive.place.clone() })
    }
}

/// True for a path that a rule can say: none of its letters means more there.
fn is_plain(path: &str) -> bool {
    path.starts_with('/') && !path.contains(['*', '$'])
}
