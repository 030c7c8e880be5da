//! Gathered tensors that are not pushed by their owners: as roles of a protocol, word for word what one
//! would write by hand, so that nothing below knows of another way.
//!
//! | algorithm | the own shard | each other |
//! |---|---|---|
//! | [`AllGather::Pull`] | is laid where it belongs, and every rank is told | is fetched from its owner |
//! | [`AllGather::Ring`] | is laid where it belongs | comes from the next rank, and goes on to the one before |
//!
//! Shards come in the order in which tiles are visited by default: the own one, then the next rank's,
//! once around. A chunk goes on as soon as it is here.

use super::usage::{Dim, Usage};
use crate::arena::{Arena, Handle};
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Distribution, Kernel, Lhs, Op as KernelOp, OpEntry, ParamId, ParamType};
use crate::kernel::{Protocol, Value};
use crate::program::{
    Agent, At, Buffer, BufferId, BufferKind, Completion, Cond, Engine, Expr, Home, Op, Place,
    Program, Range, Scope, SignalArray, SignalId, Stmt, Sym, Update, Var, VarId,
};
use crate::schedule::{AllGather, Schedule, Transport};
use crate::span::Span;

/// The kernel with roles in place of what `schedule` gathers by another algorithm than pushes, and
/// what is left of the schedule.
///
/// # Errors
/// A schedule that says how to gather where nothing is gathered, or what no role can bring.
pub(super) fn of_gathers(
    kernel: &Kernel,
    schedule: &Schedule,
    usage: &Usage,
) -> Result<Option<(Kernel, Schedule)>, Diagnostics> {
    let Some(algorithm) = schedule.all_gather else { return Ok(None) };
    check(kernel, schedule, usage, algorithm)?;
    let left = Schedule { all_gather: None, ..schedule.clone() };
    if algorithm == AllGather::Push {
        return Ok(Some((kernel.clone(), left)));
    }
    let left = Schedule { chunk_rows: None, ..left };
    Ok(Some((Roles::new(kernel, schedule, algorithm).kernel(), left)))
}

fn check(
    kernel: &Kernel,
    schedule: &Schedule,
    usage: &Usage,
    algorithm: AllGather,
) -> Result<(), Diagnostics> {
    let name = algorithm.name();
    let refuse = |span, message: String, help: &str| {
        Err(Diagnostic::new(Rule::Schedule, span, message).help(help).into())
    };
    let gathered = |id| kernel.tensor(id).is_some_and(|(d, ..)| d == Distribution::Gathered);
    let Some((_, param)) = kernel.params.iter().find(|(id, _)| gathered(*id)) else {
        let message = format!("expected no `all_gather` where nothing is gathered, found `{name}`");
        let help = "leave `all_gather` out, or declare an input `&Gathered<_>`";
        return refuse(kernel.span, message, help);
    };
    if algorithm == AllGather::Push {
        return Ok(());
    }
    let summed = |id| usage.dims(id).is_some_and(|dims| dims.rows == Dim::K);
    if let Some((_, param)) = kernel.params.iter().find(|(id, _)| gathered(*id) && summed(*id)) {
        let message = format!(
            "expected `all_gather = push` where rows of `{}` are summed over, found {name}",
            param.name
        );
        return refuse(param.span, message, "leave `all_gather` out: its chunks are slices of k");
    }
    let loads = |entry: &&OpEntry| matches!(entry.op, KernelOp::LoadReady { .. });
    if let Some(entry) = kernel.ops.values().find(loads) {
        let message = format!(
            "expected `all_gather = push` where an epilogue reads what arrives, found {name}"
        );
        return refuse(entry.span, message, "leave `all_gather` out");
    }
    if schedule.tail.is_some() {
        let message = format!("expected no `tail` where `all_gather = {name}`, found one");
        return refuse(param.span, message, "leave `tail` out, and name `chunk_rows`");
    }
    if schedule.transport == Some(Transport::CopyFirst) {
        let message = format!(
            "expected roles to run beside the kernel where `all_gather = {name}`, found copy_first"
        );
        let help = "leave `transport` out, or choose copy_engine, put or tma";
        return refuse(param.span, message, help);
    }
    Ok(())
}

/// What is built.
struct Roles<'k> {
    kernel: &'k Kernel,
    algorithm: AllGather,
    chunk_rows: Option<u32>,
    parts: Program,
    body: Vec<Stmt>,
    /// Of each gathered tensor, its workspace and what is raised when a chunk is there.
    placed: Vec<(ParamId, BufferId, SignalId)>,
}

/// A tensor on its way.
struct Way {
    input: BufferId,
    all: BufferId,
    /// Raised on a rank when a chunk is there.
    arrived: SignalId,
    span: Span,
}

impl<'k> Roles<'k> {
    fn new(kernel: &'k Kernel, schedule: &Schedule, algorithm: AllGather) -> Self {
        // Workspace that tiles are put to keeps its handle.
        let own = kernel.protocol.as_ref().map(|protocol| protocol.parts.clone());
        let parts = own.unwrap_or_else(|| Protocol::new(&kernel.name).parts);
        let (body, placed) = (Vec::new(), Vec::new());
        Roles { kernel, algorithm, chunk_rows: schedule.chunk_rows, parts, body, placed }
    }

    /// Rows of a full shard.
    fn shard() -> Expr {
        Expr::from(Sym::M).ceil_div(Sym::World)
    }

    /// Rows of a chunk, and chunks of a full shard; nothing where a shard is one chunk.
    fn chunks(&self) -> Option<[Expr; 2]> {
        let rows = Expr::from(self.chunk_rows?).min(Self::shard()).max(1i64);
        Some([rows.clone(), Self::shard().ceil_div(rows)])
    }

    /// The slot of the chunk that holds a row of the whole tensor.
    fn slot_of(&self, row: &Expr) -> Expr {
        let owner = row.clone() / Self::shard();
        match self.chunks() {
            None => owner,
            Some([rows, count]) => owner * count + row.clone() % Self::shard() / rows,
        }
    }

    fn var(&mut self, name: &str) -> VarId {
        self.parts.vars.push(Var { name: name.into() })
    }

    fn signal(&mut self, name: String) -> SignalId {
        let len = match self.chunks() {
            None => Sym::World.into(),
            Some([_, count]) => Expr::from(Sym::World) * count,
        };
        self.parts.signals.push(SignalArray { name, len, home: Home::Device, carrier: None })
    }

    /// Workspace, signals and statements for each gathered tensor, and the ops that wait for them.
    fn kernel(mut self) -> Kernel {
        let kernel = self.kernel;
        let mut params = kernel.params.clone();
        for (id, param) in kernel.params.iter() {
            let ParamType::Tensor { distribution: Distribution::Gathered, element, .. } = param.ty
            else {
                continue;
            };
            let distribution = Distribution::Sharded;
            params[id].ty = ParamType::Tensor { distribution, element, written: false };
            let buffer = |name: String, kind| Buffer {
                name,
                kind,
                sums: false,
                element,
                planes: Vec::new(),
                rows: Sym::M.into(),
                first_row: 0i64.into(),
                cols: Sym::K.into(),
                first_col: 0i64.into(),
                span: param.span,
            };
            let all = format!("{}_all", param.name);
            let all = self.parts.buffers.push(buffer(all, BufferKind::Symmetric));
            let input = self.parts.buffers.push(buffer(param.name.clone(), BufferKind::Input));
            let arrived = self.signal(format!("{}_arrived", param.name));
            let waits =
                |entry: &&OpEntry| matches!(entry.op, KernelOp::Wait { tensor } if tensor == id);
            let span = kernel.ops.values().find(waits).map_or(param.span, |entry| entry.span);
            let way = Way { input, all, arrived, span };
            match self.algorithm {
                AllGather::Ring => self.ring(&way),
                AllGather::Pull => self.pull(&way, format!("{}_offered", param.name)),
                AllGather::Push => {}
            }
            self.placed.push((id, all, arrived));
        }
        let (name, body) = (self.algorithm.name().into(), std::mem::take(&mut self.body));
        let engine = Engine::CopyEngine;
        self.parts.agents.push(Agent { name, engine, body, exit: Vec::new() });
        let ops = self.ops();
        let protocol = Some(Box::new(Protocol { parts: self.parts, slices: None }));
        Kernel { params, ops, protocol, ..kernel.clone() }
    }

    /// The tile loop: each wait for rows becomes one for their chunks.
    fn ops(&self) -> Arena<Value, OpEntry> {
        let [first, end] = [Protocol::TILE[0], Protocol::TILE[1]].map(Expr::from);
        let slots = Range::new(self.slot_of(&first), self.slot_of(&(end - 1i64)) + 1i64);
        let mut ops = Arena::new();
        let mut values = Vec::new();
        for entry in self.kernel.ops.values() {
            let span = entry.span;
            let renamed = |value: Value| values.get(value.index()).copied().unwrap_or(value);
            let op = match entry.op.clone() {
                KernelOp::Wait { tensor } => {
                    match self.placed.iter().find(|(param, ..)| *param == tensor) {
                        Some(&(_, buffer, signal)) => {
                            let (slots, times) = (slots.clone(), 1i64.into());
                            let awaited = KernelOp::Await { signal, slots, times };
                            let after = ops.push(OpEntry { op: awaited, span });
                            KernelOp::Ready { buffer, after }
                        }
                        None => KernelOp::Wait { tensor },
                    }
                }
                KernelOp::Gemm { a: Lhs::Ready(rows), b, transposed } => {
                    KernelOp::Gemm { a: Lhs::Ready(renamed(rows)), b, transposed }
                }
                KernelOp::Unary { op, x } => KernelOp::Unary { op, x: renamed(x) },
                KernelOp::Binary { op, x, y } => {
                    KernelOp::Binary { op, x: renamed(x), y: renamed(y) }
                }
                KernelOp::Cast { x, to } => KernelOp::Cast { x: renamed(x), to },
                KernelOp::Reduce { output, x } => KernelOp::Reduce { output, x: renamed(x) },
                KernelOp::Store { output, x } => KernelOp::Store { output, x: renamed(x) },
                KernelOp::Put { buffer, hops, to, x } => {
                    KernelOp::Put { buffer, hops, to, x: renamed(x) }
                }
                KernelOp::Total { buffer, own } => KernelOp::Total { buffer, own: renamed(own) },
                KernelOp::Keep { output, rows } => KernelOp::Keep { output, rows: renamed(rows) },
                KernelOp::LoadReady { ready } => KernelOp::LoadReady { ready: renamed(ready) },
                other @ (KernelOp::Gemm { .. }
                | KernelOp::Await { .. }
                | KernelOp::Ready { .. }
                | KernelOp::Cols { .. }
                | KernelOp::Rows { .. }
                | KernelOp::Load { .. }
                | KernelOp::Const(_)
                | KernelOp::Scalar { .. }) => other,
            };
            values.push(ops.push(OpEntry { op, span }));
        }
        ops
    }

    /// What stands for each chunk of `source`'s shard: `each` is made of its rows and its slot.
    fn for_chunks(
        &mut self,
        source: &Expr,
        span: Span,
        each: impl FnOnce(Range, Expr) -> Vec<Op>,
    ) -> Vec<Stmt> {
        let first = source.clone() * Self::shard();
        let statements = |ops: Vec<Op>| ops.into_iter().map(|op| Stmt { op, span }).collect();
        let Some([rows, count]) = self.chunks() else {
            let (lo, hi) = (first.clone().min(Sym::M), (first + Self::shard()).min(Sym::M));
            return statements(each(Range::new(lo, hi), source.clone()));
        };
        let chunk = self.var("chunk");
        let within = |chunk: Expr| (chunk * rows.clone()).min(Self::shard());
        let border = |chunk: Expr| (first.clone() + within(chunk)).min(Sym::M);
        let part = Range::new(border(chunk.into()), border(Expr::from(chunk) + 1i64));
        let body = statements(each(part, source.clone() * count.clone() + chunk));
        let (from, step) = (0i64.into(), 1i64.into());
        vec![Stmt { op: Op::For { var: chunk, from, to: count, step, body }, span }]
    }

    /// Statements for each of `hops`, of which a variable says the source: that many ranks on.
    fn for_sources(
        &mut self,
        hops: Range,
        span: Span,
        body: impl FnOnce(&mut Self, Expr) -> Vec<Stmt>,
    ) {
        let [hop, source] = ["hop", "source"].map(|name| self.var(name));
        let value = (Expr::from(Sym::Rank) + hop) % Sym::World;
        let mut all = vec![Stmt { op: Op::Let { var: source, value }, span }];
        all.extend(body(self, source.into()));
        let Range { lo: from, hi: to } = hops;
        self.body
            .push(Stmt { op: Op::For { var: hop, from, to, step: 1i64.into(), body: all }, span });
    }

    /// Lays the own shard where it belongs, chunk by chunk, each of which `told` says.
    fn lay(&mut self, way: &Way, told: impl FnOnce(Expr) -> Vec<Op>) {
        let (all, input) = (way.all, way.input);
        let own = self.for_chunks(&Sym::Rank.into(), way.span, |rows, slot| {
            let to = place(At::Peer(Sym::Rank.into()), all, &rows);
            let copy = Op::Copy { from: place(At::Own, input, &rows), to, adds: false };
            std::iter::once(copy).chain(told(slot)).collect()
        });
        self.body.extend(own);
    }

    /// The own shard, then what reaches this rank: on to the rank before, which has it already where it
    /// is that rank's.
    fn ring(&mut self, way: &Way) {
        let Way { all, arrived, span, .. } = *way;
        let rank = || Expr::from(Sym::Rank);
        self.lay(way, |slot| vec![raise(rank(), arrived, slot)]);
        let before = || (rank() + Sym::World - 1i64) % Sym::World;
        let hops = Range::new(0i64, Expr::from(Sym::World) - 1i64);
        self.for_sources(hops, span, |roles, source| {
            roles.for_chunks(&source, span, |rows, slot| {
                let here = place(At::Own, all, &rows);
                let to = place(At::Peer(before()), all, &rows);
                vec![
                    wait(arrived, slot.clone()),
                    Op::Copy { from: here, to, adds: false },
                    raise(before(), arrived, slot),
                ]
            })
        });
    }

    /// The own shard, of which all others hear; then theirs, as they say that it is there.
    fn pull(&mut self, way: &Way, offered: String) {
        let Way { all, arrived, span, .. } = *way;
        let offered = self.signal(offered);
        let rank = || Expr::from(Sym::Rank);
        let peer = self.var("peer");
        self.lay(way, |slot| {
            let told = Stmt { op: raise(peer.into(), offered, slot.clone()), span };
            let others = Op::If { cond: Cond::Ne(peer.into(), rank()), body: vec![told] };
            let body = vec![Stmt { op: others, span }];
            let (from, to, step) = (0i64.into(), Sym::World.into(), 1i64.into());
            vec![raise(rank(), arrived, slot), Op::For { var: peer, from, to, step, body }]
        });
        self.for_sources(Range::new(1i64, Sym::World), span, |roles, source| {
            roles.for_chunks(&source.clone(), span, |rows, slot| {
                let from = place(At::Peer(source), all, &rows);
                vec![
                    wait(offered, slot.clone()),
                    Op::Copy { from, to: place(At::Own, all, &rows), adds: false },
                    raise(rank(), arrived, slot),
                ]
            })
        });
    }
}

fn place(at: At, buffer: BufferId, rows: &Range) -> Place {
    let cols = Range::new(0i64, Sym::K);
    Place { at, buffer, planes: Vec::new(), rows: rows.clone(), cols }
}

/// Raises a slot on `rank`, behind what was copied.
fn raise(rank: Expr, signal: SignalId, slot: Expr) -> Op {
    Op::Signal {
        at: At::Peer(rank),
        signal,
        slot,
        update: Update::Add(1i64.into()),
        scope: Scope::Sys,
        after: Completion::Performed,
    }
}

fn wait(signal: SignalId, slot: Expr) -> Op {
    Op::Wait { signal, slots: Range::one(slot), target: 1i64.into(), scope: Scope::Sys }
}
