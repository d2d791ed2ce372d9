//! The words of a gateway in the form that rules and buckets know: tokens become users, paths and hosts have
//! one spelling, and what is too long has a stand-in. Every server does the same, so that a client is in the
//! same bucket by whichever it comes.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::address;
use super::credentials::{VALUES_MAX, canonical_authorization, credentials_of};
use super::error::Refusal;
use super::stand_in::{descriptor, seen_by_globs, stand_in};
use super::{Servers, Settings, token};
use crate::core::identity::is_key_like;
use crate::core::request::{API_KEY, PATH, Request, TEXT_BYTES_MAX};
use crate::core::uri::{self, Origin, Readings};
use crate::engine::identity::secret::fingerprint;

const HOST: &str = "host";
const IP: &str = "ip";
const AUTHORIZATION: &str = "authorization";

/// Stand-ins for attributes that are not to be taken as they came.
#[derive(Debug, Default)]
pub(super) struct ClientIdentity {
    tokens: token::FoundTokens,
    refused: Option<Refusal>,
    ipv6_prefix: u8,
    replaced: SmallVec<[Replaced; 2]>,
    /// Further readings of paths, each with its question's place.
    readings: Vec<(usize, Reading)>,
    /// Questions with a limit of their own, and what names its bucket.
    descriptors: Vec<(usize, String)>,
    /// Fingerprints of credentials that claim to be keys of ours, each with its place.
    fingerprints: Vec<(AttributePlace, String)>,
    /// Credentials beyond the first in an attribute that shows several, such as a list of keys.
    further: Vec<FurtherCredential>,
    /// True where some question shows several credentials.
    several_ask: bool,
}

/// An attribute of one question of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AttributePlace {
    question: usize,
    attribute: usize,
}

/// Another text for one attribute.
#[derive(Debug)]
struct Replaced {
    at: AttributePlace,
    text: TextPart,
    /// Text that globs look at, if the other one is a stand-in.
    whole: Option<TextPart>,
    /// True if the text as it came is to be remembered.
    is_target: bool,
}

/// A credential that stands in an attribute beside its first: some gateways join what comes twice by commas.
#[derive(Debug)]
struct FurtherCredential {
    at: AttributePlace,
    text: TextPart,
    /// The text that it counts by if it claims to be a key of ours and is none.
    fingerprint: Option<String>,
}

/// A reading that an origin may have of a path.
#[derive(Debug)]
struct Reading {
    text: String,
    /// The text that globs look at, where the other is a stand-in.
    whole: Option<String>,
}

impl Reading {
    fn of(text: String) -> Self {
        if text.len() <= TEXT_BYTES_MAX {
            return Self { text, whole: None };
        }
        Self { text: stand_in(&text), whole: Some(seen_by_globs(Cow::Owned(text)).into_owned()) }
    }
}

/// A text made of another one.
#[derive(Debug)]
enum TextPart {
    /// A part of it, from here to here.
    Part(usize, usize),
    /// A new one.
    Made(String),
}

impl TextPart {
    fn of(text: Cow<'_, str>, of: &str) -> Self {
        match text {
            Cow::Owned(text) => Self::Made(text),
            // A part that is borrowed lies within the whole.
            Cow::Borrowed(part) => {
                let from = part.as_ptr().addr().saturating_sub(of.as_ptr().addr());
                Self::Part(from, from + part.len())
            }
        }
    }

    fn get<'t>(&'t self, of: &'t str) -> &'t str {
        match self {
            Self::Part(from, to) => of.get(*from..*to).unwrap_or(of),
            Self::Made(text) => text,
        }
    }
}

impl ClientIdentity {
    /// Reads the questions of one call.
    pub(super) fn read(servers: &Servers, questions: &[Request<'_>]) -> Self {
        let mut client_identity = Self::of_values(&servers.settings(), questions);
        match token::find(servers, questions) {
            Ok(tokens) => client_identity.tokens = tokens,
            Err(refusal) => client_identity.refused = Some(refusal),
        }
        client_identity
    }

    /// Reads the values, and no tokens.
    pub(super) fn of_values(settings: &Settings, questions: &[Request<'_>]) -> Self {
        let mut client_identity = Self { ipv6_prefix: settings.ipv6_prefix, ..Self::default() };
        for (place, question) in questions.iter().enumerate() {
            let mut credentials = 0;
            for (attribute, (name, value)) in question.attributes.iter().enumerate() {
                let at = AttributePlace { question: place, attribute };
                let text = match *name {
                    PATH if settings.normalize => client_identity.path(settings.origin, value, place),
                    HOST if settings.normalize => client_identity.host(value),
                    IP => address::canonical(value),
                    AUTHORIZATION => canonical_authorization(value),
                    API_KEY => Cow::Borrowed(client_identity.first_credential(value, at)),
                    _ => Cow::Borrowed(*value),
                };
                if *name == API_KEY {
                    credentials += 1;
                    if is_key_like(&text) {
                        let fingerprint = fingerprint(text.as_bytes());
                        client_identity.fingerprints.push((at, fingerprint));
                    }
                }
                client_identity.replaced.extend(replaced(settings, name, value, text, at));
            }
            client_identity.several_ask |= credentials > 1;
            if question.limit.is_some() {
                let text = client_identity.descriptor(place, question);
                client_identity.descriptors.push((place, text));
            }
        }
        client_identity
    }

    /// The credential that an attribute shows first. Others in it are noted.
    fn first_credential<'v>(&mut self, value: &'v str, at: AttributePlace) -> &'v str {
        let all = credentials_of(value);
        if all.len() > VALUES_MAX {
            let sentence = format!("has more than {VALUES_MAX} values");
            self.refused = Some(Refusal::of_field(API_KEY, sentence));
        }
        for part in all.iter().skip(1).take(VALUES_MAX) {
            let text = if part.len() > TEXT_BYTES_MAX {
                TextPart::Made(stand_in(part))
            } else {
                TextPart::of(Cow::Borrowed(*part), value)
            };
            let fingerprint = is_key_like(part).then(|| fingerprint(part.as_bytes()));
            self.further.push(FurtherCredential { at, text, fingerprint });
        }
        // A value of nothing but blanks and commas is empty: a value like any other.
        all.first().copied().or_else(|| value.get(..0)).unwrap_or(value)
    }

    /// The form of a path that a request is called by. Other readings of it are noted.
    fn path<'v>(&mut self, origin: Origin, value: &'v str, place: usize) -> Cow<'v, str> {
        match origin.readings(value) {
            Ok(Readings { first, further }) => {
                self.readings.extend(further.into_iter().map(|text| (place, Reading::of(text))));
                first
            }
            Err(error) => {
                self.refused = Some(Refusal::of_field(PATH, error.to_string()));
                Cow::Borrowed(value)
            }
        }
    }

    /// The form of a host that a request is called by. One that origins may take for another is refused:
    /// rules by host would pass it by.
    fn host<'v>(&mut self, value: &'v str) -> Cow<'v, str> {
        if !uri::names_one_host(value) {
            let sentence = "names no one host: it has a user, a path, an escape or a blank in it";
            self.refused = Some(Refusal::of_field(HOST, sentence));
        }
        uri::host(value)
    }

    /// Names the bucket of a question's own limit, by the attributes as rules see them.
    fn descriptor(&self, place: usize, question: &Request<'_>) -> String {
        let values = question.attributes.iter().enumerate().map(|(entry, (name, value))| {
            let at = AttributePlace { question: place, attribute: entry };
            let replaced = self.replaced.iter().find(|own| own.at == at);
            (*name, replaced.map_or(*value, |own| own.text.get(value)))
        });
        descriptor(values, self.ipv6_prefix)
    }

    /// Returns why the call is refused, if it is: an invalid token, where these are refused, a path that
    /// origins may read in too many ways, or a host that they may take for another.
    pub(super) const fn refused(&self) -> Option<&Refusal> {
        self.refused.as_ref()
    }

    /// The same questions with it in its place.
    ///
    /// # Errors
    /// See [`Self::refused`].
    pub(super) fn stand_in<'b, Q: AsMut<[Request<'b>]>>(&'b self, asked: Q) -> Result<Q, Refusal> {
        match &self.refused {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(self.put(asked)),
        }
    }

    /// The same questions with it in its place, also where the call is refused.
    pub(super) fn put<'b, Q: AsMut<[Request<'b>]>>(&'b self, mut asked: Q) -> Q {
        let questions = asked.as_mut();
        for question in questions.iter_mut() {
            question.forms.ipv6_prefix = self.ipv6_prefix;
        }
        for FurtherCredential { at, text, fingerprint } in &self.further {
            let Some(question) = questions.get_mut(at.question) else { continue };
            let Some(&(_, value)) = question.attributes.get(at.attribute) else { continue };
            let shown = text.get(value);
            question.forms.credentials.push(shown);
            question.forms.fingerprints.extend(fingerprint.as_deref().map(|own| (shown, own)));
        }
        // Values first: they stand where they stood, until tokens go.
        for Replaced { at, text, whole, is_target } in &self.replaced {
            let Some(question) = questions.get_mut(at.question) else { continue };
            let Some((_, value)) = question.attributes.get_mut(at.attribute) else { continue };
            let came = std::mem::replace(value, text.get(value));
            question.forms.whole.extend(whole.as_ref().map(|whole| (*value, whole.get(came))));
            if *is_target {
                question.forms.target = Some(came);
            }
        }
        for (at, fingerprint) in &self.fingerprints {
            let Some(question) = questions.get_mut(at.question) else { continue };
            let shown =
                question.attributes.get(at.attribute).map(|(_, value)| (*value, fingerprint.as_str()));
            question.forms.fingerprints.extend(shown);
        }
        for (place, Reading { text, whole }) in &self.readings {
            let Some(question) = questions.get_mut(*place) else { continue };
            question.forms.paths.push(text);
            question.forms.whole.extend(whole.as_deref().map(|whole| (text.as_str(), whole)));
        }
        for (place, text) in &self.descriptors {
            if let Some(question) = questions.get_mut(*place) {
                question.forms.descriptor = Some(text);
            }
        }
        token::apply(questions, &self.tokens);
        if self.several_ask {
            questions.iter_mut().for_each(part_credentials);
        }
        asked
    }
}

/// Leaves a question the first of its credentials as an attribute: each is somebody who asks.
fn part_credentials(question: &mut Request<'_>) {
    let mut is_first = true;
    let (attributes, credentials) = (&mut question.attributes, &mut question.forms.credentials);
    attributes.retain(|(name, value)| {
        let stays = *name != API_KEY || std::mem::take(&mut is_first);
        if !stays {
            credentials.push(*value);
        }
        stays
    });
}

/// Returns what stands in the place of one value, if not the value itself.
#[inline]
fn replaced(
    settings: &Settings,
    name: &str,
    value: &str,
    text: Cow<'_, str>,
    at: AttributePlace,
) -> Option<Replaced> {
    let is_target = name == PATH && settings.record_queries;
    if text.len() > TEXT_BYTES_MAX {
        let short = TextPart::Made(stand_in(&text));
        let whole = Some(TextPart::of(seen_by_globs(text), value));
        return Some(Replaced { at, text: short, whole, is_target });
    }
    let same = matches!(text, Cow::Borrowed(text) if text.len() == value.len());
    (!same || is_target).then(|| Replaced { at, text: TextPart::of(text, value), whole: None, is_target })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::request::{Cost, LimitOverride};
    use crate::core::time::Span;

    fn values(settings: &Settings, pairs: &[(&str, &str)]) -> Vec<String> {
        let questions = [Request::new("d", pairs.iter().copied().collect(), Cost::Take(1))];
        let client_identity = ClientIdentity::of_values(settings, &questions);
        let [question] = client_identity.put(questions);
        question.attributes.iter().map(|(_, value)| (*value).to_owned()).collect()
    }

    #[test]
    fn paths_and_hosts_have_one_form_unless_that_is_switched_off() {
        let pairs = [("path", "//a/%62?x"), ("host", "H.:1"), ("other", "//A?x")];
        assert_eq!(values(&Settings::default(), &pairs), ["/a/b", "h", "//A?x"]);
        let off = Settings { normalize: false, ..Settings::default() };
        assert_eq!(values(&off, &pairs), ["//a/%62?x", "H.:1", "//A?x"]);
    }

    #[test]
    fn a_host_that_origins_may_take_for_another_is_refused() {
        let refused = |settings: &Settings, host: &str| {
            let questions = [Request::new("d", [("host", host)].into_iter().collect(), Cost::Take(1))];
            ClientIdentity::of_values(settings, &questions)
                .refused()
                .and_then(|refusal| refusal.field.clone())
        };
        for host in ["", "admin.example.com:x", "[::1]:80", " a "] {
            assert_eq!(refused(&Settings::default(), host), None, "{host}");
        }
        for host in ["x@a", "%61dmin", "a/b", "a?b", "a#b", "a\\b", "a b"] {
            assert_eq!(refused(&Settings::default(), host).as_deref(), Some("host"), "{host}");
        }
        let off = Settings { normalize: false, ..Settings::default() };
        assert_eq!(refused(&off, "x@a"), None);
    }

    #[test]
    fn an_address_is_the_same_however_a_gateway_writes_it() {
        let read = |text: &str| values(&Settings::default(), &[("ip", text)]).remove(0);
        for text in ["192.0.2.1", " 192.0.2.1", "192.0.2.1:80", "::ffff:192.0.2.1", "[::ffff:c000:201]:9"] {
            assert_eq!(read(text), "192.0.2.1", "{text}");
        }
        for text in ["2001:DB8:0::1", "[2001:db8::1]", "[2001:db8::1]:80", "2001:db8::1%eth0"] {
            assert_eq!(read(text), "2001:db8::1", "{text}");
        }
        for text in ["unknown", "192.0.2.1:x", "", "a:b"] {
            assert_eq!(read(text), text);
        }
    }

    /// The path of a question, its further readings, and the texts that stand-ins stand for.
    fn paths(settings: &Settings, path: &str) -> Result<(String, Vec<String>, Vec<String>), Refusal> {
        let asked = [Request::new("d", [("path", path)].into_iter().collect(), Cost::Take(1))];
        let client_identity = ClientIdentity::of_values(settings, &asked);
        let [question] = client_identity.stand_in(asked)?;
        let further = question.forms.paths.iter().map(|text| (*text).to_owned()).collect();
        let whole = question.forms.whole.iter().map(|(_, whole)| (*whole).to_owned()).collect();
        Ok((question.attribute("path").unwrap().to_owned(), further, whole))
    }

    #[test]
    fn a_path_is_held_to_every_reading_of_the_origin_and_refused_where_there_are_too_many() {
        let any = Settings::default();
        let (path, further, whole) = paths(&any, "/login/..;/x").unwrap();
        assert_eq!((path.as_str(), whole.len()), ("/x", 0));
        assert_eq!(further, ["/login/..;/x", "/login/../x"]);
        let literal = Settings { origin: Origin::Literal, ..Settings::default() };
        let (path, further, _) = paths(&literal, "/login/..;/x").unwrap();
        assert_eq!((path.as_str(), further.len()), ("/login/..;/x", 0));
        let long = format!("//{}", "a".repeat(2_000));
        let (_, further, whole) = paths(&any, &long).unwrap();
        assert!(further[0].len() < 220 && whole[1] == long, "{further:?}");
        let refused = paths(&any, "//a;b/%2e/x%2Fy\\z/../%61").unwrap_err();
        assert_eq!(refused.field.as_deref(), Some("path"));
    }

    #[test]
    fn whoever_asks_besides_is_no_further_value() {
        let pairs = [("api_key", "one"), ("user", "ann"), ("api_key", "two"), ("user", "bob")];
        let questions = [Request::new("d", pairs.into_iter().collect(), Cost::Take(1))];
        let settings = Settings::default();
        let client_identity = ClientIdentity::of_values(&settings, &questions);
        let [question] = client_identity.put(questions);
        assert_eq!(question.attributes.as_slice(), [("api_key", "one"), ("user", "ann"), ("user", "bob")]);
        assert_eq!(question.forms.credentials, ["two"]);
    }

    #[test]
    fn an_attribute_may_show_several_credentials() {
        let shown = |text: &str| {
            let questions = [Request::new("d", [("api_key", text)].into_iter().collect(), Cost::Take(1))];
            let settings = Settings::default();
            let client_identity = ClientIdentity::of_values(&settings, &questions);
            let [question] = client_identity.put(questions);
            format!("{:?} {:?}", question.attribute("api_key").unwrap(), question.forms.credentials)
        };
        assert_eq!(shown("one"), "\"one\" []");
        assert_eq!(shown(" one\u{a0}"), "\"one\" []");
        assert_eq!(shown("one,two , one"), "\"one\" [\"two\"]");
        assert_eq!(shown(" , "), "\"\" []");
        let many = [Request::new("d", [("api_key", "1,2,3,4,5,6,7,8,9")].into_iter().collect(), Cost::Peek)];
        assert!(ClientIdentity::of_values(&Settings::default(), &many).refused().is_some());
    }

    #[test]
    fn what_is_too_long_has_a_stand_in_and_globs_see_it_all() {
        let long = format!("/api/{}", "a".repeat(2_000));
        let exact = "x".repeat(TEXT_BYTES_MAX);
        let questions =
            [Request::new("d", [("path", &*long), ("user", &exact)].into_iter().collect(), Cost::Peek)];
        let settings = Settings::default();
        let client_identity = ClientIdentity::of_values(&settings, &questions);
        let [question] = client_identity.put(questions);
        assert!(question.attribute("path").unwrap().len() < 220);
        assert_eq!(question.attribute("user").unwrap(), exact);
        assert_eq!(question.forms.whole, [(question.attribute("path").unwrap(), &*long)]);
    }

    #[test]
    fn the_target_is_kept_only_where_queries_are_remembered() {
        for record_queries in [false, true] {
            let settings = Settings { record_queries, ..Settings::default() };
            let questions = [Request::new("d", [("path", "/a?token=x")].into_iter().collect(), Cost::Peek)];
            let client_identity = ClientIdentity::of_values(&settings, &questions);
            let [question] = client_identity.put(questions);
            assert_eq!(question.forms.target, record_queries.then_some("/a?token=x"));
            assert_eq!(question.attribute("path"), Some("/a"));
        }
    }

    #[test]
    fn a_limit_of_its_own_names_a_bucket() {
        let mut question = Request::new("d", [("path", "//a?x")].into_iter().collect(), Cost::Peek);
        question.limit = Some(LimitOverride { permits: 1, window: Span::from_secs(1) });
        let settings = Settings::default();
        let client_identity = ClientIdentity::of_values(&settings, std::slice::from_ref(&question));
        let [question] = client_identity.put([question]);
        assert_eq!(question.forms.descriptor, Some("path=/a"));
    }
}
