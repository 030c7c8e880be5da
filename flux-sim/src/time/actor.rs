//! Where an actor is.

use super::instant::Time;
use super::record::NONE;
use flux_ir::eval::{AgentRun, Event, TileRange};
use rustc_hash::FxHashMap;

/// When something is ready, and the op that made it so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Time,
    pub(super) cause: u32,
    /// Whether that op is another rank's.
    pub(super) crosses: bool,
}

impl Default for Moment {
    fn default() -> Self {
        Moment::START
    }
}

impl Moment {
    pub(super) const START: Moment = Moment { at: Time::ZERO, cause: NONE, crosses: false };

    /// The end of an op of the same rank.
    pub(super) const fn of(at: Time, cause: u32) -> Moment {
        Moment { at, cause, crosses: false }
    }

    /// The later of two; this where they are at once.
    pub(super) fn max(self, other: Moment) -> Moment {
        if other.at > self.at { other } else { self }
    }
}

/// An actor's walk through its events, and until when what it is made of is busy.
#[derive(Debug)]
pub(super) struct State<'v, 'p> {
    /// What is left of the launch at hand; `None` before and after.
    pub(super) run: Option<AgentRun<'v, 'p>>,
    /// The event that could not be done yet.
    pub(super) pending: Option<Event<'p>>,
    /// The tile of the last mainloop.
    pub(super) tile: TileRange,
    /// A copy engine or an exit: through with what came before. A CTA: its tensor cores are.
    pub(super) busy_until: Moment,
    /// What the next mainloop has to wait for, signals seen.
    pub(super) operands: Moment,
    /// The consumers: one where they share a tile, else both in turn.
    pub(super) lanes: [Moment; 2],
    pub(super) lane: usize,
    /// When the puts of each lane have landed.
    pub(super) landed: [Moment; 2],
    /// Transfers of each lane that have not got to the link they are for; an engine has one lane.
    pub(super) on_their_way: [u32; 2],
    /// When what was put to a rank of another node lies there.
    pub(super) carried: FxHashMap<u32, Moment>,
    /// Whether it waits for those of a lane.
    pub(super) parked: bool,
    /// How long tensor cores have been busy in this launch.
    pub(super) tensor_time: Time,
    /// Whether a copy engine has copied to or from a peer in this launch.
    pub(super) copied: bool,
}

impl State<'_, '_> {
    pub(super) fn new() -> Self {
        State {
            run: None,
            pending: None,
            tile: TileRange::default(),
            busy_until: Moment::START,
            operands: Moment::START,
            lanes: [Moment::START; 2],
            lane: 0,
            landed: [Moment::START; 2],
            on_their_way: [0; 2],
            carried: FxHashMap::default(),
            parked: false,
            tensor_time: Time::ZERO,
            copied: false,
        }
    }

    /// When the last thing it has begun is through.
    pub(super) fn through(&self) -> Moment {
        // The end of an actor waits until the network has read what it put.
        let lanes = self.lanes.iter().chain(&self.landed).chain(self.carried.values());
        lanes.fold(self.busy_until, |latest, lane| latest.max(*lane))
    }
}
