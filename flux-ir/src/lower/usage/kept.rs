//! Gathered tensors that are given back whole.

use super::operands::dim;
use super::{Dims, Inference};
use crate::arena::Handle;
use crate::diagnostic::Rule;
use crate::element::Element;
use crate::kernel::{Distribution, Op, ParamId, Value};
use crate::span::Span;

/// What is kept: its name, extents and elements.
struct Source {
    name: String,
    dims: Option<Dims>,
    element: Element,
}

impl Inference<'_> {
    /// Outputs that keep what was gathered: they have its extents, which the ops that use it have told.
    pub(super) fn kept(&mut self) {
        for (value, entry) in self.kernel.ops.iter() {
            if let Op::Keep { output, rows } = entry.op {
                self.keep((value, output), rows, entry.span);
            }
        }
    }

    fn keep(&mut self, (op, output): (Value, ParamId), rows: Value, span: Span) {
        let name = self.name(output).to_owned();
        let Some(source) = self.kept_source(rows).filter(|_| rows < op) else {
            let message = format!("expected gathered rows for `{name}`, found {rows}");
            let help =
                "keep what was waited for: `let a = a.wait(tile.rows());` of a `&Gathered<_>`";
            return self.error(Rule::Types, span, message, help);
        };
        let Source { name: kept, dims, element } = source;
        // What a tile stores as well is written twice, whatever its extents.
        let stores = |op: &Op| matches!(*op, Op::Store { output: of, .. } if of == output);
        let is_stored = self.kernel.ops.values().any(|entry| stores(&entry.op));
        if let Some(Dims { rows, cols }) = dims
            && !is_stored
            && output != self.kernel.tiles_of
        {
            self.unify(output, rows, cols, span);
        }
        let Some((Distribution::Global, found, true)) = self.kernel.tensor(output) else {
            let message = format!("`{name}` cannot hold all rows of `{kept}`");
            let help = format!("declare it `{name}: &mut Global<{element}>`");
            return self.error(Rule::Types, span, message, &help);
        };
        if found != element {
            let message = format!(
                "expected elements of {element} in `{name}`, as in `{kept}`, found {found}"
            );
            let help =
                format!("declare it `{name}: &mut Global<{element}>`: rows are copied as they are");
            self.error(Rule::Types, span, message, &help);
        }
        if output == self.kernel.tiles_of {
            let message = format!("the loop goes over the tiles of `{name}`, which keeps `{kept}`");
            let help = "go over the tiles of an output that the loop stores";
            self.error(Rule::Types, span, message, help);
        }
    }

    /// What a wait made ready; nothing where that is no gathered tensor.
    fn kept_source(&self, rows: Value) -> Option<Source> {
        match self.kernel.ops.get(rows)?.op {
            Op::Wait { tensor } => match self.kernel.tensor(tensor)? {
                (Distribution::Gathered, element, false) => {
                    let dims = self.dims[tensor.index()].map(|(dims, _)| dims);
                    Some(Source { name: self.name(tensor).to_owned(), dims, element })
                }
                _ => None,
            },
            Op::Ready { buffer, .. } => {
                let workspace = self.parts()?.buffers.get(buffer)?;
                let dims = dim(&workspace.rows).zip(dim(&workspace.cols));
                let dims = dims.map(|(rows, cols)| Dims { rows, cols });
                Some(Source { name: workspace.name.clone(), dims, element: workspace.element })
            }
            _ => None,
        }
    }
}
