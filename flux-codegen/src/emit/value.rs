//! The epilogue's dataflow over one box, in f32 registers.
//!
//! A lane holds, of every 8 columns, the elements (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1)
//! with r = lane / 4 and c = 2 (lane % 4) (PTX ISA, "Register Fragments for wgmma": D). Loads
//! touch no column behind the window that is stored, and rows are clamped to it.

use super::Kernel;
use super::epilogue::{Slab, Sum};
use crate::context::{Cell, Float, Int, Is};
use crate::error::Error;
use crate::nvvm::memory::{self, Access, Pair};
use crate::nvvm::{convert::cvt_rn_x2, ldmatrix, sync};
use flux_ir::Element;
use flux_ir::abi::{BOX_ROWS, SWIZZLE_BYTES, Word};
use flux_ir::arena::Handle;
use flux_ir::kernel::Binary;
use flux_ir::program::{At, BufferId, BufferKind, Expr, Place, Sym, ValueId, ValueOp};

/// Values of one box that are known already, by value.
pub(super) type Memo<'c> = Vec<Option<Vec<Float<'c>>>>;

/// A matrix that is read in fragment layout.
pub(super) struct Matrix<'c> {
    /// Address of its first element.
    pub(super) base: Int<'c>,
    /// Bytes from row to row.
    pub(super) pitch: Int<'c>,
    /// The row of the whole tensor it begins with.
    pub(super) first_row: Int<'c>,
    pub(super) element: Element,
    access: Access,
}

impl<'c, 'p> Kernel<'c, 'p> {
    pub(super) fn value(
        &self,
        id: ValueId,
        slab: &Slab<'c>,
        memo: &mut Memo<'c>,
        sum: Option<Sum<'p>>,
    ) -> Result<Vec<Float<'c>>, Error> {
        if let Some(known) = &memo[id.index()] {
            return Ok(known.clone());
        }
        let cx = &self.cx;
        let count = slab.width as usize / 2;
        let entry = &self.program.values[id];
        let values = match &entry.op {
            ValueOp::Acc(index) => self.accumulator(*index, slab),
            ValueOp::Sum => {
                let sum = sum.ok_or_else(|| {
                    self.unsupported(
                        "a sum over ranks is used ahead of it",
                        "store it behind the sum",
                    )
                })?;
                let own = self.value(sum.own, slab, memo, None)?;
                self.sum(sum, slab, own)?
            }
            ValueOp::Const(number) => vec![cx.float(*number); count],
            ValueOp::Scalar(index) => {
                let bits = cx.truncate(self.word(Word::Scalar(*index)));
                vec![cx.bits_f32(bits); count]
            }
            ValueOp::Cols(buffer) => self.columns(*buffer, slab)?,
            ValueOp::Rows(buffer) => self.rows(*buffer, slab)?,
            ValueOp::Load(buffer) => self.matrix(&self.input(*buffer)?, slab)?,
            ValueOp::Loaded(index) => {
                let place = self.loads.borrow()[*index as usize].ok_or_else(|| {
                    self.unsupported("a load is used ahead of it", "store it behind the load")
                })?;
                self.matrix(&self.in_workspace(place)?, slab)?
            }
            ValueOp::Unary(op, x) => {
                let x = self.value(*x, slab, memo, sum)?;
                x.into_iter().map(|x| self.unary(*op, x)).collect()
            }
            ValueOp::Binary(op, x, y) => {
                let x = self.value(*x, slab, memo, sum)?;
                let y = self.value(*y, slab, memo, sum)?;
                x.into_iter().zip(y).map(|(x, y)| self.binary(*op, x, y)).collect()
            }
            ValueOp::Cast(x, to) => {
                let x = self.value(*x, slab, memo, sum)?;
                x.into_iter().map(|x| self.rounded(x, *to)).collect()
            }
        };
        memo[id.index()] = Some(values);
        Ok(memo[id.index()].clone().unwrap_or_default())
    }

    fn accumulator(&self, index: u32, slab: &Slab<'c>) -> Vec<Float<'c>> {
        let list = index as usize * self.plan.m_blocks as usize + slab.block;
        let registers = &self.tile().fragment[list];
        registers[slab.register..slab.register + slab.width as usize / 2].to_vec()
    }

    fn binary(&self, op: Binary, x: Float<'c>, y: Float<'c>) -> Float<'c> {
        let cx = &self.cx;
        match op {
            Binary::Add => cx.fadd(x, y),
            Binary::Sub => cx.fsub(x, y),
            Binary::Mul => cx.fmul(x, y),
            Binary::Div => cx.fdiv(x, y),
            Binary::Max => cx.math("llvm.maxnum", &[x, y]),
            Binary::Min => cx.math("llvm.minnum", &[x, y]),
        }
    }

    fn rounded(&self, x: Float<'c>, to: Element) -> Float<'c> {
        let cx = &self.cx;
        match to {
            Element::Bf16 => cx.extend(cx.round(x, cx.context.bf16_type())),
            Element::F16 => cx.extend(cx.round(x, cx.context.f16_type())),
            Element::F32 => x,
        }
    }

    /// An element of 16 bits, in the low half of `bits`, or of 32 bits.
    fn element(&self, bits: Int<'c>, element: Element) -> Float<'c> {
        let cx = &self.cx;
        match element {
            Element::Bf16 => cx.bits_f32(cx.shl(bits, 16)),
            Element::F16 => cx.extend(cx.bits_to(cx.to_i16(bits), cx.context.f16_type())),
            Element::F32 => cx.bits_f32(bits),
        }
    }

    fn element_at(&self, at: Int<'c>, element: Element) -> Float<'c> {
        let cx = &self.cx;
        match element {
            Element::F32 => memory::ld_global_nc_f32(cx, at),
            Element::Bf16 | Element::F16 => self.element(memory::ld_global_nc_u16(cx, at), element),
        }
    }

    /// The lane's two rows of a box, in the whole output.
    pub(super) fn lane_rows(&self, slab: &Slab<'c>) -> [Int<'c>; 2] {
        let cx = &self.cx;
        let first = cx.add(slab.row, cx.shr(self.lane, 2));
        [first, cx.add(first, cx.int(8))]
    }

    /// The lane's first column of a box.
    pub(super) fn lane_column(&self, slab: &Slab<'c>) -> Int<'c> {
        let cx = &self.cx;
        cx.add(slab.column, cx.shl(cx.and(self.lane, cx.int(3)), 1))
    }

    fn clamp(&self, index: Int<'c>, lo: Int<'c>, hi: Int<'c>) -> Int<'c> {
        let cx = &self.cx;
        cx.max(cx.min(index, cx.sub(hi, cx.int(1))), lo)
    }

    fn columns(&self, buffer: BufferId, slab: &Slab<'c>) -> Result<Vec<Float<'c>>, Error> {
        let cx = &self.cx;
        let element = self.program.buffers[buffer].element;
        let row = self.word(Word::Address(buffer));
        let by_pairs = || self.pairs(row, row, element, Access::Constant, slab);
        let by_pairs = || self.arrived(by_pairs());
        let found = if element == Element::F32 {
            let cells: Vec<Cell> = (0..slab.width / 4).map(|_| cx.cell(cx.f32)).collect();
            let keep = |values: Vec<Float<'c>>| {
                cells.iter().zip(values).for_each(|(&cell, value)| cx.set_f(cell, value));
                Ok::<(), Error>(())
            };
            let bits = cx.or(cx.and(cx.truncate(row), cx.int(7)), cx.and(slab.column, cx.int(1)));
            let aligned = cx.is(bits, Is::Eq, cx.int(0));
            cx.either(
                cx.and(self.columns_inside(slab), aligned),
                || {
                    let at = cx.add(row, cx.shl(cx.widen(self.lane_column(slab)), 2));
                    let steps = (0..slab.width).step_by(8);
                    let at = |step| cx.add(at, cx.long(i64::from(4 * step)));
                    let loaded = steps.map(|step| memory::ld_global_nc_v2_f32(cx, at(step)));
                    keep(loaded.flatten().collect())
                },
                || keep(by_pairs()),
            )?;
            cells.into_iter().map(|cell| cx.get_f(cell)).collect()
        } else {
            by_pairs()
        };
        Ok(found.chunks_exact(2).flat_map(|pair| [pair[0], pair[1], pair[0], pair[1]]).collect())
    }

    fn rows(&self, buffer: BufferId, slab: &Slab<'c>) -> Result<Vec<Float<'c>>, Error> {
        let cx = &self.cx;
        let matrix = self.input(buffer)?;
        let (lo, hi) = (slab.window.row_lo, slab.window.row_hi);
        let [first, second] = self.lane_rows(slab).map(|row| {
            let row = cx.sub(self.clamp(row, lo, hi), matrix.first_row);
            let at = cx.add(matrix.base, cx.mul(cx.widen(row), matrix.pitch));
            self.element_at(at, matrix.element)
        });
        let every_8 = [first, first, second, second];
        Ok(every_8.into_iter().cycle().take(slab.width as usize / 2).collect())
    }

    fn input(&self, buffer: BufferId) -> Result<Matrix<'c>, Error> {
        self.all_columns(buffer)?;
        Ok(Matrix {
            base: self.word(Word::Address(buffer)),
            pitch: self.word(Word::Pitch(buffer)),
            first_row: self.first_row(buffer, &At::Own)?,
            element: self.program.buffers[buffer].element,
            access: Access::Constant,
        })
    }

    /// A box of a matrix. One of 16-bit elements that lies inside the window comes in pieces of 16
    /// bytes through the staging memory, all of them under way at once.
    fn matrix(&self, matrix: &Matrix<'c>, slab: &Slab<'c>) -> Result<Vec<Float<'c>>, Error> {
        if matrix.element == Element::F32 {
            return Ok(self.arrived(self.matrix_by_pairs(matrix, slab)));
        }
        let cx = &self.cx;
        let cells: Vec<Cell> = (0..slab.width / 2).map(|_| cx.cell(cx.f32)).collect();
        let keep = |values: Vec<Float<'c>>| {
            cells.iter().zip(values).for_each(|(&cell, value)| cx.set_f(cell, value));
            Ok::<(), Error>(())
        };
        cx.either(
            self.in_pieces(matrix, slab),
            || keep(self.matrix_by_pieces(matrix, slab)),
            || keep(self.arrived(self.matrix_by_pairs(matrix, slab))),
        )?;
        Ok(cells.into_iter().map(|cell| cx.get_f(cell)).collect())
    }

    /// Whether a box can be loaded in pieces of 16 bytes.
    fn in_pieces(&self, matrix: &Matrix<'c>, slab: &Slab<'c>) -> Int<'c> {
        let (cx, window) = (&self.cx, slab.window);
        let end = cx.add(slab.row, cx.uint(BOX_ROWS));
        let rows =
            cx.and(cx.is(window.row_lo, Is::Le, slab.row), cx.is(end, Is::Le, window.row_hi));
        let bits = cx.truncate(cx.or(matrix.base, matrix.pitch));
        let bits = cx.or(cx.and(bits, cx.int(15)), cx.and(slab.column, cx.int(7)));
        let aligned = cx.is(bits, Is::Eq, cx.int(0));
        cx.and(cx.and(rows, self.columns_inside(slab)), aligned)
    }

    /// Whether all columns of a box are stored.
    fn columns_inside(&self, slab: &Slab<'c>) -> Int<'c> {
        let (cx, window) = (&self.cx, slab.window);
        let end = cx.add(slab.column, cx.uint(slab.width));
        let lo = cx.is(window.col_lo, Is::Le, slab.column);
        cx.and(lo, cx.is(end, Is::Le, window.col_hi))
    }

    fn matrix_by_pieces(&self, matrix: &Matrix<'c>, slab: &Slab<'c>) -> Vec<Float<'c>> {
        self.arrived(self.unpack(&self.pieces(matrix, slab), slab))
    }

    /// This lane's piece of a row of a box, and the rows of the box in which it has it. Lanes beyond the last
    /// piece take that again.
    fn lane_pieces(&self, slab: &Slab<'c>) -> (Int<'c>, Vec<Int<'c>>) {
        let cx = &self.cx;
        let (pieces, lanes) = (slab.width / 8, slab.lanes());
        let piece = cx.min(cx.and(self.lane, cx.uint(lanes - 1)), cx.uint(pieces - 1));
        let rows = (0..BOX_ROWS).step_by((32 / lanes) as usize);
        let rows = rows.map(|row| cx.add(cx.shr(self.lane, lanes.trailing_zeros()), cx.uint(row)));
        (piece, rows.collect())
    }

    /// Whether this lane's pieces of a box are no other lane's; none where all lanes' are.
    pub(super) fn holds_a_piece(&self, slab: &Slab<'c>) -> Option<Int<'c>> {
        let cx = &self.cx;
        let (pieces, lanes) = (slab.width / 8, slab.lanes());
        let piece = cx.and(self.lane, cx.uint(lanes - 1));
        (pieces < lanes).then(|| cx.is(piece, Is::Lt, cx.uint(pieces)))
    }

    /// Where this lane's pieces of a box lie.
    pub(super) fn piece_places(&self, matrix: &Matrix<'c>, slab: &Slab<'c>) -> Vec<Int<'c>> {
        let cx = &self.cx;
        let (piece, rows) = self.lane_pieces(slab);
        let column = cx.add(slab.column, cx.shl(piece, 3));
        let first = cx.sub(slab.row, matrix.first_row);
        let place = |row: Int<'c>| {
            let row = cx.mul(cx.widen(cx.add(first, row)), matrix.pitch);
            cx.add(cx.add(matrix.base, row), cx.shl(cx.widen(column), 1))
        };
        rows.into_iter().map(place).collect()
    }

    /// Loads this lane's pieces of a box.
    fn pieces(&self, matrix: &Matrix<'c>, slab: &Slab<'c>) -> Pieces<'c> {
        let load = |at| memory::ld_global_v4(&self.cx, matrix.access, at);
        let loaded = self.piece_places(matrix, slab).into_iter().map(load).collect();
        Pieces { element: matrix.element, kept: None, loaded }
    }

    /// Exchanges pieces of a box for the elements that this lane computes with.
    fn unpack(&self, pieces: &Pieces<'c>, slab: &Slab<'c>) -> Traveled<'c> {
        let cx = &self.cx;
        let Pieces { element, kept, ref loaded } = *pieces;
        let (piece, rows) = self.lane_pieces(slab);
        let base = self.next_box();
        let kept = kept.map(|kept| cx.bit(kept));
        for (&row, &values) in rows.iter().zip(loaded) {
            let at = cx.add(base, cx.mul(row, cx.uint(SWIZZLE_BYTES)));
            let swizzled = cx.shl(cx.xor(piece, cx.and(row, cx.int(7))), 4);
            memory::st_shared_v4(cx, kept, cx.add(at, swizzled), values);
        }
        sync::bar_warp_sync(cx);
        let places = self.box_places(base, slab.width);
        let registers = places.into_iter().flat_map(|(at, count)| ldmatrix::load(cx, at, count));
        Traveled::Pairs(element, registers.collect())
    }

    pub(super) fn matrix_by_pairs(&self, matrix: &Matrix<'c>, slab: &Slab<'c>) -> Traveled<'c> {
        let cx = &self.cx;
        let window = slab.window;
        let bits = cx.or(matrix.base, matrix.pitch);
        let [above, below] = self.lane_rows(slab).map(|row| {
            let row = cx.sub(self.clamp(row, window.row_lo, window.row_hi), matrix.first_row);
            let row = cx.add(matrix.base, cx.mul(cx.widen(row), matrix.pitch));
            self.pairs(row, bits, matrix.element, matrix.access, slab)
        });
        match (above, below) {
            (Traveled::Pairs(element, above), Traveled::Pairs(_, below)) => {
                let both = above.into_iter().zip(below);
                Traveled::Pairs(element, both.flat_map(|(above, below)| [above, below]).collect())
            }
            (above, below) => {
                let [above, below] = [above, below].map(|row| self.arrived(row));
                let both = above.chunks_exact(2).zip(below.chunks_exact(2));
                Traveled::Whole(both.flat_map(|(above, below)| [above, below].concat()).collect())
            }
        }
    }

    /// The lane's pairs of columns in the row at `row`. `bits` are those of every row's address,
    /// or'ed: they tell whether pairs are aligned.
    fn pairs(
        &self,
        row: Int<'c>,
        bits: Int<'c>,
        element: Element,
        access: Access,
        slab: &Slab<'c>,
    ) -> Traveled<'c> {
        let cx = &self.cx;
        let column = self.lane_column(slab);
        let bytes = element.bytes();
        let at = cx.add(row, cx.mul(cx.widen(column), cx.long(bytes.into())));
        let odd = cx.and(cx.truncate(bits), cx.uint(2 * bytes - 1));
        let odd = cx.or(odd, cx.and(slab.column, cx.int(1)));
        let aligned = cx.bit(cx.is(odd, Is::Eq, cx.int(0)));
        let pair = Pair { at, column, end: slab.window.col_hi, aligned };
        let steps = (0..slab.width).step_by(8);
        match element {
            Element::F32 => Traveled::Whole(
                steps.flat_map(|step| memory::ld_pair_f32(cx, access, pair, step)).collect(),
            ),
            Element::Bf16 | Element::F16 => {
                let load = |step| memory::ld_pair_b16(cx, access, pair, step);
                Traveled::Pairs(element, steps.map(load).collect())
            }
        }
    }

    /// The sum of a box: where accumulators leave few registers, of one half of its columns after
    /// the other, with as many bytes under way.
    fn sum(
        &self,
        sum: Sum<'p>,
        slab: &Slab<'c>,
        own: Vec<Float<'c>>,
    ) -> Result<Vec<Float<'c>>, Error> {
        let (columns, at_once) = match self.plan.accumulators(self.program) {
            ..=112 => (slab.width, 4),
            113..=144 => (slab.width, 2),
            _ => ((slab.width / 2).next_multiple_of(8), 1),
        };
        let mut total = Vec::with_capacity(own.len());
        for (from, own) in (0..).step_by(columns as usize).zip(own.chunks(columns as usize / 2)) {
            let (column, width) = (self.cx.add(slab.column, self.cx.uint(from)), own.len() * 2);
            let part = Slab { column, width: width as u32, ..*slab };
            total.extend(self.sum_of_part(sum, &part, own, at_once)?);
        }
        Ok(total)
    }

    /// Contributions in the order of ranks. The own one waits in its place, rounded and packed as
    /// the others were: half of the registers that it came in.
    fn sum_of_part(
        &self,
        sum: Sum<'p>,
        slab: &Slab<'c>,
        own: &[Float<'c>],
        at_once: u32,
    ) -> Result<Vec<Float<'c>>, Error> {
        let cx = &self.cx;
        let totals: Vec<Cell> = own.iter().map(|_| cx.cell(cx.f32)).collect();
        // What adds nothing, not even a sign to a zero.
        totals.iter().for_each(|&total| cx.set_f(total, cx.float(-0.0)));
        let own = self.traveled(own, self.program.buffers[sum.from.buffer].element);
        let (world, one) = (self.expr(&Expr::Sym(Sym::World))?, cx.int(1));
        let rank = self.expr(&Expr::Sym(Sym::Rank))?;
        let is_own = |index: Int<'c>| cx.is(index, Is::Eq, rank);
        let (flagged, ranks) = (self.is_flagged(sum), (world, rank));
        let add = |index: Int<'c>, values: Vec<Float<'c>>| {
            let is_one = (at_once > 1).then(|| cx.is(index, Is::Lt, world));
            for (&total, value) in totals.iter().zip(values) {
                let (before, after) = (cx.get_f(total), cx.fadd(cx.get_f(total), value));
                let after = is_one.map_or(after, |is_one| cx.select_f(is_one, after, before));
                cx.set_f(total, after);
            }
        };
        let index = cx.cell_of(cx.int(0));
        cx.count(index, world, cx.uint(at_once), || {
            let first = cx.get(index);
            let last = cx.sub(world, one);
            let each = (0..at_once).map(|ahead| cx.add(first, cx.uint(ahead)));
            let each: Vec<Int> = each.collect();
            // Behind the last: that one again, and not added.
            let matrix = |&index: &Int<'c>| self.contribution(sum, cx.min(index, last));
            let matrices = each.iter().map(matrix).collect::<Result<Vec<_>, Error>>()?;
            let in_pieces = matrices.iter().map(|matrix| match matrix.element {
                Element::F32 => cx.is(one, Is::Eq, cx.int(0)),
                Element::Bf16 | Element::F16 => self.in_pieces(matrix, slab),
            });
            let in_pieces = in_pieces.reduce(|a, b| cx.and(a, b)).expect("at least one");
            cx.either(
                in_pieces,
                || {
                    // All loads are on their way before the first is waited for.
                    let loaded: Vec<_> = match flagged {
                        true => self.flagged_pieces((sum, slab), (&each, &matrices), ranks)?,
                        false => matrices.iter().map(|matrix| self.pieces(matrix, slab)).collect(),
                    };
                    for (&index, pieces) in each.iter().zip(&loaded) {
                        let found = self.unpack(pieces, slab);
                        add(index, self.own_or(&own, is_own(index), found));
                    }
                    Ok(())
                },
                || {
                    let ahead = cx.cell_of(first);
                    let end = cx.min(cx.add(first, cx.uint(at_once)), world);
                    cx.count(ahead, end, one, || {
                        let index = cx.get(ahead);
                        let found = self.contribution(sum, index)?;
                        let found = match flagged {
                            true => self.flagged_pairs((sum, slab), (index, &found), ranks)?,
                            false => self.matrix_by_pairs(&found, slab),
                        };
                        add(index, self.own_or(&own, is_own(index), found));
                        Ok(())
                    })
                },
            )
        })?;
        Ok(totals.into_iter().map(|total| cx.get_f(total)).collect())
    }

    /// The own contribution where `is_own`, else what was `found` in its place.
    fn own_or(&self, own: &Traveled<'c>, is_own: Int<'c>, found: Traveled<'c>) -> Vec<Float<'c>> {
        let cx = &self.cx;
        match (own, found) {
            (Traveled::Pairs(element, own), Traveled::Pairs(_, found)) => {
                let bits = own.iter().zip(found).map(|(&own, found)| cx.select(is_own, own, found));
                self.arrived(Traveled::Pairs(*element, bits.collect()))
            }
            (own, found) => {
                let both = self.arrived(own.clone()).into_iter().zip(self.arrived(found));
                both.map(|(own, found)| cx.select_f(is_own, own, found)).collect()
            }
        }
    }

    /// Values as they travel: pairs of 16 bits, or f32.
    fn traveled(&self, values: &[Float<'c>], element: Element) -> Traveled<'c> {
        let cx = &self.cx;
        match element {
            Element::F32 => Traveled::Whole(values.to_vec()),
            Element::Bf16 | Element::F16 => {
                let pairs = values.chunks_exact(2);
                let pack = |pair: &[Float<'c>]| cvt_rn_x2(cx, element, pair[0], pair[1]);
                Traveled::Pairs(element, pairs.map(pack).collect())
            }
        }
    }

    /// What traveled, in f32.
    fn arrived(&self, traveled: Traveled<'c>) -> Vec<Float<'c>> {
        let cx = &self.cx;
        match traveled {
            Traveled::Whole(values) => values,
            Traveled::Pairs(element, pairs) => {
                let both = |bits| [bits, cx.shr(bits, 16)].map(|bits| self.element(bits, element));
                pairs.into_iter().flat_map(both).collect()
            }
        }
    }

    /// What a rank contributes. In the place of the own contribution lies nothing that matters.
    fn contribution(&self, sum: Sum<'p>, rank: Int<'c>) -> Result<Matrix<'c>, Error> {
        let place: &Place = sum.from;
        self.cx.set(self.vars[sum.var.index()], rank);
        self.in_workspace(place)
    }

    /// Refuses a buffer that holds a column shard.
    pub(super) fn all_columns(&self, buffer: BufferId) -> Result<(), Error> {
        if self.has_all_columns(buffer) {
            return Ok(());
        }
        let name = &self.program.buffers[buffer].name;
        let message = format!("`{name}` holds some of the columns, and is read as it lies");
        Err(self.unsupported(message, "copy what is read into workspace that has all columns"))
    }

    /// A matrix that another thread may have written before.
    fn in_workspace(&self, place: &Place) -> Result<Matrix<'c>, Error> {
        self.all_columns(place.buffer)?;
        Ok(Matrix {
            base: self.plane_address(place)?,
            pitch: self.word(Word::Pitch(place.buffer)),
            first_row: self.first_row(place.buffer, &place.at)?,
            element: self.program.buffers[place.buffer].element,
            access: match self.program.buffers[place.buffer].kind {
                BufferKind::Symmetric if self.program.is_flagged(place.buffer) => Access::Flagged,
                BufferKind::Symmetric => Access::Workspace,
                BufferKind::Input | BufferKind::Exposed | BufferKind::Output => Access::Plain,
            },
        })
    }
}

/// A contribution as it travels, in registers.
#[derive(Clone)]
pub(super) enum Traveled<'c> {
    Whole(Vec<Float<'c>>),
    Pairs(Element, Vec<Int<'c>>),
}

/// A lane's pieces of a box: 16 bytes in each of some rows.
pub(super) struct Pieces<'c> {
    pub(super) element: Element,
    /// Whether they are this lane's to hand over; none where all are.
    pub(super) kept: Option<Int<'c>>,
    pub(super) loaded: Vec<[Int<'c>; 4]>,
}
