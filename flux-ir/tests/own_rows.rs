//! What is said of kernels and schedules that gather or exchange where it does not fit.

use flux_ir::eval::Launch;
use flux_ir::kernel::Kernel;
use flux_ir::lower::lower;
use flux_ir::program::Program;
use flux_ir::{AllGather, Balance, Order, ReduceScatter, Schedule, Shape, Transport, check};

/// The errors of lowering and checking a kernel with one loop over `%c`.
fn said(params: &str, body: &str, schedule: &Schedule) -> String {
    let text = format!("kernel @k({params}) {{ for tile in %c {{ {body} }} }}");
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    match lower(&kernel, schedule).and_then(check::verify) {
        Ok(_) => "nothing".into(),
        Err(errors) => errors.to_string(),
    }
}

fn expect(params: &str, body: &str, schedule: &Schedule, expected: &[&str]) {
    let said = said(params, body, schedule);
    for part in expected {
        assert!(said.contains(part), "expected `{part}` in\n{said}");
    }
}

const GEMM: &str = "%0 = gemm %a, %b.t store %c, %0";
const WAITED: &str = "%0 = wait %a %1 = gemm %0, %b.t store %c, %1";
const LOADED: &str = "%0 = wait %x %1 = load %0 store %c, %1";

fn host() -> Schedule {
    Schedule::host().tile(8, 8, 8)
}

#[test]
fn what_arrives_arrives_in_the_rows_of_the_tiles() {
    expect(
        "%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>",
        WAITED,
        &host(),
        &[
            "`a` is gathered in all rows, the tiles of `c` are of this rank's own",
            "declare `a: &Sharded<_>`: own rows are here already",
        ],
    );
    expect(
        "%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut global<bf16>",
        WAITED,
        &host(),
        &[
            "`a` arrives in this rank's own rows, the tiles of `c` are of all",
            "declare the output `c: &mut Sharded<_>`",
        ],
    );
}

#[test]
fn nothing_is_read_before_its_wait() {
    for (what, of, output) in [("rows", "gathered", "global"), ("columns", "exchanged", "sharded")]
    {
        let params = format!("%x: &{of}<bf16>, %c: &mut {output}<bf16>");
        expect(
            &params,
            "%0 = load %x store %c, %0",
            &host(),
            &[
                &format!("{what} of `x` may still be in flight from a peer"),
                "write `let rows = x.wait(tile.rows());` and `rows.load(tile)`",
            ],
        );
    }
    expect(
        "%x: &global<bf16>, %c: &mut global<bf16>",
        LOADED,
        &host(),
        &["`x` is not gathered, so nothing has to arrive"],
    );
    expect(
        "%x: &global<bf16>, %c: &mut global<bf16>",
        "%0 = load %x %1 = load %0 store %c, %1",
        &host(),
        &["expected rows made ready by a wait, found %0"],
    );
}

#[test]
fn outputs_take_tiles_of_their_own_rows() {
    let both = "%x: &global<bf16>, %c: &mut global<bf16>, %d: &mut exchanged<bf16>";
    let stores = "%0 = load %x store %c, %0 store %d, %0";
    expect(
        both,
        stores,
        &host(),
        &[
            "`d` takes tiles of this rank's own rows, those of `c` are of all",
            "loop over its tiles: `for tile in d.tiles()`",
        ],
    );
    let both = "%x: &sharded<bf16>, %c: &mut sharded<bf16>, %d: &mut global<bf16>";
    expect(
        both,
        stores,
        &host(),
        &["`d` takes tiles of all rows, those of `c` are of this rank's own"],
    );
    expect(
        "%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut global<bf16>",
        GEMM,
        &host(),
        &["`a` cannot be the left operand of a gemm"],
    );
}

#[test]
fn schedules_that_do_not_fit_say_why() {
    let gemm_a2a = "%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>";
    let a2a_gemm = "%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut sharded<bf16>";
    let both = "%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>";
    let gathered = "%x: &gathered<bf16>, %c: &mut global<bf16>";
    let of_all = "%x: &global<bf16>, %c: &mut global<bf16>";
    let put = || host().transport(Transport::Put);
    for (params, body, schedule, expected) in [
        (
            gemm_a2a,
            GEMM,
            host().transport(Transport::CopyEngine),
            "expected no `transport = copy_engine` where `c` is exchanged",
        ),
        (
            a2a_gemm,
            WAITED,
            host().tail(8, 2),
            "expected neither `head` nor `tail`, as `a` is exchanged",
        ),
        (both, WAITED, put(), "expected no `transport = put` where `a` is exchanged"),
        (
            gathered,
            LOADED,
            host().tail(8, 2),
            "expected no `tail` where `x` has other columns than k, found one: slices are of those",
        ),
        (
            "%x: &gathered<bf16>, %a: &gathered<bf16>, %b: &global<bf16>, %c: &mut global<bf16>",
            "%0 = wait %x %1 = wait %a %2 = gemm %1, %b.t %3 = load %0 %4 = add %2, %3 store %c, %4",
            put(),
            "expected tensors of one width where the kernel pushes them, found `x` and `a`",
        ),
        (
            of_all,
            "%0 = load %x store %c, %0",
            Schedule::sm_90a().balance(Balance::StreamK),
            "expected neither `split_k` nor `balance` in a kernel without a product",
        ),
    ] {
        expect(params, body, &schedule, &[expected]);
    }
    for (params, body, schedule) in [
        (gemm_a2a, GEMM, put()),
        (a2a_gemm, WAITED, put()),
        (both, WAITED, host().transport(Transport::CopyFirst)),
        (gathered, LOADED, put()),
        (of_all, "%0 = load %x store %c, %0", host()),
    ] {
        assert_eq!(said(params, body, &schedule), "nothing", "{params}");
    }
}

/// `C = Aᵀ · all_gather(X)`.
#[test]
fn what_is_summed_over_has_to_arrive_first() {
    let params = "%a: &global<bf16>, %x: &gathered<bf16>, %c: &mut global<bf16>";
    let waited = "%0 = wait %x %1 = gemm %a.t, %x store %c, %1";
    for schedule in [host(), host().chunk_rows(3), host().transport(Transport::Put)] {
        assert_eq!(said(params, waited, &schedule), "nothing");
    }
    let in_flight = "rows of `x` may still be in flight from a peer";
    for body in ["%0 = gemm %a.t, %x store %c, %0", "%0 = gemm %a.t, %x %1 = wait %x store %c, %0"]
    {
        expect(params, body, &host(), &[in_flight]);
    }
    let left = "%x: &gathered<bf16>, %a: &global<bf16>, %c: &mut global<bf16>";
    assert_eq!(said(left, "%0 = wait %x %1 = gemm %x.t, %a store %c, %1", &host()), "nothing");
    expect(left, "%0 = gemm %x.t, %a store %c, %0", &host(), &[in_flight]);
    expect(left, "%0 = gemm %x, %a store %c, %0", &host(), &[in_flight]);
    expect(
        params,
        "%0 = wait %x %1 = gemm %a.t, %x.t store %c, %1",
        &host(),
        &["`x` cannot be the right operand of a gemm"],
    );
    expect(
        "%a: &global<bf16>, %x: &gathered<bf16>, %c: &mut sharded<bf16>",
        waited,
        &host(),
        &["`x` is summed over for all rows, the tiles of `c` are of this rank's own"],
    );
    expect(
        params,
        waited,
        &host().tail(8, 2),
        &["expected no `tail` where `x` has other columns than k, found one: slices are of those"],
    );
    let both = "%y: &gathered<bf16>, %a: &global<bf16>, %x: &gathered<bf16>, %c: &mut global<bf16>";
    expect(
        both,
        "%0 = wait %y %1 = wait %x %2 = gemm %0, %x store %c, %2",
        &host(),
        &["gathered rows are m of `y` and k of `x`"],
    );
}

fn verified(params: &str, body: &str, schedule: &Schedule) -> check::Verified {
    let text = format!("kernel @k({params}) {{ for tile in %c {{ {body} }} }}");
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    lower(&kernel, schedule).and_then(check::verify).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

const GEMM_A2A: [&str; 2] =
    ["%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>", GEMM];
const A2A_GEMM: [&str; 2] =
    ["%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut sharded<bf16>", WAITED];

#[test]
fn each_rank_may_own_rows_of_its_own_number() {
    let schedules = [host(), host().chunk_rows(3), host().transport(Transport::Put).chunk_rows(5)];
    for ([params, body], schedule) in
        [GEMM_A2A, A2A_GEMM].into_iter().flat_map(|of| schedules.iter().map(move |s| (of, s)))
    {
        let even = verified(params, body, schedule);
        let lengths: [&[u32]; 7] =
            [&[5], &[3, 14], &[0, 9], &[17, 0, 1], &[1, 30, 0, 6], &[0, 0, 0], &[8; 5]];
        for lengths in lengths {
            let program = even.with_lengths(lengths).expect("own rows");
            let (m, world) = (lengths.iter().sum(), lengths.len() as u32);
            let launch = Launch { shape: Shape { m, n: 19, k: 11 }, world, ctas: 2 };
            assert_eq!(program.check_launch(launch), Ok(()), "{lengths:?}, {schedule}");
            // The text says which.
            let text = program.program().to_string();
            assert!(text.contains("\n  lengths "), "{text}");
            assert_eq!(text.parse().as_ref(), Ok(program.program()));
            let again = check::verify(program.program().clone()).expect("sound as before");
            assert_eq!(again.check_launch(launch), Ok(()));
        }
    }
}

#[test]
fn rows_of_ranks_that_do_not_fit_a_launch_say_what_would() {
    let program = verified(GEMM_A2A[0], GEMM_A2A[1], &host());
    let program = program.with_lengths(&[3, 4]).expect("own rows");
    for (m, world) in [(8, 2), (7, 1), (7, 3), (6, 2)] {
        let launch = Launch { shape: Shape { m, n: 4, k: 4 }, world, ctas: 1 };
        let found = program.check_launch(launch).expect_err("they do not fit").to_string();
        let says =
            ["lengths of 2 shards, 7 rows in all", "give each rank a length; they add up to m"];
        assert!(says.iter().all(|part| found.contains(part)), "{m} over {world}: {found}");
    }
    // Tiles of all rows are cut evenly.
    let params = "%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut global<bf16>";
    let found = verified(params, WAITED, &host()).with_lengths(&[3, 4]).expect_err("even");
    let found = found.to_string();
    assert!(found.contains("shards of `k` are all of one length"), "{found}");
    assert!(found.contains("an output `&mut Sharded<_>` or `&mut Exchanged<_>`"), "{found}");
}

/// Whoever counts rows by the length of an even shard is found at uneven ones.
#[test]
fn a_program_that_takes_even_shards_for_granted_is_rejected_at_uneven_ones() {
    for (of, from, to) in [
        // The place of a peer's rows.
        (A2A_GEMM, "%from = first(%dst)", "%from = %dst * %S"),
        // How many there are.
        (A2A_GEMM, "%rows = max(first(%dst + 1) - first(%dst), 0)", "%rows = min(%S, M)"),
        (GEMM_A2A, "%rows = max(first(%src + 1) - first(%src), 0)", "%rows = min(%S, M)"),
    ] {
        let text = verified(of[0], of[1], &host()).program().to_string();
        assert!(text.contains(from), "{text}");
        let program: Program = text.replace(from, to).parse().expect("it reads");
        // It may be sound where shards are even.
        let Ok(program) = check::verify(program) else { continue };
        let uneven = program.with_lengths(&[9, 2, 5]).expect("own rows");
        let launch = Launch { shape: Shape { m: 16, n: 19, k: 11 }, world: 3, ctas: 1 };
        assert!(uneven.check_launch(launch).is_err(), "`{to}` for `{from}`");
    }
}

/// Contributions that owners pull are brought rank by rank, a shard of each: who waits for some of its own
/// rows before it has computed all of another's is waited for.
#[test]
fn sums_that_owners_pull_want_whole_shards_and_copy_warps_of_their_own() {
    let params = "%a: &global<bf16>, %b: &global<bf16>, %c: &mut scattered<bf16>";
    let body = "%0 = gemm %a, %b.t %1 = reduce %c, %0 store %c, %1";
    let pull = || host().reduce_scatter(ReduceScatter::Pull);
    assert_eq!(said(params, body, &pull()), "nothing");
    for order in [Order::Xor, Order::RowMajor] {
        assert_eq!(said(params, body, &pull().order(order)), "nothing");
    }
    let put = host().order(Order::ColumnMajor);
    assert_eq!(said(params, body, &put), "nothing", "where contributions are put");
    expect(params, body, &pull().order(Order::ColumnMajor), &["error[deadlock]", "of `pull`"]);
    let gathered = "%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut scattered<bf16>";
    let waited = "%0 = wait %a %1 = gemm %0, %b.t %2 = reduce %c, %1 store %c, %2";
    assert_eq!(said(gathered, waited, &pull()), "nothing");
    expect(
        gathered,
        waited,
        &pull().transport(Transport::Put),
        &[
            "expected copy warps for one of the gathered `a` and the pulled `c`, found both",
            "leave `transport` out: copy engines gather",
        ],
    );
    for (schedule, says) in [
        (pull().tail(8, 2), "expected no `tail` where `reduce_scatter = pull`, found one"),
        (
            pull().transport(Transport::CopyEngine),
            "expected tiles to be put where the sum `c` is pull, found copy_engine",
        ),
    ] {
        expect(params, body, &schedule, &[says]);
    }
}

#[test]
fn shards_that_roles_bring_are_multiplied_by_rows_of_tiles() {
    let params = "%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut global<bf16>";
    for way in AllGather::ALL {
        for schedule in [host(), host().chunk_rows(3), host().transport(Transport::Put)] {
            assert_eq!(said(params, WAITED, &schedule.all_gather(way)), "nothing");
        }
    }
    let ring = || host().all_gather(AllGather::Ring);
    expect(params, WAITED, &ring().tail(8, 2), &["expected no `tail` where `all_gather = ring`"]);
    expect(
        params,
        WAITED,
        &ring().transport(Transport::CopyFirst),
        &["expected roles to run beside the kernel where `all_gather = ring`, found copy_first"],
    );
    expect(
        "%x: &gathered<bf16>, %c: &mut global<bf16>",
        LOADED,
        &ring(),
        &["expected `all_gather = push` where an epilogue reads what arrives, found ring"],
    );
    expect(
        "%a: &global<bf16>, %x: &gathered<bf16>, %c: &mut global<bf16>",
        "%0 = wait %x %1 = gemm %a.t, %x store %c, %1",
        &ring(),
        &["expected `all_gather = push` where rows of `x` are summed over, found ring"],
    );
    expect(
        "%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>",
        GEMM,
        &ring(),
        &["expected no `all_gather` where nothing is gathered, found `ring`"],
    );
    // A kernel is what one would write by hand.
    let in_flight = "rows of `a` may still be in flight from a peer";
    expect(params, GEMM, &ring(), &[in_flight]);
}
