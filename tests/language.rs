//! Every feature of the language through the macro: what it makes of the kernels below is what
//! the text form says, and they load.

use flux::prelude::*;
use flux::{Consumers, Kernel, Shape, TileShape, Transport};

#[flux::kernel]
#[schedule(host, tile = (32, 32, 32))]
fn swiglu(x: &Gathered<bf16>, w1: &Global<bf16>, w3: &Global<bf16>, y: &mut Global<bf16>) {
    for tile in y.tiles() {
        let x = x.wait(tile.rows());
        y.store(tile, silu(gemm(x, w1.t(), tile)) * gemm(x, w3.t(), tile));
    }
}

#[flux::kernel]
fn outputs_and_scalars(
    a: &Global<f16>,
    b: &Global<f16>,
    scale: &Global<f32>,
    raw: &mut Global<f32>,
    act: &mut Global<f16>,
    alpha: f32,
    limit: f32,
) {
    let clip = |x: Fragment| x.min(limit).max(-limit);
    for tile in raw.tiles() {
        let acc = alpha * gemm(a, b, tile);
        raw.store(tile, acc);
        let acc = { scale.rows(tile) * acc / 2.0 };
        act.store(tile, clip(acc.cast::<bf16>()).zip_map(acc, |x, y| tanh(x) - exp(y)));
    }
}

/// Down the columns, every other one upwards.
fn snake(step: u32, grid: &Grid, _rank: u32, _world: u32) -> TileCoord {
    let (n, within) = (step / grid.rows, step % grid.rows);
    TileCoord { m: if n % 2 == 0 { within } else { grid.rows - 1 - within }, n }
}

#[schedule(host, order = snake)]
#[flux::kernel]
#[schedule(host, order = |step, grid, _, _| TileCoord { m: step % grid.rows, n: step / grid.rows })]
#[schedule(sm_90a, tile = (128, 128, 64), stages = 6, consumers = ping_pong, order = grouped(8),
           transport = put, chunk_rows = 512, ctas = 64)]
fn orders(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
    for tile in c.tiles() {
        c.add(tile, gemm(a, b.t(), tile).map(relu));
    }
}

#[flux::module]
mod module {
    //! Documentation inside is kept.
    use flux::prelude::*;

    const SQRT_2: f32 = 1.5 - 0.085_786_44;

    const fn by_rows(step: u32, grid: &Grid, _rank: u32, _world: u32) -> TileCoord {
        TileCoord { m: step / grid.cols, n: step % grid.cols }
    }

    fn activate(x: Fragment, bias: Fragment) -> Fragment {
        let x = x + bias;
        gelu_tanh(x) * SQRT_2
    }

    fn finish(c: &mut Scattered<bf16>, tile: Tile, total: Fragment) {
        c.store(tile, total);
    }

    /// The kernel's documentation.
    #[kernel]
    #[schedule(host, order = by_rows)]
    pub(super) fn reduced(
        a: &Global<bf16>,
        b: &Global<bf16>,
        bias: &Global<f32>,
        residual: &Sharded<bf16>,
        c: &mut Scattered<bf16>,
    ) {
        for tile in c.tiles() {
            let total = c.reduce(tile, gemm(a, b.t(), tile));
            finish(c, tile, activate(total, bias.cols(tile)) + residual.load(tile));
        }
    }
}

#[schedule(host)]
#[schedule(host, stages = 2)]
#[flux::kernel]
#[schedule(host, stages = 3)]
/// Attributes in any order.
fn family(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        c.store(tile, gemm(a, b.t(), tile));
    }
}

/// Paths instead of names, and nothing for rustc to warn about.
#[deny(warnings)]
mod without_the_prelude {
    use flux::lang::{Fragment, Gathered, Global};

    #[flux::kernel]
    #[flux::schedule(host)]
    pub(super) fn paths(
        a: &Gathered<flux::lang::bf16>,
        b: &Global<flux::lang::bf16>,
        c: &mut flux::lang::Global<f32>,
    ) {
        let act = |x: Fragment| flux::lang::relu(x);
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, act(flux::lang::gemm(a, b.t(), tile)));
        }
    }
}

fn text(definition: &flux::Definition) -> Vec<String> {
    let kernel: Kernel = definition.kernel().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(kernel.to_string(), definition.text, "the embedded text parses back");
    let lines = definition.text.lines().map(str::trim);
    let ops = lines.skip_while(|line| !line.starts_with("for")).skip(1);
    let ops = ops.take_while(|line| *line != "}");
    ops.map(|line| line.split(" @").next().unwrap_or_default().trim_end().to_owned()).collect()
}

#[test]
fn kernels_mean_what_they_say() {
    assert_eq!(
        text(swiglu::definition()),
        [
            "%0 = wait %x",
            "%1 = gemm %0, %w1.t",
            "%2 = silu %1",
            "%3 = gemm %0, %w3.t",
            "%4 = mul %2, %3",
            "store %y, %4",
        ]
    );
    assert_eq!(
        text(module::reduced::definition()),
        [
            "%0 = gemm %a, %b.t",
            "%1 = reduce %c, %0",
            "%2 = cols %bias",
            "%3 = add %1, %2",
            "%4 = gelu_tanh %3",
            "%5 = const 1.5",
            "%6 = const 0.08578644",
            "%7 = sub %5, %6",
            "%8 = mul %4, %7",
            "%9 = load %residual",
            "%10 = add %8, %9",
            "store %c, %10",
        ]
    );
    let ops = text(outputs_and_scalars::definition());
    assert_eq!(
        ops[..4],
        ["%0 = scalar %alpha", "%1 = gemm %a, %b", "%2 = mul %0, %1", "store %raw, %2"]
    );
    assert_eq!(ops.last().map(String::as_str), Some("store %act, %16"), "{ops:?}");
}

#[test]
fn a_definition_names_its_file_and_lines() {
    let definition = swiglu::definition();
    assert_eq!((definition.name, definition.file), ("swiglu", file!()));
    let wait = definition.text.lines().find(|line| line.contains("wait %x")).expect("the wait");
    let line = include_str!("language.rs").lines().position(|line| line.contains("x.wait("));
    assert!(wait.ends_with(&format!("@{}:19", line.expect("the source") + 1)), "{wait}");
}

#[test]
fn schedules_keep_their_order_and_every_choice() {
    let schedules = (orders::definition().schedules)();
    assert_eq!(schedules.len(), 3);
    assert_eq!(schedules[0].order.as_ref().map(Order::name), Some("snake"));
    assert_eq!(schedules[1].order.as_ref().map(Order::name), Some("closure"));
    let expected = Schedule::sm_90a()
        .tile(128, 128, 64)
        .stages(6)
        .consumers(Consumers::PingPong)
        .order(Order::Grouped(8))
        .transport(Transport::Put)
        .chunk_rows(512)
        .ctas(64);
    assert_eq!(schedules[2], expected);
    assert_eq!((outputs_and_scalars::definition().schedules)(), [Schedule::sm_90a()]);
}

#[test]
fn several_products_fit_the_registers_without_a_schedule() {
    #[flux::kernel]
    fn two(x: &Global<bf16>, w1: &Global<bf16>, w3: &Global<bf16>, y: &mut Global<bf16>) {
        for tile in y.tiles() {
            y.store(tile, silu(gemm(x, w1.t(), tile)) * gemm(x, w3.t(), tile));
        }
    }
    assert_eq!((two::definition().schedules)(), [Schedule::sm_90a().tile(128, 128, 64)]);
}

#[test]
fn schedules_above_and_below_the_kernel_make_one_family() {
    let stages: Vec<u32> = (family::definition().schedules)().iter().map(|s| s.stages).collect();
    assert_eq!(stages.len(), 3);
    assert!([2, 3, 4].iter().all(|n| stages.contains(n)), "{stages:?}");
}

#[test]
fn paths_name_the_language_as_well_as_the_prelude() {
    assert_eq!(
        text(without_the_prelude::paths::definition()),
        ["%0 = wait %a", "%1 = gemm %0, %b.t", "%2 = relu %1", "store %c, %2"]
    );
}

#[test]
fn a_kernel_may_stand_in_a_function() {
    #[flux::kernel]
    #[schedule(host)]
    fn inner(a: &Global<f32>, b: &Global<f32>, c: &mut Global<f32>) {
        for tile in c.tiles() {
            c.store(tile, gemm(a, b, tile));
        }
    }
    assert_eq!(inner::definition().name, "inner");
}

#[test]
fn a_users_order_runs_on_the_host() {
    let tile = TileShape { m: 1, n: 1, k: 1 };
    let grid = Grid::new(Shape { m: 3, n: 2, k: 1 }, tile, 1, false);
    let ranks = flux_ir::Ranks { rank: 0, world: 1 };
    let schedules = (orders::definition().schedules)();
    let rows = |index: usize| -> Vec<u32> {
        let order: &Order = schedules[index].order.as_ref().expect("an order");
        let table = order.table(&grid, ranks).unwrap_or_else(|e| panic!("{e}"));
        table.iter().map(|tile| tile.m).collect()
    };
    assert_eq!(rows(0), [0, 1, 2, 2, 1, 0]);
    assert_eq!(rows(1), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn the_struct_has_a_debug_form_and_loads() -> Result<(), flux::Error> {
    World::host(1)?.run(|rank| -> Result<(), flux::Error> {
        let kernel = swiglu::load(rank)?;
        assert_eq!(format!("{kernel:?}"), "swiglu { .. }");
        let other = Schedule::host().tile(16, 16, 16).order(Order::custom("snake", snake));
        module::reduced::load_with(rank, &other)?;
        Ok(())
    })?;
    Ok(())
}

#[test]
fn raw_names_and_full_paths() -> Result<(), flux::Error> {
    #[flux::kernel]
    #[schedule(host, tile = (32, 32, 32))]
    fn r#fn(r#in: &Global<f32>, b: &flux::lang::Global<f32>, c: &mut Global<f32>, r#box: f32) {
        for tile in c.tiles() {
            let acc = flux::lang::gemm(r#in, b.t(), tile);
            let r#acc = acc * r#box;
            c.store(tile, ::flux::lang::relu(acc).cast::<flux::lang::bf16>());
        }
    }
    assert_eq!(r#fn::definition().name, "fn");
    let results = World::host(1)?.run(|rank| {
        let (a, b) = (rank.tensor(1, 1, &[3.0_f32])?, rank.tensor(1, 1, &[5.0_f32])?);
        let mut c = rank.zeros::<f32>(1, 1)?;
        r#fn::load(rank)?.launch(&a, &b, &mut c, 2.0)?;
        c.to_vec()
    })?;
    assert_eq!(results, [[30.0]]);
    Ok(())
}
