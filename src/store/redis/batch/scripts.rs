//! The script that decides, put together from its files in `lua/`.

use std::sync::LazyLock;

/// The parts, in the order in which they need each other.
const PARTS: [&str; 15] = [
    include_str!("../../../../lua/kinds.lua"),
    include_str!("../../../../lua/number.lua"),
    include_str!("../../../../lua/calendar.lua"),
    include_str!("../../../../lua/aligned.lua"),
    include_str!("../../../../lua/fixed_window.lua"),
    include_str!("../../../../lua/sliding_window.lua"),
    include_str!("../../../../lua/level.lua"),
    include_str!("../../../../lua/in_force.lua"),
    include_str!("../../../../lua/sliding_log.lua"),
    include_str!("../../../../lua/holders.lua"),
    include_str!("../../../../lua/bucket.lua"),
    include_str!("../../../../lua/ledger.lua"),
    include_str!("../../../../lua/places.lua"),
    include_str!("../../../../lua/notes.lua"),
    include_str!("../../../../lua/penalty.lua"),
];

const DECIDES: &str = include_str!("../../../../lua/decide.lua");
const STEPS: &str = include_str!("../../../../lua/rights.lua");
const REGISTERS: &str = include_str!("../../../../lua/registry.lua");
const STARTS: &str = include_str!("../../../../lua/first_start.lua");

/// A script and the name that Redis gives it. Daemons of two versions run two scripts side by side, so an
/// update needs no order: whoever finds its own missing loads it.
#[derive(Debug)]
pub(in crate::store::redis) struct Script {
    /// The whole text, without comments.
    pub(in crate::store::redis) text: String,
    /// Its SHA-1, in hexadecimal.
    pub(in crate::store::redis) hash: String,
}

/// Decides over the buckets of one slot; see `lua/decide.lua`.
pub(in crate::store::redis) static DECIDE: LazyLock<Script> = LazyLock::new(|| script(DECIDES));

/// Carries out a step on the rights of one bucket; see `lua/rights.lua`.
pub(in crate::store::redis) static RIGHTS: LazyLock<Script> = LazyLock::new(|| script(STEPS));

/// Notes a daemon and tells who else is alive; see `lua/registry.lua`.
pub(in crate::store::redis) static REGISTRY: LazyLock<Script> = LazyLock::new(|| joined(&[REGISTERS]));

/// Marks a server's memory at a first start; see `lua/first_start.lua`.
pub(in crate::store::redis) static FIRST_START: LazyLock<Script> = LazyLock::new(|| joined(&[STARTS]));

fn script(last: &str) -> Script {
    let parts: Vec<&str> = PARTS.iter().copied().chain([last]).collect();
    joined(&parts)
}

fn joined(parts: &[&str]) -> Script {
    let lines = parts.iter().flat_map(|part| part.lines());
    let lines = lines.filter(|line| !line.trim_start().starts_with("--"));
    let text = lines.fold(String::new(), |text, line| text + line + "\n");
    let hash = redis::Script::new(&text).get_hash().to_owned();
    Script { text, hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_file_says_what_it_takes_and_what_it_mirrors() {
        for part in PARTS.iter().chain([&DECIDES, &STEPS, &REGISTERS]) {
            let header: Vec<&str> = part.lines().take_while(|line| line.starts_with("--")).collect();
            let header = header.join("\n");
            for word in ["KEYS", "ARGV", "eply", "Mirrors"] {
                assert!(header.contains(word), "no {word} in: {header}");
            }
        }
    }
}
