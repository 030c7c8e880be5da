//! Builds the epilogue's dataflow: every tile value of the kernel that a store needs.

use super::build::Builder;
use super::chain;
use super::tensors::Tensors;
use crate::arena::Handle;
use crate::kernel::{Binary, Kernel, Op, ParamId, Value};
use crate::program::{ValueEntry, ValueId, ValueOp};

/// Where the kernel's values went.
pub(super) struct Values {
    ids: Vec<Option<ValueId>>,
}

impl Values {
    /// The node of a tile value. Usage inference has shown that it is one.
    pub(super) fn get(&self, value: Value) -> ValueId {
        self.ids[value.index()].expect("usage inference admits tiles only")
    }
}

pub(super) fn build(b: &mut Builder<'_>, tensors: &Tensors) -> Values {
    let kernel = b.kernel;
    let live = live(b);
    let mut values = Values { ids: Vec::with_capacity(kernel.ops.len()) };
    let mut accumulators = 0;
    for (value, entry) in kernel.ops.iter() {
        let op = match entry.op {
            Op::Gemm { .. } => {
                accumulators += 1;
                Some(ValueOp::Acc(accumulators - 1))
            }
            Op::Cols { tensor } => Some(ValueOp::Cols(tensors.buffer(tensor))),
            Op::Rows { tensor } => Some(ValueOp::Rows(tensors.buffer(tensor))),
            Op::Load { tensor } => Some(ValueOp::Load(tensors.buffer(tensor))),
            Op::LoadReady { ready } => load_of(kernel, ready).map(ValueOp::Loaded),
            Op::Const(number) => Some(ValueOp::Const(number)),
            Op::Scalar { param } => Some(ValueOp::Scalar(tensors.scalar(param))),
            Op::Unary { op, x } if live[value.index()] => Some(ValueOp::Unary(op, values.get(x))),
            Op::Binary { op, x, y } if live[value.index()] => {
                Some(ValueOp::Binary(op, values.get(x), values.get(y)))
            }
            Op::Cast { x, to } if live[value.index()] => Some(ValueOp::Cast(values.get(x), to)),
            Op::Reduce { x, .. } => Some(match chain::algorithm(b) {
                None => ValueOp::Sum,
                Some(_) => {
                    let op = ValueOp::Loaded(chain::load(b));
                    let so_far = b.program.values.push(ValueEntry { op, span: entry.span });
                    ValueOp::Binary(Binary::Add, values.get(x), so_far)
                }
            }),
            Op::Total { .. } => Some(ValueOp::Sum),
            Op::Unary { .. } | Op::Binary { .. } | Op::Cast { .. } => None,
            Op::Wait { .. } | Op::Await { .. } | Op::Ready { .. } => None,
            Op::Put { .. } | Op::Store { .. } | Op::Keep { .. } => None,
        };
        let op = op.filter(|_| live[value.index()]);
        let id = op.map(|op| b.program.values.push(ValueEntry { op, span: entry.span }));
        values.ids.push(id);
    }
    values
}

/// The gathered tensors whose rows an epilogue reads: a load's number is its place here.
pub(super) fn loaded(kernel: &Kernel) -> Vec<ParamId> {
    let mut all = Vec::new();
    for entry in kernel.ops.values() {
        if let Op::LoadReady { ready } = entry.op
            && let Op::Wait { tensor } = kernel.ops[ready].op
            && !all.contains(&tensor)
        {
            all.push(tensor);
        }
    }
    all
}

/// The number of the load that reads what a wait made ready.
fn load_of(kernel: &Kernel, ready: Value) -> Option<u32> {
    let Op::Wait { tensor } = kernel.ops[ready].op else { return None };
    loaded(kernel).iter().position(|&param| param == tensor).map(|index| index as u32)
}

/// Which values a store or a sum depends on.
fn live(b: &Builder<'_>) -> Vec<bool> {
    let mut live = vec![false; b.kernel.ops.len()];
    let entries: Vec<_> = b.kernel.ops.iter().collect();
    for (value, entry) in entries.into_iter().rev() {
        let needed = live[value.index()];
        match entry.op {
            Op::Store { x, .. } | Op::Reduce { x, .. } | Op::Put { x, .. } => {
                live[x.index()] = true;
            }
            Op::Total { own, .. } => live[own.index()] = true,
            Op::Unary { x, .. } | Op::Cast { x, .. } if needed => live[x.index()] = true,
            Op::Binary { x, y, .. } if needed => {
                live[x.index()] = true;
                live[y.index()] = true;
            }
            Op::Unary { .. } | Op::Cast { .. } | Op::Binary { .. } => {}
            Op::Await { .. } | Op::Ready { .. } | Op::Keep { .. } => {}
            Op::Wait { .. } | Op::Gemm { .. } | Op::Cols { .. } | Op::Rows { .. } => {}
            Op::Load { .. } | Op::LoadReady { .. } | Op::Const(_) | Op::Scalar { .. } => {}
        }
    }
    live
}
