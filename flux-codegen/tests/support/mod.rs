//! Kernels in text form, compiled under a schedule; and the assembler, where there is one.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod kernels;

use flux_codegen::Image;
use flux_ir::check::Verified;
use flux_ir::{Kernel, Schedule};
use std::path::PathBuf;
use std::process::Command;

/// Lowers and checks a kernel given as text.
pub(crate) fn lower(text: &str, schedule: &Schedule) -> Verified {
    let kernel: Kernel = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    let program =
        flux_ir::lower::lower(&kernel, schedule).unwrap_or_else(|error| panic!("{error}"));
    flux_ir::check::verify(program).unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles a kernel given as text.
pub(crate) fn compile(text: &str, schedule: &Schedule) -> Image {
    flux_codegen::compile(&lower(text, schedule)).unwrap_or_else(|error| panic!("{error}"))
}

/// The assembler: `FLUX_PTXAS`, or `ptxas` on the path.
pub(crate) fn ptxas() -> Option<PathBuf> {
    let named = std::env::var_os("FLUX_PTXAS").map(PathBuf::from);
    let candidates = named.into_iter().chain([PathBuf::from("ptxas")]);
    let found = candidates.into_iter().find(|path| {
        Command::new(path).arg("--version").output().is_ok_and(|out| out.status.success())
    });
    if found.is_none() {
        println!("skipped: no ptxas");
    }
    found
}

/// Assembles PTX and returns what `ptxas -v` said.
pub(crate) fn assemble(ptxas: &PathBuf, name: &str, ptx: &str) -> Result<String, String> {
    let folder = std::env::temp_dir().join(format!("flux-codegen-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let (source, binary) =
        (folder.join(format!("{name}.ptx")), folder.join(format!("{name}.cubin")));
    std::fs::write(&source, ptx).map_err(|error| error.to_string())?;
    let output = Command::new(ptxas)
        .args(["-arch=sm_90a", "-v"])
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(said) } else { Err(said) }
}
