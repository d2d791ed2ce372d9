//! The counts that the reference service has of each limit, and their names.

use std::borrow::Cow;

use super::DescriptorLimit;

/// Hits of one answer, by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hits {
    /// All hits: permits that calls asked of the limit.
    pub total: u64,
    /// Hits by which the count lies above the limit.
    pub over: u64,
    /// Hits between the threshold that is near the limit, and the limit.
    pub near: u64,
    /// Hits of a descriptor that passed within its limit.
    pub within: u64,
    /// Hits of a descriptor that only a shadow limit would have denied.
    pub shadow: u64,
}

impl Hits {
    /// Hits that brought a count to `after` under a limit that is near from `near` on.
    #[must_use]
    pub const fn counted(limit: u64, near: u64, after: u64, hits: u64, shadow: bool) -> Self {
        let before = after.saturating_sub(hits);
        let mut counted = Self { total: hits, over: 0, near: 0, within: 0, shadow: 0 };
        if after > limit {
            if before >= limit {
                counted.over = hits;
            } else {
                counted.over = after - limit;
                counted.near = limit.saturating_sub(if near > before { near } else { before });
            }
            counted.shadow = if shadow { hits } else { 0 };
        } else {
            counted.within = hits;
            counted.near = match after > near {
                true if before >= near => hits,
                true => after - near,
                false => 0,
            };
        }
        counted
    }
}

/// From which count on a limit is near: the whole permits in this part of it.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of 32 bits, cut on purpose"
)]
pub fn near_limit(limit: u32, ratio: f64) -> u64 {
    (f64::from(limit) * ratio).floor() as u64
}

/// The name of a limit of these keys and values. `:` and `|` would end a name of statsd, and the points of an
/// address would part it.
pub(super) fn name<'s>(domain: &str, steps: impl Iterator<Item = (&'s str, Option<&'s str>)>) -> String {
    let mut name = domain.to_owned();
    for (key, value) in steps {
        name.push('.');
        push_sanitized(key, &mut name);
        if let Some(value) = value {
            name.push('_');
            push_sanitized(value, &mut name);
        }
    }
    name
}

fn push_sanitized(text: &str, name: &mut String) {
    let mut rest = text;
    while let Some(sign) = rest.chars().next() {
        if let Some(len) = address_len(rest).filter(|_| !name.ends_with(|last: char| last.is_ascii_digit())) {
            let (address, after) = rest.split_at(len);
            name.push_str(&address.replace('.', "_"));
            rest = after;
            continue;
        }
        name.push(if matches!(sign, ':' | '|') { '_' } else { sign });
        rest = rest.get(sign.len_utf8()..).unwrap_or_default();
    }
}

/// Bytes of the IPv4 address that a text begins with.
fn address_len(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    for part in 0..4 {
        if part > 0 {
            (bytes.get(at) == Some(&b'.')).then_some(())?;
            at += 1;
        }
        let digits = bytes.iter().skip(at).take(3).take_while(|byte| byte.is_ascii_digit()).count();
        (digits > 0).then_some(())?;
        at += digits;
    }
    Some(at)
}

impl DescriptorLimit {
    /// The name in statistics of a descriptor with these entries.
    #[must_use]
    pub fn statistics_of(&self, entries: &[(&str, &str)]) -> Cow<'_, str> {
        if self.real_values.is_empty() {
            return Cow::Borrowed(&self.statistics);
        }
        let shown = entries.iter().zip(&self.steps).zip(&self.real_values);
        let shown = shown
            .map(|(((key, value), own), real)| (*key, if *real { Some(*value) } else { own.as_deref() }));
        Cow::Owned(name(&self.domain, shown))
    }

    /// Returns whether its name in statistics depends on the values of requests.
    #[must_use]
    pub fn shows_values(&self) -> bool {
        !self.real_values.is_empty()
    }
}
