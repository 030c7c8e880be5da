//! Runs original and mutant in every interleaving of small launches.
//!
//! [`explore`] shows that in each interleaving of the mutant every read sees the same write: what
//! it computes does not depend on the interleaving. So one run with data stands for all, and its
//! outputs are compared with the original's, bit for bit, on small integers.

use super::score::Verdict;
use crate::adversary;
use crate::explore::{self, Limits};
use crate::memory::RankArgs;
use crate::tensor::{Input, Output};
use flux_ir::check::{Verified, verify};
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::{BufferId, BufferKind, Program};
use flux_ir::{Element, Shape};
use half::{bf16, f16};

/// Launches in tiles of two rows and two columns, with the number of consecutive ones: one tile and
/// several, whole and ragged, across shards, fewer rows than ranks, one CTA that does all tiles and
/// several that share them. Five launches see each credit used twice.
const LAUNCHES: [(Launch, u32); 9] = [
    (launch(1, 3, 3, 1), 5),
    (launch(1, 5, 2, 2), 3),
    (launch(2, 1, 1, 1), 5),
    (launch(2, 3, 3, 1), 3),
    (launch(2, 3, 1, 2), 3),
    (launch(2, 4, 2, 1), 5),
    (launch(2, 5, 3, 2), 3),
    (launch(3, 2, 1, 1), 5),
    (launch(3, 5, 1, 2), 3),
];

const fn launch(world: u32, m: u32, n: u32, ctas: u32) -> Launch {
    Launch { shape: Shape { m, n, k: 2 }, world, ctas }
}

/// Seeds of runs with data: in the first agents run in turn, in the second some run far ahead.
const SEEDS: [u64; 2] = [1, 2];

/// Whether each interleaving of `mutant` leaves what `original` leaves.
pub(super) fn same_contents(original: &Program, mutant: &Program) -> Verdict {
    let show = || {
        let original = verify(original.clone()).map_err(|found| found.to_string())?;
        let mutant = verify(mutant.clone())
            .map_err(|found| format!("in small tiles the checker says: {found}"))?;
        let mut states = 0;
        for (launch, epochs) in LAUNCHES {
            let Launch { shape, world, ctas } = launch;
            let about = |what: String| {
                format!("{shape} over {world} with {ctas} CTAs, {epochs} launches: {what}")
            };
            states += explored(&mutant, launch, epochs).map_err(about)?;
            let left = |verified, seed| contents(verified, launch, epochs, seed).map_err(about);
            let expected = left(&original, SEEDS[0])?;
            for seed in SEEDS {
                if left(&mutant, seed)? != expected {
                    return Err(about("other contents".into()));
                }
            }
        }
        Ok(Verdict::SameContents { launches: LAUNCHES.len(), states })
    };
    show().unwrap_or_else(Verdict::Survived)
}

/// Plays every interleaving. Returns how many states there are, or what went wrong in one.
fn explored(mutant: &Verified, launch: Launch, epochs: u32) -> Result<u64, String> {
    mutant.check_launch(launch).map_err(|found| format!("the checker says: {found}"))?;
    let limits = Limits { first_fault: true, ..Limits::default() };
    let outcome = explore::run(mutant.program(), launch, epochs, &limits);
    let outcome = outcome.map_err(|error| error.to_string())?;
    match outcome.faults.first() {
        None => Ok(outcome.states as u64),
        Some(fault) => {
            let stmt = fault.stmt.map_or(String::new(), |stmt| format!(" at statement {stmt}"));
            Err(format!("some interleaving breaks {}{stmt}", fault.rule))
        }
    }
}

/// The outputs of every rank after each of `epochs` launches, in bits.
fn contents(
    verified: &Verified,
    launch: Launch,
    epochs: u32,
    seed: u64,
) -> Result<Vec<Tensor>, String> {
    let program = verified.program();
    let mut tensors = Vec::new();
    for epoch in 0..epochs {
        for rank in 0..launch.world {
            let view = RankView::definitions(program, launch, rank);
            let mut of_rank = Vec::new();
            for (id, buffer) in program.buffers.iter() {
                if buffer.kind != BufferKind::Symmetric {
                    let count = view.extent(id).elements() as usize;
                    let salt = (u64::from(epoch) << 40) + (u64::from(rank) << 32) + u64::from(id.0);
                    of_rank.push((id, Tensor::new(buffer.element, buffer.kind, count, salt)));
                }
            }
            tensors.push(of_rank);
        }
    }
    let scalars: Vec<f32> = (2..).take(program.scalars.len()).map(|x| x as f32).collect();
    let mut ranks = tensors.iter_mut();
    let launches = (0..epochs).map(|_| {
        let of_launch = ranks.by_ref().take(launch.world as usize);
        of_launch.map(|tensors| args(program, tensors, &scalars)).collect()
    });
    adversary::run(verified, launch, launches.collect(), seed)
        .map_err(|error| error.to_string())?;
    let outputs = tensors.into_iter().flatten();
    let is_output = |id: BufferId| program.buffers[id].kind == BufferKind::Output;
    Ok(outputs.filter(|(id, _)| is_output(*id)).map(|(_, tensor)| tensor).collect())
}

fn args<'a>(
    program: &Program,
    tensors: &'a mut [(BufferId, Tensor)],
    scalars: &[f32],
) -> RankArgs<'a> {
    let mut args = RankArgs { inputs: Vec::new(), outputs: Vec::new(), scalars: scalars.to_vec() };
    for (id, tensor) in tensors {
        match program.buffers[*id].kind {
            BufferKind::Output => args.outputs.push((*id, tensor.output())),
            BufferKind::Input | BufferKind::Exposed | BufferKind::Symmetric => {
                args.inputs.push((*id, tensor.input()));
            }
        }
    }
    args
}

/// A tensor in memory.
#[derive(Debug)]
enum Tensor {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Tensor {
    /// Small integers; what is written begins as no number.
    fn new(element: Element, kind: BufferKind, count: usize, salt: u64) -> Self {
        let number = |index: usize| match kind {
            BufferKind::Output => f32::NAN,
            BufferKind::Input | BufferKind::Exposed | BufferKind::Symmetric => {
                let mut x = (salt ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                ((x ^ (x >> 31)) % 7) as f32 - 3.0
            }
        };
        let numbers = (0..count).map(number);
        match element {
            Element::Bf16 => Tensor::Bf16(numbers.map(bf16::from_f32).collect()),
            Element::F16 => Tensor::F16(numbers.map(f16::from_f32).collect()),
            Element::F32 => Tensor::F32(numbers.collect()),
        }
    }

    fn input(&self) -> Input<'_> {
        match self {
            Tensor::Bf16(data) => Input::from(data.as_slice()),
            Tensor::F16(data) => Input::from(data.as_slice()),
            Tensor::F32(data) => Input::from(data.as_slice()),
        }
    }

    fn output(&mut self) -> Output<'_> {
        match self {
            Tensor::Bf16(data) => Output::from(data.as_mut_slice()),
            Tensor::F16(data) => Output::from(data.as_mut_slice()),
            Tensor::F32(data) => Output::from(data.as_mut_slice()),
        }
    }

    fn bits(&self) -> Vec<u32> {
        match self {
            Tensor::Bf16(data) => data.iter().map(|x| x.to_bits().into()).collect(),
            Tensor::F16(data) => data.iter().map(|x| x.to_bits().into()).collect(),
            Tensor::F32(data) => data.iter().map(|x| x.to_bits()).collect(),
        }
    }
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}
