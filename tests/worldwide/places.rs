//! Places of a `concurrency` rule under `escrow`: lent to where they are wanted, and never more holders than
//! places, by the books of those who hold.

use std::time::{Duration, Instant};

use serde_json::json;

use super::world::{Plan, Store, World};

const LIMIT: usize = 12;
const HOLD: Duration = Duration::from_secs(2);
const RULES: &str = "[[rules]]\nname = \"world\"\nper = [\"who\"]\nalgorithm = \"concurrency\"\nlimit = 12\nhold = \"2s\"\n\
                     [rules.global]\nmode = \"escrow\"\n";

/// One who holds a place, as it knows itself.
struct Held {
    lease: String,
    place: usize,
    /// When it asked for what it holds: its hold does not end before a hold after that.
    since: Instant,
}

struct Holders {
    world: World,
    held: Vec<Held>,
    most: usize,
}

impl Holders {
    fn new(store: Store) -> Self {
        Self::with_rules(store, RULES)
    }

    fn with_rules(store: Store, rules: &str) -> Self {
        let rtt = Duration::from_millis(40);
        let plan = Plan { regions: 3, rtt, store, limit: LIMIT as u64, global: "" };
        Self { world: World::with_rules(plan, rules), held: Vec::new(), most: 0 }
    }

    /// Each of these regions asks for a place until it is refused, and whoever holds one there keeps it.
    fn turn(&mut self, busy: &[usize]) {
        for place in busy {
            let daemon = &self.world.daemons[*place];
            for _ in 0..4 {
                let since = Instant::now();
                let answer = daemon
                    .post("/v1/acquire", &json!({ "attributes": { "who": "one", "user": "u" } }))
                    .json();
                if answer["allowed"] != true {
                    break;
                }
                let lease = answer["lease"].as_str().unwrap().to_owned();
                self.held.push(Held { lease, place: *place, since });
            }
            self.judge();
            let daemon = &self.world.daemons[*place];
            for one in self.held.iter_mut().filter(|one| one.place == *place) {
                let since = Instant::now();
                if since - one.since > HOLD / 3 {
                    let answer = daemon.post("/v1/renew", &json!({ "lease": one.lease })).json();
                    if answer["renewed"] == true {
                        one.since = since;
                    }
                }
            }
        }
        self.judge();
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Whoever asked less than a hold ago holds for certain: no noise of this machine excuses one too many.
    fn judge(&mut self) {
        self.held.retain(|one| one.since.elapsed() < HOLD);
        self.most = self.most.max(self.held.len());
        assert!(self.held.len() <= LIMIT, "{} hold {LIMIT} places", self.held.len());
    }

    fn of(&self, place: usize) -> usize {
        self.held.iter().filter(|one| one.place == place).count()
    }

    fn give_all_back(&mut self) {
        for one in std::mem::take(&mut self.held) {
            let _ = self.world.daemons[one.place].post("/v1/release", &json!({ "lease": one.lease }));
        }
    }

    /// Asks in one region until it has all of the places.
    fn gather(&mut self, place: usize) {
        let begun = Instant::now();
        while self.of(place) < LIMIT {
            assert!(begun.elapsed() < Duration::from_secs(40), "{} of {LIMIT} places", self.of(place));
            self.turn(&[place]);
        }
        eprintln!("region {place} had all places after {:?}", begun.elapsed());
    }

    fn turns(&mut self, busy: &[usize], length: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < length {
            self.turn(busy);
        }
    }
}

fn places_go_where_they_are_wanted(store: Store) {
    let mut holders = Holders::new(store);
    holders.gather(2);
    holders.give_all_back();
    holders.gather(0);
    let lent = "tidegate_rights_moved_total{from=\"us-east\",to=\"eu-west\"}";
    assert!(holders.world.daemons[1].metric(lent) > Some(0.0));
    // The daemon publishes its books a moment after they changed.
    let begun = Instant::now();
    loop {
        let regions = holders.world.daemons[0].get("/v1/regions").json();
        if regions["rights"][0]["taken"]["us-east"].as_u64() > Some(0) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{regions}");
        holders.turn(&[0]);
    }
    // What a killed daemon gave and had is not given twice, whoever remembers it.
    holders.world.daemons[1].kill();
    holders.turns(&[0, 2], Duration::from_secs(1));
    holders.world.daemons[1].start_again();
    holders.world.wait_until_connected();
    holders.turns(&[0, 1, 2], Duration::from_secs(4));
    holders.world.cut(2);
    holders.turns(&[0, 1, 2], Duration::from_secs(4));
    holders.world.heal(2);
    holders.turns(&[0, 1, 2], Duration::from_secs(2));
    holders.give_all_back();
    // Nobody gives back what was lost on the way: it ends by itself.
    holders.gather(1);
    assert_eq!(holders.most, LIMIT);
}

#[test]
fn places_go_where_they_are_wanted_between_regions() {
    places_go_where_they_are_wanted(Store::Memory);
}

#[test]
fn places_go_where_they_are_wanted_between_regions_that_count_in_redis() {
    places_go_where_they_are_wanted(Store::Redis);
}

/// The rule has three places, one for each region, and the user has twelve.
fn places_of_a_raised_limit_are_lent(store: Store) {
    let own = "[[users]]\nid = \"u\"\noverrides = { world = { limit = 12 } }\n";
    let mut holders = Holders::with_rules(store, &(RULES.replace("limit = 12", "limit = 3") + own));
    holders.gather(2);
    holders.give_all_back();
    holders.gather(0);
}

#[test]
fn places_of_a_raised_limit_are_lent_between_regions() {
    places_of_a_raised_limit_are_lent(Store::Memory);
}

#[test]
fn places_of_a_raised_limit_are_lent_between_regions_that_count_in_redis() {
    places_of_a_raised_limit_are_lent(Store::Redis);
}
