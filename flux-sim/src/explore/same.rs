//! Whether two Programs leave the same in every output, whatever the interleaving.

use super::{EPOCHS, ExploreError, Fault, Limits, run};
use crate::adversary;
use crate::error::Error;
use crate::memory::RankArgs;
use crate::tensor::{Input, Output};
use flux_ir::Element;
use flux_ir::check::Verified;
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::{BufferId, BufferKind, Program};
use half::{bf16, f16};
use std::collections::BTreeSet;

/// Sets of data that both Programs run on.
const DATA_SETS: u64 = 4;

/// Largest magnitude of an element: products and sums of a few are exact in every format.
const LARGEST: i64 = 8;

/// Why two Programs were not shown to do the same.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The exploration gave no verdict.
    #[error(transparent)]
    Explore(#[from] ExploreError),
    /// Some interleaving breaks a rule: what it leaves may not always be the same.
    #[error("an interleaving breaks {}", rules(.0))]
    Faults(BTreeSet<Fault>),
    /// An output differs.
    #[error(
        "launch {epoch} leaves {found} in element {element} of `{output}` on rank {rank}, expected {expected}"
    )]
    Contents {
        /// The launch, from 1.
        epoch: u32,
        /// The rank.
        rank: u32,
        /// The output.
        output: String,
        /// The element, row-major.
        element: usize,
        /// What the first Program leaves.
        expected: f32,
        /// What the second one leaves.
        found: f32,
    },
    /// The Programs have other tensors.
    #[error("the Programs have different tensors")]
    Tensors,
    /// A Program could not be run.
    #[error(transparent)]
    Run(#[from] Error),
}

fn rules(faults: &BTreeSet<Fault>) -> String {
    let rules: BTreeSet<&str> = faults.iter().map(|fault| fault.rule.name()).collect();
    rules.into_iter().collect::<Vec<_>>().join(", ")
}

/// Shows that `other` leaves in every output, in each of [`EPOCHS`] launches, what `original`
/// leaves, in every interleaving. Returns the number of states explored.
///
/// 1. No interleaving of `other` breaks a rule ([`run`]); so each read sees the same write in all of
///    them, and what they compute is one function of the inputs.
/// 2. That function is compared with that of `original`: both are run, on small integers whose
///    products and sums are exact in whatever order, that differ for every rank, launch and element;
///    outputs are compared bit by bit, and begin as NaN.
///
/// # Errors
/// What differs, or why the question is open.
pub fn equivalent(
    original: &Verified,
    other: &Verified,
    launch: Launch,
    limits: &Limits,
) -> Result<usize, Difference> {
    let outcome = run(other.program(), launch, EPOCHS, limits)?;
    if !outcome.is_sound() {
        return Err(Difference::Faults(outcome.faults));
    }
    let tensors = |program: &Program| -> Vec<_> {
        let kinds = program.buffers.iter().map(|(id, b)| (id, b.kind, b.element, b.name.clone()));
        kinds.filter(|(_, kind, ..)| *kind != BufferKind::Symmetric).collect()
    };
    if tensors(original.program()) != tensors(other.program()) {
        return Err(Difference::Tensors);
    }
    for set in 0..DATA_SETS {
        let expected = results(original, launch, set)?;
        let found = results(other, launch, set)?;
        compare(original.program(), &expected, &found)?;
    }
    Ok(outcome.states)
}

/// The first element that differs.
fn compare(
    program: &Program,
    expected: &[Vec<Tensors>],
    found: &[Vec<Tensors>],
) -> Result<(), Difference> {
    for (epoch, (expected, found)) in (1..).zip(expected.iter().zip(found)) {
        for (rank, (expected, found)) in (0..).zip(expected.iter().zip(found)) {
            for ((buffer, expected), (_, found)) in expected.outputs.iter().zip(&found.outputs) {
                let (expected, found) = (expected.values(), found.values());
                let pairs = expected.iter().zip(&found);
                let bits = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
                let differs = pairs.enumerate().find(|(_, pair)| bits(*pair));
                if let Some((element, (&expected, &found))) = differs {
                    let output = program.buffers[*buffer].name.clone();
                    return Err(Difference::Contents {
                        epoch,
                        rank,
                        output,
                        element,
                        expected,
                        found,
                    });
                }
            }
        }
    }
    Ok(())
}

/// What one run leaves, by launch and rank.
fn results(verified: &Verified, launch: Launch, set: u64) -> Result<Vec<Vec<Tensors>>, Error> {
    let program = verified.program();
    let views: Vec<_> =
        (0..launch.world).map(|rank| RankView::definitions(program, launch, rank)).collect();
    let mut tensors: Vec<Vec<Tensors>> = (1..=EPOCHS)
        .map(|epoch| views.iter().map(|view| Tensors::new(view, epoch, set)).collect())
        .collect();
    let args = tensors.iter_mut().map(|ranks| ranks.iter_mut().map(Tensors::args).collect());
    adversary::run(verified, launch, args.collect(), set)?;
    Ok(tensors)
}

/// One rank's tensors of one launch.
struct Tensors {
    inputs: Vec<(BufferId, Tensor)>,
    outputs: Vec<(BufferId, Tensor)>,
    scalars: Vec<f32>,
}

enum Tensor {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Tensors {
    fn new(view: &RankView<'_>, epoch: u32, set: u64) -> Self {
        let program = view.program;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (id, buffer) in program.buffers.iter() {
            let elements = view.extent(id).elements();
            let seed = [set, epoch.into(), view.rank.into(), id.0.into()];
            match buffer.kind {
                BufferKind::Input | BufferKind::Exposed => {
                    let values = (0..elements).map(|element| integer(seed, element));
                    inputs.push((id, Tensor::new(buffer.element, values)));
                }
                BufferKind::Output => {
                    let values = (0..elements).map(|_| f32::NAN);
                    outputs.push((id, Tensor::new(buffer.element, values)));
                }
                BufferKind::Symmetric => {}
            }
        }
        let scalars = (0..program.scalars.len() as u64)
            .map(|scalar| integer([set, epoch.into(), u64::MAX, 0], scalar));
        Tensors { inputs, outputs, scalars: scalars.collect() }
    }

    fn args(&mut self) -> RankArgs<'_> {
        RankArgs {
            inputs: self.inputs.iter().map(|(id, tensor)| (*id, tensor.input())).collect(),
            outputs: self.outputs.iter_mut().map(|(id, tensor)| (*id, tensor.output())).collect(),
            scalars: self.scalars.clone(),
        }
    }
}

impl Tensor {
    fn new(element: Element, values: impl Iterator<Item = f32>) -> Self {
        match element {
            Element::Bf16 => Tensor::Bf16(values.map(bf16::from_f32).collect()),
            Element::F16 => Tensor::F16(values.map(f16::from_f32).collect()),
            Element::F32 => Tensor::F32(values.collect()),
        }
    }

    fn input(&self) -> Input<'_> {
        match self {
            Tensor::Bf16(data) => data.as_slice().into(),
            Tensor::F16(data) => data.as_slice().into(),
            Tensor::F32(data) => data.as_slice().into(),
        }
    }

    fn output(&mut self) -> Output<'_> {
        match self {
            Tensor::Bf16(data) => data.as_mut_slice().into(),
            Tensor::F16(data) => data.as_mut_slice().into(),
            Tensor::F32(data) => data.as_mut_slice().into(),
        }
    }

    fn values(&self) -> Vec<f32> {
        match self {
            Tensor::Bf16(data) => data.iter().map(|x| x.to_f32()).collect(),
            Tensor::F16(data) => data.iter().map(|x| x.to_f32()).collect(),
            Tensor::F32(data) => data.clone(),
        }
    }
}

/// An integer in `-LARGEST..=LARGEST` that all of the numbers decide.
fn integer(seed: [u64; 4], element: u64) -> f32 {
    let mixed = seed.into_iter().chain([element]).fold(0u64, |mixed, number| {
        // The finalizer of SplitMix64.
        let mut x = (mixed ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    });
    (mixed % (2 * LARGEST as u64 + 1)) as f32 - LARGEST as f32
}
