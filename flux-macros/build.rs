//! A stamp of the compiler's own sources: images in a cache directory are used again only by the
//! compiler that made them.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs, io};

fn main() {
    let root = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let root = Path::new(&root);
    let mut files = BTreeMap::new();
    for crate_name in ["flux-ir", "flux-codegen", "flux-syntax", "flux-macros"] {
        // A published crate has no siblings: there, the version says it all.
        let folder = root.join("..").join(crate_name).join("src");
        println!("cargo::rerun-if-changed={}", folder.display());
        let _ = collect(&folder, &mut files);
    }
    let mut stamp = 0xcbf2_9ce4_8422_2325_u64;
    for bytes in files.values() {
        for &byte in bytes.iter() {
            stamp = (stamp ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("cargo::rustc-env=FLUX_COMPILER_STAMP={stamp:016x}");
}

fn collect(folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.insert(path.to_string_lossy().into_owned(), fs::read(&path)?);
        }
    }
    Ok(())
}
