//! `flux show`.

use crate::order;
use crate::source::{self, Source};
use crate::{LaunchOptions, Show};
use flux_ir::check::verify;
use flux_ir::lower::lower;
use flux_ir::{Order, Program, Schedule};
use std::error::Error;
use std::process::ExitCode;

pub(crate) fn run(options: &Show) -> Result<ExitCode, Box<dyn Error>> {
    let Some(name) = &options.kernel else {
        for source in source::library() {
            println!("{}", source.name);
            for (index, schedule) in source.schedules?.iter().enumerate() {
                println!("  schedule {index}: {schedule}");
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let source = source::find(name)?;
    let kernel = source.kernel.clone()?;
    let nothing_asked = !(options.program || options.ptx || options.order);
    if options.ir || nothing_asked {
        print!("{kernel}");
    }
    if options.program || options.ptx || options.order {
        let program = lowered(&source, options)?;
        if options.program {
            print!("{program}");
        }
        if options.order {
            print!("{}", order::draw(&program, &options.launch)?);
        }
        if options.ptx {
            print!("{}", flux_codegen::compile(&verify(program)?)?.ptx);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn lowered(source: &Source, options: &Show) -> Result<Program, Box<dyn Error>> {
    let schedule = with_order(source.schedule(options.schedule)?, &options.launch)?;
    Ok(lower(&source.kernel.clone()?, &schedule)?)
}

/// The schedule with the order asked for on the command line.
pub(crate) fn with_order(
    schedule: Schedule,
    launch: &LaunchOptions,
) -> Result<Schedule, Box<dyn Error>> {
    let Some(name) = &launch.order_name else { return Ok(schedule) };
    let known: Vec<_> = Order::BUILT_IN.iter().map(|order| order.name().to_owned()).collect();
    let order = Order::built_in(name)
        .ok_or_else(|| format!("no built-in order `{name}`; there are: {}", known.join(", ")))?;
    Ok(schedule.order(order))
}
