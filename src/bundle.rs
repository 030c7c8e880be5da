//! Compiled kernels as files: written by `flux build`, loaded without a compiler.
//!
//! ```text
//! flux bundle 1                  the format
//! 0c5e5d16c7a5f3c4 81234         hash and number of all bytes that follow
//! { … }                          what is where, as JSON
//! kernel @gemm_rs(…) { … }       Kernel IR, with positions
//! .version 8.3 …                 PTX, of one schedule behind the other
//! ```

use crate::definition::{Definition, Image};
use crate::error::Error;
use crate::source::rejected;
use flux_ir::abi::Abi;
use flux_ir::lower::lower;
use flux_ir::program::Program;
use flux_ir::{Kernel, Order, Schedule, fingerprint};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// What a bundle begins with, ahead of the number of its format.
const MAGIC: &str = "flux bundle ";

/// The format that is written and read.
const FORMAT: u32 = 1;

/// The version whose machine code is at home here.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A kernel in a file: Kernel IR, schedules and machine code, as `flux build --bundle` writes them.
///
/// What is read is a [`Definition`] like those that the macro embeds. It is lowered and checked again
/// when it is loaded on a rank, and machine code that was not made from that very Program is refused.
/// A bundle is code: load those of people you trust. Its hash finds damage, and no malice.
///
/// ```
/// use flux::prelude::*;
/// use flux::{AnyKernel, Arg, Bundle};
///
/// let bytes = Bundle::encode(flux::kernels::gemm_rs::definition())?;
/// let bundle = Bundle::decode(&bytes)?;
/// let sums = World::host(2)?.run(|rank| {
///     let kernel = AnyKernel::load(bundle.definition(), rank, None)?;
///     let (a, b) = (rank.tensor(2, 1, &[bf16::ONE; 2])?, rank.tensor(1, 1, &[bf16::ONE])?);
///     let mut c = rank.zeros::<bf16>(1, 1)?;
///     kernel.launch(&mut [Arg::input(&a), Arg::input(&b), Arg::output(&mut c)])?;
///     c.to_vec()
/// })?;
/// assert_eq!(sums, [[bf16::from_f32(2.0)], [bf16::from_f32(2.0)]]);
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Bundle {
    definition: &'static Definition,
}

/// What is where. Fields that are unknown are of another format.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    /// The version of flux that compiled it.
    flux: String,
    kernel: String,
    file: String,
    /// Bytes of Kernel IR.
    kernel_bytes: usize,
    schedules: Vec<Member>,
}

/// One way to run the kernel.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    schedule: String,
    /// None for the host.
    code: Option<Code>,
}

/// Machine code.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Code {
    entry: String,
    /// Of the Program, in hexadecimal digits.
    program: String,
    /// Of the order and the sizes of what a launch hands over, likewise.
    abi: String,
    /// Bytes of PTX.
    ptx_bytes: usize,
}

impl Bundle {
    /// The bytes of a bundle; of the same definition always the same ones.
    ///
    /// # Errors
    /// [`Error::Bundle`] for a tile order that is a function of the program; a definition that is
    /// rejected.
    pub fn encode(definition: &Definition) -> Result<Vec<u8>, Error> {
        let kernel = definition.kernel()?;
        let mut members = Vec::new();
        let mut texts = definition.text.to_owned();
        for (index, schedule) in (definition.schedules)().iter().enumerate() {
            if let Some(Order::Custom(order)) = &schedule.order {
                let problem = format!(
                    "its order `{}` is a function of the program that it was written in, which no bundle \
                     holds; name a built-in order",
                    order.name
                );
                return Err(broken(definition.name, problem));
            }
            let mut images = definition.images.iter();
            let image = images.find(|image| image.schedule == index && !image.recorded);
            let code = image.map(|image| {
                texts += image.ptx;
                let (entry, ptx_bytes) = (image.entry.to_owned(), image.ptx.len());
                let program = lower(&kernel, schedule).map_err(rejected(definition))?;
                let program_hash = hex(image.fingerprint);
                Ok::<_, Error>(Code { entry, program: program_hash, abi: abi(&program), ptx_bytes })
            });
            members.push(Member { schedule: schedule.to_string(), code: code.transpose()? });
        }
        let contents = Contents {
            flux: VERSION.to_owned(),
            kernel: definition.name.to_owned(),
            file: definition.file.to_owned(),
            kernel_bytes: definition.text.len(),
            schedules: members,
        };
        let contents = serde_json::to_string_pretty(&contents)
            .map_err(|error| broken(definition.name, error.to_string()))?;
        let rest = format!("{contents}\n{texts}");
        let (hash, bytes) = (hex(fingerprint::of_bytes(rest.bytes())), rest.len());
        Ok(format!("{MAGIC}{FORMAT}\n{hash} {bytes}\n{rest}").into_bytes())
    }

    /// Reads what [`Bundle::encode`] made. What is read stays until the process ends, as compiled-in
    /// kernels do; reading the same again takes no more memory.
    ///
    /// # Errors
    /// [`Error::Bundle`], which says what is wrong: another format, bytes that are damaged or missing,
    /// another version of flux.
    pub fn decode(bytes: &[u8]) -> Result<Bundle, Error> {
        read(bytes).map_err(|problem| broken("in memory", problem))
    }

    /// Reads a file that `flux build --bundle` wrote.
    ///
    /// # Errors
    /// A file that cannot be read; as [`Bundle::decode`].
    pub fn open(path: impl AsRef<Path>) -> Result<Bundle, Error> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| error.to_string());
        bytes.and_then(|bytes| read(&bytes)).map_err(|problem| broken(path.display(), problem))
    }

    /// The kernel.
    pub fn definition(&self) -> &'static Definition {
        self.definition
    }
}

fn broken(bundle: impl ToString, problem: impl Into<String>) -> Error {
    Error::Bundle { bundle: bundle.to_string(), problem: problem.into() }
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// What machine code and the driver of its launches have to agree about beside the Program.
fn abi(program: &Program) -> String {
    hex(fingerprint::of_bytes(format!("{:?}", Abi::of(program)).into_bytes()))
}

/// The bundle, or what is wrong with these bytes.
fn read(bytes: &[u8]) -> Result<Bundle, String> {
    let rest = whole(bytes)?;
    let text = str::from_utf8(rest).map_err(|error| format!("it is no text: {error}"))?;
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Contents>();
    let contents = match stream.next() {
        Some(Ok(contents)) => contents,
        Some(Err(error)) => return Err(format!("its list of contents: {error}")),
        None => return Err("it has no list of contents".into()),
    };
    if contents.flux != VERSION {
        return Err(format!(
            "it was built by flux {}, this is flux {VERSION}: build it again with \
             `flux build --bundle`",
            contents.flux
        ));
    }
    let mut texts = Texts { rest: text.get(stream.byte_offset() + 1..).unwrap_or_default() };
    let kernel_text = texts.take("its Kernel IR", contents.kernel_bytes)?;
    let kernel: Kernel =
        kernel_text.parse().map_err(|found| format!("its Kernel IR cannot be read: {found}"))?;
    let (mut schedules, mut images) = (Vec::new(), Vec::new());
    for Member { schedule, code } in &contents.schedules {
        let parsed: Schedule = schedule
            .parse()
            .map_err(|found| format!("its schedule ({schedule}) cannot be read: {found}"))?;
        if let Some(code) = code {
            images.push(code_of(&kernel, (schedules.len(), &parsed), code, &mut texts)?);
        }
        schedules.push(parsed);
    }
    if schedules.is_empty() {
        return Err("it has no schedule".into());
    }
    if !texts.rest.is_empty() {
        return Err(format!("{} bytes stand behind its machine code", texts.rest.len()));
    }
    let definition = keep(&contents, kernel_text, schedules, &images);
    Ok(Bundle { definition })
}

/// All that stands behind the first two lines, unless it is damaged.
fn whole(bytes: &[u8]) -> Result<&[u8], String> {
    let line = |bytes: &[u8]| bytes.iter().position(|&byte| byte == b'\n').filter(|&end| end < 80);
    let none = || "it is no bundle: write one with `flux build --bundle`".to_owned();
    let cut = |bytes: &[u8], end: usize| {
        Some((str::from_utf8(bytes.get(..end)?).ok()?.to_owned(), end + 1))
    };
    let first = line(bytes).and_then(|end| cut(bytes, end));
    let (first, start) = first.ok_or_else(none)?;
    let format = first.strip_prefix(MAGIC).ok_or_else(none)?;
    if format != FORMAT.to_string() {
        return Err(format!(
            "it has the format {format}, flux {VERSION} reads format {FORMAT}: build it again with \
             `flux build --bundle`"
        ));
    }
    let bytes = &bytes[start..];
    let (second, start) = line(bytes).and_then(|end| cut(bytes, end)).ok_or("it is cut short")?;
    let rest = &bytes[start..];
    let (hash, length) = second.split_once(' ').ok_or("its second line is damaged")?;
    let length: usize = length.parse().map_err(|_| "its second line is damaged")?;
    if rest.len() != length {
        return Err(format!("it is cut short or lengthened: {} of {length} bytes", rest.len()));
    }
    let found = hex(fingerprint::of_bytes(rest.iter().copied()));
    if found != hash {
        return Err(format!("it is damaged: its hash is {found}, expected {hash}"));
    }
    Ok(rest)
}

/// What is left of the texts.
struct Texts<'t> {
    rest: &'t str,
}

impl<'t> Texts<'t> {
    fn take(&mut self, what: &str, bytes: usize) -> Result<&'t str, String> {
        let split = self.rest.split_at_checked(bytes);
        let (taken, rest) = split.ok_or_else(|| format!("{what} should have {bytes} bytes"))?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Machine code in the text of a bundle.
struct Found<'t> {
    schedule: usize,
    entry: &'t str,
    ptx: &'t str,
    shared_bytes: u32,
    fingerprint: u64,
}

/// Machine code, if it was made from the Program that is launched.
fn code_of<'t>(
    kernel: &Kernel,
    (index, schedule): (usize, &Schedule),
    code: &'t Code,
    texts: &mut Texts<'t>,
) -> Result<Found<'t>, String> {
    let program = lower(kernel, schedule).map_err(|found| format!("({schedule}): {found}"))?;
    let fingerprint = fingerprint::of_program(&program);
    if code.program != hex(fingerprint) || code.abi != abi(&program) {
        return Err(format!(
            "the machine code of its schedule ({schedule}) was made from another Program: built from \
             other sources of flux {VERSION}; build it again with `flux build --bundle`"
        ));
    }
    let ptx = texts.take("its machine code", code.ptx_bytes)?;
    let shared_bytes = Abi::of(&program).shared.total;
    Ok(Found { schedule: index, entry: &code.entry, ptx, shared_bytes, fingerprint })
}

/// What was read, for good: that of an earlier reading where it is the same.
fn keep(
    contents: &Contents,
    text: &str,
    schedules: Vec<Schedule>,
    images: &[Found<'_>],
) -> &'static Definition {
    static KNOWN: Mutex<Vec<&'static Definition>> = Mutex::new(Vec::new());
    let Contents { kernel: name, file, .. } = contents;
    let is_same = |known: &&&'static Definition| {
        let mut pairs = known.images.iter().zip(images);
        (known.name, known.file, known.text) == (name.as_str(), file.as_str(), text)
            && (known.schedules)() == schedules
            && known.images.len() == images.len()
            && pairs.all(|(known, found)| {
                (known.schedule, known.entry, known.ptx) == (found.schedule, found.entry, found.ptx)
            })
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.iter().find(is_same) {
        return known;
    }
    let image = |found: &Found<'_>| {
        let &Found { schedule, entry, ptx, shared_bytes, fingerprint } = found;
        let (entry, ptx) = (leak(entry), leak(ptx));
        Image { schedule, entry, ptx, shared_bytes, fingerprint, recorded: false }
    };
    let images = images.iter().map(image).collect::<Vec<_>>().leak();
    let (name, file, text) = (leak(name), leak(file), leak(text));
    let schedules: &'static (dyn Fn() -> Vec<Schedule> + Send + Sync) =
        Box::leak(Box::new(move || schedules.clone()));
    let definition = Box::leak(Box::new(Definition { name, file, text, schedules, images }));
    known.push(definition);
    definition
}

fn leak(text: &str) -> &'static str {
    text.to_owned().leak()
}

#[cfg(test)]
mod tests {
    use super::{Bundle, Definition, FORMAT, MAGIC, hex};
    use flux_ir::order::CustomOrder;
    use flux_ir::{Order, Schedule, fingerprint};

    fn definition() -> &'static Definition {
        crate::kernels::gemm_rs::definition()
    }

    fn encoded() -> Vec<u8> {
        Bundle::encode(definition()).expect("a kernel of the library")
    }

    fn refused(bytes: &[u8]) -> String {
        Bundle::decode(bytes).expect_err("a bundle that is no good").to_string()
    }

    /// The same with something else in it, and a hash that fits.
    fn resealed(from: &str, to: &str) -> Vec<u8> {
        let text = String::from_utf8(encoded()).expect("text");
        let rest = text.splitn(3, '\n').nth(2).expect("three parts").replacen(from, to, 1);
        assert!(!text.ends_with(&rest), "`{from}` is not in it");
        let hash = hex(fingerprint::of_bytes(rest.bytes()));
        format!("{MAGIC}{FORMAT}\n{hash} {}\n{rest}", rest.len()).into_bytes()
    }

    #[test]
    fn what_is_written_is_read_back_and_always_the_same() {
        let bytes = encoded();
        assert_eq!(bytes, encoded());
        let read = Bundle::decode(&bytes).expect("what was written").definition();
        let written = definition();
        assert_eq!((read.name, read.file, read.text), (written.name, written.file, written.text));
        assert_eq!((read.schedules)(), (written.schedules)());
        assert_eq!(format!("{:?}", read.images), format!("{:?}", written.images));
        let again = Bundle::decode(&bytes).expect("what was written").definition();
        assert!(std::ptr::eq(read, again), "it is kept once");
    }

    #[test]
    fn every_kernel_of_the_library_comes_back() {
        for definition in crate::kernels::all() {
            let bytes = Bundle::encode(definition).expect(definition.name);
            let read = Bundle::decode(&bytes).expect(definition.name).definition();
            assert_eq!(format!("{read:?}"), format!("{definition:?}"));
        }
    }

    #[test]
    fn no_byte_can_be_missing_more_or_another_one() {
        let bytes = encoded();
        for end in [0, 5, 13, 14, 20, 40, 60, bytes.len() / 2, bytes.len() - 1] {
            let error = refused(&bytes[..end]);
            assert!(error.contains("no bundle") || error.contains("cut short"), "{end}: {error}");
        }
        assert!(refused(&[&bytes[..], b" "].concat()).contains("lengthened"));
        // Ahead of the hash as well as behind it.
        for at in (0..bytes.len()).step_by(bytes.len() / 97).chain(0..40) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            refused(&damaged);
        }
    }

    #[test]
    fn what_another_flux_wrote_is_refused_by_name() {
        let other = String::from_utf8(encoded()).expect("text");
        let later = other.replacen(&format!("{MAGIC}{FORMAT}"), &format!("{MAGIC}7"), 1);
        assert!(refused(later.as_bytes()).contains("it has the format 7, flux 0."));
        let own = format!("\"flux\": \"{}\"", env!("CARGO_PKG_VERSION"));
        let error = refused(&resealed(&own, "\"flux\": \"0.0.9\""));
        assert!(error.contains("built by flux 0.0.9, this is flux"), "{error}");
        let error = refused(&resealed("\"file\"", "\"path\""));
        assert!(error.contains("unknown field `path`"), "{error}");
    }

    #[test]
    fn machine_code_of_another_program_is_refused() {
        if definition().images.is_empty() {
            return;
        }
        let stages = resealed("stages = 4", "stages = 3");
        let error = refused(&stages);
        assert!(error.contains("stages = 3") && error.contains("another Program"), "{error}");
        for field in ["program", "abi"] {
            let text = String::from_utf8(encoded()).expect("text");
            let start = text.find(&format!("\"{field}\": \"")).expect(field) + field.len() + 5;
            let found = &text[start..start + 16];
            let error = refused(&resealed(found, "0123456789abcdef"));
            assert!(error.contains("another Program"), "{field}: {error}");
        }
        let error = refused(&resealed("\"ptx_bytes\": 1", "\"ptx_bytes\": 2"));
        assert!(error.contains("machine code"), "{error}");
    }

    #[test]
    fn orders_of_the_users_own_stay_with_their_program() {
        let order = CustomOrder { name: "mine".into(), function: None };
        let custom = move || vec![Schedule::sm_90a().order(Order::Custom(order.clone()))];
        let &Definition { name, file, text, .. } = definition();
        let schedules = Box::leak(Box::new(custom));
        let definition = Definition { name, file, text, schedules, images: &[] };
        let error = Bundle::encode(&definition).expect_err("a function").to_string();
        assert!(error.contains("its order `mine` is a function"), "{error}");
    }
}
