//! The one form of script that clients send for `CL.THROTTLE`: `return redis.call('cl.throttle', KEYS[1],
//! ARGV[1], …)`, with one element of the answer or all of it. Nothing else of Lua is run.

use std::sync::{Mutex, PoisonError};

use ring::digest;

/// Most sums that are remembered; a client whose script is not known any more sends it anew.
const KNOWN_MAX: usize = 256;

/// A script of the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThrottleScript {
    /// Number of values of `ARGV` that it passes on: 3 or 4.
    pub(super) arguments: usize,
    /// The element of the answer that it returns, from 0; `None`: all of it.
    pub(super) only: Option<usize>,
}

/// Reads a script; `None` where it is of another form.
pub(super) fn read(text: &[u8]) -> Option<ThrottleScript> {
    let text: String = std::str::from_utf8(text).ok()?.chars().filter(|one| !one.is_whitespace()).collect();
    let text = text.to_ascii_lowercase().replace('"', "'");
    let text = text.strip_suffix(';').unwrap_or(&text);
    let call = text.strip_prefix("returnredis.call('cl.throttle',keys[1],")?;
    let (passed, index) = call.split_once(')')?;
    let arguments = passed.split(',').count();
    let wanted: Vec<String> = (1..=arguments).map(|place| format!("argv[{place}]")).collect();
    if !(3..=4).contains(&arguments) || wanted.join(",") != passed {
        return None;
    }
    let only = match index {
        "" => None,
        index => {
            let place: usize = index.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
            Some(place.checked_sub(1)?)
        }
    };
    Some(ThrottleScript { arguments, only })
}

/// The sum by which a script is called again, in small hexadecimal digits.
pub(super) fn sum(text: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The scripts that clients have sent, by their sums.
#[derive(Debug, Default)]
pub(in crate::api) struct KnownScripts(Mutex<Vec<(String, ThrottleScript)>>);

impl KnownScripts {
    /// Remembers a script. Returns its sum.
    pub(super) fn keep(&self, text: &[u8], script: ThrottleScript) -> String {
        let sum = sum(text);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|(other, _)| *other == sum) {
            if known.len() >= KNOWN_MAX {
                known.remove(0);
            }
            known.push((sum.clone(), script));
        }
        sum
    }

    /// The script of this sum.
    pub(super) fn find(&self, sum: &[u8]) -> Option<ThrottleScript> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(other, _)| other.as_bytes().eq_ignore_ascii_case(sum)).map(|(_, script)| *script)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_known_whatever_its_spelling_and_nothing_else_is() {
        let all = |arguments| Some(ThrottleScript { arguments, only: None });
        for (text, script) in [
            ("return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3],ARGV[4])", all(4)),
            ("return redis.call(\"CL.THROTTLE\", KEYS[1], ARGV[1], ARGV[2], ARGV[3]);\n", all(3)),
            (
                "return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3],ARGV[4])[1]",
                Some(ThrottleScript { arguments: 4, only: Some(0) }),
            ),
            ("return redis.call('cl.throttle',KEYS[1],ARGV[2],ARGV[1],ARGV[3])", None),
            ("return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3])[0]", None),
            ("return redis.call('get',KEYS[1])", None),
            ("return 1", None),
        ] {
            assert_eq!(read(text.as_bytes()), script, "{text}");
        }
    }

    #[test]
    fn scripts_are_found_by_their_sums_and_bounded() {
        let known = KnownScripts::default();
        let script = ThrottleScript { arguments: 3, only: None };
        let first = known.keep(b"return 1", script);
        assert_eq!(first, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(known.find(first.to_ascii_uppercase().as_bytes()), Some(script));
        for number in 0..KNOWN_MAX {
            known.keep(number.to_string().as_bytes(), script);
        }
        assert_eq!(known.find(first.as_bytes()), None);
    }
}
