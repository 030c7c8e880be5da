//! `flux show`.

use crate::order;
use crate::source::{self, Content, Source, SourceError};
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
    let content = source.content.clone().map_err(|found| source.located(&found))?;
    let nothing_asked = !(options.program || options.ptx || options.order);
    match &content {
        Content::Program(_) if options.ir => {
            return Err(format!("{name} is a Program: its kernel is not in it").into());
        }
        Content::Kernel(kernel) if options.ir || nothing_asked => write!(text, "{kernel}")?,
        Content::Program(program) if nothing_asked => write!(text, "{program}")?,
        Content::Kernel(_) | Content::Program(_) => {}
    }
    if options.program || options.ptx || options.order {
        let program = source.program(options.schedule, &options.launch)?;
        if options.program {
            write!(text, "{program}")?;
        }
        if options.order {
            text += &order::draw(&program, &options.launch)?;
        }
        if options.ptx {
            // Machine code reads its order from a table, so one of the user's own does not matter.
            let tried = match &content {
                Content::Kernel(kernel) => {
                    lower(kernel, &with_known_order(&source.schedule(options.schedule)?))
                        .map_err(|found| source.located(&found))?
                }
                Content::Program(program) => (**program).clone(),
            };
            let verified = verify(tried).map_err(|found| source.located(&found))?;
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

impl Source {
    /// The Program: as it is, or lowered under one of the kernel's schedules, in the order asked
    /// for on the command line.
    pub(crate) fn program(
        &self,
        schedule: usize,
        launch: &LaunchOptions,
    ) -> Result<Program, Box<dyn Error>> {
        let content = self.content.clone().map_err(|found| self.located(&found))?;
        match content {
            Content::Program(_) if schedule != 0 || launch.order_name.is_some() => {
                Err(SourceError::IsProgram { name: self.name.clone() }.into())
            }
            Content::Program(program) => Ok(*program),
            Content::Kernel(kernel) => {
                let schedule = with_order(self.schedule(schedule)?, launch)?;
                Ok(lower(&kernel, &schedule).map_err(|found| self.located(&found))?)
            }
        }
    }
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
