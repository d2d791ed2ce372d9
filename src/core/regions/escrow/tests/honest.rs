//! What a region can have, and what is not believed of it.

use super::*;

#[test]
fn what_a_region_can_not_have_is_not_taken_from_it() {
    let mut world = EscrowWorld::new(3, 300, CALM, EscrowSafety::ALL);
    for _ in 0..20 {
        world.request(1, 30);
        world.tick();
    }
    // A third region might have given it that, and not be heard yet.
    world.send(0, 1, 190);
    let counted = |world: &EscrowWorld| {
        let tally = world.machine(1).tally();
        (tally.early, tally.beyond)
    };
    assert_eq!(counted(&world), (1, 0));
    world.send(0, 1, 250);
    assert_eq!(counted(&world), (1, 1), "that is more than the third region has");
    // Region 0 gives what it can have for some time yet, and is believed as long.
    let begun = world.now();
    while counted(&world).1 < 2 {
        world.tick();
        world.send(0, 1, 190);
        assert!(world.now().since(begun) < Span::from_secs(8), "by now it would be known");
    }
    assert!(world.balance(1).ledger.budget() <= 300);
}

#[test]
fn what_was_sent_of_a_share_that_has_just_become_smaller_is_taken() {
    let mut world = EscrowWorld::new(3, 300, CALM, EscrowSafety::ALL);
    world.press(1, 30, 20);
    let mut global = Global::new(Mode::Escrow);
    global.shares = [("r0", 1), ("r1", 8), ("r2", 1)].map(|(name, weight)| (name.to_owned(), weight)).into();
    let rule = WorldRule { name: rule_name(), algorithm: world.algorithm, limit: world.limit, global };
    let now = world.now();
    world.machine_mut(1).handle_rules(now, &[rule]);
    // Its share was a hundred.
    let took = |world: &EscrowWorld| world.balance(1).ledger.taken_from("r0", 1);
    let before = took(&world);
    assert!(before < 99);
    world.send(0, 1, 99);
    assert_eq!((took(&world), world.machine(1).tally().beyond), (99, 0));
}

#[test]
fn names_that_change_with_every_deployment_never_shut_out_the_newest() {
    let mut world = EscrowWorld::new(2, 100, CALM, EscrowSafety::ALL);
    let now = world.now();
    let machine = world.machine_mut(0);
    let frame = || RightsFrame { sent: now, statements: Vec::new(), transfers: Vec::new() };
    for pod in 0..crate::regions::LINKS_MAX + 10 {
        let name = NodeName { region: "r1".to_owned(), node: format!("pod-{pod}") };
        assert!(machine.handle_frame(now, &name, frame()).is_ok(), "pod {pod}");
    }
}

#[test]
fn rights_of_another_way_to_count_are_passed_over_and_counted() {
    let mut world = EscrowWorld::new(2, 100, CALM, EscrowSafety::ALL);
    world.press(1, 20, 20);
    let now = world.clock(1);
    let sessions = [0, 1].map(|place| world.balance(place).ledger.session());
    let before = world.balance(1);
    for kind in [RightKind::Level, RightKind::Places] {
        let totals = match kind {
            RightKind::Places => MovedTotals::Places(PlacesTotals { taken: Vec::new(), given: Vec::new() }),
            _ => MovedTotals::Level(LevelTotals { settled: Vec::new(), kept: Vec::new() }),
        };
        let said = Statement {
            rule: rule_name(),
            identity: key().identity,
            stamp: now,
            session: sessions[0],
            free: 0,
            demand: 0,
            wanted: 50,
            totals,
            limit: CountedLimit::default(),
        };
        let sent = Transfer {
            rule: rule_name(),
            identity: key().identity,
            kind,
            session: sessions[0],
            to_session: sessions[1],
            permits: 5,
            limit: CountedLimit::default(),
        };
        let frame = RightsFrame { sent: now, statements: vec![said], transfers: vec![sent] };
        world.deliver(0, 1, frame);
    }
    assert_eq!(world.machine(1).tally().unknown_rules, 4);
    assert_eq!(world.balance(1), before);
}

#[test]
fn what_a_store_tells_of_another_way_to_count_is_not_believed() {
    let mut world = EscrowWorld::new(2, 100, CALM, EscrowSafety::ALL);
    world.press(1, 20, 20);
    let (now, machine) = (world.now(), world.machine_mut(1));
    let before = machine.status(now);
    let ledger = Ledger::Level(level::LevelLedger::new(now));
    machine.handle_balance(now, &key(), Some(StepResult { ledger, used: 0 }));
    assert_eq!(machine.status(now).rules, before.rules);
}
