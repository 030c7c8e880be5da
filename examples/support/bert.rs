//! Reads one MLP of a BERT model together with the activations that a text sends into it.
//!
//! Up to that MLP the model runs here in plain f32 loops: embeddings, attention, and the layers
//! below. So the numbers are those of the real model, and the MLP's own output, computed the same
//! plain way, is what a fused kernel is compared with.
//!
//! Beside the weights (`*.safetensors`, as the `transformers` library names its tensors) lie the
//! model's `config.json` and `tokenizer.json`. All matrices are row-major; a linear layer keeps its
//! weight as `[out, in]`, so that `y = x · weightᵀ + bias`.

#![allow(dead_code, reason = "shared by an example and a test, and neither reads all of it")]

mod weights;
mod wordpiece;

use std::error::Error;
use std::path::Path;

use weights::{Config, Weights};
pub(crate) use wordpiece::WordPiece;

/// A row-major matrix of f32.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// `rows * cols` numbers.
    pub(crate) data: Vec<f32>,
}

impl Matrix {
    fn filled(rows: usize, cols: usize, value: f32) -> Self {
        Self { rows, cols, data: vec![value; rows * cols] }
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..][..self.cols]
    }

    /// `self · weightᵀ + bias`, with `weight` of shape `[out, in]`.
    pub(crate) fn linear(&self, weight: &Matrix, bias: &[f32]) -> Matrix {
        let mut out = Matrix::filled(self.rows, weight.rows, 0.0);
        for row in 0..self.rows {
            for (col, bias) in bias.iter().enumerate() {
                out.data[row * weight.rows + col] = dot(self.row(row), weight.row(col)) + bias;
            }
        }
        out
    }

    fn add(mut self, other: &Matrix) -> Matrix {
        self.data.iter_mut().zip(&other.data).for_each(|(a, b)| *a += b);
        self
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Four sums, so that an optimizing compiler need not wait for each addition.
    let mut sums = [0.0f32; 4];
    let (a4, a_rest) = a.as_chunks::<4>();
    let (b4, b_rest) = b.as_chunks::<4>();
    for (a, b) in a4.iter().zip(b4) {
        for lane in 0..4 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums[0] + sums[1] + sums[2] + sums[3] + rest
}

/// `(x - mean) / sqrt(variance + epsilon) * gain + bias`, row by row.
#[derive(Clone, Debug)]
pub(crate) struct LayerNorm {
    pub(crate) gain: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) epsilon: f32,
}

impl LayerNorm {
    pub(crate) fn apply(&self, x: &Matrix) -> Matrix {
        let mut out = x.clone();
        for row in 0..x.rows {
            let row = out.row_mut(row);
            let count = row.len() as f32;
            let mean = row.iter().sum::<f32>() / count;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count;
            let scale = 1.0 / (variance + self.epsilon).sqrt();
            for (x, (gain, bias)) in row.iter_mut().zip(self.gain.iter().zip(&self.bias)) {
                *x = (*x - mean) * scale * gain + bias;
            }
        }
        out
    }
}

/// The MLP block of one layer, what goes in and what should come out. Matrices are row-major.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    /// The layers of the model.
    pub(crate) layers: usize,
    /// Rows of `x`.
    pub(crate) tokens: usize,
    /// Columns of `x`.
    pub(crate) hidden: usize,
    /// Rows of `w1`, columns of `w2`.
    pub(crate) inner: usize,
    /// The token ids, one for each row of `x`.
    pub(crate) ids: Vec<u32>,
    /// `[tokens, hidden]`: the activations that enter the block.
    pub(crate) x: Vec<f32>,
    /// `[inner, hidden]`, named `intermediate.dense.weight`.
    pub(crate) w1: Vec<f32>,
    /// `[inner]`.
    pub(crate) b1: Vec<f32>,
    /// `[hidden, inner]`, named `output.dense.weight`.
    pub(crate) w2: Vec<f32>,
    /// `[hidden]`.
    pub(crate) b2: Vec<f32>,
    /// What follows the block.
    pub(crate) norm: LayerNorm,
    /// `[tokens, hidden]`: `gelu(x · w1ᵀ + b1) · w2ᵀ + b2 + x`, with the exact (erf) GELU.
    pub(crate) expected: Vec<f32>,
    /// `[tokens, hidden]`: `expected` after the layer norm, which is what the layer hands on.
    pub(crate) expected_normed: Vec<f32>,
}

/// Reads layer `layer` of the model whose weights are `weights`, and runs the model on `text` up to
/// that layer's MLP. Each line of `text` is a sequence of its own; their rows follow each other.
///
/// # Errors
///
/// A file is missing or not what it should be, a tensor is missing or has another shape or type, the
/// model has no such layer, or a line of `text` is too long for it.
pub(crate) fn load(weights: &Path, layer: usize, text: &str) -> Result<Mlp, Box<dyn Error>> {
    let folder = weights.parent().unwrap_or(Path::new(""));
    let config = Config::open(&folder.join("config.json"))?;
    if layer >= config.layers {
        let last = config.layers.saturating_sub(1);
        return Err(format!(
            "the model has {} layers, so expected a layer in 0..={last}, found {layer}",
            config.layers
        )
        .into());
    }
    let tokenizer = WordPiece::open(&folder.join("tokenizer.json"))?;
    let sequences = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| tokenizer.encode(line))
        .collect::<Result<Vec<_>, _>>()?;
    if sequences.is_empty() {
        return Err("the text is empty".into());
    }

    let file = Weights::open(weights)?;
    let mut x = embed(&file, &config, &sequences)?;
    let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
    for below in 0..layer {
        x = attend(&file, &config, below, &x, &lengths)?;
        x = Block::read(&file, &config, below)?.run(&x).1;
    }
    x = attend(&file, &config, layer, &x, &lengths)?;
    let block = Block::read(&file, &config, layer)?;
    let (expected, expected_normed) = block.run(&x);
    Ok(Mlp {
        layers: config.layers,
        tokens: x.rows,
        hidden: config.hidden,
        inner: config.inner,
        ids: sequences.concat(),
        x: x.data,
        w1: block.w1.data,
        b1: block.b1,
        w2: block.w2.data,
        b2: block.b2,
        norm: block.norm,
        expected: expected.data,
        expected_normed: expected_normed.data,
    })
}

/// The weights of an MLP block.
struct Block {
    w1: Matrix,
    b1: Vec<f32>,
    w2: Matrix,
    b2: Vec<f32>,
    norm: LayerNorm,
}

impl Block {
    fn read(file: &Weights, config: &Config, layer: usize) -> Result<Self, Box<dyn Error>> {
        let at = format!("encoder.layer.{layer}");
        let (w1, b1) =
            file.linear(&format!("{at}.intermediate.dense"), config.inner, config.hidden)?;
        let (w2, b2) = file.linear(&format!("{at}.output.dense"), config.hidden, config.inner)?;
        let norm = layer_norm(file, config, &format!("{at}.output.LayerNorm"))?;
        Ok(Self { w1, b1, w2, b2, norm })
    }

    /// The block's output before and after its layer norm.
    fn run(&self, x: &Matrix) -> (Matrix, Matrix) {
        let mut inner = x.linear(&self.w1, &self.b1);
        inner.data.iter_mut().for_each(|x| *x = gelu(*x));
        let out = inner.linear(&self.w2, &self.b2).add(x);
        let normed = self.norm.apply(&out);
        (out, normed)
    }
}

fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

fn layer_norm(file: &Weights, config: &Config, name: &str) -> Result<LayerNorm, Box<dyn Error>> {
    Ok(LayerNorm {
        gain: file.vector(&format!("{name}.weight"), config.hidden)?,
        bias: file.vector(&format!("{name}.bias"), config.hidden)?,
        epsilon: config.epsilon,
    })
}

/// Word, position and type embeddings of every token, summed and normalized.
fn embed(file: &Weights, config: &Config, ids: &[Vec<u32>]) -> Result<Matrix, Box<dyn Error>> {
    let table = |name: &str, rows| {
        file.matrix(&format!("embeddings.{name}_embeddings.weight"), rows, config.hidden)
    };
    let words = table("word", config.vocabulary)?;
    let positions = table("position", config.positions)?;
    let types = table("token_type", config.types)?;
    let mut x = Matrix::filled(0, config.hidden, 0.0);
    for sequence in ids {
        if sequence.len() > positions.rows {
            return Err(format!(
                "a line of the text has {} tokens, and the model has positions for {}; break it",
                sequence.len(),
                positions.rows
            )
            .into());
        }
        for (position, id) in sequence.iter().enumerate() {
            if *id as usize >= words.rows {
                return Err(format!("expected ids below {}, found {id}", words.rows).into());
            }
            let sum = words.row(*id as usize).iter().zip(positions.row(position));
            x.data.extend(
                sum.zip(types.row(0)).map(|((word, position), kind)| word + kind + position),
            );
            x.rows += 1;
        }
    }
    Ok(layer_norm(file, config, "embeddings.LayerNorm")?.apply(&x))
}

/// Self-attention of one layer with its residual and layer norm; a sequence sees only itself.
fn attend(
    file: &Weights,
    config: &Config,
    layer: usize,
    x: &Matrix,
    lengths: &[usize],
) -> Result<Matrix, Box<dyn Error>> {
    let at = format!("encoder.layer.{layer}.attention");
    let hidden = config.hidden;
    let project = |name: &str| -> Result<Matrix, Box<dyn Error>> {
        let (weight, bias) = file.linear(&format!("{at}.self.{name}"), hidden, hidden)?;
        Ok(x.linear(&weight, &bias))
    };
    let (query, key, value) = (project("query")?, project("key")?, project("value")?);

    let width = hidden / config.heads;
    let mut mixed = Matrix::filled(x.rows, hidden, 0.0);
    let mut first = 0;
    for length in lengths {
        for head in (0..hidden).step_by(width) {
            for row in first..first + length {
                let query = &query.row(row)[head..head + width];
                let scores = (first..first + length)
                    .map(|other| dot(query, &key.row(other)[head..head + width]))
                    .map(|score| score / (width as f32).sqrt())
                    .collect();
                for (other, weight) in softmax(scores).into_iter().enumerate() {
                    let value = &value.row(first + other)[head..head + width];
                    let mixed = &mut mixed.row_mut(row)[head..head + width];
                    mixed.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
                }
            }
        }
        first += length;
    }

    let (weight, bias) = file.linear(&format!("{at}.output.dense"), hidden, hidden)?;
    let out = mixed.linear(&weight, &bias).add(x);
    Ok(layer_norm(file, config, &format!("{at}.output.LayerNorm"))?.apply(&out))
}

fn softmax(mut scores: Vec<f32>) -> Vec<f32> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
    scores
}
