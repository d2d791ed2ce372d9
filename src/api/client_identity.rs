//! What a gateway passes on as it came, in the form that rules and buckets know: tokens become users, paths
//! and hosts have one spelling, and what is too long has a stand-in. Every server does the same, so that a
//! client is in the same bucket by whichever it comes.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::error::Refusal;
use super::stand_in::{descriptor, seen_by_globs, stand_in};
use super::{Servers, Settings, token};
use crate::core::request::{Request, TEXT_BYTES_MAX};
use crate::core::uri;

const PATH: &str = "path";
const HOST: &str = "host";

/// What stands in the place of attributes that are not to be taken as they came.
#[derive(Debug, Default)]
pub(super) struct ClientIdentity {
    tokens: token::FoundTokens,
    refused: Option<Refusal>,
    ipv6_prefix: u8,
    replaced: SmallVec<[Replaced; 2]>,
    /// Questions with a limit of their own, and what names its bucket.
    descriptors: Vec<(usize, String)>,
}

/// Another text for one attribute.
#[derive(Debug)]
struct Replaced {
    /// The question's place and the attribute's.
    at: (usize, usize),
    text: TextPart,
    /// What globs look at, where the text is a stand-in.
    whole: Option<TextPart>,
    /// Whether the text as it came is to be remembered.
    is_target: bool,
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
            for (entry, (name, value)) in question.attributes.iter().enumerate() {
                client_identity.replaced.extend(replaced(settings, name, value, (place, entry)));
            }
            if question.limit.is_some() {
                let text = client_identity.descriptor(place, question);
                client_identity.descriptors.push((place, text));
            }
        }
        client_identity
    }

    /// Names the bucket of a question's own limit, by the attributes as rules see them.
    fn descriptor(&self, place: usize, question: &Request<'_>) -> String {
        let values = question.attributes.iter().enumerate().map(|(entry, (name, value))| {
            let replaced = self.replaced.iter().find(|own| own.at == (place, entry));
            (*name, replaced.map_or(*value, |own| own.text.get(value)))
        });
        descriptor(values, self.ipv6_prefix)
    }

    /// Why the call is refused, if it is: an invalid token, where these are refused.
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
        // Values first: they stand where they stood, until tokens go.
        for Replaced { at: (place, entry), text, whole, is_target } in &self.replaced {
            let Some(question) = questions.get_mut(*place) else { continue };
            let Some((_, value)) = question.attributes.get_mut(*entry) else { continue };
            let came = std::mem::replace(value, text.get(value));
            question.forms.whole.extend(whole.as_ref().map(|whole| (*value, whole.get(came))));
            if *is_target {
                question.forms.target = Some(came);
            }
        }
        for (place, text) in &self.descriptors {
            if let Some(question) = questions.get_mut(*place) {
                question.forms.descriptor = Some(text);
            }
        }
        token::apply(questions, &self.tokens);
        asked
    }
}

/// What stands in the place of one value, if not the value itself.
#[inline]
fn replaced(settings: &Settings, name: &str, value: &str, at: (usize, usize)) -> Option<Replaced> {
    let text = match name {
        PATH if settings.normalize => uri::path(value),
        HOST if settings.normalize => uri::host(value),
        _ => Cow::Borrowed(value),
    };
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
    fn what_is_too_long_has_a_stand_in_and_globs_see_it_all() {
        let long = format!("/api/{}", "a".repeat(2_000));
        let exact = "x".repeat(TEXT_BYTES_MAX);
        let questions =
            [Request::new("d", [("path", &*long), ("user", &exact)].into_iter().collect(), Cost::Peek)];
        let client_identity = ClientIdentity::of_values(&Settings::default(), &questions);
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
        let client_identity =
            ClientIdentity::of_values(&Settings::default(), std::slice::from_ref(&question));
        let [question] = client_identity.put([question]);
        assert_eq!(question.forms.descriptor, Some("path=/a"));
    }
}
