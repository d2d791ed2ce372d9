//! The JSON of a check, read in one pass without copying what needs no unescaping.
//!
//! Strict: an unknown field, a value that is no string, a name given twice are refused, with the path to the
//! culprit. Nothing that was not understood may read as allowed.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::api::error::{Code, Refusal};
use crate::core::request::{ATTRIBUTES_MAX, Cost, Request, TEXT_BYTES_MAX};
use crate::core::rule::DOMAIN_DEFAULT;

/// Most checks of one batch.
pub(super) const CHECKS_MAX: usize = 1_000;
/// Longest piece of the caller's text that is repeated in a refusal, in characters.
const QUOTE_MAX: usize = 64;

/// One check as the caller wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Check<'b> {
    domain: Cow<'b, str>,
    attributes: SmallVec<[(Cow<'b, str>, Cow<'b, str>); 4]>,
    cost: Cost,
    /// How the caller names the request, where it acquires.
    id: Option<Cow<'b, str>>,
    /// How long it reserves, as written.
    ttl: Option<Cow<'b, str>>,
    /// Whether it leaves its cost to the daemon, where it reserves.
    is_estimated: bool,
}

impl Check<'_> {
    /// The question to the engine.
    pub(super) fn request(&self) -> Request<'_> {
        let attributes = self.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        Request::new(&self.domain, attributes, self.cost)
    }

    /// How the caller names the request.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// How long it reserves.
    pub(super) fn ttl(&self) -> Option<&str> {
        self.ttl.as_deref()
    }

    /// Whether the daemon is to say how many permits it reserves.
    pub(super) const fn is_estimated(&self) -> bool {
        self.is_estimated
    }
}

/// What a body of `/v1/check` asks.
#[derive(Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one check is the common case, and a box for it would cost an allocation"
)]
pub(super) enum Question<'b> {
    /// One check.
    One(Check<'b>),
    /// `checks`, 1 to [`CHECKS_MAX`] of them.
    Batch(Vec<Check<'b>>),
}

/// Reads the body of `/v1/check`.
pub(super) fn read(body: &[u8]) -> Result<Question<'_>, Refusal> {
    parse(body, ObjectKind::Any)
}

/// Reads a body that holds one check.
pub(super) fn read_one(body: &[u8]) -> Result<Check<'_>, Refusal> {
    one(parse(body, ObjectKind::One)?)
}

/// Reads a body that reports: one check, which says what was used.
pub(super) fn read_report(body: &[u8]) -> Result<Check<'_>, Refusal> {
    one(parse(body, ObjectKind::Report)?)
}

/// Reads a body that acquires: one check, perhaps with an `id`.
pub(super) fn read_named(body: &[u8]) -> Result<Check<'_>, Refusal> {
    one(parse(body, ObjectKind::Named)?)
}

/// Reads a body that reserves: one check, perhaps with an `amount`, an `id` and a `ttl`.
pub(super) fn read_reserve(body: &[u8]) -> Result<Check<'_>, Refusal> {
    one(parse(body, ObjectKind::Reserve)?)
}

fn one(question: Question<'_>) -> Result<Check<'_>, Refusal> {
    match question {
        Question::One(check) => Ok(check),
        Question::Batch(_) => Err(Refusal::of_field("checks", "one check is asked for here, not a batch")),
    }
}

/// What may stand in an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectKind {
    /// One check, or a batch of them.
    Any,
    /// One check.
    One,
    /// One check that may have a name.
    Named,
    /// One check that says what was used.
    Report,
    /// One check that reserves an amount.
    Reserve,
}

impl ObjectKind {
    /// What the field is called that says how many permits.
    const fn cost_field(self) -> &'static str {
        if matches!(self, Self::Reserve) { "amount" } else { "cost" }
    }
}

fn parse(body: &[u8], kind: ObjectKind) -> Result<Question<'_>, Refusal> {
    let path = Path::default();
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = CheckSeed { path: &path, kind }.deserialize(&mut json);
    read.and_then(|question| json.end().map(|()| question)).map_err(|error| {
        if error.is_data() {
            let field = path.0.into_inner();
            Refusal {
                field: (!field.is_empty()).then_some(field),
                ..Refusal::new(Code::Invalid, error.to_string())
            }
        } else {
            Refusal::new(Code::Malformed, format!("the body is not JSON: {error}"))
        }
    })
}

/// Where in the body the reading stopped. Written on the way out of a failure, from the inside outwards.
#[derive(Default)]
struct Path(RefCell<String>);

impl Path {
    fn came_from(&self, part: &str) {
        let mut path = self.0.borrow_mut();
        let part: String = part.chars().take(QUOTE_MAX).collect();
        *path = if path.is_empty() { part } else { format!("{part}.{path}") };
    }
}

/// Reads one check, or at the top a batch.
#[derive(Clone, Copy)]
struct CheckSeed<'p> {
    path: &'p Path,
    kind: ObjectKind,
}

impl<'de> DeserializeSeed<'de> for CheckSeed<'_> {
    type Value = Question<'de>;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for CheckSeed<'_> {
    type Value = Question<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `attributes`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut domain, mut attributes, mut cost, mut checks) = (None, None, None, None);
        let (mut id, mut ttl) = (None, None);
        while let Some(field) = map.next_key_seed(TextSeed(TextRole::Field))? {
            let twice = match &*field {
                "domain" => {
                    map.next_value_seed(TextSeed(TextRole::Domain)).map(|read| domain.replace(read).is_some())
                }
                "attributes" => map
                    .next_value_seed(AttributesSeed(self.path))
                    .map(|read| attributes.replace(read).is_some()),
                field if field == self.kind.cost_field() => {
                    map.next_value_seed(CostSeed(self.kind)).map(|read| cost.replace(read).is_some())
                }
                "id" if matches!(self.kind, ObjectKind::Named | ObjectKind::Report | ObjectKind::Reserve) => {
                    map.next_value_seed(TextSeed(TextRole::Id)).map(|read| id.replace(read).is_some())
                }
                "ttl" if self.kind == ObjectKind::Reserve => {
                    map.next_value_seed(TextSeed(TextRole::Value)).map(|read| ttl.replace(read).is_some())
                }
                "checks" if self.kind == ObjectKind::Any => {
                    map.next_value_seed(ChecksSeed(self.path)).map(|read| checks.replace(read).is_some())
                }
                _ => Err(A::Error::custom("is no field that is known here")),
            };
            match twice {
                Ok(false) => {}
                Ok(true) => {
                    self.path.came_from(&field);
                    return Err(A::Error::custom("is given twice"));
                }
                Err(error) => {
                    // A list has named its element already.
                    if field != "checks" || !self.path.0.borrow().starts_with("checks[") {
                        self.path.came_from(&field);
                    }
                    return Err(error);
                }
            }
        }
        match (checks, attributes) {
            (Some(checks), None) if domain.is_none() && cost.is_none() => Ok(Question::Batch(checks)),
            (Some(_), _) => {
                self.path.came_from("checks");
                Err(A::Error::custom("cannot stand beside the fields of one check"))
            }
            (None, Some(_)) if cost.is_none() && self.kind == ObjectKind::Report => {
                self.path.came_from("cost");
                Err(A::Error::custom("is missing: a report says what was used"))
            }
            (None, Some(attributes)) => Ok(Question::One(Check {
                domain: domain.unwrap_or(Cow::Borrowed(DOMAIN_DEFAULT)),
                attributes,
                is_estimated: cost.is_none() && self.kind == ObjectKind::Reserve,
                cost: cost.unwrap_or(Cost::Take(1)),
                id,
                ttl,
            })),
            (None, None) => {
                self.path.came_from("attributes");
                Err(A::Error::custom("is missing"))
            }
        }
    }
}

struct ChecksSeed<'p>(&'p Path);

impl<'de> DeserializeSeed<'de> for ChecksSeed<'_> {
    type Value = Vec<Check<'de>>;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ChecksSeed<'_> {
    type Value = Vec<Check<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of checks")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut checks = Vec::new();
        let each = CheckSeed { path: self.0, kind: ObjectKind::One };
        loop {
            match list.next_element_seed(each) {
                Ok(Some(_)) if checks.len() == CHECKS_MAX => {
                    return Err(A::Error::custom(format_args!("has more than {CHECKS_MAX} elements")));
                }
                Ok(Some(Question::One(check))) => checks.push(check),
                Ok(Some(Question::Batch(_))) => return Err(A::Error::custom("cannot hold batches")),
                Ok(None) if checks.is_empty() => return Err(A::Error::custom("is empty")),
                Ok(None) => return Ok(checks),
                Err(error) => {
                    self.0.came_from(&format!("checks[{}]", checks.len()));
                    return Err(error);
                }
            }
        }
    }
}

struct AttributesSeed<'p>(&'p Path);

impl<'de> DeserializeSeed<'de> for AttributesSeed<'_> {
    type Value = SmallVec<[(Cow<'de, str>, Cow<'de, str>); 4]>;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AttributesSeed<'_> {
    type Value = SmallVec<[(Cow<'de, str>, Cow<'de, str>); 4]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut attributes = Self::Value::new();
        while let Some(name) = map.next_key_seed(TextSeed(TextRole::Name))? {
            let value =
                map.next_value_seed(TextSeed(TextRole::Value)).inspect_err(|_| self.0.came_from(&name))?;
            if attributes.iter().any(|(known, _)| *known == name) {
                self.0.came_from(&name);
                return Err(A::Error::custom("is given twice"));
            }
            if attributes.len() == ATTRIBUTES_MAX {
                return Err(A::Error::custom(format_args!("has more than {ATTRIBUTES_MAX} entries")));
            }
            attributes.push((name, value));
        }
        Ok(attributes)
    }
}

/// What a text is, for the sentence that refuses it.
#[derive(Clone, Copy)]
enum TextRole {
    Field,
    Domain,
    Name,
    Value,
    Id,
}

struct TextSeed(TextRole);

impl TextSeed {
    fn check<E: serde::de::Error>(&self, text: &str) -> Result<(), E> {
        // A value is often what a client chose: of whatever length, it is counted rather than refused.
        if matches!(self.0, TextRole::Field | TextRole::Value) || (1..=TEXT_BYTES_MAX).contains(&text.len()) {
            return Ok(());
        }
        let what = match self.0 {
            TextRole::Field => "a field",
            TextRole::Value => "an attribute's value",
            TextRole::Domain => "a domain",
            TextRole::Name => "an attribute's name",
            TextRole::Id => "an id",
        };
        Err(E::custom(format_args!("{what} has 1 to {TEXT_BYTES_MAX} bytes, this one has {}", text.len())))
    }
}

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = Cow<'de, str>;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for TextSeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        self.check(text)?;
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        self.check(text)?;
        Ok(Cow::Owned(text.to_owned()))
    }
}

struct CostSeed(ObjectKind);

impl<'de> DeserializeSeed<'de> for CostSeed {
    type Value = Cost;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_i64(self)
    }
}

impl Visitor<'_> for CostSeed {
    type Value = Cost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of 64 bits")
    }

    fn visit_i64<E: serde::de::Error>(self, cost: i64) -> Result<Cost, E> {
        match Cost::from_signed(cost) {
            Cost::Refund(_) if self.0 == ObjectKind::Report => Err(E::custom(
                "is what was used, 0 or more: permits are given back with POST /v1/check and a negative cost",
            )),
            Cost::Take(permits) if self.0 == ObjectKind::Report => Ok(Cost::report(permits)),
            cost => Ok(cost),
        }
    }

    fn visit_u64<E: serde::de::Error>(self, cost: u64) -> Result<Cost, E> {
        let invalid = || E::invalid_value(serde::de::Unexpected::Unsigned(cost), &self);
        i64::try_from(cost).map_err(|_| invalid()).and_then(|cost| self.visit_i64(cost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(body: &str) -> (String, String) {
        let refusal = read(body.as_bytes()).unwrap_err();
        assert_eq!(refusal.http_status().as_u16(), 400);
        (refusal.field.unwrap_or_default(), refusal.message.into_owned())
    }

    #[test]
    fn one_check_is_read_with_its_defaults() {
        let Question::One(check) = read(br#"{"attributes":{"user":"u_42","path":"/a\u0000b"}}"#).unwrap()
        else {
            panic!("not one");
        };
        let request = check.request();
        assert_eq!((request.domain, request.cost), ("default", Cost::Take(1)));
        assert_eq!(request.attributes.as_slice(), [("user", "u_42"), ("path", "/a\0b")]);
    }

    #[test]
    fn costs_of_all_signs_are_read() {
        let cost = |text: &str| {
            let body = format!(r#"{{"attributes":{{}},"cost":{text}}}"#);
            read_one(body.as_bytes())
                .map(|check| check.cost)
                .map_err(|refusal| refusal.field.unwrap_or_default())
        };
        assert_eq!(cost("0"), Ok(Cost::Peek));
        assert_eq!(cost("-1"), Ok(Cost::Refund(1)));
        assert_eq!(cost("4294967295"), Ok(Cost::Take(4_294_967_295)));
        assert_eq!(cost("-9223372036854775808"), Ok(Cost::Refund(1 << 63)));
        for wrong in ["9223372036854775808", "1.5", "1e3", "\"1\"", "null", "true", "1e999", "[]"] {
            let field = cost(wrong).unwrap_err();
            assert!(field == "cost" || wrong == "1e999", "{wrong}: {field}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_its_path() {
        for (body, field) in [
            (r#"{}"#, "attributes"),
            (r#"{"attributes":{"user":5}}"#, "attributes.user"),
            (r#"{"attributes":{"user":null}}"#, "attributes.user"),
            (r#"{"attributes":{"":"x"}}"#, "attributes"),
            (r#"{"attributes":{"a":"1","a":"2"}}"#, "attributes.a"),
            (r#"{"attributes":[]}"#, "attributes"),
            (r#"{"attributes":{},"attributes":{}}"#, "attributes"),
            (r#"{"attributes":{},"color":"red"}"#, "color"),
            (r#"{"attributes":{},"domain":""}"#, "domain"),
            (r#"{"attributes":{},"domain":null}"#, "domain"),
            (r#"{"checks":[]}"#, "checks"),
            (r#"{"checks":{}}"#, "checks"),
            (r#"{"checks":[{"attributes":{}}],"cost":1}"#, "checks"),
            (r#"{"attributes":{},"checks":[{"attributes":{}}]}"#, "checks"),
            (r#"{"checks":[{"attributes":{}},{"attributes":{"user":5}}]}"#, "checks[1].attributes.user"),
            (r#"{"checks":[{"attributes":{}},{}]}"#, "checks[1].attributes"),
            (r#"{"checks":[{"checks":[]}]}"#, "checks[0].checks"),
            (r#"[]"#, ""),
            ("5", ""),
        ] {
            let (found, message) = refused(body);
            assert_eq!(found, field, "{body}: {message}");
            assert!(message.contains("line 1 column "), "{message}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_line_and_column() {
        for body in ["", "{", "{\"attributes\":{\n\"user\":}}", "{\"attributes\":{}} x", "nul"] {
            let refusal = read(body.as_bytes()).unwrap_err();
            assert_eq!((refusal.code, refusal.field), (Code::Malformed, None), "{body}");
            assert!(refusal.message.contains("line"), "{}", refusal.message);
        }
        assert_eq!(read(b"{\"attributes\":{\"a\":\"\xff\"}}").unwrap_err().code, Code::Malformed);
    }

    #[test]
    fn bounds_are_inclusive() {
        let long = |len| format!(r#"{{"attributes":{{"a":"{}"}}}}"#, "x".repeat(len));
        for len in [0, TEXT_BYTES_MAX, TEXT_BYTES_MAX + 1, 100_000] {
            assert!(read(long(len).as_bytes()).is_ok(), "a value of any length is counted: {len}");
        }
        let domain = format!(r#"{{"attributes":{{}},"domain":"{}"}}"#, "x".repeat(TEXT_BYTES_MAX + 1));
        assert_eq!(refused(&domain).0, "domain");
        let wide = |len: usize| {
            let pairs: Vec<_> = (0..len).map(|n| format!(r#""a{n}":"x""#)).collect();
            format!(r#"{{"attributes":{{{}}}}}"#, pairs.join(","))
        };
        assert!(read(wide(ATTRIBUTES_MAX).as_bytes()).is_ok());
        assert_eq!(refused(&wide(ATTRIBUTES_MAX + 1)).0, "attributes");
        let batch = |len| format!(r#"{{"checks":[{}]}}"#, vec![r#"{"attributes":{}}"#; len].join(","));
        assert!(
            matches!(read(batch(CHECKS_MAX).as_bytes()), Ok(Question::Batch(checks)) if checks.len() == CHECKS_MAX)
        );
        assert_eq!(refused(&batch(CHECKS_MAX + 1)).0, "checks");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(body in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = read(&body);
        }

        #[test]
        fn any_broken_body_is_refused_or_means_what_it_says(at in 0..60_usize, byte: u8) {
            let mut body = br#"{"domain":"d","attributes":{"user":"u_42"},"cost":3}"#.to_vec();
            let at = at % body.len();
            body[at] = byte;
            if let Ok(Question::One(check)) = read(&body) {
                let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
                prop_assert_eq!(value["attributes"].as_object().unwrap().len(), check.attributes.len());
            }
        }

        #[test]
        fn what_is_written_is_read_back(pairs in proptest::collection::hash_map(".{1,20}", ".{1,20}", 0..10), cost: i64) {
            let body = serde_json::json!({ "attributes": pairs, "cost": cost }).to_string();
            let check = read_one(body.as_bytes()).unwrap();
            prop_assert_eq!(check.cost, Cost::from_signed(cost));
            prop_assert_eq!(check.attributes.len(), pairs.len());
            for (name, value) in &pairs {
                prop_assert_eq!(check.request().attribute(name), Some(value.as_str()));
            }
        }
    }
}
