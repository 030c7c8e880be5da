//! Programs in C and C++ that use the library: compiled by the system's compiler, without a warning.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder that holds the library. Cargo builds none for a test, so this one asks for it, unless
/// `FLUX_LIBRARY_DIR` says that somebody has (`scripts/test` does, with what it tests everything with).
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("FLUX_LIBRARY_DIR") {
            return folder.into();
        }
        // A test beside it, so that shared crates are built as for this one.
        run(Command::new(env!("CARGO"))
            .args(["build", "-p", "flux-c", "--lib", "--test", "header"]));
        // This test is in `debug/deps`.
        let own = std::env::current_exe().expect("a path");
        own.ancestors().nth(2).expect("a folder").to_owned()
    })
}

fn bundle(definition: &flux_dsl::Definition) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{}-{}.flux-bundle", definition.name, thread_name()));
    let bytes = flux_dsl::Bundle::encode(definition).expect("a kernel of the library");
    std::fs::write(&path, bytes).expect("a writable folder");
    path
}

/// Tests run at once, each with files of its own.
fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// What a command says; its failure is that of the test.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    said
}

/// Compiles `tests/c/host.c` as `language`, and runs it on the host.
fn compiled(compiler: &str, language: &[&str], program: &str, linked: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program);
    let library = library();
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-pthread"]).args(language);
    command.arg("-I").arg(folder.join("include")).arg("-o").arg(&program);
    command.arg(folder.join("tests/c/host.c")).args(["-x", "none"]);
    command.arg("-L").arg(library).args(linked);
    command.arg(format!("-Wl,-rpath,{}", library.display()));
    run(&mut command);
    let kernels = [
        flux_dsl::kernels::gemm_rs::definition(),
        flux_dsl::kernels::rows_to_columns::definition(),
    ];
    run(Command::new(program).args(kernels.map(bundle)))
}

const SHARED: [&str; 1] = ["-lflux"];

#[test]
fn a_program_in_c_is_right_and_told_its_mistakes() {
    let said =
        compiled("cc", &["-x", "c", "-std=c11", "-D_POSIX_C_SOURCE=200809L"], "c11", &SHARED);
    assert_eq!(said, "all is as expected\n");
}

#[test]
fn the_same_program_in_cpp() {
    let said = compiled("c++", &["-x", "c++", "-std=c++17"], "cpp17", &SHARED);
    assert_eq!(said, "all is as expected\n");
}

#[test]
fn the_same_program_linked_with_the_archive() {
    let language = ["-x", "c", "-std=c11", "-D_POSIX_C_SOURCE=200809L"];
    let archive = ["-l:libflux.a", "-lm", "-ldl", "-lgcc_s"];
    assert_eq!(compiled("cc", &language, "archive", &archive), "all is as expected\n");
}
