//! Every interleaving of the shipped kernels, and of Programs that break one rule each.

use flux_ir::eval::Launch;
use flux_ir::kernel::Kernel;
use flux_ir::lower::lower;
use flux_ir::program::Program;
use flux_ir::{Schedule, Shape};
use flux_sim::explore::{Limits, Outcome, Reduction, run};

/// The kernels of `flux-ir`'s file tests: one of each distribution.
const KERNELS: [(&str, &str); 4] = [
    ("gemm", include_str!("../../flux-ir/tests/filetests/kernel/gemm.flux")),
    ("ag_gemm_gelu", include_str!("../../flux-ir/tests/filetests/kernel/ag_gemm_gelu.flux")),
    ("gemm_rs", include_str!("../../flux-ir/tests/filetests/kernel/gemm_rs.flux")),
    (
        "ag_gemm_rs_gated",
        include_str!("../../flux-ir/tests/filetests/kernel/ag_gemm_rs_gated.flux"),
    ),
];

const EPOCHS: u32 = 3;

fn shipped(text: &str) -> Program {
    let kernel: Kernel = text.parse().expect("a kernel");
    let schedule = Schedule::host().tile(8, 8, 8).chunk_rows(4);
    lower(&kernel, &schedule).expect("a Program")
}

#[test]
fn shipped_kernels_are_sound() {
    for (name, text) in KERNELS {
        let program = shipped(text);
        for world in 1..=3 {
            for ctas in 1..=2 {
                for (m, n) in [(1, 1), (9, 9), (8 * world, 9)] {
                    let launch = Launch { shape: Shape { m, n, k: 8 }, world, ctas };
                    let start = std::time::Instant::now();
                    let outcome = run(&program, launch, EPOCHS, &Limits::default());
                    let outcome = outcome.unwrap_or_else(|e| panic!("{name} {launch:?}: {e}"));
                    eprintln!(
                        "{name} {m}x{n} world {world} ctas {ctas}: {} states {} last {} moves {:?}",
                        outcome.states,
                        outcome.last,
                        outcome.moves,
                        start.elapsed()
                    );
                    assert!(outcome.is_sound(), "{name} {launch:?}: {outcome:?}");
                    assert_eq!(outcome.last, 1, "{name} {launch:?}");
                }
            }
        }
    }
}
