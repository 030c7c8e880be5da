//! The critical path: what the end of a launch was waited for, back to its start.

use super::instant::Time;
use super::record::{Kind, NONE, Op, Role, Timeline};

/// The critical path of a launch, from its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Path {
    /// Its parts, in the order of time.
    pub segments: Vec<Segment>,
}

/// A part of the path: an op, from where the path reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The op's number among [`Timeline::ops`].
    pub op: u32,
    /// The rank it is of; its representative is in the timeline.
    pub rank: u32,
    /// From when on the path runs through it: the end of what it waited for.
    pub from: Time,
    /// Until when: its end, or where the next part needed no more of it.
    pub to: Time,
}

/// A wait of a tile for another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stall {
    /// The rank that waited.
    pub rank: u32,
    /// The CTA.
    pub cta: u32,
    /// The tile: its rows and columns of the whole output.
    pub tile: flux_ir::eval::TileRange,
    /// The rank it waited for; its own where it waited for itself.
    pub peer: u32,
    /// For how long.
    pub waited: Time,
    /// When it ended.
    pub until: Time,
}

impl Path {
    /// Follows causes back from what the end was waited for.
    pub fn of(timeline: &Timeline) -> Path {
        let mut path = Path::default();
        let Some(op) = timeline.ops.get(timeline.last as usize) else { return path };
        let last = timeline.last;
        let mut at = Some((last, timeline.rank(op)));
        let mut to = op.end;
        while let Some((number, rank)) = at {
            let op = &timeline.ops[number as usize];
            if op.end <= timeline.begins && !path.segments.is_empty() {
                break;
            }
            at = timeline.cause(op, rank);
            let before =
                at.map_or(timeline.begins, |(cause, _)| timeline.ops[cause as usize].end.min(to));
            // What a wait is for is what took the time: the path runs through that.
            let from = if op.kind == Kind::Wait { before.max(op.start).min(to) } else { before };
            path.segments.push(Segment { op: number, rank, from: before.min(from), to });
            to = before;
        }
        path.segments.reverse();
        path
    }

    /// Time on the path by kind of op, in the order of [`Kind::ALL`]. Time between the end of a
    /// cause and the start of what waited for it belongs to what waited.
    pub fn by_kind(&self, timeline: &Timeline) -> [(Kind, Time); 8] {
        Kind::ALL.map(|kind| {
            let of_kind = self
                .segments
                .iter()
                .filter(|segment| timeline.ops[segment.op as usize].kind == kind);
            (kind, of_kind.map(|segment| segment.to.since(segment.from)).sum())
        })
    }

    /// The waits of tiles on the path, in the order of time.
    pub fn stalls(&self, timeline: &Timeline) -> Vec<Stall> {
        let stall = |segment: &Segment| {
            let op = &timeline.ops[segment.op as usize];
            let Role::Cta(_, cta) = timeline.actors[op.actor as usize].role else { return None };
            if op.kind != Kind::Wait {
                return None;
            }
            let peer = timeline.cause(op, segment.rank).map_or(segment.rank, |(_, rank)| rank);
            Some(Stall {
                rank: segment.rank,
                cta,
                tile: op.tile.clone(),
                peer,
                waited: op.end.since(op.start),
                until: op.end,
            })
        };
        self.segments.iter().filter_map(stall).collect()
    }
}

impl Timeline {
    /// The cause of an op of `rank`, and the rank that did it.
    pub fn cause(&self, op: &Op, rank: u32) -> Option<(u32, u32)> {
        if op.cause == NONE {
            return None;
        }
        let cause = &self.ops[op.cause as usize];
        if !op.crosses {
            return Some((op.cause, rank));
        }
        // A signal was raised on the rank that waited; a transfer held the link of the rank that
        // this one is for as well.
        let world = self.world.max(1);
        let away = |op: &Op| (op.peer + world - self.rank(op)) % world;
        let met = match op.kind {
            Kind::Copy | Kind::Put => (rank + away(op)) % world,
            _ => rank,
        };
        Some((op.cause, (met + world - away(cause)) % world))
    }

    /// The wait of a tile that took longest in the launch.
    pub fn longest_stall(&self) -> Option<Stall> {
        let mut longest: Option<&Op> = None;
        for op in self.ops.iter().filter(|op| op.start >= self.begins && op.kind == Kind::Wait) {
            let cta = matches!(self.actors[op.actor as usize].role, Role::Cta(..));
            let took = |op: &Op| op.end.since(op.start);
            if cta && longest.is_none_or(|longest| took(op) > took(longest)) {
                longest = Some(op);
            }
        }
        let op = longest?;
        let actor = self.actors[op.actor as usize];
        let Role::Cta(_, cta) = actor.role else { return None };
        Some(Stall {
            rank: actor.rank,
            cta,
            tile: op.tile.clone(),
            peer: self.cause(op, actor.rank).map_or(actor.rank, |(_, rank)| rank),
            waited: op.end.since(op.start),
            until: op.end,
        })
    }
}
