//! Our products against live cuBLASLt.

use super::operands::{baseline_bound, exact_density, normal, require_same, sets, span, sum_bound};
use super::{LIMIT, Number, Resting, Timer, conditions};
use crate::error::Error;
use crate::kernels::{Plain, PlainKernel};
use crate::report::{Measured, Report};
use crate::rotation::{Contestant, Rounds, rotate};
use crate::sample::{Samples, Summary};
use crate::shapes::Dims;
use crate::stage::stage;
use flux::{Rank, Tensor, World};
use flux_runtime::blas::{Blas, Gemm, GemmShape, Layout, Sums};
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

/// Rounds after which a schedule is left out that is [`FAR_OFF`] from the best.
const GLANCE: Rounds = Rounds { warm_up: 1, measured: 2, pause: 0.0 };

/// Times the best one's time.
const FAR_OFF: f64 = 1.12;

/// Shapes that are measured, and told, together.
#[derive(Debug, Clone)]
pub struct Section {
    /// What they have in common.
    pub name: String,
    /// How operands lie.
    pub layout: Layout,
    /// The shapes.
    pub shapes: Vec<Dims>,
}

/// Whose time is taken.
#[derive(Debug, Clone)]
pub enum Members {
    /// The schedule that the library chooses for the shape.
    Chosen,
    /// Each schedule that is not far off, of those whose text holds one of these, or of all.
    Each(Vec<String>),
}

/// What is measured, and how.
#[derive(Debug, Clone)]
pub struct GemmOptions {
    /// The command, for the report.
    pub command: String,
    /// What is measured.
    pub sections: Vec<Section>,
    /// Which schedules.
    pub members: Members,
    /// Rounds.
    pub rounds: Rounds,
    /// How long the device rests between shapes, at least.
    pub rest: Duration,
}

/// One shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GemmRow {
    /// The section it belongs to, format included.
    pub section: String,
    /// The shape.
    pub shape: Dims,
    /// The schedule, where one was named; empty where the library chose.
    pub schedule: String,
    /// Milliseconds of our kernel.
    pub ours: Summary,
    /// Milliseconds of what it is compared with.
    pub rival: Summary,
    /// Pair by pair, the time of cuBLASLt by ours, or of our kernel by that of the same kernel
    /// without its epilogue.
    pub ratio: Summary,
    /// Our rate, 10¹² operations a second.
    pub tflops: f64,
    /// Launches of a sample.
    pub launches: u32,
    /// The largest difference of our result and the reference on normal data; on integers there is
    /// none.
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
    let resting = Resting::open(&device, options.rest);
    let mut rows = Vec::new();
    for section in &options.sections {
        let name = format!("{}, {}", section.name, T::NAME);
        for &shape in &section.shapes {
            let mut case = Case::new(&bench, section.layout, shape)?;
            let mut keep = |row: GemmRow| {
                let row = Measured { row, reading: resting.reading() };
                tell(&row);
                rows.push(row);
            };
            match &options.members {
                Members::Chosen => {
                    let kernel = T::load_as(rank, section.layout, None)?;
                    keep(case.row(&name, &kernel, options.rounds)?);
                }
                Members::Each(wanted) => {
                    case.members(&name, wanted, options.rounds, &mut keep)?;
                }
            }
            resting.rest();
        }
    }
    let title = "GEMM".into();
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
    format: std::marker::PhantomData<T>,
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
            stream,
            format: std::marker::PhantomData,
        })
    }
}

/// One shape: operands, and cuBLASLt's product of them.
struct Case<'b, 'r, T: Number> {
    bench: &'b Bench<'r, T>,
    layout: Layout,
    shape: Dims,
    a: Vec<Tensor<T>>,
    b: Vec<Tensor<T>>,
    c: RefCell<Vec<Tensor<T>>>,
    d: Vec<Tensor<T>>,
    gemm: Gemm,
    reference: Gemm,
    launches: u32,
}

impl<'b, 'r, T: Number + Plain> Case<'b, 'r, T> {
    fn new(bench: &'b Bench<'r, T>, layout: Layout, shape: Dims) -> Result<Self, Error> {
        let Dims { m, n, k } = shape;
        let Bench { rank, stream, numbers, .. } = bench;
        stage(format_args!("{shape}: operands"));
        let bytes = (size_of::<T>() * (m * k + n * k + m * n)) as u64;
        let sets = sets(bytes, bench.l2_bytes);
        let matrices = |[rows, cols]: [usize; 2], seed: u64| {
            let each =
                (0..sets as u64).map(|set| normal(rank, numbers, stream, [rows, cols], seed + set));
            each.collect::<Result<Vec<_>, Error>>()
        };
        let [a, b] = match layout {
            Layout::Nt => [[m, k], [n, k]],
            Layout::Nn => [[m, k], [k, n]],
            Layout::Tn => [[k, m], [k, n]],
        };
        let alignment = alignment::<T>([a[1], b[1], n]);
        let (a, b) = (matrices(a, 1000)?, matrices(b, 2000)?);
        let outputs = || (0..sets).map(|_| rank.zeros::<T>(m, n)).collect::<Result<Vec<_>, _>>();
        let (c, d) = (RefCell::new(outputs()?), outputs()?);
        let [wide_m, wide_n, wide_k] = [m, n, k].map(|extent| extent as u64);
        let plan = GemmShape { m: wide_m, n: wide_n, k: wide_k, element: T::ELEMENT, alignment };
        let mut gemm = bench.blas.gemm_of(plan, layout, Sums::AsItLikes)?;
        let reference = bench.blas.gemm_of(plan, layout, Sums::InF32)?;
        stream.synchronize(LIMIT)?;
        gemm.tune(stream, span(&a[0])?, span(&b[0])?, span(&d[0])?, TUNING_RUNS, LIMIT)?;
        let launches = launches(shape, bytes);
        Ok(Case { bench, layout, shape, a, b, c, d, gemm, reference, launches })
    }

    /// Samples of a kernel and of cuBLASLt, in turn.
    fn time(&self, kernel: &PlainKernel<T>, rounds: Rounds) -> Result<[Samples; 2], Error> {
        stage("first launch of our product");
        let Bench { rank, stream, timer, .. } = self.bench;
        let sets = self.a.len();
        let (a, b, c, d) = (&self.a, &self.b, &self.c, &self.d);
        let ours = |set: usize| Ok(kernel.launch(&a[set], &b[set], &mut c.borrow_mut()[set])?);
        let theirs = |set: usize| {
            Ok(self.gemm.run(stream, span(&a[set])?, span(&b[set])?, span(&d[set])?)?)
        };
        // What is launched the first time loads and allocates, which must not meet a closed gate.
        ours(0)?;
        rank.synchronize()?;
        let mut contestants = [
            Contestant::<Error>::new("ours", |round| {
                timer.rotated(&ours, self.launches, sets, round, 0)
            }),
            Contestant::new("cuBLASLt", |round| {
                timer.rotated(&theirs, self.launches, sets, round, sets / 2)
            }),
        ];
        let samples = rotate(rounds, &mut contestants)?;
        drop(contestants);
        rank.synchronize()?;
        samples.try_into().map_err(|_| Error::NoSamples)
    }

    /// A kernel beside cuBLASLt, verified.
    fn row(
        &mut self,
        section: &str,
        kernel: &PlainKernel<T>,
        rounds: Rounds,
    ) -> Result<GemmRow, Error> {
        let [ours, rival] = self.time(kernel, rounds)?;
        stage("results");
        let largest_difference = self.verify(kernel)?;
        let ratio = rival.ratios(&ours).summary().ok_or(Error::NoSamples)?;
        let [ours, rival] = [ours, rival].map(|samples| samples.summary());
        let (ours, rival) = ours.zip(rival).ok_or(Error::NoSamples)?;
        Ok(GemmRow {
            section: section.to_owned(),
            shape: self.shape,
            schedule: String::new(),
            ours,
            rival,
            ratio,
            tflops: self.shape.flops() / ours.median / 1e9,
            launches: self.launches,
            largest_difference,
        })
    }

    /// Every schedule that is not far off, each verified.
    fn members(
        &mut self,
        section: &str,
        wanted: &[String],
        rounds: Rounds,
        keep: &mut dyn FnMut(GemmRow),
    ) -> Result<(), Error> {
        let mut best = f64::INFINITY;
        for schedule in T::schedules(self.layout) {
            let text = schedule.to_string();
            if !wanted.is_empty() && !wanted.iter().any(|part| text.contains(part)) {
                continue;
            }
            let kernel = T::load_as(self.bench.rank, self.layout, Some(&schedule))?;
            let [glance, _] = self.time(&kernel, GLANCE)?;
            let glance = glance.summary().ok_or(Error::NoSamples)?.low;
            best = best.min(glance);
            if glance < FAR_OFF * best {
                let row = self.row(section, &kernel, rounds)?;
                keep(GemmRow { schedule: text, ..row });
            }
        }
        Ok(())
    }

    /// Both results over memory that held no numbers, against sums in f32: on the normal data
    /// within their rounding, then on small integers exactly. Gives the largest difference of the
    /// first; the operands are drawn anew.
    fn verify(&mut self, kernel: &PlainKernel<T>) -> Result<f32, Error> {
        let Bench { stream, numbers, .. } = self.bench;
        let (shape, k) = (self.shape, self.shape.k);
        let outputs = self.c.get_mut();
        let (first, rest) = outputs.split_at_mut(1);
        let (a, b, c, d, expected) = (&self.a[0], &self.b[0], &mut first[0], &self.d[0], &rest[0]);
        let mut compare = |data, bound: Bound| {
            for result in [span(c)?, span(d)?, span(expected)?] {
                stream.fill_u8(result, 0xff)?;
            }
            kernel.launch(a, b, c)?;
            self.gemm.run(stream, span(a)?, span(b)?, span(d)?)?;
            self.reference.run(stream, span(a)?, span(b)?, span(expected)?)?;
            let expected = span(expected)?;
            let (ours, theirs) = (("our kernel", shape, data), ("cuBLASLt", shape, data));
            let loose = baseline_bound::<T>(bound, k);
            require_same(numbers, stream, theirs, span(d)?, expected, loose)?;
            require_same(numbers, stream, ours, span(c)?, expected, bound)
        };
        let density = exact_density(k);
        for (seed, operand) in [(1, a), (2, b)] {
            numbers.integers(stream, span(operand)?, seed, density)?;
        }
        compare("small integers", Bound::EXACT)?;
        for (seed, operand) in [(1000, a), (2000, b)] {
            numbers.normal(stream, span(operand)?, seed, 1.0)?;
        }
        compare("normal data", sum_bound::<T>(k))
    }
}

/// What the addresses of rows are multiples of, as cuBLASLt is told, given how many elements each
/// matrix has in a row.
fn alignment<T>(row_elements: [usize; 3]) -> u32 {
    let row = |elements: usize| 1u32 << (elements * size_of::<T>()).trailing_zeros().min(8);
    row_elements.map(row).into_iter().min().unwrap_or(1)
}

/// Launches of a sample, from the least time that a launch can take: 800 TFLOP/s, 4 TB/s.
pub(super) fn launches(shape: Dims, bytes: u64) -> u32 {
    let ms = (shape.flops() / 800e9).max(bytes as f64 / 4e9);
    (SAMPLE_MS / ms).ceil().clamp(1.0, 16.0) as u32
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
        assert_eq!(alignment::<bf16>([12288, 12288, 6144]), 256);
        assert_eq!(alignment::<bf16>([12288, 12288, 6143]), 2);
        assert_eq!(alignment::<bf16>([8200, 8200, 8192]), 16);
    }
}
