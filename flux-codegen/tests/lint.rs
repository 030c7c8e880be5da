//! Each rule of the lint is broken by a small text, and by no compiled kernel.

mod support;

use flux_codegen::{LintRule, lint};
use flux_ir::Schedule;
use support::kernels::{ALL, SCATTER, SWIGLU};

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
    let ptx = support::compile(support::kernels::GATHER, &Schedule::sm_90a()).ptx;
    let weak = ptx.replace("fence.proxy.async;", "");
    assert!(rules(&weak).contains(&LintRule::FenceBeforeBulkLoad));
}
