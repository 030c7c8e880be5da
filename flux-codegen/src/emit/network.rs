//! Puts and signals to ranks of other nodes: calls of NCCL's device API (`network/calls.ll`).
//!
//! One lane of the first copy warp issues everything that the copy warps of a CTA send, so that signals travel
//! behind its puts. The exit's last thread signals by itself.

use super::statement::Role;
use super::{Kernel, SEND_BARRIER};
use crate::context::{Int, Is};
use crate::error::Error;
use crate::network::{FLUSH, PUT, SEEN, SIGNAL};
use crate::nvvm::sync;
use flux_ir::abi::{COPY_WARPS, NETWORK_FLUSH, Word};
use flux_ir::program::{At, Expr, Op, Place, SignalId, Statements, Stmt, Update};

impl<'c> Kernel<'c, '_> {
    /// Puts a region of the own heap to that of another rank, unless the launch was aborted: in one message where
    /// its rows follow each other, else row by row.
    pub(super) fn put_over_network(&self, from: &Place, to: &Place) -> Result<(), Error> {
        let cx = &self.cx;
        cx.when(self.sends(), || {
            let element = self.program.buffers[to.buffer].element.bytes();
            let cols = cx.sub(self.expr(&to.cols.hi)?, self.expr(&to.cols.lo)?);
            let rows = cx.sub(self.expr(&to.rows.hi)?, self.expr(&to.rows.lo)?);
            let bytes = cx.widen(cx.mul(cols, cx.uint(element)));
            let pitches = [from, to].map(|place| self.word(Word::Pitch(place.buffer)));
            let follow = pitches.map(|pitch| cx.is(pitch, Is::Eq, bytes));
            let whole = cx.and(follow[0], follow[1]);
            let some = cx.and(cx.is(cx.int(0), Is::Lt, rows), cx.is(cx.int(0), Is::Lt, cols));
            let messages = cx.select(some, cx.select(whole, cx.int(1), rows), cx.int(0));
            let size = cx.select(whole, cx.mul(bytes, cx.widen(rows)), bytes);
            let starts = [self.window_offset(from, element)?, self.window_offset(to, element)?];
            let peer = self.expr(to.at.rank().unwrap_or(&Expr::Int(0)))?;
            let window = self.word(Word::NetworkWindow);
            let row = cx.cell_of(cx.int(0));
            cx.count(row, messages, cx.int(1), || {
                let row = cx.widen(cx.get(row));
                let [source, target] =
                    [0, 1].map(|side| cx.add(starts[side], cx.mul(row, pitches[side])));
                let args = [self.word(Word::NetworkComm), peer, window, target, source, size];
                cx.call(PUT, &args, None);
                Ok(())
            })
        })
    }

    /// Raises a signal of another rank, behind what was put there.
    pub(super) fn signal_over_network(
        &self,
        at: &At,
        signal: SignalId,
        (slot, update): (&Expr, &Update),
        role: Role,
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let sends = match role {
            Role::Copy => {
                // It says that all copy warps are through with what stands before it.
                sync::bar_sync(cx, SEND_BARRIER, 32 * COPY_WARPS);
                self.sends()
            }
            _ => cx.is(cx.get(self.aborted), Is::Eq, cx.int(0)),
        };
        cx.when(sends, || {
            let Update::Add(by) = update else {
                return Err(self.unsupported("a signal over the network is set", "add to it"));
            };
            let peer = self.expr(at.rank().unwrap_or(&Expr::Int(0)))?;
            let id = self.network_signal(signal, self.expr(slot)?);
            let args = [self.word(Word::NetworkComm), peer, id, self.expr(by)?];
            cx.call(SIGNAL, &args, None);
            Ok(())
        })
    }

    /// What ranks of other nodes have raised an own signal to.
    pub(super) fn seen_of_network(&self, signal: SignalId, slot: Int<'c>) -> Int<'c> {
        let cx = &self.cx;
        let args = [self.word(Word::NetworkComm), self.network_signal(signal, slot)];
        cx.call(SEEN, &args, Some(cx.i32)).expect("it yields a number")
    }

    /// The end of the copy warps' agent: the sources of what they put have been read.
    pub(super) fn end_of_puts(&self, body: &[Stmt]) -> Result<(), Error> {
        if puts(body) { self.flush() } else { Ok(()) }
    }

    /// The same ahead of a signal that says so.
    pub(super) fn flush_of_copies(&self) -> Result<(), Error> {
        let copies = self.plan.beside.map_or(&[][..], |beside| beside.body);
        if puts(copies) { self.flush() } else { Ok(()) }
    }

    /// Waits until the network has read what was put, for as long as any wait may take.
    fn flush(&self) -> Result<(), Error> {
        let cx = &self.cx;
        cx.when(self.sends(), || {
            // No clock of a multiprocessor is faster than 2 GHz.
            let cycles = cx.shl(self.word(Word::LimitNs), 1);
            let args = [self.word(Word::NetworkComm), cycles];
            let late = cx.call(FLUSH, &args, Some(cx.i32)).expect("it yields an outcome");
            cx.when(cx.nonzero(late), || {
                self.give_up(|| self.report(NETWORK_FLUSH, cx.int(0), late, cx.int(0)));
                Ok(())
            })
        })
    }

    /// Whether this is the lane that sends, and the launch has not been aborted.
    fn sends(&self) -> Int<'c> {
        let cx = &self.cx;
        let first = cx.is(self.tid, Is::Eq, cx.int(32));
        cx.and(first, cx.is(cx.get(self.aborted), Is::Eq, cx.int(0)))
    }

    fn network_signal(&self, signal: SignalId, slot: Int<'c>) -> Int<'c> {
        self.cx.add(self.cx.truncate(self.word(Word::NetworkSignal(signal))), slot)
    }

    /// Where a region of workspace begins in the window of the rank it lies on.
    fn window_offset(&self, place: &Place, element: u32) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let row = self.memory_row(place, self.expr(&place.rows.lo)?)?;
        let first = self.first_col(place.buffer, &place.at)?;
        let col = cx.sub(self.expr(&place.cols.lo)?, first);
        let within = cx.add(
            cx.mul(cx.widen(row), self.word(Word::Pitch(place.buffer))),
            cx.mul(cx.widen(col), cx.long(element.into())),
        );
        let plane = cx.widen(self.plane(place)?);
        let above = cx.mul(plane, self.word(Word::PlaneBytes(place.buffer)));
        Ok(cx.add(self.word(Word::BufferOffset(place.buffer)), cx.add(above, within)))
    }
}

/// Whether statements put something over the network.
fn puts(body: &[Stmt]) -> bool {
    let is_put = |stmt: &Stmt| matches!(&stmt.op, Op::Copy { to, .. } if to.at.is_remote());
    Statements::of(body).any(is_put)
}
