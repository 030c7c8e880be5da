//! Operands of products: where they are read from, and what of them is summed over.

use super::{Dim, Inference};
use crate::diagnostic::{Diagnostic, Rule};
use crate::kernel::{Distribution, Lhs, Op, ParamId, Value};
use crate::program::{BufferId, BufferKind, Expr, Program, Sym};
use crate::span::Span;

/// What a left operand is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Param(ParamId),
    Workspace(BufferId),
}

/// The dimension that an extent of a workspace is.
pub(super) fn dim(extent: &Expr) -> Option<Dim> {
    match extent {
        Expr::Sym(Sym::M) => Some(Dim::M),
        Expr::Sym(Sym::N) => Some(Dim::N),
        Expr::Sym(Sym::K) => Some(Dim::K),
        _ => None,
    }
}

impl Inference<'_> {
    pub(super) fn parts(&self) -> Option<&Program> {
        self.kernel.protocol.as_ref().map(|protocol| &protocol.parts)
    }

    /// Parameters that roles copy from: what this rank holds, a shard or all rows.
    pub(super) fn copied(&mut self) {
        let Some(parts) = self.kernel.protocol.as_ref().map(|protocol| &protocol.parts) else {
            return;
        };
        for buffer in parts.buffers.values().filter(|buffer| buffer.kind == BufferKind::Input) {
            let Some(param) = self.kernel.param(&buffer.name) else {
                let message = format!("there is no parameter `{}` to copy from", buffer.name);
                self.error(Rule::Types, buffer.span, message, "take it: `a: &Sharded<bf16>`");
                continue;
            };
            if !matches!(
                self.kernel.tensor(param),
                Some((Distribution::Sharded | Distribution::Global, _, false))
            ) {
                let message = format!("`{}` is nothing that this rank holds", buffer.name);
                let help = "roles copy out of workspace, and out of parameters `&Sharded<_>` or `&Global<_>`";
                self.error(Rule::Types, buffer.span, message, help);
                continue;
            }
            match dim(&buffer.cols) {
                Some(cols) => self.unify(param, Dim::M, cols, buffer.span),
                None => {
                    let message =
                        format!("`{}` is copied to where rows are not as long", buffer.name);
                    let help = "give the workspace `k()` or `n()` columns";
                    self.error(Rule::Dimensions, buffer.span, message, help);
                }
            }
        }
    }

    /// Rows of a workspace are multiplied.
    pub(super) fn ready(&mut self, buffer: BufferId, after: Value, span: Span) {
        let is_await = |value| matches!(self.kernel.ops.get(value), Some(entry) if matches!(entry.op, Op::Await { .. }));
        if !is_await(after) {
            let message = format!("expected something that was waited for, found {after}");
            let help = "pass what `wait` gave: `all.ready(tile.rows(), arrived.wait(…))`";
            self.error(Rule::Types, span, message, help);
        }
        let workspace = self.parts().and_then(|parts| parts.buffers.get(buffer));
        let fits = workspace.is_some_and(|buffer| {
            let whole = buffer.rows == Expr::Sym(Sym::M) && buffer.cols == Expr::Sym(Sym::K);
            buffer.kind == BufferKind::Symmetric && whole
        });
        if !fits {
            let message = "expected a workspace of m() rows and k() columns to multiply";
            let help = "declare it: `let all = symmetric::<bf16>(m(), k());`";
            self.error(Rule::Dimensions, span, message.into(), help);
        }
    }

    pub(super) fn gemm(&mut self, lhs: Lhs, b: ParamId, transposed: bool, span: Span) {
        let (rows, cols) = if transposed { (Dim::N, Dim::K) } else { (Dim::K, Dim::N) };
        self.unify(b, rows, cols, span);
        let left = match lhs {
            Lhs::Param(a) | Lhs::Transposed(a) => {
                let transposed = matches!(lhs, Lhs::Transposed(_));
                let (rows, cols) = if transposed { (Dim::K, Dim::M) } else { (Dim::M, Dim::K) };
                self.unify(a, rows, cols, span);
                match self.kernel.tensor(a) {
                    Some((Distribution::Gathered, ..)) if transposed => {
                        self.in_flight(a, "reduction", span);
                    }
                    Some((Distribution::Gathered | Distribution::Exchanged, ..)) => {
                        self.late(a, "rows", span);
                    }
                    _ => {}
                }
                Some(a)
            }
            Lhs::Ready(ready)
                if self
                    .kernel
                    .ops
                    .get(ready)
                    .is_some_and(|entry| matches!(entry.op, Op::Ready { .. })) =>
            {
                None
            }
            Lhs::Ready(ready) => {
                let tensor = self.waited(ready, span);
                if let Some(tensor) = tensor {
                    self.unify(tensor, Dim::M, Dim::K, span);
                }
                tensor
            }
        };
        for (param, what) in left.map(|a| (a, "left")).into_iter().chain([(b, "right")]) {
            if let Some((distribution, _, written)) = self.kernel.tensor(param) {
                let fits = match distribution {
                    Distribution::Global => !written,
                    Distribution::Gathered => !written && (what == "left" || !transposed),
                    Distribution::Exchanged => what == "left" && !written,
                    Distribution::Sharded => {
                        let as_it_is = matches!(lhs, Lhs::Param(_));
                        what == "left" && !written && as_it_is && self.own_rows
                    }
                    Distribution::Scattered | Distribution::Reduced => false,
                };
                if !fits {
                    let message =
                        format!("`{}` cannot be the {what} operand of a gemm", self.name(param));
                    self.error(
                        Rule::Types,
                        span,
                        message,
                        "operands are `&Global<_>`; one whose rows are of tiles or summed over may be \
                         `&Gathered<_>`",
                    );
                } else if what == "right" && distribution == Distribution::Gathered {
                    self.in_flight(param, "reduction", span);
                }
            }
        }
        let workspace = match self.source(lhs) {
            Some(Source::Workspace(buffer)) => self.parts().and_then(|p| p.buffers.get(buffer)),
            _ => None,
        };
        let left = left.and_then(|a| self.kernel.tensor(a)).map(|(_, element, _)| element);
        let left = left.or(workspace.map(|buffer| buffer.element));
        let elements = left.zip(self.kernel.tensor(b).map(|(_, element, _)| element));
        if let Some((ea, eb)) = elements
            && ea != eb
        {
            let message = format!("the operands of a gemm differ in type: {ea} and {eb}");
            self.error(Rule::Types, span, message, "store both in one element type");
        }
        if let Some(&(first, at)) = self.gemms.first()
            && self.source(first) != self.source(lhs)
        {
            let message = "the gemms of a kernel share their left operand; this one has another";
            let diagnostic = Diagnostic::new(Rule::Types, span, message)
                .note(at, "the first gemm")
                .help("split the kernel in two");
            self.found.push(diagnostic);
        }
        self.gemms.push((lhs, span));
    }

    /// The tensor a left operand comes from.
    fn source(&self, lhs: Lhs) -> Option<Source> {
        match lhs {
            Lhs::Param(param) | Lhs::Transposed(param) => Some(Source::Param(param)),
            Lhs::Ready(ready) => match self.kernel.ops.get(ready)?.op {
                Op::Wait { tensor } => Some(Source::Param(tensor)),
                Op::Ready { buffer, .. } => Some(Source::Workspace(buffer)),
                _ => None,
            },
        }
    }
}
