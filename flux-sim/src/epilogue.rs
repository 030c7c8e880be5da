//! Evaluates the epilogue's dataflow in f32, row by row.

use crate::error::Fault;
use crate::memory::{Located, Memory};
use flux_ir::Element;
use flux_ir::arena::Handle;
use flux_ir::eval::{Loads, Region};
use flux_ir::kernel::{Binary, Unary};
use flux_ir::program::{BufferId, ValueId, ValueOp};
use half::{bf16, f16};
use std::ops::Range;

/// Values in some rows and columns of the output.
#[derive(Debug, Default)]
pub(crate) struct Tile {
    pub(crate) rows: Range<u32>,
    pub(crate) cols: Range<u32>,
    /// Row-major without gaps.
    pub(crate) data: Vec<f32>,
}

/// The tiles that an epilogue may read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles<'t> {
    pub(crate) accumulators: &'t [Tile],
    pub(crate) sum: &'t Tile,
    /// What was named of workspace, by number.
    pub(crate) loads: &'t Loads,
}

/// Buffers for one row of every value, reused from tile to tile.
#[derive(Debug, Default)]
pub(crate) struct Epilogue {
    rows: Vec<f32>,
}

/// A value that has to be computed, and the position of its operands among the steps.
struct Step<'m, 'a> {
    op: &'m ValueOp,
    operands: [usize; 2],
    source: Option<Located<'m, 'a>>,
    first_row: u32,
    /// Whether it is the same in every row.
    uniform: bool,
}

impl Tile {
    /// Takes the place `rows × cols`; elements are left as they are.
    pub(crate) fn reshape(&mut self, rows: Range<u32>, cols: Range<u32>) {
        self.data.resize(rows.len() * cols.len(), 0.0);
        (self.rows, self.cols) = (rows, cols);
    }

    /// The elements `cols` of `row`, if the tile has them.
    fn row(&self, row: u32, cols: &Range<u32>) -> Option<&[f32]> {
        let (start, end) = (cols.start.checked_sub(self.cols.start)?, cols.end);
        if !self.rows.contains(&row) || end > self.cols.end {
            return None;
        }
        let from = (row - self.rows.start) as usize * self.cols.len() + start as usize;
        self.data.get(from..from + cols.len())
    }
}

impl Epilogue {
    /// Evaluates `value` in `rows × cols` of the output and hands each row, counted from 0, to
    /// `each`.
    pub(crate) fn evaluate(
        &mut self,
        memory: &Memory<'_>,
        tiles: Tiles<'_>,
        value: ValueId,
        rows: Range<u32>,
        cols: Range<u32>,
        mut each: impl FnMut(usize, &[f32]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if rows.is_empty() || cols.is_empty() {
            return Ok(());
        }
        let steps = steps(memory, (value, tiles.loads), &rows, &cols)?;
        let width = cols.len();
        self.rows.resize(self.rows.len().max(steps.len() * width), 0.0);
        for (index, row) in rows.clone().enumerate() {
            for (position, step) in steps.iter().enumerate() {
                if step.uniform && index > 0 {
                    continue;
                }
                let (before, here) = self.rows.split_at_mut(position * width);
                let here = &mut here[..width];
                let operand = |which: usize| &before[step.operands[which] * width..][..width];
                match step.op {
                    ValueOp::Acc(number) => {
                        let tile = tiles.accumulators.get(*number as usize);
                        take(tile, row, &cols, here)?;
                    }
                    ValueOp::Sum => take(Some(tiles.sum), row, &cols, here)?,
                    ValueOp::Const(number) => here.fill(*number),
                    ValueOp::Scalar(index) => here.fill(scalar(memory, *index)?),
                    ValueOp::Cols(_) => {
                        let cols = cols.start as usize..cols.end as usize;
                        load(memory, step, 0, cols, here)?;
                    }
                    ValueOp::Rows(_) => {
                        let at = row.saturating_sub(step.first_row) as usize;
                        let mut number = [0.0];
                        load(memory, step, 0, at..at + 1, &mut number)?;
                        here.fill(number[0]);
                    }
                    ValueOp::Load(_) | ValueOp::Loaded(_) => {
                        load(memory, step, index, 0..width, here)?
                    }
                    ValueOp::Unary(op, _) => unary(*op, operand(0), here),
                    ValueOp::Binary(op, ..) => binary(*op, operand(0), operand(1), here),
                    ValueOp::Cast(_, to) => cast(*to, operand(0), here),
                }
            }
            let result = (steps.len() - 1) * width;
            each(index, &self.rows[result..result + width])?;
        }
        Ok(())
    }
}

/// What `value` needs, operands first; the last step is `value` itself.
fn steps<'m, 'a>(
    memory: &'m Memory<'a>,
    (value, loads): (ValueId, &Loads),
    rows: &Range<u32>,
    cols: &Range<u32>,
) -> Result<Vec<Step<'m, 'a>>, Fault> {
    let values = &memory.program().values;
    if value.index() >= values.len() {
        let count = values.len();
        return Err(Fault::Malformed(format!("expected a value below {count}, found {value}")));
    }
    let mut needed = vec![false; value.index() + 1];
    needed[value.index()] = true;
    for index in (0..=value.index()).rev().map(ValueId::new) {
        if needed[index.index()] {
            for operand in operands(&values[index].op) {
                match needed.get_mut(operand.index()) {
                    Some(slot) if operand < index => *slot = true,
                    _ => {
                        let reason = format!("expected operands before {index}, found {operand}");
                        return Err(Fault::Malformed(reason));
                    }
                }
            }
        }
    }
    let mut position = vec![0; needed.len()];
    let mut steps: Vec<Step<'m, 'a>> = Vec::new();
    for index in (0..=value.index()).filter(|&index| needed[index]) {
        position[index] = steps.len();
        let op = &values[ValueId::new(index)].op;
        let used = operands(op).map(|operand| position[operand.index()]);
        let mut step =
            Step { op, operands: [0; 2], source: None, first_row: 0, uniform: is_uniform(op) };
        for (slot, operand) in step.operands.iter_mut().zip(used) {
            *slot = operand;
            step.uniform &= steps[operand].uniform;
        }
        match op {
            ValueOp::Cols(buffer) => step.source = Some(memory.vector(*buffer)?),
            ValueOp::Rows(buffer) => {
                step.source = Some(memory.vector(*buffer)?);
                step.first_row = memory.first_row(*buffer);
                if rows.start < step.first_row {
                    let (row, first) = (rows.start, step.first_row);
                    let reason = format!("expected a row from {first} on, found {row}");
                    return Err(Fault::Malformed(reason));
                }
            }
            ValueOp::Load(buffer) => {
                step.source = Some(memory.locate(&own(memory, *buffer, rows, cols))?)
            }
            ValueOp::Loaded(number) => {
                step.source = Some(memory.locate(named(loads, *number, rows, cols)?)?)
            }
            ValueOp::Acc(_)
            | ValueOp::Sum
            | ValueOp::Const(_)
            | ValueOp::Scalar(_)
            | ValueOp::Unary(..)
            | ValueOp::Binary(..)
            | ValueOp::Cast(..) => {}
        }
        steps.push(step);
    }
    Ok(steps)
}

/// What load `number` named, which is of just these elements.
fn named<'l>(
    loads: &'l Loads,
    number: u32,
    rows: &Range<u32>,
    cols: &Range<u32>,
) -> Result<&'l Region, Fault> {
    let found = loads.iter().find(|(index, _)| *index == number).map(|(_, region)| region);
    let fits = |region: &&Region| (&region.rows, &region.cols) == (rows, cols);
    found.filter(fits).ok_or_else(|| {
        let reason =
            format!("expected rows {rows:?}, columns {cols:?} of load {number}, found {found:?}");
        Fault::Malformed(reason)
    })
}

fn own(memory: &Memory<'_>, buffer: BufferId, rows: &Range<u32>, cols: &Range<u32>) -> Region {
    Region { rank: memory.rank, buffer, plane: 0, rows: rows.clone(), cols: cols.clone() }
}

fn operands(op: &ValueOp) -> impl Iterator<Item = ValueId> + use<> {
    let pair = match op {
        ValueOp::Acc(_)
        | ValueOp::Sum
        | ValueOp::Const(_)
        | ValueOp::Scalar(_)
        | ValueOp::Cols(_)
        | ValueOp::Rows(_)
        | ValueOp::Load(_)
        | ValueOp::Loaded(_) => [None, None],
        ValueOp::Unary(_, x) | ValueOp::Cast(x, _) => [Some(*x), None],
        ValueOp::Binary(_, x, y) => [Some(*x), Some(*y)],
    };
    pair.into_iter().flatten()
}

/// Whether an op adds no dependence on the row of its own.
fn is_uniform(op: &ValueOp) -> bool {
    match op {
        ValueOp::Acc(_) | ValueOp::Sum | ValueOp::Rows(_) => false,
        ValueOp::Load(_) | ValueOp::Loaded(_) => false,
        ValueOp::Const(_)
        | ValueOp::Scalar(_)
        | ValueOp::Cols(_)
        | ValueOp::Unary(..)
        | ValueOp::Binary(..)
        | ValueOp::Cast(..) => true,
    }
}

fn take(tile: Option<&Tile>, row: u32, cols: &Range<u32>, into: &mut [f32]) -> Result<(), Fault> {
    match tile.and_then(|tile| tile.row(row, cols)) {
        Some(values) => {
            into.copy_from_slice(values);
            Ok(())
        }
        None => Err(Fault::Malformed(format!(
            "expected a tile that was computed, found none with row {row}, columns {cols:?}"
        ))),
    }
}

fn scalar(memory: &Memory<'_>, index: u32) -> Result<f32, Fault> {
    memory
        .scalar(index)
        .ok_or_else(|| Fault::Malformed(format!("expected scalar {index}, found none")))
}

fn load(
    memory: &Memory<'_>,
    step: &Step<'_, '_>,
    row: usize,
    cols: Range<usize>,
    into: &mut [f32],
) -> Result<(), Fault> {
    let Some(source) = &step.source else { return Ok(()) };
    let (_, width) = source.extent();
    if cols.end > width {
        let reason = format!("expected elements below {width}, found {cols:?}");
        return Err(Fault::Malformed(reason));
    }
    memory.load(source, row, cols, into)
}

fn unary(op: Unary, x: &[f32], into: &mut [f32]) {
    fn map(x: &[f32], into: &mut [f32], f: impl Fn(f32) -> f32) {
        for (y, &x) in into.iter_mut().zip(x) {
            *y = f(x);
        }
    }
    match op {
        Unary::Neg => map(x, into, |x| -x),
        Unary::Relu => map(x, into, |x| x.max(0.0)),
        Unary::Gelu => map(x, into, gelu),
        Unary::GeluTanh => map(x, into, gelu_tanh),
        Unary::Silu => map(x, into, |x| x / (1.0 + (-x).exp())),
        Unary::Exp => map(x, into, f32::exp),
        Unary::Tanh => map(x, into, f32::tanh),
    }
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
}

fn binary(op: Binary, x: &[f32], y: &[f32], into: &mut [f32]) {
    fn map(x: &[f32], y: &[f32], into: &mut [f32], f: impl Fn(f32, f32) -> f32) {
        for ((z, &x), &y) in into.iter_mut().zip(x).zip(y) {
            *z = f(x, y);
        }
    }
    match op {
        Binary::Add => map(x, y, into, |x, y| x + y),
        Binary::Sub => map(x, y, into, |x, y| x - y),
        Binary::Mul => map(x, y, into, |x, y| x * y),
        Binary::Div => map(x, y, into, |x, y| x / y),
        Binary::Max => map(x, y, into, f32::max),
        Binary::Min => map(x, y, into, f32::min),
    }
}

/// Rounds to `to`, to nearest even, and on in f32.
pub(crate) fn cast(to: Element, x: &[f32], into: &mut [f32]) {
    match to {
        Element::Bf16 => {
            for (y, &x) in into.iter_mut().zip(x) {
                *y = bf16::from_f32(x).to_f32();
            }
        }
        Element::F16 => {
            for (y, &x) in into.iter_mut().zip(x) {
                *y = f16::from_f32(x).to_f32();
            }
        }
        Element::F32 => into.copy_from_slice(x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_gives_only_the_rows_it_has() {
        let mut tile = Tile::default();
        tile.reshape(4..6, 8..11);
        tile.data.copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(tile.row(5, &(9..11)), Some([4.0, 5.0].as_slice()));
        assert_eq!(tile.row(6, &(9..11)), None);
        assert_eq!(tile.row(5, &(7..9)), None);
        assert_eq!(tile.row(5, &(9..12)), None);
    }
}
