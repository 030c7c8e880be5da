//! Where a kernel is read from: the library, a Rust file, or a file of Kernel IR or a Program.

use flux_ir::order::CustomOrder;
use flux_ir::{Diagnostics, Kernel, Order, Program, Schedule};
use flux_syntax::{OrderSyntax, ScheduleSyntax};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a name stands for.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// A kernel, to be lowered under schedules.
    Kernel(Kernel),
    /// What is lowered already.
    Program(Box<Program>),
}

/// A kernel with the schedules it was given.
#[derive(Debug)]
pub(crate) struct Source {
    /// As the user would name it.
    pub(crate) name: String,
    /// The file whose lines positions refer to.
    pub(crate) file: Option<PathBuf>,
    pub(crate) content: Result<Content, Diagnostics>,
    /// None of a Program.
    pub(crate) schedules: Result<Vec<Schedule>, Diagnostics>,
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Syntax { path: PathBuf, error: Diagnostics },
    #[error("no kernel `{name}` in {}; there are: {known}", path.display())]
    NotInFile { name: String, path: PathBuf, known: String },
    #[error("{} is no folder, no .rs file and no .flux file", path.display())]
    NotKernels { path: PathBuf },
    #[error("{} holds several kernels: name one of {known} behind a colon", path.display())]
    Several { path: PathBuf, known: String },
    #[error(
        "no kernel `{name}` in the library; there are: {known}. A kernel of your own is named \
         FILE.rs:NAME"
    )]
    NotInLibrary { name: String, known: String },
    #[error("`{name}` is a Program: its schedule and its order are part of it")]
    IsProgram { name: String },
    #[error("`{name}` has schedules 0 to {last}, found --schedule {found}")]
    NoSchedule { name: String, last: usize, found: usize },
}

impl Source {
    /// What was found, with positions in this kernel's file.
    pub(crate) fn located(&self, found: &Diagnostics) -> String {
        match &self.file {
            Some(path) => found.in_file(&path.display().to_string()).to_string(),
            None => found.to_string(),
        }
    }

    /// The kernel's schedule numbered `index`.
    pub(crate) fn schedule(&self, index: usize) -> Result<Schedule, Box<dyn std::error::Error>> {
        let schedules = self.schedules.clone().map_err(|found| self.located(&found))?;
        let last = schedules.len().saturating_sub(1);
        schedules.into_iter().nth(index).ok_or_else(|| {
            SourceError::NoSchedule { name: self.name.clone(), last, found: index }.into()
        })
    }
}

/// The kernels of the library.
pub(crate) fn library() -> Vec<Source> {
    let sources = flux::kernels::all().into_iter().map(|definition| Source {
        name: definition.name.into(),
        file: None,
        content: definition.text.parse().map(Content::Kernel),
        schedules: Ok((definition.schedules)()),
    });
    sources.collect()
}

/// The one kernel that `name` names.
pub(crate) fn find(name: &str) -> Result<Source, SourceError> {
    if let Some((path, kernel)) = name.rsplit_once(':') {
        return in_file(Path::new(path), kernel);
    }
    let path = Path::new(name);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("flux") => read_text(path),
        Some("rs") => in_file(path, ""),
        _ if path.exists() || name.contains('/') => {
            Err(SourceError::NotKernels { path: path.into() })
        }
        _ => in_library(name),
    }
}

/// Every kernel that `name` names: of a folder, a file, or one.
pub(crate) fn find_all(name: &str) -> Result<Vec<Source>, SourceError> {
    let path = Path::new(name);
    if path.is_dir() {
        let mut sources = Vec::new();
        for file in rust_files(path)? {
            sources.extend(read_rust(&file)?);
        }
        return Ok(sources);
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => read_rust(path),
        _ => Ok(vec![find(name)?]),
    }
}

fn in_library(name: &str) -> Result<Source, SourceError> {
    let library = library();
    let known = names(&library);
    let found = library.into_iter().find(|source| source.name == name);
    found.ok_or_else(|| SourceError::NotInLibrary { name: name.into(), known })
}

/// The kernel `name` of a file, or its only one where `name` is empty.
fn in_file(path: &Path, name: &str) -> Result<Source, SourceError> {
    let mut sources = read_rust(path)?;
    let known = names(&sources);
    let matches =
        |source: &Source| source.name == name || source.name.ends_with(&format!("::{name}"));
    let found = match name {
        "" if sources.len() == 1 => sources.pop(),
        "" if !sources.is_empty() => {
            return Err(SourceError::Several { path: path.into(), known });
        }
        _ => sources.into_iter().find(matches),
    };
    found.ok_or_else(|| SourceError::NotInFile { name: name.into(), path: path.into(), known })
}

fn names(sources: &[Source]) -> String {
    let names: Vec<_> = sources.iter().map(|source| source.name.as_str()).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn read(path: &Path) -> Result<String, SourceError> {
    fs::read_to_string(path).map_err(|error| SourceError::Read { path: path.into(), error })
}

fn read_rust(path: &Path) -> Result<Vec<Source>, SourceError> {
    let text = read(path)?;
    let kernels = flux_syntax::read_file(&text)
        .map_err(|error| SourceError::Syntax { path: path.into(), error })?;
    let sources = kernels.into_iter().map(|found| Source {
        name: found.path,
        file: Some(path.into()),
        content: found.kernel.map(Content::Kernel),
        schedules: found.schedules.map(|all| all.into_iter().map(schedule).collect()),
    });
    Ok(sources.collect())
}

/// A schedule as written; an order of the user's own is known by its name alone.
fn schedule(written: ScheduleSyntax) -> Schedule {
    match written.order {
        OrderSyntax::Custom { name, .. } => {
            written.schedule.order(Order::Custom(CustomOrder { name, function: None }))
        }
        OrderSyntax::Default | OrderSyntax::BuiltIn(_) => written.schedule,
    }
}

/// A file of Kernel IR, or of a Program: what its first line that is no comment begins with.
fn read_text(path: &Path) -> Result<Source, SourceError> {
    let text = read(path)?;
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(';'));
    let name = path.display().to_string();
    let (content, schedules) = if first.is_some_and(|line| line.starts_with("program")) {
        (text.parse().map(|program| Content::Program(Box::new(program))), Vec::new())
    } else {
        (text.parse().map(Content::Kernel), vec![Schedule::sm_90a()])
    };
    // Positions in what is read are those of the source it was made from; of what cannot be read,
    // those of the file.
    let file = content.is_err().then(|| path.into());
    Ok(Source { name, file, content, schedules: Ok(schedules) })
}

/// The Rust files below a folder, in a fixed order; build output and links are left out.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let failed = |error| SourceError::Read { path: folder.into(), error };
    let mut entries = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>())
        .map_err(failed)?;
    entries.sort();
    let mut files = Vec::new();
    for path in entries {
        if path.is_symlink() {
            continue;
        }
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() && !hidden && path.file_name().is_some_and(|name| name != "target") {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}
