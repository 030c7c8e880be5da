//! The GEMM without communication against live cuBLASLt, interleaved in one run.
//!
//! ```text
//! cargo bench --bench gemm_cublas                              # a few shapes
//! cargo bench --bench gemm_cublas -- --set large --element f16 # the shapes of a target
//! cargo bench --bench gemm_cublas -- --shape 4096x4096x4096 --members
//! ```
//!
//! Both multiply the same operands, which rotate over more than twice the L2 cache; data are
//! random; the two alternate on one stream, each launch between its own events. Printed are medians
//! and the quartiles of the ratio. Results are compared with each other in the same run.

use clap::{Parser, ValueEnum};
use flux::prelude::*;
use flux::{Element, Schedule};
use flux_runtime::blas::{Blas, Gemm, GemmShape};
use flux_runtime::{ElementKind, Event, Stream, Timing};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

type Dims = [usize; 3];
type Fallible<T> = Result<T, Box<dyn Error>>;

const QUICK: [Dims; 6] = [
    [8192, 8192, 8192],
    [4096, 4096, 4096],
    [8192, 6144, 12288],
    [2048, 6144, 12288],
    [2048, 12288, 6144],
    [2048, 7168, 8192],
];

/// Columns and reduction of the targets' shapes.
const LAYERS: [[usize; 2]; 5] =
    [[6144, 12288], [12288, 6144], [7168, 8192], [8192, 3584], [24576, 12288]];

/// Values that are drawn; operands repeat them.
const POOL: usize = (1 << 24) + 9;

#[derive(Parser)]
struct Arguments {
    /// Shapes as MxNxK.
    #[arg(long, value_parser = shape)]
    shape: Vec<Dims>,
    #[arg(long, value_enum, default_value = "quick")]
    set: Set,
    #[arg(long, value_enum, default_value = "bf16")]
    element: Number,
    /// Times every schedule of the kernel, not just the one that a launch would pick.
    #[arg(long)]
    members: bool,
    /// Of the schedules, those whose text holds one of these.
    #[arg(long = "match")]
    matching: Vec<String>,
    /// Pairs of launches that are timed.
    #[arg(long, default_value_t = 31)]
    pairs: usize,
    /// Milliseconds between shapes: lets the chip cool, so that none pays for the one before.
    #[arg(long, default_value_t = 500)]
    pause: u64,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Set {
    Quick,
    /// M from 512 on.
    Large,
    /// M up to 256.
    Small,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Number {
    Bf16,
    F16,
}

fn shape(text: &str) -> Result<Dims, String> {
    let parts: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
    let parts = parts.map_err(|error| error.to_string())?;
    parts.try_into().map_err(|_| format!("expected MxNxK, found {text}"))
}

impl Set {
    fn shapes(self) -> Vec<Dims> {
        let layers = |rows: &[usize]| -> Vec<Dims> {
            rows.iter().flat_map(|&m| LAYERS.map(|[n, k]| [m, n, k])).collect()
        };
        match self {
            Set::Quick => QUICK.to_vec(),
            Set::Large => {
                let mut shapes = layers(&[512, 1024, 2048, 4096, 8192]);
                shapes.extend([[4096; 3], [8192; 3]]);
                shapes
            }
            Set::Small => layers(&[1, 16, 64, 128, 256]),
        }
    }
}

/// An element type, and the GEMM of it.
trait Real: Element {
    const FORMAT: ElementKind;
    fn from_f32(value: f32) -> Self;
    fn to_f64(self) -> f64;
    fn load<'r>(rank: &'r Rank, schedule: Option<&Schedule>) -> Fallible<Run<'r, Self>>;
    fn schedules() -> Vec<Schedule>;
}

type Run<'r, T> = Box<dyn Fn(&Tensor<T>, &Tensor<T>, &mut Tensor<T>) -> Fallible<()> + 'r>;

macro_rules! real {
    ($type:ident, $kind:ident, $kernel:ident) => {
        impl Real for $type {
            const FORMAT: ElementKind = ElementKind::$kind;
            fn from_f32(value: f32) -> Self {
                $type::from_f32(value)
            }
            fn to_f64(self) -> f64 {
                $type::to_f64(self)
            }
            fn load<'r>(rank: &'r Rank, schedule: Option<&Schedule>) -> Fallible<Run<'r, Self>> {
                let kernel = match schedule {
                    Some(schedule) => flux::kernels::$kernel::load_with(rank, schedule)?,
                    None => flux::kernels::$kernel::load(rank)?,
                };
                Ok(Box::new(move |a, b, c| Ok(kernel.launch(a, b, c)?)))
            }
            fn schedules() -> Vec<Schedule> {
                (flux::kernels::$kernel::definition().schedules)()
            }
        }
    };
}

real!(bf16, Bf16, gemm_bf16);
real!(f16, F16, gemm_f16);

fn main() -> Fallible<()> {
    let arguments = Arguments::parse();
    let world = match World::virtual_ranks(0, 1) {
        Ok(world) => world,
        Err(reason) => {
            println!("skipped: no CUDA device ({reason})");
            return Ok(());
        }
    };
    println!("{world}");
    match arguments.element {
        Number::Bf16 => bench::<bf16>(&world, &arguments),
        Number::F16 => bench::<f16>(&world, &arguments),
    }
}

fn bench<T: Real>(world: &World, arguments: &Arguments) -> Fallible<()> {
    println!("m x n x k, ours ms, cuBLASLt ms, ours TFLOP/s, cuBLASLt / ours [quartiles]");
    let shapes = match arguments.shape.is_empty() {
        true => arguments.set.shapes(),
        false => arguments.shape.clone(),
    };
    let pool = pool::<T>();
    let ranks = world.ranks();
    let mut ratios = Vec::new();
    for shape in shapes {
        let mut case = Case::<T>::new(&ranks[0], shape, &pool)?;
        if arguments.members {
            members(&mut case, arguments)?;
        } else {
            let kernel = T::load(&ranks[0], None)?;
            let timed = case.time(&kernel, arguments.pairs)?;
            ratios.push(timed.ratio(0.5));
            println!("{}", timed.line(shape, ""));
            case.compare()?;
        }
        std::thread::sleep(Duration::from_millis(arguments.pause));
    }
    if !ratios.is_empty() {
        let mean = ratios.iter().map(|r| r.ln()).sum::<f32>() / ratios.len() as f32;
        let least = ratios.iter().copied().fold(f32::INFINITY, f32::min);
        println!("geometric mean {:.4}, least {least:.3}", mean.exp());
    }
    Ok(())
}

/// Every schedule of the kernel that is not far off.
fn members<T: Real>(case: &mut Case<'_, T>, arguments: &Arguments) -> Fallible<()> {
    let mut best = f32::INFINITY;
    for schedule in T::schedules() {
        let text = schedule.to_string();
        let wanted = &arguments.matching;
        if !wanted.is_empty() && !wanted.iter().any(|part| text.contains(part)) {
            continue;
        }
        let kernel = T::load(case.rank, Some(&schedule))?;
        let glance = case.time(&kernel, 2)?.ours(0.0);
        best = best.min(glance);
        if glance > 1.12 * best {
            continue;
        }
        let timed = case.time(&kernel, arguments.pairs)?;
        println!("{}", timed.line(case.shape, &text));
        let [m, n, _] = case.shape;
        if m * n <= 1 << 24 {
            case.compare()?;
        }
    }
    Ok(())
}

/// One shape with its operands.
struct Case<'r, T: Real> {
    rank: &'r Rank,
    stream: Arc<Stream>,
    shape: Dims,
    a: Vec<Tensor<T>>,
    b: Vec<Tensor<T>>,
    c: Vec<Tensor<T>>,
    d: Vec<Tensor<T>>,
    gemm: Gemm,
}

const WARM_UP: usize = 4;

impl<'r, T: Real> Case<'r, T> {
    fn new(rank: &'r Rank, shape: Dims, pool: &[T]) -> Fallible<Self> {
        let (Some(stream), Some(device)) = (rank.stream(), rank.device()) else {
            return Err("the rank has no device".into());
        };
        let [m, n, k] = shape;
        let set_bytes = 2 * (m * k + n * k + m * n) as u64;
        let sets = (4 * device.properties().l2_bytes).div_ceil(set_bytes).max(2) as usize + 1;
        let operands = |rows: usize, cols: usize, seed: usize| -> Fallible<Vec<Tensor<T>>> {
            let sets = (0..sets).map(|set| {
                let skip = (seed + set) * 7919;
                let data: Vec<T> =
                    pool.iter().copied().cycle().skip(skip).take(rows * cols).collect();
                Ok(rank.tensor(rows, cols, &data)?)
            });
            sets.collect()
        };
        let (a, b) = (operands(m, k, 1)?, operands(n, k, 100)?);
        let outputs = || (0..sets).map(|_| rank.zeros(m, n)).collect::<Result<Vec<_>, _>>();
        let (c, d) = (outputs()?, outputs()?);
        let [wide_m, wide_n, wide_k] = shape.map(|extent| extent as u64);
        let wanted =
            GemmShape { element: T::FORMAT, m: wide_m, n: wide_n, k: wide_k, alignment: 256 };
        let mut gemm = Blas::new(&device)?.gemm(wanted)?;
        let limit = Duration::from_secs(60);
        gemm.tune(&stream, span(&a[0])?, span(&b[0])?, span(&d[0])?, 9, limit)?;
        Ok(Case { rank, stream, shape, a, b, c, d, gemm })
    }

    fn time(&mut self, kernel: &Run<'_, T>, pairs: usize) -> Fallible<Timed> {
        let sets = self.a.len();
        let mut events = [Vec::new(), Vec::new()];
        for pair in 0..WARM_UP.min(pairs) + pairs {
            let (ours, theirs) = (pair % sets, (pair + sets / 2) % sets);
            let (a, b, c) = (&self.a, &self.b, &mut self.c);
            events[0].push(timed(&self.stream, || kernel(&a[ours], &b[ours], &mut c[ours]))?);
            let (a, b, d) = (span(&a[theirs])?, span(&b[theirs])?, span(&self.d[theirs])?);
            events[1].push(timed(&self.stream, || Ok(self.gemm.run(&self.stream, a, b, d)?))?);
        }
        self.rank.synchronize()?;
        let [ours, theirs] = events.map(|events| {
            let counted = &events[events.len() - pairs..];
            counted.iter().map(|(start, end)| end.ms_since(start)).collect::<Result<Vec<_>, _>>()
        });
        Ok(Timed { ours: ours?, theirs: theirs? })
    }

    /// Both sum in f32 and round once: they may differ in the last bit, no more.
    fn compare(&self) -> Fallible<()> {
        let (ours, theirs) = (self.c[0].to_vec()?, self.d[0].to_vec()?);
        let pairs = || ours.iter().zip(&theirs).map(|(x, y)| (x.to_f64(), y.to_f64()));
        let off: f64 = pairs().map(|(x, y)| (x - y).powi(2)).sum();
        let all: f64 = pairs().map(|(_, y)| y.powi(2)).sum();
        let error = (off / all).sqrt();
        if error < 5e-3 { Ok(()) } else { Err(format!("the results differ by {error:.2e}").into()) }
    }
}

/// Milliseconds of each launch, pair by pair.
struct Timed {
    ours: Vec<f32>,
    theirs: Vec<f32>,
}

impl Timed {
    fn ours(&self, at: f64) -> f32 {
        quantile(&self.ours, at)
    }

    fn ratio(&self, at: f64) -> f32 {
        let ratios: Vec<f32> =
            self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| theirs / ours).collect();
        quantile(&ratios, at)
    }

    fn line(&self, [m, n, k]: Dims, what: &str) -> String {
        let flops = 2.0 * (m * n * k) as f64;
        let (ours, theirs) = (self.ours(0.5), quantile(&self.theirs, 0.5));
        format!(
            "{m} x {n} x {k}, {ours:.4}, {theirs:.4}, {:.0}, {:.3} [{:.3} {:.3}] {what}",
            flops / f64::from(ours) / 1e9,
            self.ratio(0.5),
            self.ratio(0.25),
            self.ratio(0.75)
        )
    }
}

fn pool<T: Real>() -> Vec<T> {
    let mut rng = StdRng::seed_from_u64(1);
    let draw = |_| {
        let value: f32 = StandardNormal.sample(&mut rng);
        T::from_f32(value)
    };
    (0..POOL).map(draw).collect()
}

fn span<T: Real>(tensor: &Tensor<T>) -> Fallible<flux_runtime::Span<'_>> {
    Ok(tensor.buffer().ok_or("a tensor of the host")?.span())
}

fn timed(stream: &Arc<Stream>, launch: impl FnOnce() -> Fallible<()>) -> Fallible<(Event, Event)> {
    let (start, end) =
        (Event::new(stream.device(), Timing::On)?, Event::new(stream.device(), Timing::On)?);
    stream.record(&start)?;
    launch()?;
    stream.record(&end)?;
    Ok((start, end))
}

fn quantile(values: &[f32], at: f64) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}
