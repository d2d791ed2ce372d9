//! Stories drawn from a seed, as scenario files: what breaks one can be kept, cut down and told again.

use std::fmt::Write as _;

use crate::dice::Dice;

/// Draws differ from those that a story makes of the same seed.
const PURPOSE: u64 = 0xc4a05;
const PATTERNS: [&str; 10] =
    ["bal0.9", "bal1.5", "bal2", "one2", "skew2", "mov2", "walk1.5", "anti2", "spike2", "restart2"];
const ALGORITHMS: [&str; 7] =
    ["fixed_window", "fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket"];
const PARTITIONS: [&str; 5] = ["share", "share", "deny", "freeze", "last_known"];
const STORES: [&str; 2] = ["memory", "redis"];
const STORES_OF_FEW: [&str; 3] = ["memory", "redis", "cluster"];
const DOORS: [&str; 5] = ["direct", "direct", "direct", "envoy", "nginx"];
const FAULTS: [&str; 10] =
    ["cut", "cut", "crash", "stop", "store-lost", "storm", "limit", "weights", "roll", "database"];
/// Seconds before the first fault, and after the last.
const QUIET: u64 = 4;

/// The scenario file of this seed.
pub(super) fn story(seed: u64) -> String {
    let mut dice = Dice::new(seed, PURPOSE);
    let pick = |dice: &mut Dice, from: &[&'static str]| dice.pick(from).copied().unwrap_or_default();
    let regions = dice.between(2, 4);
    // A cluster is six servers a region, so few regions have one.
    let few = regions == 2;
    let store = pick(&mut dice, if few { &STORES_OF_FEW } else { &STORES });
    let daemons: Vec<u64> =
        (0..regions).map(|_| if store == "memory" { 1 } else { dice.between(1, 2) }).collect();
    let door = pick(&mut dice, &DOORS);
    let database = dice.chance(0.3);
    let way = pick(&mut dice, &["gossip", "gossip", "split", "escrow", "escrow"]);
    let algorithm = pick(&mut dice, &ALGORITHMS);
    let limit = dice.between(6, 30) * 10;
    let mut drawn = Drawn { dice, regions, limit, daemons: daemons.clone(), database, door, store };
    let (faults, ends) = drawn.faults();
    let dice = &mut drawn.dice;
    let mut text = format!(
        "name = \"Drawn from seed {seed}\"\nabout = \"`sim chaos --draw 1 --seed {seed}` draws it.\"\nlength = \"{}s\"\nseed = {seed}\n\
         store = \"{store}\"\ndatabase = {database}\ndoor = \"{door}\"\nways = [\"{way}\"]\n",
        ends + 2 * QUIET
    );
    let named = daemons
        .iter()
        .enumerate()
        .map(|(region, daemons)| format!("{{ name = \"region-{region}\", daemons = {daemons} }}"));
    let _ = writeln!(text, "regions = [{}]", named.collect::<Vec<_>>().join(", "));
    let window = if dice.chance(0.7) { "1s" } else { "2s" };
    let _ = write!(text, "[rule]\nlimit = {limit}\nwindow = \"{window}\"\nalgorithm = \"{algorithm}\"\n");
    if !algorithm.ends_with("window") && algorithm != "sliding_log" {
        let _ = writeln!(text, "burst = {}", limit * dice.between(5, 20) / 10);
    }
    if way == "gossip" {
        let _ = writeln!(text, "on_partition = \"{}\"", pick(dice, &PARTITIONS));
    }
    let _ = write!(
        text,
        "[demand]\npattern = \"{}\"\nusers = {}\nretry = {}\n[network]\nrtt = \"{}ms\"\njitter = \"{}%\"\nloss = \"{}%\"\nduplicate = \"{}%\"\nreorder = \"{}%\"\n",
        pick(dice, &PATTERNS),
        dice.pick(&[1, 1, 1, 3]).copied().unwrap_or(1),
        dice.chance(0.3),
        dice.between(20, 250),
        dice.between(0, 50),
        dice.between(0, 3),
        dice.between(0, 1),
        dice.between(0, 2)
    );
    text + &faults
}

struct Drawn {
    dice: Dice,
    regions: u64,
    limit: u64,
    daemons: Vec<u64>,
    database: bool,
    door: &'static str,
    store: &'static str,
}

impl Drawn {
    /// Up to three faults, and the second in which the last one is over. A fault begins before the one before is over, or when
    /// regions had time to recover.
    fn faults(&mut self) -> (String, u64) {
        let (mut text, mut at, mut ends) = (String::new(), QUIET, QUIET);
        for _ in 0..self.dice.between(1, 3) {
            let lasts = self.dice.between(2, 5);
            let Some((fault, takes)) = self.fault(lasts) else { continue };
            // A daemon that stands still cannot be restarted in order, so nothing else happens meanwhile.
            let alone = fault.contains("roll");
            if alone && at < ends {
                continue;
            }
            let _ = write!(text, "[[faults]]\nat = \"{at}s\"\n{fault}");
            ends = ends.max(at + takes);
            at = if self.dice.chance(0.3) && !alone { at + 1 } else { ends + QUIET };
        }
        (text, ends)
    }

    /// A fault without its beginning, and the seconds that it takes; `None` where this world knows nothing like it.
    fn fault(&mut self, lasts: u64) -> Option<(String, u64)> {
        let kind = self.dice.pick(&FAULTS).copied().unwrap_or_default();
        let region = self.dice.below(self.regions);
        let daemons = self.daemons.get(crate::number::index(region)).copied().unwrap_or(1);
        let of_daemon = format!("region = \"region-{region}\"\ndaemon = {}\n", self.dice.below(daemons));
        let text = match kind {
            "cut" => {
                let direction = self.dice.pick(&["both", "both", "in", "out"]).copied().unwrap_or_default();
                format!(
                    "for = \"{lasts}s\"\nkind = \"cut\"\nregions = [\"region-{region}\"]\ndirection = \"{direction}\"\n"
                )
            }
            "crash" | "stop" => format!("for = \"{lasts}s\"\nkind = \"{kind}\"\n{of_daemon}"),
            "store-lost" if self.store == "cluster" => {
                format!("for = \"{lasts}s\"\nkind = \"primary-lost\"\nregion = \"region-{region}\"\n")
            }
            "store-lost" => format!("kind = \"store-lost\"\nregion = \"region-{region}\"\n"),
            "storm" => format!(
                "for = \"{lasts}s\"\nkind = \"storm\"\nloss = \"{}%\"\njitter = \"100%\"\n",
                self.dice.between(10, 40)
            ),
            "limit" => format!("kind = \"limit\"\nlimit = {}\n", self.limit * self.dice.between(5, 20) / 10),
            "weights" => {
                let weights: Vec<String> =
                    (0..self.regions).map(|_| self.dice.between(1, 5).to_string()).collect();
                format!("kind = \"weights\"\nweights = [{}]\n", weights.join(", "))
            }
            // A gateway before one daemon has nobody to ask while that is restarted.
            "roll" if self.door == "direct" || self.daemons.iter().all(|daemons| *daemons > 1) => {
                let each = if self.door == "envoy" { 9 } else { 6 };
                return Some(("kind = \"roll\"\n".to_owned(), each * self.daemons.iter().sum::<u64>()));
            }
            "database" if self.database => {
                let kind = self.dice.pick(&["database-lost", "database-frozen"]).copied().unwrap_or_default();
                format!("for = \"{lasts}s\"\nkind = \"{kind}\"\n")
            }
            _ => return None,
        };
        Some((text, lasts))
    }
}

/// The names and texts of so many stories, beginning with this seed.
pub(super) fn stories(times: u32, first: u64) -> impl Iterator<Item = (String, String)> {
    (0..u64::from(times)).map(move |next| {
        let seed = first + next;
        (format!("drawn-{seed}"), story(seed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::place;
    use crate::plan::read;

    #[test]
    fn a_thousand_seeds_draw_stories_that_can_be_read_and_repeat() {
        let mut faults = 0;
        for seed in 0..1_000 {
            let text = story(seed);
            let plan = read("drawn.toml", &text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
            assert_eq!(text, story(seed));
            faults += place(plan.faults.len());
        }
        assert!(faults > 1_000, "{faults} faults in a thousand stories");
    }
}
