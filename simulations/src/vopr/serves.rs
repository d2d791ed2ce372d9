//! After peace everyone serves: users whom nobody has seen yet, and those whose windows are over.

use tidegate::core::time::Span;

use super::case::STEP;
use super::check::daemons;
use super::intervals::Intervals;
use super::play::Game;
use crate::model::Model;
use crate::model::shell::windowed;
use crate::number::place;
use crate::plan::{Plan, Way};

/// Eighths of a window within which somebody serves a user whose own limit has no whole permit for every
/// region. Not halves: whoever asks in all regions twice a window, while their clocks differ by half of one,
/// may find the only permit on its way each time.
const EIGHTHS: u32 = 16;
/// So often, fifty milliseconds apart, a daemon is asked whose store waits for words of other regions.
const WORDS: u32 = 40;

fn served_by_anybody(game: &mut Game<'_>, user: u64) -> Result<bool, String> {
    let mut served = false;
    for at in 0..game.world.daemons().len() {
        served |= game.request(at, user, 1)?;
    }
    Ok(served)
}

/// A user whom nobody has seen yet is served by every daemon whose region holds a share of the limit, and all
/// others somewhere once their windows are over, whatever moved in them.
pub(super) fn everyone_serves(game: &mut Game<'_>) -> Result<(), String> {
    let plan: &Plan = &game.world.plan;
    let weights: u64 = plan.regions.iter().map(|region| u64::from(region.weight)).sum();
    let smallest = plan.regions.iter().map(|region| u64::from(region.weight)).min().unwrap_or(0);
    let asked = daemons(game);
    let enough = |permits: u32| u64::from(permits) * smallest >= weights * asked;
    // Without windows a small burst has no whole permit for everybody.
    if !enough(plan.rule.limit) || !windowed(game.case.plan.rule.algorithm) {
        return Ok(());
    }
    // A memory of what slides owns nothing before the others have said what they have of it, and they say so
    // when they are asked.
    let lends = game.case.way == Way::Escrow && Intervals::judges(game.case.plan.rule.algorithm);
    for at in 0..game.world.daemons().len() {
        let stranger = 1_000 + place(at);
        let mut served = game.request(at, stranger, 1)?;
        for _ in 0..if lends { WORDS } else { 0 } {
            if served {
                break;
            }
            (0..10).for_each(|_| game.world.step(STEP));
            served = game.request(at, stranger, 1)?;
        }
        if !served {
            return Err(format!("daemon {at} refuses a user whom nobody has seen yet"));
        }
    }
    if game.case.way == Way::Gossip {
        return Ok(());
    }
    let window = plan_window(game);
    let own = game.case.faults.own > 0.0 || !game.case.own.is_empty();
    for user in game.users() {
        let newest = game.books.world.range((user, 0)..(user + 1, 0)).map(|((_, window), _)| *window).max();
        // The permits that were used of a sliding bucket count in the window after it too.
        let counts = u64::from(Intervals::judges(game.case.plan.rule.algorithm));
        if newest.is_some_and(|newest| newest + counts >= window) {
            continue;
        }
        // Permits under way when a share shrank below what is lent are of use to nobody for a while.
        if lends && game.case.faults.reload > 0.0 {
            continue;
        }
        // Rights that one region gives are of use to another only while its clock is in the same window.
        if own && clocks_apart(game).0 > game.world.plan.rule.window.0 / 4 {
            continue;
        }
        // Its rights may lie wherever it was asked for last. The last permit of a user's own limit may be
        // under way when all are asked at once, as of a rule's that is too small; and one that has just grown
        // counts by what it was before.
        let mut served = served_by_anybody(game, user)?;
        let eighths = if own || lends { EIGHTHS } else { 0 };
        for _ in 0..eighths {
            if served {
                break;
            }
            let steps = game.world.plan.rule.window.0 / STEP.0 / 8 + 1;
            (0..steps).for_each(|_| game.world.step(STEP));
            served = served_by_anybody(game, user)?;
        }
        if !served {
            return Err(format!("nobody serves user {user} in a window in which nothing was used"));
        }
    }
    Ok(())
}

/// Returns how far the clocks of two regions are apart at most.
fn clocks_apart(game: &Game<'_>) -> Span {
    let clocks = || (0..game.world.plan.regions.len()).map(|region| game.world.clock(region));
    clocks().max().zip(clocks().min()).map_or(Span::ZERO, |(last, first)| last.since(first))
}

/// The window that every region is in, or a later one.
fn plan_window(game: &Game<'_>) -> u64 {
    let world = &game.world;
    let regions = 0..world.plan.regions.len();
    let window = |region| world.clock(region).window_index(world.plan.rule.window);
    regions.map(window).min().unwrap_or(0)
}
