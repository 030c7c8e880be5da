//! Places a protocol of the user's own: workspace and signals under their names, and an agent for each
//! role.
//!
//! The user says what is copied where, and who is told. Added here is what follows from it: a workspace
//! exists twice, by parity of the epoch; a role that writes to peers waits until every rank is through
//! with the epoch before last (`free`); and how often a slot is raised depends on the engine that the
//! schedule gives to roles. A copy engine raises it once; roles that wait for it do so on the host, as a
//! stream could not give up, so an array exists there, on the device for tiles, or in both places. Copy
//! warps split each copy over all CTAs, of which each raises it.

use super::build::{Builder, copying, stmt};
use super::gather::{parity, wait_free};
use super::one_shot::OneShot;
use super::put::{self, EACH, MOST_ROWS};
use super::tensors::Tensors;
use crate::arena::Handle;
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Kernel, Op as KernelOp, Protocol};
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Cond, Engine, Expr, Home, Op, Place, Program, Range,
    Scope, SignalId, Stmt, Sym, Update, VarId,
};
use crate::schedule::{Schedule, Transport};
use crate::span::Span;

/// The protocol's parts in the Program.
pub(super) struct Placed {
    /// The engine of its roles.
    engine: Engine,
    /// By the protocol's own handles.
    buffers: Vec<BufferId>,
    signals: Vec<Homes>,
    vars: Vec<Option<VarId>>,
    /// Raised by a peer when it is through with an epoch.
    pub(super) free: SignalId,
    pub(super) span: Span,
}

/// An array where tiles wait for it, and where roles do.
#[derive(Debug, Clone, Copy)]
struct Homes {
    tiles: Option<SignalId>,
    roles: Option<SignalId>,
}

impl Homes {
    fn all(self) -> impl Iterator<Item = SignalId> {
        let again = self.roles.filter(|roles| Some(*roles) != self.tiles);
        self.tiles.into_iter().chain(again)
    }
}

/// What the rules of the language do not say of a protocol that was read from text, and whether the
/// schedule moves bytes as its roles can.
pub(super) fn check(kernel: &Kernel, schedule: &Schedule) -> Result<(), Diagnostics> {
    let Some(Protocol { parts, .. }) = kernel.protocol.as_deref() else { return Ok(()) };
    if has_no_roles(parts) {
        return Ok(());
    }
    let mut found = Diagnostics::new();
    let is_role = |op: &Op| {
        let known = matches!(op, Op::Let { .. } | Op::For { .. } | Op::If { .. });
        known || matches!(op, Op::Wait { .. } | Op::Signal { .. } | Op::Copy { .. })
    };
    for other in parts.statements().filter(|stmt| !is_role(&stmt.op)) {
        let message = "expected a role to copy, wait and signal, found something else";
        let diagnostic = Diagnostic::new(Rule::Types, other.span, message);
        found.push(diagnostic.help("compute in the loop over tiles"));
    }
    if let (Some(Transport::CopyEngine), Some(added)) = (schedule.transport, adds(parts)) {
        let message = "expected copy warps for a role that adds, found `transport = copy_engine`";
        let diagnostic = Diagnostic::new(Rule::Schedule, added.span, message);
        found.push(
            diagnostic.help("leave `transport` out: a copy engine moves bytes and adds none"),
        );
    }
    if schedule.transport == Some(Transport::CopyFirst) {
        let message = "expected roles to run beside the kernel, found `transport = copy_first`";
        let diagnostic = Diagnostic::new(Rule::Schedule, kernel.span, message);
        found.push(diagnostic.help("leave `transport` out, or choose copy_engine, put or tma"));
    }
    if schedule.tail.is_some() || schedule.head.is_some() || schedule.chunk_rows.is_some() {
        let message = "expected no `head`, `tail` or `chunk_rows` where roles say what is copied";
        let diagnostic = Diagnostic::new(Rule::Schedule, kernel.span, message);
        found.push(diagnostic.help("leave them out, and write the loop in the role"));
    }
    found.into_result(())
}

/// Whether tiles put and sum, and nothing of the kernel's own runs beside them.
fn has_no_roles(parts: &Program) -> bool {
    parts.agents.is_empty() && parts.signals.is_empty() && parts.buffers.values().all(is_summed)
}

/// Whether it is workspace whose data carry their own flag.
fn is_summed(buffer: &Buffer) -> bool {
    !buffer.planes.is_empty()
}

/// A copy that adds.
fn adds(parts: &Program) -> Option<&Stmt> {
    parts.statements().find(|stmt| matches!(stmt.op, Op::Copy { adds: true, .. }))
}

pub(super) fn place(
    b: &mut Builder<'_>,
    tensors: &Tensors,
    sum: Option<&OneShot>,
) -> Option<Placed> {
    let kernel = b.kernel;
    let parts = &kernel.protocol.as_ref()?.parts;
    if has_no_roles(parts) {
        return None;
    }
    let engine = match b.schedule.transport {
        Some(Transport::Put | Transport::Tma) => b.copier(),
        None if adds(parts).is_some() => b.copier(),
        None | Some(Transport::CopyEngine | Transport::CopyFirst) => Engine::CopyEngine,
    };
    let span = parts.agents.values().flat_map(|agent| agent.body.first()).next();
    let (name, home) = match engine {
        Engine::CopyWarps | Engine::Tma => ("free_copies", Home::Device),
        Engine::CopyEngine | Engine::Ctas => ("free_host", Home::Host),
    };
    let mut placed = Placed {
        engine,
        buffers: Vec::new(),
        signals: Vec::new(),
        vars: vec![None; Protocol::RESERVED.len()],
        free: b.signal(name, Sym::World, home),
        span: span.map_or(kernel.loop_span, |first| first.span),
    };
    let reserved = Protocol::RESERVED.len();
    for var in parts.vars.values().skip(reserved) {
        placed.vars.push(Some(b.var(&var.name)));
    }
    for buffer in parts.buffers.values() {
        let id = match kernel.param(&buffer.name).filter(|_| buffer.kind == BufferKind::Input) {
            Some(param) => tensors.buffer(param),
            None if is_summed(buffer) => sum.map_or(BufferId(u32::MAX), |sum| sum.partial),
            None => b.program.buffers.push(Buffer {
                kind: BufferKind::Symmetric,
                planes: vec![2i64.into()],
                ..buffer.clone()
            }),
        };
        placed.buffers.push(id);
    }
    for array in parts.signals.handles() {
        let homes = homes(b, parts, array, engine);
        placed.signals.push(homes);
    }
    for role in parts.agents.values() {
        let agent = placed.role(b, parts, role);
        b.program.agents.push(agent);
    }
    Some(placed)
}

/// Declares an array wherever something waits for it.
fn homes(b: &mut Builder<'_>, parts: &Program, array: SignalId, engine: Engine) -> Homes {
    let declared = &parts.signals[array];
    let of_tile = |op: &KernelOp| matches!(op, KernelOp::Await { signal, .. } if *signal == array);
    let of_role = |stmt: &Stmt| matches!(stmt.op, Op::Wait { signal, .. } if signal == array);
    let in_tiles = b.kernel.ops.values().any(|entry| of_tile(&entry.op));
    let in_roles = parts.statements().any(of_role);
    let mut declare = |name: &str, home| b.signal(name, declared.len.clone(), home);
    match engine {
        Engine::CopyWarps | Engine::Tma | Engine::Ctas => {
            let array = Some(declare(&declared.name, Home::Device));
            Homes { tiles: array, roles: array }
        }
        Engine::CopyEngine => Homes {
            tiles: (in_tiles || !in_roles).then(|| declare(&declared.name, Home::Device)),
            roles: in_roles.then(|| declare(&format!("{}_host", declared.name), Home::Host)),
        },
    }
}

impl Placed {
    pub(super) fn buffer(&self, buffer: BufferId) -> BufferId {
        self.buffers[buffer.index()]
    }

    /// The wait of a tile: `tile` stands for [`Protocol::TILE`], `slice` for [`Protocol::SLICE`].
    pub(super) fn wait(
        &self,
        (signal, slots, times): (SignalId, &Range, &Expr),
        change: impl Fn(&Expr) -> Expr,
    ) -> Op {
        Op::Wait {
            signal: self.signals[signal.index()].tiles.expect("declared for waits of tiles"),
            slots: slots.map(&change),
            target: self.raised(change(times)),
            scope: Scope::Sys,
        }
    }

    /// What a slot has become that is raised `times` times a launch.
    fn raised(&self, times: Expr) -> Expr {
        let all = match times {
            Expr::Int(1) => Sym::Epoch.into(),
            times => Expr::from(Sym::Epoch) * times,
        };
        match self.engine {
            Engine::CopyWarps | Engine::Tma => put::times(all * Sym::Ctas, self.engine.raisers()),
            Engine::CopyEngine | Engine::Ctas => all,
        }
    }

    fn role(&self, b: &mut Builder<'_>, parts: &Program, role: &Agent) -> Agent {
        let mut body = Vec::new();
        let copies = |stmt: &&Stmt| matches!(stmt.op, Op::Copy { .. });
        if let Some(first) = role.statements().find(copies) {
            body.push(stmt(first.span, wait_free(self.free, Range::new(0i64, Sym::World))));
        }
        body.extend(self.statements(b, parts, &role.body));
        copying(&role.name, self.engine, body)
    }

    fn expr(&self, b: &Builder<'_>, expr: &Expr) -> Expr {
        let step = b.schedule.tile.k;
        expr.replace(&|var| match self.vars.get(var.index()) {
            Some(Some(var)) => (*var).into(),
            _ if var == Protocol::K_STEP => step.into(),
            // The rows of a tile are known in its loop alone; the language binds them nowhere else.
            _ => 0i64.into(),
        })
    }

    fn statements(&self, b: &mut Builder<'_>, parts: &Program, body: &[Stmt]) -> Vec<Stmt> {
        body.iter().flat_map(|stmt| self.statement(b, parts, stmt)).collect()
    }

    fn statement(&self, b: &mut Builder<'_>, parts: &Program, old: &Stmt) -> Vec<Stmt> {
        let span = old.span;
        let var = |var: &VarId| self.vars[var.index()].unwrap_or(*var);
        let op = match &old.op {
            Op::Let { var: name, value } => Op::Let { var: var(name), value: self.expr(b, value) },
            Op::For { var: name, from, to, step, body } => Op::For {
                var: var(name),
                from: self.expr(b, from),
                to: self.expr(b, to),
                step: self.expr(b, step),
                body: self.statements(b, parts, body),
            },
            Op::If { cond, body } => {
                let cond = match cond {
                    Cond::Eq(x, y) => Cond::Eq(self.expr(b, x), self.expr(b, y)),
                    Cond::Ne(x, y) => Cond::Ne(self.expr(b, x), self.expr(b, y)),
                    Cond::Lt(x, y) => Cond::Lt(self.expr(b, x), self.expr(b, y)),
                };
                Op::If { cond, body: self.statements(b, parts, body) }
            }
            Op::Wait { signal, slots, target, scope } => Op::Wait {
                signal: self.signals[signal.index()].roles.expect("declared for waits of roles"),
                slots: slots.map(|expr| self.expr(b, expr)),
                target: self.raised(self.expr(b, target)),
                scope: *scope,
            },
            Op::Signal { at, signal, slot, update: _, scope, after } => {
                let (update, slot) = (self.update(b, parts, *signal), self.expr(b, slot));
                let raise = |signal| Op::Signal {
                    at: self.at(b, at),
                    signal,
                    slot: slot.clone(),
                    update: update.clone(),
                    scope: *scope,
                    after: *after,
                };
                let homes = self.signals[signal.index()];
                return homes.all().map(|signal| stmt(span, raise(signal))).collect();
            }
            Op::Copy { from, to, adds } => {
                let (from, to) = (self.place(b, parts, from), self.place(b, parts, to));
                match self.engine {
                    Engine::CopyWarps | Engine::Tma => {
                        return vec![split(b, span, (from, to, *adds))];
                    }
                    Engine::CopyEngine | Engine::Ctas => Op::Copy { from, to, adds: *adds },
                }
            }
            // Refused by `check`.
            other => other.clone(),
        };
        vec![stmt(span, op)]
    }

    /// Slots that one copy engine raises once become the epoch; others are counted up.
    fn update(&self, b: &Builder<'_>, parts: &Program, signal: SignalId) -> Update {
        let counted = |stmt: &Stmt| match &stmt.op {
            Op::Wait { signal: of, target, .. } => *of == signal && *target != Expr::Int(1),
            _ => false,
        };
        let awaited = b.kernel.ops.values().any(|entry| match &entry.op {
            KernelOp::Await { signal: of, times, .. } => *of == signal && *times != Expr::Int(1),
            _ => false,
        });
        match self.engine {
            Engine::CopyWarps | Engine::Tma => Update::Add(self.engine.raisers().into()),
            Engine::CopyEngine | Engine::Ctas if awaited || parts.statements().any(counted) => {
                Update::Add(1i64.into())
            }
            Engine::CopyEngine | Engine::Ctas => Update::Set(Sym::Epoch.into()),
        }
    }

    fn at(&self, b: &Builder<'_>, at: &At) -> At {
        match at {
            At::Own => At::Own,
            At::Peer(rank) => At::Peer(self.expr(b, rank)),
            At::Remote(rank) => At::Remote(self.expr(b, rank)),
        }
    }

    fn place(&self, b: &Builder<'_>, parts: &Program, place: &Place) -> Place {
        let is_twice = parts.buffers[place.buffer].kind == BufferKind::Symmetric;
        Place {
            at: self.at(b, &place.at),
            buffer: self.buffer(place.buffer),
            planes: if is_twice { vec![parity()] } else { Vec::new() },
            rows: place.rows.map(|expr| self.expr(b, expr)),
            cols: place.cols.map(|expr| self.expr(b, expr)),
        }
    }
}

/// A copy whose pieces the copy warps of all CTAs, or their bulk copies, take in turn.
fn split(b: &mut Builder<'_>, span: Span, (from, to, adds): (Place, Place, bool)) -> Stmt {
    let [piece, row, left] = ["q", "r", "k0"].map(|name| b.var(name));
    let [high, wide, across] = ["PR", "PC", "PA"].map(|name| b.var(name));
    let rows = || (from.rows.hi.clone() - from.rows.lo.clone()).max(0i64);
    let cols = || (from.cols.hi.clone() - from.cols.lo.clone()).max(0i64);
    let each = rows() * across / (Expr::from(Sym::Ctas) * EACH);
    let define = |(var, value)| stmt(span, Op::Let { var, value });
    let sizes = [
        (wide, cols().min(put::cols(b.copier())).max(1i64)),
        (across, cols().ceil_div(wide).max(1i64)),
        (high, each.min(MOST_ROWS).max(1i64)),
    ];
    let place = [
        (row, from.rows.lo.clone() + Expr::from(piece) / across * high),
        (left, from.cols.lo.clone() + Expr::from(piece) % across * wide),
    ];
    let part = |whole: &Place| Place {
        rows: Range::new(row, (Expr::from(row) + high).min(from.rows.hi.clone())),
        cols: Range::new(left, (Expr::from(left) + wide).min(from.cols.hi.clone())),
        ..whole.clone()
    };
    let mut pieces: Vec<_> = place.map(define).into();
    pieces.push(stmt(span, Op::Copy { from: part(&from), to: part(&to), adds }));
    let loop_ = Op::For {
        var: piece,
        from: Sym::Cta.into(),
        to: rows().ceil_div(high) * across,
        step: Sym::Ctas.into(),
        body: pieces,
    };
    let mut body: Vec<_> = sizes.map(define).into();
    body.push(stmt(span, loop_));
    // One statement for one: names of a body end with it.
    stmt(span, Op::If { cond: Cond::Lt(0i64.into(), rows()), body })
}
