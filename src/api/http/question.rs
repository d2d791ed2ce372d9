//! The JSON of a check, read in one pass without copying what needs no unescaping.
//!
//! Strict: an unknown field, a value that is no string, a name given twice are refused, with the path to the
//! culprit. Nothing that was not understood may read as allowed.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::api::error::{Code, Refusal};
use crate::api::json_object::{ObjectSeed, read_object};
use crate::core::request::{ATTRIBUTES_MAX, Cost, Request, TEXT_BYTES_MAX};
use crate::core::rule::DOMAIN_DEFAULT;

/// Most checks of one batch.
pub(super) const CHECKS_MAX: usize = 1_000;
/// Longest sentence and longest path of a refusal, in characters: both repeat what the caller wrote.
const SENTENCE_MAX: usize = 256;

/// One check as the caller wrote it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check<'b> {
    #[serde(borrow, default, deserialize_with = "name")]
    domain: Option<Cow<'b, str>>,
    #[serde(borrow)]
    attributes: CheckAttributes<'b>,
    #[serde(default, deserialize_with = "cost")]
    cost: Option<Cost>,
    /// Name that the caller has for the request, if it acquires.
    #[serde(skip)]
    id: Option<Cow<'b, str>>,
    /// Time for which it reserves, as written.
    #[serde(skip)]
    ttl: Option<Cow<'b, str>>,
}

impl Check<'_> {
    /// The question to the engine.
    pub(super) fn request(&self) -> Request<'_> {
        let attributes = self.attributes.0.iter().map(|(name, value)| (&**name, &**value)).collect();
        let domain = self.domain.as_deref().unwrap_or(DOMAIN_DEFAULT);
        Request::new(domain, attributes, self.cost.unwrap_or(Cost::Take(1)))
    }

    /// Returns how the caller names the request.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns how long it reserves.
    pub(super) fn ttl(&self) -> Option<&str> {
        self.ttl.as_deref()
    }

    /// True where the daemon is to say how many permits it reserves.
    pub(super) const fn is_estimated(&self) -> bool {
        self.cost.is_none()
    }
}

/// The questions of a body of `/v1/check`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "CheckBody<'b>")]
#[expect(
    clippy::large_enum_variant,
    reason = "one check is the common case, and a box for it would cost an allocation"
)]
pub(super) enum Question<'b> {
    /// One check.
    #[serde(borrow)]
    One(Check<'b>),
    /// `checks`, 1 to [`CHECKS_MAX`] of them.
    Batch(Vec<Check<'b>>),
}

// The bodies repeat the fields of a check: `flatten` would read no strict object, and copy what it reads.

/// The body of `/v1/check`: the fields of one check, or `checks`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckBody<'b> {
    #[serde(borrow, default, deserialize_with = "name")]
    domain: Option<Cow<'b, str>>,
    #[serde(borrow, default, deserialize_with = "given")]
    attributes: Option<CheckAttributes<'b>>,
    #[serde(default, deserialize_with = "cost")]
    cost: Option<Cost>,
    #[serde(borrow, default, deserialize_with = "given")]
    checks: Option<Batch<'b>>,
}

impl<'b> TryFrom<CheckBody<'b>> for Question<'b> {
    type Error = &'static str;

    fn try_from(body: CheckBody<'b>) -> Result<Self, Self::Error> {
        match body {
            CheckBody { domain: None, attributes: None, cost: None, checks: Some(Batch(checks)) } => {
                Ok(Self::Batch(checks))
            }
            CheckBody { checks: Some(_), .. } => Err("`checks` cannot stand beside the fields of one check"),
            CheckBody { attributes: None, .. } => Err("missing field `attributes`"),
            CheckBody { domain, attributes: Some(attributes), cost, checks: None } => {
                Ok(Self::One(Check { domain, attributes, cost, id: None, ttl: None }))
            }
        }
    }
}

/// The body of `/v1/acquire` and `/v1/report`: one check that may have a name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedBody<'b> {
    #[serde(borrow, default, deserialize_with = "name")]
    domain: Option<Cow<'b, str>>,
    #[serde(borrow)]
    attributes: CheckAttributes<'b>,
    #[serde(default, deserialize_with = "cost")]
    cost: Option<Cost>,
    #[serde(borrow, default, deserialize_with = "name")]
    id: Option<Cow<'b, str>>,
}

/// The body of `/v1/reserve`: one check that reserves an amount.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReservationBody<'b> {
    #[serde(borrow, default, deserialize_with = "name")]
    domain: Option<Cow<'b, str>>,
    #[serde(borrow)]
    attributes: CheckAttributes<'b>,
    #[serde(default, deserialize_with = "cost")]
    amount: Option<Cost>,
    #[serde(borrow, default, deserialize_with = "name")]
    id: Option<Cow<'b, str>>,
    #[serde(borrow, default, deserialize_with = "text")]
    ttl: Option<Cow<'b, str>>,
}

/// Reads the body of `/v1/check`.
pub(super) fn read(body: &[u8]) -> Result<Question<'_>, Refusal> {
    parse(body)
}

/// Reads a body that holds one check.
pub(super) fn read_one(body: &[u8]) -> Result<Check<'_>, Refusal> {
    parse(body)
}

/// Reads a body that reports: one check, which says what was used.
pub(super) fn read_report(body: &[u8]) -> Result<Check<'_>, Refusal> {
    let mut check = read_named(body)?;
    let refused = |sentence| Err(Refusal::of_field("cost", sentence));
    match check.cost {
        None => return refused("is missing: a report says what was used"),
        Some(Cost::Refund(_)) => {
            return refused(
                "is what was used, 0 or more: permits are given back with POST /v1/check and a negative cost",
            );
        }
        Some(cost) => check.cost = Some(Cost::report(cost.taken())),
    }
    Ok(check)
}

/// Reads a body that acquires: one check, perhaps with an `id`.
pub(super) fn read_named(body: &[u8]) -> Result<Check<'_>, Refusal> {
    let NamedBody { domain, attributes, cost, id } = parse(body)?;
    Ok(Check { domain, attributes, cost, id, ttl: None })
}

/// Reads a body that reserves: one check, perhaps with an `amount`, an `id` and a `ttl`.
pub(super) fn read_reserve(body: &[u8]) -> Result<Check<'_>, Refusal> {
    let ReservationBody { domain, attributes, amount: cost, id, ttl } = parse(body)?;
    Ok(Check { domain, attributes, cost, id, ttl })
}

fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Refusal> {
    read_object(body).map_err(|error| refused::<T>(body, &error))
}

/// The refusal of a body. It reads it once more for the path to the error, so that right ones pay nothing.
#[cold]
fn refused<'b, T: Deserialize<'b>>(body: &'b [u8], error: &serde_json::Error) -> Refusal {
    if !error.is_data() {
        return Refusal::new(Code::Malformed, format!("the body is not JSON: {error}"));
    }
    let mut track = serde_path_to_error::Track::new();
    let mut json = serde_json::Deserializer::from_slice(body);
    let json = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let _ = ObjectSeed::<T>(PhantomData).deserialize(json);
    let mut path = track.path().to_string();
    let mut sentence = error.to_string();
    // These errors are the whole object's, so that the sentence alone names the field.
    let starts = ["missing field `", "duplicate field `", "`"];
    let named = starts.iter().find_map(|start| sentence.strip_prefix(start)?.rsplit_once('`'));
    if let Some((field, _)) = named {
        path = format!("{path}.{field}");
    }
    let clipped = |text: &str| text.chars().take(SENTENCE_MAX).collect::<String>();
    if sentence.len() > SENTENCE_MAX {
        sentence = format!("{}… at line {} column {}", clipped(&sentence), error.line(), error.column());
    }
    let field = clipped(path.trim_matches('.'));
    Refusal { field: (!field.is_empty()).then_some(field), ..Refusal::new(Code::Invalid, sentence) }
}

/// Reads a field that may be absent, and is not null where it is there.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(json: D) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
}

/// The checks of a batch.
struct Batch<'b>(Vec<Check<'b>>);

impl<'de: 'b, 'b> Deserialize<'de> for Batch<'b> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_seq(BatchVisitor(PhantomData))
    }
}

struct BatchVisitor<'b>(PhantomData<&'b ()>);

impl<'de: 'b, 'b> Visitor<'de> for BatchVisitor<'b> {
    type Value = Batch<'b>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of checks")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut checks = Vec::new();
        while let Some(check) = list.next_element_seed(ObjectSeed(PhantomData))? {
            if checks.len() == CHECKS_MAX {
                return Err(A::Error::custom(format_args!("has more than {CHECKS_MAX} elements")));
            }
            checks.push(check);
        }
        if checks.is_empty() { Err(A::Error::custom("is empty")) } else { Ok(Batch(checks)) }
    }
}

/// The attributes of a check, in the order in which they are written.
#[derive(Debug, PartialEq, Eq)]
struct CheckAttributes<'b>(SmallVec<[(Cow<'b, str>, Cow<'b, str>); 4]>);

impl<'de: 'b, 'b> Deserialize<'de> for CheckAttributes<'b> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(AttributesVisitor(PhantomData))
    }
}

struct AttributesVisitor<'b>(PhantomData<&'b ()>);

impl<'de: 'b, 'b> Visitor<'de> for AttributesVisitor<'b> {
    type Value = CheckAttributes<'b>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut attributes = SmallVec::<[(Cow<'_, str>, _); 4]>::new();
        // A value is often what a client chose: of whatever length, it is counted rather than refused.
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            bounded(&name)?;
            if attributes.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            if attributes.len() == ATTRIBUTES_MAX {
                return Err(A::Error::custom(format_args!("has more than {ATTRIBUTES_MAX} entries")));
            }
            attributes.push((name, value));
        }
        Ok(CheckAttributes(attributes))
    }
}

/// Any text.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'b>(#[serde(borrow)] Cow<'b, str>);

fn bounded<E: serde::de::Error>(name: &str) -> Result<(), E> {
    if (1..=TEXT_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(E::custom(format_args!("a name has 1 to {TEXT_BYTES_MAX} bytes, this one has {}", name.len())))
}

fn text<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    Text::deserialize(json).map(|Text(text)| Some(text))
}

fn name<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    let Text(name) = Text::deserialize(json)?;
    bounded(&name).map(|()| Some(name))
}

fn cost<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Cost>, D::Error> {
    json.deserialize_i64(CostVisitor).map(Some)
}

struct CostVisitor;

impl Visitor<'_> for CostVisitor {
    type Value = Cost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of 64 bits")
    }

    fn visit_i64<E: serde::de::Error>(self, cost: i64) -> Result<Cost, E> {
        Ok(Cost::from_signed(cost))
    }

    fn visit_u64<E: serde::de::Error>(self, cost: u64) -> Result<Cost, E> {
        let invalid = |_| E::invalid_value(serde::de::Unexpected::Unsigned(cost), &self);
        i64::try_from(cost).map_err(invalid).and_then(|cost| self.visit_i64(cost))
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
                .map(|check| check.request().cost)
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
            (r#"{"checks":[{"attributes":{},"id":"1"}]}"#, "checks[0].id"),
            (r#"{"checks":[{"attributes":{},"cost":1,"cost":1}]}"#, "checks[0].cost"),
            (r#"{"checks":[{"attributes":{"a`b":"","a`b":""}}]}"#, "checks[0].attributes.a`b"),
            (r#"{"checks":[["d",{},1]]}"#, "checks[0]"),
            (r#"{"checks":null,"attributes":{}}"#, "checks"),
            (r#"{"attributes":null,"checks":[{"attributes":{}}]}"#, "attributes"),
            (r#"["d",{},1,[{"attributes":{}}]]"#, ""),
            (r#"[]"#, ""),
            ("5", ""),
        ] {
            let (found, message) = refused(body);
            assert_eq!(found, field, "{body}: {message}");
            assert!(message.contains("line 1 column "), "{message}");
        }
    }

    #[test]
    fn each_route_reads_its_own_fields_and_no_others() {
        type Read = fn(&[u8]) -> Result<Check<'_>, Refusal>;
        let routes: [(Read, &[&str]); 4] = [
            (read_one, &["cost"]),
            (read_named, &["cost", "id"]),
            (read_report, &["cost", "id"]),
            (read_reserve, &["amount", "id", "ttl"]),
        ];
        for (read, known) in routes {
            for (name, value) in
                [("cost", "1"), ("amount", "1"), ("id", "\"1\""), ("ttl", "\"1s\""), ("checks", "[]")]
            {
                let body = format!(r#"{{"attributes":{{}},"{name}":{value}}}"#);
                let refusal = read(body.as_bytes()).err();
                // A report without a cost is refused for that.
                let refusal = refusal.filter(|refusal| refusal.field.as_deref() == Some(name));
                assert_eq!(refusal.is_none(), known.contains(&name), "{known:?} {name}");
                let Some(Refusal { message, .. }) = refusal else { continue };
                assert!(
                    message.starts_with(&format!("unknown field `{name}`, expected one of")),
                    "{message}"
                );
                assert!(message.contains("line 1 column "), "{message}");
            }
            assert!(read(br#"["d",{},1]"#).is_err() && read(br#"["d",{},1,"1","1s"]"#).is_err());
        }
    }

    #[test]
    fn a_report_says_what_was_used() {
        let cost = |body: &str| {
            let check = read_report(body.as_bytes());
            check.map(|check| check.request().cost).map_err(|refusal| refusal.field.unwrap_or_default())
        };
        assert_eq!(cost(r#"{"attributes":{},"cost":3}"#), Ok(Cost::report(3)));
        assert_eq!(cost(r#"{"attributes":{},"cost":0}"#), Ok(Cost::Peek));
        for wrong in [r#"{"attributes":{}}"#, r#"{"attributes":{},"cost":-1}"#] {
            assert_eq!(cost(wrong), Err("cost".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn a_refusal_repeats_little_of_what_the_caller_wrote() {
        let long = "ä".repeat(100_000);
        for (body, field) in [
            (format!(r#"{{"{long}":1}}"#), "ää"),
            (format!(r#"{{"attributes":{{"{long}":1}}}}"#), "attributes.ä"),
            (format!(r#"{{"attributes":{{}},"cost":"{long}"}}"#), "cost"),
        ] {
            let (found, message) = refused(&body);
            assert!(found.starts_with(field) && found.chars().count() <= SENTENCE_MAX, "{found}");
            assert!(message.chars().count() < 2 * SENTENCE_MAX, "{message}");
            assert!(message.contains(" at line 1 column "), "{message}");
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
                prop_assert_eq!(value["attributes"].as_object().unwrap().len(), check.attributes.0.len());
            }
        }

        #[test]
        fn what_is_written_is_read_back(pairs in proptest::collection::hash_map(".{1,20}", ".{1,20}", 0..10), cost: i64) {
            let body = serde_json::json!({ "attributes": pairs, "cost": cost }).to_string();
            let check = read_one(body.as_bytes()).unwrap();
            prop_assert_eq!(check.request().cost, Cost::from_signed(cost));
            prop_assert_eq!(check.attributes.0.len(), pairs.len());
            for (name, value) in &pairs {
                prop_assert_eq!(check.request().attribute(name), Some(value.as_str()));
            }
        }
    }
}
