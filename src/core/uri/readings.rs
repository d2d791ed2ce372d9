//! The ways in which origins read one path.
//!
//! A client chooses the spelling, and origins differ in how much of it they undo: some dispatch by the text
//! as it came, some decode it, some remove dot segments before they look at `;parameters` and some after.
//! `/login/..;/x` is `/x` to one and lies below `/login` to another. A limiter in front of them does not know
//! which it serves, so it holds a path to all of its readings.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{escaped, is_hidden, is_normal, path, path_of, push_encoded};

/// Most readings of one path. More take at least five oddities at once, which no honest client sends.
pub const READINGS_MAX: usize = 32;
/// Most bytes of all readings of one path together. Each of them is held to every rule that names paths, and
/// no honest path that is spelled oddly is as long.
pub const READINGS_BYTES_MAX: usize = 32 << 10;

/// The habits of an origin in reading paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// Nobody knows: a path is held to every reading.
    #[default]
    Any,
    /// The path as it came, such as Express and other routers of Node take it.
    Literal,
    /// All of it decoded and nothing removed, such as WSGI (Django, Flask) and routers of Go and Ruby.
    Decoded,
    /// By RFC 3986: dot segments removed, encoded slashes kept, such as Envoy's `normalize_path`.
    Rfc3986,
    /// Decoded, with slashes merged and dot segments removed, such as nginx and Go's `ServeMux`.
    Merged,
    /// The same without `;parameters` and with `\` as `/`, such as Tomcat, Spring and IIS.
    Collapsed,
}

/// Reasons why a path cannot be held to all of its readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this path has more than {READINGS_MAX} readings, or they are too long: write it in one of them")]
pub struct TooManyReadings;

/// The readings of one path, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readings<'t> {
    /// The one that it is called by: its normal form, or the only reading of an origin of one kind.
    pub first: Cow<'t, str>,
    /// The others. There are none of a plain path.
    pub further: SmallVec<[String; 2]>,
}

impl Origin {
    /// Every one, by its name in the configuration.
    pub const ALL: [(&'static str, Self); 6] = [
        ("any", Self::Any),
        ("literal", Self::Literal),
        ("decoded", Self::Decoded),
        ("rfc3986", Self::Rfc3986),
        ("merged", Self::Merged),
        ("collapsed", Self::Collapsed),
    ];

    /// Its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, origin)| *origin == self).map_or("any", |(name, _)| name)
    }

    /// The readings that this origin may have of a path. A plain one has one, and is not copied.
    ///
    /// # Errors
    /// When there are too many.
    pub fn readings(self, text: &str) -> Result<Readings<'_>, TooManyReadings> {
        let target = path_of(text);
        let mut ends = text.bytes().filter(|byte| matches!(byte, b'?' | b'#'));
        let fragment = target.len() < text.len() && ends.next() == Some(b'#');
        let normal = path(text);
        let plain = is_normal(target) && !target.ends_with(['.', ' ']) && !fragment;
        if self == Self::Collapsed || plain {
            return Ok(Readings { first: normal, further: SmallVec::new() });
        }
        if let Some(kind) = self.kind() {
            return Ok(Readings { first: Cow::Owned(kind.read(target)), further: SmallVec::new() });
        }
        let mut further: SmallVec<[String; 2]> = SmallVec::new();
        let mut bytes = 0;
        let mut add = |reading: String| {
            if reading == *normal || further.contains(&reading) {
                return Ok(());
            }
            bytes += reading.len();
            further.push(reading);
            let fits = further.len() < READINGS_MAX && bytes <= READINGS_BYTES_MAX;
            if fits { Ok(()) } else { Err(TooManyReadings) }
        };
        every_reading(target, &mut add)?;
        if fragment {
            // Origins that know of no fragments take it for a part of the path.
            let whole = text.split('?').next().unwrap_or(text).replace('#', "%23");
            every_reading(path_of(&whole), &mut add)?;
        }
        // Caddy's matcher takes dots and blanks off the end before it does anything else.
        let bare = without_end(target);
        if bare.len() < target.len() {
            add(path(bare).into_owned())?;
            every_reading(bare, &mut add)?;
        }
        Ok(Readings { first: normal, further })
    }

    /// The way in which an origin of one kind reads paths that have no parameters.
    const fn kind(self) -> Option<Kind> {
        let literal = Kind { decoded: Decoded::Little, merged: false, dotless: false };
        match self {
            Self::Any | Self::Collapsed => None,
            Self::Literal => Some(literal),
            Self::Decoded => Some(Kind { decoded: Decoded::All, ..literal }),
            Self::Rfc3986 => Some(Kind { decoded: Decoded::Most, dotless: true, ..literal }),
            Self::Merged => Some(Kind { decoded: Decoded::All, merged: true, dotless: true }),
        }
    }
}

/// The path without the dots and blanks at its end, however they are written.
fn without_end(mut target: &str) -> &str {
    while let Some(rest) =
        [".", " ", "%20", "%2e", "%2E"].iter().find_map(|ending| target.strip_suffix(ending))
    {
        target = rest;
    }
    target
}

/// The part of the percent-encoding that is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decoded {
    /// Signs that no client can send otherwise, such as spaces and letters beyond ASCII.
    Little,
    /// All but slashes and backslashes.
    Most,
    /// These too.
    All,
}

/// One way to read paths that have no parameters.
#[derive(Debug, Clone, Copy)]
struct Kind {
    decoded: Decoded,
    merged: bool,
    dotless: bool,
}

impl Kind {
    fn read(self, target: &str) -> String {
        segments(&decode(target, self.decoded), self.merged, self.dotless)
    }
}

/// Hands out every combination of how letters, backslashes, parameters, slashes and dots may be read.
fn every_reading<E>(target: &str, add: &mut impl FnMut(String) -> Result<(), E>) -> Result<(), E> {
    let mut texts: SmallVec<[String; 4]> = SmallVec::new();
    for decoded in [Decoded::Little, Decoded::Most, Decoded::All] {
        let text = decode(target, decoded);
        let slashes = text.contains('\\').then(|| text.replace('\\', "/"));
        for text in [Some(text), slashes].into_iter().flatten() {
            let bare = text.contains(';').then(|| without_parameters(&text));
            for text in [Some(text), bare].into_iter().flatten() {
                let behind = behind_authority(&text).map(str::to_owned);
                for text in [Some(text), behind].into_iter().flatten() {
                    if !texts.contains(&text) {
                        texts.push(text);
                    }
                }
            }
        }
    }
    let dotted: SmallVec<[String; 4]> = texts.iter().filter_map(|text| with_plain_dots(text)).collect();
    for text in dotted {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    for text in &texts {
        let ends_in_dots = matches!(text.rsplit('/').next(), Some("." | ".."));
        for (merged, dotless) in [(false, false), (false, true), (true, false), (true, true)] {
            let reading = segments(text, merged, dotless);
            // By RFC 3986 a slash stays where dots ended it, and to Python's and Go's file servers none does.
            let bare = if ends_in_dots && dotless { reading.strip_suffix('/') } else { None };
            if let Some(bare) = bare.filter(|bare| !bare.is_empty()) {
                add(bare.to_owned())?;
            }
            add(reading)?;
        }
    }
    Ok(())
}

/// Decodes so much of a path. The characters that would change where it ends and control characters stay
/// encoded, with digits in upper case.
fn decode(text: &str, decoded: Decoded) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        let byte = if *first == b'%' { super::encoded(others) } else { None };
        let Some(byte) = byte else {
            // A percent sign that encodes nothing must not begin to, next to what is decoded behind it.
            if *first == b'%' {
                push_encoded(&mut bytes, b'%')
            } else {
                bytes.push(*first)
            }
            continue;
        };
        rest = others.get(2..).unwrap_or_default();
        let kept = match decoded {
            Decoded::Little => is_hidden(byte) || is_path_character(byte),
            Decoded::Most => is_hidden(byte) || matches!(byte, b'/' | b'\\'),
            Decoded::All => is_hidden(byte),
        };
        if kept { push_encoded(&mut bytes, byte) } else { bytes.push(byte) }
    }
    escaped(&bytes).into_owned()
}

/// True for characters that a client may send as they are (`pchar` of RFC 3986, slashes and backslashes).
const fn is_path_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'='
        )
        || matches!(byte, b':' | b'@' | b'/' | b'\\')
}

/// The path with dot segments written as dots and all else as it came, as `new URL` of JavaScript reads it.
/// `None`: none is encoded.
fn with_plain_dots(text: &str) -> Option<String> {
    if !text.contains("%2E") {
        return None;
    }
    let plain = |segment: &str| match segment.replace("%2E", ".").as_str() {
        dots @ ("." | "..") => dots.to_owned(),
        _ => segment.to_owned(),
    };
    Some(text.split('/').map(plain).collect::<Vec<_>>().join("/"))
}

/// The rest of a path that begins with two slashes, where it is resolved as a reference: between them and the
/// next one stands a host then, as for `new URL(request.url, base)` of JavaScript.
fn behind_authority(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("//")?.trim_start_matches('/');
    Some(rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"))
}

/// Cuts the parameters of each segment off.
fn without_parameters(text: &str) -> String {
    let segments = text.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// The same path with neighbouring slashes merged, dot segments removed, both or neither.
fn segments(text: &str, merged: bool, dotless: bool) -> String {
    let absolute = text.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    let last = text.split('/').count().saturating_sub(1);
    for (place, segment) in text.split('/').enumerate() {
        match segment {
            // The first of an absolute path, and what stands behind the slash at its end.
            "" if place == 0 || place == last => kept.push(segment),
            "" if merged => {}
            "." | ".." if dotless => {
                if segment == ".." && kept.len() > usize::from(absolute) {
                    kept.pop();
                }
                if place == last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    if absolute && kept.len() < 2 {
        return "/".to_owned();
    }
    if !absolute && kept.len() == 1 && last > 0 && kept.first().is_some_and(|only| only.is_empty()) {
        return String::new();
    }
    kept.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every reading of a path, the normal form first.
    fn all(text: &str) -> Vec<String> {
        let Readings { first, further } = Origin::Any.readings(text).unwrap();
        std::iter::once(first.into_owned()).chain(further).collect()
    }

    #[test]
    fn a_plain_path_has_one_reading() {
        for text in
            ["/api/things?page=1", "/", "/a.b/c", "*", "", "/caf%C3%A9", "/a%20b", "/ä", "/a/.well-known"]
        {
            assert_eq!(all(text).len(), 1, "{text}: {:?}", all(text));
        }
    }

    #[test]
    fn a_path_that_origins_read_differently_has_each_of_their_readings() {
        for (text, served) in [
            ("/login/..;/x", "/login/..;/x"),
            ("/login/..;a=b/x", "/login/..;a=b/x"),
            ("/login/..\\x", "/login/..\\x"),
            ("/login/..%5cx", "/login/..\\x"),
            ("/login/%2e%2e;/x", "/login/..;/x"),
            ("/login/%2e%2e;/x", "/login/%2E%2E;/x"),
            ("/login/x/..;/..;/y", "/login/x/..;/..;/y"),
            ("/login/..;/public/x", "/login/..;/public/x"),
            ("/login/../x", "/login/../x"),
            ("/login//../x", "/login/x"),
            ("/x//../login", "/x/login"),
            ("/x/a%2Fb/../../%6cogin/", "/login/"),
            ("/x/../login/%2e%2e%2fy", "/login/..%2Fy"),
            ("//login/x", "//login/x"),
            ("//login/x", "/login/x"),
            ("/%6cogin", "/%6Cogin"),
            ("/login#/../x", "/login%23/../x"),
            ("/x#/../login", "/login"),
            ("//x/login", "/login"),
            ("/login/.", "/login"),
            ("/login/x/%2e%2e", "/login"),
            ("/\\x/login", "/login"),
            ("ftp://x/login", "/login"),
            ("http://x/x#/../login", "/login"),
            ("/login.", "/login"),
            ("/login%20", "/login"),
            ("/login.%2e .", "/login"),
            ("/x/../login/..", "/login/"),
            ("/public/%2e%2E/publi%63", "/publi%63"),
            ("/x\\.%2e/%6cogin%2e", "/%6Cogin%2E"),
        ] {
            assert!(all(text).iter().any(|own| own == served), "{text} as {served}: {:?}", all(text));
        }
    }

    #[test]
    fn an_origin_of_one_kind_has_its_own_reading_alone() {
        for (origin, reading) in [
            (Origin::Literal, "/a//%62/..;p/c%2Fd"),
            (Origin::Decoded, "/a//b/..;p/c/d"),
            (Origin::Rfc3986, "/a//b/..;p/c%2Fd"),
            (Origin::Merged, "/a/b/..;p/c/d"),
            (Origin::Collapsed, "/a/c/d"),
        ] {
            let Readings { first, further } = origin.readings("/a//%62/..;p/c%2fd").unwrap();
            assert_eq!((&*first, further.len()), (reading, 0), "{origin:?}");
        }
        assert_eq!(Origin::Rfc3986.readings("/a//../b/.").unwrap().first, "/a/b/");
    }

    #[test]
    fn what_has_too_many_readings_is_said() {
        assert_eq!(Origin::Any.readings("//a;b/%2e/x%2Fy\\z/../%61"), Err(TooManyReadings));
        let long = format!("//{}/../%61", "a".repeat(READINGS_BYTES_MAX / 2));
        assert_eq!(Origin::Any.readings(&long), Err(TooManyReadings));
        assert!(Origin::Any.readings(&format!("/%61/{}", "a".repeat(7_000))).is_ok());
    }

    proptest! {
        /// A rule for a prefix holds whichever of the readings an origin has: this one is a plain one that
        /// undoes one thing after the other.
        #[test]
        fn each_kind_of_origin_is_among_the_readings(text in "/(login|x|%2e|[.]{1,2}|;p|%2f|%5c|\\\\|/|%6c){1,6}") {
            let Ok(all) = Origin::Any.readings(&text) else { return Ok(()) };
            for (name, origin) in Origin::ALL {
                let own = origin.readings(&text).unwrap().first.into_owned();
                prop_assert!(own == *all.first || all.further.contains(&own), "{name}: {own} of {text}");
            }
        }

        #[test]
        fn any_text_has_readings_without_panic(text in ".*") {
            let _ = Origin::Any.readings(&text);
        }
    }
}
