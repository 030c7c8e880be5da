//! `flux build`.

use crate::Build;
use crate::source::{self, Content, Source};
use flux::{Bundle, Definition, Image};
use flux_ir::check::verify;
use flux_ir::lower::lower;
use flux_ir::{Kernel, Order, Schedule, Target, fingerprint};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// How a bundle's file name ends, where only its folder is given.
const EXTENSION: &str = "flux-bundle";

/// What `flux build` prints.
pub(crate) fn run(options: &Build) -> Result<String, Box<dyn Error>> {
    let output = Path::new(&options.output);
    let into_folder = output.is_dir() || options.output.ends_with('/');
    let sources = if into_folder {
        source::find_all(&options.bundle)?
    } else {
        vec![source::find(&options.bundle)?]
    };
    // Nothing is written where one of them is refused.
    let definitions: Vec<_> = sources.iter().map(compiled).collect::<Result<_, _>>()?;
    if into_folder {
        have_names_of_their_own(&sources, &definitions, &options.output)?;
    }
    let mut text = String::new();
    for (source, definition) in sources.iter().zip(definitions) {
        let path = if into_folder {
            output.join(format!("{}.{EXTENSION}", definition.name))
        } else {
            output.to_owned()
        };
        let bytes = Bundle::encode(definition)?;
        write(&path, &bytes)?;
        let runs_on = match definition.images.len() {
            0 => "for the host alone".to_owned(),
            1 => "machine code of 1 schedule".to_owned(),
            count => format!("machine code of {count} schedules"),
        };
        let bytes = bytes.len();
        writeln!(text, "{}: `{}`, {runs_on}, {bytes} bytes", path.display(), source.name)?;
    }
    Ok(text)
}

/// Refuses two kernels of one name: the file of one would take the place of the other's.
fn have_names_of_their_own(
    sources: &[Source],
    definitions: &[&Definition],
    folder: &str,
) -> Result<(), String> {
    let mut known = BTreeMap::new();
    for (source, definition) in sources.iter().zip(definitions) {
        let name = definition.name;
        let Some(other) = known.insert(name, source) else { continue };
        let place = |source: &Source| format!("`{}` of {}", source.name, file_of(source));
        return Err(format!(
            "{} and {} would both be {name}.{EXTENSION} in {folder}: build each by itself, \
             `flux build --bundle FILE.rs:NAME -o PATH`",
            place(other),
            place(source)
        ));
    }
    Ok(())
}

/// Renamed into place: whoever reads sees the old bundle or the new one.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    }
    let draft = PathBuf::from(format!("{}.{}.draft", path.display(), std::process::id()));
    fs::write(&draft, bytes).map_err(|error| failed(&draft, error))?;
    fs::rename(&draft, path).map_err(|error| failed(path, error))
}

/// The kernel under all of its schedules. It stays until the process ends, as those of the library do.
fn compiled(source: &Source) -> Result<&'static Definition, Box<dyn Error>> {
    let kernel = match source.content.clone().map_err(|found| source.located(&found))? {
        Content::Kernel(kernel) => kernel,
        Content::Program(_) => {
            let problem =
                "a bundle holds a kernel, which is lowered and checked again where it is loaded";
            return Err(format!("`{}` is a Program: {problem}", source.name).into());
        }
    };
    let schedules = source.schedules.clone().map_err(|found| source.located(&found))?;
    let mut images = Vec::new();
    for (index, schedule) in schedules.iter().enumerate() {
        images.extend(image(source, &kernel, (index, schedule))?);
    }
    let file = file_of(source);
    let (name, text) = (kernel.name.clone().leak(), kernel.to_string().leak());
    let (file, images) = (file.leak(), images.leak());
    let schedules: &'static (dyn Fn() -> Vec<Schedule> + Send + Sync) =
        Box::leak(Box::new(move || schedules.clone()));
    Ok(Box::leak(Box::new(Definition { name, file, text, schedules, images })))
}

/// The file whose lines positions in the kernel are of.
fn file_of(source: &Source) -> String {
    if let Some(path) = &source.file {
        return path.display().to_string();
    }
    let library = flux::kernels::all();
    let own = library.iter().find(|definition| definition.name == source.name);
    own.map_or_else(|| source.name.clone(), |definition| definition.file.to_owned())
}

/// Machine code; none for the host.
fn image(
    source: &Source,
    kernel: &Kernel,
    (index, schedule): (usize, &Schedule),
) -> Result<Option<Image>, Box<dyn Error>> {
    // Refused where the bundle is encoded, in words that say why.
    if matches!(schedule.order, Some(Order::Custom(_))) {
        return Ok(None);
    }
    let verified = lower(kernel, schedule).and_then(verify);
    let verified = verified.map_err(|found| source.located(&found))?;
    match schedule.target {
        Target::Host => return Ok(None),
        Target::Sm90a => {}
    }
    let image = flux_codegen::compile(&verified)?;
    Ok(Some(Image {
        schedule: index,
        entry: image.entry.leak(),
        ptx: image.ptx.leak(),
        shared_bytes: image.shared_bytes,
        fingerprint: fingerprint::of_program(verified.program()),
        recorded: false,
    }))
}
