//! What the shipped kernels become, word for word: Kernel IR, Program and PTX, and what is predicted of some.
//!
//! `FLUX_BLESS=1 cargo test -p flux-cli --test golden` rewrites the files; read the diff before you commit it.
//! Positions are left out, so that an edit elsewhere in a source file changes nothing here.

use flux::Definition;
use flux_ir::check::verify;
use flux_ir::lower::lower;
use flux_ir::{Kernel, Schedule, Span, Transport};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel without positions.
fn without_positions(definition: &Definition) -> Kernel {
    let mut kernel = definition.kernel().expect("the embedded text parses");
    kernel.span = Span::UNKNOWN;
    kernel.loop_span = Span::UNKNOWN;
    let params: Vec<_> = kernel.params.handles().collect();
    for param in params {
        kernel.params[param].span = Span::UNKNOWN;
    }
    let ops: Vec<_> = kernel.ops.handles().collect();
    for op in ops {
        kernel.ops[op].span = Span::UNKNOWN;
    }
    kernel
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// Compares `text` with a golden file, or rewrites it.
fn compare(kernel: &str, file: &str, text: &str, differences: &mut Vec<String>) {
    let path = folder().join(kernel).join(file);
    if std::env::var_os("FLUX_BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("a file in a folder")).expect("a folder to write");
        fs::write(&path, text).expect("a file to write");
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    if golden != text {
        let line = golden.lines().zip(text.lines()).position(|(a, b)| a != b);
        let line = line.unwrap_or_else(|| golden.lines().count().min(text.lines().count())) + 1;
        differences.push(format!("tests/golden/{kernel}/{file} differs from line {line} on"));
    }
}

#[test]
fn shipped_kernels_become_what_they_became() {
    let mut differences = Vec::new();
    for definition in flux::kernels::all() {
        let kernel = without_positions(definition);
        compare(definition.name, "kernel.flux", &kernel.to_string(), &mut differences);
        let schedule = &(definition.schedules)()[0];
        let program = lower(&kernel, schedule).expect("a shipped kernel lowers");
        compare(definition.name, "program.flux", &program.to_string(), &mut differences);
        let verified = verify(program).expect("a shipped kernel passes the checker");
        let image = flux_codegen::compile(&verified).expect("a shipped kernel compiles");
        compare(definition.name, "kernel.ptx", &image.ptx, &mut differences);
    }
    let help = "read what changed; `make bless` rewrites the golden files";
    assert!(differences.is_empty(), "{}\n{help}", differences.join("\n"));
}

/// The same of a kernel whose shards are pushed in bulk copies.
#[test]
fn bulk_copies_become_what_they_became() {
    let mut differences = Vec::new();
    let all = flux::kernels::all();
    let definition = all.iter().find(|kernel| kernel.name == "ag_gemm").expect("it is shipped");
    let kernel = without_positions(definition);
    let schedule = Schedule::sm_90a().transport(Transport::Tma);
    let program = lower(&kernel, &schedule).expect("a shipped kernel lowers");
    compare("ag_gemm", "program_tma.flux", &program.to_string(), &mut differences);
    let verified = verify(program).expect("a shipped kernel passes the checker");
    let image = flux_codegen::compile(&verified).expect("a shipped kernel compiles");
    compare("ag_gemm", "kernel_tma.ptx", &image.ptx, &mut differences);
    let help = "read what changed; `make bless` rewrites the golden files";
    assert!(differences.is_empty(), "{}\n{help}", differences.join("\n"));
}

/// What `flux sim` says of exchanges and of sums over gathered rows.
#[test]
fn predictions_are_what_they_were() {
    let mut differences = Vec::new();
    for kernel in ["gemm_a2a", "a2a_gemm", "rows_to_columns", "columns_to_rows", "gemm_ag_tn"] {
        let launch = "--machine h200-nvlink --m 4096 --n 4096 --k 4096 --world 4";
        let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
        command.args(["sim", kernel]).args(launch.split(' '));
        let output = command.output().expect("the command starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{kernel}: {}", String::from_utf8_lossy(&output.stderr));
        compare(kernel, "sim.txt", &said, &mut differences);
    }
    let help = "read what changed; `make bless` rewrites the golden files";
    assert!(differences.is_empty(), "{}\n{help}", differences.join("\n"));
}

#[test]
fn every_golden_folder_belongs_to_a_shipped_kernel() {
    if std::env::var_os("FLUX_BLESS").is_some() {
        return;
    }
    let names: Vec<_> = flux::kernels::all().into_iter().map(|kernel| kernel.name).collect();
    for entry in fs::read_dir(folder()).expect("the golden files are there") {
        let name = entry.expect("an entry").file_name().into_string().expect("a plain name");
        assert!(names.contains(&name.as_str()), "tests/golden/{name} belongs to no kernel");
    }
}

#[test]
fn embedded_images_are_those_of_their_programs() {
    for definition in flux::kernels::all() {
        let kernel = definition.kernel().expect("the embedded text parses");
        let schedules = (definition.schedules)();
        assert_eq!(definition.images.len(), schedules.len(), "{}", definition.name);
        for image in definition.images {
            let program = lower(&kernel, &schedules[image.schedule]).expect("it lowers");
            assert_eq!(image.fingerprint, flux_ir::fingerprint::of_program(&program));
            let verified = verify(program).expect("it passes the checker");
            let compiled = flux_codegen::compile(&verified).expect("it compiles");
            assert_eq!(
                image.ptx, compiled.ptx,
                "{}: compilation is deterministic",
                definition.name
            );
        }
    }
}
