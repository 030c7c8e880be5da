//! Transformer layers under tensor parallelism: which products and collectives one layer consists
//! of on one rank.
//!
//! The arithmetic is that of tensor and sequence parallelism (Shoeybi et al. 2019; Korthikanti et
//! al. 2022): attention and MLP each begin with an all-gather of the activations, whose product is
//! cut along its columns, and end with a product that is cut along its reduction, and a
//! reduce-scatter. Activations are `[tokens, hidden]`. In a backward pass each all-gather + GEMM
//! becomes a GEMM + reduce-scatter and the reverse, each weight's gradient is one more product, and
//! the gathered input of the first product of each pair, which is not kept, is gathered once more.
//! Attention itself, norms, activations and optimizer steps are not counted.
//!
//! Extents of GPT-3 175B are those of Brown et al. 2020 (table 2.1), those of Llama-2 70B of
//! Touvron et al. 2023 (its MLP is gated, and 8 heads of keys and values serve 64 of queries).

use crate::shapes::Dims;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The extents of a model's layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// Layers.
    pub layers: usize,
    /// Columns of the activations.
    pub hidden: usize,
    /// Columns of queries, keys and values together.
    pub qkv: usize,
    /// Columns of the MLP's first product, gate included.
    pub up: usize,
    /// Reduction of the MLP's second product.
    pub down: usize,
}

/// GPT-3 175B: 96 heads of 128, an MLP of four times the width.
pub const GPT3_175B: Model =
    Model { name: "GPT-3 175B", layers: 96, hidden: 12288, qkv: 3 * 12288, up: 49152, down: 49152 };

/// Llama-2 70B: 64 heads of 128 for queries, 8 for keys and for values, a gated MLP.
pub const LLAMA2_70B: Model = Model {
    name: "Llama-2 70B",
    layers: 80,
    hidden: 8192,
    qkv: (64 + 8 + 8) * 128,
    up: 2 * 28672,
    down: 28672,
};

/// What the layers are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Reads prompts: many tokens at once.
    Prefill,
    /// Writes answers: one token for each sequence at a time.
    Decode,
    /// Forward and backward.
    Train,
}

impl Phase {
    /// Tokens of one step where nothing else is said: prompts of 8192 tokens in all; 512
    /// sequences; one sequence of 2048.
    pub fn tokens(self) -> usize {
        match self {
            Phase::Prefill => 8192,
            Phase::Decode => 512,
            Phase::Train => 2048,
        }
    }
}

/// One step of a layer on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: StepKind,
    /// M of all ranks, N and K of one; of communication alone: rows and columns, K 0.
    pub shape: Dims,
}

/// What a step consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StepKind {
    /// An all-gather, then a product.
    Gather,
    /// A product, then a reduce-scatter.
    Scatter,
    /// A product alone.
    Product,
    /// An all-gather alone.
    Communication,
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StepKind::Gather => "AG-GEMM",
            StepKind::Scatter => "GEMM-RS",
            StepKind::Product => "GEMM",
            StepKind::Communication => "AG",
        })
    }
}

/// The steps of one layer of `model` on one of `ranks` ranks.
///
/// # Errors
/// In words: a model that cannot be shared out among so many.
pub fn layer(
    model: &Model,
    phase: Phase,
    tokens: usize,
    ranks: usize,
) -> Result<Vec<Step>, String> {
    let Model { name, hidden, qkv, up, down, .. } = *model;
    for extent in [hidden, qkv, up, down] {
        if ranks == 0 || !extent.is_multiple_of(ranks) {
            return Err(format!("{extent} columns of {name} cannot be shared among {ranks} ranks"));
        }
    }
    let step =
        |name: &str, kind, m, n, k| Step { name: name.into(), kind, shape: Dims { m, n, k } };
    let (first, second) = (StepKind::Gather, StepKind::Scatter);
    // Name, columns of the first kind's product or reduction of the second's.
    let products = [
        ("queries, keys, values", first, qkv / ranks),
        ("attention's projection", second, hidden / ranks),
        ("MLP up", first, up / ranks),
        ("MLP down", second, down / ranks),
    ];
    let mut steps: Vec<Step> = products
        .iter()
        .map(|&(name, kind, cut)| match kind {
            StepKind::Scatter => step(name, kind, tokens, hidden, cut),
            _ => step(name, kind, tokens, cut, hidden),
        })
        .collect();
    if phase == Phase::Train {
        for &(name, kind, cut) in products.iter().rev() {
            // The gradient of the input: [tokens, hidden] of the first kind, [tokens, cut] of the
            // second; that of the weight: [cut, hidden], summed over tokens.
            let gradient = format!("{name}, gradient of the input");
            let weight = format!("{name}, gradient of the weight");
            if kind == StepKind::Scatter {
                steps.push(step(&gradient, first, tokens, cut, hidden));
            } else {
                steps.push(step(&gradient, second, tokens, hidden, cut));
                let again = format!("{name}, input gathered again");
                steps.push(step(&again, StepKind::Communication, tokens, hidden, 0));
            }
            steps.push(step(&weight, StepKind::Product, cut, hidden, tokens));
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::{GPT3_175B, LLAMA2_70B, Phase, StepKind, layer};

    fn flops(steps: &[super::Step]) -> f64 {
        steps.iter().map(|step| step.shape.flops()).sum()
    }

    #[test]
    fn layers_have_the_operations_of_their_parameters() {
        for (model, parameters) in [(GPT3_175B, 12.0 * 12288f64.powi(2)), (LLAMA2_70B, 855.6e6)] {
            for ranks in [1, 2, 8] {
                let steps = layer(&model, Phase::Prefill, 1000, ranks).unwrap();
                // Two operations for each parameter and token, shared by the ranks.
                let expected = 2.0 * parameters * 1000.0 / ranks as f64;
                assert!((flops(&steps) / expected - 1.0).abs() < 1e-3, "{}", model.name);
                let train = layer(&model, Phase::Train, 1000, ranks).unwrap();
                assert!((flops(&train) / (3.0 * expected) - 1.0).abs() < 1e-3);
            }
        }
        // All layers have the parameters that the models are called after, less the embeddings.
        let total = 96.0 * 12.0 * 12288f64.powi(2);
        assert!((total / 175e9 - 1.0).abs() < 0.02);
        assert!((80.0 * 855.6e6 / 70e9 - 1f64).abs() < 0.03);
    }

    #[test]
    fn a_layer_gathers_twice_and_scatters_twice_and_the_way_back_too() {
        let count = |phase, kind| {
            let steps = layer(&GPT3_175B, phase, 512, 8).unwrap();
            steps.iter().filter(|step| step.kind == kind).count()
        };
        for phase in [Phase::Prefill, Phase::Decode] {
            assert_eq!((count(phase, StepKind::Gather), count(phase, StepKind::Scatter)), (2, 2));
            assert_eq!(count(phase, StepKind::Product), 0);
        }
        let train =
            [StepKind::Gather, StepKind::Scatter, StepKind::Product, StepKind::Communication];
        assert_eq!(train.map(|kind| count(Phase::Train, kind)), [4, 4, 4, 2]);
        assert!(layer(&LLAMA2_70B, Phase::Decode, 512, 7).is_err());
    }
}
