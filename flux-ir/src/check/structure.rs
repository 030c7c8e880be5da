//! What a Program must satisfy before any number is known: every handle points somewhere, names
//! are bound before use, and each statement is one its engine can do.

use super::{flags, network};
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::program::{
    Agent, At, BufferId, BufferKind, Cond, Engine, Expr, Home, LOADS, Op, Place, Product, Program,
    Range, SignalId, Stmt, Sym, Update, ValueId, ValueOp, VarId,
};
use crate::span::Span;

/// The largest extent of a tile: far above any target's, so that arithmetic on tiles stays in
/// 32 bits.
const TILE_LIMIT: u32 = 1 << 16;

/// Every structural rule `program` breaks. Where there is none, evaluation cannot go astray.
pub(super) fn check(program: &Program) -> Diagnostics {
    let mut checker = Checker {
        program,
        found: Diagnostics::new(),
        bound: vec![false; program.vars.len()],
        depends: Vec::new(),
        products: 0,
        sums: false,
        loads: 0,
        waits_on: None,
        span: Span::UNKNOWN,
    };
    checker.tile();
    checker.declarations();
    checker.values();
    for agent in program.agents.values() {
        checker.agent(agent);
    }
    checker.updates();
    flags::structure(program, &mut checker.found);
    network::structure(program, &mut checker.found);
    checker.found
}

/// What a value needs to have been computed before it is stored.
#[derive(Clone, Copy, Default)]
struct Needs {
    /// Accumulators: the highest index and one.
    products: u32,
    /// The sum over ranks.
    sum: bool,
    /// Tiles in workspace: a bit each.
    loads: u32,
}

struct Checker<'p> {
    program: &'p Program,
    found: Diagnostics,
    /// Which variables have a value here.
    bound: Vec<bool>,
    /// Of each value.
    depends: Vec<Needs>,
    /// Accumulators that have been computed here.
    products: u32,
    /// Whether a sum has been computed here.
    sums: bool,
    /// The loads that have been named here: a bit each.
    loads: u32,
    /// Where the agent at hand, on a copy engine, has waited.
    waits_on: Option<Home>,
    /// The token at hand.
    span: Span,
}

impl<'p> Checker<'p> {
    fn error(&mut self, rule: Rule, message: impl Into<String>) {
        self.found.push(Diagnostic::new(rule, self.span, message));
    }

    fn tile(&mut self) {
        let tile = self.program.tile;
        if [tile.m, tile.n, tile.k].iter().any(|extent| !(1..=TILE_LIMIT).contains(extent)) {
            let message = format!("expected tile extents in 1..={TILE_LIMIT}, found {tile}");
            self.error(Rule::Schedule, message);
        }
    }

    /// Extents, definitions and tables: expressions of symbols and earlier definitions.
    fn declarations(&mut self) {
        let program = self.program;
        for (var, value) in &program.lets {
            self.constant(value);
            self.bind(*var);
        }
        for buffer in program.buffers.values() {
            self.span = buffer.span;
            buffer.planes.iter().for_each(|extent| self.constant(extent));
            for expr in [&buffer.rows, &buffer.first_row, &buffer.cols, &buffer.first_col] {
                self.constant(expr);
            }
            if buffer.kind != BufferKind::Symmetric && !buffer.planes.is_empty() {
                let message =
                    format!("`%{}` is a tensor: it has no leading dimensions", buffer.name);
                self.error(Rule::Types, message);
            }
            if buffer.kind != BufferKind::Symmetric && buffer.sums {
                let message = format!("`%{}` is a tensor: ranks add up in workspace", buffer.name);
                self.error(Rule::Types, message);
            }
        }
        self.span = Span::UNKNOWN;
        for signal in program.signals.values() {
            self.constant(&signal.len);
        }
        for table in program.tables.values() {
            for expr in [&table.len, &table.tiled.lo, &table.tiled.hi] {
                self.constant(expr);
            }
            let outer = self.bound.clone();
            self.bind(table.m);
            self.bind(table.n);
            table.fields.iter().for_each(|field| self.constant(field));
            self.bound = outer;
        }
    }

    fn values(&mut self) {
        let program = self.program;
        let accumulators = program.accumulators();
        for (id, entry) in program.values.iter() {
            self.span = entry.span;
            let mut needs = Needs::default();
            match &entry.op {
                ValueOp::Acc(index) => {
                    if *index >= accumulators {
                        let message = format!(
                            "{id} reads accumulator {index}, the mainloop has {accumulators}"
                        );
                        self.error(Rule::Bounds, message);
                    }
                    needs.products = index.saturating_add(1);
                }
                ValueOp::Sum => needs.sum = true,
                ValueOp::Const(_) => {}
                ValueOp::Scalar(index) => {
                    if *index as usize >= program.scalars.len() {
                        self.error(Rule::Bounds, format!("{id} reads an undeclared scalar"));
                    }
                }
                ValueOp::Cols(buffer) | ValueOp::Rows(buffer) | ValueOp::Load(buffer) => {
                    self.operand(id, *buffer);
                }
                ValueOp::Loaded(index) => needs.loads = self.load_bit(*index),
                ValueOp::Unary(_, x) | ValueOp::Cast(x, _) => needs = self.earlier(id, *x),
                ValueOp::Binary(_, x, y) => {
                    let (x, y) = (self.earlier(id, *x), self.earlier(id, *y));
                    needs.products = x.products.max(y.products);
                    needs.sum = x.sum || y.sum;
                    needs.loads = x.loads | y.loads;
                }
            }
            self.depends.push(needs);
        }
        self.span = Span::UNKNOWN;
    }

    /// A tensor the epilogue reads: one of the launch, without planes.
    fn operand(&mut self, id: ValueId, buffer: BufferId) {
        match self.program.buffers.get(buffer) {
            None => self.error(Rule::Bounds, format!("{id} reads an undeclared buffer")),
            Some(entry) if entry.kind != BufferKind::Input || !entry.planes.is_empty() => {
                let message = format!("{id} reads `%{}`, which is no input", entry.name);
                self.error(Rule::Types, message);
            }
            Some(_) => {}
        }
    }

    fn earlier(&mut self, id: ValueId, operand: ValueId) -> Needs {
        if operand.index() >= id.index() {
            self.error(Rule::Bounds, format!("{id} uses {operand}, which does not precede it"));
        }
        self.depends.get(operand.index()).copied().unwrap_or_default()
    }

    fn agent(&mut self, agent: &'p Agent) {
        self.waits_on = None;
        for body in [&agent.body, &agent.exit] {
            (self.products, self.sums, self.loads) = (0, false, 0);
            self.body(agent.engine, body);
        }
        self.span = Span::UNKNOWN;
    }

    fn body(&mut self, engine: Engine, body: &'p [Stmt]) {
        let outer = (self.bound.clone(), self.products, self.sums, self.loads);
        for stmt in body {
            self.span = stmt.span;
            self.stmt(engine, stmt);
        }
        // A loop over slices leaves products behind. That they are whole depends on numbers, and
        // is asked of every launch.
        self.products = self.products.max(outer.1);
        (self.bound, self.sums, self.loads) = (outer.0, outer.2, outer.3);
    }

    fn stmt(&mut self, engine: Engine, stmt: &'p Stmt) {
        match &stmt.op {
            Op::Let { var, value } => {
                self.expr(value);
                self.bind(*var);
            }
            Op::Row { table, index, vars } => {
                self.only_on(engine, Engine::Ctas, "row");
                self.expr(index);
                if self.program.tables.get(*table).is_none() {
                    self.error(Rule::Bounds, "an undeclared table is read");
                }
                vars.iter().for_each(|var| self.bind(*var));
            }
            Op::For { var, from, to, step, body } => {
                for expr in [from, to, step] {
                    self.expr(expr);
                }
                if matches!(step, Expr::Int(step) if *step < 1) {
                    self.error(Rule::Bounds, "expected a step of at least 1");
                }
                let outer = self.bound.clone();
                self.bind(*var);
                self.body(engine, body);
                self.bound = outer;
            }
            Op::If { cond, body } => {
                match cond {
                    Cond::Eq(a, b) | Cond::Ne(a, b) | Cond::Lt(a, b) => {
                        for expr in [a, b] {
                            self.expr(expr);
                        }
                    }
                }
                self.body(engine, body);
            }
            Op::Wait { signal, slots, target, scope: _ } => {
                self.range(slots);
                self.expr(target);
                self.waited(engine, *signal);
            }
            Op::FenceProxyAsync if engine == Engine::Tma => {}
            Op::FenceProxyAsync => self.only_on(engine, Engine::Ctas, "fence"),
            Op::Mainloop { products } => {
                self.only_on(engine, Engine::Ctas, "mainloop");
                products.iter().for_each(|product| self.product(product));
                self.products = products.len() as u32;
            }
            Op::Store { to, value, adds } => {
                self.only_on(engine, Engine::Ctas, "store");
                self.place(to);
                self.written(to.buffer);
                if *adds && self.program.buffers.get(to.buffer).is_some_and(|buffer| !buffer.sums) {
                    let message = "`store … +=` adds to a buffer that sums, found another";
                    self.error(Rule::Types, message);
                }
                self.computed(*value);
            }
            Op::Sum { var, own, from } => {
                self.only_on(engine, Engine::Ctas, "sum");
                self.computed(*own);
                let outer = self.bound.clone();
                self.bind(*var);
                self.place(from);
                self.bound = outer;
                self.sums = true;
            }
            Op::Load { index, from } => {
                self.only_on(engine, Engine::Ctas, "load");
                self.place(from);
                self.in_workspace(from);
                self.loads |= self.load_bit(*index);
            }
            Op::Signal { at, signal, slot, update, scope: _, after: _ } => {
                self.at(at);
                self.expr(slot);
                match update {
                    Update::Add(value) | Update::Set(value) => self.expr(value),
                }
                if self.program.signals.get(*signal).is_none() {
                    self.error(Rule::Bounds, "an undeclared signal is raised");
                }
            }
            Op::Copy { from, to, adds } => {
                if engine == Engine::Ctas {
                    let message = "`copy` runs on copy_engine, copy_warps or tma, found it on ctas";
                    self.error(Rule::Types, message.to_owned());
                }
                self.place(from);
                self.place(to);
                self.written(to.buffer);
                let element = |buffer| self.program.buffers.get(buffer).map(|b| b.element);
                if let (Some(from), Some(to)) = (element(from.buffer), element(to.buffer))
                    && from != to
                {
                    self.error(Rule::Types, format!("a copy of {to} reads {from}"));
                }
                if *adds {
                    self.added(engine, to);
                }
            }
        }
    }

    fn only_on(&mut self, engine: Engine, wanted: Engine, what: &str) {
        if engine != wanted {
            let message =
                format!("`{what}` runs on {} alone, found it on {}", wanted.name(), engine.name());
            self.error(Rule::Types, message);
        }
    }

    /// A signal lives where it is waited for: CTAs wait on the device, the host of a copy engine
    /// waits ahead of the launch or its stream waits during it.
    fn waited(&mut self, engine: Engine, signal: SignalId) {
        let Some(signal) = self.program.signals.get(signal) else {
            return self.error(Rule::Bounds, "an undeclared signal is waited for");
        };
        let home = match engine {
            Engine::CopyEngine => *self.waits_on.get_or_insert(signal.home),
            Engine::Ctas | Engine::CopyWarps | Engine::Tma => Home::Device,
        };
        if signal.home != home {
            let who = match engine {
                Engine::CopyEngine => "this copy engine",
                Engine::Ctas | Engine::CopyWarps | Engine::Tma => engine.name(),
            };
            let message = format!(
                "{who} waits for signals at home on the {}, `%{}` is on the {}",
                home.name(),
                signal.name,
                signal.home.name()
            );
            self.error(Rule::Types, message);
        }
    }

    fn written(&mut self, buffer: BufferId) {
        if let Some(buffer) = self.program.buffers.get(buffer)
            && matches!(buffer.kind, BufferKind::Input | BufferKind::Exposed)
        {
            self.error(Rule::Types, format!("the input `%{}` is written", buffer.name));
        }
    }

    /// What a stored value needs stands before it, in the same body or around it.
    fn computed(&mut self, value: ValueId) {
        let Some(needs) = self.depends.get(value.index()).copied() else {
            return self.error(Rule::Bounds, format!("{value} is not declared"));
        };
        if needs.products > self.products {
            let message = format!(
                "{value} needs {} accumulators, {} are computed before",
                needs.products, self.products
            );
            self.error(Rule::Bounds, message);
        }
        if needs.sum && !self.sums {
            self.error(Rule::Bounds, format!("{value} needs a sum, none is computed before"));
        }
        let missing = needs.loads & !self.loads;
        if missing != 0 {
            let index = missing.trailing_zeros();
            let message = format!("{value} needs load {index}, none is named before");
            self.error(Rule::Bounds, message);
        }
    }

    /// The bit of a load, if there are so many.
    fn load_bit(&mut self, index: u32) -> u32 {
        if index < LOADS {
            return 1 << index;
        }
        self.error(Rule::Bounds, format!("expected loads below {LOADS}, found load {index}"));
        0
    }

    /// Copies add by instructions of the kernel, in workspace.
    fn added(&mut self, engine: Engine, to: &Place) {
        if engine == Engine::CopyEngine {
            let message =
                "`copy … +=` runs on copy_warps or tma, found it on copy_engine: those only move";
            self.error(Rule::Types, message);
        }
        let kind = self.program.buffers.get(to.buffer).map(|buffer| buffer.kind);
        if kind.is_some_and(|kind| kind != BufferKind::Symmetric) {
            self.error(Rule::Types, "`copy … +=` adds in workspace, found a tensor of the launch");
        }
    }

    /// What is loaded lies in workspace of the own rank: tensors are read by a value `load %x`.
    fn in_workspace(&mut self, from: &Place) {
        let Some(buffer) = self.program.buffers.get(from.buffer) else { return };
        if buffer.kind != BufferKind::Symmetric {
            let message =
                format!("`%{}` is loaded by a statement and is no workspace", buffer.name);
            self.error(Rule::Types, message);
        }
        if from.at != At::Own {
            let message = format!("`%{}` is loaded out of a peer's memory", buffer.name);
            self.error(Rule::Types, message);
        }
    }

    fn product(&mut self, product: &'p Product) {
        for operand in [&product.a, &product.b] {
            self.place(operand);
            self.readable(operand);
        }
        let element = |buffer| self.program.buffers.get(buffer).map(|b| b.element);
        if let (Some(a), Some(b)) = (element(product.a.buffer), element(product.b.buffer))
            && a != b
        {
            self.error(
                Rule::Types,
                format!("operands of one element type expected, found {a} and {b}"),
            );
        }
    }

    /// An output has no content before the launch has written it.
    fn readable(&mut self, place: &Place) {
        if let Some(buffer) = self.program.buffers.get(place.buffer)
            && buffer.kind == BufferKind::Output
        {
            let message = format!("`%{}` is an output and is read here", buffer.name);
            self.error(Rule::Types, message);
        }
    }

    fn place(&mut self, place: &'p Place) {
        self.at(&place.at);
        self.range(&place.rows);
        self.range(&place.cols);
        place.planes.iter().for_each(|index| self.expr(index));
        let Some(buffer) = self.program.buffers.get(place.buffer) else {
            return self.error(Rule::Bounds, "an undeclared buffer is used");
        };
        if buffer.planes.len() != place.planes.len() {
            let message = format!(
                "`%{}` has {} leading dimensions, found {} indices",
                buffer.name,
                buffer.planes.len(),
                place.planes.len()
            );
            self.error(Rule::Bounds, message);
        }
        let reachable = matches!(buffer.kind, BufferKind::Symmetric | BufferKind::Exposed);
        if place.at != At::Own && !reachable {
            let message = format!("`%{}` is not symmetric: no peer can reach it", buffer.name);
            self.error(Rule::Types, message);
        }
    }

    fn at(&mut self, at: &'p At) {
        match at {
            At::Own => {}
            At::Peer(rank) | At::Remote(rank) => self.expr(rank),
        }
    }

    fn range(&mut self, range: &'p Range) {
        self.expr(&range.lo);
        self.expr(&range.hi);
    }

    fn bind(&mut self, var: VarId) {
        match self.bound.get(var.index()).copied() {
            None => self.error(Rule::Bounds, "an undeclared variable is defined"),
            Some(true) => {
                let name = &self.program.vars[var].name;
                self.error(Rule::Bounds, format!("`%{name}` already has a value here"));
            }
            Some(false) => self.bound[var.index()] = true,
        }
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Sym(Sym::Shard) if !self.program.has_own_lengths() => {
                let message = "`shard` in a Program whose shards have no lengths of their own";
                self.error(Rule::Bounds, message);
            }
            Expr::Int(_) | Expr::Sym(_) => {}
            Expr::Var(var) => {
                if self.bound.get(var.index()).copied() == Some(false) {
                    let name = &self.program.vars[*var].name;
                    self.error(Rule::Bounds, format!("`%{name}` is used before it has a value"));
                } else if self.bound.get(var.index()).is_none() {
                    self.error(Rule::Bounds, "an undeclared variable is used");
                }
            }
            Expr::First(rank) => {
                if !self.program.has_own_lengths() {
                    let message = "`first` in a Program whose shards have no lengths of their own";
                    self.error(Rule::Bounds, message);
                }
                self.expr(rank);
            }
            Expr::Bin(_, a, b) => {
                self.expr(a);
                self.expr(b);
            }
        }
    }

    /// An expression that all CTAs and launches agree on.
    fn constant(&mut self, expr: &Expr) {
        fn varies(expr: &Expr) -> Option<Sym> {
            match expr {
                Expr::Sym(sym @ (Sym::Epoch | Sym::Cta)) => Some(*sym),
                Expr::Sym(_) | Expr::Int(_) | Expr::Var(_) => None,
                Expr::First(rank) => varies(rank),
                Expr::Bin(_, a, b) => varies(a).or_else(|| varies(b)),
            }
        }
        self.expr(expr);
        if let Some(sym) = varies(expr) {
            self.error(Rule::Bounds, format!("a declaration depends on `{}`", sym.name()));
        }
    }

    /// A signal array is raised by `+=` or by `=`, not by both: only then is its value at any
    /// time independent of the order of raises.
    fn updates(&mut self) {
        for (id, signal) in self.program.signals.iter() {
            let raises = super::raises(self.program, id);
            let added = raises.iter().find(|(_, update)| matches!(update, Update::Add(_)));
            let set = raises.iter().find(|(_, update)| matches!(update, Update::Set(_)));
            if let (Some((added, _)), Some((set, _))) = (added, set) {
                let message = format!("`%{}` is both added to and set", signal.name);
                self.found.push(
                    Diagnostic::new(Rule::SignalNotMonotone, set.span, message)
                        .note(added.span, "added to here")
                        .help("use `+=` for a signal that several actors raise"),
                );
            }
        }
    }
}
