//! Limits of Kong's declarative files, read as ours: `tidegate rules import --from kong`.
//!
//! Of one plug-in Kong runs one instance for a request: the one for the most specific of its consumer, route
//! and service. Here the instances are a group in that order, and an instance with several windows stands in
//! as many groups. An instance that has no window where a less specific one has is a rule that allows. Kong
//! knows a request's route, service and consumer, and sends their names: nothing guesses them from paths.

mod file;
mod plugin;

use std::collections::{BTreeMap, BTreeSet};

use self::file::{Instance, InstanceScope};
use self::plugin::{CountedBy, PluginFamily, PluginWindow};
use super::imported::{Imported, ImportedRule, Remarks, Unread, meaning};

/// Attributes that Kong names by its own entities.
const CONSUMER: &str = "user";
const CONSUMER_GROUP: &str = "consumer-group";
const CREDENTIAL: &str = "credential";
const ROUTE: &str = "route";
const SERVICE: &str = "service";

/// Reads files, each by the name that sentences give it and its text, as if they were one.
///
/// # Errors
/// Every text that is no such file at all.
pub fn import(files: &[(String, String)]) -> Result<Imported, Vec<Unread>> {
    let mut remarks = Remarks::default();
    let instances = file::read(files, &mut remarks)?;
    let mut rules = Vec::new();
    for family in [PluginFamily::Usual, PluginFamily::Advanced] {
        let mut own: Vec<&Instance> =
            instances.iter().filter(|instance| instance.plugin.family == family).collect();
        own.sort_by_key(|instance| instance.scope.rank());
        let most = own.iter().map(|instance| instance.plugin.windows.len()).max().unwrap_or(0);
        for ordinal in 0..most {
            rules.extend(grouped(family, ordinal, rules_of(&own, ordinal)));
        }
        tell_shared(&own, &mut remarks);
    }
    note_attributes(&instances, &mut remarks);
    Ok(remarks.with(rules))
}

/// Has alternatives stand in one group, in their order.
fn grouped(family: PluginFamily, ordinal: usize, rules: Vec<ImportedRule>) -> Vec<ImportedRule> {
    if rules.len() < 2 {
        return rules;
    }
    let group = format!("kong {} {}", family.name(), ordinal + 1);
    let in_order = (100..).zip(rules);
    in_order
        .map(|(priority, rule)| ImportedRule { group: Some(group.clone()), priority: Some(priority), ..rule })
        .collect()
}

/// Returns the rules of each instance's window of this ordinal. The most specific instance comes first.
fn rules_of(instances: &[&Instance], ordinal: usize) -> Vec<ImportedRule> {
    let mut rules = Vec::new();
    for (place, instance) in instances.iter().enumerate() {
        let behind = instances.get(place + 1..).unwrap_or_default();
        let hides =
            |later: &&Instance| later.plugin.windows.len() > ordinal && later.scope.overlaps(&instance.scope);
        match instance.plugin.windows.get(ordinal) {
            Some(window) => rules.extend(
                alternatives(instance).iter().map(|counted| counting_rule(instance, window, counted)),
            ),
            None if behind.iter().any(hides) => rules.push(ImportedRule {
                name: format!("{}.not-limited", instance.scope.shown()),
                action: Some("allow"),
                conditions: instance.scope.conditions(),
                ..ImportedRule::default()
            }),
            None => {}
        }
    }
    rules
}

/// Returns what an instance counts by: the first that a request has. Those behind one that its scope gives to
/// every request are never reached.
fn alternatives(instance: &Instance) -> &[CountedBy] {
    let all = &instance.plugin.counted_by;
    let given = instance.scope.conditions();
    let sure = |counted: &CountedBy| {
        counted.path.is_none() && counted.attributes.iter().all(|name| given.contains_key(name))
    };
    let end = all.iter().position(sure).map_or(all.len(), |place| place + 1);
    all.get(..end).unwrap_or(all)
}

fn counting_rule(instance: &Instance, window: &PluginWindow, counted: &CountedBy) -> ImportedRule {
    let plugin = &instance.plugin;
    let mut conditions = instance.scope.conditions();
    conditions.extend(counted.path.iter().map(|path| ("path".to_owned(), vec![path.clone()])));
    let first = plugin.counted_by.first() == Some(counted);
    let by = if first { String::new() } else { format!(".{}", counted.attributes.join(".")) };
    ImportedRule {
        name: format!("{}.{}{by}", instance.scope.shown(), window.word),
        per: counted.attributes.clone(),
        algorithm: Some(plugin.algorithm),
        limit: Some(window.limit),
        window: window.length.clone(),
        calendar: window.calendar,
        status: plugin.status,
        message: plugin.message.clone(),
        on_failure: plugin.on_failure,
        charge: plugin.charges_denied.then_some("always"),
        debt: plugin.charges_denied.then_some("window"),
        conditions,
        ..ImportedRule::default()
    }
}

/// Says which instances Kong counts in the same counters.
fn tell_shared(instances: &[&Instance], remarks: &mut Remarks) {
    for (place, one) in instances.iter().enumerate() {
        for other in instances.iter().skip(place + 1).filter(|other| one.shares_counters_with(other)) {
            remarks.left_out(
                &other.place,
                format_args!(
                    "Kong counts in the same counters as for {}: here each of both counts by itself",
                    one.place
                ),
            );
        }
    }
}

/// Says once of each attribute that rules name who sends it, or what it means besides its text.
fn note_attributes(instances: &[Instance], remarks: &mut Remarks) {
    let mut noted = BTreeSet::new();
    for instance in instances.iter().filter(|instance| !instance.plugin.windows.is_empty()) {
        let conditions: BTreeMap<String, Vec<String>> = instance.scope.conditions();
        let counted = alternatives(instance);
        let by = counted.iter().flat_map(|counted| counted.attributes.iter().cloned());
        let path = counted.iter().filter(|counted| counted.path.is_some()).map(|_| "path".to_owned());
        for name in conditions.into_keys().chain(by).chain(path) {
            if noted.insert(name.clone()) {
                remarks.note(&instance.place, note(&name));
            }
        }
    }
}

fn note(attribute: &str) -> String {
    let sent = |lua: &str, header: &str| format!("{attribute:?} has to be sent: {lua} as `{header}`");
    match attribute {
        CONSUMER => sent(
            "the username of `kong.client.get_consumer()`, else its custom_id, else the id of `kong.client.get_credential()`,",
            "X-Tidegate-User",
        ),
        CONSUMER_GROUP => {
            sent("the consumer group that Kong takes for the request", "X-Tidegate-Consumer-Group")
        }
        CREDENTIAL => sent("`kong.client.get_credential().id`", "X-Tidegate-Credential"),
        ROUTE => sent("`kong.router.get_route().name`", "X-Tidegate-Route"),
        SERVICE => sent("`kong.router.get_service().name`", "X-Tidegate-Service"),
        known => match meaning::means_more(known) {
            Some(sentence) => format!("{known:?} {sentence}"),
            None => {
                let header = known.strip_prefix("kong-header-").unwrap_or(known);
                sent(
                    &format!("`kong.request.get_header({header:?})`, and nothing where there is none,"),
                    &format!("X-Tidegate-{known}"),
                )
            }
        },
    }
}

impl InstanceScope {
    /// Returns the attributes that a request of this scope has.
    fn conditions(&self) -> BTreeMap<String, Vec<String>> {
        let named = [
            (CONSUMER, &self.consumer),
            (CONSUMER_GROUP, &self.group),
            (ROUTE, &self.route),
            (SERVICE, &self.service),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        named.map(|(name, value)| (name.to_owned(), vec![value])).collect()
    }
}

#[cfg(test)]
mod tests;
