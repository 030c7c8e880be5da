//! `flux check --explain`.

use crate::Check;
use crate::check::report;
use crate::source::{self, Content, Source};
use flux_ir::check::{Explanation, Query, explain, small_launch, smallest_rejected, verify};
use flux_ir::parametric::prove;
use flux_ir::{Diagnostics, Program};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Which options were given, where those that are not have a default as well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// Some number of the launch.
    pub(crate) launch: bool,
    /// The rank.
    pub(crate) rank: bool,
}

/// What `flux check --explain` prints, and how it ends.
pub(crate) fn run(options: &Check, asked: Asked) -> Result<(String, ExitCode), Box<dyn Error>> {
    let [name] = options.kernels.as_slice() else {
        return Err("--explain takes one kernel".into());
    };
    let source = source::find(name)?;
    let program = program(&source, options)?;
    let explained = match explained(&program, options, asked) {
        Ok(explained) => explained,
        Err(found) => {
            let mut text = format!("rejected  {}\n", source.name);
            report(&source, &found, &mut text)?;
            return Ok((text, ExitCode::FAILURE));
        }
    };
    let rank = asked.rank.then_some(options.launch.rank);
    let query = Query { element: options.element.clone(), rank, launch: options.epoch };
    if let Some(drawing) = drawings(&explained, options, &query)? {
        return Ok((drawing, ExitCode::SUCCESS));
    }
    let mut text = String::new();
    let mut found = explained.diagnostics().clone();
    write!(text, "{}", explained.summary())?;
    if let Some(file) = &source.file {
        writeln!(text, "\nLines are those of {}", file.display())?;
    }
    faults(&source, &explained, &mut text)?;
    if found.is_empty() {
        writeln!(text)?;
        match explained.argument(&query) {
            Ok(argument) => write!(text, "{argument}")?,
            // Nothing was asked for, and there is nothing to argue about.
            Err(error) if query == Query::default() => writeln!(text, "{error}")?,
            Err(error) => return Err(error.into()),
        }
        if !asked.launch {
            // What no launch shows.
            found = verify(program.clone()).err().unwrap_or_default();
            if !found.is_empty() {
                writeln!(text)?;
                report(&source, &found, &mut text)?;
            }
        }
    }
    let verdicts = prove(&program);
    if !verdicts.is_empty() {
        writeln!(text, "\nCounts of waits, for every shape, world, grid and launch")?;
    }
    for verdict in verdicts {
        match &verdict.outcome {
            Ok(proof) => writeln!(text, "  proved  {}: {}", verdict.text, proof.claim)?,
            Err(unproved) => writeln!(text, "  open    {}: {unproved}", verdict.text)?,
        }
    }
    let word = if found.is_empty() { "ok      " } else { "rejected" };
    writeln!(text, "\n{word}  {}", source.name)?;
    Ok((text, if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// The Program; an order of the user's own, which only the user's program runs, gives way to the
/// default one.
fn program(source: &Source, options: &Check) -> Result<Program, Box<dyn Error>> {
    use crate::show::{with_known_order, with_order};
    let content = source.content.clone().map_err(|found| source.located(&found))?;
    match content {
        Content::Program(_) => source.program(options.schedule, &options.launch),
        Content::Kernel(kernel) => {
            let schedule = with_order(source.schedule(options.schedule)?, &options.launch)?;
            let lowered = flux_ir::lower::lower(&kernel, &with_known_order(&schedule));
            Ok(lowered.map_err(|found| source.located(&found))?)
        }
    }
}

/// The launch asked for; else the smallest that is rejected, or a small one.
fn explained<'p>(
    program: &'p Program,
    options: &Check,
    asked: Asked,
) -> Result<Explanation<'p>, Diagnostics> {
    if asked.launch {
        return explain(program, options.launch.exact());
    }
    match smallest_rejected(program)? {
        Some(rejected) => Ok(rejected),
        None => explain(program, small_launch(program)),
    }
}

/// Writes the drawings asked for; those for standard output are returned.
fn drawings(
    explained: &Explanation<'_>,
    options: &Check,
    query: &Query,
) -> Result<Option<String>, Box<dyn Error>> {
    let mut printed = None;
    let files =
        [(&options.dot, Explanation::dot as fn(&_, &_) -> _), (&options.svg, Explanation::svg)];
    for (file, draw) in files {
        let Some(file) = file else { continue };
        let drawing = draw(explained, query);
        if file == Path::new("-") {
            printed.get_or_insert_with(String::new).push_str(&drawing);
        } else {
            fs::write(file, drawing)
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
    }
    Ok(printed)
}

/// What is broken, each rule with the steps that show it.
fn faults(source: &Source, explained: &Explanation<'_>, text: &mut String) -> std::fmt::Result {
    let traces = explained.traces();
    for (index, diagnostic) in explained.diagnostics().0.iter().enumerate() {
        writeln!(text)?;
        report(source, &diagnostic.clone().into(), text)?;
        if let Some(trace) = traces.iter().find(|trace| trace.diagnostic == index) {
            write!(text, "\n{}", trace.table)?;
        }
    }
    Ok(())
}
