//! Exact launches with all CTAs of a device, each of which copies as well: their checks stay within the
//! questions that a check may ask.

use super::{launch, lowered};
use flux_ir::{AllGather, Element, ReduceScatter, Schedule, Transport, check};

const CTAS: u32 = 132;

#[track_caller]
fn passes(name: &str, schedule: &Schedule, [m, n, k]: [u32; 3]) {
    let verified =
        check::verify(lowered(name, schedule)).unwrap_or_else(|e| panic!("{schedule}: {e}"));
    let started = std::time::Instant::now();
    let found = verified.check_launch(launch(m, n, k, 8, CTAS));
    println!("{name}, {schedule}, {m}x{n}x{k}: {:.2} s", started.elapsed().as_secs_f64());
    assert_eq!(found, Ok(()), "{schedule}");
}

/// Each slot is raised by every CTA of a rank, behind the slot of the hop before.
#[test]
fn shards_that_copy_warps_hand_on_are_checked_exactly() {
    let ring = Schedule::sm_90a().tile(128, 128, 64).transport(Transport::Put);
    for way in [AllGather::Pull, AllGather::Ring] {
        passes("ag_gemm_gelu", &ring.clone().all_gather(way), [1024, 4096, 8192]);
        passes("ag_gemm_gelu", &ring.clone().all_gather(way), [8192, 8192, 8192]);
    }
    passes("ag_gemm_gelu", &ring.all_gather(AllGather::Ring).chunk_rows(128), [8192, 8192, 8192]);
}

/// Each tile has slots of its own, and is brought by CTAs of another rank.
#[test]
fn sums_that_owners_pull_are_checked_exactly() {
    let pull = Schedule::sm_90a().tile(128, 256, 64).reduce_scatter(ReduceScatter::Pull);
    passes("gemm_rs", &pull, [8192, 8192, 8192]);
    let many = pull.tile(128, 128, 64).partials(Element::F32);
    passes("gemm_rs", &many, [8192, 16384, 8192]);
}

/// Sixteen times as many tiles: under a minute, on a machine that does nothing else.
#[test]
#[ignore = "takes a minute"]
fn sums_of_many_tiles_are_checked_exactly() {
    let pull = Schedule::sm_90a().tile(128, 256, 64).reduce_scatter(ReduceScatter::Pull);
    passes("gemm_rs", &pull.partials(Element::F32), [65536, 16384, 8192]);
}

/// What is gathered is given back as well.
#[test]
fn what_copy_warps_keep_is_checked_exactly() {
    passes("ag_gemm_gathered", &Schedule::sm_90a(), [8192, 8192, 8192]);
    passes("ag_gemm_gathered", &Schedule::sm_90a().transport(Transport::Put), [8192, 8192, 8192]);
}
