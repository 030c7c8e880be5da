//! A prediction in figures and words.

use super::instant::Time;
use super::path::Stall;
use super::record::Kind;
use super::report::Report;
use flux_ir::program::Program;
use serde::Serialize;
use std::fmt;

/// A prediction in figures; prints as a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The kernel.
    pub kernel: String,
    /// The machine.
    pub machine: String,
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
    /// Tile rows, columns and k-step.
    pub tile: [u32; 3],
    /// How consumers divide tiles.
    pub consumers: String,
    /// Ranks that were simulated: the others do the same.
    pub classes: u32,
    /// What the launch takes.
    pub total_ms: f64,
    /// What its grid takes alone.
    pub gemm_ms: f64,
    /// What its transfers take alone.
    pub comm_ms: f64,
    /// Communication that shows: total less GEMM.
    pub exposed_ms: f64,
    /// Total over the larger of GEMM and communication.
    pub bound_ratio: f64,
    /// The share of communication that does not show.
    pub overlap_efficiency: Option<f64>,
    /// Bytes a rank sends, the most of any.
    pub sent_bytes: u64,
    /// What CTAs wait for signals, on average over those of the rank where it is most.
    pub waited_ms: f64,
    /// Time on the critical path, by kind of op.
    pub critical_path: Vec<Share>,
    /// The wait on the critical path that took longest.
    pub critical_wait: Option<Wait>,
    /// How many waits of tiles are on the critical path.
    pub critical_waits: usize,
    /// The wait of a tile that took longest, wherever.
    pub longest_wait: Option<Wait>,
}

/// A part of the critical path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// The kind of op.
    pub kind: Kind,
    /// Its time on the path.
    pub ms: f64,
}

/// A wait of a tile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Wait {
    /// The rank.
    pub rank: u32,
    /// The CTA.
    pub cta: u32,
    /// Row and column of the tile in the grid; none for a wait ahead of the tile loop.
    pub tile: Option<[u32; 2]>,
    /// The rank it waited for.
    pub peer: u32,
    /// For how long.
    pub ms: f64,
    /// When it ended.
    pub until_ms: f64,
}

impl Wait {
    /// A wait in a launch that began at `begins`.
    pub fn new(stall: Stall, program: &Program, begins: Time) -> Wait {
        let (m, n) = (program.tile.m.max(1), program.tile.n.max(1));
        let tile = (!stall.tile.rows.is_empty())
            .then(|| [stall.tile.rows.start / m, stall.tile.cols.start / n]);
        let Stall { rank, cta, peer, .. } = stall;
        let until_ms = stall.until.since(begins).ms();
        Wait { rank, cta, tile, peer, ms: stall.waited.ms(), until_ms }
    }
}

impl Summary {
    /// The figures of a prediction.
    pub fn new(report: &Report, program: &Program, machine: &str) -> Summary {
        let shape = report.launch.shape;
        let timeline = &report.timeline;
        let wait = |stall: Stall| Wait::new(stall, program, timeline.begins);
        let stalls = report.path.stalls(timeline);
        let critical_waits = stalls.len();
        // The last of those that took longest: what came before is made up for.
        let critical = stalls.into_iter().max_by_key(|stall| (stall.waited, stall.until));
        Summary {
            kernel: program.name.clone(),
            machine: machine.into(),
            m: shape.m,
            n: shape.n,
            k: shape.k,
            world: report.launch.world,
            ctas: report.launch.ctas,
            tile: [program.tile.m, program.tile.n, program.tile.k],
            consumers: program.consumers.name().into(),
            classes: timeline.classes,
            total_ms: report.total.ms(),
            gemm_ms: report.gemm.ms(),
            comm_ms: report.comm.ms(),
            exposed_ms: report.exposed().ms(),
            bound_ratio: report.bound_ratio(),
            overlap_efficiency: report.overlap_efficiency(),
            sent_bytes: report.sent_bytes,
            waited_ms: report.waited.ms(),
            critical_path: report
                .path
                .by_kind(timeline)
                .into_iter()
                .filter(|(_, time)| time.picoseconds() > 0)
                .map(|(kind, time)| Share { kind, ms: time.ms() })
                .collect(),
            critical_wait: critical.map(wait),
            critical_waits,
            longest_wait: timeline.longest_stall().map(wait),
        }
    }

    /// The launch in words.
    pub fn title(&self) -> String {
        let Summary { kernel, m, n, k, world, machine, .. } = self;
        format!("{kernel} {m} x {n} x {k}, world {world}, {machine}")
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [m, n, k] = self.tile;
        writeln!(f, "{}", self.title())?;
        writeln!(
            f,
            "tile ({m}, {n}, {k}), {}, {} CTAs; simulated {} of {} ranks\n",
            self.consumers, self.ctas, self.classes, self.world
        )?;
        let mut row = |name: &str, value: String| writeln!(f, "  {name:<22}{value:>12}");
        row("total", format!("{:.3} ms", self.total_ms))?;
        row("GEMM alone", format!("{:.3} ms", self.gemm_ms))?;
        row("comm alone", format!("{:.3} ms", self.comm_ms))?;
        row("exposed comm", format!("{:.3} ms", self.exposed_ms))?;
        row("bound ratio", format!("{:.3}", self.bound_ratio))?;
        if let Some(efficiency) = self.overlap_efficiency {
            row("overlap efficiency", format!("{efficiency:.3}"))?;
        }
        if self.sent_bytes > 0 {
            row("sent by a rank", format!("{:.1} MB", self.sent_bytes as f64 / 1e6))?;
        }
        row("waited by a CTA", format!("{:.3} ms", self.waited_ms))?;
        writeln!(f, "\ncritical path")?;
        for share in &self.critical_path {
            let part = 100.0 * share.ms / self.total_ms.max(f64::MIN_POSITIVE);
            writeln!(f, "  {:<22}{:>9.3} ms {part:>5.1} %", share.kind.name(), share.ms)?;
        }
        match &self.critical_wait {
            Some(wait) => {
                let of = match self.critical_waits {
                    1 => String::new(),
                    waits => format!(" (the longest of {waits} waits on the path)"),
                };
                writeln!(f, "  {wait}{of}")?;
            }
            None => writeln!(f, "  no tile on it waited for another rank")?,
        }
        if let Some(wait) = &self.longest_wait
            && self.critical_wait.as_ref() != Some(wait)
        {
            writeln!(f, "longest wait anywhere\n  {wait}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wait { rank, cta, peer, ms, until_ms, .. } = self;
        match self.tile {
            Some([m, n]) => write!(f, "tile ({m}, {n}) of rank {rank} (cta {cta})")?,
            None => write!(f, "cta {cta} of rank {rank}, before its first tile,")?,
        }
        write!(f, " waited {ms:.3} ms for rank {peer}, until {until_ms:.3} ms")
    }
}
