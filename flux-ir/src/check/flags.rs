//! Data that carry their own flag (`signal … by %buffer`).
//!
//! An element of such a buffer is polled until it has been stored, and is put back to "not yet" by the sum that reads
//! it. So it is to be stored once and read once in a launch: an element that nobody reads would be taken for
//! the one of a later launch, one that is read twice would be waited for in vain. And as no signal travels, such an
//! arrival orders the element and nothing else: everything else has to be in order without it.

use super::Findings;
use super::counters::Counters;
use super::ends::Ends;
use super::happens::{History, Scene};
use super::machine::{Run, moment};
use super::memory::{Access, Memory};
use super::races;
use super::trace::Layout;
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::program::{At, Buffer, BufferId, BufferKind, Home, Op, Program, Stmt};
use crate::span::Span;

/// Whether some data of `program` carry their own flag.
pub(super) fn are_carried(program: &Program) -> bool {
    program.signals.values().any(|signal| signal.carrier.is_some())
}

/// Data that stand for a signal lie in workspace, and are stored whole and read by sums: by what sets flags and
/// polls them.
pub(super) fn structure(program: &Program, found: &mut Diagnostics) {
    for signal in program.signals.values() {
        let Some(carrier) = signal.carrier else { continue };
        let buffer = program.buffers.get(carrier);
        let holds = |buffer: &Buffer| buffer.kind == BufferKind::Symmetric && !buffer.sums;
        if !buffer.is_some_and(holds) || signal.home != Home::Device {
            let message = format!(
                "`%{}` is carried by data: expected it on the device, and workspace in which nobody adds up",
                signal.name
            );
            found.push(Diagnostic::new(Rule::Types, Span::UNKNOWN, message));
        }
    }
    let mut refuse = |stmt: &Stmt, buffer: BufferId, what: &str| {
        let Some(declared) = program.buffers.get(buffer) else { return };
        if program.is_flagged(buffer) {
            let message =
                format!("data of `%{}` carry their own flag, and are {what}", declared.name);
            let diagnostic = Diagnostic::new(Rule::Types, stmt.span, message);
            found.push(diagnostic.help("store them, and let a sum of their rank read them"));
        }
    };
    for stmt in program.statements() {
        match &stmt.op {
            Op::Store { to, adds: true, .. } => refuse(stmt, to.buffer, "added to"),
            Op::Copy { from, to, .. } => {
                refuse(stmt, from.buffer, "copied");
                refuse(stmt, to.buffer, "written by a copy");
            }
            Op::Load { from, .. } => refuse(stmt, from.buffer, "loaded"),
            Op::Sum { from, .. } if from.at != At::Own => {
                refuse(stmt, from.buffer, "summed out of a peer's memory");
            }
            Op::Mainloop { products } => {
                for place in products.iter().flat_map(|product| [&product.a, &product.b]) {
                    refuse(stmt, place.buffer, "multiplied");
                }
            }
            Op::Store { .. }
            | Op::Sum { .. }
            | Op::Let { .. }
            | Op::Row { .. }
            | Op::For { .. }
            | Op::If { .. }
            | Op::Wait { .. }
            | Op::FenceProxyAsync
            | Op::Signal { .. } => {}
        }
    }
}

/// What a run that is sound with all signals lacks without those that data stand for.
pub(super) fn check(scene: &Scene<'_, '_>, memory: &Memory, run: &Run, found: &mut Findings) {
    let layout = scene.layout;
    exact(layout, memory, found);
    let raises = run.raises.iter().filter(|raise| !layout.is_carried(raise.slot));
    let raises: Vec<_> = raises.copied().collect();
    let history = History::new(layout.slot_count(), &raises);
    let scene = Scene { history: &history, carried: false, ..*scene };
    let (counters, ends) = (Counters::new(&scene), Ends::new(&scene));
    let mut without = Findings::default();
    for rank in 0..layout.launch.world {
        races::check(&scene, memory, &run.segments, (&counters, &ends), rank, &mut without);
    }
    let carried = layout.program.signals.values().filter(|signal| signal.carrier.is_some());
    let names: Vec<String> = carried.map(|signal| format!("`%{}`", signal.name)).collect();
    let note = format!("data stand for {}, which orders nothing but them", names.join(" and "));
    for diagnostic in &mut without.diagnostics.0 {
        diagnostic.notes.push((Span::UNKNOWN, note.clone()));
    }
    found.merge(without);
}

/// Every element that is stored is read once in its launch, and stored once.
fn exact(layout: &Layout<'_>, memory: &Memory, found: &mut Findings) {
    for rect in 0..memory.rects.len() as u32 {
        if !layout.program.is_flagged(memory.rects[rect as usize].buffer) {
            continue;
        }
        for epoch in 1..=layout.read_epochs {
            let of = |all: &[Access]| all.iter().find(|access| access.epoch == epoch).copied();
            let times = |all: &[Access]| all.iter().filter(|access| access.epoch == epoch).count();
            let shared = |times: &dyn Fn(u32) -> usize| -> u64 {
                memory.around(rect).map(|near| memory.shared(rect, near) * times(near) as u64).sum()
            };
            let elements = memory.elements(rect);
            if let Some(write) = of(memory.writes(rect)) {
                let reads = |near| times(memory.reads(near));
                let parts: Vec<u32> = memory.around(rect).filter(|&near| reads(near) > 0).collect();
                if let Some(at) = memory.gap(rect, &parts) {
                    let what = format!("and no sum reads element {at:?} in this launch");
                    say(layout, memory, &write, &what, found);
                } else if shared(&reads) > elements {
                    say(
                        layout,
                        memory,
                        &write,
                        "and an element is read twice in this launch",
                        found,
                    );
                }
            }
            if let Some(read) = of(memory.reads(rect)) {
                let writes = |near| times(memory.writes(near));
                if shared(&writes) > elements {
                    say(layout, memory, &read, "of which an element is stored twice", found);
                }
            }
        }
    }
}

fn say(layout: &Layout<'_>, memory: &Memory, access: &Access, what: &str, found: &mut Findings) {
    let stmt = layout.stmts[access.number as usize];
    let region = &memory.rects[access.rect as usize];
    let puts_home =
        matches!(stmt.op, Op::Store { .. }) && layout.actor(access.actor).rank == region.rank;
    let help = match puts_home {
        true => {
            "no rank puts to itself, as the sum is given its part: put to `(rank() + hop) % world()` for each `hop` in `1..world()`"
        }
        false => "store each element once in a launch, and let one sum of its rank read it",
    };
    found.once(Rule::FlagNotExact, stmt, || {
        let message = format!(
            "{} touches rows {:?}, columns {:?} of `%{}{{{}}}` on rank {}, whose data carry their own flag, {what}",
            layout.name(access.actor),
            region.rows,
            region.cols,
            layout.program.buffers[region.buffer].name,
            region.plane,
            region.rank,
        );
        Diagnostic::new(Rule::FlagNotExact, stmt.span, message)
            .note(Span::UNKNOWN, moment(layout, access.epoch))
            .help(help)
    });
}
