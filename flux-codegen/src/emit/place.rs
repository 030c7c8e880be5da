//! Addresses of places and signals, on this rank and on peers.

use super::Kernel;
use crate::context::Int;
use crate::error::Error;
use crate::nvvm::memory;
use flux_ir::abi::Word;
use flux_ir::program::{At, BufferId, Expr, Home, Place, SignalId, Sym};

impl<'c> Kernel<'c, '_> {
    /// The plane of a place, leading dimensions flattened.
    pub(super) fn plane(&self, place: &Place) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let extents = &self.program.buffers[place.buffer].planes;
        let mut plane = cx.int(0);
        for (index, extent) in place.planes.iter().zip(extents) {
            plane = cx.add(cx.mul(plane, self.expr(extent)?), self.expr(index)?);
        }
        Ok(plane)
    }

    /// The row of the whole tensor that a buffer's memory begins with, on the rank of `at`.
    pub(super) fn first_row(&self, buffer: BufferId, at: &At) -> Result<Int<'c>, Error> {
        let first = &self.program.buffers[buffer].first_row;
        match at {
            At::Own => self.expr(first),
            At::Peer(rank) | At::Remote(rank) => self.expr(&first.substitute(Sym::Rank, rank)),
        }
    }

    /// The column of the whole tensor that a buffer's memory begins with, on the rank of `at`.
    pub(super) fn first_col(&self, buffer: BufferId, at: &At) -> Result<Int<'c>, Error> {
        let first = &self.program.buffers[buffer].first_col;
        match at {
            At::Own => self.expr(first),
            At::Peer(rank) | At::Remote(rank) => self.expr(&first.substitute(Sym::Rank, rank)),
        }
    }

    /// Whether memory of a buffer begins with the first column on every rank.
    pub(super) fn has_all_columns(&self, buffer: BufferId) -> bool {
        self.program.buffers[buffer].first_col == Expr::Int(0)
    }

    /// The row in memory of row `row` of the whole tensor.
    pub(super) fn memory_row(&self, place: &Place, row: Int<'c>) -> Result<Int<'c>, Error> {
        Ok(self.cx.sub(row, self.first_row(place.buffer, &place.at)?))
    }

    /// The address of the plane that `place` lies in.
    pub(super) fn plane_address(&self, place: &Place) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let base = match &place.at {
            At::Own => self.word(Word::Address(place.buffer)),
            At::Peer(rank) => cx.add(
                self.heap(Word::DeviceHeaps, rank)?,
                self.symmetric(place.buffer, Word::BufferOffset(place.buffer))?,
            ),
            At::Remote(_) => return Err(self.not_mapped()),
        };
        if self.program.buffers[place.buffer].planes.is_empty() {
            return Ok(base);
        }
        let bytes = self.symmetric(place.buffer, Word::PlaneBytes(place.buffer))?;
        Ok(cx.add(base, cx.mul(cx.widen(self.plane(place)?), bytes)))
    }

    fn not_mapped(&self) -> Error {
        let help = "put data there with the copy warps, and signal behind them";
        self.unsupported("memory of another node is not mapped", help)
    }

    /// A word that symmetric buffers alone have.
    fn symmetric(&self, buffer: BufferId, word: Word) -> Result<Int<'c>, Error> {
        match self.plan.abi.word(word) {
            Some(index) => Ok(self.cx.word(self.words, index)),
            None => {
                let name = &self.program.buffers[buffer].name;
                let message =
                    format!("`{name}` has planes or lies on a peer, and is not symmetric");
                Err(self.unsupported(message, "use a symmetric buffer"))
            }
        }
    }

    /// The address of a signal of the rank of `at`.
    pub(super) fn signal_address(
        &self,
        at: &At,
        signal: SignalId,
        slot: Int<'c>,
    ) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let own = Expr::Sym(Sym::Rank);
        let rank = match at {
            At::Own => &own,
            At::Peer(rank) => rank,
            At::Remote(_) => return Err(self.not_mapped()),
        };
        let heaps = match self.program.signals[signal].home {
            Home::Device => Word::DeviceHeaps,
            Home::Host => Word::HostHeaps,
        };
        let array = cx.add(self.heap(heaps, rank)?, self.word(Word::SignalOffset(signal)));
        Ok(cx.add(array, cx.shl(cx.widen(slot), 2)))
    }

    /// The base of a rank's heap.
    fn heap(&self, heaps: Word, rank: &Expr) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let rank = cx.widen(self.expr(rank)?);
        Ok(memory::ld_global_nc_u64(cx, cx.add(self.word(heaps), cx.shl(rank, 3))))
    }
}
