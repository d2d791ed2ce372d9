//! Limitador's conditions: the part of CEL that compares keys of a descriptor with texts, and what stood for
//! it before.

use std::iter::Peekable;
use std::str::Chars;

use crate::database::imported::meaning::Wanted;
use crate::database::imported::not_plain;

/// Deepest nesting of one condition.
const DEPTH_MAX: usize = 16;

/// A key of one of a request's descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DescriptorKey {
    /// The descriptor's place; `None`: the key stands alone, as it once did.
    pub(super) descriptor: Option<usize>,
    pub(super) name: String,
}

/// A condition on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyTest {
    pub(super) key: DescriptorKey,
    pub(super) any_of: Vec<Wanted>,
    /// True if the key's value must be none of these.
    pub(super) excluded: bool,
}

/// Reads a condition as tests that have all to be met.
///
/// # Errors
/// The reason why rules cannot say it.
pub(super) fn read(text: &str) -> Result<Vec<KeyTest>, String> {
    if let Some(test) = unquoted(text) {
        return test.map(|test| vec![test]);
    }
    let mut reader = CelReader { tokens: tokens(text).ok_or(UNSAID)?.into_iter().peekable(), depth: 0 };
    let tests = reader.any()?;
    if reader.tokens.next().is_some() {
        return Err(UNSAID.to_owned());
    }
    Ok(tests)
}

/// Reads a variable.
pub(super) fn read_key(text: &str) -> Option<DescriptorKey> {
    let mut reader = CelReader { tokens: tokens(text)?.into_iter().peekable(), depth: 0 };
    let key = reader.plain_key().ok()?;
    reader.tokens.next().is_none().then_some(key)
}

const UNSAID: &str = "is no comparison of descriptors' keys with texts, which is all that rules can say";

/// Reads `key == value` without quotes, which Limitador took before its version 1: the value is all that
/// follows the sign and one blank.
fn unquoted(text: &str) -> Option<Result<KeyTest, String>> {
    let (name, value) = text.split_once(" == ")?;
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let told =
        |value: &str| value.starts_with(['\'', '"']) || value.contains("==") || value.contains(['[', '(']);
    if name.is_empty()
        || !name.chars().all(is_name)
        || told(value)
        || value.contains("&&")
        || value.contains("||")
    {
        return None;
    }
    let key = DescriptorKey { descriptor: None, name: name.to_owned() };
    Some(value_test(value).map(|wanted| KeyTest { key, any_of: vec![wanted], excluded: false }))
}

fn value_test(text: &str) -> Result<Wanted, String> {
    match not_plain(text) {
        Some(why) => Err(format!("compares with {text:?}, which {why}")),
        None => Ok(Wanted::Value(text.to_owned())),
    }
}

/// Reads what stands around the rest of a value.
fn glob_test(before: &str, text: &str, after: &str) -> Result<Wanted, String> {
    match not_plain(text) {
        Some(why) => Err(format!("compares with {text:?}, which {why}")),
        None => Ok(Wanted::Glob(format!("{before}{text}{after}"))),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CelToken {
    Name(String),
    Text(String),
    Number(usize),
    /// `==`, `!=`, `&&`, `||`, or one sign.
    Sign(&'static str),
}

/// Longest first.
const SIGNS: [&str; 10] = ["==", "!=", "&&", "||", "!", "(", ")", "[", "]", "."];

fn tokens(text: &str) -> Option<Vec<CelToken>> {
    let mut rest = text.chars().peekable();
    let mut found = Vec::new();
    while let Some(first) = rest.peek().copied() {
        let token = match first {
            space if space.is_whitespace() => {
                rest.next();
                continue;
            }
            '\'' | '"' => {
                rest.next();
                CelToken::Text(quoted(&mut rest, first)?)
            }
            letter if letter.is_ascii_alphabetic() || letter == '_' => {
                CelToken::Name(word(&mut rest, |letter| letter.is_ascii_alphanumeric() || *letter == '_'))
            }
            digit if digit.is_ascii_digit() => {
                CelToken::Number(word(&mut rest, |letter| letter.is_ascii_digit()).parse().ok()?)
            }
            ',' => {
                rest.next();
                CelToken::Sign(",")
            }
            _ => CelToken::Sign(sign(&mut rest)?),
        };
        found.push(token);
    }
    Some(found)
}

fn sign(rest: &mut Peekable<Chars<'_>>) -> Option<&'static str> {
    let ahead: String = rest.clone().take(2).collect();
    let found = SIGNS.into_iter().find(|sign| ahead.starts_with(sign))?;
    for _ in found.chars() {
        rest.next();
    }
    Some(found)
}

fn word(rest: &mut Peekable<Chars<'_>>, belongs: impl Fn(&char) -> bool) -> String {
    let mut word = String::new();
    while let Some(letter) = rest.next_if(&belongs) {
        word.push(letter);
    }
    word
}

fn quoted(rest: &mut Peekable<Chars<'_>>, quote: char) -> Option<String> {
    let mut text = String::new();
    loop {
        match rest.next()? {
            end if end == quote => return Some(text),
            '\\' => text.push(match rest.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                same @ ('\\' | '\'' | '"' | '`') => same,
                _ => return None,
            }),
            letter => text.push(letter),
        }
    }
}

struct CelReader {
    tokens: Peekable<std::vec::IntoIter<CelToken>>,
    depth: usize,
}

impl CelReader {
    /// Reads alternatives. Rules know those between values of one key.
    fn any(&mut self) -> Result<Vec<KeyTest>, String> {
        let mut first = self.all()?;
        while self.takes("||") {
            let other = self.all()?;
            let (Some([one]), [other]) = (first.get_mut(..), other.as_slice()) else {
                return Err(ALTERNATIVES.to_owned());
            };
            let excludes = one.excluded || other.excluded;
            let both = || one.any_of.iter().chain(&other.any_of);
            if one.key != other.key || excludes || both().any(|wanted| *wanted == Wanted::Any) {
                return Err(ALTERNATIVES.to_owned());
            }
            one.any_of.extend(other.any_of.iter().cloned());
        }
        Ok(first)
    }

    fn all(&mut self) -> Result<Vec<KeyTest>, String> {
        let mut tests = self.one(false)?;
        while self.takes("&&") {
            tests.extend(self.one(false)?);
        }
        Ok(tests)
    }

    /// Reads one condition. `denied`: after a `!`, which binds tighter than a comparison.
    fn one(&mut self, denied: bool) -> Result<Vec<KeyTest>, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("is nested too deeply".to_owned());
        }
        let tests = if self.takes("!") {
            let mut tests = self.one(true)?;
            let [test] = tests.as_mut_slice() else { return Err(ALTERNATIVES.to_owned()) };
            test.excluded = !test.excluded;
            Ok(tests)
        } else if self.takes("(") {
            let tests = self.any()?;
            self.needs(")").map(|()| tests)
        } else if self.tokens.peek() == Some(&CelToken::Name("true".to_owned())) {
            self.tokens.next();
            Ok(Vec::new())
        } else {
            self.comparison(denied).map(|test| vec![test])
        };
        self.depth -= 1;
        tests
    }

    fn comparison(&mut self, denied: bool) -> Result<KeyTest, String> {
        if self.tokens.peek() == Some(&CelToken::Name("has".to_owned())) {
            self.tokens.next();
            self.needs("(")?;
            let key = self.plain_key()?;
            self.needs(")")?;
            return Ok(KeyTest { key, any_of: vec![Wanted::Any], excluded: false });
        }
        if let Some(CelToken::Text(text)) = self.tokens.next_if(|token| matches!(token, CelToken::Text(_))) {
            return if denied { Err(UNSAID.to_owned()) } else { self.text_first(&text) };
        }
        let key = self.key()?;
        if self.takes("(") {
            return self.method(key);
        }
        let key = plain(key)?;
        if denied {
            return Err(UNSAID.to_owned());
        }
        if self.tokens.next_if_eq(&CelToken::Name("in".to_owned())).is_some() {
            let any_of = self.list()?;
            return Ok(KeyTest { key, any_of, excluded: false });
        }
        let excluded = self.equality()?;
        match self.tokens.next() {
            Some(CelToken::Text(text)) => Ok(KeyTest { key, any_of: vec![value_test(&text)?], excluded }),
            Some(CelToken::Number(number)) => {
                Err(format!("is never met: {} is a text, and {number} a number without quotes", key.name))
            }
            _ => Err(UNSAID.to_owned()),
        }
    }

    /// Reads what follows a text: a comparison with a key, or the descriptor in which it is one.
    fn text_first(&mut self, text: &str) -> Result<KeyTest, String> {
        if self.tokens.next_if_eq(&CelToken::Name("in".to_owned())).is_some() {
            let key = DescriptorKey { descriptor: Some(self.descriptor()?), name: text.to_owned() };
            return Ok(KeyTest { key, any_of: vec![Wanted::Any], excluded: false });
        }
        let excluded = self.equality()?;
        Ok(KeyTest { key: self.plain_key()?, any_of: vec![value_test(text)?], excluded })
    }

    /// Reads the texts that a key's method was given. The method is the last part of the key's name.
    fn method(&mut self, mut key: DescriptorKey) -> Result<KeyTest, String> {
        let Some(CelToken::Text(text)) = self.tokens.next() else { return Err(UNSAID.to_owned()) };
        self.needs(")")?;
        let (name, method) = key.name.rsplit_once(METHOD).ok_or(UNSAID)?;
        let wanted = match method {
            "startsWith" => glob_test("", &text, "*")?,
            "endsWith" => glob_test("*", &text, "")?,
            "contains" => glob_test("*", &text, "*")?,
            "matches" => return Err("is a regular expression, and rules match by texts and *".to_owned()),
            _ => return Err(UNSAID.to_owned()),
        };
        key.name = name.to_owned();
        Ok(KeyTest { key, any_of: vec![wanted], excluded: false })
    }

    fn list(&mut self) -> Result<Vec<Wanted>, String> {
        self.needs("[")?;
        let mut values = Vec::new();
        loop {
            let Some(CelToken::Text(text)) = self.tokens.next() else { return Err(UNSAID.to_owned()) };
            values.push(value_test(&text)?);
            if !self.takes(",") {
                return self.needs("]").map(|()| values);
            }
        }
    }

    fn equality(&mut self) -> Result<bool, String> {
        if self.takes("!=") { Ok(true) } else { self.needs("==").map(|()| false) }
    }

    fn plain_key(&mut self) -> Result<DescriptorKey, String> {
        self.key().and_then(plain)
    }

    /// Reads `descriptors[0].name`, `descriptors[0]['name']`, or a name alone, which may have dots.
    fn key(&mut self) -> Result<DescriptorKey, String> {
        if self.tokens.peek() == Some(&CelToken::Name("descriptors".to_owned())) {
            let descriptor = Some(self.descriptor()?);
            let mut name = if self.takes("[") {
                let Some(CelToken::Text(name)) = self.tokens.next() else { return Err(UNSAID.to_owned()) };
                self.needs("]")?;
                name
            } else {
                self.needs(".")?;
                self.name()?
            };
            if self.takes(".") {
                name = format!("{name}{METHOD}{}", self.name()?);
            }
            return Ok(DescriptorKey { descriptor, name });
        }
        let mut name = self.name()?;
        if name == "limit" {
            return Err("tests the limit itself, which is the same for every request".to_owned());
        }
        while self.takes(".") {
            let part = self.name()?;
            let sign = if self.tokens.peek() == Some(&CelToken::Sign("(")) { METHOD } else { '.' };
            name = format!("{name}{sign}{part}");
        }
        Ok(DescriptorKey { descriptor: None, name })
    }

    fn descriptor(&mut self) -> Result<usize, String> {
        let named = self.tokens.next_if_eq(&CelToken::Name("descriptors".to_owned())).is_some();
        if !named || !self.takes("[") {
            return Err(UNSAID.to_owned());
        }
        let Some(CelToken::Number(place)) = self.tokens.next() else { return Err(UNSAID.to_owned()) };
        self.needs("]").map(|()| place)
    }

    fn name(&mut self) -> Result<String, String> {
        match self.tokens.next() {
            Some(CelToken::Name(name)) => Ok(name),
            _ => Err(UNSAID.to_owned()),
        }
    }

    fn takes(&mut self, sign: &'static str) -> bool {
        self.tokens.next_if_eq(&CelToken::Sign(sign)).is_some()
    }

    fn needs(&mut self, sign: &'static str) -> Result<(), String> {
        if self.takes(sign) { Ok(()) } else { Err(UNSAID.to_owned()) }
    }
}

/// Stands between a key and the method that is called on it: no name has it.
const METHOD: char = '\u{0}';

/// Refuses a key on which a method is called, and one without a name.
fn plain(key: DescriptorKey) -> Result<DescriptorKey, String> {
    if key.name.is_empty() || key.name.contains(METHOD) { Err(UNSAID.to_owned()) } else { Ok(key) }
}

const ALTERNATIVES: &str = "joins conditions on several keys by \"or\" or \"not\", and rules know alternatives of one key's values only";
