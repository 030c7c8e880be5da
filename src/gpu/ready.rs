//! Parameters of launches, kept: encoding tensor maps takes longer than all else that a launch does
//! on the host ahead of the driver.

use super::arguments::Operand;
use crate::error::Error;
use crate::tensor::Arg;
use flux_runtime::TensorMap;

/// Sets of tensors that are remembered: callers go round in a few.
const MOST: usize = 8;

/// The parameters of launches, by what they were given; the latest last.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    sets: Vec<Ready>,
}

/// The parameters of one set of tensors and numbers.
#[derive(Debug)]
pub(super) struct Ready {
    /// Address, rows, columns and bytes of a row of each tensor; extents are the instance's own where
    /// these tell the shape.
    tensors: Vec<[u64; 4]>,
    /// Bits of the numbers.
    scalars: Vec<u32>,
    pub(super) maps: Vec<TensorMap>,
    pub(super) words: Vec<u64>,
}

impl ReadyList {
    /// The parameters of a launch, made where they are not known.
    pub(super) fn of(
        &mut self,
        operands: &[Operand<'_>],
        args: &[Arg<'_>],
        make: impl FnOnce() -> Result<(Vec<TensorMap>, Vec<u64>), Error>,
    ) -> Result<&Ready, Error> {
        let tensors = || operands.iter().map(key);
        let scalars = || args.iter().filter_map(bits);
        let is_it = |set: &Ready| {
            set.tensors.iter().copied().eq(tensors()) && set.scalars.iter().copied().eq(scalars())
        };
        let index = match self.sets.iter().position(is_it) {
            Some(index) => index,
            None => {
                let (maps, words) = make()?;
                let (tensors, scalars) = (tensors().collect(), scalars().collect());
                if self.sets.len() == MOST {
                    self.sets.remove(0);
                }
                self.sets.push(Ready { tensors, scalars, maps, words });
                self.sets.len() - 1
            }
        };
        Ok(&self.sets[index])
    }
}

fn key(operand: &Operand<'_>) -> [u64; 4] {
    let Operand { span, rows, cols, pitch_bytes, .. } = *operand;
    [span.address(), rows, cols, pitch_bytes]
}

fn bits(arg: &Arg<'_>) -> Option<u32> {
    match arg {
        Arg::Scalar(value) => Some(value.to_bits()),
        Arg::Tensor(_) => None,
    }
}
