//! When tiles waited, computed and stored, as an instrumented kernel records it: a file that is
//! drawn and traced like a prediction.
//!
//! A recording is JSON. It carries the Program as text, so that it is read without the kernel it
//! is from. Times are whole ns of one clock of the rank; ranks are laid side by side from the
//! start of their launches.

use super::awaited::{Raiser, awaited};
use super::instant::Time;
use super::record::{Actor, Kind, Lane, NONE, Op, Role, Timeline};
use flux_ir::arena::Handle;
use flux_ir::eval::{Launch, TileRange};
use flux_ir::program::{AgentId, Engine, Program};
use flux_ir::{Diagnostics, Shape};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format that is written and read.
pub const RECORDING_VERSION: u32 = 1;

/// When the tiles of a launch waited, computed and stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// [`RECORDING_VERSION`].
    pub version: u32,
    /// Where the times are from: a device, or a prediction.
    pub origin: String,
    /// The Program, in its text form.
    pub program: String,
    /// Rows of the output, over all ranks.
    pub m: u32,
    /// Columns of the output.
    pub n: u32,
    /// Length of the reduction.
    pub k: u32,
    /// Ranks.
    pub world: u32,
    /// CTAs of each rank's grid.
    pub ctas: u32,
    /// The ranks that were recorded.
    pub ranks: Vec<RankRecord>,
}

/// What a rank recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankRecord {
    /// The rank.
    pub rank: u32,
    /// When its launch began, in ns of its clock.
    pub started_ns: u64,
    /// Its tiles, those of one CTA in the order in which it did them.
    pub tiles: Vec<TileRecord>,
}

/// A tile: four times, none before the one above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileRecord {
    /// The CTA that did it.
    pub cta: u32,
    /// Its row in the grid of tiles.
    pub m: u32,
    /// Its column.
    pub n: u32,
    /// When its mainloop could have begun but for signals.
    pub waited_ns: u64,
    /// When its mainloop began.
    pub began_ns: u64,
    /// When its accumulators were complete.
    pub computed_ns: u64,
    /// When its epilogue was through.
    pub stored_ns: u64,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The text is no recording: line and column.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Another version of the format.
    #[error("expected version {RECORDING_VERSION} of the format, found {0}")]
    Version(u32),
    /// The Program cannot be read.
    #[error("the Program of the recording: {0}")]
    Program(#[from] Diagnostics),
    /// A number that the launch does not have, or a time before the one above it.
    #[error("rank {rank}, tile {tile}: {message}")]
    Tile {
        /// The rank.
        rank: u32,
        /// The number of the tile among the rank's, from 0.
        tile: usize,
        /// What is wrong.
        message: String,
    },
    /// A rank that the launch does not have, or that is there twice.
    #[error("expected each rank below {world} at most once, found {rank}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Ranks of the launch.
        world: u32,
    },
}

impl Recording {
    /// Reads a recording and checks it.
    ///
    /// # Errors
    /// The text is no recording, or its numbers contradict each other.
    pub fn read(text: &str) -> Result<Recording, RecordingError> {
        let recording: Recording = serde_json::from_str(text)?;
        if recording.version != RECORDING_VERSION {
            return Err(RecordingError::Version(recording.version));
        }
        let program = recording.program()?;
        let world = recording.world;
        let mut seen = Vec::new();
        for record in &recording.ranks {
            let rank = record.rank;
            if rank >= world || seen.contains(&rank) {
                return Err(RecordingError::Rank { rank, world });
            }
            seen.push(rank);
            for (tile, entry) in record.tiles.iter().enumerate() {
                if let Some(message) = recording.fault(&program, record, entry) {
                    return Err(RecordingError::Tile { rank, tile, message });
                }
            }
        }
        Ok(recording)
    }

    /// What is wrong with a tile.
    fn fault(&self, program: &Program, of: &RankRecord, tile: &TileRecord) -> Option<String> {
        let (rows, cols) = (self.m.div_ceil(program.tile.m), self.n.div_ceil(program.tile.n));
        let TileRecord { cta, m, n, .. } = *tile;
        if cta >= self.ctas {
            return Some(format!("expected a CTA below {}, found {cta}", self.ctas));
        }
        if m >= rows || n >= cols {
            return Some(format!("expected a tile of a grid of {rows} x {cols}, found ({m}, {n})"));
        }
        let times = [
            ("started_ns", of.started_ns),
            ("waited_ns", tile.waited_ns),
            ("began_ns", tile.began_ns),
            ("computed_ns", tile.computed_ns),
            ("stored_ns", tile.stored_ns),
        ];
        let fault = times.windows(2).find(|pair| pair[0].1 > pair[1].1)?;
        let [(first, before), (second, after)] = [fault[0], fault[1]];
        Some(format!("expected `{second}` no earlier than `{first}`, found {after} and {before}"))
    }

    /// The Program it is of.
    ///
    /// # Errors
    /// The text is no Program.
    pub fn program(&self) -> Result<Program, RecordingError> {
        let program: Program = self.program.parse()?;
        Ok(program)
    }

    /// The launch it is of.
    pub fn launch(&self) -> Launch {
        let shape = Shape { m: self.m, n: self.n, k: self.k };
        Launch { shape, world: self.world, ctas: self.ctas }
    }

    /// A prediction as a recording of the ranks that were simulated.
    pub fn of(timeline: &Timeline, program: &Program, launch: Launch, origin: &str) -> Recording {
        let ranks = 0..timeline.classes;
        Recording {
            version: RECORDING_VERSION,
            origin: origin.into(),
            program: program.to_string(),
            m: launch.shape.m,
            n: launch.shape.n,
            k: launch.shape.k,
            world: launch.world,
            ctas: launch.ctas,
            ranks: ranks
                .map(|rank| RankRecord {
                    rank,
                    started_ns: 0,
                    tiles: tiles(timeline, program, rank),
                })
                .collect(),
        }
    }

    /// The recording as a timeline: of each tile its wait, its mainloop and its epilogue. Whom
    /// a tile waited for is asked of the Program, and not known where its order is a function.
    ///
    /// # Errors
    /// The text is no Program.
    pub fn timeline(&self) -> Result<(Program, Timeline), RecordingError> {
        let program = self.program()?;
        let mut timeline = Timeline {
            world: self.world,
            classes: self.world,
            actors: Vec::new(),
            ops: Vec::new(),
            begins: Time::ZERO,
            ends: Time::ZERO,
            last: NONE,
        };
        let grid = program.agents.iter().find(|(_, agent)| agent.engine == Engine::Ctas);
        let agent = grid.map_or(0, |(id, _): (AgentId, _)| id.index() as u32);
        let raisers = awaited(&program, self.launch()).unwrap_or_default();
        for record in &self.ranks {
            let mut of_cta: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
            for tile in &record.tiles {
                let (actor, before) = *of_cta.entry(tile.cta).or_insert_with(|| {
                    let role = Role::Cta(agent, tile.cta);
                    (number(&mut timeline, Actor { rank: record.rank, role }), NONE)
                });
                let at = (tile.m * program.tile.m, tile.n * program.tile.n);
                let raiser = raisers.get(&(record.rank, at.0, at.1));
                let signal = (tile.began_ns > tile.waited_ns)
                    .then(|| signal(&mut timeline, raiser, record, tile))
                    .flatten();
                let before = signal.map_or((before, false), |signal| (signal, true));
                let mainloop = self.push(&program, &mut timeline, record, tile, (actor, before));
                of_cta.insert(tile.cta, (actor, mainloop));
            }
        }
        Ok((program, timeline))
    }

    /// What a tile covers of the output.
    fn range(&self, program: &Program, tile: &TileRecord) -> TileRange {
        let cut = |index: u32, size: u32, end: u32| {
            let from = index.saturating_mul(size).min(end);
            from..from.saturating_add(size).min(end)
        };
        TileRange {
            rows: cut(tile.m, program.tile.m, self.m),
            cols: cut(tile.n, program.tile.n, self.n),
        }
    }

    /// Appends the ops of a tile; gives the number of its mainloop.
    fn push(
        &self,
        program: &Program,
        timeline: &mut Timeline,
        of: &RankRecord,
        tile: &TileRecord,
        (actor, before): (u32, (u32, bool)),
    ) -> u32 {
        let time = |ns: u64| Time::from_us((ns - of.started_ns) as f64 / 1e3);
        let shape = self.range(program, tile);
        let (mut last, mut crosses) = before;
        let parts = [
            (Kind::Wait, Lane::Main, tile.waited_ns, tile.began_ns),
            (Kind::Mainloop, Lane::Main, tile.began_ns, tile.computed_ns),
            (Kind::Epilogue, Lane::Epilogue(0), tile.computed_ns, tile.stored_ns),
        ];
        let mut mainloop = NONE;
        for (kind, lane, start, end) in parts {
            if kind == Kind::Wait && start == end {
                continue;
            }
            let number = timeline.ops.len() as u32;
            let (start, end) = (time(start), time(end));
            timeline.ops.push(Op {
                kind,
                actor,
                lane,
                start,
                end,
                cause: last,
                crosses: std::mem::take(&mut crosses),
                tile: shape.clone(),
                peer: of.rank,
                bytes: 0,
                stmt: 0,
            });
            if end >= timeline.ends {
                (timeline.ends, timeline.last) = (end, number);
            }
            if kind == Kind::Mainloop {
                mainloop = number;
            }
            last = number;
        }
        mainloop
    }
}

/// The number of an actor in a timeline, which it is added to where it is new.
fn number(timeline: &mut Timeline, actor: Actor) -> u32 {
    let known = timeline.actors.iter().position(|known| *known == actor);
    known.unwrap_or_else(|| {
        timeline.actors.push(actor);
        timeline.actors.len() - 1
    }) as u32
}

/// The raise that ended the wait of a tile, as an op without duration.
fn signal(
    timeline: &mut Timeline,
    raiser: Option<&Raiser>,
    of: &RankRecord,
    tile: &TileRecord,
) -> Option<u32> {
    let Raiser { rank, role, .. } = *raiser?;
    let actor = number(timeline, Actor { rank, role });
    let seen = Time::from_us((tile.began_ns - of.started_ns) as f64 / 1e3);
    timeline.ops.push(Op {
        kind: Kind::Signal,
        actor,
        lane: Lane::Link,
        start: seen,
        end: seen,
        cause: NONE,
        crosses: false,
        tile: TileRange::default(),
        peer: of.rank,
        bytes: 0,
        stmt: 0,
    });
    Some(timeline.ops.len() as u32 - 1)
}

/// The tiles of a rank in a timeline, those of one CTA in the order in which it did them.
fn tiles(timeline: &Timeline, program: &Program, rank: u32) -> Vec<TileRecord> {
    let ns = |time: Time| time.since(timeline.begins).picoseconds() / 1000;
    let mut tiles: Vec<TileRecord> = Vec::new();
    let mut at: BTreeMap<(u32, u32, u32), usize> = BTreeMap::new();
    let (rows, cols) = (program.tile.m.max(1), program.tile.n.max(1));
    for op in timeline.ops.iter().filter(|op| op.start >= timeline.begins) {
        let Actor { rank: of, role: Role::Cta(_, cta) } = timeline.actors[op.actor as usize] else {
            continue;
        };
        if of != rank || op.tile.rows.is_empty() {
            continue;
        }
        let (m, n) = (op.tile.rows.start / rows, op.tile.cols.start / cols);
        let index = *at.entry((cta, m, n)).or_insert_with(|| {
            let (start, end) = (ns(op.start), ns(op.end));
            let began_ns = if op.kind == Kind::Wait { end } else { start };
            let (computed_ns, stored_ns) = (end, end);
            tiles.push(TileRecord {
                cta,
                m,
                n,
                waited_ns: start,
                began_ns,
                computed_ns,
                stored_ns,
            });
            tiles.len() - 1
        });
        let tile = &mut tiles[index];
        match (op.kind, op.lane) {
            (Kind::Mainloop, _) => {
                tile.computed_ns = ns(op.end);
                tile.stored_ns = tile.stored_ns.max(tile.computed_ns);
            }
            (Kind::Epilogue | Kind::Sum, _) | (Kind::Wait, Lane::Epilogue(_)) => {
                tile.stored_ns = tile.stored_ns.max(ns(op.end));
            }
            _ => {}
        }
    }
    tiles
}
