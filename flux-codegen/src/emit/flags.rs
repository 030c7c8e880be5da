//! Sums of data that carry their own flag: an element that is negative zero has not been stored yet.
//!
//! Who stores turns negative zeros into positive ones ([`Leaves::Flagged`]). Who sums polls the data itself, and
//! puts "not yet" back behind what it has taken. Polls, stores and what is put back are `relaxed.sys` accesses
//! of the same elements, so each is seen whole and in one order (PTX ISA, "Memory Consistency Model",
//! "Coherence order"); nothing else is ordered by them, and nothing else is asked of them.

use super::Kernel;
use super::epilogue::{Slab, Stored, Sum};
use super::value::{Matrix, Pieces, Traveled};
use crate::context::{Cell, Int, Is};
use crate::error::Error;
use crate::nvvm::memory::{self, Access, Leaves, Pair};
use crate::nvvm::sync;
use flux_ir::Element;
use flux_ir::abi::not_yet;
use flux_ir::arena::Handle;
use flux_ir::program::{Expr, Op, SignalId, Update, ValueId, ValueOp};

/// The signal that data stand for, for reports.
struct Carried<'p> {
    signal: SignalId,
    /// The slot of a contribution, whose rank is the sum's variable.
    slot: &'p Expr,
    target: &'p Expr,
    /// What a launch adds to a slot.
    raised: u32,
}

impl<'c, 'p> Kernel<'c, 'p> {
    /// Whether a sum is of data that carry their own flag.
    pub(super) fn is_flagged(&self, sum: Sum<'p>) -> bool {
        self.program.is_flagged(sum.from.buffer)
    }

    /// Refuses stores that would take a sum of such data twice: what the first has taken is gone. Stores of a run
    /// share what they compute.
    pub(super) fn takes_once<'s>(
        &self,
        runs: impl Iterator<Item = &'s [Stored<'p>]>,
        sum: Option<Sum<'p>>,
    ) -> Result<(), Error>
    where
        'p: 's,
    {
        let takes = |run: &&[Stored<'p>]| run.iter().any(|store| self.needs_sum(store.value));
        if !sum.is_some_and(|sum| self.is_flagged(sum)) || runs.filter(takes).count() < 2 {
            return Ok(());
        }
        let message = "a sum of data that carry their own flag is stored in two ways";
        Err(self.unsupported(message, "store it to outputs of the same rows and columns"))
    }

    /// Whether a value is made from the sum at hand.
    pub(super) fn needs_sum(&self, value: ValueId) -> bool {
        match self.program.values[value].op {
            ValueOp::Sum => true,
            ValueOp::Unary(_, x) | ValueOp::Cast(x, _) => self.needs_sum(x),
            ValueOp::Binary(_, x, y) => self.needs_sum(x) || self.needs_sum(y),
            ValueOp::Acc(_)
            | ValueOp::Const(_)
            | ValueOp::Scalar(_)
            | ValueOp::Cols(_)
            | ValueOp::Rows(_)
            | ValueOp::Load(_)
            | ValueOp::Loaded(_) => false,
        }
    }

    /// The signal that the data of a sum stand for, where they carry their own flag.
    fn carried(&self, sum: Sum<'p>) -> Option<Carried<'p>> {
        let stands =
            |signal: &SignalId| self.program.signals[*signal].carrier == Some(sum.from.buffer);
        let (mut waited, mut raised) = (None, 1);
        for stmt in self.program.statements() {
            match &stmt.op {
                Op::Wait { signal, slots, target, .. } if stands(signal) => {
                    waited = waited.or(Some((*signal, &slots.lo, target)));
                }
                Op::Signal { signal, update: Update::Add(Expr::Int(count)), .. }
                    if stands(signal) =>
                {
                    raised = *count as u32;
                }
                _ => {}
            }
        }
        waited.map(|(signal, slot, target)| Carried { signal, slot, target, raised })
    }

    /// Lanes whose contributions of ranks `each` are polled, below `world`, the own one left out.
    fn polled(&self, each: &[Int<'c>], world: Int<'c>, rank: Int<'c>) -> Vec<Int<'c>> {
        let cx = &self.cx;
        let is_other = |&index: &Int<'c>| {
            cx.and(cx.is(index, Is::Lt, world), cx.not(cx.is(index, Is::Eq, rank)))
        };
        each.iter().map(is_other).collect()
    }

    /// Polls `look`, which loads and yields for each of these contributions whether some of it is missing, until
    /// nothing is; a wait that gives up names the first that is missing.
    fn poll_data(
        &self,
        sum: Sum<'p>,
        each: &[Int<'c>],
        look: impl FnOnce() -> Vec<Int<'c>>,
    ) -> Result<(), Error> {
        let cx = &self.cx;
        let carried = self.carried(sum);
        let mut outcome = Ok(());
        let poll = || {
            let missing = look();
            let any = missing.iter().copied().reduce(|a, b| cx.or(a, b)).expect("at least one");
            (cx.not(any), missing)
        };
        self.poll(poll, |missing: Vec<Int<'c>>| {
            let Some(Carried { signal, slot, target, raised }) = carried else { return };
            let mut first = each[0];
            for (&index, &missing) in each.iter().zip(&missing).rev() {
                first = cx.select(missing, index, first);
            }
            cx.set(self.vars[sum.var.index()], first);
            let told = self.expr(slot).and_then(|slot| Ok((slot, self.expr(target)?)));
            match told {
                Ok((slot, wanted)) => {
                    let seen = cx.sub(wanted, cx.uint(raised));
                    self.report(signal.index() as u32, slot, seen, wanted);
                }
                Err(error) => outcome = Err(error),
            }
        });
        sync::bar_warp_sync(cx);
        cx.set(self.aborted, sync::any(cx, cx.get(self.aborted)));
        outcome
    }

    /// Loads this lane's pieces of several contributions, once each element has been stored.
    pub(super) fn flagged_pieces(
        &self,
        (sum, slab): (Sum<'p>, &Slab<'c>),
        (each, matrices): (&[Int<'c>], &[Matrix<'c>]),
        (world, rank): (Int<'c>, Int<'c>),
    ) -> Result<Vec<Pieces<'c>>, Error> {
        let cx = &self.cx;
        // Lanes beyond the last piece of a row hold that of another.
        let kept = self.holds_a_piece(slab);
        let polled = self.polled(each, world, rank).into_iter();
        let polled = polled.map(|polled| kept.map_or(polled, |kept| cx.and(polled, kept)));
        let polled: Vec<Int> = polled.collect();
        let places: Vec<_> =
            matrices.iter().map(|matrix| self.piece_places(matrix, slab)).collect();
        let words =
            |of: &Vec<Int<'c>>| of.iter().map(|_| [(); 4].map(|()| cx.cell(cx.i32))).collect();
        let cells: Vec<Vec<[Cell; 4]>> = places.iter().map(words).collect();
        let element = matrices[0].element;
        self.poll_data(sum, each, || {
            let loaded: Vec<Vec<[Int; 4]>> = places
                .iter()
                .map(|of| {
                    of.iter().map(|&at| memory::ld_global_v4(cx, Access::Flagged, at)).collect()
                })
                .collect();
            let mut missing = Vec::new();
            for ((loaded, cells), &polled) in loaded.iter().zip(&cells).zip(&polled) {
                let mut flags = cx.int(0);
                for (values, cells) in loaded.iter().zip(cells) {
                    for (&value, &cell) in values.iter().zip(cells) {
                        cx.set(cell, value);
                        flags = cx.or(flags, self.flags(value, element));
                    }
                }
                missing.push(cx.and(polled, cx.nonzero(flags)));
            }
            missing
        })?;
        let live = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        for (places, &polled) in places.iter().zip(&polled) {
            let back = [cx.uint(not_yet(element)); 4];
            let wanted = cx.bit(cx.and(polled, live));
            for &at in places {
                memory::leave_v4_if(cx, (Leaves::Flagged, element), wanted, at, back);
            }
        }
        let pieces = cells.iter().map(|cells| {
            let loaded = cells.iter().map(|cells| cells.map(|cell| cx.get(cell))).collect();
            Pieces { element, kept, loaded }
        });
        Ok(pieces.collect())
    }

    /// One bit for each element of a register that has not been stored: its sign's.
    fn flags(&self, word: Int<'c>, element: Element) -> Int<'c> {
        let cx = &self.cx;
        let away = cx.xor(word, cx.uint(not_yet(element)));
        // Zero halves (or words) of `away`: in no other does adding the largest leave all signs clear.
        let largest = cx.uint(!not_yet(element));
        let sum = cx.or(cx.add(cx.and(away, largest), largest), away);
        cx.and(cx.xor(sum, cx.int(-1)), cx.uint(not_yet(element)))
    }

    /// Loads one contribution by pairs of columns, once each element of the window has been stored.
    pub(super) fn flagged_pairs(
        &self,
        (sum, slab): (Sum<'p>, &Slab<'c>),
        (index, matrix): (Int<'c>, &Matrix<'c>),
        (world, rank): (Int<'c>, Int<'c>),
    ) -> Result<Traveled<'c>, Error> {
        let cx = &self.cx;
        let polled = self.polled(&[index], world, rank)[0];
        let rows = self.lane_rows(slab);
        let mut cells: Vec<Cell> = Vec::new();
        let mut shape = None;
        self.poll_data(sum, &[index], || {
            let traveled = self.matrix_by_pairs(matrix, slab);
            let words = self.words(&traveled);
            let mut flags = cx.int(0);
            for (at, &word) in words.iter().enumerate() {
                let cell = cx.cell_of(word);
                cells.push(cell);
                let mask = self.wanted(slab, (&traveled, at), &rows);
                flags = cx.or(flags, cx.and(self.flags(word, matrix.element), mask));
            }
            shape = Some(traveled);
            vec![cx.and(polled, cx.nonzero(flags))]
        })?;
        let live = cx.is(cx.get(self.aborted), Is::Eq, cx.int(0));
        self.put_back(slab, matrix, cx.and(polled, live));
        let words = cells.iter().map(|&cell| cx.get(cell)).collect();
        Ok(match shape {
            Some(Traveled::Pairs(element, _)) => Traveled::Pairs(element, words),
            Some(Traveled::Whole(_)) | None => {
                Traveled::Whole(words.into_iter().map(|word| cx.bits_f32(word)).collect())
            }
        })
    }

    /// What traveled, as registers of 32 bits.
    fn words(&self, traveled: &Traveled<'c>) -> Vec<Int<'c>> {
        match traveled {
            Traveled::Pairs(_, pairs) => pairs.clone(),
            Traveled::Whole(values) => {
                values.iter().map(|&value| self.cx.f32_bits(value)).collect()
            }
        }
    }

    /// Which elements of register `at` lie in the window: the bits of their signs. Registers hold, of every 8
    /// columns, the lane's pair in its upper row, then in its lower one.
    fn wanted(
        &self,
        slab: &Slab<'c>,
        (traveled, at): (&Traveled<'c>, usize),
        rows: &[Int<'c>; 2],
    ) -> Int<'c> {
        let cx = &self.cx;
        let (step, row, columns) = match traveled {
            Traveled::Pairs(..) => (8 * (at / 2), at % 2, vec![(0, 0x8000), (1, 0x8000_0000)]),
            Traveled::Whole(_) => (8 * (at / 4), at % 4 / 2, vec![(at % 2, 0x8000_0000)]),
        };
        let inside = self.in_rows(slab, rows[row]);
        let first = cx.add(self.lane_column(slab), cx.uint(step as u32));
        let bits = columns.into_iter().map(|(offset, bit)| {
            let column = cx.add(first, cx.uint(offset as u32));
            let lo = cx.is(slab.window.col_lo, Is::Le, column);
            let hi = cx.is(column, Is::Lt, slab.window.col_hi);
            cx.select(cx.and(inside, cx.and(lo, hi)), cx.uint(bit), cx.int(0))
        });
        bits.reduce(|a, b| cx.or(a, b)).expect("at least one column")
    }

    /// Puts "not yet" back to the elements of the window that this lane has taken, where `cond` holds.
    fn put_back(&self, slab: &Slab<'c>, matrix: &Matrix<'c>, cond: Int<'c>) {
        let cx = &self.cx;
        let column = self.lane_column(slab);
        let bytes = matrix.element.bytes();
        let back = cx.uint(not_yet(matrix.element));
        for row in self.lane_rows(slab) {
            let wanted = [cx.bit(cx.and(cond, self.in_rows(slab, row))), slab.window.col_lo];
            let row = cx.mul(cx.widen(cx.sub(row, matrix.first_row)), matrix.pitch);
            let at = cx.add(matrix.base, row);
            for step in (0..slab.width).step_by(8) {
                let column = cx.add(column, cx.uint(step));
                let at = cx.add(at, cx.mul(cx.widen(column), cx.long(bytes.into())));
                let pair = Pair { at, column, end: slab.window.col_hi, aligned: cx.int(1) };
                let leaves = Leaves::Flagged;
                match matrix.element {
                    Element::F32 => {
                        let back = [cx.bits_f32(back); 2];
                        memory::leave_pair_f32(cx, leaves, (pair, 0), wanted, back);
                    }
                    element => memory::leave_pair_b16(cx, (leaves, element), pair, wanted, back),
                }
            }
        }
    }
}
