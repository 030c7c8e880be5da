//! What a fused epilogue costs: each kernel against the same kernel without it.

use super::gemm::{GemmRow, launches};
use super::operands::{exact_density, normal, sets, span};
use super::{LIMIT, Number, Resting, Timer};
use crate::error::Error;
use crate::kernels::epilogues::{Epilogue, Inputs, Launch, sums};
use crate::report::Measured;
use crate::rotation::{Contestant, Rounds, rotate};
use crate::shapes::Dims;
use crate::stage::stage;
use flux::{Rank, Tensor, World};
use flux_runtime::Stream;
use flux_runtime::numbers::Numbers;
use half::bf16;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Rows at the beginning of a result that are verified, element by element.
const VERIFIED_ROWS: usize = 130;

/// What the approximation of a function may be off by, whatever its value.
const ABSOLUTE: f64 = 1e-5;

/// Measures every epilogue at every shape, in bf16; `tell` hears of each row as soon as it is
/// there.
///
/// # Errors
/// No device, a wrong result.
pub fn epilogues(
    shapes: &[Dims],
    rounds: Rounds,
    rest: Duration,
    mut tell: impl FnMut(&Measured<GemmRow>),
) -> Result<Vec<Measured<GemmRow>>, Error> {
    let world = World::virtual_ranks(0, 1)?;
    let ranks = world.ranks();
    let [rank] = ranks.as_slice() else { return Err(Error::NoDevice) };
    let device = rank.device().ok_or(Error::NoDevice)?;
    let stream = rank.stream().ok_or(Error::NoDevice)?;
    let bench = Bench {
        rank,
        l2_bytes: device.properties().l2_bytes,
        numbers: Numbers::load(&device, bf16::ELEMENT)?,
        timer: Timer::new(Arc::clone(&stream))?,
        stream,
    };
    let resting = Resting::open(&device, rest);
    let mut rows = Vec::new();
    for epilogue in Epilogue::ALL {
        let kernels = epilogue.load(rank)?;
        for &shape in shapes {
            let row = bench.measure(epilogue, &kernels, shape, rounds)?;
            let row = Measured { row, reading: resting.reading() };
            tell(&row);
            rows.push(row);
            resting.rest();
        }
    }
    Ok(rows)
}

/// What all rows of a run share.
struct Bench<'r> {
    rank: &'r Rank,
    stream: Arc<Stream>,
    l2_bytes: u64,
    numbers: Numbers,
    timer: Timer,
}

impl Bench<'_> {
    fn measure(
        &self,
        epilogue: Epilogue,
        [without, with]: &[Launch; 2],
        shape: Dims,
        rounds: Rounds,
    ) -> Result<GemmRow, Error> {
        let Dims { m, n, k } = shape;
        stage(format_args!("{}, {shape}: operands", epilogue.name()));
        let elements = m * k + epilogue.products() * n * k + 2 * m * n;
        let bytes = (size_of::<bf16>() * elements) as u64;
        let sets = sets(bytes, self.l2_bytes);
        let inputs = (0..sets)
            .map(|set| self.inputs(epilogue, shape, set))
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = (0..sets).map(|_| self.rank.zeros(m, n)).collect::<Result<Vec<_>, _>>()?;
        let outputs = RefCell::new(outputs);
        let run =
            |launch: &Launch, set: usize| Ok(launch(&inputs[set], &mut outputs.borrow_mut()[set])?);
        // What is launched the first time loads and allocates, which must not meet a closed gate.
        run(without, 0)?;
        run(with, 0)?;
        self.rank.synchronize()?;
        let launches = launches(shape, bytes);
        let timed = |launch, round, offset| {
            self.timer.rotated(&|set| run(launch, set), launches, sets, round, offset)
        };
        let mut contestants = [
            Contestant::<Error>::new("without", |round| timed(without, round, 0)),
            Contestant::new("with", |round| timed(with, round, sets / 2)),
        ];
        let samples = rotate(rounds, &mut contestants)?;
        drop(contestants);
        self.rank.synchronize()?;
        stage("results");
        let largest_difference =
            self.verify(epilogue, with, shape, &inputs[0], &mut outputs.borrow_mut()[0])?;
        let [rival, ours] = samples.as_slice() else { return Err(Error::NoSamples) };
        let ratio = ours.ratios(rival).summary().ok_or(Error::NoSamples)?;
        let summaries = ours.summary().zip(rival.summary());
        let (ours, rival) = summaries.ok_or(Error::NoSamples)?;
        let flops = shape.flops() * epilogue.products() as f64;
        Ok(GemmRow {
            section: format!("{} / the same kernel without, bf16", epilogue.name()),
            shape,
            schedule: String::new(),
            ours,
            rival,
            ratio,
            tflops: flops / ours.median / 1e9,
            launches,
            largest_difference,
        })
    }

    fn inputs(&self, epilogue: Epilogue, shape: Dims, set: usize) -> Result<Inputs, Error> {
        let Dims { m, n, k } = shape;
        let matrix = |rows, cols, seed| {
            let seed = seed + set as u64;
            normal(self.rank, &self.numbers, &self.stream, [rows, cols], seed)
        };
        let third = if epilogue == Epilogue::Swiglu { n } else { 0 };
        let added = if epilogue == Epilogue::BiasResidual { m } else { 0 };
        let bias: Vec<f32> = (0..n).map(|col| (col * 37 % 101) as f32 / 16.0 - 3.0).collect();
        Ok(Inputs {
            a: matrix(m, k, 1000)?,
            b: matrix(n, k, 2000)?,
            b3: matrix(third, k, 3000)?,
            residual: matrix(added, n, 4000)?,
            bias: self.rank.tensor(1, n, &bias)?,
        })
    }

    /// The first rows over memory that held no numbers, of small integers whose sums are exact,
    /// against the formula in f64. Gives the largest difference.
    fn verify(
        &self,
        epilogue: Epilogue,
        with: &Launch,
        shape: Dims,
        inputs: &Inputs,
        output: &mut Tensor<bf16>,
    ) -> Result<f32, Error> {
        let Dims { n, k, m } = shape;
        let (rank, stream, rows) = (self.rank, &self.stream, VERIFIED_ROWS.min(m));
        let density = exact_density(k);
        for (seed, operand) in [(1, &inputs.a), (2, &inputs.b), (3, &inputs.b3)] {
            self.numbers.integers(stream, span(operand)?, seed, density)?;
        }
        stream.fill_u8(span(output)?, 0xff)?;
        with(inputs, output)?;
        let mut head = rank.zeros::<bf16>(rows, k)?;
        stream.synchronize(LIMIT)?;
        head.write(&first_rows(&inputs.a, rows)?)?;
        let mut exact = [Vec::new(), Vec::new()];
        for (b, exact) in [&inputs.b, &inputs.b3].into_iter().zip(&mut exact) {
            if b.rows() > 0 {
                let mut into = rank.zeros::<f32>(rows, n)?;
                sums(rank, [&head, b], &mut into)?;
                rank.synchronize()?;
                *exact = into.to_vec()?;
            }
        }
        let found = first_rows(output, rows)?;
        let residual = if inputs.residual.rows() > 0 {
            first_rows(&inputs.residual, rows)?
        } else {
            Vec::new()
        };
        let bias = inputs.bias.to_vec()?;
        let (mut wrong, mut largest) = (0, 0f64);
        for (at, found) in found.iter().enumerate() {
            let of = |sums: &Vec<f32>| sums.get(at).map_or(0.0, |&sum| f64::from(sum));
            let added = residual.get(at).map_or(0.0, |x| x.to_f64());
            let expected = epilogue.of([of(&exact[0]), of(&exact[1])], bias[at % n].into(), added);
            let off = (found.to_f64() - expected).abs();
            // No number is close to anything.
            let close = off <= expected.abs() * f64::from(bf16::ULP) + ABSOLUTE;
            wrong += u64::from(!close);
            largest = largest.max(off);
        }
        if wrong == 0 {
            return Ok(largest as f32);
        }
        let (who, largest) = (epilogue.name().into(), largest as f32);
        Err(Error::Wrong { who, shape, wrong, largest, data: "small integers" })
    }
}

/// The first rows of a matrix on a device.
fn first_rows(matrix: &Tensor<bf16>, rows: usize) -> Result<Vec<bf16>, Error> {
    let mut data = vec![bf16::NAN; rows * matrix.cols()];
    matrix.buffer().ok_or(Error::NoDevice)?.copy_to(0, &mut data)?;
    Ok(data)
}
