//! `flux show`.

use crate::order;
use crate::source::{self, Source};
use crate::{LaunchOptions, Show};
use flux_ir::check::verify;
use flux_ir::lower::lower;
use flux_ir::{Order, Program, Schedule};
use std::error::Error;
use std::fmt::Write;

/// What `flux show` prints.
pub(crate) fn run(options: &Show) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    let Some(name) = &options.kernel else {
        for source in source::library() {
            writeln!(text, "{}", source.name)?;
            for (index, schedule) in source.schedules?.iter().enumerate() {
                writeln!(text, "  schedule {index}: {schedule}")?;
            }
        }
        return Ok(text);
    };
    let source = source::find(name)?;
    let kernel = source.kernel.clone().map_err(|found| source.located(&found))?;
    let nothing_asked = !(options.program || options.ptx || options.order);
    if options.ir || nothing_asked {
        write!(text, "{kernel}")?;
    }
    if options.program || options.ptx || options.order {
        let program = lowered(&source, options)?;
        if options.program {
            write!(text, "{program}")?;
        }
        if options.order {
            text += &order::draw(&program, &options.launch)?;
        }
        if options.ptx {
            // Machine code reads its order from a table, so one of the user's own does not matter.
            let tried = with_known_order(&source.schedule(options.schedule)?);
            let verified = verify(lower(&kernel, &tried)?);
            let verified = verified.map_err(|found| source.located(&found))?;
            text += &flux_codegen::compile(&verified)?.ptx;
        }
    }
    Ok(text)
}

/// The schedule with the default order in place of a function, which only the user's program runs.
pub(crate) fn with_known_order(schedule: &Schedule) -> Schedule {
    let mut known = schedule.clone();
    if let Some(Order::Custom(_)) = known.order {
        known.order = None;
    }
    known
}

fn lowered(source: &Source, options: &Show) -> Result<Program, Box<dyn Error>> {
    let schedule = with_order(source.schedule(options.schedule)?, &options.launch)?;
    let kernel = source.kernel.clone().map_err(|found| source.located(&found))?;
    Ok(lower(&kernel, &schedule).map_err(|found| source.located(&found))?)
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
