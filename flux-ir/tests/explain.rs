//! What is explained of a launch: counts, arguments for elements, traces of what is rejected.

use flux_ir::check::{self, Query};
use flux_ir::{Kernel, Program, Schedule, lower};
use std::fs;
use std::path::Path;

fn file(folder: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests").join(folder);
    let path = path.join(format!("{name}.flux"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn lowered(name: &str) -> Program {
    let kernel: Kernel = file("kernel", name).parse().expect("a kernel");
    lower::lower(&kernel, &Schedule::sm_90a().tile(128, 128, 64)).expect("it lowers")
}

#[test]
fn show() {
    for name in ["gemm", "gemm_rs", "ag_gemm_gelu", "ag_gemm_rs_gated"] {
        let program = lowered(name);
        let explained = check::explain(&program, check::small_launch(&program)).expect("it runs");
        println!("{explained}");
        for launch in [None, Some(1)] {
            match explained.argument(&Query { launch, ..Query::default() }) {
                Ok(argument) => println!("{argument}"),
                Err(error) => println!("{error}"),
            }
        }
        for element in ["c[3, 5]", "c[130,5]"] {
            let element = Some(element.parse().expect("an element"));
            match explained.argument(&Query { element, ..Query::default() }) {
                Ok(argument) => println!("{argument}"),
                Err(error) => println!("{error}"),
            }
        }
    }
}

#[test]
fn show_faults() {
    for folder in ["verify", "faults"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests").join(folder);
        let mut names: Vec<_> = fs::read_dir(path)
            .expect("a folder")
            .map(|entry| {
                entry.expect("an entry").path().file_stem().unwrap().to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        for name in names {
            let Ok(program) = file(folder, &name).parse::<Program>() else { continue };
            match check::smallest_rejected(&program) {
                Ok(Some(explained)) => {
                    println!("=== {folder}/{name}\n{explained}");
                    if name == "deadlock" || name == "overwrite_before_read_one_buffer" {}
                }
                Ok(None) => println!("=== {folder}/{name}: none"),
                Err(error) => println!("=== {folder}/{name}: ERR {error}"),
            }
        }
    }
}
