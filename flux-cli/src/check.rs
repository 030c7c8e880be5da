//! `flux check`.

use crate::Check;
use crate::show::with_order;
use crate::source::{self, Source};
use flux_ir::check::verify;
use flux_ir::eval::Launch;
use flux_ir::lower::lower;
use flux_ir::{Diagnostics, Shape};
use std::error::Error;
use std::fs;
use std::process::ExitCode;

pub(crate) fn run(options: &Check) -> Result<ExitCode, Box<dyn Error>> {
    let sources = if options.kernels.is_empty() {
        source::library()
    } else {
        let mut sources = Vec::new();
        for name in &options.kernels {
            sources.extend(source::find_all(name)?);
        }
        sources
    };
    let (mut accepted, mut rejected) = (0, 0);
    for source in &sources {
        match check(source, options) {
            Ok(schedules) => {
                accepted += 1;
                println!("ok        {} ({schedules} schedules)", source.name);
            }
            Err(found) => {
                rejected += 1;
                println!("rejected  {}", source.name);
                report(source, &found);
            }
        }
    }
    println!("{accepted} accepted, {rejected} rejected");
    Ok(if rejected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The number of schedules that passed.
fn check(source: &Source, options: &Check) -> Result<usize, Diagnostics> {
    let kernel = source.kernel.clone()?;
    let schedules = source.schedules.clone()?;
    for schedule in &schedules {
        let schedule = with_order(schedule.clone(), &options.launch).map_err(|error| {
            let (rule, span) = (flux_ir::Rule::Schedule, kernel.span);
            Diagnostics::from(flux_ir::Diagnostic::new(rule, span, error.to_string()))
        })?;
        let verified = verify(lower(&kernel, &schedule)?)?;
        if options.exact {
            let launch = &options.launch;
            let shape = Shape { m: launch.m, n: launch.n, k: launch.k };
            let (world, ctas) = (launch.world, launch.ctas);
            verified.check_launch(Launch { shape, world, ctas })?;
        }
    }
    Ok(schedules.len())
}

/// Prints what was found, each with the line it points at.
fn report(source: &Source, found: &Diagnostics) {
    let text = source.file.as_ref().and_then(|path| fs::read_to_string(path).ok());
    for diagnostic in &found.0 {
        println!("{diagnostic}");
        let line = text.as_ref().and_then(|text| {
            let line = (diagnostic.span.line as usize).checked_sub(1)?;
            text.lines().nth(line)
        });
        if let Some(line) = line {
            let at = diagnostic.span.column.saturating_sub(1) as usize;
            println!("   |\n   | {line}\n   | {:at$}^", "");
        }
    }
}
