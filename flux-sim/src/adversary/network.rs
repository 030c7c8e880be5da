//! What the network carries: puts and the signal behind them, until they are delivered.

use super::{Acting, Late, Play};
use crate::error::{Actor, Error, Fault};
use crate::memory::Memory;
use crate::signal::raise;
use flux_ir::Span;
use flux_ir::eval::Change;
use flux_ir::program::{AgentId, SignalId};

/// Who sends: rank, agent, CTA, and whether it is the agent's exit.
pub(super) type Sender = (u32, AgentId, u32, bool);

/// A sender and the rank it sends to. Signals of one link arrive in their order; its puts, and other links, in any.
pub(super) type Link = (Sender, u32);

/// A signal on its way, with the puts ahead of it.
pub(super) struct Flight<'r, 'a> {
    link: Link,
    actor: Actor<'r>,
    memory: &'r Memory<'a>,
    puts: Vec<Late>,
    signal: (SignalId, u32, Change),
}

impl<'r, 'a> Acting<'r, 'a> {
    fn sender(&self) -> Sender {
        (self.actor.rank, self.id, self.actor.cta, self.in_exit)
    }

    /// Sends a signal behind what was put to that rank.
    pub(super) fn send(&mut self, rank: u32, signal: (SignalId, u32, Change)) -> Flight<'r, 'a> {
        let (there, rest) = self.outgoing.drain(..).partition(|(to, _)| *to == rank);
        self.outgoing = rest;
        let there: Vec<(u32, Late)> = there;
        let puts = there.into_iter().map(|(_, put)| put).collect();
        let (link, actor, memory) = ((self.sender(), rank), self.actor, self.memory);
        Flight { link, actor, memory, puts, signal }
    }

    /// Reads the sources of all that it has put over the network.
    pub(super) fn flush(&mut self, flights: &mut [Flight<'r, 'a>]) -> Result<(), Error> {
        let sender = self.sender();
        for (_, put) in &mut self.outgoing {
            put.read_source(self.memory, &self.actor)?;
        }
        for flight in flights.iter_mut().filter(|flight| flight.link.0 == sender) {
            for put in &mut flight.puts {
                put.read_source(flight.memory, &flight.actor)?;
            }
        }
        Ok(())
    }
}

impl Play<'_, '_> {
    /// Whether the network has its turn: seldom, so that what it carries is late.
    pub(super) fn delivers_now(&mut self) -> bool {
        !self.flights.is_empty() && self.random.next().is_multiple_of(8)
    }

    /// Delivers one of the signals that can come next, behind its puts.
    pub(super) fn deliver(&mut self) -> Result<(), Error> {
        let drawn = self.random.next() as usize % self.flights.len().max(1);
        let link = self.flights[drawn].link;
        let first = self.flights.iter().position(|flight| flight.link == link);
        let mut flight = self.flights.remove(first.unwrap_or(drawn));
        while !flight.puts.is_empty() {
            let drawn = self.random.next() as usize % flight.puts.len();
            flight.puts.swap_remove(drawn).perform(flight.memory, &flight.actor)?;
        }
        let ((_, rank), (signal, slot, change)) = (flight.link, flight.signal);
        match self.workspace.signal(rank, signal, slot) {
            Some(word) => {
                raise(word, change);
                Ok(())
            }
            None => {
                let fault = Fault::Malformed(format!("no signal {slot} on rank {rank}"));
                Err(flight.actor.error(Span::UNKNOWN, fault))
            }
        }
    }
}
