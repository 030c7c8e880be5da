//! What code generation does not offer is an error at the user's token that says what to write
//! instead. The checker refuses most of it before, so these Programs skip the checker.

use crate::{Error, Linked, Times, image};
use flux_ir::{Consumers, Kernel, Program, Schedule, Target, Transport};
use inkwell::context::Context;

const PLAIN: &str = "
kernel @plain(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t  @3:10
    store %c, %0        @4:5
  }
}";

const SWIGLU: &str = "
kernel @swiglu(%a: &global<bf16>, %g: &global<bf16>, %u: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %g.t
    %1 = gemm %a, %u.t
    %2 = mul %0, %1
    store %c, %2
  }
}";

const SCATTER: &str = "
kernel @scatter(%a: &global<bf16>, %b: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = reduce %c, %0
    store %c, %1
  }
}";

fn program(kernel: &str, schedule: &Schedule) -> Program {
    let kernel: Kernel = kernel.parse().unwrap_or_else(|error| panic!("{error}\n{kernel}"));
    flux_ir::lower::lower(&kernel, schedule).unwrap_or_else(|error| panic!("{error}"))
}

/// The error that compiling `program` ends in.
fn refusal(program: &Program) -> String {
    match image(program, Times::Unseen, Linked::Calls) {
        Err(error @ Error::Unsupported { .. }) => error.to_string(),
        Err(other) => panic!("expected `Unsupported`, found {other}"),
        Ok(_) => panic!("expected an error, found an image"),
    }
}

/// Asserts that the error says every part.
fn says(program: &Program, parts: &[&str]) {
    let text = refusal(program);
    for part in parts {
        assert!(text.contains(part), "expected `{part}` in: {text}");
    }
}

/// The text of a lowered kernel with `from` replaced by `to`.
fn edited(kernel: &str, from: &str, to: &str) -> Program {
    let text = program(kernel, &Schedule::sm_90a()).to_string();
    assert!(text.contains(from), "expected `{from}` in: {text}");
    let text = text.replace(from, to);
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The first line of a lowered kernel's text that contains `part`.
fn line(kernel: &str, part: &str) -> String {
    let text = program(kernel, &Schedule::sm_90a()).to_string();
    text.lines().find(|line| line.contains(part)).expect("the text has the line").to_owned()
}

#[test]
fn element_types_that_wgmma_does_not_take() {
    says(
        &edited(PLAIN, "buffer %a : bf16", "buffer %a : f32"),
        &["3:10", "`a` is f32", "cast the operands to bf16 or f16"],
    );
    says(
        &edited(PLAIN, "buffer %b : bf16", "buffer %b : f16"),
        &["`b` is f16", "one element type"],
    );
}

#[test]
fn tiles_that_do_not_fit() {
    let base = Schedule::sm_90a;
    let plain = |schedule: Schedule| program(PLAIN, &schedule);
    says(&plain(base().tile(64, 256, 64)), &["cooperative", "multiple of 128", "found 64"]);
    says(&plain(base().tile(128, 100, 64)), &["multiple of 8", "found 100"]);
    says(&plain(base().tile(128, 264, 64)), &["up to 256", "found 264"]);
    says(&plain(base().tile(128, 256, 32)), &["k-step", "multiple of 64", "found 32"]);
    says(&plain(base().stages(1)), &["stages", "at least 2", "found 1"]);
    says(&plain(base().stages(6)), &["stages = 6", "sm_90a has 232448"]);
    says(&plain(base().consumers(Consumers::PingPong)), &["256 accumulators", "208 fit"]);
    says(&program(SWIGLU, &base().stages(2)), &["256 accumulators", "fewer tile columns"]);
    let not_transposed = PLAIN.replace("%b.t", "%b");
    says(
        &program(&not_transposed, &base().tile(128, 176, 64)),
        &["multiple of 64", "found 176", "`b.t()`"],
    );
    let turned = PLAIN.replace("%a,", "%a.t,");
    says(
        &program(&turned, &base().tile(32, 128, 64).consumers(Consumers::Single)),
        &["multiple of 64", "found 32", "store `a` as [m, k]"],
    );
}

#[test]
fn another_target() {
    says(&program(PLAIN, &Schedule::sm_90a().target(Target::Host)), &["sm_90a", "host"]);
}

#[test]
fn structures_without_a_kernel() {
    let mainloop = line(PLAIN, "mainloop");
    says(&edited(PLAIN, &mainloop, ""), &["no loop with a mainloop", "one `gemm`"]);
    says(&edited(PLAIN, &mainloop, &format!("{mainloop}\n{mainloop}")), &["second mainloop"]);
    says(
        &edited(PLAIN, &mainloop, &format!("if M < N {{\n{mainloop}\n}}")),
        &["no loop with a mainloop"],
    );
    let sliced = format!("for %s in 0..2 {{\n{mainloop}\nfence proxy.async\n}}");
    says(
        &edited(PLAIN, &mainloop, &sliced),
        &["loop inside the tile loop", "let it wait and end in the mainloop"],
    );
    let row = line(PLAIN, "row (");
    let sliced = format!("for %s in 0..2 {{\n{}\n{mainloop}\n}}", row.replace("%m,", "%m5,"));
    says(&edited(PLAIN, &mainloop, &sliced), &["loop inside the tile loop"]);
    let store = line(PLAIN, "store");
    says(
        &edited(PLAIN, &mainloop, &format!("{store}\n{mainloop}")),
        &["a store ahead of the mainloop", "behind the mainloop"],
    );
    says(
        &edited(PLAIN, &mainloop, &format!("copy %c[0..M, 0..N] <- %c[0..M, 0..N]\n{mainloop}")),
        &["a copy ahead of the mainloop", "copy engine"],
    );
    says(&edited(PLAIN, "0..K", "0..%m"), &["what is summed over differs"]);
    says(&edited(PLAIN, "%m * 128", "%m * 99999999999"), &["99999999999", "32 bits"]);
}

#[test]
fn operands_out_of_reach() {
    let mainloop = line(PLAIN, "mainloop");
    let remote = mainloop.replacen("mainloop ", "mainloop peer(0).", 1);
    says(&edited(PLAIN, &mainloop, &remote), &["`a`", "peer's memory", "copy it here"]);
    let swiglu = line(SWIGLU, "mainloop");
    let second = swiglu.replacen(", %a[", ", %g[", 1);
    says(&edited(SWIGLU, &swiglu, &second), &["different left operands"]);
}

#[test]
fn signals_that_warps_cannot_share() {
    says(&edited(SCATTER, "+= 8 scope", "+= 7 scope"), &["a multiple of 8", "its share"]);
    says(&edited(SCATTER, "+= 8 scope", "= epoch scope"), &["set", "add to it"]);
}

#[test]
fn a_sum_used_ahead_of_it() {
    let sum = line(SCATTER, "sum %");
    says(&edited(SCATTER, &sum, ""), &["a sum over ranks"]);
}

/// What is linked for the network is NCCL's device API, or the error says what it is not.
#[test]
fn a_library_of_another_kind_is_refused() {
    const GATHER: &str = "
kernel @gather(%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    store %c, %1
  }
}";
    let schedule = Schedule::sm_90a().tile(128, 128, 64).transport(Transport::Put).node(2);
    let program = program(GATHER, &schedule);
    let plan = crate::plan::Plan::of(&program).unwrap_or_else(|error| panic!("{error}"));
    // LLVM reads nothing of the first; the second is a module without the functions.
    let empty = Context::create().create_module("empty").write_bitcode_to_memory();
    for (name, bytes) in [("text", &b"no bitcode"[..]), ("empty", empty.as_slice())] {
        let file = std::env::temp_dir().join(format!("flux-{name}-{}.bc", std::process::id()));
        std::fs::write(&file, bytes).unwrap_or_else(|error| panic!("{error}"));
        let made = crate::emit::kernel(&program, &plan, "gather", (Times::Unseen, Some(&file)));
        let error = made.err().map(|error| error.to_string()).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        let said = "`gather` cannot be linked with NCCL's device API: ";
        assert!(error.starts_with(said), "{name}: {error}");
    }
}
