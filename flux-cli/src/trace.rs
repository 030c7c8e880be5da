//! `flux trace`.

use crate::Trace;
use crate::sim::write_file;
use flux_sim::time::{
    Kind, Path as CriticalPath, Recording, Role, Time, Timeline, Wait, chrome_trace, draw,
};
use std::error::Error;
use std::fmt::Write;
use std::fs;

/// What `flux trace` prints.
pub(crate) fn run(options: &Trace) -> Result<String, Box<dyn Error>> {
    let path = options.recording.display();
    let text = fs::read_to_string(&options.recording)
        .map_err(|error| format!("cannot read {path}: {error}"))?;
    let recording = Recording::read(&text).map_err(|error| format!("{path}: {error}"))?;
    let (program, timeline) = recording.timeline()?;
    let Recording { m, n, k, world, origin, .. } = &recording;
    let title = format!("{} {m} x {n} x {k}, world {world}, {origin}", program.name);
    let mut text = String::new();
    let mut to_stdout = false;
    if let Some(path) = &options.svg {
        let title = format!("{title}: {}, rank {}", timeline.total(), options.rank);
        let image = draw(&timeline, &program, options.rank, &title);
        to_stdout |= write_file(path, &image, &mut text)?;
    }
    if let Some(path) = &options.trace {
        to_stdout |= write_file(path, &chrome_trace(&timeline, &program), &mut text)?;
    }
    if to_stdout {
        return Ok(text);
    }
    writeln!(text, "{title}\n\n  rank   tiles  total ms    each CTA: waited  computed    stored")?;
    for record in &recording.ranks {
        let of = |kind| spent(&timeline, record.rank, kind) / f64::from(recording.ctas.max(1));
        let ends = timeline.ops.iter().filter(|op| timeline.rank(op) == record.rank);
        let total = ends.map(|op| op.end).max().unwrap_or_default();
        writeln!(
            text,
            "  {:4}  {:6}  {:8.3}            {:8.3}  {:8.3}  {:8.3}",
            record.rank,
            record.tiles.len(),
            total.ms(),
            of(Kind::Wait),
            of(Kind::Mainloop),
            of(Kind::Epilogue),
        )?;
    }
    let wait = |stall| Wait::new(stall, &program, Time::ZERO);
    let last = CriticalPath::of(&timeline).stalls(&timeline).pop();
    match last {
        Some(stall) => writeln!(text, "\nlast wait on the critical path\n  {}", wait(stall))?,
        None => writeln!(text, "\nno tile on the critical path waited for a signal")?,
    }
    if let Some(stall) = timeline.longest_stall() {
        writeln!(text, "longest wait anywhere\n  {}", wait(stall))?;
    }
    Ok(text)
}

/// What the CTAs of a rank spent on a kind of op, in ms.
fn spent(timeline: &Timeline, rank: u32, kind: Kind) -> f64 {
    let of_rank = timeline.ops.iter().filter(|op| {
        let actor = timeline.actors[op.actor as usize];
        op.kind == kind && actor.rank == rank && matches!(actor.role, Role::Cta(..))
    });
    of_rank.map(|op| op.end.since(op.start).ms()).sum()
}
