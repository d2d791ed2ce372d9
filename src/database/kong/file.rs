//! Kong's declarative file: services, routes, consumers and their groups, each with plug-ins of its own.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::plugin::{self, Plugin};
use crate::database::imported::{self, Remarks, Unread};

/// Most plug-ins in all files.
const PLUGINS_MAX: usize = 100_000;

/// An instance of a plug-in that limits.
#[derive(Debug)]
pub(super) struct Instance {
    /// File, and path within it.
    pub(super) place: String,
    pub(super) scope: InstanceScope,
    pub(super) plugin: Plugin,
}

/// The requests for which an instance runs: those of all that it names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct InstanceScope {
    pub(super) consumer: Option<String>,
    pub(super) group: Option<String>,
    pub(super) route: Option<String>,
    pub(super) service: Option<String>,
    /// The service of the route, where the files say it.
    routed_to: Option<String>,
}

impl InstanceScope {
    /// Returns the order in which Kong looks for an instance: the most specific comes first.
    pub(super) fn rank(&self) -> u8 {
        let (who, route, service) = (
            match (&self.consumer, &self.group) {
                (Some(_), _) => 2,
                (None, Some(_)) => 1,
                (None, None) => 0,
            },
            self.route.is_some(),
            self.service.is_some(),
        );
        match (who, route, service) {
            (2, true, true) => 0,
            (1, true, true) => 1,
            (2, true, false) => 2,
            (2, false, true) => 3,
            (1, true, false) => 4,
            (1, false, true) => 5,
            (_, true, true) => 6,
            (2, false, false) => 7,
            (1, false, false) => 8,
            (_, true, false) => 9,
            (_, false, true) => 10,
            (_, false, false) => 11,
        }
    }

    /// True if a request may be in both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let both = |one: &Option<String>, other: &Option<String>| match (one, other) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        both(&self.consumer, &other.consumer)
            && both(&self.group, &other.group)
            && both(&self.route, &other.route)
            && both(self.of_service(), other.of_service())
    }

    fn of_service(&self) -> &Option<String> {
        if self.service.is_some() { &self.service } else { &self.routed_to }
    }

    /// Returns how a rule's name says it.
    pub(super) fn shown(&self) -> String {
        let named = [&self.consumer, &self.group, &self.route, &self.service];
        let words: Vec<&str> = named.into_iter().flatten().map(String::as_str).collect();
        if words.is_empty() { "kong".to_owned() } else { words.join(".") }
    }
}

impl Instance {
    /// True if Kong counts both in the same counters, at least for some request.
    pub(super) fn shares_counters_with(&self, other: &Self) -> bool {
        let windows =
            |window: &plugin::PluginWindow| other.plugin.windows.iter().any(|own| own.word == window.word);
        if !self.plugin.windows.iter().any(windows) {
            return false;
        }
        if self.plugin.family == plugin::PluginFamily::Advanced {
            let namespace = self.plugin.namespace.as_ref();
            return namespace.is_some() && namespace == other.plugin.namespace.as_ref();
        }
        // It names a counter by route and service of the instance, and by whom it counts. No consumer is
        // counted by both instances.
        let same = (&self.scope.route, &self.scope.service) == (&other.scope.route, &other.scope.service);
        let by = self.plugin.counted_by.first().filter(|by| !by.is_of_a_consumer());
        same && by.is_some_and(|by| other.plugin.counted_by.contains(by))
    }
}

/// A kind of entity that has plug-ins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum EntityKind {
    Service,
    Route,
    Consumer,
    Group,
}

impl EntityKind {
    /// Returns its list at the top of a file, the key by which a plug-in names one, and where its name is.
    fn words(self) -> (&'static str, &'static str, &'static [&'static str]) {
        match self {
            Self::Service => ("services", "service", &["name"]),
            Self::Route => ("routes", "route", &["name"]),
            Self::Consumer => ("consumers", "consumer", &["username", "custom_id"]),
            Self::Group => ("consumer_groups", "consumer_group", &["name"]),
        }
    }
}

const KINDS: [EntityKind; 4] =
    [EntityKind::Service, EntityKind::Route, EntityKind::Consumer, EntityKind::Group];

/// Reads the instances of all files.
pub(super) fn read(files: &[(String, String)], remarks: &mut Remarks) -> Result<Vec<Instance>, Vec<Unread>> {
    let (mut roots, mut unread) = (Vec::new(), Vec::new());
    for (file, text) in files {
        match root(file, text) {
            Ok(read) => roots.push((file.as_str(), read)),
            Err(problem) => unread.push(problem),
        }
    }
    if !unread.is_empty() {
        return Err(unread);
    }
    let mut reader = KongReader { names: KongNames::default(), instances: Vec::new(), seen: 0, remarks };
    for (_, root) in &roots {
        reader.names.learn(root);
    }
    for (file, root) in &roots {
        reader.plugins(&format!("{file}: plugins"), root.get("plugins"), &Parent::File);
        for kind in KINDS {
            let list = kind.words().0;
            reader.entities(&format!("{file}: {list}"), root.get(list), kind);
        }
    }
    Ok(reader.instances)
}

fn root(file: &str, text: &str) -> Result<Map<String, Value>, Unread> {
    match imported::yaml(file, text)? {
        Value::Object(root) if root.contains_key("_format_version") => Ok(root),
        _ => Err(Unread {
            place: file.to_owned(),
            why: "is no declarative file of Kong: _format_version is expected beside services, routes, consumers and \
                  plugins. `deck gateway dump` and `kong config db_export` write such a file"
                .to_owned(),
        }),
    }
}

/// The entity in which a plug-in stands.
enum Parent {
    File,
    Entity {
        kind: EntityKind,
        /// `None`: it has none.
        name: Option<String>,
    },
}

/// Names of entities by their ids, the services of routes, and shared configurations.
#[derive(Default)]
struct KongNames {
    by_id: HashMap<(EntityKind, String), String>,
    routed_to: HashMap<String, String>,
    configs: HashMap<String, Map<String, Value>>,
}

impl KongNames {
    fn learn(&mut self, root: &Map<String, Value>) {
        for kind in KINDS {
            for entity in objects(root.get(kind.words().0)) {
                self.learn_entity(kind, entity);
                for route in objects(entity.get("routes")) {
                    self.learn_entity(EntityKind::Route, route);
                    if let (Some(route), Some(service)) = (name(EntityKind::Route, route), name(kind, entity))
                    {
                        self.routed_to.insert(route, service);
                    }
                }
            }
        }
        for route in objects(root.get("routes")) {
            let service = route.get("service").and_then(|service| self.named(EntityKind::Service, service));
            if let (Some(route), Some(service)) = (name(EntityKind::Route, route), service) {
                self.routed_to.insert(route, service);
            }
        }
        if let Some(Value::Object(configs)) = root.get("_plugin_configs") {
            let tables = configs.iter().filter_map(|(name, config)| Some((name, config.as_object()?)));
            self.configs.extend(tables.map(|(name, config)| (name.clone(), config.clone())));
        }
    }

    fn learn_entity(&mut self, kind: EntityKind, entity: &Map<String, Value>) {
        if let (Some(id), Some(name)) = (entity.get("id").and_then(Value::as_str), name(kind, entity)) {
            self.by_id.insert((kind, id.to_owned()), name);
        }
    }

    /// Returns the name of an entity that something names by its name or id, alone or in a table.
    fn named(&self, kind: EntityKind, reference: &Value) -> Option<String> {
        let by_id = |id: &str| self.by_id.get(&(kind, id.to_owned())).cloned();
        match reference {
            Value::Object(entity) => {
                name(kind, entity).or_else(|| by_id(entity.get("id").and_then(Value::as_str)?))
            }
            text => imported::text(text).map(|text| by_id(&text).unwrap_or(text)),
        }
    }
}

fn objects(list: Option<&Value>) -> impl Iterator<Item = &Map<String, Value>> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn name(kind: EntityKind, entity: &Map<String, Value>) -> Option<String> {
    let fields = kind.words().2;
    fields.iter().find_map(|field| imported::text(entity.get(*field)?))
}

struct KongReader<'r> {
    names: KongNames,
    instances: Vec<Instance>,
    seen: usize,
    remarks: &'r mut Remarks,
}

impl KongReader<'_> {
    fn entities(&mut self, place: &str, list: Option<&Value>, kind: EntityKind) {
        for (at, entity) in self.list(place, list).iter().enumerate() {
            let place = format!("{place}[{at}]");
            let Some(entity) = entity.as_object() else {
                self.remarks.left_out(&place, "must be a table: left out");
                continue;
            };
            let parent = Parent::Entity { kind, name: name(kind, entity) };
            self.plugins(&format!("{place}.plugins"), entity.get("plugins"), &parent);
            if kind == EntityKind::Service {
                self.entities(&format!("{place}.routes"), entity.get("routes"), EntityKind::Route);
            }
        }
    }

    fn plugins(&mut self, place: &str, list: Option<&Value>, parent: &Parent) {
        for (at, plugin) in self.list(place, list).iter().enumerate() {
            let place = format!("{place}[{at}]");
            self.seen += 1;
            if self.seen > PLUGINS_MAX {
                self.remarks.left_out(&place, "beyond 100,000 plug-ins nothing is read: split the files");
                return;
            }
            let Some(plugin) = plugin.as_object() else {
                self.remarks.left_out(&place, "must be a table with a name and a config: left out");
                continue;
            };
            self.plugin(place, plugin, parent);
        }
    }

    fn plugin(&mut self, place: String, written: &Map<String, Value>, parent: &Parent) {
        let Some(family) = plugin::family(&place, written, self.remarks) else { return };
        let Some(scope) = self.scope(&place, written, parent) else { return };
        let same = |own: &&Instance| own.plugin.family == family && own.scope == scope;
        if let Some(first) = self.instances.iter().find(same) {
            let first = &first.place;
            self.remarks.left_out(
                &place,
                format_args!("is for the same requests as {first}, and Kong takes no such file: left out"),
            );
            return;
        }
        let config = self.config(&place, written);
        let plugin = plugin::read(&place, family, written, config, self.remarks);
        self.instances.push(Instance { place, scope, plugin });
    }

    /// Returns the requests for which a plug-in runs; `None`: nothing that Kong could send says them.
    fn scope(&mut self, place: &str, written: &Map<String, Value>, parent: &Parent) -> Option<InstanceScope> {
        let mut scope = InstanceScope::default();
        for kind in KINDS {
            let key = kind.words().1;
            let own = written.get(key).filter(|reference| !reference.is_null());
            let around = match parent {
                Parent::Entity { kind: around, name } if *around == kind => Some(name.clone()),
                _ => None,
            };
            let name = match (own, around) {
                (None, None) => continue,
                (Some(reference), _) => self.names.named(kind, reference),
                (None, Some(name)) => name,
            };
            let Some(name) = name else {
                self.remarks.left_out(
                    place,
                    format_args!(
                        "its {key} has no name in these files, by which Kong could tell it: left out"
                    ),
                );
                return None;
            };
            if let Some(why) = imported::not_plain(&name) {
                self.remarks.left_out(place, format_args!("its {key} {name:?} {why}: left out"));
                return None;
            }
            match kind {
                EntityKind::Service => scope.service = Some(name),
                EntityKind::Route => {
                    scope.routed_to = self.names.routed_to.get(&name).cloned();
                    scope.route = Some(name);
                }
                EntityKind::Consumer => scope.consumer = Some(name),
                EntityKind::Group => scope.group = Some(name),
            }
        }
        Some(scope)
    }

    /// Returns a plug-in's own configuration, laid over the shared one that it names.
    fn config(&mut self, place: &str, written: &Map<String, Value>) -> Map<String, Value> {
        let mut config = Map::new();
        if let Some(shared) = written.get("_config").and_then(Value::as_str) {
            match self.names.configs.get(shared) {
                Some(shared) => config.clone_from(shared),
                None => self.remarks.left_out(
                    place,
                    format_args!("_plugin_configs of these files have none that is called {shared}"),
                ),
            }
        }
        if let Some(Value::Object(own)) = written.get("config") {
            config.extend(own.clone());
        }
        config
    }

    fn list<'v>(&mut self, place: &str, list: Option<&'v Value>) -> &'v [Value] {
        match list {
            None | Some(Value::Null) => &[],
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.remarks.left_out(place, "must be a list: left out");
                &[]
            }
        }
    }
}
