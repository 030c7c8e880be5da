//! What each parameter is used as: its dimensions by unification, and which values exist only in
//! the rows a rank owns.

mod kept;
mod operands;
mod sums;

use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Distribution, Kernel, Lhs, Op, OpEntry, ParamId, ParamType, Value};
use crate::span::Span;
use std::fmt;

/// A dimension of the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Rows of the output.
    M,
    /// Columns of the output.
    N,
    /// Length of the reduction.
    K,
    /// 1: the other dimension of a vector.
    One,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dim::M => "m",
            Dim::N => "n",
            Dim::K => "k",
            Dim::One => "1",
        })
    }
}

/// Rows and columns of a whole tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    /// Rows, over all ranks where the tensor is sharded.
    pub rows: Dim,
    /// Columns.
    pub cols: Dim,
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.cols)
    }
}

/// In which rows a value exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Domain {
    /// It is no tile: ready rows, or nothing.
    None,
    /// In every row of the tile.
    All,
    /// In the rows this rank owns; `reduced` where it depends on a sum over ranks.
    Own { reduced: bool },
    /// In every row of the tile, made of a sum over ranks.
    Total,
}

/// The dimensions of a kernel's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    dims: Vec<Option<Dims>>,
    own_rows: bool,
}

impl Usage {
    /// Whether the tiles are of the rows that a rank owns, and not of all.
    pub fn own_rows(&self) -> bool {
        self.own_rows
    }

    /// Whether the kernel has a product: without one there is no K.
    pub fn multiplies(&self) -> bool {
        let is_k = |dims: &Dims| dims.rows == Dim::K || dims.cols == Dim::K;
        self.dims.iter().flatten().any(is_k)
    }

    /// Dimensions of a tensor parameter; `None` for a scalar.
    pub fn dims(&self, param: ParamId) -> Option<Dims> {
        self.dims.get(param.index()).copied().flatten()
    }
}

/// Infers dimensions and checks that the kernel's ops fit together.
///
/// # Errors
/// Every op whose operands are not what it takes, and every parameter without a meaning.
pub fn infer(kernel: &Kernel) -> Result<Usage, Diagnostics> {
    let mut inference = Inference {
        kernel,
        dims: vec![None; kernel.params.len()],
        domains: Vec::with_capacity(kernel.ops.len()),
        found: Diagnostics::new(),
        reduced: None,
        gemms: Vec::new(),
        own_rows: matches!(
            kernel.tensor(kernel.tiles_of),
            Some((Distribution::Exchanged | Distribution::Sharded, ..))
        ),
    };
    inference.unify(kernel.tiles_of, Dim::M, Dim::N, kernel.loop_span);
    inference.copied();
    for (_, entry) in kernel.ops.iter() {
        let domain = inference.op(&entry.op, entry.span);
        inference.domains.push(domain);
    }
    inference.kept();
    inference.whole();
    let Inference { dims, found, own_rows, .. } = inference;
    let dims = dims.into_iter().map(|d: Option<(Dims, Span)>| d.map(|(dims, _)| dims)).collect();
    found.into_result(Usage { dims, own_rows })
}

struct Inference<'k> {
    kernel: &'k Kernel,
    dims: Vec<Option<(Dims, Span)>>,
    domains: Vec<Domain>,
    found: Diagnostics,
    reduced: Option<Span>,
    gemms: Vec<(Lhs, Span)>,
    /// Whether tiles are of the rows that a rank owns.
    own_rows: bool,
}

impl Inference<'_> {
    fn name(&self, param: ParamId) -> &str {
        self.kernel.params.get(param).map_or("?", |p| p.name.as_str())
    }

    fn error(&mut self, rule: Rule, span: Span, message: String, help: &str) {
        self.found.push(Diagnostic::new(rule, span, message).help(help));
    }

    /// The tensor `param`, used as `rows × cols`.
    fn unify(&mut self, param: ParamId, rows: Dim, cols: Dim, span: Span) {
        let dims = Dims { rows, cols };
        if self.kernel.tensor(param).is_none() {
            let message = format!("`{}` is not a tensor", self.name(param));
            return self.error(Rule::Types, span, message, "pass a tensor parameter");
        }
        match self.dims[param.index()] {
            Some((seen, _)) if seen == dims => {}
            Some((seen, at)) => {
                let name = self.name(param).to_owned();
                let message = format!("`{name}` is {seen} elsewhere and {dims} here");
                let note = format!("`{name}` is {seen} here");
                let diagnostic = Diagnostic::new(Rule::Dimensions, span, message).note(at, note);
                let help = "pass the same data twice under two names if both are meant";
                self.found.push(diagnostic.help(help));
            }
            None => self.dims[param.index()] = Some((dims, span)),
        }
    }

    fn domain(&self, value: Value) -> Domain {
        self.domains.get(value.index()).copied().unwrap_or(Domain::None)
    }

    /// The domain of an elementwise operand, which has to be a tile.
    fn tile(&mut self, value: Value, span: Span) -> Domain {
        let domain = self.domain(value);
        if domain == Domain::None {
            let message = format!("expected a tile, found {value}, which is none");
            self.error(Rule::Types, span, message, "use the result of `gemm` or of a load");
            return Domain::All;
        }
        domain
    }

    /// Checks that a tensor is read and lies where this op reads it.
    fn read(&mut self, param: ParamId, span: Span) -> Domain {
        match self.kernel.tensor(param) {
            Some((_, _, true)) => {
                let message = format!("`{}` is an output and is read here", self.name(param));
                self.error(Rule::Types, span, message, "take a second parameter by `&` for it");
                Domain::All
            }
            Some((Distribution::Sharded, _, false)) if self.own_rows => Domain::All,
            Some((Distribution::Sharded, _, false)) => Domain::Own { reduced: false },
            Some((Distribution::Exchanged, _, false)) => {
                let name = self.name(param).to_owned();
                let message = format!("columns of `{name}` may still be in flight from a peer");
                let help =
                    format!("write `let rows = {name}.wait(tile.rows());` and `rows.load(tile)`");
                self.error(Rule::Types, span, message, &help);
                Domain::All
            }
            Some((Distribution::Gathered, _, false)) => {
                let name = self.name(param).to_owned();
                let message = format!("rows of `{name}` may still be in flight from a peer");
                let help = format!(
                    "write `let rows = {name}.wait(tile.rows());` and `rows.load(tile)`, or declare \
                     `{name}: &Sharded<_>` to read this rank's own rows"
                );
                self.error(Rule::Types, span, message, &help);
                Domain::All
            }
            Some((
                Distribution::Global | Distribution::Scattered | Distribution::Reduced,
                _,
                false,
            ))
            | None => Domain::All,
        }
    }

    fn op(&mut self, op: &Op, span: Span) -> Domain {
        match *op {
            Op::Await { signal, .. } => {
                if self.parts().is_none_or(|parts| parts.signals.get(signal).is_none()) {
                    let message = "expected signals of the kernel's own, found none such";
                    let help = "declare them: `let arrived = signals(world());`";
                    self.error(Rule::Types, span, message.into(), help);
                }
                Domain::None
            }
            Op::Ready { buffer, after } => {
                self.ready(buffer, after, span);
                Domain::None
            }
            Op::Wait { tensor } => {
                self.arrives(tensor, span);
                let arrives = [Distribution::Gathered, Distribution::Exchanged];
                let is_read = |(d, _, written): (_, _, bool)| arrives.contains(&d) && !written;
                if !self.kernel.tensor(tensor).is_some_and(is_read) {
                    let message = format!(
                        "`{}` is not gathered, so nothing has to arrive",
                        self.name(tensor)
                    );
                    self.error(
                        Rule::Types,
                        span,
                        message,
                        "multiply it directly: `gemm(a, b.t(), tile)`",
                    );
                }
                Domain::None
            }
            Op::Gemm { a, b, transposed } => {
                self.gemm(a, b, transposed, span);
                Domain::All
            }
            Op::Cols { tensor } => {
                self.unify(tensor, Dim::One, Dim::N, span);
                if self.read(tensor, span) != Domain::All {
                    let message = format!(
                        "`{}` is sharded by rows, and a vector over columns has one row",
                        self.name(tensor)
                    );
                    self.error(Rule::Types, span, message, "declare it `&Global<_>`");
                }
                Domain::All
            }
            Op::Rows { tensor } => {
                self.unify(tensor, Dim::M, Dim::One, span);
                self.read(tensor, span)
            }
            Op::Load { tensor } => {
                self.unify(tensor, Dim::M, Dim::N, span);
                self.read(tensor, span)
            }
            Op::LoadReady { ready } => {
                if let Some(tensor) = self.waited(ready, span) {
                    self.unify(tensor, Dim::M, Dim::N, span);
                }
                Domain::All
            }
            Op::Const(_) => Domain::All,
            Op::Scalar { param } => {
                if !matches!(self.kernel.params.get(param).map(|p| p.ty), Some(ParamType::Scalar)) {
                    let message = format!("`{}` is not a scalar", self.name(param));
                    self.error(
                        Rule::Types,
                        span,
                        message,
                        "read a tensor by `.cols(tile)`, `.rows(tile)` or `.load(tile)`",
                    );
                }
                Domain::All
            }
            Op::Unary { x, .. } | Op::Cast { x, .. } => self.tile(x, span),
            Op::Binary { x, y, .. } => {
                let (x, y) = (self.tile(x, span), self.tile(y, span));
                match (x, y) {
                    (Domain::Total, Domain::Own { .. }) | (Domain::Own { .. }, Domain::Total) => {
                        let message = "the sum over ranks has every row, the other operand only \
                                       those this rank owns";
                        let help = "declare the sharded tensor `&Global<_>`, the same on every \
                                    rank, or the output `&mut Scattered<_>`";
                        self.error(Rule::Types, span, message.into(), help);
                        Domain::Total
                    }
                    (Domain::Total, _) | (_, Domain::Total) => Domain::Total,
                    (Domain::Own { reduced: a }, Domain::Own { reduced: b }) => {
                        Domain::Own { reduced: a || b }
                    }
                    (Domain::Own { reduced }, _) | (_, Domain::Own { reduced }) => {
                        Domain::Own { reduced }
                    }
                    (Domain::All | Domain::None, Domain::All | Domain::None) => Domain::All,
                }
            }
            Op::Reduce { output, x } => self.reduce(output, x, span),
            Op::Put { buffer, x, .. } => self.put(buffer, x, span),
            Op::Total { buffer, own } => self.total(buffer, own, span),
            Op::Store { output, x } => {
                self.store(output, x, span);
                Domain::None
            }
            // Of the extents of what is kept, which other ops tell.
            Op::Keep { .. } => Domain::None,
        }
    }

    /// A product sums over the rows of what is gathered: it has to stand behind a wait for them.
    fn in_flight(&mut self, param: ParamId, what: &str, span: Span) {
        let before = self.kernel.ops.values().take(self.domains.len());
        let waits = |op: &Op| matches!(op, Op::Wait { tensor } if *tensor == param);
        if !before.map(|entry| &entry.op).any(waits) {
            self.late(param, what, span);
        }
    }

    /// Rows are used that may not have arrived.
    fn late(&mut self, param: ParamId, what: &str, span: Span) {
        let name = self.name(param).to_owned();
        let message = format!("rows of `{name}` may still be in flight from a peer");
        let help = format!("write `let {name} = {name}.wait(tile.{what}());` before it");
        self.error(Rule::Types, span, message, &help);
    }

    /// Whether a product sums over the rows of a tensor.
    fn is_summed(&self, param: ParamId) -> bool {
        let sums = |op: &Op| match *op {
            Op::Gemm { a, b, transposed } => {
                a == Lhs::Transposed(param) || b == param && !transposed
            }
            _ => false,
        };
        self.kernel.ops.values().any(|entry| sums(&entry.op))
    }

    /// What arrives has to arrive in the rows of the tiles.
    fn arrives(&mut self, tensor: ParamId, span: Span) {
        let name = self.name(tensor).to_owned();
        let output = self.name(self.kernel.tiles_of).to_owned();
        match self.kernel.tensor(tensor) {
            Some((Distribution::Gathered, ..)) if self.own_rows && self.is_summed(tensor) => {
                let message = format!(
                    "`{name}` is summed over for all rows, the tiles of `{output}` are of this rank's own"
                );
                let help = format!("declare the output `{output}: &mut Global<_>`");
                self.error(Rule::Types, span, message, &help);
            }
            Some((Distribution::Gathered, ..)) if self.own_rows => {
                let message = format!(
                    "`{name}` is gathered in all rows, the tiles of `{output}` are of this rank's own"
                );
                let help = format!("declare `{name}: &Sharded<_>`: own rows are here already");
                self.error(Rule::Types, span, message, &help);
            }
            Some((Distribution::Exchanged, ..)) if !self.own_rows => {
                let message = format!(
                    "`{name}` arrives in this rank's own rows, the tiles of `{output}` are of all"
                );
                let help = format!("declare the output `{output}: &mut Sharded<_>`");
                self.error(Rule::Types, span, message, &help);
            }
            _ => {}
        }
    }

    /// The tensor whose rows a wait made ready.
    fn waited(&mut self, ready: Value, span: Span) -> Option<ParamId> {
        if let Some(Op::Wait { tensor }) = self.kernel.ops.get(ready).map(|entry| &entry.op) {
            return Some(*tensor);
        }
        let message = format!("expected rows made ready by a wait, found {ready}");
        let help = "multiply a tensor or what `.wait(tile.rows())` gave";
        self.error(Rule::Types, span, message, help);
        None
    }

    fn reduce(&mut self, output: ParamId, x: Value, span: Span) -> Domain {
        self.unify(output, Dim::M, Dim::N, span);
        let yields = match self.kernel.tensor(output) {
            Some((Distribution::Scattered, _, true)) => Domain::Own { reduced: true },
            Some((Distribution::Reduced, _, true)) => Domain::Total,
            _ => {
                let name = self.name(output);
                let message = format!("`{name}` is not scattered, so there is no sum over ranks");
                let help = "declare it `&mut Scattered<_>` or `&mut Reduced<_>`, or use `store`";
                self.error(Rule::Types, span, message, help);
                Domain::Own { reduced: true }
            }
        };
        if self.tile(x, span) != Domain::All {
            let message = "what a rank contributes must exist in every row of the tile";
            self.error(Rule::Types, span, message.into(), "add sharded tensors after the sum: `let total = c.reduce(tile, x); c.store(tile, total + …)`");
        }
        if let Some(first) = self.reduced.replace(span) {
            let message = "a kernel sums over ranks once";
            let diagnostic = Diagnostic::new(Rule::Types, span, message)
                .note(first, "the first sum")
                .help("split the kernel in two");
            self.found.push(diagnostic);
        }
        yields
    }

    fn store(&mut self, output: ParamId, x: Value, span: Span) {
        self.unify(output, Dim::M, Dim::N, span);
        let domain = self.tile(x, span);
        let name = self.name(output).to_owned();
        let tiled = self.name(self.kernel.tiles_of).to_owned();
        match self.kernel.tensor(output) {
            Some((
                Distribution::Global | Distribution::Scattered | Distribution::Reduced,
                _,
                true,
            )) if self.own_rows => {
                let message = format!(
                    "`{name}` takes tiles of all rows, those of `{tiled}` are of this rank's own"
                );
                self.error(Rule::Types, span, message, "store it in a kernel of its own");
            }
            Some((Distribution::Sharded | Distribution::Exchanged, _, true)) if self.own_rows => {}
            Some((Distribution::Sharded | Distribution::Exchanged, _, true)) => {
                let message = format!(
                    "`{name}` takes tiles of this rank's own rows, those of `{tiled}` are of all"
                );
                let help = format!("loop over its tiles: `for tile in {name}.tiles()`");
                self.error(Rule::Types, span, message, &help);
            }
            Some((Distribution::Global, _, true)) if domain == Domain::Total => {
                let message =
                    format!("`{name}` is this rank's own, the stored tile a sum over ranks");
                let help = "declare the output `&mut Reduced<_>`";
                self.error(Rule::Types, span, message, help);
            }
            Some((Distribution::Global, _, true)) if domain != Domain::All => {
                let message =
                    format!("`{name}` has every row, the stored tile only those this rank owns");
                let help = "declare the output `&mut Scattered<_>`";
                self.error(Rule::Types, span, message, help);
            }
            Some((Distribution::Scattered, _, true))
                if domain != (Domain::Own { reduced: true }) =>
            {
                let message = match domain {
                    Domain::Total => {
                        format!("`{name}` keeps this rank's rows, the stored tile has every row")
                    }
                    Domain::None | Domain::All | Domain::Own { .. } => format!(
                        "`{name}` takes the sum over ranks, found a tile of this rank alone"
                    ),
                };
                let help = format!(
                    "write `{name}.add(tile, …)`, or store what `{name}.reduce(tile, …)` gave"
                );
                self.error(Rule::Types, span, message, &help);
            }
            Some((Distribution::Reduced, _, true)) if domain != Domain::Total => {
                let message = match domain {
                    Domain::Own { .. } => {
                        format!("`{name}` has every row, the stored tile only those this rank owns")
                    }
                    Domain::None | Domain::All | Domain::Total => format!(
                        "`{name}` takes the sum over ranks, found a tile of this rank alone"
                    ),
                };
                let help = format!(
                    "write `{name}.add(tile, …)`, or store what `{name}.reduce(tile, …)` gave"
                );
                self.error(Rule::Types, span, message, &help);
            }
            Some((
                Distribution::Global | Distribution::Scattered | Distribution::Reduced,
                _,
                true,
            )) => {}
            Some((Distribution::Gathered, _, true)) => {
                let message = format!("`{name}` cannot be written");
                self.error(
                    Rule::Types,
                    span,
                    message,
                    "outputs are `&mut Global<_>`, `&mut Scattered<_>` or `&mut Reduced<_>`",
                );
            }
            Some((_, _, false)) => {
                let message = format!("`{name}` is an input and is stored to here");
                self.error(
                    Rule::Types,
                    span,
                    message,
                    "declare it `&mut Global<_>`, `&mut Scattered<_>` or `&mut Reduced<_>`",
                );
            }
            None => {}
        }
    }

    /// Gathered tensors arrive in the rows of the tiles, or in rows that are summed over.
    fn gathered_alike(&mut self) {
        let gathered = |&param: &ParamId| {
            matches!(self.kernel.tensor(param), Some((Distribution::Gathered, ..)))
        };
        let rows = |param: ParamId| self.dims[param.index()].map(|(dims, at)| (dims.rows, at));
        let found = self.kernel.params.handles().filter(gathered);
        let found: Vec<_> = found.filter_map(|param| Some((param, rows(param)?))).collect();
        let [(first, (dim, at)), others @ ..] = found.as_slice() else { return };
        if let Some((param, (other, span))) = others.iter().find(|(_, (other, _))| other != dim) {
            let (first, name) = (self.name(*first), self.name(*param));
            let message = format!("gathered rows are {dim} of `{first}` and {other} of `{name}`");
            let diagnostic = Diagnostic::new(Rule::Dimensions, *span, message)
                .note(*at, format!("`{first}` is used here"))
                .help("split the kernel in two");
            self.found.push(diagnostic);
        }
    }

    /// Rules on the kernel as a whole: every output is stored once, every parameter is used, every
    /// sum is stored.
    fn whole(&mut self) {
        let mut stores = vec![Vec::new(); self.kernel.params.len()];
        for entry in self.kernel.ops.values() {
            if let Op::Store { output, .. } | Op::Keep { output, .. } = entry.op
                && let Some(spans) = stores.get_mut(output.index())
            {
                spans.push(entry.span);
            }
        }
        // What is kept stands behind the tiles' ops, and ahead of them in the source.
        stores
            .iter_mut()
            .for_each(|spans| spans.sort_by_key(|span: &Span| (span.line, span.column)));
        self.gathered_alike();
        self.summed_once();
        for (id, param) in self.kernel.params.iter() {
            let ParamType::Tensor { distribution, written, .. } = param.ty else { continue };
            let spans = &stores[id.index()];
            if written && let [first, second, ..] = spans.as_slice() {
                let kept =
                    |entry: &OpEntry| matches!(entry.op, Op::Keep { output, .. } if output == id);
                let (message, note) = match self.kernel.ops.values().any(kept) {
                    true => (format!("`{}` is written twice", param.name), "the first time"),
                    false => {
                        (format!("`{}` is stored twice in a tile", param.name), "the first store")
                    }
                };
                self.found.push(
                    Diagnostic::new(Rule::WrittenTwice, *second, message)
                        .note(*first, note)
                        .help("keep one"),
                );
            } else if written && spans.is_empty() {
                let verb = match distribution {
                    Distribution::Scattered | Distribution::Reduced => "add",
                    Distribution::Global
                    | Distribution::Gathered
                    | Distribution::Sharded
                    | Distribution::Exchanged => "store",
                };
                let message = format!("output `{}` is never written", param.name);
                let help =
                    format!("write `{}.{verb}(tile, …)` or take the parameter away", param.name);
                self.error(Rule::NeverWritten, param.span, message, &help);
            } else if self.dims[id.index()].is_none() {
                let message = format!(
                    "parameter `{}` is never used, so its dimensions are unknown",
                    param.name
                );
                self.error(Rule::Dimensions, param.span, message, "use it or take it away");
            }
        }
    }
}
