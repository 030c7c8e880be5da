//! The kernels of a whole source text, for tools that have no macro expansion at hand.

use crate::body::parse_kernel;
use crate::function::{Function, is_attribute, text_of_name};
use crate::limits::{nested_too_deep, too_deep};
use crate::module::ModuleScope;
use crate::position::at;
use crate::schedule::{ScheduleSyntax, parse_schedules};
use flux_ir::{Diagnostic, Diagnostics, Kernel, Rule};
use syn::visit::{self, Visit};
use syn::{ItemFn, ItemMod};

/// A kernel found in a source text.
#[derive(Debug)]
pub struct FileKernel {
    /// Its name, after those of the modules it stands in, as `kernels::ag_gemm`.
    pub path: String,
    /// The kernel, or what is wrong with it.
    pub kernel: Result<Kernel, Diagnostics>,
    /// Its schedules, or what is wrong with them; one default where none is written.
    pub schedules: Result<Vec<ScheduleSyntax>, Diagnostics>,
}

/// Every `#[flux::kernel]`, and every `#[kernel]` of a `#[flux::module]`, in order.
///
/// # Errors
/// [`Rule::Syntax`] where `source` is no Rust, [`Rule::Language`] where it is nested too deep to be
/// parsed. What is wrong with one kernel is in that kernel's
/// entry.
pub fn read_file(source: &str) -> Result<Vec<FileKernel>, Diagnostics> {
    // Text that is not even tokens is reported by the parser.
    if let Some(token) = source.parse().ok().and_then(too_deep) {
        return Err(nested_too_deep(at(token)).into());
    }
    let file = syn::parse_file(source)
        .map_err(|error| Diagnostic::new(Rule::Syntax, at(error.span()), error.to_string()))?;
    let mut finder = Finder { path: Vec::new(), scope: ModuleScope::default(), found: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct Finder {
    path: Vec<String>,
    scope: ModuleScope,
    found: Vec<FileKernel>,
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let is_flux = item.attrs.iter().any(|attr| is_attribute(attr, "module"));
        let scope = if is_flux { ModuleScope::of(item) } else { ModuleScope::default() };
        let outer = std::mem::replace(&mut self.scope, scope);
        self.path.push(text_of_name(&item.ident));
        visit::visit_item_mod(self, item);
        self.path.pop();
        self.scope = outer;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if item.attrs.iter().any(|attr| is_attribute(attr, "kernel")) {
            let function = Function::from(item.clone());
            let name = function.name();
            let path = self.path.iter().cloned().chain([name]).collect::<Vec<_>>().join("::");
            let kernel = parse_kernel(&function, &self.scope);
            let schedules = parse_schedules(&function.attrs).map(|mut schedules| {
                if schedules.is_empty() {
                    schedules.push(ScheduleSyntax::default_for(
                        kernel.as_ref().ok(),
                        at(function.sig.ident.span()),
                    ));
                }
                schedules
            });
            self.found.push(FileKernel { path, kernel, schedules });
        } else {
            // Kernels may stand in the body of a function.
            visit::visit_item_fn(self, item);
        }
    }
}
