//! Protocols of the user's own: workspace, signals and roles.

use super::index::{owners, shard, shard_rows};
use super::{Bound, Reader};
use crate::function::text_of_name;
use crate::position::{at, position};
use crate::signature::written_element;
use flux_ir::kernel::{Op as KernelOp, Protocol};
use flux_ir::program::{
    Agent, Buffer, BufferId, BufferKind, Engine, Expr as Index, Home, Op, Range, SignalArray, Stmt,
    Sym, Var, VarId,
};
use flux_ir::{Element, Span};
use syn::{Expr, ExprForLoop, ExprIf, Lit, Pat, PathArguments};

/// The functions of protocols that kernels call by name, with how each is written.
pub(super) const FUNCTIONS: [(&str, &str); 11] = [
    ("symmetric", "symmetric::<bf16>(Extent::M, Extent::K)"),
    ("flagged", "flagged::<bf16>(Extent::M, Extent::N)"),
    ("signals", "signals(world())"),
    ("role", "role(\"forward\", || { … })"),
    ("rank", "rank()"),
    ("world", "world()"),
    ("shard_rows", "shard_rows()"),
    ("shard", "shard(source)"),
    ("owners", "owners(tile.rows())"),
    ("k_slice", "k_slice(index, slices)"),
    ("zeros", "zeros()"),
];

/// Where a statement stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    /// Ahead of the loop over tiles.
    Kernel,
    Role,
    Tile,
    /// In a loop over slices of k.
    Slice,
    /// In a loop over the ranks that a tile is put to.
    Puts,
}

/// A function of protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Function {
    name: &'static str,
    usage: &'static str,
    /// The element type of `symmetric::<T>`.
    element: Option<Element>,
}

impl<'a> Reader<'a> {
    /// The function of protocols called `name`.
    pub(super) fn protocol_function(
        &mut self,
        name: &str,
        arguments: &PathArguments,
    ) -> Option<Function> {
        let (name, usage) = FUNCTIONS.into_iter().find(|(known, _)| *known == name)?;
        let element = written_element(arguments).map(|(written, element)| {
            if !self.casts.iter().any(|(known, _)| known == written) {
                self.casts.push((written.clone(), element));
            }
            element
        });
        Some(Function { name, usage, element })
    }

    /// What is written beside the tile loop; made by the first use.
    pub(super) fn protocol(&mut self) -> &mut Protocol {
        self.protocol.get_or_insert_with(|| Protocol::new(""))
    }

    /// The name of the `let` at hand, or another that nothing has.
    fn fresh(&mut self, taken: impl Fn(&Protocol, &str) -> bool, otherwise: &str) -> String {
        let base = self.binding.clone().unwrap_or_else(|| otherwise.to_owned());
        let params: Vec<_> = self.params.values().map(|param| param.name.clone()).collect();
        let protocol = self.protocol();
        let free = |name: &String| !taken(protocol, name) && !params.contains(name);
        let numbered = (2..).map(|number| format!("{base}{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        names.find(free).expect("there are more numbers than names")
    }

    fn variable(&mut self, name: &str) -> VarId {
        let taken = |protocol: &Protocol, name: &str| {
            protocol.parts.vars.values().any(|var| var.name == name)
        };
        let before = self.binding.replace(name.to_owned());
        let name = self.fresh(taken, name);
        self.binding = before;
        self.protocol().parts.vars.push(Var { name })
    }

    /// Appends a statement to the role at hand.
    pub(super) fn act(&mut self, op: Op, span: Span) {
        if let Some(body) = self.bodies.last_mut() {
            body.push(Stmt { op, span });
        }
    }

    pub(super) fn call_protocol(
        &mut self,
        function: Function,
        args: &[&'a Expr],
        span: Span,
    ) -> Bound<'a> {
        let Function { name, usage, element } = function;
        let expected = match name {
            "symmetric" | "flagged" | "role" | "k_slice" => 2,
            "signals" | "shard" | "owners" => 1,
            _ => 0,
        };
        if args.len() != expected {
            return self.wrong_arity(name, expected, args.len(), span, usage);
        }
        match (name, args) {
            ("rank", _) => Bound::Index(Sym::Rank.into()),
            ("world", _) => Bound::Index(Sym::World.into()),
            ("shard_rows", _) => Bound::Index(shard_rows()),
            ("zeros", _) => Bound::Zeros,
            ("shard", [rank]) => match self.index(rank) {
                Some(rank) => Bound::Range(shard(rank)),
                None => Bound::Broken,
            },
            ("owners", [rows]) => match self.rows_of(rows) {
                Some(rows) => Bound::Range(owners(&rows)),
                None => Bound::Broken,
            },
            ("k_slice", [index, slices]) => match (self.index(index), self.index(slices)) {
                (Some(index), Some(slices)) => Bound::Range(Protocol::slice(&index, &slices)),
                _ => Bound::Broken,
            },
            ("signals", [len]) => self.signals(len, span),
            ("symmetric", [rows, cols]) => match self.symmetric(element, [*rows, *cols], span) {
                Some(buffer) => Bound::Workspace(buffer),
                None => Bound::Broken,
            },
            ("flagged", [rows, cols]) => match self.symmetric(element, [*rows, *cols], span) {
                Some(buffer) => {
                    self.protocol().parts.buffers[buffer].planes = vec![Sym::World.into()];
                    Bound::Flagged(buffer)
                }
                None => Bound::Broken,
            },
            ("role", [name, body]) => self.role(name, body, span),
            _ => unreachable!("every function of FUNCTIONS with its arity"),
        }
    }

    /// Declarations stand ahead of roles and loop.
    fn declared_outside(&mut self, what: &str, span: Span) -> bool {
        let outside = self.within == Within::Kernel;
        if !outside {
            let help = "move it to the begin of the kernel";
            self.refuse(span, format!("{what} are declared ahead of roles and tiles"), help);
        }
        outside
    }

    fn signals(&mut self, len: &'a Expr, span: Span) -> Bound<'a> {
        let Some(len) = self.index(len) else { return Bound::Broken };
        if !self.declared_outside("signals", span) {
            return Bound::Broken;
        }
        let taken = |protocol: &Protocol, name: &str| {
            protocol.parts.signals.values().any(|signal| signal.name == name)
        };
        let name = self.fresh(taken, "signals");
        let array = SignalArray { name, len, home: Home::Device, carrier: None };
        Bound::Signals(self.protocol().parts.signals.push(array))
    }

    fn symmetric(
        &mut self,
        element: Option<Element>,
        extents: [&'a Expr; 2],
        span: Span,
    ) -> Option<BufferId> {
        let [rows, cols] = extents.map(|expr| self.extent(expr));
        let (rows, cols) = (rows?, cols?);
        let Some(element) = element else {
            let help = "write `symmetric::<bf16>(Extent::M, Extent::K)`";
            self.mistyped(span, "expected an element type for the workspace", help);
            return None;
        };
        if !self.declared_outside("workspaces", span) {
            return None;
        }
        let taken = |protocol: &Protocol, name: &str| {
            protocol.parts.buffers.values().any(|buffer| buffer.name == name)
        };
        let name = self.fresh(taken, "workspace");
        Some(self.declare(name, BufferKind::Symmetric, element, [rows, cols], span))
    }

    pub(super) fn declare(
        &mut self,
        name: String,
        kind: BufferKind,
        element: Element,
        [rows, cols]: [Sym; 2],
        span: Span,
    ) -> BufferId {
        self.protocol().parts.buffers.push(Buffer {
            name,
            kind,
            sums: false,
            element,
            planes: Vec::new(),
            rows: rows.into(),
            first_row: 0i64.into(),
            first_col: 0i64.into(),
            cols: cols.into(),
            span,
        })
    }

    fn extent(&mut self, expr: &'a Expr) -> Option<Sym> {
        match self.expression(expr) {
            Bound::Extent(sym) => Some(sym),
            Bound::Broken => None,
            _ => {
                let help = "a workspace is as large as the problem: `Extent::M`, `N` or `K`";
                self.mistyped(position(expr), "expected an extent", help);
                None
            }
        }
    }

    /// `role("name", || { … })`.
    fn role(&mut self, name: &'a Expr, body: &'a Expr, span: Span) -> Bound<'a> {
        if self.within != Within::Kernel {
            let help = "move it ahead of the loop over tiles";
            return self.refuse(span, "a role stands beside the loop over tiles", help);
        }
        let usage = "write `role(\"forward\", || { … })`";
        let Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) = super::expression::strip(name)
        else {
            return self.mistyped(position(name), "expected the role's name in quotes", usage);
        };
        let Expr::Closure(closure) = super::expression::strip(body) else {
            return self.mistyped(position(body), "expected what the role does", usage);
        };
        if let Some(input) = closure.inputs.first() {
            return self.mistyped(position(input), "a role takes no arguments", usage);
        }
        let name = text.value();
        if self.protocol().parts.agents.values().any(|role| role.name == name) {
            let help = "give each role a name of its own";
            return self.refuse(position(text), format!("there are two roles `{name}`"), help);
        }
        self.within = Within::Role;
        self.bodies.push(Vec::new());
        let depth = self.names.len();
        self.expression(&closure.body);
        self.names.truncate(depth);
        let body = self.bodies.pop().unwrap_or_default();
        self.within = Within::Kernel;
        let role = Agent { name, engine: Engine::CopyEngine, body, exit: Vec::new() };
        self.protocol().parts.agents.push(role);
        Bound::Role
    }

    /// `for hop in 0..world() { … }` in a role; `for k in tile.k_slices(4) { … }` in a tile.
    pub(super) fn for_loop(&mut self, for_loop: &'a ExprForLoop) -> Bound<'a> {
        let span = at(for_loop.for_token.span);
        match self.within {
            Within::Role => {}
            Within::Tile => return self.tile_loop_within(for_loop, span),
            Within::Kernel | Within::Slice | Within::Puts => return self.inner_loop(span),
        }
        let range = match self.expression(&for_loop.expr) {
            Bound::Range(range) => range,
            Bound::Broken => return Bound::Broken,
            _ => {
                let help = "write `for hop in 0..world() { … }`";
                let position = position(&*for_loop.expr);
                return self.mistyped(position, "expected a range of integers", help);
            }
        };
        let Some(name) = self.loop_name(&for_loop.pat) else { return Bound::Broken };
        let var = self.variable(&name);
        let depth = self.names.len();
        self.names.push((name, Bound::Index(var.into())));
        let body = self.nested(|reader| reader.statements(&for_loop.body.stmts));
        self.names.truncate(depth);
        let Range { lo: from, hi: to } = range;
        self.act(Op::For { var, from, to, step: 1i64.into(), body }, span);
        Bound::Unit
    }

    pub(super) fn loop_name(&mut self, pattern: &'a Pat) -> Option<String> {
        match pattern {
            Pat::Ident(pattern) if pattern.subpat.is_none() && pattern.mutability.is_none() => {
                Some(text_of_name(&pattern.ident))
            }
            Pat::Wild(_) => Some("i".to_owned()),
            pattern => {
                let help = "write `for hop in 0..world()`";
                self.refuse(position(pattern), "expected a name, found a pattern", help);
                None
            }
        }
    }

    /// Statements of a role's loop or condition.
    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Bound<'a>) -> Vec<Stmt> {
        self.bodies.push(Vec::new());
        read(self);
        self.bodies.pop().unwrap_or_default()
    }

    /// `if hop > 0 { … } else { … }` in a role.
    pub(super) fn role_condition(&mut self, inner: &'a ExprIf, span: Span) -> Bound<'a> {
        let Some([holds, fails]) = self.condition(&inner.cond) else { return Bound::Broken };
        let body = self.nested(|reader| reader.block(&inner.then_branch));
        self.act(Op::If { cond: holds, body }, span);
        if let Some((_, otherwise)) = &inner.else_branch {
            let body = self.nested(|reader| reader.expression(otherwise));
            self.act(Op::If { cond: fails, body }, span);
        }
        Bound::Unit
    }

    /// `for k in tile.k_slices(4) { … }`, or `for hop in 1..world() { … }` that puts the tile.
    fn tile_loop_within(&mut self, for_loop: &'a ExprForLoop, span: Span) -> Bound<'a> {
        let slices = match self.expression(&for_loop.expr) {
            Bound::Slices(slices) => slices,
            Bound::Range(hops) if self.has_flagged() => return self.put_loop(for_loop, hops),
            Bound::Broken => return Bound::Broken,
            _ => return self.inner_loop(span),
        };
        if self.protocol().slices.is_some() {
            let help = "put all products of the tile into one loop";
            return self.refuse(span, "a tile has one loop over slices", help);
        }
        let Some(name) = self.loop_name(&for_loop.pat) else { return Bound::Broken };
        self.protocol().slices = Some(slices);
        self.within = Within::Slice;
        // Sums stay known behind the loop; what it defines itself does not.
        let outer = self.names.len();
        self.names.push((name, Bound::Slice));
        for statement in &for_loop.body.stmts {
            self.statement(statement);
        }
        self.names.truncate(outer);
        self.within = Within::Tile;
        Bound::Unit
    }

    /// `acc += gemm(a, b.t(), k)`.
    pub(super) fn accumulate(&mut self, left: &'a Expr, right: &'a Expr, span: Span) -> Bound<'a> {
        if self.within != Within::Slice {
            return self.assigned(span);
        }
        let product = match self.expression(right) {
            Bound::Value(value) if matches!(self.ops[value].op, KernelOp::Gemm { .. }) => value,
            Bound::Broken => return Bound::Broken,
            _ => {
                let help = "write `acc += gemm(a, b.t(), k);`";
                return self.mistyped(position(right), "expected the product of a slice", help);
            }
        };
        let name = match super::expression::strip(left) {
            Expr::Path(path) => path.path.get_ident().map(text_of_name),
            _ => None,
        };
        let known = self.names.iter_mut().rev().find(|(known, _)| Some(known) == name.as_ref());
        match known {
            Some((_, bound @ Bound::Zeros)) => {
                *bound = Bound::Value(product);
                Bound::Unit
            }
            _ => {
                let help = "begin it with `let mut acc = zeros();`, and add one product to it";
                self.refuse(position(left), "expected a sum that begins with zeros", help)
            }
        }
    }

    /// A `let` of a role: a variable, where the value is more than a number or a name.
    pub(super) fn named(&mut self, name: &str, bound: Bound<'a>, span: Span) -> Bound<'a> {
        match bound {
            Bound::Index(value @ Index::Bin(..)) if self.within == Within::Role => {
                let var = self.variable(name);
                self.act(Op::Let { var, value }, span);
                Bound::Index(var.into())
            }
            other => other,
        }
    }
}
