//! What a kernel's tokens mean, before anything is generated.

use crate::compile::{self, Compiled};
use crate::order;
use flux_ir::{Diagnostic, Diagnostics, Element, Kernel, Rule};
use flux_syntax::{
    Function, ModuleScope, Parameter, ScheduleSyntax, parse_schedules, parse_signature, position,
    read_kernel,
};
use proc_macro2::TokenStream;

/// A kernel as the macro knows it.
pub(crate) struct Model {
    /// The function, without the attributes that were read.
    pub(crate) function: Function,
    /// Its parameters, those of unknown type included.
    pub(crate) parameters: Vec<Parameter>,
    /// Its schedules; never empty.
    pub(crate) schedules: Vec<ScheduleSyntax>,
    /// Kernel IR, where the kernel was understood.
    pub(crate) kernel: Option<Kernel>,
    /// Functions of the language, as they were written.
    pub(crate) functions: Vec<syn::Path>,
    /// Types to which is cast, as they were written and as they were read.
    pub(crate) casts: Vec<(syn::Type, Element)>,
    /// Compiled kernels, by schedule.
    pub(crate) compiled: Vec<(usize, Compiled)>,
    /// Assertions on tile orders that rustc can run.
    pub(crate) assertions: Vec<TokenStream>,
    /// What is wrong.
    pub(crate) errors: Diagnostics,
}

impl Model {
    /// Reads, checks and compiles.
    pub(crate) fn of(mut function: Function, scope: &ModuleScope) -> Self {
        let mut errors = Diagnostics::new();
        let name = position(&function.sig.ident);
        let mut schedules = parse_schedules(&function.attrs).unwrap_or_else(|found| {
            errors = found;
            Vec::new()
        });
        let (parameters, _) = parse_signature(&function);
        let (kernel, functions, casts) = match read_kernel(&function, scope) {
            Ok(reading) => (Some(reading.kernel), reading.functions, reading.casts),
            Err(found) => {
                // rustc parses the body as well, and says so better.
                errors.0.extend(found.0.into_iter().filter(|error| error.rule != Rule::Syntax));
                (None, Vec::new(), Vec::new())
            }
        };
        if schedules.is_empty() {
            schedules.push(ScheduleSyntax::default_for(kernel.as_ref(), name));
        }
        function.attrs.retain(|attr| {
            !flux_syntax::is_attribute(attr, "schedule")
                && !flux_syntax::is_attribute(attr, "kernel")
        });
        let assertions =
            schedules.iter().filter_map(|schedule| order::assertion(schedule, scope)).collect();
        let mut model = Model {
            function,
            parameters,
            schedules,
            kernel,
            functions,
            casts,
            compiled: Vec::new(),
            assertions,
            errors,
        };
        if model.errors.is_empty() {
            model.compile();
        }
        model
    }

    fn compile(&mut self) {
        let Some(kernel) = &self.kernel else {
            return;
        };
        for (index, schedule) in self.schedules.iter().enumerate() {
            match compile::compile(kernel, &schedule.schedule) {
                Ok(Some(compiled)) => self.compiled.push((index, compiled)),
                Ok(None) => {}
                Err(found) => {
                    for error in found.0 {
                        let error = placed(error, schedule);
                        // What a kernel does wrong, it does wrong under every schedule.
                        if !self.errors.0.contains(&error) {
                            self.errors.push(error);
                        }
                    }
                }
            }
        }
    }
}

/// A finding that begins with the name of a choice stands at that choice in the schedule, which
/// neither IR knows: `stages = 6 needs …`.
fn placed(mut error: Diagnostic, schedule: &ScheduleSyntax) -> Diagnostic {
    let of_schedule = matches!(error.rule, Rule::Schedule | Rule::Resources);
    let first = error.message.split([' ', ',']).next().unwrap_or_default().trim_matches('`');
    match schedule.written.iter().find(|(choice, _)| *choice == first) {
        Some((_, span)) if of_schedule => error.span = *span,
        _ if !error.span.is_known() => error.span = schedule.span,
        _ => {}
    }
    error
}
