//! Every interleaving of the shipped kernels, and of Programs that break one rule each.

use flux_ir::check::{EPOCHS, Verified, verify};
use flux_ir::diagnostic::Rule;
use flux_ir::eval::Launch;
use flux_ir::kernel::Kernel;
use flux_ir::lower::lower;
use flux_ir::program::Program;
use flux_ir::{AllGather, AllReduce, ReduceScatter, Schedule, Shape, Target, Transport};
use flux_sim::explore::{Difference, ExploreError, Limits, Outcome, Reduction, equivalent, run};

/// The kernels of `flux-ir`'s file tests: one of each distribution.
const KERNELS: [(&str, &str); 11] = [
    ("gemm", include_str!("../../flux-ir/tests/filetests/kernel/gemm.flux")),
    ("ag_gemm_gelu", include_str!("../../flux-ir/tests/filetests/kernel/ag_gemm_gelu.flux")),
    ("gemm_rs", include_str!("../../flux-ir/tests/filetests/kernel/gemm_rs.flux")),
    (
        "ag_gemm_rs_gated",
        include_str!("../../flux-ir/tests/filetests/kernel/ag_gemm_rs_gated.flux"),
    ),
    ("all_gather", include_str!("../../flux-ir/tests/filetests/kernel/all_gather.flux")),
    ("reduce_scatter", include_str!("../../flux-ir/tests/filetests/kernel/reduce_scatter.flux")),
    ("gemm_a2a", include_str!("../../flux-ir/tests/filetests/kernel/gemm_a2a.flux")),
    ("a2a_gemm", include_str!("../../flux-ir/tests/filetests/kernel/a2a_gemm.flux")),
    ("gemm_ag_tn", include_str!("../../flux-ir/tests/filetests/kernel/gemm_ag_tn.flux")),
    ("ag_gemm_tn", include_str!("../../flux-ir/tests/filetests/kernel/ag_gemm_tn.flux")),
    (
        "ag_gemm_gathered",
        include_str!("../../flux-ir/tests/filetests/kernel/ag_gemm_gathered.flux"),
    ),
];

fn shipped(text: &str) -> Verified {
    let kernel: Kernel = text.parse().expect("a kernel");
    let schedule = Schedule::host().tile(8, 8, 8).chunk_rows(4);
    verify(lower(&kernel, &schedule).expect("a Program")).expect("a sound Program")
}

/// Launches of up to three ranks: fewer rows than ranks, ragged tiles, a tile for each rank.
fn launches() -> impl Iterator<Item = Launch> {
    (1..=3).flat_map(|world| {
        [(1, 1), (9, 9), (8 * world, 9)].into_iter().flat_map(move |(m, n)| {
            (1..=2).map(move |ctas| Launch { shape: Shape { m, n, k: 8 }, world, ctas })
        })
    })
}

/// At most 532 states each, one path of each Program: 3 ms in a debug build.
#[test]
fn shipped_kernels_are_sound_in_every_interleaving() {
    for (name, text) in KERNELS {
        let verified = shipped(text);
        for launch in launches() {
            let outcome = run(verified.program(), launch, EPOCHS, &Limits::default());
            let outcome = outcome.unwrap_or_else(|e| panic!("{name} {launch:?}: {e}"));
            assert!(outcome.is_sound(), "{name} {launch:?}: {outcome:?}");
            assert_eq!(outcome.last, 1, "{name} {launch:?}");
        }
    }
}

/// On the device the host does the waits of copy engines before it launches the grid.
#[test]
fn shipped_kernels_for_the_device_are_sound_in_every_interleaving() {
    for (name, text) in KERNELS {
        let kernel: Kernel = text.parse().expect("a kernel");
        let schedule = Schedule::sm_90a().tile(128, 96, 64).chunk_rows(64);
        let program = lower(&kernel, &schedule).expect("a Program");
        for (world, m, n) in [(1, 129, 97), (2, 1, 1), (2, 256, 96), (3, 300, 97)] {
            let launch = Launch { shape: Shape { m, n, k: 64 }, world, ctas: 2 };
            let outcome = run(&program, launch, EPOCHS, &Limits::default());
            let outcome = outcome.unwrap_or_else(|e| panic!("{name} {launch:?}: {e}"));
            assert!(outcome.is_sound(), "{name} {launch:?}: {outcome:?}");
        }
    }
}

/// Copy engines that wait for tiles, of shards in whole tile rows and across them, in several plans.
#[test]
fn contributions_that_copy_engines_send_are_sound_in_every_interleaving() {
    let (_, text) =
        KERNELS.into_iter().find(|(name, _)| *name == "gemm_rs").expect("it is shipped");
    let kernel: Kernel = text.parse().expect("a kernel");
    for target in Target::ALL {
        let sent = match target {
            Target::Host => Schedule::host().tile(2, 2, 1),
            Target::Sm90a => Schedule::sm_90a().tile(128, 96, 64),
        };
        let tile = sent.tile;
        let sent = sent.transport(Transport::CopyEngine);
        let cut = sent.clone().head(tile.m, 1).chunk_rows(tile.m).tail(2 * tile.m, 2);
        for schedule in [sent, cut] {
            let program = lower(&kernel, &schedule).expect("a Program");
            for (world, rows) in [(1, 2), (2, 1), (2, 4), (2, 5), (2, 8), (3, 6), (3, 4)] {
                let shape = Shape { m: rows * tile.m / 2, n: tile.n + 1, k: tile.k };
                let launch = Launch { shape, world, ctas: 1 };
                let outcome = run(&program, launch, EPOCHS, &Limits::default());
                let outcome = outcome.unwrap_or_else(|e| panic!("{schedule} {launch:?}: {e}"));
                assert!(outcome.is_sound(), "{schedule} {launch:?}: {outcome:?}");
                assert_eq!(outcome.last, 1, "{schedule} {launch:?}");
            }
        }
    }
}

/// Shards that fill tiles and some that do not, of up to three ranks.
fn sums_are_sound(kernel: &Kernel, schedule: &Schedule) {
    let tile = schedule.tile;
    let program = lower(kernel, schedule).expect("a Program");
    for (world, rows, ctas) in
        [(1, 2, 1), (2, 1, 1), (2, 2, 2), (2, 4, 1), (2, 5, 1), (3, 4, 1), (3, 2, 1)]
    {
        let shape = Shape { m: rows * tile.m / 2, n: tile.n, k: tile.k };
        let launch = Launch { shape, world, ctas };
        let outcome = run(&program, launch, EPOCHS, &Limits::default());
        let outcome = outcome.unwrap_or_else(|e| panic!("{schedule} {launch:?}: {e}"));
        assert!(outcome.is_sound(), "{schedule} {launch:?}: {outcome:?}");
        assert_eq!(outcome.last, 1, "{schedule} {launch:?}");
    }
}

/// Sums that every rank gets: all that it takes in one step, or brought from their owners by copy
/// warps.
#[test]
fn reduced_outputs_are_sound_in_every_interleaving() {
    let text = include_str!("../../flux-ir/tests/filetests/kernel/gemm_ar.flux");
    let kernel: Kernel = text.parse().expect("a kernel");
    for algorithm in AllReduce::ALL {
        for small in [Schedule::host().tile(2, 2, 1), Schedule::sm_90a().tile(128, 96, 64)] {
            sums_are_sound(&kernel, &small.clone().all_reduce(algorithm));
            if algorithm == AllReduce::TwoShot {
                let bulk = small.all_reduce(algorithm).transport(Transport::Tma);
                sums_are_sound(&kernel, &bulk);
            }
        }
    }
}

/// Sums of what copy warps bring from those who computed it.
#[test]
fn sums_that_owners_pull_are_sound_in_every_interleaving() {
    let (_, text) =
        KERNELS.into_iter().find(|(name, _)| *name == "gemm_rs").expect("it is shipped");
    let kernel: Kernel = text.parse().expect("a kernel");
    for small in [Schedule::host().tile(2, 2, 1), Schedule::sm_90a().tile(128, 96, 64)] {
        let pulled = small.reduce_scatter(ReduceScatter::Pull);
        sums_are_sound(&kernel, &pulled);
        sums_are_sound(&kernel, &pulled.transport(Transport::Tma));
    }
}

/// Sums that pass from rank to rank.
#[test]
fn sums_that_pass_from_rank_to_rank_are_sound_in_every_interleaving() {
    let (_, text) =
        KERNELS.into_iter().find(|(name, _)| *name == "gemm_rs").expect("it is shipped");
    let kernel: Kernel = text.parse().expect("a kernel");
    for algorithm in [ReduceScatter::Add, ReduceScatter::Ring] {
        for small in [Schedule::host().tile(2, 2, 1), Schedule::sm_90a().tile(128, 96, 64)] {
            sums_are_sound(&kernel, &small.reduce_scatter(algorithm));
        }
    }
}

/// Shards that are fetched, or handed on around a ring.
#[test]
fn shards_that_roles_bring_are_sound_in_every_interleaving() {
    let (_, text) =
        KERNELS.into_iter().find(|(name, _)| *name == "ag_gemm_gelu").expect("it is shipped");
    let kernel: Kernel = text.parse().expect("a kernel");
    for way in [AllGather::Pull, AllGather::Ring] {
        let whole = Schedule::host().tile(2, 2, 1).all_gather(way);
        let chunks = whole.clone().chunk_rows(1);
        let device = Schedule::sm_90a().tile(128, 96, 64).all_gather(way);
        let [put, bulk] =
            [Transport::Put, Transport::Tma].map(|transport| chunks.clone().transport(transport));
        for schedule in [whole, chunks, put, bulk, device] {
            let program = lower(&kernel, &schedule).expect("a Program");
            let of_tile = schedule.tile;
            for (world, rows, ctas) in [(1, 2, 1), (2, 1, 1), (2, 4, 1), (2, 2, 2), (3, 3, 1)] {
                // Copies by two actors of each of three ranks are too many.
                if world == 3 && schedule.chunk_rows.is_some() {
                    continue;
                }
                let m = rows * of_tile.m / 2;
                let launch = Launch { shape: Shape { m, n: 2, k: 1 }, world, ctas };
                let outcome = run(&program, launch, EPOCHS, &Limits::default());
                let outcome = outcome.unwrap_or_else(|e| panic!("{schedule} {launch:?}: {e}"));
                assert!(outcome.is_sound(), "{schedule} {launch:?}: {outcome:?}");
                assert_eq!(outcome.last, 1, "{schedule} {launch:?}");
            }
        }
    }
}

/// Copy warps and bulk copies, of shards in several chunks and pieces.
#[test]
fn shards_that_the_kernel_pushes_are_sound_in_every_interleaving() {
    let (_, text) =
        KERNELS.into_iter().find(|(name, _)| *name == "ag_gemm_gelu").expect("it is shipped");
    let kernel: Kernel = text.parse().expect("a kernel");
    let [put, bulk] = [Transport::Put, Transport::Tma]
        .map(|transport| Schedule::host().tile(2, 2, 1).transport(transport));
    for schedule in [put.clone(), put.chunk_rows(1), bulk.clone(), bulk.chunk_rows(1)] {
        let program = lower(&kernel, &schedule).expect("a Program");
        for (world, m, ctas) in [(1, 2, 1), (2, 1, 1), (2, 4, 1), (2, 5, 1), (3, 4, 1), (2, 2, 2)] {
            let launch = Launch { shape: Shape { m, n: 2, k: 1 }, world, ctas };
            let outcome = run(&program, launch, EPOCHS, &Limits::default());
            let outcome = outcome.unwrap_or_else(|e| panic!("{schedule} {launch:?}: {e}"));
            assert!(outcome.is_sound(), "{schedule} {launch:?}: {outcome:?}");
            assert_eq!(outcome.last, 1, "{schedule} {launch:?}");
        }
    }
}

/// No order is left out, and still all lead to one end. At most 141 439 states each.
#[test]
fn small_launches_of_shipped_kernels_end_alike_without_reduction() {
    let whole = Limits { reduction: Reduction::None, ..Limits::default() };
    for (name, text) in KERNELS {
        let verified = shipped(text);
        for (world, ctas) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)] {
            // Slices for each rank and copies by other actors are too many for three of them.
            if world == 3 && ["a2a", "_tn", "gathered"].iter().any(|of| name.contains(of)) {
                continue;
            }
            let launch = Launch { shape: Shape { m: 2 * world, n: 1, k: 1 }, world, ctas };
            let outcome = run(verified.program(), launch, EPOCHS, &whole);
            let outcome = outcome.unwrap_or_else(|e| panic!("{name} {launch:?}: {e}"));
            assert!(outcome.is_sound(), "{name} {launch:?}: {outcome:?}");
            assert_eq!(outcome.last, 1, "{name} {launch:?}");
        }
    }
}

#[test]
fn a_program_is_equivalent_to_itself() {
    for (name, text) in KERNELS {
        let verified = shipped(text);
        for launch in launches() {
            let states = equivalent(&verified, &verified, launch, &Limits::default());
            assert!(states.is_ok_and(|states| states > 0), "{name} {launch:?}");
        }
    }
}

#[test]
fn another_epilogue_is_not_equivalent() {
    let text = KERNELS[1].1;
    let (original, other) = (shipped(text), shipped(&text.replace("gelu", "relu")));
    let launch = Launch { shape: Shape { m: 9, n: 9, k: 8 }, world: 2, ctas: 1 };
    let difference = equivalent(&original, &other, launch, &Limits::default());
    assert!(matches!(difference, Err(Difference::Contents { .. })), "{difference:?}");
}

#[test]
fn a_limit_is_an_error_and_no_verdict() {
    let verified = shipped(KERNELS[3].1);
    let launch = Launch { shape: Shape { m: 9, n: 9, k: 8 }, world: 3, ctas: 2 };
    let few = Limits { states: 100, ..Limits::default() };
    let outcome = run(verified.program(), launch, EPOCHS, &few);
    assert_eq!(outcome, Err(ExploreError::States { limit: 100 }));
    let small = Limits { bytes: 10_000, ..Limits::default() };
    let outcome = run(verified.program(), launch, EPOCHS, &small);
    assert_eq!(outcome, Err(ExploreError::Bytes { limit: 10_000 }));
}

/// What happens on two ranks of one CTA, in all orders and in those the reduction leaves.
fn two_ranks(body: &str) -> Outcome {
    let text = format!(
        "program @small for host {{
  tile (2, 1, 1) stages 2 consumers cooperative
  buffer %a : f32[2, 1] in
  buffer %w : f32[1, 1] in
  buffer %x : f32[2, world][2, 1] symmetric
  buffer %y : f32[2, 1] symmetric
  buffer %e : f32[2, 1] exposed
  signal %s[2] device
  signal %t[2] device
  table %tiles[1] order next_rank_first (%tr, %tc) -> (0, 0)
  %e0 = acc 0
  %e1 = acc 0
  agent grid on ctas {{
    row (%m, %n, %f0, %f1) = %tiles[0]
    mainloop %a[0..2, 0..1] * %w[0..1, 0..1]^T
{body}
  }}
}}"
    );
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let launch = Launch { shape: Shape { m: 2, n: 1, k: 1 }, world: 2, ctas: 1 };
    let of = |reduction| {
        let limits = Limits { reduction, ..Limits::default() };
        run(&program, launch, EPOCHS, &limits).expect("a verdict")
    };
    let (reduced, whole) = (of(Reduction::Persistent), of(Reduction::None));
    assert_eq!(reduced.rules(), whole.rules());
    assert!(reduced.states <= whole.states);
    reduced
}

/// A put with its signal, a wait, a fence and a read, with a buffer for each parity.
const PASS: &str = "
    let %peer = 1 - rank
    wait %t[1] >= epoch - 2 scope sys
    store peer(%peer).%x{epoch % 2, 0}[0..2, 0..1] <- %e0
    signal peer(%peer).%t[0] = epoch scope sys after performed
    wait %t[0] >= epoch scope sys
    fence proxy.async
    mainloop %x{epoch % 2, 0}[0..2, 0..1] * %w[0..1, 0..1]^T
    signal peer(%peer).%t[1] = epoch scope sys after read";

#[track_caller]
fn breaks(body: &str, rules: &[Rule]) {
    assert_eq!(two_ranks(body).rules(), rules.iter().copied().collect(), "{body}");
}

/// `PASS` with one text in it replaced.
fn with(old: &str, new: &str) -> String {
    assert!(PASS.contains(old), "{old}");
    PASS.replacen(old, new, 1)
}

#[test]
fn a_sound_exchange_breaks_nothing() {
    breaks(PASS, &[]);
}

#[test]
fn a_credit_is_not_needed_where_ranks_wait_for_each_other() {
    // Each rank starts launch e only when the other is through with e - 2.
    breaks(&with("    wait %t[1] >= epoch - 2 scope sys\n", ""), &[]);
}

#[test]
fn a_missing_wait_is_seen() {
    let body = with("    wait %t[0] >= epoch scope sys\n", "");
    breaks(&body, &[Rule::ReadBeforeArrival, Rule::OverwriteBeforeRead]);
}

#[test]
fn a_signal_ahead_of_its_put_is_seen() {
    let body = with("after performed", "after read");
    breaks(&body, &[Rule::ReadBeforeArrival, Rule::OverwriteBeforeRead]);
}

#[test]
fn a_missing_fence_is_seen() {
    let body = with("    fence proxy.async\n", "");
    breaks(&body, &[Rule::ReadBeforeArrival, Rule::OverwriteBeforeRead]);
}

#[test]
fn one_buffer_without_a_credit_is_seen() {
    let one = PASS.replace("epoch % 2", "0");
    breaks(&one, &[Rule::OverwriteBeforeRead]);
    breaks(&one.replace("epoch - 2", "epoch - 1"), &[]);
}

#[test]
fn a_narrow_scope_is_seen() {
    breaks(
        &with("epoch scope sys after performed", "epoch scope gpu after performed"),
        &[Rule::ScopeTooNarrow],
    );
}

#[test]
fn ranks_that_wait_for_each_other_first_are_seen() {
    let body = "
    wait %t[0] >= epoch scope sys
    signal peer(1 - rank).%t[0] = epoch scope sys after performed";
    breaks(body, &[Rule::Deadlock]);
}

#[test]
fn a_wait_for_too_much_is_seen() {
    breaks(&with("wait %t[0] >= epoch", "wait %t[0] >= epoch + 1"), &[Rule::WaitWithoutSignal]);
}

#[test]
fn a_count_that_either_of_two_raises_reaches_is_seen() {
    let body = "
    signal peer(0).%s[0] += 1 scope sys after performed
    if rank == 0 {
      wait %s[0] >= 2 * epoch - 1 scope sys
    }";
    breaks(body, &[Rule::CountNotExact]);
}

#[test]
fn a_count_that_is_overshot_is_seen() {
    let body = "
    signal peer(1 - rank).%s[0] += 2 scope sys after performed
    wait %s[0] >= 2 * epoch - 1 scope sys";
    breaks(body, &[Rule::CountNotExact]);
}

#[test]
fn two_puts_of_one_actor_may_change_places() {
    let put = "    store peer(1 - rank).%y[0..2, 0..1] <- %e0\n";
    let signal = "    signal peer(1 - rank).%t[0] = epoch scope sys after performed\n";
    breaks(&format!("{put}{put}{signal}"), &[Rule::UnorderedWrites]);
    breaks(&format!("{put}{signal}{put}"), &[]);
}

#[test]
fn a_sum_of_another_value_is_seen() {
    let body = PASS.replace(
        "mainloop %x{epoch % 2, 0}[0..2, 0..1] * %w[0..1, 0..1]^T",
        "sum %i own %e0 from %x{epoch % 2, 0}[0..2, 0..1]",
    );
    breaks(&body, &[]);
    breaks(&body.replace("<- %e0", "<- %e1"), &[Rule::SumNotExact]);
}

#[test]
fn a_tensor_that_a_peer_reads_beyond_the_launch_is_seen() {
    let body = "
    signal peer(1 - rank).%t[0] = epoch scope sys after performed
    wait %t[0] >= epoch scope sys
    fence proxy.async
    mainloop peer(1 - rank).%e[0..2, 0..1] * %w[0..1, 0..1]^T
    signal peer(1 - rank).%t[1] = epoch scope sys after read";
    let rules = two_ranks(body).rules();
    assert!(rules.contains(&Rule::ExitBeforeRead), "{rules:?}");
    breaks(&format!("{body}\n    wait %t[1] >= epoch scope sys"), &[]);
}
