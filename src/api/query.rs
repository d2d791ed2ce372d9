//! The query of a URL: `name=value` pairs, percent-encoded, `+` for a space.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::error::Refusal;

/// Reads the pairs in their order. A name without `=` has an empty value.
pub(super) fn pairs(query: &str) -> Result<Vec<(String, String)>, Refusal> {
    query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect()
}

fn pair(pair: &str) -> Result<(String, String), Refusal> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    let name = decoded(name).ok_or_else(|| Refusal::of_field("query", "a name in the query is not UTF-8"))?;
    let value = decoded(value).ok_or_else(|| Refusal::of_field(name.clone(), "the value is not UTF-8"))?;
    Ok((name, value))
}

fn decoded(text: &str) -> Option<String> {
    let text = if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) };
    percent_decode_str(&text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_their_order() {
        let read = pairs("rule=a%26b&user=u+1%2B&empty=&bare&&x=a=b").unwrap();
        let read: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(read, [("rule", "a&b"), ("user", "u 1+"), ("empty", ""), ("bare", ""), ("x", "a=b")]);
    }

    #[test]
    fn what_is_not_utf8_is_refused_by_name() {
        assert_eq!(pairs("user=%ff").unwrap_err().field.as_deref(), Some("user"));
        assert_eq!(pairs("%ff=1").unwrap_err().field.as_deref(), Some("query"));
    }
}
