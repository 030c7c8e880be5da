//! Statements of the CTA agent, as the threads that run them see them.

use super::Kernel;
use super::epilogue::{Stored, Sum};
use super::wait::Awaited;
use crate::context::{Int, Is};
use crate::error::Error;
use crate::nvvm::{fence, memory, sync, tma};
use flux_ir::abi::{Word, epilogue_warps};
use flux_ir::program::{At, Completion, Engine, Expr, Op, Scope, SignalId, Stmt, Update};

/// Who runs a list of statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The loading thread: waits and fences.
    Producer,
    /// A thread that needs the numbers alone.
    Silent,
    /// A consumer warp ahead of its tiles: waits.
    Prologue,
    /// A consumer warp with a finished tile.
    Epilogue,
    /// A copy warp: waits, copies and signals.
    Copy,
    /// The last thread of the grid: waits and signals.
    Exit,
    /// The same, behind a fence that no wait or store follows: signals need none of their own.
    Fenced,
}

impl Role {
    const fn place(self) -> &'static str {
        match self {
            Role::Producer | Role::Silent => "ahead of the mainloop",
            Role::Prologue => "ahead of the tile loop",
            Role::Epilogue => "behind the mainloop",
            Role::Copy => "in an agent on copy warps",
            Role::Exit | Role::Fenced => "in what the last CTA does",
        }
    }
}

/// What a signal does.
struct Raise<'e> {
    at: &'e At,
    signal: SignalId,
    slot: &'e Expr,
    update: &'e Update,
    scope: Scope,
    after: Completion,
}

impl<'c, 'p> Kernel<'c, 'p> {
    pub(super) fn statements(&self, body: &'p [Stmt], role: Role) -> Result<(), Error> {
        let cx = &self.cx;
        let mut sum = None;
        let mut rest = body;
        while let Some((stmt, behind)) = rest.split_first() {
            rest = behind;
            self.span.set(stmt.span);
            if role != Role::Silent {
                self.pause_ahead_of(&stmt.op)?;
            }
            match &stmt.op {
                // The data say it.
                Op::Wait { signal, .. } | Op::Signal { signal, .. }
                    if self.program.signals[*signal].carrier.is_some() => {}
                Op::Let { var, value } => self.define(*var, self.expr(value)?),
                Op::Row { vars, .. } if self.item_row.borrow().is_some() => {
                    // The items carry the rows of the one table.
                    let row = *self.item_row.borrow();
                    for (var, value) in vars.iter().zip(row.into_iter().flatten()) {
                        self.define(*var, value);
                    }
                }
                Op::Row { table, index, vars } => {
                    let row = cx.shl(cx.widen(self.expr(index)?), 4);
                    let at = cx.add(self.word(Word::Table(*table)), row);
                    for (var, value) in vars.iter().zip(memory::ld_global_nc_v4(cx, at)) {
                        self.define(*var, value);
                    }
                }
                Op::For { var, from, to, step, body } => {
                    let (to, step) = (self.expr(to)?, self.step(step)?);
                    self.define(*var, self.expr(from)?);
                    let cell = self.vars[crate::plan::index(*var)];
                    let signals = |stmt: &Stmt| matches!(stmt.op, Op::Signal { .. });
                    let role = if role == Role::Exit && body.iter().all(signals) {
                        fence::acq_rel_sys(cx);
                        Role::Fenced
                    } else {
                        role
                    };
                    cx.count(cell, to, step, || self.statements(body, role))?;
                }
                Op::If { cond, body } => {
                    let cond = self.cond(cond)?;
                    cx.when(cond, || self.statements(body, role))?;
                }
                Op::Wait { signal, slots, target, scope } => {
                    let awaited = Awaited { signal: *signal, slots, target, scope: *scope };
                    match role {
                        Role::Producer | Role::Exit | Role::Fenced => self.wait_thread(&awaited)?,
                        Role::Prologue | Role::Epilogue | Role::Copy => {
                            self.wait_warp(&awaited)?;
                        }
                        Role::Silent => {}
                    }
                }
                Op::FenceProxyAsync => match role {
                    Role::Producer | Role::Epilogue | Role::Copy => fence::proxy_async(cx),
                    // Warps that wait for themselves, and then store by TMA what peers have read.
                    Role::Prologue if self.stores_in_bulk() => fence::proxy_async(cx),
                    Role::Silent | Role::Prologue | Role::Exit | Role::Fenced => {}
                },
                Op::Store { .. } => {
                    self.only(role, Role::Epilogue, "a store")?;
                    let more = rest.iter().map_while(store).count();
                    let stores: Vec<_> = store(stmt)
                        .into_iter()
                        .chain(rest[..more].iter().filter_map(store))
                        .collect();
                    rest = &rest[more..];
                    self.stores(&stores, sum)?;
                    if stores.iter().any(|store| self.needs_sum(store.value)) {
                        // What carries its own flag is there to be taken once.
                        sum = sum.filter(|&sum| !self.is_flagged(sum));
                    }
                }
                Op::Sum { var, own, from } => {
                    self.only(role, Role::Epilogue, "a sum")?;
                    sum = Some(Sum { var: *var, own: *own, from });
                }
                Op::Load { index, from } => {
                    if role != Role::Silent {
                        self.only(role, Role::Epilogue, "a load")?;
                        self.loads.borrow_mut()[*index as usize] = Some(from);
                    }
                }
                Op::Signal { at, signal, slot, update, scope, after } => {
                    let (signal, scope, after) = (*signal, *scope, *after);
                    let raise = Raise { at, signal, slot, update, scope, after };
                    match role {
                        Role::Silent => {}
                        Role::Epilogue => {
                            let warps = epilogue_warps(self.program.consumers);
                            self.signal_warp(&raise, warps, self.stores_in_bulk())?;
                        }
                        Role::Copy | Role::Exit | Role::Fenced if at.is_remote() => {
                            self.signal_over_network(at, signal, (slot, update), role)?;
                        }
                        Role::Copy => {
                            let in_bulk = self.stores_in_bulk() || self.copier() == Engine::Tma;
                            self.signal_warp(&raise, self.copier().raisers(), in_bulk)?;
                        }
                        Role::Exit | Role::Fenced => self.signal_thread(&raise, role)?,
                        Role::Producer | Role::Prologue => {
                            let message = format!("a signal {}", role.place());
                            return Err(self.unsupported(message, "raise it behind the mainloop"));
                        }
                    }
                }
                Op::Mainloop { .. } => {
                    let message = format!("a mainloop {}", role.place());
                    return Err(
                        self.unsupported(message, "write one mainloop directly in the tile loop")
                    );
                }
                Op::Copy { from, to, adds } => {
                    if role != Role::Copy {
                        let help = "give copies to an agent on copy warps, or on a copy engine";
                        return Err(self.unsupported(format!("a copy {}", role.place()), help));
                    }
                    match self.copier() {
                        _ if to.at.is_remote() => self.put_over_network(from, to)?,
                        Engine::Tma => self.copy_in_bulk(from, to, *adds)?,
                        Engine::CopyEngine | Engine::Ctas | Engine::CopyWarps => {
                            self.copy(from, to, *adds)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A loop's increment: at least 1.
    pub(super) fn step(&self, step: &Expr) -> Result<Int<'c>, Error> {
        Ok(self.cx.max(self.expr(step)?, self.cx.int(1)))
    }

    fn only(&self, role: Role, allowed: Role, what: &str) -> Result<(), Error> {
        if role == allowed {
            return Ok(());
        }
        let message = format!("{what} {}", role.place());
        Err(self.unsupported(message, "write it behind the mainloop"))
    }

    /// What copies beside tiles.
    pub(super) fn copier(&self) -> Engine {
        self.plan.beside.map_or(Engine::CopyWarps, |beside| beside.engine)
    }

    /// A warp's share of a signal that `warps` warps raise together; `in_bulk` says whether some of
    /// what they stored may have left so.
    fn signal_warp(&self, raise: &Raise<'_>, warps: u32, in_bulk: bool) -> Result<(), Error> {
        let cx = &self.cx;
        let share = match raise.update {
            Update::Add(Expr::Int(count)) if *count > 0 && count % i64::from(warps) == 0 => {
                Expr::Int(count / i64::from(warps))
            }
            Update::Add(_) => {
                let message =
                    format!("a signal of {warps} warps must be raised by a multiple of {warps}");
                let help = "each of them raises the signal by its share";
                return Err(self.unsupported(message, help));
            }
            Update::Set(_) => {
                let message = "a signal of several warps is set";
                return Err(self.unsupported(message, "add to it"));
            }
        };
        let live = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        cx.when(live, || {
            let first = cx.is(self.lane, Is::Eq, cx.int(0));
            if in_bulk {
                tma::wait_group(cx, raise.after, 0);
            }
            if raise.after == Completion::Read {
                self.flush_of_copies()?;
            }
            // Stores of all lanes come before lane 0's release.
            sync::bar_warp_sync(cx);
            cx.when(first, || {
                let at = self.signal_address(raise.at, raise.signal, self.expr(raise.slot)?)?;
                memory::red_release_add(cx, raise.scope, at, self.expr(&share)?);
                Ok(())
            })
        })
    }

    /// A signal of one thread, unless the launch was aborted.
    fn signal_thread(&self, raise: &Raise<'_>, role: Role) -> Result<(), Error> {
        let cx = &self.cx;
        let live = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        cx.when(live, || {
            let at = self.signal_address(raise.at, raise.signal, self.expr(raise.slot)?)?;
            match raise.update {
                Update::Add(by) => memory::red_release_add(cx, raise.scope, at, self.expr(by)?),
                // A fence and a relaxed store are a release pattern, as a release store is.
                Update::Set(to) if role == Role::Fenced => {
                    memory::st_relaxed_sys(cx, at, self.expr(to)?);
                }
                Update::Set(to) => memory::st_release(cx, raise.scope, at, self.expr(to)?),
            }
            Ok(())
        })
    }
}

/// Where and what a store writes.
fn store(stmt: &Stmt) -> Option<Stored<'_>> {
    match &stmt.op {
        Op::Store { to, value, adds } => Some(Stored { stmt, to, value: *value, adds: *adds }),
        Op::Let { .. }
        | Op::Row { .. }
        | Op::For { .. }
        | Op::If { .. }
        | Op::Wait { .. }
        | Op::FenceProxyAsync
        | Op::Mainloop { .. }
        | Op::Sum { .. }
        | Op::Load { .. }
        | Op::Signal { .. }
        | Op::Copy { .. } => None,
    }
}
