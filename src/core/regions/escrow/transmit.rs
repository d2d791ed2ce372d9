//! Makes frames for other daemons: bounded in size and number, always with the newest that is known.

use super::super::super::time::Timestamp;
use super::super::super::wire::rights::{
    LevelTotals, MovedTotals, PlacesTotals, RIGHTS_ENTRIES_MAX, RightsFrame, Statement, Transfer,
    WindowTotals,
};
use super::super::membership::{RegionId, Regions};
use super::super::{FRAME_BYTES_MAX, NodeName};
use super::bucket::SentTransfer;
use super::ledger::Ledger;
use super::{Escrow, EscrowSafety};

/// What a frame takes without entries, and the numbers of each kind of entry at most in the usual case.
const HEAD_BYTES: usize = 16;
const STATEMENT_BYTES: usize = 60;
const TRANSFER_BYTES: usize = 40;
const TOTAL_BYTES: usize = 16;

impl Escrow {
    /// The next frame and whom to send it to, or `None` if there is none to send now.
    pub fn poll_transmit(&mut self, now: Timestamp) -> Option<(NodeName, RightsFrame)> {
        let first = self.turn % self.links.len().max(1);
        let due = |(place, (name, link)): (usize, (&NodeName, &mut super::EscrowLink))| {
            link.due(now).then(|| (place, name.clone(), link.region))
        };
        let (place, name, region) = match self.links.iter_mut().enumerate().skip(first).find_map(due) {
            Some(found) => found,
            None => self.links.iter_mut().enumerate().take(first).find_map(due)?,
        };
        self.turn = place + 1;
        let frame = self.frame_for(now, &name, region);
        Some((name, frame))
    }

    fn frame_for(&mut self, now: Timestamp, to: &NodeName, region: RegionId) -> RightsFrame {
        let mut frame = RightsFrame { sent: now, statements: Vec::new(), transfers: Vec::new() };
        let mut bytes = HEAD_BYTES;
        while let Some(id) = self.links.get_mut(to).and_then(super::EscrowLink::next_owed) {
            let (statement, transfer) = (self.statement(now, id, region), self.transfer(now, id, region));
            let more =
                statement.as_ref().map_or(0, statement_bytes) + transfer.as_ref().map_or(0, transfer_bytes);
            let entries = frame.statements.len() + frame.transfers.len();
            if entries > 0 && (bytes + more > FRAME_BYTES_MAX || entries + 2 > RIGHTS_ENTRIES_MAX) {
                if let Some(link) = self.links.get_mut(to) {
                    link.put_back(id);
                }
                break;
            }
            bytes += more;
            if let Some(bucket) = self.bucket_mut(id) {
                let partner = bucket.partner_mut(region);
                (partner.owes_statement, partner.owes_transfer) = (false, false);
                if let Some(said) = &statement {
                    partner.said = Some((said.totals.kind(), said.wanted <= said.free));
                }
                if let Some(transfer) = &transfer {
                    let (kind, permits) = (transfer.kind, transfer.permits);
                    partner.sent = Some(SentTransfer { at: now, kind, permits });
                }
            }
            if transfer.is_some() {
                self.schedule(now, id);
            }
            frame.statements.extend(statement);
            frame.transfers.extend(transfer);
        }
        let empty = frame.statements.is_empty() && frame.transfers.is_empty();
        if let Some(link) = self.links.get_mut(to) {
            link.departed(now, empty);
        }
        self.tally.frames_out = self.tally.frames_out.saturating_add(1);
        self.tally.entries_out = self
            .tally
            .entries_out
            .saturating_add(u64::try_from(frame.statements.len() + frame.transfers.len()).unwrap_or(0));
        frame
    }

    /// What is to be said of a bucket now.
    fn statement(&self, now: Timestamp, id: usize, region: RegionId) -> Option<Statement> {
        let bucket = self.bucket(id)?;
        let balance = bucket.balance.as_ref()?;
        if !bucket.partner(region)?.owes_statement {
            return None;
        }
        let (kind, whole) = (balance.ledger.kind(), region != Regions::OWN);
        Some(Statement {
            rule: bucket.key.rule.clone(),
            identity: bucket.key.identity.clone(),
            stamp: now,
            session: balance.ledger.session(),
            free: balance.free(),
            demand: if whole { bucket.demand(now) } else { bucket.own_demand(now) },
            wanted: if whole { bucket.wanted(kind) } else { bucket.own_wanted(kind) },
            totals: totals_of(&balance.ledger, whole, &self.config.safety),
            limit: bucket.held_limit(now),
        })
    }

    fn transfer(&self, now: Timestamp, id: usize, region: RegionId) -> Option<Transfer> {
        let bucket = self.bucket(id)?;
        let partner = bucket.partner(region)?;
        if !partner.owes_transfer {
            return None;
        }
        let permits = self.unacknowledged(now, id, region)?;
        let ledger = &bucket.current(now)?.ledger;
        Some(Transfer {
            rule: bucket.key.rule.clone(),
            identity: bucket.key.identity.clone(),
            kind: ledger.kind(),
            session: ledger.session(),
            to_session: self.receiving_session(bucket, ledger, region),
            permits,
            limit: bucket.held_limit(now),
        })
    }
}

/// The totals that are told of a ledger: to another region all that moved (`whole`), to a sibling none.
fn totals_of(ledger: &Ledger, whole: bool, safety: &EscrowSafety) -> MovedTotals {
    let none = Vec::new;
    match ledger {
        Ledger::Window(ledger) if whole => MovedTotals::Window(WindowTotals {
            window: ledger.window,
            taken: ledger.taken.clone(),
            given: ledger.given.clone(),
            closed: ledger.closed,
        }),
        Ledger::Window(ledger) => {
            let window = ledger.window;
            MovedTotals::Window(WindowTotals { window, taken: none(), given: none(), closed: None })
        }
        Ledger::Level(ledger) if whole => MovedTotals::Level(ledger.totals(safety)),
        Ledger::Level(_) => MovedTotals::Level(LevelTotals { settled: none(), kept: none() }),
        Ledger::Places(ledger) if whole => MovedTotals::Places(ledger.totals()),
        Ledger::Places(_) => MovedTotals::Places(PlacesTotals { taken: none(), given: none() }),
    }
}

fn statement_bytes(said: &Statement) -> usize {
    let totals = said.totals.lists().into_iter().flatten().map(|total| total.region.len() + TOTAL_BYTES);
    STATEMENT_BYTES
        + said.rule.domain.len()
        + said.rule.name.len()
        + said.identity.len()
        + totals.sum::<usize>()
}

fn transfer_bytes(sent: &Transfer) -> usize {
    TRANSFER_BYTES + sent.rule.domain.len() + sent.rule.name.len() + sent.identity.len()
}

/// About how many bytes a frame takes on the wire, without the network's own headers.
#[must_use]
pub fn rights_frame_bytes(frame: &RightsFrame) -> usize {
    let statements: usize = frame.statements.iter().map(statement_bytes).sum();
    let transfers: usize = frame.transfers.iter().map(transfer_bytes).sum();
    HEAD_BYTES + statements + transfers
}
