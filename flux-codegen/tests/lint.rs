//! Each rule of the lint is broken by a small text, and by no compiled kernel.

mod support;

use flux_codegen::{LintRule, lint};
use flux_ir::{ReduceScatter, Schedule, Transport};
use support::kernels::{
    ALL, EXCHANGE, EXCHANGED, GATHER, GATHER_ALONE, REDUCE, SCATTER, SUM_AHEAD, SWIGLU,
};

/// The rules that the body of an entry breaks, with their lines.
fn broken(body: &str) -> Vec<(LintRule, usize)> {
    let text = format!(".entry k() {{\n{body}\nret;\n}}\n");
    let errors = lint(&text).err().unwrap_or_default();
    errors.into_iter().map(|error| (error.rule, error.line)).collect()
}

const STORE: &str =
    "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r1, %r2}], [%r3];";
const LOAD: &str = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];";
const RELEASE: &str = "red.release.sys.global.add.u32 [%rd1], %r1;";
const ACQUIRE: &str = "ld.acquire.sys.global.u32 %r1, [%rd1];";

#[test]
fn a_release_needs_the_performed_store() {
    let rule = LintRule::PerformedBeforeRelease;
    assert_eq!(broken(&format!("{STORE}\n{RELEASE}")), [(rule, 3)]);
    assert_eq!(
        broken(&format!("{STORE}\ncp.async.bulk.wait_group.read 0;\n{RELEASE}")),
        [(rule, 4)]
    );
    assert_eq!(broken(&format!("{STORE}\ncp.async.bulk.wait_group 1;\n{RELEASE}")), [(rule, 4)]);
    assert_eq!(broken(&format!("{STORE}\ncp.async.bulk.wait_group 0;\n{RELEASE}")), []);
    assert_eq!(broken(RELEASE), []);
}

#[test]
fn facts_follow_every_path() {
    let rule = LintRule::PerformedBeforeRelease;
    let around = format!("{STORE}\n@%p1 bra $L1;\ncp.async.bulk.wait_group 0;\n$L1:\n{RELEASE}");
    assert_eq!(broken(&around), [(rule, 6)]);
    let looped = format!("$L1:\n{RELEASE}\n{STORE}\n@%p1 bra $L1;");
    assert_eq!(broken(&looped), [(rule, 3)]);
    let apart = format!("@%p1 bra $L1;\n{STORE}\nbra.uni $L2;\n$L1:\n{RELEASE}\n$L2:");
    assert_eq!(broken(&apart), []);
}

#[test]
fn signals_have_system_scope() {
    let rule = LintRule::SystemScope;
    for narrow in [ACQUIRE, RELEASE, "st.release.sys.global.u32 [%rd1], %r1;"] {
        assert_eq!(broken(narrow), []);
        assert_eq!(broken(&narrow.replace(".sys", ".gpu")), [(rule, 2)]);
    }
}

#[test]
fn a_bulk_load_needs_the_proxy_fence() {
    let rule = LintRule::FenceBeforeBulkLoad;
    assert_eq!(broken(&format!("{ACQUIRE}\n{LOAD}")), [(rule, 3)]);
    let shared = format!("{ACQUIRE}\nfence.proxy.async.shared::cta;\n{LOAD}");
    assert_eq!(broken(&shared), [(rule, 4)]);
    assert_eq!(broken(&format!("{ACQUIRE}\nfence.proxy.async;\n{LOAD}")), []);
    assert_eq!(broken(LOAD), []);
}

#[test]
fn bulk_copies_need_the_fence_and_their_completion() {
    const FROM: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];";
    let onto = ["cp.async.bulk", "cp.reduce.async.bulk"]
        .map(|form| format!("{form}.global.shared::cta.bulk_group [%rd1], [%r1], %r2;"));
    let (fence, done) = (LintRule::FenceBeforeBulkLoad, LintRule::PerformedBeforeRelease);
    for copy in onto.iter().map(String::as_str).chain([FROM]) {
        assert_eq!(broken(&format!("{ACQUIRE}\n{copy}")), [(fence, 3)], "{copy}");
        assert_eq!(broken(&format!("{ACQUIRE}\nfence.proxy.async;\n{copy}")), [], "{copy}");
    }
    for copy in &onto {
        assert_eq!(broken(&format!("{copy}\n{RELEASE}")), [(done, 3)], "{copy}");
        let waited = format!("{copy}\ncp.async.bulk.wait_group 0;\n{RELEASE}");
        assert_eq!(broken(&waited), [], "{copy}");
    }
}

#[test]
fn bulk_copies_break_no_rule_and_weakened_ones_do() {
    let bulk = |schedule: &Schedule| schedule.clone().transport(Transport::Tma);
    let base = Schedule::sm_90a().tile(128, 128, 64);
    let pulled = bulk(&base).reduce_scatter(ReduceScatter::Pull);
    for (kernel, schedule) in [
        (GATHER, bulk(&base)),
        (GATHER_ALONE, bulk(&base)),
        (SCATTER, pulled),
        (REDUCE, bulk(&base)),
        (SUM_AHEAD, bulk(&base)),
        (EXCHANGE, bulk(&base)),
        (EXCHANGED, bulk(&base)),
    ] {
        let image = support::compile(kernel, &schedule);
        assert_eq!(lint(&image.ptx), Ok(()), "{}", image.entry);
        let form = if kernel == SUM_AHEAD { "cp.reduce.async.bulk" } else { "cp.async.bulk" };
        let stores = format!("{form}.global.shared::cta.bulk_group");
        assert!(image.ptx.contains(&stores), "{}", image.entry);
        for (text, weaker, rule) in [
            ("wait_group 0;", "wait_group.read 0;", LintRule::PerformedBeforeRelease),
            ("fence.proxy.async;", "", LintRule::FenceBeforeBulkLoad),
        ] {
            let weak = image.ptx.replace(text, weaker);
            let found = lint(&weak).err().unwrap_or_default();
            assert!(found.iter().any(|error| error.rule == rule), "{}: {rule}", image.entry);
        }
    }
}

#[test]
fn compiled_kernels_break_no_rule() {
    for kernel in ALL {
        let tile = if kernel == SWIGLU { (128, 128, 64) } else { (128, 256, 64) };
        let image = support::compile(kernel, &Schedule::sm_90a().tile(tile.0, tile.1, tile.2));
        assert_eq!(lint(&image.ptx), Ok(()), "{}", image.entry);
    }
}

#[test]
fn weakened_kernels_break_the_rules() {
    let ptx = support::compile(SCATTER, &Schedule::sm_90a()).ptx;
    let rules = |text: &str| -> Vec<LintRule> {
        lint(text).err().unwrap_or_default().into_iter().map(|error| error.rule).collect()
    };
    let weak = ptx.replace("cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;");
    assert!(rules(&weak).contains(&LintRule::PerformedBeforeRelease));
    let weak = ptx.replace("ld.acquire.sys", "ld.acquire.gpu");
    assert!(rules(&weak).contains(&LintRule::SystemScope));
    let ptx = support::compile(GATHER, &Schedule::sm_90a()).ptx;
    let weak = ptx.replace("fence.proxy.async;", "");
    assert!(rules(&weak).contains(&LintRule::FenceBeforeBulkLoad));
}
