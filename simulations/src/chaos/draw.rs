//! Stories drawn from a seed, as scenario files: what breaks one can be kept, cut down and told again.

use std::fmt::Write as _;

use crate::virtual_world::Dice;

/// Draws differ from those that a story makes of the same seed.
const PURPOSE: u64 = 0xc4a05;
/// Clocks are drawn apart, so that a seed means the same otherwise where they cannot be moved.
const PURPOSE_OF_CLOCKS: u64 = 0xc10c5;
const PATTERNS: [&str; 10] =
    ["bal0.9", "bal1.5", "bal2", "one2", "skew2", "mov2", "walk1.5", "anti2", "spike2", "restart2"];
const ALGORITHMS: [&str; 7] =
    ["fixed_window", "fixed_window", "sliding_window", "sliding_log", "token_bucket", "gcra", "leaky_bucket"];
const PARTITIONS: [&str; 6] = ["share", "share", "deny", "freeze", "last_known", "ignore"];
const STORES: [&str; 2] = ["memory", "redis"];
const STORES_OF_FEW: [&str; 3] = ["memory", "redis", "cluster"];
/// The part of plans in which each region has a store of its own kind.
const MIXED: f64 = 0.2;
const GATEWAYS: [&str; 5] = ["direct", "direct", "direct", "envoy", "nginx"];
const FAULTS: [&str; 21] = [
    "cut",
    "cut",
    "crash",
    "stop",
    "store-lost",
    "storm",
    "limit",
    "weights",
    "roll",
    "database",
    "store-full",
    "gateway-lost",
    "log-lost",
    "certificates",
    "certificates-end",
    "disk-full",
    "store-frozen",
    "slow",
    "store-flushed",
    "restart",
    "renamed",
];
/// The part of plans in which a region comes or goes, and nothing else happens.
const REGIONS_CHANGE: f64 = 0.12;
/// Faults beside which nothing else happens.
const ALONE: [&str; 4] = ["\"roll\"", "\"certificates-end\"", "\"restart\"", "\"renamed\""];
/// Seconds before the first fault, and after the last.
const QUIET: u64 = 4;

/// The scenario file of this seed, in some of which clocks are wrong if they `can_be_moved`.
pub(super) fn story(seed: u64, can_be_moved: bool) -> String {
    let mut dice = Dice::new(seed, PURPOSE);
    let pick = |dice: &mut Dice, from: &[&'static str]| dice.pick(from).copied().unwrap_or_default();
    let regions = dice.between(2, 4);
    // A cluster is six servers a region, so few regions have one.
    let few = regions == 2;
    let kinds: &[&'static str] = if few { &STORES_OF_FEW } else { &STORES };
    let store = pick(&mut dice, kinds);
    let mixed = dice.chance(MIXED);
    let stores: Vec<&'static str> =
        (0..regions).map(|_| if mixed { pick(&mut dice, kinds) } else { store }).collect();
    let of_region = |store: &&'static str| if *store == "memory" { 1 } else { dice.between(1, 2) };
    let daemons: Vec<u64> = stores.iter().map(of_region).collect();
    let gateway = pick(&mut dice, &GATEWAYS);
    let database = dice.chance(0.3);
    let way = pick(&mut dice, &["gossip", "gossip", "split", "escrow", "escrow"]);
    let algorithm = pick(&mut dice, &ALGORITHMS);
    let limit = dice.between(6, 30) * 10;
    let mut drawn = Drawn {
        dice,
        regions,
        limit,
        daemons: daemons.clone(),
        database,
        gateway,
        stores: stores.clone(),
        way,
    };
    let (mut faults, ends) = match drawn.change_of_regions() {
        Some(change) => change,
        None => drawn.faults(),
    };
    let mut clocks = Dice::new(seed, PURPOSE_OF_CLOCKS);
    let wrong = if can_be_moved { clocks_of(&mut clocks, regions, ends) } else { WrongClocks::default() };
    faults += &wrong.step;
    let dice = &mut drawn.dice;
    let mut text = format!(
        "name = \"Drawn from seed {seed}\"\nabout = \"`sim chaos --draw 1 --seed {seed}` draws it.\"\nlength = \"{}s\"\nseed = {seed}\n\
         store = \"{store}\"\ndatabase = {database}\ngateway = \"{gateway}\"\nways = [\"{way}\"]\n",
        ends + 2 * QUIET
    );
    let named = daemons.iter().enumerate().map(|(region, daemons)| {
        let clock = wrong.ahead.as_ref().filter(|(of, _)| *of == region).map_or("", |(_, clock)| clock);
        let own = stores.get(region).filter(|own| **own != store);
        let own = own.map_or_else(String::new, |own| format!(", store = \"{own}\""));
        format!("{{ name = \"region-{region}\", daemons = {daemons}{own}{clock} }}")
    });
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

/// A region whose clock is wrong from the start, and one that is set while all runs, as a scenario file has
/// them.
#[derive(Debug, Default)]
struct WrongClocks {
    ahead: Option<(usize, String)>,
    step: String,
}

/// Clocks are wrong in a fifth of the stories, the last fault of which is over in this second.
fn clocks_of(dice: &mut Dice, regions: u64, ends: u64) -> WrongClocks {
    let mut wrong = WrongClocks::default();
    if !dice.chance(0.2) {
        return wrong;
    }
    let sign = |dice: &mut Dice| if dice.chance(0.5) { "-" } else { "" };
    if dice.chance(0.7) {
        let region = crate::number::index(dice.below(regions));
        let clock = format!(
            ", ahead = \"{}{}ms\", drift_ppm = {}{}",
            sign(dice),
            dice.between(1, 500),
            sign(dice),
            dice.between(1, 200)
        );
        wrong.ahead = Some((region, clock));
    }
    if wrong.ahead.is_none() || dice.chance(0.3) {
        let (at, lasts) = (dice.between(QUIET, ends), dice.between(2, QUIET));
        wrong.step = format!(
            "[[faults]]\nat = \"{at}s\"\nfor = \"{lasts}s\"\nkind = \"clock-step\"\nregion = \"region-{}\"\nby = \"{}{}ms\"\n",
            dice.below(regions),
            sign(dice),
            dice.between(50, 800)
        );
    }
    wrong
}

struct Drawn {
    dice: Dice,
    regions: u64,
    limit: u64,
    daemons: Vec<u64>,
    database: bool,
    gateway: &'static str,
    stores: Vec<&'static str>,
    way: &'static str,
}

impl Drawn {
    /// A region that is added or removed, and the second in which that is over; `None` where no region can be
    /// in this world, or none is.
    fn change_of_regions(&mut self) -> Option<(String, u64)> {
        if !self.dice.chance(REGIONS_CHANGE) || self.regions < 3 || self.gateway != "direct" {
            return None;
        }
        let kinds: &[&str] = if self.way == "gossip" { &["join"] } else { &["join", "leave"] };
        let kind = self.dice.pick(kinds).copied().unwrap_or_default();
        let listed = kind == "leave" || self.dice.chance(0.7);
        let order = if listed { "" } else { "listed = false\n" };
        let text = format!(
            "[[faults]]\nat = \"{QUIET}s\"\nkind = \"{kind}\"\nregion = \"region-{}\"\n{order}",
            self.dice.below(self.regions)
        );
        // Shares move first, and the daemons of the others are restarted one after the other.
        let takes = if listed { 8 + 6 * self.daemons.iter().sum::<u64>() } else { QUIET };
        Some((text, QUIET + takes))
    }

    /// Up to three faults, and the second in which the last one is over. A fault begins before the one before
    /// is over, or when regions had time to recover.
    fn faults(&mut self) -> (String, u64) {
        let (mut text, mut at, mut ends) = (String::new(), QUIET, QUIET);
        for _ in 0..self.dice.between(1, 3) {
            let lasts = self.dice.between(2, 5);
            let Some((fault, takes)) = self.fault(lasts) else { continue };
            // A daemon that stands still cannot be restarted in order, nor one be started with a certificate
            // that has ended, so nothing else happens meanwhile.
            let alone = ALONE.iter().any(|kind| fault.contains(kind));
            if alone && at < ends {
                continue;
            }
            let _ = write!(text, "[[faults]]\nat = \"{at}s\"\n{fault}");
            ends = ends.max(at + takes);
            at = if self.dice.chance(0.3) && !alone { at + 1 } else { ends + QUIET };
        }
        (text, ends)
    }

    /// A fault without its beginning, and the seconds that it takes; `None` where this world knows nothing
    /// like it.
    fn fault(&mut self, lasts: u64) -> Option<(String, u64)> {
        let kind = self.dice.pick(&FAULTS).copied().unwrap_or_default();
        let region = self.dice.below(self.regions);
        let place = crate::number::index(region);
        let daemons = self.daemons.get(place).copied().unwrap_or(1);
        let store = self.stores.get(place).copied().unwrap_or_default();
        let of_daemon = format!("region = \"region-{region}\"\ndaemon = {}\n", self.dice.below(daemons));
        let text = match kind {
            "cut" | "slow" => {
                let direction = self.dice.pick(&["both", "both", "in", "out"]).copied().unwrap_or_default();
                let by = match kind {
                    "slow" => format!("by = \"{}ms\"\n", self.dice.between(20, 300)),
                    _ => String::new(),
                };
                format!(
                    "for = \"{lasts}s\"\nkind = \"{kind}\"\n{by}regions = [\"region-{region}\"]\ndirection = \"{direction}\"\n"
                )
            }
            "crash" | "stop" => format!("for = \"{lasts}s\"\nkind = \"{kind}\"\n{of_daemon}"),
            "store-lost" if store == "cluster" => match self.dice.chance(0.5) {
                true => {
                    format!("for = \"{lasts}s\"\nkind = \"primary-lost\"\nregion = \"region-{region}\"\n")
                }
                false => format!("kind = \"failover\"\nregion = \"region-{region}\"\n"),
            },
            "store-flushed" if store != "memory" => {
                format!("kind = \"store-flushed\"\nregion = \"region-{region}\"\n")
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
            "roll" if self.gateway == "direct" || self.daemons.iter().all(|daemons| *daemons > 1) => {
                return Some((
                    "kind = \"roll\"\n".to_owned(),
                    self.restart() * self.daemons.iter().sum::<u64>(),
                ));
            }
            "restart" | "renamed" if self.gateway == "direct" || daemons > 1 => {
                return Some((format!("kind = \"{kind}\"\n{of_daemon}"), self.restart()));
            }
            "store-full" | "store-frozen" if store == "redis" => {
                format!("for = \"{lasts}s\"\nkind = \"{kind}\"\nregion = \"region-{region}\"\n")
            }
            "disk-full" => format!("for = \"{lasts}s\"\nkind = \"disk-full\"\n{of_daemon}"),
            "certificates-end" => {
                format!(
                    "for = \"{lasts}s\"\nkind = \"certificates-end\"\nregion = \"region-{region}\"\nafter = \"1s\"\n"
                )
            }
            "gateway-lost" if self.gateway != "direct" => {
                format!("for = \"{lasts}s\"\nkind = \"gateway-lost\"\nregion = \"region-{region}\"\n")
            }
            "log-lost" => format!("kind = \"log-lost\"\n{of_daemon}"),
            "certificates" => "kind = \"certificates\"\n".to_owned(),
            "database" if self.database => {
                let kinds = ["database-lost", "database-frozen", "database-read-only"];
                let kind = self.dice.pick(&kinds).copied().unwrap_or_default();
                format!("for = \"{lasts}s\"\nkind = \"{kind}\"\n")
            }
            _ => return None,
        };
        Some((text, lasts))
    }
}

impl Drawn {
    /// The seconds that the restart of a daemon in good order takes.
    fn restart(&self) -> u64 {
        if self.gateway == "envoy" { 9 } else { 6 }
    }
}

/// The names and texts of so many stories, beginning with this seed.
pub(super) fn stories(times: u32, first: u64, can_be_moved: bool) -> impl Iterator<Item = (String, String)> {
    (0..u64::from(times)).map(move |next| {
        let seed = first + next;
        (format!("drawn-{seed}"), story(seed, can_be_moved))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::clock::any_is_wrong;
    use crate::number::place;
    use crate::plan::read;

    #[test]
    fn a_thousand_seeds_draw_every_fault_store_gateway_and_policy() {
        let all: Vec<String> = (0..1_000).map(|seed| story(seed, true)).collect();
        let is_drawn = |text: &str| all.iter().any(|story| story.contains(text));
        for kind in crate::plan::fault_words() {
            assert!(is_drawn(&format!("kind = \"{kind}\"")), "no seed draws the fault {kind}");
        }
        for word in ["memory", "redis", "cluster", "direct", "envoy", "nginx", "gossip", "split", "escrow"] {
            assert!(is_drawn(&format!("\"{word}\"")), "no seed draws {word}");
        }
        for word in PARTITIONS.iter().chain(&ALGORITHMS) {
            assert!(is_drawn(&format!("\"{word}\"")), "no seed draws {word}");
        }
        for word in ["direction = \"in\"", "direction = \"out\"", "listed = false", "drift_ppm", "ahead"] {
            assert!(is_drawn(word), "no seed draws {word}");
        }
    }

    #[test]
    fn a_thousand_seeds_draw_stories_that_can_be_read_and_repeat() {
        let (mut faults, mut wrong) = (0, 0);
        for seed in 0..1_000 {
            let text = story(seed, true);
            let plan = read("drawn.toml", &text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
            assert_eq!(text, story(seed, true));
            faults += place(plan.faults.len());
            wrong += u64::from(any_is_wrong(&plan));
            if !any_is_wrong(&plan) {
                assert_eq!(text, story(seed, false));
            }
            let right = read("drawn.toml", &story(seed, false)).unwrap();
            assert!(!any_is_wrong(&right), "{text}");
        }
        assert!(faults > 1_000, "{faults} faults in a thousand stories");
        assert!((100..300).contains(&wrong), "clocks are wrong in {wrong} of a thousand stories");
    }
}
