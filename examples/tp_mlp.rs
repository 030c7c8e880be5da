//! A tensor-parallel MLP block: `y = x + gelu(x · W1ᵀ + b1) · W2ᵀ + b2`.
//!
//! Every rank holds its rows of `x` and its share of the inner dimension of both weights. The
//! first product gathers `x`, the second scatters the sum of all ranks' products.
//!
//! ```text
//! cargo run --release --example tp_mlp -- --world host:4
//! cargo run --release --example tp_mlp -- --world gpu:4
//! cargo run --release --example tp_mlp -- --world devices:0,1
//! flux launch -n 4 -- target/release/examples/tp_mlp --world env
//! make demo-model        # a real layer of a real model, on real text
//! ```

#![expect(unreachable_pub, reason = "kernels stand as they would in a library")]

#[path = "support/bert.rs"]
mod bert;
#[path = "support/block.rs"]
mod block;

use block::Block;
use clap::Parser;
use flux::prelude::*;
use std::error::Error;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[flux::module]
mod kernels {
    use flux::prelude::*;

    /// `h = gelu(all_gather(x) · W1ᵀ + b1)`: every shard of x is consumed as it lands.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, order = own_shard_first)]
    pub fn ag_gemm_gelu(
        x: &Gathered<bf16>,
        w1: &Global<bf16>,
        b1: &Global<f32>,
        h: &mut Global<bf16>,
    ) {
        for tile in h.tiles() {
            let x = x.wait(tile.rows());
            let acc = gemm(x, w1.t(), tile);
            h.store(tile, gelu(acc + b1.cols(tile)));
        }
    }

    /// `y = reduce_scatter(h · W2ᵀ) + b2 + x`: each finished tile goes to the rank that owns its
    /// rows, which adds bias and residual to the sum.
    #[kernel]
    #[schedule(sm_90a, tile = (128, 256, 64), stages = 4, order = next_rank_first)]
    pub fn gemm_rs_residual(
        h: &Global<bf16>,
        w2: &Global<bf16>,
        b2: &Global<f32>,
        x: &Sharded<bf16>,
        y: &mut Scattered<bf16>,
    ) {
        for tile in y.tiles() {
            let sum = y.reduce(tile, gemm(h, w2.t(), tile));
            y.store(tile, sum + b2.cols(tile) + x.load(tile));
        }
    }
}

use kernels::{ag_gemm_gelu, gemm_rs_residual};

/// Runs a tensor-parallel MLP block over a world of ranks and compares it with plain f32.
#[derive(Parser)]
struct Options {
    /// The ranks: `host:N` (threads), `gpu:N` (virtual ranks of one GPU), one on each GPU that
    /// `devices:0,1` lists, or `env` (processes, under a launcher).
    #[arg(long, default_value = "host:4")]
    world: String,
    /// A safetensors file with BERT-style names; without it, seeded data in GPT-3's proportions.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// The encoder layer whose MLP runs.
    #[arg(long, default_value_t = 0)]
    layer: usize,
    /// The text whose tokens are the rows of x.
    #[arg(long, default_value = DEFAULT_TEXT)]
    text: String,
    /// Timed launches of each operator.
    #[arg(long, default_value_t = 5)]
    repeat: u32,
}

const DEFAULT_TEXT: &str = "Overlapping communication with computation hides the cost of moving \
    data between devices: while one tile is being multiplied, the next one is already on its way.";

/// The largest relative Frobenius error that bf16 storage of x, h and y explains.
const TOLERANCE: f64 = 1e-2;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let world: World = options.world.parse()?;
    let block = match &options.weights {
        Some(path) => {
            println!("weights: {}, layer {}", path.display(), options.layer);
            println!("text:    {:?}", options.text);
            Block::from_bert(bert::load(path, options.layer, &options.text)?)
        }
        None => {
            let on_gpu = !["host", "env"].iter().any(|name| options.world.starts_with(name));
            let block = Block::gpt3_scaled(on_gpu);
            println!("no --weights: a block in GPT-3's proportions on seeded random data");
            block
        }
    };
    println!("world:   {world}");
    println!("block:   {} tokens, hidden {}, inner {}\n", block.tokens, block.hidden, block.inner);
    let parts = world.run(|rank| run_rank(rank, &block, options.repeat))?;
    let reference = block.reference();
    // What the ranks of this process have: all, or where ranks are processes, one.
    let h: Vec<f32> = parts.iter().flat_map(|part| part.h.iter().copied()).collect();
    let h_expected: Vec<f32> =
        parts.iter().flat_map(|part| block.h_cols(&reference.h, &part.inner)).collect();
    let h_error = block::relative_error(&h, &h_expected);
    let y: Vec<f32> = parts.iter().flat_map(|part| part.y.iter().copied()).collect();
    let y_rows = |part: &Part| part.rows.start * block.hidden..part.rows.end * block.hidden;
    let y_expected: Vec<f32> =
        parts.iter().flat_map(|part| reference.y[y_rows(part)].iter().copied()).collect();
    let y_error = block::relative_error(&y, &y_expected);
    let share = block.inner.div_ceil(world.size() as usize);
    let slowest = |time: fn(&Part) -> Duration| parts.iter().map(time).max().unwrap_or_default();
    report(
        ag_gemm_gelu::definition(),
        [block.tokens, share, block.hidden],
        h_error,
        slowest(|part| part.gather_time),
    );
    report(
        gemm_rs_residual::definition(),
        [block.tokens, block.hidden, share],
        y_error,
        slowest(|part| part.scatter_time),
    );
    if h_error.max(y_error) < TOLERANCE {
        println!("both agree with the plain f32 product");
        Ok(())
    } else {
        let errors = format!("h {h_error:.2e}, y {y_error:.2e}, expected below {TOLERANCE:e}");
        let hint = "a kernel that computes something else needs another `reference()` in \
                    examples/support/block.rs";
        Err(format!("relative error: {errors}; {hint}").into())
    }
}

/// What one rank computed.
struct Part {
    /// Its columns of h.
    inner: Range<usize>,
    /// Its rows of y.
    rows: Range<usize>,
    h: Vec<f32>,
    y: Vec<f32>,
    gather_time: Duration,
    scatter_time: Duration,
}

fn run_rank(rank: &Rank, block: &Block, repeat: u32) -> Result<Part, flux::Error> {
    let up = ag_gemm_gelu::load(rank)?;
    let down = gemm_rs_residual::load(rank)?;
    let rows = rank.own_range(block.tokens);
    let inner = rank.own_range(block.inner);
    let (hidden, tokens) = (block.hidden, block.tokens);

    let x = rank.tensor(rows.len(), hidden, &block.x_rows(&rows))?;
    let w1 = rank.tensor(inner.len(), hidden, &block.w1_rows(&inner))?;
    let b1 = rank.tensor(1, inner.len(), &block.b1[inner.clone()])?;
    let w2 = rank.tensor(hidden, inner.len(), &block.w2_cols(&inner))?;
    let b2 = rank.tensor(1, hidden, &block.b2)?;
    let mut h = rank.zeros::<bf16>(tokens, inner.len())?;
    let mut y = rank.zeros::<bf16>(rows.len(), hidden)?;

    let gather_time = time(rank, repeat, || up.launch(&x, &w1, &b1, &mut h))?;
    let scatter_time = time(rank, repeat, || down.launch(&h, &w2, &b2, &x, &mut y))?;
    let to_f32 = |data: Vec<bf16>| data.into_iter().map(bf16::to_f32).collect();
    let (h, y) = (to_f32(h.to_vec()?), to_f32(y.to_vec()?));
    Ok(Part { inner, rows, h, y, gather_time, scatter_time })
}

/// The mean time of a launch, after one that is not counted.
fn time(
    rank: &Rank,
    repeat: u32,
    mut launch: impl FnMut() -> Result<(), flux::Error>,
) -> Result<Duration, flux::Error> {
    launch()?;
    rank.synchronize()?;
    let start = Instant::now();
    for _ in 0..repeat {
        launch()?;
    }
    rank.synchronize()?;
    Ok(start.elapsed() / repeat.max(1))
}

fn report(definition: &flux::Definition, [m, n, k]: [usize; 3], error: f64, time: Duration) {
    let schedule = &(definition.schedules)()[0];
    let (rows, cols) = (m.div_ceil(schedule.tile.m as usize), n.div_ceil(schedule.tile.n as usize));
    println!("{}", definition.name);
    println!("  shape   m = {m}, n = {n}, k = {k} per rank");
    println!("  tiles   {rows} x {cols} of {} x {}", schedule.tile.m, schedule.tile.n);
    println!("  error   {error:.2e} relative to f32");
    println!("  time    {time:.2?} per launch");
    println!(
        "  look    cargo run -p flux-cli -- show {}:{} --ir | --program | --ptx | --order\n",
        definition.file, definition.name
    );
}
