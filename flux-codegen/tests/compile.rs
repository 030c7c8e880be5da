//! Kernels become PTX that the assembler takes without spills.

mod support;

use flux_ir::{AllReduce, Balance, Cache, Consumers, Element, ReduceScatter, Schedule, Transport};
use support::kernels::{self, GATHER, GATHER_ALONE, PLAIN, REDUCE, SCATTER, SCATTER_ALONE, SWIGLU};

/// The schedules that kernels are given by default.
fn defaults(kernel: &str) -> Vec<Schedule> {
    let base = Schedule::sm_90a();
    let ping_pong = base.clone().consumers(Consumers::PingPong);
    if kernel == SWIGLU {
        return vec![base.tile(128, 128, 64)];
    }
    if kernel == PLAIN {
        return family();
    }
    if kernel == GATHER {
        let single = base.clone().consumers(Consumers::Single).cache(Cache::StreamB);
        let [put, tma] = [Transport::Put, Transport::Tma]
            .map(|transport| move |schedule: &Schedule| schedule.clone().transport(transport));
        return vec![
            base.clone(),
            base.clone().tail(512, 4),
            base.clone().tile(128, 112, 64).stages(6).tail(256, 4),
            ping_pong.clone().tile(128, 192, 64),
            ping_pong.clone().tile(128, 176, 64).tail(384, 4),
            put(&base.clone().tile(128, 176, 64)),
            put(&ping_pong.clone().tile(128, 176, 64)),
            put(&single.clone().tile(16, 64, 64).stages(16)),
            put(&single.clone().tile(64, 96, 64).stages(9)),
            tma(&base),
            tma(&base.clone().tile(128, 176, 64)),
            tma(&ping_pong.clone().tile(128, 128, 64)),
            // What copy warps leave no registers for.
            tma(&ping_pong.tile(128, 192, 64)),
            tma(&single.clone().tile(16, 64, 64).stages(16)),
            tma(&single.tile(64, 96, 64).stages(9)),
        ];
    }
    if kernel == GATHER_ALONE {
        let [put, bulk] = [Transport::Put, Transport::Tma]
            .map(|transport| base.clone().tile(128, 64, 64).transport(transport));
        return vec![base.clone(), base.stages(2), ping_pong, put, bulk];
    }
    if kernel == kernels::EXCHANGE || kernel == kernels::EXCHANGE_ALONE {
        let bulk = (kernel == kernels::EXCHANGE).then(|| base.clone().transport(Transport::Tma));
        let all = [base.clone(), base.tile(128, 128, 64), ping_pong.tile(128, 128, 64)];
        return all.into_iter().chain(bulk).collect();
    }
    if kernel == kernels::EXCHANGED {
        let [put, bulk] =
            [Transport::Put, Transport::Tma].map(|transport| base.clone().transport(transport));
        let narrow = base.clone().tile(128, 128, 64);
        return vec![base, narrow, put, bulk, ping_pong.tile(128, 176, 64)];
    }
    if kernel == kernels::SUMMED || kernel == kernels::BOTH_SUMMED {
        let put = [Transport::Put, Transport::Tma].into_iter();
        let put = put.filter(|_| kernel == kernels::SUMMED);
        let put: Vec<_> = put.map(|transport| base.clone().transport(transport)).collect();
        let narrow = base.clone().tile(128, 128, 64).stages(6);
        let turns = ping_pong.tile(128, 128, 64);
        return [base, narrow, turns].into_iter().chain(put).collect();
    }
    if kernel == SCATTER || kernel == SCATTER_ALONE {
        let sent = |schedule: &Schedule| schedule.clone().transport(Transport::CopyEngine);
        let narrow = base.clone().tile(128, 128, 64);
        let chained = |algorithm, element| {
            narrow.clone().reduce_scatter(algorithm).partials(element).stages(5)
        };
        return vec![
            chained(ReduceScatter::Ring, Element::Bf16),
            chained(ReduceScatter::Ring, Element::F32),
            chained(ReduceScatter::Add, Element::Bf16),
            chained(ReduceScatter::Add, Element::F16),
            chained(ReduceScatter::Add, Element::F32),
            chained(ReduceScatter::Pull, Element::Bf16),
            chained(ReduceScatter::Pull, Element::F32),
            chained(ReduceScatter::Pull, Element::Bf16).transport(Transport::Tma),
            chained(ReduceScatter::Pull, Element::F32).transport(Transport::Tma),
            ping_pong
                .clone()
                .tile(128, 176, 64)
                .reduce_scatter(ReduceScatter::Pull)
                .transport(Transport::Tma),
            base.clone(),
            base.clone().tile(128, 128, 64),
            ping_pong.clone().tile(128, 128, 64),
            sent(&base),
            sent(&ping_pong.clone().tile(128, 176, 64).stages(5)),
            sent(&ping_pong.clone().tile(128, 112, 64).stages(6)),
            sent(&ping_pong.tile(64, 192, 64).stages(6)),
        ];
    }
    if kernel == kernels::SUM_AHEAD {
        let narrow = base.clone().tile(128, 64, 64).stages(8).transport(Transport::Put);
        let bulk = ping_pong.clone().tile(128, 192, 64).transport(Transport::Tma);
        return vec![base.clone().tile(128, 128, 64), ping_pong.tile(128, 128, 64), narrow, bulk];
    }
    if kernel == REDUCE {
        let [one, two, flagged] = AllReduce::ALL.map(|how| base.clone().all_reduce(how));
        let lone = flagged.clone().consumers(Consumers::Single).cache(Cache::StreamB);
        let single = one.clone().consumers(Consumers::Single).cache(Cache::StreamB);
        return vec![
            two.clone().tile(128, 176, 64).stages(5),
            two.clone().tile(128, 192, 64).transport(Transport::Tma),
            two.clone().tile(128, 176, 64).consumers(Consumers::PingPong).transport(Transport::Tma),
            two.clone().tile(128, 128, 64).stages(6),
            two.clone().tile(128, 112, 64).stages(6).consumers(Consumers::PingPong),
            two.tile(64, 128, 64).stages(6).consumers(Consumers::PingPong),
            single.clone().tile(16, 64, 64).stages(16),
            single.clone().tile(64, 64, 64).stages(12),
            single.clone().tile(128, 64, 64).stages(8),
            single.tile(128, 64, 64).stages(8).all_reduce(AllReduce::TwoShot),
            one.tile(128, 128, 64).stages(6),
            lone.clone().tile(16, 64, 64).stages(16),
            lone.clone().tile(64, 64, 64).stages(12),
            lone.clone().tile(128, 64, 64).stages(8),
            lone.partials(Element::F32).tile(128, 64, 64).stages(8),
            flagged.clone().tile(128, 88, 64).stages(6),
            flagged.clone().tile(64, 128, 64).stages(6).consumers(Consumers::PingPong),
            flagged
                .clone()
                .tile(64, 128, 64)
                .stages(6)
                .consumers(Consumers::PingPong)
                .partials(Element::F32),
            flagged.tile(128, 176, 64).stages(5),
        ];
    }
    vec![
        base.clone().tile(128, 256, 64),
        base.tile(128, 128, 64),
        ping_pong.clone().tile(128, 192, 64),
        ping_pong.tile(128, 128, 64),
    ]
}

/// Schedules of every form that the library's GEMM comes in.
fn family() -> Vec<Schedule> {
    let base = Schedule::sm_90a();
    let ping_pong = base.clone().consumers(Consumers::PingPong);
    let stream = ping_pong.clone().balance(Balance::StreamK);
    let single = base.clone().consumers(Consumers::Single).cache(Cache::StreamB);
    let split = single.clone().split_k(2);
    let pairs = base.clone().balance(Balance::Pairs);
    let members = [
        (&base, [128, 256, 4]),
        (&base, [128, 224, 4]),
        (&base, [128, 192, 5]),
        (&ping_pong, [128, 192, 4]),
        (&ping_pong, [128, 176, 5]),
        (&ping_pong, [128, 144, 6]),
        (&ping_pong, [128, 128, 6]),
        (&stream, [128, 192, 4]),
        (&stream, [128, 176, 5]),
        (&pairs, [128, 256, 4]),
        (&single, [8, 48, 16]),
        (&single, [16, 192, 7]),
        (&single, [32, 96, 13]),
        (&single, [64, 56, 13]),
        (&single, [128, 192, 5]),
        (&split, [64, 96, 9]),
        (&split, [128, 112, 6]),
    ];
    let member =
        |(base, [m, n, stages]): (&Schedule, [u32; 3])| base.clone().tile(m, n, 64).stages(stages);
    members.map(member).into()
}

fn assembles_without_spills(kernel: &str) {
    let Some(ptxas) = support::ptxas() else { return };
    for (index, schedule) in defaults(kernel).iter().enumerate() {
        let image = support::compile(kernel, schedule);
        let name = format!("{}-{index}", image.entry);
        let said = support::assemble(&ptxas, &name, &image.ptx)
            .unwrap_or_else(|said| panic!("{name} ({schedule}): {said}"));
        // Stream-K leaves the numbers of thread and warp in memory; they are read once a tile.
        let allowed = if schedule.balance == Balance::StreamK { 8 } else { 0 };
        let spilled =
            said.split(" bytes spill stores").next().and_then(|text| text.split(' ').next_back());
        let spilled: Option<u32> = spilled.and_then(|number| number.parse().ok());
        assert!(spilled.is_some_and(|bytes| bytes <= allowed), "{name} ({schedule}): {said}");
        // C75xx: wgmma is serialized, or setmaxnreg ignored.
        assert!(!said.contains("C75"), "{name} ({schedule}): {said}");
    }
}

/// One test a kernel, so that they run beside each other.
macro_rules! default_schedules_assemble_without_spills {
    ($($test:ident: $kernel:ident;)*) => {$(
        #[test]
        fn $test() {
            assembles_without_spills(kernels::$kernel);
        }
    )*};
}

default_schedules_assemble_without_spills! {
    a_plain_gemm_has_no_spills: PLAIN;
    an_f16_gemm_has_no_spills: PLAIN_F16;
    a_gemm_of_a_matrix_as_it_is_has_no_spills: NOT_TRANSPOSED;
    a_gemm_of_a_transposed_left_operand_has_no_spills: LEFT_TRANSPOSED;
    a_bias_and_gelu_have_no_spills: BIAS_GELU;
    two_products_have_no_spills: SWIGLU;
    two_outputs_have_no_spills: TWO_OUTPUTS;
    every_other_function_has_no_spills: FUNCTIONS;
    an_all_gather_has_no_spills: GATHER;
    a_reduce_scatter_has_no_spills: SCATTER;
    an_all_gather_alone_has_no_spills: GATHER_ALONE;
    a_reduce_scatter_alone_has_no_spills: SCATTER_ALONE;
    what_an_epilogue_gathers_has_no_spills: GATHER_BESIDE;
    an_all_reduce_has_no_spills: REDUCE;
    an_exchange_behind_a_product_has_no_spills: EXCHANGE;
    an_exchange_ahead_of_a_product_has_no_spills: EXCHANGED;
    a_sum_over_gathered_rows_has_no_spills: SUMMED;
    a_sum_over_rows_that_are_gathered_twice_has_no_spills: BOTH_SUMMED;
    an_exchange_alone_has_no_spills: EXCHANGE_ALONE;
    a_role_that_adds_has_no_spills: SUM_AHEAD;
}

#[test]
fn pauses_are_made_where_they_are_asked_for() {
    let base = Schedule::sm_90a().tile(128, 64, 64).stages(6).transport(Transport::Put);
    let plain = support::compile(GATHER, &base);
    assert!(!plain.ptx.contains("nanosleep"));
    let shaken = support::compile(GATHER, &base.jitter(20));
    // The wait of the loading thread, and the wait, the copy and the signal of the copy warps.
    assert!(shaken.ptx.matches("nanosleep").count() >= 4, "{}", shaken.ptx);
    if let Some(ptxas) = support::ptxas() {
        support::assemble(&ptxas, "jitter", &shaken.ptx).unwrap_or_else(|said| panic!("{said}"));
    }
}

#[test]
fn what_is_kept_for_owners_is_stored_behind_a_fence() {
    let kept = |tile: u32| {
        let schedule = Schedule::sm_90a().tile(128, tile, 64).stages(4);
        support::compile(SCATTER, &schedule.reduce_scatter(ReduceScatter::Pull)).ptx
    };
    let fence = "fence.proxy.async;";
    let ptx = kept(128);
    // Of the warps that store: the loading thread waits for nothing of peers.
    assert_eq!(ptx.matches(fence).count(), 1, "{ptx}");
    let [fenced, stored] = [fence, ".global.shared::cta"].map(|text| ptx.find(text));
    assert!(fenced < stored && ptx[..fenced.unwrap_or(0)].contains("ld.acquire.sys"), "{ptx}");
    // Tiles of other widths leave by ordinary stores.
    assert_eq!(kept(176).matches(fence).count(), 0);
}

#[test]
fn unusual_tiles_assemble() {
    let Some(ptxas) = support::ptxas() else { return };
    let base = Schedule::sm_90a();
    let ping_pong = base.clone().consumers(Consumers::PingPong);
    let tiles = [
        base.clone().tile(256, 128, 64),
        base.tile(128, 8, 64).stages(2),
        ping_pong.clone().tile(64, 72, 64),
        ping_pong.clone().tile(64, 256, 64),
        ping_pong.tile(128, 208, 64),
    ];
    for kernel in [PLAIN, GATHER, SCATTER] {
        for (index, schedule) in tiles.iter().enumerate() {
            let image = support::compile(kernel, schedule);
            let name = format!("{}-tile-{index}", image.entry);
            support::assemble(&ptxas, &name, &image.ptx)
                .unwrap_or_else(|said| panic!("{name} ({schedule}): {said}"));
        }
    }
}

/// Reads of the clock, and stores of 64-bit words: what stamps are made of.
fn stamps(ptx: &str) -> [usize; 2] {
    ["%globaltimer", "st.global.u64"].map(|text| ptx.matches(text).count())
}

#[test]
fn only_an_instrumented_kernel_writes_times() {
    for schedule in [
        Schedule::sm_90a().tile(128, 192, 64).consumers(Consumers::PingPong),
        Schedule::sm_90a().tile(128, 96, 64).consumers(Consumers::PingPong).tail(128, 4),
    ] {
        let verified = support::lower(GATHER, &schedule);
        let plain = flux_codegen::compile(&verified).unwrap();
        let recorded = flux_codegen::compile_recorded(&verified).unwrap();
        let ([waits, none], [_, stores]) = (stamps(&plain.ptx), stamps(&recorded.ptx));
        assert_eq!(none, 0, "{schedule}: {waits} waits read the clock");
        assert!(stores >= 7, "{schedule}: {stores} stores of times");
        assert_eq!(plain.shared_bytes, recorded.shared_bytes);
        let Some(ptxas) = support::ptxas() else { continue };
        let name = format!("{}-recorded-{}", recorded.entry, schedule.tile.n);
        support::assemble(&ptxas, &name, &recorded.ptx).unwrap_or_else(|said| panic!("{said}"));
    }
}

#[test]
fn tiles_that_ctas_share_have_no_times() {
    let schedule = Schedule::sm_90a().tile(128, 192, 64).consumers(Consumers::PingPong);
    let verified = support::lower(PLAIN, &schedule.balance(Balance::StreamK));
    let error = flux_codegen::compile_recorded(&verified).unwrap_err().to_string();
    assert!(error.contains("no times of their own"), "{error}");
}

#[test]
fn one_program_gives_one_text() {
    for kernel in [kernels::BIAS_GELU, SCATTER] {
        let schedule = Schedule::sm_90a();
        assert_eq!(support::compile(kernel, &schedule), support::compile(kernel, &schedule));
    }
}

#[test]
fn an_image_names_its_kernel_and_fits_the_target() {
    let image = support::compile(PLAIN, &Schedule::sm_90a());
    assert_eq!(image.entry, "flux_plain");
    assert_eq!(image.threads, 384);
    assert!(image.shared_bytes <= 232_448, "{}", image.shared_bytes);
    assert!(image.ptx.contains(".entry flux_plain("), "{}", image.ptx);
    assert!(image.ptx.contains(".target sm_90a"), "{}", image.ptx);
}

#[test]
fn any_name_of_rust_is_a_name_of_ptx() {
    for (name, entry) in [("add", "flux_add"), ("\"größe\"", "flux_gr_uf6__udf_e")] {
        let image =
            support::compile(&PLAIN.replace("@plain", &format!("@{name}")), &Schedule::sm_90a());
        assert_eq!(image.entry, entry);
        assert!(image.ptx.contains(&format!(".entry {entry}(")), "{}", image.ptx);
        if let Some(ptxas) = support::ptxas() {
            support::assemble(&ptxas, entry, &image.ptx).unwrap_or_else(|said| panic!("{said}"));
        }
    }
}

#[test]
fn arithmetic_is_not_contracted() {
    // The assembler may fuse a product and a sum that do not say how they round.
    let image = support::compile(kernels::TWO_OUTPUTS, &Schedule::sm_90a());
    let loose = |line: &&str| {
        let text = line.trim();
        ["mul.f32", "add.f32", "sub.f32"].iter().any(|form| text.starts_with(form))
    };
    assert_eq!(image.ptx.lines().find(loose), None);
    assert!(image.ptx.contains("mul.rn.f32"), "{}", image.ptx);
    assert!(image.ptx.contains("div.rn.f32"), "{}", image.ptx);
}

/// What waits for data that carry their own flag names the signal that they stand for, and its slot.
#[test]
fn data_that_carry_their_own_flag_raise_no_signal() {
    let schedule = Schedule::sm_90a().tile(128, 64, 64).stages(8);
    let [signals, flags] = [AllReduce::OneShot, AllReduce::Flagged]
        .map(|algorithm| support::compile(REDUCE, &schedule.clone().all_reduce(algorithm)).ptx);
    let times = |ptx: &str, what: &str| ptx.matches(what).count();
    // Of what signals need the exit's words are left, and the one wait for credit.
    for what in ["red.release.sys", "ld.acquire.sys"] {
        assert!(times(&flags, what) < times(&signals, what), "{what}");
    }
    assert_eq!(times(&signals, "st.relaxed.sys.global.v4"), 0);
    // To peers, and "not yet" back.
    assert!(times(&flags, "st.relaxed.sys.global.v4") >= 2);
    assert!(times(&flags, "ld.relaxed.sys.global.v4") >= 1);
    assert!(times(&flags, "add.rn.bf16x2") >= 1);
}

#[test]
fn a_stalled_wait_names_the_line_of_the_source() {
    let kernel = GATHER.replace("@7:17", "@4711:1234");
    let image = support::compile(&kernel, &Schedule::sm_90a());
    for literal in [", 4711;", ", 1234;"] {
        assert!(image.ptx.contains(literal), "{literal} in {}", image.ptx);
    }
}
