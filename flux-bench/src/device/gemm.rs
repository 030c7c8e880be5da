//! Our product against live cuBLASLt.

use super::operands::{baseline_bound, exact_density, normal, require_same, sets, span, sum_bound};
use super::{LIMIT, Number, Timer, conditions};
use crate::chart::{Bar, Chart, Group};
use crate::error::Error;
use crate::kernels::Plain;
use crate::report::{Measured, Report, Table};
use crate::rotation::{Contestant, Rounds, rotate};
use crate::sample::{Summary, geometric_mean};
use crate::shapes::Dims;
use crate::stage::stage;
use crate::telemetry::Telemetry;
use flux::{Rank, Tensor, World};
use flux_runtime::blas::{Blas, Gemm, GemmShape, Sums};
use flux_runtime::numbers::{Bound, Numbers};
use flux_runtime::{Device, Stream};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// A sample takes at least so long: shorter ones are several launches.
const SAMPLE_MS: f64 = 0.3;

/// Runs of each algorithm when the library's best is looked for.
const TUNING_RUNS: u32 = 5;

/// What is measured, and how.
#[derive(Debug, Clone)]
pub struct GemmOptions {
    /// The command, for the report.
    pub command: String,
    /// The shapes.
    pub shapes: Vec<Dims>,
    /// Rounds.
    pub rounds: Rounds,
    /// How long the device rests between shapes, at least.
    pub rest: Duration,
}

/// One shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GemmRow {
    /// The shape.
    pub shape: Dims,
    /// The format of operands and result.
    pub format: String,
    /// Milliseconds of our kernel.
    pub ours: Summary,
    /// Milliseconds of cuBLASLt.
    pub blas: Summary,
    /// cuBLASLt's time by ours, pair by pair: above 1 ours is faster.
    pub ratio: Summary,
    /// Our rate, 10¹² operations a second.
    pub tflops: f64,
    /// Launches of a sample.
    pub launches: u32,
    /// The largest difference of the two results on normal data; on integers there is none.
    pub largest_difference: f32,
}

/// Measures every shape in the format `T`; `tell` hears of each row as soon as it is there.
///
/// # Errors
/// No device, no cuBLASLt, a wrong result.
pub fn gemm<T: Number + Plain>(
    options: &GemmOptions,
    mut tell: impl FnMut(&Measured<GemmRow>),
) -> Result<Report<Measured<GemmRow>>, Error> {
    let world = World::virtual_ranks(0, 1)?;
    let ranks = world.ranks();
    let [rank] = ranks.as_slice() else { return Err(Error::NoDevice) };
    let device = rank.device().ok_or(Error::NoDevice)?;
    let bench = Bench::<T>::new(rank, &device)?;
    let telemetry = Telemetry::open(device.ordinal());
    let cool = telemetry.as_ref().and_then(Telemetry::read).map_or(0, |now| now.celsius + 5);
    let mut rows = Vec::new();
    for &shape in &options.shapes {
        let row = bench.measure(shape, options.rounds)?;
        let row = Measured { row, reading: telemetry.as_ref().and_then(Telemetry::read) };
        tell(&row);
        rows.push(row);
        match &telemetry {
            Some(telemetry) => telemetry.cool_down(cool, options.rest, 4 * options.rest),
            None => std::thread::sleep(options.rest),
        }
    }
    let title = format!("GEMM, {}, against cuBLASLt", T::NAME);
    let conditions = conditions(&device, &options.command, options.rounds);
    Ok(Report { title, conditions, rows })
}

/// What all shapes of a run share.
struct Bench<'r, T> {
    rank: &'r Rank,
    stream: Arc<Stream>,
    l2_bytes: u64,
    numbers: Numbers,
    blas: Arc<Blas>,
    timer: Timer,
    kernel: crate::kernels::PlainKernel<T>,
}

impl<'r, T: Number + Plain> Bench<'r, T> {
    fn new(rank: &'r Rank, device: &Arc<Device>) -> Result<Self, Error> {
        let stream = rank.stream().ok_or(Error::NoDevice)?;
        Ok(Bench {
            rank,
            l2_bytes: device.properties().l2_bytes,
            numbers: Numbers::load(device, T::ELEMENT)?,
            blas: Blas::new(device)?,
            timer: Timer::new(Arc::clone(&stream))?,
            kernel: T::load(rank)?,
            stream,
        })
    }

    fn measure(&self, shape: Dims, rounds: Rounds) -> Result<GemmRow, Error> {
        let Dims { m, n, k } = shape;
        stage(format_args!("{shape}: operands"));
        let bytes = (size_of::<T>() * (m * k + n * k + m * n)) as u64;
        let sets = sets(bytes, self.l2_bytes);
        let matrices = |rows, cols, seed: u64| {
            let each = (0..sets as u64).map(|set| {
                normal(self.rank, &self.numbers, &self.stream, [rows, cols], seed + set)
            });
            each.collect::<Result<Vec<_>, Error>>()
        };
        let (a, b) = (matrices(m, k, 1000)?, matrices(n, k, 2000)?);
        let c = (0..sets).map(|_| self.rank.zeros::<T>(m, n)).collect::<Result<Vec<_>, _>>()?;
        let c = RefCell::new(c);
        let d = (0..sets).map(|_| self.rank.zeros::<T>(m, n)).collect::<Result<Vec<_>, _>>()?;
        let plan = GemmShape {
            m: m as u64,
            n: n as u64,
            k: k as u64,
            element: T::ELEMENT,
            alignment: alignment::<T>(shape),
        };
        let mut gemm = self.blas.gemm(plan)?;
        let reference = self.blas.gemm_with(plan, Sums::InF32)?;
        self.stream.synchronize(LIMIT)?;
        gemm.tune(&self.stream, span(&a[0])?, span(&b[0])?, span(&d[0])?, TUNING_RUNS, LIMIT)?;

        stage("first launch of our product");
        let launches = launches(shape, bytes);
        let sample = |launch: &dyn Fn(usize) -> Result<(), Error>, round: u32, offset: usize| {
            let first = round as usize * launches as usize + offset;
            let ms = self.timer.time(|| {
                (first..first + launches as usize).try_for_each(|index| launch(index % sets))
            })?;
            Ok(ms / f64::from(launches))
        };
        let ours =
            |set: usize| Ok(self.kernel.launch(&a[set], &b[set], &mut c.borrow_mut()[set])?);
        let theirs = |set: usize| {
            Ok(gemm.run(&self.stream, span(&a[set])?, span(&b[set])?, span(&d[set])?)?)
        };
        // What is launched the first time loads and allocates, which must not meet a closed gate.
        ours(0)?;
        self.rank.synchronize()?;
        let mut contestants = [
            Contestant::<Error>::new("ours", |round| sample(&ours, round, 0)),
            Contestant::new("cuBLASLt", |round| sample(&theirs, round, sets / 2)),
        ];
        let samples = rotate(rounds, &mut contestants)?;
        drop(contestants);
        self.rank.synchronize()?;
        let mut c = c.into_inner();
        stage("results");
        let (first, rest) = c.split_at_mut(1);
        let results = (&mut first[0], &d[0], &rest[0]);
        let largest_difference =
            self.verify(shape, [&gemm, &reference], [&a[0], &b[0]], results)?;
        let summary = |index: usize| samples[index].summary().ok_or(Error::NoSamples);
        let ratio = samples[1].ratios(&samples[0]).summary().ok_or(Error::NoSamples)?;
        let (ours, blas) = (summary(0)?, summary(1)?);
        let tflops = shape.flops() / ours.median / 1e9;
        let format = T::NAME.to_owned();
        Ok(GemmRow { shape, format, ours, blas, ratio, tflops, launches, largest_difference })
    }

    /// Both results over memory that held no numbers, against sums in f32: on the normal data
    /// within their rounding, then on small integers exactly.
    fn verify(
        &self,
        shape: Dims,
        [gemm, reference]: [&Gemm; 2],
        [a, b]: [&Tensor<T>; 2],
        (c, d, expected): (&mut Tensor<T>, &Tensor<T>, &Tensor<T>),
    ) -> Result<f32, Error> {
        let stream = &self.stream;
        let mut compare = |data, bound: Bound| {
            for result in [span(c)?, span(d)?, span(expected)?] {
                stream.fill_u8(result, 0xff)?;
            }
            self.kernel.launch(a, b, c)?;
            gemm.run(stream, span(a)?, span(b)?, span(d)?)?;
            reference.run(stream, span(a)?, span(b)?, span(expected)?)?;
            let expected = span(expected)?;
            let (ours, theirs) = (("our kernel", shape, data), ("cuBLASLt", shape, data));
            let loose = baseline_bound::<T>(bound, shape.k);
            require_same(&self.numbers, stream, theirs, span(d)?, expected, loose)?;
            require_same(&self.numbers, stream, ours, span(c)?, expected, bound)
        };
        let largest = compare("normal data", sum_bound::<T>(shape.k))?;
        let density = exact_density(shape.k);
        for (seed, operand) in [(1, a), (2, b)] {
            self.numbers.integers(stream, span(operand)?, seed, density)?;
        }
        compare("small integers", Bound::EXACT)?;
        Ok(largest)
    }
}

/// What the addresses of rows are multiples of, as cuBLASLt is told.
fn alignment<T>(shape: Dims) -> u32 {
    let row = |elements: usize| 1u32 << (elements * size_of::<T>()).trailing_zeros().min(8);
    row(shape.k).min(row(shape.n))
}

/// Launches of a sample, from the least time that a launch can take: 800 TFLOP/s, 4 TB/s.
fn launches(shape: Dims, bytes: u64) -> u32 {
    let ms = (shape.flops() / 800e9).max(bytes as f64 / 4e9);
    (SAMPLE_MS / ms).ceil().clamp(1.0, 16.0) as u32
}

/// The rows as a table, with the mean and the worst ratio below.
pub fn gemm_table(rows: &[Measured<GemmRow>]) -> String {
    let mut table = Table::new([
        "m x n x k",
        "ours ms",
        "cuBLASLt ms",
        "TFLOP/s",
        "cuBLASLt / ours",
        "quartiles",
        "at the end",
    ]);
    for Measured { row, reading } in rows {
        table.row([
            row.shape.to_string(),
            format!("{:.4}", row.ours.median),
            format!("{:.4}", row.blas.median),
            format!("{:.0}", row.tflops),
            format!("{:.3}", row.ratio.median),
            format!("{:.3} … {:.3}", row.ratio.low, row.ratio.high),
            reading.as_ref().map_or_else(String::new, ToString::to_string),
        ]);
    }
    let mut text = table.to_string();
    let ratios = || rows.iter().map(|measured| measured.row.ratio.median);
    if let Some(mean) = geometric_mean(ratios()) {
        let worst = ratios().fold(f64::INFINITY, f64::min);
        text += &format!("geometric mean {mean:.3}, worst {worst:.3}, {} shapes\n", rows.len());
    }
    text
}

/// The ratios as bars.
pub fn gemm_chart(report: &Report<Measured<GemmRow>>) -> Chart {
    let groups = report.rows.iter().map(|Measured { row, .. }| {
        let (value, quartiles) = (row.ratio.median, [row.ratio.low, row.ratio.high]);
        Group { name: row.shape.to_string(), bars: vec![Some(Bar { value, quartiles })] }
    });
    Chart {
        title: format!("{} ({})", report.title, report.conditions.device),
        axis: "time of cuBLASLt / ours".into(),
        bars: vec!["ours".into()],
        groups: groups.collect(),
        line: Some((1.0, "cuBLASLt".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::{alignment, launches};
    use crate::shapes::Dims;
    use half::bf16;

    #[test]
    fn short_launches_are_measured_together() {
        let bytes = |d: Dims| 2 * (d.m * d.k + d.n * d.k + d.m * d.n) as u64;
        let large = Dims::new(8192, 6144, 12288);
        assert_eq!(launches(large, bytes(large)), 1);
        let small = Dims::new(1, 6144, 12288);
        assert!((5..=16).contains(&launches(small, bytes(small))));
    }

    #[test]
    fn the_library_is_told_how_rows_begin() {
        assert_eq!(alignment::<bf16>(Dims::new(1, 6144, 12288)), 256);
        assert_eq!(alignment::<bf16>(Dims::new(1, 6143, 12288)), 2);
        assert_eq!(alignment::<bf16>(Dims::new(1, 8192, 8200)), 16);
    }
}
