//! Rights of a calendar's windows, over midnight and over a day on which clocks are set.

use super::*;
use crate::calendar::{Calendar, CalendarName, CalendarPeriod, Windows};

#[test]
fn rights_of_a_day_of_23_hours_move_and_are_never_exceeded_and_end_at_its_midnight() {
    let name = CalendarName { period: CalendarPeriod::Day, time_zone: "Europe/Berlin".into(), starts_on: 0 };
    let calendar: &Calendar = Box::leak(Box::new(Calendar::new(name).unwrap()));
    let windows = Windows::from(calendar);
    // 2024-03-31.
    let day = windows.index(Timestamp(1_711_879_200_000_000));
    assert_eq!(windows.length_of(day), Span::from_secs(23 * 3_600));
    let limit =
        Limit { permits: 300, window: calendar.longest(), calendar: Some(calendar), burst: 300, queue: 0 };
    for slow in [false, true] {
        let mut world = EscrowWorld::held_to(limit, Algorithm::FixedWindow, 3, CALM, EscrowSafety::ALL);
        world.set_slow(slow);
        // Three seconds of each day, and three of the next one.
        for (turn, place) in [(day, 0), (day + 1, 1), (day + 2, 2)] {
            world.world.now = windows.start(turn) - Span::from_secs(3);
            world.press(place, 1, 600);
            world.check().unwrap();
        }
        let turns: Vec<u64> = world.admitted.keys().copied().collect();
        assert_eq!(turns, [day - 1, day, day + 1, day + 2]);
        // A third of it is minted where it is asked for.
        for turn in [day, day + 1, day + 2] {
            let admitted = world.admitted[&turn];
            assert!((150..=300).contains(&admitted), "{admitted} on day {turn}");
        }
    }
}
