//! Users, API keys and tiers in the rules file, changed through the daemon: the file is rewritten with every
//! comment kept, and read again like after any other change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::problem_lines::lines;
use super::reload::Reloader;
use super::setup::RulesSource;
use crate::core::identity::{ApiKey, User, UserLimit};
use crate::core::ruleset::{RuleSet, Shapes};
use crate::core::time::Timestamp;
use crate::core::written::{format_moment, parse_moment};
use crate::database::document::{self, Loaded};
use crate::database::file::edit::EntryName;
use crate::database::file::{self, edit};
use crate::engine::admin::{self, Actor, Change, Ledger};
use crate::engine::identity::register::{
    BlockRecord, Filter, KeyChange, KeyDraft, KeyRecord, Register, RegisterError, Registered, TierRecord,
    UserChange, UserRecord,
};
use crate::engine::identity::secret::new_key;

/// The people of a rules file.
pub(super) struct FilePeople {
    pub(super) reloader: Arc<Reloader>,
    /// Record of what operators change of users, keys and tiers.
    pub(super) ledger: Arc<dyn Ledger>,
}

/// The file, as it is.
struct WrittenFile {
    text: String,
    /// Its lists, as they stand there.
    json: Value,
    loaded: Loaded,
}

/// A list of entries, and what one of them is called when it is missing.
#[derive(Clone, Copy)]
struct EntryKind {
    list: &'static str,
    key: &'static str,
    what: &'static str,
}

const USER: EntryKind = EntryKind { list: "users", key: "id", what: "user" };
const TIER: EntryKind = EntryKind { list: "tiers", key: "name", what: "tier" };

/// One change of an entry.
struct Entry {
    list: &'static str,
    key: &'static str,
    name: String,
    after: Option<Map<String, Value>>,
}

impl FilePeople {
    fn path(&self) -> Result<&Path, RegisterError> {
        match self.reloader.source() {
            RulesSource::File(path) if path.exists() => Ok(path),
            _ => Err(RegisterError::Unsupported(
                "this daemon keeps no users: start it with --rules FILE, or with [postgres]",
            )),
        }
    }

    async fn read(&self) -> Result<WrittenFile, RegisterError> {
        let Ok(path) = self.path() else {
            let loaded = Loaded { rules: vec![], users: vec![], keys: vec![], tiers: vec![], hash: 0 };
            return Ok(WrittenFile { text: String::new(), json: Value::Null, loaded });
        };
        let (path, regions) = (path.to_owned(), self.reloader.regions());
        let read = tokio::task::spawn_blocking(move || read(&path, &regions)).await;
        read.map_err(|error| RegisterError::Failed(error.to_string()))?
    }

    /// Rewrites one entry, which `change` makes out of what is there, and records it.
    async fn write(
        &self,
        actor: &Actor,
        action: &'static str,
        reason: Option<String>,
        change: impl FnOnce(&WrittenFile) -> Result<Entry, RegisterError>,
    ) -> Result<WrittenFile, RegisterError> {
        let path: PathBuf = self.path()?.to_owned();
        let _editing = self.reloader.editing.lock().await;
        let written = self.read().await?;
        let entry = change(&written)?;
        let before = entry_of(&written.json, entry.list, entry.key, &entry.name).cloned();
        let name = EntryName { list: entry.list, key: entry.key, name: &entry.name };
        let text = edit::rewrite_entry(&written.text, name, entry.after.as_ref())
            .map_err(|why| RegisterError::Refused("body", why))?;
        let (own, regions) = (path.clone(), self.reloader.regions());
        let replaced = tokio::task::spawn_blocking(move || {
            check(&own, &text, &regions)?;
            edit::replace(&own, &text).map_err(|error| {
                RegisterError::Away(format!("{} cannot be rewritten: {error}", own.display()))
            })
        });
        replaced.await.map_err(|error| RegisterError::Failed(error.to_string()))??;
        self.reloader.read_again(&path).await.map_err(RegisterError::Failed)?;
        let change = Change {
            actor: actor.clone(),
            action,
            target: entry.name,
            before,
            after: entry.after.map(Value::Object),
            reason,
        };
        admin::keep(&*self.ledger, &change).await;
        self.read().await
    }
}

fn read(path: &Path, regions: &[String]) -> Result<WrittenFile, RegisterError> {
    let text = file::read(path).map_err(|problem| RegisterError::Away(problem.to_string()))?;
    let wrong =
        |problems: String| RegisterError::Away(format!("the rules file is not right as it is: {problems}"));
    let loaded = document::from_toml(&path.display().to_string(), &text, regions);
    let loaded = loaded.map_err(|problems| wrong(lines(&problems)))?;
    let json = toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    Ok(WrittenFile { text, json, loaded })
}

/// Checks whether a text would be right as the rules file.
fn check(path: &Path, text: &str, regions: &[String]) -> Result<(), RegisterError> {
    let refused = |problems: String| RegisterError::Refused("body", problems);
    let loaded = document::from_toml(&path.display().to_string(), text, regions);
    let loaded = loaded.map_err(|problems| refused(lines(&problems)))?;
    let people = loaded.people();
    RuleSet::compile_with_people(loaded.rules, people, &mut Shapes::default())
        .map(drop)
        .map_err(|conflicts| refused(lines(&conflicts)))
}

/// One entry of a list, as it is written.
fn entry_of<'w>(json: &'w Value, list: &str, key: &str, name: &str) -> Option<&'w Value> {
    let entries = json.get(list)?.as_array()?;
    entries.iter().find(|entry| entry.get(key).and_then(Value::as_str) == Some(name))
}

fn fields_of(written: &WrittenFile, list: &str, key: &str, name: &str) -> Option<Map<String, Value>> {
    entry_of(&written.json, list, key, name)?.as_object().cloned()
}

fn set(fields: &mut Map<String, Value>, field: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(fields.insert(field.to_owned(), value)),
        None => drop(fields.remove(field)),
    }
}

fn limits(overrides: &[UserLimit]) -> Option<Value> {
    let own = |own: &UserLimit| {
        let mut limit = json!({ "limit": own.permits });
        if own.burst != own.permits {
            limit["burst"] = own.burst.into();
        }
        (own.rule.clone(), limit)
    };
    (!overrides.is_empty()).then(|| overrides.iter().map(own).collect::<Map<_, _>>().into())
}

fn user_record(user: &User) -> UserRecord {
    let block = user.blocked.as_ref();
    UserRecord {
        id: user.id.clone(),
        tier: user.tier.clone(),
        overrides: user.overrides.clone(),
        blocked: block.map(|block| BlockRecord {
            reason: block.reason.clone(),
            until: block.until,
            since: None,
        }),
        created_at: None,
        updated_at: None,
        last_seen_at: None,
    }
}

fn key_record(key: &ApiKey, json: &Value) -> KeyRecord {
    let told = |field| entry_of(json, "keys", "id", &key.id)?.get(field)?.as_str();
    let moment = |field| told(field).and_then(parse_moment);
    KeyRecord {
        id: key.id.clone(),
        user: key.user.clone(),
        tier: key.tier.clone(),
        overrides: key.overrides.clone(),
        active: key.active && !key.revoked,
        note: told("note").unwrap_or_default().to_owned(),
        expires_at: key.expires,
        created_at: moment("created_at"),
        created_by: told("created_by").map(str::to_owned),
        revoked_at: moment("revoked_at"),
        revoked_by: told("revoked_by").map(str::to_owned),
        last_seen_at: None,
    }
}

fn find_user(written: &WrittenFile, id: &str) -> Result<UserRecord, RegisterError> {
    let user = written.loaded.users.iter().find(|user| user.id == id);
    user.map(user_record).ok_or_else(|| RegisterError::Nobody("user", id.to_owned()))
}

fn find_key(written: &WrittenFile, id: &str) -> Result<KeyRecord, RegisterError> {
    let key = written.loaded.keys.iter().find(|key| key.id == id);
    key.map(|key| key_record(key, &written.json))
        .ok_or_else(|| RegisterError::Nobody("API key", id.to_owned()))
}

/// One page, by name.
fn page<T>(mut all: Vec<T>, filter: &Filter, name: impl Fn(&T) -> &str) -> Vec<T> {
    all.retain(|one| filter.after.as_deref().is_none_or(|after| name(one) > after));
    all.sort_by(|a, b| name(a).cmp(name(b)));
    all.truncate(usize::try_from(filter.limit).unwrap_or(usize::MAX));
    all
}

fn texted(at: Timestamp) -> Value {
    Value::String(format_moment(at))
}

/// True if a rule is for this tier, or somebody has it.
fn is_tier(loaded: &Loaded, tier: &str) -> bool {
    let mut conditions = loaded.rules.iter().flat_map(|rule| &rule.conditions);
    let of_users = loaded.users.iter().filter_map(|user| user.tier.as_deref());
    let of_keys = loaded.keys.iter().filter_map(|key| key.tier.as_deref());
    of_users.chain(of_keys).any(|known| known == tier)
        || conditions.any(|condition| {
            condition.attribute == "tier" && condition.any_of.iter().any(|pattern| pattern.matches_text(tier))
        })
}

impl FilePeople {
    /// Looks for a tier that somebody is to have. A file with a list of tiers is checked as a whole; one
    /// without has those that its rules, its users or the configuration name.
    fn look_for(&self, written: &WrittenFile, tier: Option<&str>) -> Result<(), RegisterError> {
        let Some(tier) = tier.filter(|_| written.loaded.tiers.is_empty()) else { return Ok(()) };
        let is_default = self.reloader.engine().tier_default() == Some(tier);
        if is_default || is_tier(&written.loaded, tier) { Ok(()) } else { Err(RegisterError::no_tier()) }
    }

    async fn change_user(
        &self,
        actor: &Actor,
        id: &str,
        change: UserChange,
    ) -> Result<UserRecord, RegisterError> {
        let entry = |written: &WrittenFile| {
            let mut fields = fields_of(written, "users", "id", id).unwrap_or_default();
            fields.insert("id".to_owned(), id.into());
            if let Some(tier) = &change.tier {
                self.look_for(written, tier.as_deref())?;
                set(&mut fields, "tier", tier.clone().map(Value::String));
            }
            if let Some(own) = &change.overrides {
                set(&mut fields, "overrides", limits(own));
            }
            if let Some(blocked) = &change.blocked {
                let block = blocked.as_ref().map(|block| {
                    let mut fields = Map::new();
                    set(&mut fields, "reason", block.reason.clone().map(Value::String));
                    set(&mut fields, "until", block.until.map(texted));
                    if fields.is_empty() { Value::Bool(true) } else { Value::Object(fields) }
                });
                set(&mut fields, "blocked", block);
            }
            Ok(Entry { list: "users", key: "id", name: id.to_owned(), after: Some(fields) })
        };
        let written = self.write(actor, change.action, change.reason.clone(), entry).await?;
        find_user(&written, id)
    }

    async fn make_key(&self, actor: &Actor, draft: KeyDraft) -> Result<(KeyRecord, String), RegisterError> {
        let new = new_key().map_err(|error| RegisterError::Failed(error.to_string()))?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let now = self.reloader.engine().now();
        let entry = |written: &WrittenFile| {
            self.look_for(written, draft.tier.as_deref())?;
            let mut fields = Map::new();
            fields.insert("id".to_owned(), new.id.as_str().into());
            fields.insert("salt".to_owned(), hex(&new.salt).into());
            fields.insert("hash".to_owned(), hex(&new.hash).into());
            set(&mut fields, "user", draft.user.clone().map(Value::String));
            set(&mut fields, "tier", draft.tier.clone().map(Value::String));
            set(&mut fields, "overrides", limits(&draft.overrides));
            set(&mut fields, "expires_at", draft.expires.map(texted));
            set(&mut fields, "note", Some(draft.note.clone().into()).filter(|_| !draft.note.is_empty()));
            set(&mut fields, "created_at", Some(texted(now)));
            set(&mut fields, "created_by", Some(actor.name.as_str().into()));
            Ok(Entry { list: "keys", key: "id", name: new.id.clone(), after: Some(fields) })
        };
        let written = self.write(actor, "key.create", None, entry).await?;
        Ok((find_key(&written, &new.id)?, new.text))
    }

    async fn change_key(
        &self,
        actor: &Actor,
        id: &str,
        change: KeyChange,
    ) -> Result<KeyRecord, RegisterError> {
        let now = self.reloader.engine().now();
        let entry = |written: &WrittenFile| {
            let nobody = || RegisterError::Nobody("API key", id.to_owned());
            let mut fields = fields_of(written, "keys", "id", id).ok_or_else(nobody)?;
            if let Some(tier) = &change.tier {
                self.look_for(written, tier.as_deref())?;
                set(&mut fields, "tier", tier.clone().map(Value::String));
            }
            if let Some(own) = &change.overrides {
                set(&mut fields, "overrides", limits(own));
            }
            if let Some(active) = change.active {
                set(&mut fields, "active", (!active).then_some(Value::Bool(false)));
            }
            if let Some(expires) = change.expires {
                set(&mut fields, "expires_at", expires.map(texted));
            }
            if let Some(note) = &change.note {
                set(&mut fields, "note", Some(note.as_str().into()).filter(|_| !note.is_empty()));
            }
            if change.revoke && !fields.contains_key("revoked_at") {
                set(&mut fields, "revoked_at", Some(texted(now)));
                set(&mut fields, "revoked_by", Some(actor.name.as_str().into()));
            }
            Ok(Entry { list: "keys", key: "id", name: id.to_owned(), after: Some(fields) })
        };
        let written = self.write(actor, change.action, change.reason.clone(), entry).await?;
        find_key(&written, id)
    }

    async fn remove(
        &self,
        actor: &Actor,
        action: &'static str,
        kind: EntryKind,
        name: &str,
    ) -> Result<(), RegisterError> {
        let EntryKind { list, key, what } = kind;
        let entry = |written: &WrittenFile| match entry_of(&written.json, list, key, name) {
            Some(_) => Ok(Entry { list, key, name: name.to_owned(), after: None }),
            None => Err(RegisterError::Nobody(what, name.to_owned())),
        };
        self.write(actor, action, None, entry).await.map(drop)
    }
}

fn tier_records(json: &Value) -> Vec<TierRecord> {
    let text = |tier: &Value, field| tier.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let tiers = json.get("tiers").and_then(Value::as_array).into_iter().flatten();
    tiers
        .map(|tier| TierRecord { name: text(tier, "name"), description: text(tier, "description") })
        .collect()
}

impl Register for FilePeople {
    fn users(&self, filter: Filter) -> Registered<'_, Vec<UserRecord>> {
        Box::pin(async move {
            let mut users: Vec<_> = self.read().await?.loaded.users.iter().map(user_record).collect();
            let now = self.reloader.engine().now();
            let blocked = |user: &UserRecord| {
                user.blocked.as_ref().is_some_and(|block| block.until.is_none_or(|until| now < until))
            };
            users.retain(|user| filter.tier.is_none() || user.tier == filter.tier);
            users.retain(|user| filter.blocked.is_none_or(|wanted| blocked(user) == wanted));
            users.retain(|user| filter.finds(&[&user.id]));
            Ok(page(users, &filter, |user| &user.id))
        })
    }
    fn user<'a>(&'a self, id: &'a str) -> Registered<'a, UserRecord> {
        Box::pin(async move { find_user(&self.read().await?, id) })
    }
    fn change_user<'a>(
        &'a self,
        actor: &'a Actor,
        id: &'a str,
        change: UserChange,
    ) -> Registered<'a, UserRecord> {
        Box::pin(self.change_user(actor, id, change))
    }
    fn remove_user<'a>(&'a self, actor: &'a Actor, id: &'a str) -> Registered<'a, ()> {
        Box::pin(self.remove(actor, "user.remove", USER, id))
    }
    fn keys(&self, filter: Filter) -> Registered<'_, Vec<KeyRecord>> {
        Box::pin(async move {
            let written = self.read().await?;
            // One that is revoked may have no time at which it was.
            let asked = |key: &&ApiKey| filter.revoked.is_none_or(|wanted| key.revoked == wanted);
            let keys = written.loaded.keys.iter().filter(asked);
            let mut keys: Vec<_> = keys.map(|key| key_record(key, &written.json)).collect();
            keys.retain(|key| filter.tier.is_none() || key.tier == filter.tier);
            keys.retain(|key| filter.user.is_none() || key.user == filter.user);
            keys.retain(|key| filter.finds(&[&key.id, key.user.as_deref().unwrap_or_default(), &key.note]));
            Ok(page(keys, &filter, |key| &key.id))
        })
    }
    fn key<'a>(&'a self, id: &'a str) -> Registered<'a, KeyRecord> {
        Box::pin(async move { find_key(&self.read().await?, id) })
    }
    fn make_key<'a>(&'a self, actor: &'a Actor, draft: KeyDraft) -> Registered<'a, (KeyRecord, String)> {
        Box::pin(self.make_key(actor, draft))
    }
    fn change_key<'a>(
        &'a self,
        actor: &'a Actor,
        id: &'a str,
        change: KeyChange,
    ) -> Registered<'a, KeyRecord> {
        Box::pin(self.change_key(actor, id, change))
    }
    fn tiers(&self) -> Registered<'_, Vec<TierRecord>> {
        Box::pin(async move { Ok(tier_records(&self.read().await?.json)) })
    }
    fn put_tier<'a>(&'a self, actor: &'a Actor, tier: TierRecord) -> Registered<'a, TierRecord> {
        Box::pin(async move {
            let entry = |_: &WrittenFile| {
                let mut fields = Map::new();
                fields.insert("name".to_owned(), tier.name.as_str().into());
                let description = Some(tier.description.as_str().into());
                set(&mut fields, "description", description.filter(|_| !tier.description.is_empty()));
                Ok(Entry { list: "tiers", key: "name", name: tier.name.clone(), after: Some(fields) })
            };
            self.write(actor, "tier.set", None, entry).await?;
            Ok(tier)
        })
    }
    fn remove_tier<'a>(&'a self, actor: &'a Actor, name: &'a str) -> Registered<'a, ()> {
        Box::pin(async move {
            let people = self.read().await?.loaded;
            let has = |tier: &Option<String>| tier.as_deref() == Some(name);
            let users: Vec<_> =
                people.users.iter().filter(|user| has(&user.tier)).map(|user| user.id.clone()).collect();
            let keys: Vec<_> =
                people.keys.iter().filter(|key| has(&key.tier)).map(|key| key.id.clone()).collect();
            if !users.is_empty() || !keys.is_empty() {
                return Err(RegisterError::tier_in_use(name, &users, &keys));
            }
            self.remove(actor, "tier.remove", TIER, name).await
        })
    }
}
