//! The body of a kernel to ops.
//!
//! The statements are *evaluated*, once, over what the names stand for ([`Bound`]): a call of a
//! helper function or a closure simply evaluates its body, and every operation on tiles appends
//! an op. So `let`, shadowing, blocks, closures and helpers leave no trace in Kernel IR.

mod call;
mod constant;
mod expression;
mod index;
mod method;
mod moves;
mod protocol;
mod statement;
mod sums;

use crate::conditional::conditions;
use crate::function::{Function, text_of_name};
use crate::limits::{deep_expression, nested_too_deep, too_deep};
use crate::module::ModuleScope;
use crate::position::{at, position};
use crate::signature::parse_signature;
use flux_ir::arena::Arena;
use flux_ir::kernel::{
    Binary, Distribution, Kernel, Lhs, Op, OpEntry, Param, ParamId, ParamType, Protocol, Unary,
    Value,
};
use flux_ir::program::{BufferId, Expr as Index, Place, Range, SignalId, Sym};
use flux_ir::{Diagnostic, Diagnostics, Element, Rule, Span};
use protocol::Within;
use quote::ToTokens;
use std::collections::BTreeSet;
use std::rc::Rc;
use syn::visit::Visit;
use syn::{Expr, ExprClosure, ExprForLoop, Pat, Stmt};

/// Reads a kernel. `scope` holds what it can see besides its own parameters.
///
/// # Errors
/// Everything in the signature and in the body that the language does not have, each at the
/// user's token with what to write instead. A body that does not parse gives [`Rule::Syntax`],
/// which rustc reports by itself.
pub fn parse_kernel(function: &Function, scope: &ModuleScope) -> Result<Kernel, Diagnostics> {
    read_kernel(function, scope).map(|reading| reading.kernel)
}

/// A kernel with what else its source said.
#[derive(Debug)]
pub struct Reading {
    /// The kernel.
    pub kernel: Kernel,
    /// The functions of the language that it uses, once each, as they were written and without
    /// type arguments. Only the compiler knows whether these names mean what was taken for
    /// granted.
    pub functions: Vec<syn::Path>,
    /// The types to which it casts, as they were written and as they were read, once each.
    pub casts: Vec<(syn::Type, Element)>,
}

/// As [`parse_kernel`], with the names it relied on.
///
/// # Errors
/// Those of [`parse_kernel`].
pub fn read_kernel(function: &Function, scope: &ModuleScope) -> Result<Reading, Diagnostics> {
    let (parameters, mut errors) = parse_signature(function);
    let statements = match &function.statements {
        Ok(statements) => statements,
        Err(error) => {
            errors.push(Diagnostic::new(Rule::Syntax, at(error.span()), error.to_string()));
            return Err(errors);
        }
    };
    if let Some(token) = too_deep(function.body.stream()) {
        errors.push(nested_too_deep(at(token)));
        return Err(errors);
    }
    let deep = deep_expression(|depth| statements.iter().for_each(|s| depth.visit_stmt(s)));
    if let Some(deep) = deep {
        errors.push(deep);
        return Err(errors);
    }
    errors.0.extend(conditions(function.sig.to_token_stream()));
    errors.0.extend(conditions(function.body.stream()));
    let mut reader = Reader { scope, errors, ..Reader::new(scope) };
    for parameter in &parameters {
        let name = text_of_name(&parameter.name);
        let bound = match parameter.ty {
            Some(ty) => {
                let span = at(parameter.name.span());
                let id = reader.params.push(Param { name: name.clone(), ty, span });
                match ty {
                    ParamType::Tensor { .. } => Bound::Tensor(id),
                    ParamType::Scalar => Bound::Scalar(id),
                }
            }
            None => Bound::Broken,
        };
        reader.names.push((name, bound));
    }
    let tile_loop = reader.kernel_body(statements, function);
    let functions = std::mem::take(&mut reader.functions);
    let casts = std::mem::take(&mut reader.casts);
    let kernel = reader.finish(function, tile_loop)?;
    Ok(Reading { kernel, functions, casts })
}

/// What a name or an expression stands for.
#[derive(Debug, Clone)]
enum Bound<'a> {
    Tensor(ParamId),
    Scalar(ParamId),
    /// `b.t()`
    Transposed(ParamId),
    /// The loop's tile.
    Tile,
    /// `tile.rows()`
    TileRows,
    /// `tile.reduction()`
    TileReduction,
    /// Rows that a wait made ready.
    Ready(Value),
    /// Rows that a product may sum over: what was waited for, and by which wait.
    Summed(ParamId, Value),
    /// The same, transposed.
    SummedTransposed(ParamId, Value),
    /// A tile of f32, or a number.
    Value(Value),
    Callable(Callable<'a>),
    /// An integer of a protocol.
    Index(Index),
    /// `0..world()`, or rows.
    Range(Range),
    /// `Extent::M`
    Extent(Sym),
    /// `symmetric::<T>(…)`
    Workspace(BufferId),
    /// `flagged::<T>(…)`
    Flagged(BufferId),
    /// `signals(…)`
    Signals(SignalId),
    /// What a wait gives: in a tile its op, in a role nothing but the order of statements.
    Arrived(Option<Value>),
    /// Rows (and columns) of a shard, to be copied.
    Own(ParamId, Range, Option<Range>),
    /// Rows of workspace that are there, to be copied.
    Part(Place),
    /// What a put gives.
    Sent,
    /// `tile.k_slices(n)`
    Slices(Index),
    /// The slice of the loop.
    Slice,
    /// `zeros()`: a sum without products yet.
    Zeros,
    /// A role, or what else runs beside the loop, that has been read.
    Role,
    /// Nothing: the result of a store.
    Unit,
    /// An error has been reported; whatever uses this is silent.
    Broken,
}

#[derive(Debug, Clone)]
enum Callable<'a> {
    Closure(Rc<Closure<'a>>),
    Unary(Unary),
    Binary(Binary),
    Cast(Option<Element>),
    Protocol(protocol::Function),
    Gemm,
    Helper(&'a Function),
}

#[derive(Debug)]
struct Closure<'a> {
    closure: &'a ExprClosure,
    /// The names it can see, as they were where it was written.
    names: Vec<(String, Bound<'a>)>,
}

struct Wait {
    value: Value,
    tensor: ParamId,
    span: Span,
    used: bool,
}

/// `a.all_gather_into(all)`
struct Keep {
    tensor: ParamId,
    output: ParamId,
    span: Span,
}

struct Reader<'a> {
    scope: &'a ModuleScope,
    errors: Diagnostics,
    params: Arena<ParamId, Param>,
    ops: Arena<Value, OpEntry>,
    /// Innermost last.
    names: Vec<(String, Bound<'a>)>,
    /// The protocol, where the kernel has one.
    protocol: Option<Protocol>,
    /// Where the statement at hand stands.
    within: Within,
    /// The range of the loop over ranks at hand, that a tile is put to.
    hops: Option<Range>,
    /// The bodies of the role at hand, the innermost last.
    bodies: Vec<Vec<flux_ir::program::Stmt>>,
    /// The name of the `let` at hand.
    binding: Option<String>,
    /// Helper functions being evaluated.
    inlining: Vec<String>,
    /// Closures being evaluated.
    closures: usize,
    waits: Vec<Wait>,
    keeps: Vec<Keep>,
    /// Functions of the language that were used, as they were written.
    functions: Vec<syn::Path>,
    /// Types to which is cast.
    casts: Vec<(syn::Type, Element)>,
    /// Values that are numbers to rustc, not tiles.
    numbers: BTreeSet<Value>,
    /// Expressions being evaluated.
    depth: usize,
    /// Expressions evaluated.
    steps: usize,
    /// Whether the kernel has been given up as too large.
    exhausted: bool,
}

/// Operations of a kernel: helpers that call helpers twice grow exponentially.
const MOST_OPS: usize = 4096;

/// Expressions evaluated for a kernel, those that yield no operation included.
const MOST_STEPS: usize = 16 * MOST_OPS;

impl<'a> Reader<'a> {
    fn new(scope: &'a ModuleScope) -> Self {
        Reader {
            scope,
            errors: Diagnostics::new(),
            params: Arena::new(),
            ops: Arena::new(),
            names: Vec::new(),
            protocol: None,
            within: Within::Kernel,
            hops: None,
            bodies: Vec::new(),
            binding: None,
            inlining: Vec::new(),
            closures: 0,
            waits: Vec::new(),
            keeps: Vec::new(),
            functions: Vec::new(),
            casts: Vec::new(),
            numbers: BTreeSet::new(),
            depth: 0,
            steps: 0,
            exhausted: false,
        }
    }

    /// Reports what the language does not have.
    fn refuse(
        &mut self,
        span: Span,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Bound<'a> {
        self.report(Diagnostic::new(Rule::Language, span, message).help(help))
    }

    /// Reports an operand or a name that does not fit.
    fn mistyped(
        &mut self,
        span: Span,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Bound<'a> {
        self.report(Diagnostic::new(Rule::Types, span, message).help(help))
    }

    /// A helper that is called twice is evaluated twice: its mistakes are reported once.
    fn report(&mut self, diagnostic: Diagnostic) -> Bound<'a> {
        let known = |d: &Diagnostic| d.span == diagnostic.span && d.message == diagnostic.message;
        if !self.errors.0.iter().any(known) {
            self.errors.push(diagnostic);
        }
        Bound::Broken
    }

    fn emit(&mut self, op: Op, span: Span) -> Value {
        if let Op::Gemm { a: Lhs::Ready(ready), .. } | Op::LoadReady { ready } = op
            && let Some(wait) = self.waits.iter_mut().find(|wait| wait.value == ready)
        {
            wait.used = true;
        }
        let number = match op {
            Op::Const(_) | Op::Scalar { .. } => true,
            Op::Unary { x, .. } => self.numbers.contains(&x),
            Op::Binary { x, y, .. } => self.numbers.contains(&x) && self.numbers.contains(&y),
            Op::Wait { .. }
            | Op::Await { .. }
            | Op::Ready { .. }
            | Op::Gemm { .. }
            | Op::Cols { .. }
            | Op::Rows { .. }
            | Op::Load { .. }
            | Op::LoadReady { .. }
            | Op::Cast { .. }
            | Op::Reduce { .. }
            | Op::Put { .. }
            | Op::Total { .. }
            | Op::Store { .. }
            | Op::Keep { .. } => false,
        };
        let value = self.ops.push(OpEntry { op, span });
        if number {
            self.numbers.insert(value);
        }
        value
    }

    /// Notes that what a wait made ready is multiplied.
    fn waited(&mut self, value: Value) {
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.value == value) {
            wait.used = true;
        }
    }

    fn name_of(&self, param: ParamId) -> String {
        self.params[param].name.clone()
    }

    /// Distribution and whether written, of a tensor.
    fn tensor(&self, param: ParamId) -> (Distribution, bool) {
        match self.params[param].ty {
            ParamType::Tensor { distribution, written, .. } => (distribution, written),
            ParamType::Scalar => unreachable!("only tensors are bound as tensors"),
        }
    }

    fn outputs(&self) -> Vec<ParamId> {
        let written = |p: &Param| matches!(p.ty, ParamType::Tensor { written: true, .. });
        self.params.iter().filter(|(_, p)| written(p)).map(|(id, _)| id).collect()
    }

    /// The statements of the kernel: definitions, then the one loop over tiles.
    fn kernel_body(
        &mut self,
        statements: &'a [Stmt],
        function: &Function,
    ) -> Option<(ParamId, Span)> {
        let mut found = None;
        for statement in statements {
            let tile_loop = match statement {
                Stmt::Expr(Expr::ForLoop(tile_loop), _) => tile_loop,
                Stmt::Expr(expr, _) if !matches!(expr, Expr::Verbatim(_)) => {
                    self.statement_outside_loop(expr);
                    continue;
                }
                other => {
                    self.statement(other);
                    continue;
                }
            };
            let span = at(tile_loop.for_token.span);
            if found.is_some() {
                let help = "several outputs are stored in the same loop; a second product is a \
                    second kernel";
                self.refuse(span, "a kernel has one loop over tiles", help);
                continue;
            }
            let output = self.tile_loop(tile_loop);
            found = Some((output, span));
        }
        let Some((output, span)) = found else {
            let output = self.outputs().first().map_or("c".to_owned(), |id| self.name_of(*id));
            let help = format!("write `for tile in {output}.tiles() {{ … }}`");
            let span = at(function.sig.ident.span());
            if self.errors.is_empty() {
                self.refuse(span, "a kernel needs a loop over the tiles of an output", help);
            }
            return None;
        };
        output.map(|output| (output, span))
    }

    fn statement_outside_loop(&mut self, expr: &'a Expr) {
        let span = position(expr);
        match self.expression(expr) {
            Bound::Broken | Bound::Role => return,
            _ => {}
        }
        let help = "move it into `for tile in c.tiles() { … }`";
        self.refuse(span, "only definitions stand outside of the loop over tiles", help);
    }

    /// `for tile in c.tiles() { … }`; yields `c`.
    fn tile_loop(&mut self, tile_loop: &'a ExprForLoop) -> Option<ParamId> {
        if let Some(label) = &tile_loop.label {
            self.refuse(position(label), "the loop over tiles has no label", "remove it");
        }
        let output = self.tiles_of(&tile_loop.expr);
        let depth = self.names.len();
        match &*tile_loop.pat {
            Pat::Ident(pattern) => self.names.push((text_of_name(&pattern.ident), Bound::Tile)),
            Pat::Wild(_) => {}
            pattern => {
                let span = position(pattern);
                self.refuse(
                    span,
                    "expected a name for the tile, found a pattern",
                    "write `for tile in c.tiles()`",
                );
            }
        }
        self.within = Within::Tile;
        self.statements(&tile_loop.body.stmts);
        self.within = Within::Kernel;
        self.names.truncate(depth);
        output
    }

    fn tiles_of(&mut self, expr: &'a Expr) -> Option<ParamId> {
        let help = match self.outputs().first() {
            Some(output) => format!("write `for tile in {}.tiles()`", self.name_of(*output)),
            None => "add an output, `c: &mut Global<bf16>`, and write `for tile in c.tiles()`"
                .to_owned(),
        };
        let expr = expression::strip(expr);
        let Expr::MethodCall(call) = expr else {
            let message = "expected a loop over the tiles of an output";
            self.refuse(position(expr), message, help);
            return None;
        };
        let receiver = self.expression(&call.receiver);
        let span = at(call.method.span());
        match receiver {
            Bound::Broken => None,
            Bound::Tensor(param) if call.method == "tiles" => {
                if !call.args.is_empty() {
                    self.mistyped(span, "`tiles` takes no arguments", help);
                    return None;
                }
                if !self.tensor(param).1 {
                    let message = format!(
                        "`{}` is an input; a kernel goes over the tiles of an output",
                        self.name_of(param)
                    );
                    self.refuse(span, message, help);
                    return None;
                }
                Some(param)
            }
            _ => {
                let message = "expected a loop over the tiles of an output";
                self.refuse(span, message, help);
                None
            }
        }
    }

    /// Rows are kept once they have arrived, for which the loop waits.
    fn keep_gathered(&mut self) {
        for Keep { tensor, output, span } in std::mem::take(&mut self.keeps) {
            let wait = self.waits.iter().find(|wait| wait.tensor == tensor);
            if let Some(rows) = wait.map(|wait| wait.value) {
                self.emit(Op::Keep { output, rows }, span);
                continue;
            }
            let name = self.name_of(tensor);
            let message = format!("`{name}` is gathered here and used by no tile");
            let help = format!(
                "write `let {name} = {name}.wait(tile.rows());` in the loop and multiply with it; \
                 `flux::kernels::all_gather` gathers alone"
            );
            self.refuse(span, message, help);
        }
    }

    /// The rules on the kernel as a whole.
    fn finish(
        mut self,
        function: &Function,
        tile_loop: Option<(ParamId, Span)>,
    ) -> Result<Kernel, Diagnostics> {
        self.keep_gathered();
        for wait in std::mem::take(&mut self.waits) {
            if !wait.used {
                let tensor = self.name_of(wait.tensor);
                let message = format!("the rows of `{tensor}` are waited for and never used");
                let help = format!(
                    "write `let {tensor} = {tensor}.wait(tile.rows());` and multiply with it, or \
                        remove the wait"
                );
                self.refuse(wait.span, message, help);
            }
        }
        let span = at(function.sig.ident.span());
        match tile_loop {
            Some((tiles_of, loop_span)) => self.errors.into_result(Kernel {
                name: function.name(),
                params: self.params,
                tiles_of,
                loop_span,
                ops: self.ops,
                protocol: self.protocol.map(|mut protocol| {
                    protocol.parts.name = function.name();
                    Box::new(protocol)
                }),
                span,
            }),
            None => Err(self.errors),
        }
    }
}
