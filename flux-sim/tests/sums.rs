//! Sums over ranks are taken in the order of ranks: one result, bit for bit, on every rank, in every
//! run and under every schedule, also of numbers whose sum depends on the order. Sums that pass from
//! rank to rank have an order of their own, as fixed.

mod common;

use common::{Case, Form, Matrix, Tensor, Tensors};
use flux_ir::{
    AllReduce, Consumers, Element, Order, Ranks, ReduceScatter, Schedule, Shape, Transport,
};
use flux_sim::adversary;

/// What a rank multiplies: two ranks in three have large numbers, opposite to each other's on the
/// right, so what the third adds to them loses bits that it keeps ahead of them or behind.
fn numbers(rows: u32, (rank, world): (u32, u32), side: Side) -> Matrix {
    let is_small = rank % 3 == 2 || (rank % 3 == 0 && rank + 1 == world);
    let scale = if is_small { 0.1 } else { 64.0 };
    let sign = if rank % 3 == 1 && side == Side::Right { -1.0 } else { 1.0 };
    let seed = if is_small { rank + 100 } else { rank / 3 };
    let integers = Matrix::integers(rows as usize, 1, 1 << 20, 7 * u64::from(seed) + side as u64);
    Matrix::from_fn(rows as usize, 1, |i, _| sign * scale * (integers.at(i, 0) / 3e6 + 1.0))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

/// What a tensor of `element` holds of each number.
fn rounded(element: Element, values: impl IntoIterator<Item = f64>) -> Vec<f32> {
    let values: Vec<_> = values.into_iter().collect();
    Tensor::new(element, &values).values().into_iter().map(|x| x as f32).collect()
}

/// What every rank multiplies, and what comes of it: a product of one k-step is rounded once.
struct Problem {
    a: Vec<Matrix>,
    b: Vec<Matrix>,
    products: Vec<Vec<f32>>,
}

impl Problem {
    fn new(element: Element, shape: Shape, world: u32) -> Self {
        let held = |matrix: Matrix| Matrix {
            data: rounded(element, matrix.data).into_iter().map(f64::from).collect(),
            ..matrix
        };
        let of = |rows: u32, side| -> Vec<Matrix> {
            (0..world).map(|rank| held(numbers(rows, (rank, world), side))).collect()
        };
        let (a, b) = (of(shape.m, Side::Left), of(shape.n, Side::Right));
        let product = |(a, b): (&Matrix, &Matrix)| -> Vec<f32> {
            a.data.iter().flat_map(|&x| b.data.iter().map(move |&y| (x * y) as f32)).collect()
        };
        let products = a.iter().zip(&b).map(product).collect();
        Problem { a, b, products }
    }

    /// The sum of `owner` that begins with the rank before it, goes on with the one before that, and
    /// ends with the owner; rounded to `partial` on its way and to `element` at its end.
    fn chain(
        &self,
        algorithm: ReduceScatter,
        [partial, element]: [Element; 2],
        owner: usize,
    ) -> Vec<f64> {
        let world = self.products.len();
        let round = |to: Element, x: f32| rounded(to, [f64::from(x)])[0];
        let others = (1..world).map(|hop| (owner + world - hop) % world);
        let mut sum = vec![-0.0; self.products[owner].len()];
        for rank in others {
            for (sum, &x) in sum.iter_mut().zip(&self.products[rank]) {
                // Memory adds what travels, registers what was computed.
                let addend = match algorithm {
                    ReduceScatter::Ring => x,
                    ReduceScatter::Add | ReduceScatter::LocalSum | ReduceScatter::Pull => {
                        round(partial, x)
                    }
                };
                *sum = round(partial, *sum + addend);
            }
        }
        let whole = sum.iter().zip(&self.products[owner]).map(|(sum, x)| round(element, sum + x));
        whole.map(f64::from).collect()
    }

    /// The sum that begins with `first` and goes on with the others in the order of ranks, of what
    /// travels as `partial`.
    fn sum(&self, [partial, element]: [Element; 2], first: usize) -> Vec<f64> {
        let contribution =
            |rank: usize| rounded(partial, self.products[rank].iter().copied().map(f64::from));
        let others = (0..self.products.len()).filter(|&rank| rank != first);
        let mut sum = contribution(first);
        for rank in others {
            sum.iter_mut().zip(contribution(rank)).for_each(|(sum, x)| *sum += x);
        }
        rounded(element, sum.into_iter().map(f64::from)).into_iter().map(f64::from).collect()
    }

    fn tensors(&self, element: Element, rank: u32, held: usize) -> Tensors {
        let index = rank as usize;
        Tensors {
            inputs: vec![
                ("a", Tensor::new(element, &self.a[index].data)),
                ("b", Tensor::new(element, &self.b[index].data)),
            ],
            outputs: vec![("c", Tensor::new(element, &vec![f64::NAN; held]))],
            scalars: Vec::new(),
        }
    }
}

const SHAPES: [Shape; 2] = [Shape { m: 21, n: 19, k: 1 }, Shape { m: 40, n: 16, k: 1 }];

fn schedules() -> Vec<Schedule> {
    let small = Schedule::host().tile(8, 8, 16);
    vec![
        small.clone(),
        small.clone().order(Order::Xor),
        small.clone().transport(Transport::CopyEngine).chunk_rows(9).tail(8, 2),
        Schedule::host().tile(16, 24, 16).consumers(Consumers::PingPong),
        Schedule::host().tile(5, 3, 16).order(Order::RowMajor),
        Schedule::host(),
    ]
}

/// On each rank, what it holds of the whole sum.
fn check(form: Form, schedules: &[Schedule]) {
    for element in Element::ALL {
        for world in 1..=8 {
            let shape = SHAPES[world as usize % 2];
            let problem = Problem::new(element, shape, world);
            let [rows, cols] = [shape.m, shape.n].map(|extent| extent as usize);
            let part = |schedule: &Schedule, rank: u32| {
                let chained = schedule.reduce_scatter.filter(|found| {
                    !matches!(found, ReduceScatter::LocalSum | ReduceScatter::Pull)
                });
                let partial = schedule.partials.unwrap_or(element);
                let data = match chained {
                    Some(found) => problem.chain(found, [partial, element], rank as usize),
                    None => problem.sum([partial, element], 0),
                };
                let total = Matrix { rows, cols, data };
                if form == Form::Scatter { total.shard(Ranks { rank, world }) } else { total }
            };
            for (number, schedule) in schedules.iter().enumerate() {
                let kernel = form.kernel(element, true);
                let case = Case::new(&kernel, schedule, shape, world, 1 + number as u32 % 3);
                let launch = || -> Vec<Tensors> {
                    let tensors =
                        |rank| problem.tensors(element, rank, part(schedule, rank).data.len());
                    (0..world).map(tensors).collect()
                };
                let mut launches: Vec<_> = (0..3).map(|_| launch()).collect();
                case.run(&mut launches);
                let mut odd: Vec<_> = (0..2).map(|_| launch()).collect();
                let seed = u64::from(world) + 100 * number as u64;
                let args = odd
                    .iter_mut()
                    .map(|ranks| ranks.iter_mut().map(|rank| case.args(rank)).collect())
                    .collect();
                adversary::run(&case.verified, case.launch, args, seed)
                    .unwrap_or_else(|e| panic!("{schedule}: {e}"));
                for ranks in launches.iter().chain(&odd) {
                    for (rank, tensors) in (0..).zip(ranks) {
                        let found = tensors.outputs[0].1.values();
                        let about = format!("{form:?}, {element}, {shape}, {schedule}");
                        assert!(
                            found == part(schedule, rank).data,
                            "{about}, rank {rank} of {world}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_scattered_sum_is_the_one_in_the_order_of_ranks() {
    check(Form::Scatter, &schedules());
}

#[test]
fn a_sum_that_passes_from_rank_to_rank_has_an_order_of_its_own() {
    let small = Schedule::host().tile(8, 8, 16);
    let schedules: Vec<_> = [ReduceScatter::Add, ReduceScatter::Ring]
        .into_iter()
        .flat_map(|algorithm| {
            let small = small.clone().reduce_scatter(algorithm);
            [
                small.clone(),
                small.clone().partials(Element::F32),
                small.clone().tile(5, 3, 16).partials(Element::Bf16),
                small.clone().consumers(Consumers::PingPong).tile(16, 24, 16),
                small.partials(Element::F16).ctas(3),
                Schedule::host().reduce_scatter(algorithm),
            ]
        })
        .collect();
    check(Form::Scatter, &schedules);
}

/// Whoever moves the bytes, contributions are added in the order of ranks.
#[test]
fn a_sum_that_owners_pull_is_the_one_in_the_order_of_ranks() {
    let small = Schedule::host().tile(8, 8, 16).reduce_scatter(ReduceScatter::Pull);
    let wide = Schedule::host().reduce_scatter(ReduceScatter::Pull);
    check(
        Form::Scatter,
        &[
            small.clone(),
            small.clone().partials(Element::F32),
            small.clone().tile(5, 3, 16).partials(Element::Bf16),
            small.clone().consumers(Consumers::PingPong).tile(16, 24, 16).order(Order::Xor),
            small.tile(40, 8, 16).partials(Element::F16).ctas(3),
            wide,
        ],
    );
}

#[test]
fn every_rank_has_the_reduced_sum_whoever_took_it() {
    let small = Schedule::host().tile(8, 8, 16);
    let schedules: Vec<_> = AllReduce::ALL
        .into_iter()
        .flat_map(|algorithm| {
            let small = small.clone().all_reduce(algorithm);
            [small.clone(), small.clone().order(Order::RowMajor), small.tile(16, 24, 16)]
        })
        .collect();
    check(Form::Reduce, &schedules);
}

#[test]
fn the_numbers_show_the_order() {
    for element in Element::ALL {
        for world in 3..=8 {
            let problem = Problem::new(element, SHAPES[world as usize % 2], world);
            let ordered = problem.sum([element; 2], 0);
            for own in (2..world as usize).step_by(3) {
                let own_first = problem.sum([element; 2], own);
                assert!(ordered != own_first, "{element}, rank {own} of {world}");
            }
        }
    }
}
