//! Sums that a kernel writes out: what tiles put to workspace of other ranks, and the total that each takes.

use super::{Domain, Inference};
use crate::diagnostic::{Diagnostic, Rule};
use crate::kernel::{Distribution, Op, OpEntry, Value};
use crate::program::{BufferId, BufferKind, Expr, Sym};
use crate::span::Span;

impl Inference<'_> {
    /// A tile is put to workspace of the output's shape.
    pub(super) fn put(&mut self, buffer: BufferId, x: Value, span: Span) -> Domain {
        self.in_every_row(x, span);
        self.flagged(buffer, span);
        Domain::None
    }

    /// The sum of what was put, in every row.
    pub(super) fn total(&mut self, buffer: BufferId, own: Value, span: Span) -> Domain {
        self.in_every_row(own, span);
        self.flagged(buffer, span);
        let output = self.kernel.tensor(self.kernel.tiles_of);
        if !matches!(output, Some((Distribution::Global, _, true))) {
            let name = self.name(self.kernel.tiles_of).to_owned();
            let message = format!("every rank has the total of every row, and `{name}` has others");
            self.error(Rule::Types, span, message, "declare it `&mut Global<_>`");
        }
        Domain::All
    }

    fn in_every_row(&mut self, value: Value, span: Span) {
        if matches!(self.tile(value, span), Domain::Own { .. } | Domain::Total) {
            let message = "expected a contribution of this rank alone, found a sum over ranks";
            let help = "sum over ranks once";
            self.error(Rule::Types, span, message.into(), help);
        }
    }

    /// Whether a workspace is one whose data carry their own flag, as large as the output.
    fn flagged(&mut self, buffer: BufferId, span: Span) {
        let declared = self.parts().and_then(|parts| parts.buffers.get(buffer));
        let fits = declared.is_some_and(|buffer| {
            let shape = (&buffer.rows, &buffer.cols);
            let planes = [Expr::from(Sym::World)];
            buffer.kind == BufferKind::Symmetric
                && buffer.planes == planes
                && shape == (&Sym::M.into(), &Sym::N.into())
        });
        if !fits {
            let message =
                "expected workspace of the output's shape, whose data carry their own flag";
            let help = "declare it: `let parts = flagged::<bf16>(Extent::M, Extent::N);`";
            self.error(Rule::Types, span, message.into(), help);
        }
    }

    /// What is put is summed, in one sum over ranks.
    pub(super) fn summed_once(&mut self) {
        let ops = || self.kernel.ops.values();
        let sums = ops().filter(|entry| matches!(entry.op, Op::Total { .. } | Op::Reduce { .. }));
        let sums: Vec<Span> = sums.map(|entry| entry.span).collect();
        let totals = ops().any(|entry| matches!(entry.op, Op::Total { .. }));
        if totals && let [first, second, ..] = sums.as_slice() {
            let message = "a kernel sums over ranks once, and this is its second sum";
            let diagnostic = Diagnostic::new(Rule::Types, *second, message);
            let help = "take one `sum` and use its value again";
            self.found.push(diagnostic.note(*first, "the first sum").help(help));
        }
        match ops().find(|entry| matches!(entry.op, Op::Total { .. })) {
            Some(total) => self.put_ahead_of(total),
            None => {
                let Some(put) = ops().find(|entry| matches!(entry.op, Op::Put { .. })) else {
                    return;
                };
                let message = "a tile is put to other ranks, and none of them sums it";
                let diagnostic = Diagnostic::new(Rule::Types, put.span, message);
                let help = "take the total: `c.store(tile, parts.sum(tile, x));`";
                self.found.push(diagnostic.help(help));
            }
        }
    }

    /// Tiles are put to the workspace that is summed, and ahead of its sum: that waits for what the other
    /// ranks put, which would stand behind a sum of theirs.
    fn put_ahead_of(&mut self, total: &OpEntry) {
        let Op::Total { buffer: summed, .. } = total.op else { return };
        let (mut is_put, mut is_behind) = (false, false);
        for entry in self.kernel.ops.values() {
            is_behind |= std::ptr::eq(entry, total);
            let Op::Put { buffer, .. } = entry.op else { continue };
            let (message, rule, help) = if buffer != summed {
                let (put, summed) = (self.workspace(buffer), self.workspace(summed));
                let message = format!("the tile is put to `{put}`, and `{summed}` is summed");
                (message, Rule::Types, "put to the workspace that is summed")
            } else if is_behind {
                let message = "the tile is put behind the sum, which waits for what the other ranks put there";
                (message.to_owned(), Rule::Deadlock, "put the tile first, and sum then")
            } else {
                is_put = true;
                continue;
            };
            let diagnostic = Diagnostic::new(rule, entry.span, message);
            self.found.push(diagnostic.note(total.span, "the sum").help(help));
            return;
        }
        if !is_put {
            let name = self.workspace(summed);
            let message = format!("nothing is put to `{name}`, and the sum waits for all of it");
            let diagnostic = Diagnostic::new(Rule::WaitWithoutSignal, total.span, message);
            let help = format!(
                "put the tile to every other rank: `for hop in 1..world() {{ {name}.put((rank() + hop) % world(), tile, x); }}`"
            );
            self.found.push(diagnostic.help(help));
        }
    }

    fn workspace(&self, buffer: BufferId) -> &str {
        let declared = self.parts().and_then(|parts| parts.buffers.get(buffer));
        declared.map_or("?", |buffer| buffer.name.as_str())
    }
}
