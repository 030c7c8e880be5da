//! What roles move, and what they wait for: methods of workspace, of signals and of parts.

use super::index::tile_rows;
use super::protocol::Within;
use super::{Bound, Reader};
use crate::position::position;
use crate::suggest::did_you_mean;
use flux_ir::Span;
use flux_ir::kernel::{Distribution, Op as KernelOp, ParamId, ParamType};
use flux_ir::program::{
    At, BufferId, BufferKind, Completion, Expr as Index, Op, Place, Range, Scope, SignalId, Sym,
    Update,
};
use syn::{Expr, ExprMethodCall};

impl<'a> Reader<'a> {
    /// A method of `symmetric` workspace.
    pub(super) fn workspace_method(
        &mut self,
        buffer: BufferId,
        name: &str,
        span: Span,
        args: &[&'a Expr],
    ) -> Bound<'a> {
        match (name, args) {
            ("put", [to, source]) => self.put(buffer, to, source, (false, span)),
            ("reduce_add", [to, source, after]) => {
                let after = self.after(after);
                match self.put(buffer, to, source, (true, span)) {
                    Bound::Sent if after.is_some() => Bound::Sent,
                    _ => Bound::Broken,
                }
            }
            ("get", [from, rows, after]) => {
                let (from, rows) = (self.index(from), self.rows_of(rows));
                self.after(after);
                let (Some(from), Some(rows)) = (from, rows) else { return Bound::Broken };
                if !self.in_role(name, span) {
                    return Bound::Broken;
                }
                let cols = self.columns(buffer);
                let to = place(At::Own, buffer, rows, cols);
                let source = Place { at: At::Peer(from), ..to.clone() };
                self.act(Op::Copy { from: source, to, adds: false }, span);
                Bound::Sent
            }
            ("ready", [rows, after]) => {
                let rows = self.rows_of(rows);
                let after = self.after(after);
                let (Some(rows), Some(after)) = (rows, after) else { return Bound::Broken };
                match (self.within, after) {
                    (Within::Role, _) => {
                        let cols = self.columns(buffer);
                        Bound::Part(place(At::Own, buffer, rows, cols))
                    }
                    (_, Some(after)) if rows == tile_rows() => {
                        Bound::Ready(self.emit(KernelOp::Ready { buffer, after }, span))
                    }
                    _ => {
                        let help = "write `all.ready(tile.rows(), …)`";
                        self.mistyped(span, "a tile multiplies its own rows", help)
                    }
                }
            }
            ("put", _) => self.wrong_arity(name, 2, args.len(), span, "all.put(to, source)"),
            ("reduce_add", _) => {
                let usage = "all.reduce_add(to, source, after)";
                self.wrong_arity(name, 3, args.len(), span, usage)
            }
            ("get", _) => self.wrong_arity(name, 3, args.len(), span, "all.get(from, rows, after)"),
            ("ready", _) => self.wrong_arity(name, 2, args.len(), span, "all.ready(rows, after)"),
            _ => {
                let help = did_you_mean(name, &["put", "reduce_add", "get", "ready"]);
                self.mistyped(span, format!("workspace has no method `{name}`"), help)
            }
        }
    }

    /// `put`, or `reduce_add` where it `adds`.
    fn put(
        &mut self,
        buffer: BufferId,
        to: &'a Expr,
        source: &'a Expr,
        (adds, span): (bool, Span),
    ) -> Bound<'a> {
        let to = self.index(to);
        let source = match self.expression(source) {
            Bound::Part(part) => part,
            Bound::Own(param, rows, cols) => {
                let from = self.own(param, buffer);
                let cols = cols.unwrap_or_else(|| self.columns(from));
                place(At::Own, from, rows, cols)
            }
            Bound::Broken => return Bound::Broken,
            Bound::Tensor(param) => {
                let name = self.name_of(param);
                let help = format!("write `{name}.part(shard(rank()))`");
                let position = position(source);
                return self.mistyped(position, "expected rows to copy, found a tensor", help);
            }
            _ => {
                let help = "copy a part of a shard, `a.part(rows)`, or rows that are ready";
                return self.mistyped(position(source), "expected rows to copy", help);
            }
        };
        let Some(to) = to else { return Bound::Broken };
        if !self.in_role(if adds { "reduce_add" } else { "put" }, span) {
            return Bound::Broken;
        }
        let target = Place { at: At::Peer(to), buffer, ..source.clone() };
        self.act(Op::Copy { from: source, to: target, adds }, span);
        Bound::Sent
    }

    /// The buffer that stands for a parameter, whose rows are as long as those of `target`.
    fn own(&mut self, param: ParamId, target: BufferId) -> BufferId {
        let (name, span) = (self.name_of(param), self.params[param].span);
        let known = self.protocol().parts.buffers.iter().find(|(_, buffer)| buffer.name == name);
        if let Some((id, _)) = known {
            return id;
        }
        let ParamType::Tensor { element, .. } = self.params[param].ty else {
            unreachable!("only tensors have parts")
        };
        let cols = match self.protocol().parts.buffers[target].cols {
            Index::Sym(sym) => sym,
            _ => Sym::K,
        };
        self.declare(name, BufferKind::Input, element, [Sym::M, cols], span)
    }

    /// All columns of a workspace.
    fn columns(&mut self, buffer: BufferId) -> Range {
        Range::new(0i64, self.protocol().parts.buffers[buffer].cols.clone())
    }

    fn in_role(&mut self, name: &str, span: Span) -> bool {
        let is_role = self.within == Within::Role;
        if !is_role {
            let help = "move it into `role(\"…\", || { … })`";
            self.refuse(span, format!("`{name}` stands in a role"), help);
        }
        is_role
    }

    /// What something is read after: in a tile the value of its wait.
    fn after(&mut self, expr: &'a Expr) -> Option<Option<flux_ir::kernel::Value>> {
        match self.expression(expr) {
            Bound::Arrived(after) => Some(after),
            Bound::Broken => None,
            _ => {
                let help = "pass what a wait gives: `arrived.wait(source)`";
                self.mistyped(position(expr), "expected something that was waited for", help);
                None
            }
        }
    }

    /// A method of an array of signals.
    pub(super) fn signals_method(
        &mut self,
        signal: SignalId,
        name: &str,
        span: Span,
        args: &[&'a Expr],
    ) -> Bound<'a> {
        match (name, args) {
            ("signal", [to, slot, after]) => {
                let (to, slot) = (self.index(to), self.index(slot));
                let sent = self.sent(after);
                let (Some(to), Some(slot), true) = (to, slot, sent) else { return Bound::Broken };
                if !self.in_role(name, span) {
                    return Bound::Broken;
                }
                let op = Op::Signal {
                    at: At::Peer(to),
                    signal,
                    slot,
                    update: Update::Add(1i64.into()),
                    scope: Scope::Sys,
                    after: Completion::Performed,
                };
                self.act(op, span);
                Bound::Unit
            }
            ("wait", [slots]) => match self.slots(slots) {
                Some(slots) => self.wait_for(signal, slots, 1i64.into(), span),
                None => Bound::Broken,
            },
            ("wait_for", [slots, times]) => match (self.slots(slots), self.index(times)) {
                (Some(slots), Some(times)) => self.wait_for(signal, slots, times, span),
                _ => Bound::Broken,
            },
            ("signal", _) => {
                self.wrong_arity(name, 3, args.len(), span, "arrived.signal(to, slot, sent)")
            }
            ("wait", _) => self.wrong_arity(name, 1, args.len(), span, "arrived.wait(slot)"),
            ("wait_for", _) => {
                self.wrong_arity(name, 2, args.len(), span, "arrived.wait_for(slot, times)")
            }
            _ => {
                let help = did_you_mean(name, &["signal", "wait", "wait_for"]);
                self.mistyped(span, format!("signals have no method `{name}`"), help)
            }
        }
    }

    fn wait_for(&mut self, signal: SignalId, slots: Range, times: Index, span: Span) -> Bound<'a> {
        match self.within {
            Within::Kernel => {
                let help = "wait in a role, or in the loop over tiles";
                self.refuse(span, "nothing waits ahead of roles and tiles", help)
            }
            Within::Role => {
                self.act(Op::Wait { signal, slots, target: times, scope: Scope::Sys }, span);
                Bound::Arrived(None)
            }
            Within::Puts => {
                let help = "wait ahead of the loop";
                self.refuse(span, "a loop over ranks puts the tile and does nothing else", help)
            }
            Within::Tile | Within::Slice => {
                let value = self.emit(KernelOp::Await { signal, slots, times }, span);
                Bound::Arrived(Some(value))
            }
        }
    }

    /// What a signal comes after: a put, several, or nothing.
    fn sent(&mut self, expr: &'a Expr) -> bool {
        if let Expr::Tuple(tuple) = super::expression::strip(expr) {
            return tuple.elems.iter().all(|sent| self.sent(sent));
        }
        match self.expression(expr) {
            Bound::Sent => true,
            Bound::Broken => false,
            _ => {
                let help = "pass what `put` gave, or `()` where nothing was sent";
                self.mistyped(position(expr), "expected something that was sent", help);
                false
            }
        }
    }

    /// `a.part(rows)` of a shard.
    pub(super) fn part(&mut self, param: ParamId, rows: &'a Expr, span: Span) -> Bound<'a> {
        let (distribution, _) = self.tensor(param);
        match self.rows_of(rows) {
            Some(rows) if matches!(distribution, Distribution::Sharded | Distribution::Global) => {
                Bound::Own(param, rows, None)
            }
            Some(_) => {
                let name = self.name_of(param);
                let help = format!("declare it `{name}: &Sharded<T>`, or `&Global<T>`");
                self.mistyped(span, format!("`{name}` is nothing that this rank holds"), help)
            }
            None => Bound::Broken,
        }
    }

    /// `.cols(from..to)` of what is copied.
    pub(super) fn part_method(
        &mut self,
        part: Bound<'a>,
        span: Span,
        call: &'a ExprMethodCall,
    ) -> Bound<'a> {
        let args: Vec<_> = call.args.iter().collect();
        if call.method != "cols" {
            let help = "there is `.cols(from..to)`; rows are chosen by `part` and `ready`";
            let message = format!("what is copied has no method `{}`", call.method);
            return self.mistyped(span, message, help);
        }
        let [cols] = args.as_slice() else {
            return self.wrong_arity("cols", 1, args.len(), span, "part.cols(from..to)");
        };
        let Some(cols) = self.rows_of(cols) else { return Bound::Broken };
        match part {
            Bound::Own(param, rows, _) => Bound::Own(param, rows, Some(cols)),
            Bound::Part(place) => Bound::Part(Place { cols, ..place }),
            other => other,
        }
    }
}

fn place(at: At, buffer: BufferId, rows: Range, cols: Range) -> Place {
    Place { at, buffer, planes: Vec::new(), rows, cols }
}
