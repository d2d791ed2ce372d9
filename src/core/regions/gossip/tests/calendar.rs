//! Reports of a calendar's windows, over midnight and over a day on which clocks are set.

use super::*;
use crate::calendar::{Calendar, CalendarName, CalendarPeriod, Windows};

#[test]
fn regions_tell_of_the_same_day_until_its_midnight_and_of_the_next_one_from_then_on() {
    let name_of =
        CalendarName { period: CalendarPeriod::Day, time_zone: "Europe/Berlin".into(), starts_on: 0 };
    let calendar: &Calendar = Box::leak(Box::new(Calendar::new(name_of).unwrap()));
    let windows = Windows::from(calendar);
    // 2024-03-31, which has 23 hours.
    let day = windows.index(Timestamp(1_711_879_200_000_000));
    let mut rule = rule(Algorithm::FixedWindow, 1_000, calendar.longest(), OnPartition::default());
    rule.limit.calendar = Some(calendar);
    let (a, b) = (name("a", "1"), name("b", "1"));
    let mut cluster = GossipCluster::new(&[("a", "1"), ("b", "1")], &rule);
    for (day, user) in [(day, "u"), (day + 1, "v")] {
        cluster.set_clocks(windows.end(day) - Span::from_secs(2));
        cluster.meet();
        cluster.admit(&a, user, day, 30);
        cluster.admit(&b, user, day, 12);
        cluster.run(Span::from_millis(500));
        let view = |cluster: &GossipCluster| *window_of(&cluster.views(&b)[&key(user)]);
        assert_eq!((view(&cluster).window, view(&cluster).others), (day, 30));
        cluster.run(Span::from_secs(2));
        cluster.admit(&a, user, day + 1, 7);
        cluster.admit(&b, user, day + 1, 1);
        cluster.run(Span::from_millis(500));
        assert_eq!((view(&cluster).window, view(&cluster).others), (day + 1, 7));
        let budgets: u32 = [&a, &b].iter().map(|who| window_of(&cluster.views(who)[&key(user)]).budget).sum();
        assert!(budgets <= 1_000, "{budgets}");
        assert_eq!(cluster.believed(&b, user, day), regions(&[("a", 30), ("b", 12)]));
    }
}
