//! Kernels that have been compiled before, by content.
//!
//! An editor expands on every key, so what was compiled is kept in the process. Where the
//! environment variable `FLUX_CACHE_DIR` names a folder it is kept there too, over processes. A
//! cache never fails a build: what cannot be read is compiled, what cannot be written is not kept.

use crate::compile::Compiled;
use flux_ir::fingerprint::of_bytes;
use flux_ir::{Kernel, Schedule};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, process};

/// Beyond this many the process forgets all it knows: an editor's server lives for days.
const KEPT: usize = 256;

static KNOWN: Mutex<BTreeMap<String, Option<Compiled>>> = Mutex::new(BTreeMap::new());

/// All that the outcome depends on, the compiler itself included.
pub(crate) fn key(kernel: &Kernel, schedule: &Schedule) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let stamp = env!("FLUX_COMPILER_STAMP");
    let codegen = if cfg!(feature = "codegen") { "codegen" } else { "check" };
    let linked = linked(schedule).unwrap_or_default();
    format!("flux {version} {stamp} {codegen}{linked}\n{schedule}\n{kernel}")
}

/// The library that a kernel of several nodes is linked with: another one makes another kernel.
#[cfg(feature = "codegen")]
fn linked(schedule: &Schedule) -> Option<String> {
    let file = (schedule.node != 0).then(flux_codegen::network::library)??;
    let metadata = fs::metadata(&file).ok()?;
    Some(format!(" {} {} {:?}", file.display(), metadata.len(), metadata.modified().ok()))
}

#[cfg(not(feature = "codegen"))]
fn linked(_: &Schedule) -> Option<String> {
    None
}

/// What `key` was compiled to: the outer `None` where that is not known.
pub(crate) fn look_up(key: &str) -> Option<Option<Compiled>> {
    if let Some(compiled) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(key) {
        return Some(compiled.clone());
    }
    let compiled = folder().and_then(|folder| read(&file(&folder, key), key))?;
    keep(key, &compiled);
    Some(compiled)
}

/// Remembers what `key` was compiled to.
pub(crate) fn store(key: &str, compiled: &Option<Compiled>) {
    keep(key, compiled);
    if let Some(folder) = folder() {
        // A read-only or full folder costs time, not the build.
        let _ = write(&folder, &file(&folder, key), key, compiled);
    }
}

fn keep(key: &str, compiled: &Option<Compiled>) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= KEPT {
        known.clear();
    }
    known.insert(key.to_owned(), compiled.clone());
}

fn folder() -> Option<PathBuf> {
    env::var_os("FLUX_CACHE_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn file(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{:016x}.flux", of_bytes(key.bytes())))
}

/// A file is a line of numbers, the key, the entry's name and the PTX. The key is compared, so
/// that two keys of one hash cannot be taken for each other, and the PTX hashed, so that a
/// damaged file is compiled anew.
fn text_of(key: &str, compiled: &Option<Compiled>) -> String {
    match compiled {
        None => format!("none {}\n{key}", key.len()),
        Some(Compiled { entry, shared_bytes, fingerprint, ptx }) => format!(
            "image {} {} {} {shared_bytes} {fingerprint} {}\n{key}{entry}{ptx}",
            key.len(),
            entry.len(),
            ptx.len(),
            of_bytes(ptx.bytes())
        ),
    }
}

fn parse(text: &str, key: &str) -> Option<Option<Compiled>> {
    let (head, rest) = text.split_once('\n')?;
    let mut words = head.split(' ');
    let kind = words.next()?;
    let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    let rest = rest.strip_prefix(key)?;
    match (kind, numbers.as_slice()) {
        ("none", [_]) if rest.is_empty() => Some(None),
        ("image", &[_, entry_len, ptx_len, shared_bytes, fingerprint, hash]) => {
            let entry = rest.get(..usize::try_from(entry_len).ok()?)?;
            let ptx = rest.get(entry.len()..)?;
            let whole = ptx.len() as u64 == ptx_len && of_bytes(ptx.bytes()) == hash;
            let shared_bytes = u32::try_from(shared_bytes).ok()?;
            whole.then(|| {
                let (entry, ptx) = (entry.to_owned(), ptx.to_owned());
                Some(Compiled { entry, shared_bytes, fingerprint, ptx })
            })
        }
        _ => None,
    }
}

fn read(file: &Path, key: &str) -> Option<Option<Compiled>> {
    parse(&fs::read_to_string(file).ok()?, key)
}

fn write(
    folder: &Path,
    file: &Path,
    key: &str,
    compiled: &Option<Compiled>,
) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    // Renamed into place, so that another process never reads half a file.
    let draft = file.with_extension(format!("{}.draft", process::id()));
    fs::write(&draft, text_of(key, compiled))?;
    fs::rename(&draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Option<Compiled> {
        let (entry, ptx) = ("k".to_owned(), "// é\n.entry k\n".to_owned());
        Some(Compiled { entry, shared_bytes: 7, fingerprint: u64::MAX, ptx })
    }

    #[test]
    fn a_file_reads_back_for_its_own_key_alone() {
        for compiled in [None, image()] {
            let text = text_of("key\nof two lines", &compiled);
            assert_eq!(parse(&text, "key\nof two lines"), Some(compiled));
            assert_eq!(parse(&text, "key\nof two line"), None);
            assert_eq!(parse(&text, "another"), None);
        }
    }

    #[test]
    fn a_damaged_file_is_not_used() {
        let text = text_of("key", &image());
        assert_eq!(parse(&text.replace("entry", "entri"), "key"), None);
        assert_eq!(parse(&text[..text.len() - 1], "key"), None);
        assert_eq!(parse("", "key"), None);
    }

    #[test]
    fn files_are_renamed_into_place() {
        let folder = env::temp_dir().join(format!("flux-cache-{}", process::id()));
        let path = file(&folder, "key");
        write(&folder, &path, "key", &image()).expect("a writable folder");
        assert_eq!(read(&path, "key"), Some(image()));
        assert_eq!(fs::read_dir(&folder).map(Iterator::count).ok(), Some(1), "no draft is left");
        fs::remove_dir_all(&folder).expect("the folder");
    }
}
