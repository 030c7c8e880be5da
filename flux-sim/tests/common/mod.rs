//! Kernels built by hand, worlds of threads, and a plain product to compare with.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate that uses a part")]

use flux_ir::arena::Arena;
use flux_ir::check::{Verified, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::{Distribution, Kernel, Lhs, Op, OpEntry, Param, ParamId, ParamType, Value};
use flux_ir::program::{BufferId, BufferKind};
use flux_ir::tile::{own_rows, shard_rows};
use flux_ir::{Element, Ranks, Schedule, Shape, Span};
use flux_sim::{Error, Input, Output, RankArgs, Workspace, launch_rank};
use half::{bf16, f16};
use std::time::Duration;

pub const LIMIT: Duration = Duration::from_secs(20);

/// Writes a kernel line by line.
pub struct Builder {
    name: String,
    params: Arena<ParamId, Param>,
    ops: Arena<Value, OpEntry>,
}

impl Builder {
    pub fn new(name: &str) -> Self {
        Builder { name: name.into(), params: Arena::new(), ops: Arena::new() }
    }

    pub fn tensor(&mut self, name: &str, distribution: Distribution, element: Element) -> ParamId {
        let written = name.starts_with('c');
        let ty = ParamType::Tensor { distribution, element, written };
        self.params.push(Param { name: name.into(), ty, span: Span::new(1, 1) })
    }

    pub fn scalar(&mut self, name: &str) -> ParamId {
        let ty = ParamType::Scalar;
        self.params.push(Param { name: name.into(), ty, span: Span::new(1, 1) })
    }

    pub fn op(&mut self, op: Op) -> Value {
        let line = self.ops.len() as u32 + 3;
        self.ops.push(OpEntry { op, span: Span::new(line, 9) })
    }

    pub fn finish(self, tiles_of: ParamId) -> Kernel {
        let Builder { name, params, ops } = self;
        let (loop_span, span) = (Span::new(2, 5), Span::new(1, 8));
        Kernel { name, params, tiles_of, loop_span, ops, protocol: None, span }
    }
}

/// The ways in which a product meets its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Gather,
    Scatter,
    GatherScatter,
    Reduce,
    GatherReduce,
}

impl Form {
    /// Those that any schedule fits.
    pub const ALL: [Form; 4] = [Form::Plain, Form::Gather, Form::Scatter, Form::GatherScatter];

    pub fn gathers(self) -> bool {
        matches!(self, Form::Gather | Form::GatherScatter | Form::GatherReduce)
    }

    pub fn reduces(self) -> bool {
        matches!(self, Form::Reduce | Form::GatherReduce)
    }

    pub fn scatters(self) -> bool {
        matches!(self, Form::Scatter | Form::GatherScatter)
    }

    /// `c = a · b` or `a · bᵀ`.
    pub fn kernel(self, element: Element, transposed: bool) -> Kernel {
        let mut k = Builder::new("product");
        let left = if self.gathers() { Distribution::Gathered } else { Distribution::Global };
        let right = match self {
            Form::Plain | Form::Gather => Distribution::Global,
            Form::Scatter | Form::GatherScatter => Distribution::Scattered,
            Form::Reduce | Form::GatherReduce => Distribution::Reduced,
        };
        let a = k.tensor("a", left, element);
        let b = k.tensor("b", Distribution::Global, element);
        let c = k.tensor("c", right, element);
        let lhs =
            if self.gathers() { Lhs::Ready(k.op(Op::Wait { tensor: a })) } else { Lhs::Param(a) };
        let mut x = k.op(Op::Gemm { a: lhs, b, transposed });
        if self.scatters() || self.reduces() {
            x = k.op(Op::Reduce { output: c, x });
        }
        k.op(Op::Store { output: c, x });
        k.finish(c)
    }
}

/// A matrix of integers (as f64), row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f64>,
}

impl Matrix {
    pub fn from_fn(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        let data = (0..rows * cols).map(|i| f(i / cols, i % cols)).collect();
        Matrix { rows, cols, data }
    }

    /// Integers in `-span..=span`, decided by `seed`.
    pub fn integers(rows: usize, cols: usize, span: u64, seed: u64) -> Self {
        Matrix::from_fn(rows, cols, |i, j| {
            let mut x = seed ^ ((i as u64) << 32 | j as u64);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((x ^ (x >> 31)) % (2 * span + 1)) as f64 - span as f64
        })
    }

    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.data[i * self.cols + j]
    }

    pub fn times(&self, b: &Matrix, transposed: bool) -> Matrix {
        let n = if transposed { b.rows } else { b.cols };
        Matrix::from_fn(self.rows, n, |i, j| {
            let b = |l| if transposed { b.at(j, l) } else { b.at(l, j) };
            (0..self.cols).map(|l| self.at(i, l) * b(l)).sum()
        })
    }

    pub fn plus(&self, other: &Matrix) -> Matrix {
        Matrix::from_fn(self.rows, self.cols, |i, j| self.at(i, j) + other.at(i, j))
    }

    pub fn shard(&self, ranks: Ranks) -> Matrix {
        let first = (ranks.rank * shard_rows(self.rows as u32, ranks.world)) as usize;
        let rows = own_rows(self.rows as u32, ranks) as usize;
        Matrix::from_fn(rows, self.cols, |i, j| self.at(first + i, j))
    }
}

/// A tensor in memory.
#[derive(Debug, Clone, PartialEq)]
pub enum Tensor {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Tensor {
    pub fn new(element: Element, values: &[f64]) -> Self {
        // By way of f32: `from_f64` drops the low half of a number before it rounds.
        match element {
            Element::Bf16 => {
                Tensor::Bf16(values.iter().map(|&x| bf16::from_f32(x as f32)).collect())
            }
            Element::F16 => Tensor::F16(values.iter().map(|&x| f16::from_f32(x as f32)).collect()),
            Element::F32 => Tensor::F32(values.iter().map(|&x| x as f32).collect()),
        }
    }

    pub fn input(&self) -> Input<'_> {
        match self {
            Tensor::Bf16(data) => Input::from(data.as_slice()),
            Tensor::F16(data) => Input::from(data.as_slice()),
            Tensor::F32(data) => Input::from(data.as_slice()),
        }
    }

    pub fn output(&mut self) -> Output<'_> {
        match self {
            Tensor::Bf16(data) => Output::from(data.as_mut_slice()),
            Tensor::F16(data) => Output::from(data.as_mut_slice()),
            Tensor::F32(data) => Output::from(data.as_mut_slice()),
        }
    }

    pub fn values(&self) -> Vec<f64> {
        match self {
            Tensor::Bf16(data) => data.iter().map(|x| x.to_f64()).collect(),
            Tensor::F16(data) => data.iter().map(|x| x.to_f64()).collect(),
            Tensor::F32(data) => data.iter().map(|&x| x.into()).collect(),
        }
    }
}

/// One rank's tensors by name, and its scalars.
#[derive(Debug, Clone, Default)]
pub struct Tensors {
    pub inputs: Vec<(&'static str, Tensor)>,
    pub outputs: Vec<(&'static str, Tensor)>,
    pub scalars: Vec<f32>,
}

fn verified(kernel: &Kernel, schedule: &Schedule) -> Verified {
    let program = flux_ir::lower::lower(kernel, schedule).unwrap_or_else(|e| panic!("{e}"));
    verify(program).unwrap_or_else(|e| panic!("{e}"))
}

/// A kernel lowered for a launch, with its workspace.
pub struct Case {
    pub verified: Verified,
    pub launch: Launch,
    pub workspace: Workspace,
}

impl Case {
    pub fn new(kernel: &Kernel, schedule: &Schedule, shape: Shape, world: u32, ctas: u32) -> Self {
        Case::made(verified(kernel, schedule), Launch { shape, world, ctas })
    }

    /// Of ranks that own so many rows each.
    pub fn of_lengths(
        kernel: &Kernel,
        schedule: &Schedule,
        shape: Shape,
        lengths: &[u32],
        ctas: u32,
    ) -> Self {
        let verified = verified(kernel, schedule).with_lengths(lengths);
        let world = lengths.len() as u32;
        Case::made(verified.unwrap_or_else(|e| panic!("{e}")), Launch { shape, world, ctas })
    }

    fn made(verified: Verified, launch: Launch) -> Self {
        let Launch { shape, world, .. } = launch;
        verified.check_launch(launch).unwrap_or_else(|e| panic!("{shape} over {world}: {e}"));
        let workspace = Workspace::new(&verified, launch).expect("a workspace");
        Case { verified, launch, workspace }
    }

    pub fn buffer(&self, name: &str) -> BufferId {
        let buffers = &self.verified.program().buffers;
        let found = buffers.iter().find(|(_, b)| b.name == name && b.kind != BufferKind::Symmetric);
        found.unwrap_or_else(|| panic!("no buffer {name}")).0
    }

    pub fn args<'a>(&self, tensors: &'a mut Tensors) -> RankArgs<'a> {
        let Tensors { inputs, outputs, scalars } = tensors;
        RankArgs {
            inputs: inputs.iter().map(|(name, t)| (self.buffer(name), t.input())).collect(),
            outputs: outputs.iter_mut().map(|(name, t)| (self.buffer(name), t.output())).collect(),
            scalars: scalars.clone(),
        }
    }

    /// One launch of one rank.
    pub fn rank(
        &self,
        rank: u32,
        epoch: u32,
        tensors: &mut Tensors,
        limit: Duration,
    ) -> Result<(), Error> {
        let args = self.args(tensors);
        launch_rank(&self.verified, self.launch, rank, epoch, &self.workspace, args, limit)
    }

    /// All ranks on threads, each through all its launches: `tensors[epoch - 1][rank]`.
    pub fn run(&self, tensors: &mut [Vec<Tensors>]) {
        let mut by_rank: Vec<Vec<&mut Tensors>> =
            (0..self.launch.world).map(|_| Vec::new()).collect();
        for launch in tensors {
            for (rank, tensors) in launch.iter_mut().enumerate() {
                by_rank[rank].push(tensors);
            }
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = by_rank
                .into_iter()
                .enumerate()
                .map(|(rank, launches)| {
                    scope.spawn(move || {
                        for (index, tensors) in launches.into_iter().enumerate() {
                            let epoch = index as u32 + 1;
                            self.rank(rank as u32, epoch, tensors, LIMIT)?;
                        }
                        Ok::<_, Error>(())
                    })
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic").unwrap_or_else(|e| panic!("{e}"));
            }
        });
    }
}

/// Inputs of one launch of [`Form::kernel`], poisoned outputs, and what they must become.
pub fn problem(
    form: Form,
    element: Element,
    transposed: bool,
    shape: Shape,
    world: u32,
    seed: u64,
) -> (Vec<Tensors>, Vec<Vec<f64>>) {
    let [m, n, k] = [shape.m, shape.n, shape.k].map(|extent| extent as usize);
    let whole = Matrix::integers(m, k, 1, seed);
    let a: Vec<_> = (0..world)
        .map(|rank| match form.gathers() {
            true => whole.clone(),
            false => Matrix::integers(m, k, 1, seed ^ (u64::from(rank) + 1) << 8),
        })
        .collect();
    let b: Vec<_> = (0..world)
        .map(|rank| {
            let (rows, cols) = if transposed { (n, k) } else { (k, n) };
            Matrix::integers(rows, cols, 1, seed ^ (u64::from(rank) + 1) << 16)
        })
        .collect();
    let products: Vec<_> = a.iter().zip(&b).map(|(a, b)| a.times(b, transposed)).collect();
    let sum = products[1..].iter().fold(products[0].clone(), |sum, p| sum.plus(p));
    let mut tensors = Vec::new();
    let mut expected = Vec::new();
    for rank in 0..world {
        let ranks = Ranks { rank, world };
        let index = rank as usize;
        let a = if form.gathers() { a[index].shard(ranks) } else { a[index].clone() };
        let c = match form {
            Form::Plain | Form::Gather => products[index].clone(),
            Form::Scatter | Form::GatherScatter => sum.shard(ranks),
            Form::Reduce | Form::GatherReduce => sum.clone(),
        };
        let poison = vec![f64::NAN; c.data.len()];
        tensors.push(Tensors {
            inputs: vec![
                ("a", Tensor::new(element, &a.data)),
                ("b", Tensor::new(element, &b[index].data)),
            ],
            outputs: vec![("c", Tensor::new(element, &poison))],
            scalars: Vec::new(),
        });
        expected.push(Tensor::new(element, &c.data).values());
    }
    (tensors, expected)
}
