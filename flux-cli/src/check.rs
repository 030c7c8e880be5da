//! `flux check`.

use crate::Check;
use crate::show::{with_known_order, with_order};
use crate::source::{self, Content, Source};
use flux_ir::check::{Verified, verify};
use flux_ir::lower::checked;
use flux_ir::{Diagnostic, Diagnostics, Order, Rule, Span};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

/// What `flux check` prints, and how it ends.
pub(crate) fn run(options: &Check) -> Result<(String, ExitCode), Box<dyn Error>> {
    let sources = if options.kernels.is_empty() {
        source::library()
    } else {
        let mut sources = Vec::new();
        for name in &options.kernels {
            sources.extend(source::find_all(name)?);
        }
        sources
    };
    let mut text = String::new();
    let (mut accepted, mut rejected) = (0, 0);
    for source in &sources {
        match check(source, options) {
            Ok(passed) => {
                accepted += 1;
                writeln!(text, "ok        {} ({passed})", source.name)?;
            }
            Err(found) => {
                rejected += 1;
                writeln!(text, "rejected  {}", source.name)?;
                report(source, &found, &mut text)?;
            }
        }
    }
    writeln!(text, "{accepted} accepted, {rejected} rejected")?;
    Ok((text, if rejected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// What passed.
fn check(source: &Source, options: &Check) -> Result<String, Diagnostics> {
    let kernel = match source.content.clone()? {
        Content::Kernel(kernel) => kernel,
        Content::Program(program) => {
            if options.launch.order_name.is_some() {
                let message = "the order of a Program is part of it: leave --by out";
                return Err(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message).into());
            }
            pass(&verify(*program)?, options)?;
            return Ok("a Program".into());
        }
    };
    let schedules = source.schedules.clone()?;
    let mut passed = format!("{} schedules", schedules.len());
    for schedule in &schedules {
        let schedule = with_order(schedule.clone(), &options.launch).map_err(|error| {
            let (rule, span) = (Rule::Schedule, kernel.span);
            Diagnostics::from(Diagnostic::new(rule, span, error.to_string()))
        })?;
        if let Some(Order::Custom(order)) = &schedule.order {
            // A function of the user's program: tried when the kernel is loaded there.
            passed += &format!("; order `{}` is a function and was not tried", order.name);
        }
        let verified = checked(&kernel, &with_known_order(&schedule))?;
        pass(&verified, options)?;
    }
    Ok(passed)
}

/// Checks the exact launch, where that is asked for.
fn pass(verified: &Verified, options: &Check) -> Result<(), Diagnostics> {
    if options.exact {
        verified.check_launch(options.launch.exact())?;
    }
    Ok(())
}

/// Appends what was found, each with the line it points at.
pub(crate) fn report(source: &Source, found: &Diagnostics, text: &mut String) -> std::fmt::Result {
    let file = source.file.as_ref().and_then(|path| fs::read_to_string(path).ok());
    for diagnostic in &found.0 {
        writeln!(text, "{}", source.located(&diagnostic.clone().into()))?;
        let line = file.as_ref().and_then(|file| {
            let line = (diagnostic.span.line as usize).checked_sub(1)?;
            file.lines().nth(line)
        });
        if let Some(line) = line {
            let at = diagnostic.span.column.saturating_sub(1) as usize;
            writeln!(text, "   |\n   | {line}\n   | {:at$}^", "")?;
        }
    }
    Ok(())
}
