//! `include/flux.h` is what the sources say. `FLUX_BLESS=1` rewrites it.

use std::path::Path;

/// In the order of the header.
const SOURCES: [&str; 8] =
    ["status", "table", "world", "bundle", "argument", "kernel", "dlpack", "symmetric"];

#[test]
fn the_header_is_made_from_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder.join(format!("src/{source}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().expect("the sources").write(&mut made);
    let made = String::from_utf8(made).expect("text");
    let path = folder.join("include/flux.h");
    if std::env::var_os("FLUX_BLESS").is_some() {
        std::fs::write(&path, &made).expect("a writable header");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "include/flux.h is not what the sources say: `FLUX_BLESS=1 cargo test -p flux-c --test header`"
    );
    // One of each module, so that none is left out above.
    for function in [
        "flux_last_error",
        "flux_close",
        "flux_world_open",
        "flux_bundle_open",
        "flux_launch_rank",
        "flux_argument_of_dlpack",
        "flux_symmetric_open",
    ] {
        assert!(made.contains(&format!("{function}(")), "{function} is missing");
    }
}
