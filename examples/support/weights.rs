//! The files of a model: its weights as f32, its sizes, and errors that say what is in them instead.

use std::error::Error;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Matrix;

/// The sizes of a BERT model, from its `config.json`.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    pub(crate) vocabulary: usize,
    pub(crate) positions: usize,
    pub(crate) types: usize,
    /// What layer norms add to the variance.
    pub(crate) epsilon: f32,
}

impl Config {
    pub(crate) fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let wrap = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| {
            wrap(format!("{error}; the model's config.json is expected beside its weights"))
        })?;
        let json: Value = serde_json::from_str(&text).map_err(|error| wrap(error.to_string()))?;
        Self::parse(&json).map_err(|error| wrap(error).into())
    }

    fn parse(json: &Value) -> Result<Self, String> {
        let size = |name: &str| match json[name].as_u64() {
            Some(size) if size > 0 => Ok(size as usize),
            _ => Err(format!("expected a size {name}, found {}", json[name])),
        };
        let activation = json["hidden_act"].as_str().unwrap_or("gelu");
        if activation != "gelu" {
            return Err(format!("expected hidden_act gelu, found {activation}"));
        }
        let config = Self {
            layers: size("num_hidden_layers")?,
            hidden: size("hidden_size")?,
            inner: size("intermediate_size")?,
            heads: size("num_attention_heads")?,
            vocabulary: size("vocab_size")?,
            positions: size("max_position_embeddings")?,
            types: size("type_vocab_size")?,
            epsilon: json["layer_norm_eps"].as_f64().unwrap_or(1e-12) as f32,
        };
        if !config.hidden.is_multiple_of(config.heads) {
            let (hidden, heads) = (config.hidden, config.heads);
            return Err(format!("hidden_size {hidden} is no multiple of {heads} attention heads"));
        }
        Ok(config)
    }
}

/// A file of named tensors.
#[derive(Debug)]
pub(crate) struct Weights {
    path: PathBuf,
    bytes: Vec<u8>,
    /// What stands before `embeddings` and `encoder` in every name: nothing, or `bert.`.
    prefix: String,
}

impl Weights {
    pub(crate) fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let bytes = std::fs::read(path)
            .map_err(|error| format!("cannot read the weights {}: {error}", path.display()))?;
        let mut weights = Self { path: path.to_path_buf(), bytes, prefix: String::new() };
        let anchor = "embeddings.word_embeddings.weight";
        let tensors = weights.tensors()?;
        let prefix = tensors.names().into_iter().find_map(|name| name.strip_suffix(anchor));
        weights.prefix = prefix.unwrap_or_default().to_string();
        Ok(weights)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, Box<dyn Error>> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| {
            format!("{} is no safetensors file: {error}", self.path.display()).into()
        })
    }

    /// The weight `[out, inner]` and bias `[out]` of a linear layer.
    pub(crate) fn linear(
        &self,
        name: &str,
        out: usize,
        inner: usize,
    ) -> Result<(Matrix, Vec<f32>), Box<dyn Error>> {
        let weight = self.matrix(&format!("{name}.weight"), out, inner)?;
        Ok((weight, self.vector(&format!("{name}.bias"), out)?))
    }

    pub(crate) fn matrix(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix, Box<dyn Error>> {
        Ok(Matrix { rows, cols, data: self.read(name, &[rows, cols])? })
    }

    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Box<dyn Error>> {
        self.read(name, &[len])
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Box<dyn Error>> {
        let name = format!("{}{name}", self.prefix);
        let tensors = self.tensors()?;
        let Ok(tensor) = tensors.tensor(&name) else {
            let names = tensors.names();
            return Err(format!(
                "{} has no tensor {name}; of its {} the nearest are {}",
                self.path.display(),
                names.len(),
                nearest(&name, names)
            )
            .into());
        };
        if tensor.shape() != shape {
            let found = tensor.shape();
            return Err(format!("{name}: expected shape {shape:?}, found {found:?}").into());
        }
        let data = tensor.data();
        Ok(match tensor.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
            Dtype::F16 => {
                data.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).into()).collect()
            }
            Dtype::BF16 => {
                data.as_chunks().0.iter().map(|x| bf16::from_le_bytes(*x).into()).collect()
            }
            other => {
                return Err(format!("{name}: expected F32, F16 or BF16, found {other:?}").into());
            }
        })
    }
}

/// The three names that share most of their parts with `wanted`.
fn nearest(wanted: &str, mut names: Vec<&str>) -> String {
    let shared = |name: &str| {
        let same = |part: &&str| wanted.split('.').any(|other| other == *part);
        name.split('.').filter(same).count()
    };
    names.sort_by_key(|name| (std::cmp::Reverse(shared(name)), name.len(), name.to_string()));
    names.truncate(3);
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}
