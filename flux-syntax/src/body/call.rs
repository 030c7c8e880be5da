//! Calls of functions, helpers and closures.

use super::{Bound, Callable, Closure, Reader};
use crate::conditional::conditions;
use crate::function::{Function, text_of_name};
use crate::limits::deep_expression;
use crate::module::Unclear;
use crate::position::{at, position};
use crate::signature::{text_of, written_element};
use crate::suggest::nearest;
use flux_ir::kernel::{Binary, Distribution, Lhs, Op, Unary};
use flux_ir::program::{Expr as Index, Sym};
use flux_ir::{Diagnostic, Rule, Span};
use quote::ToTokens;
use syn::visit::Visit;
use syn::{Expr, ExprCall, ExprPath, FnArg, PathArguments};

/// The functions that kernels write by name, besides those of one or two operands.
const GEMM: &str = "gemm";
const CAST: &str = "cast";

/// Calls inside calls: more is a mistake, or a kernel nobody can read.
const DEEPEST: usize = 64;

/// Every function of the language.
pub(super) fn function_names() -> impl Iterator<Item = &'static str> {
    let unary = Unary::ALL.into_iter().filter(|op| *op != Unary::Neg).map(Unary::name);
    let of_protocols = super::protocol::FUNCTIONS.into_iter().map(|(name, _)| name);
    let names = [GEMM, CAST, Binary::Max.name(), Binary::Min.name()];
    names.into_iter().chain(unary).chain(of_protocols)
}

/// A function of one operand that kernels call by name; `-x` is an operator.
pub(super) fn unary_of(name: &str) -> Option<Unary> {
    Unary::ALL.into_iter().find(|op| op.name() == name && *op != Unary::Neg)
}

/// A function of two operands that kernels call by name; the others are operators.
pub(super) fn binary_of(name: &str) -> Option<Binary> {
    [Binary::Max, Binary::Min].into_iter().find(|op| op.name() == name)
}

impl<'a> Reader<'a> {
    /// A name: of a parameter, a `let`, a constant, or a function. Innermost first, as in Rust,
    /// where also a module's own items hide those of the prelude.
    pub(super) fn path(&mut self, path: &'a ExprPath) -> Bound<'a> {
        let segments = &path.path.segments;
        let last = segments.last().expect("a path has a segment");
        let name = text_of_name(&last.ident);
        let span = at(last.ident.span());
        let first = text_of_name(&segments.first().expect("a path has a segment").ident);
        let of_module = segments.len() == 1 || (segments.len() == 2 && first == "self");
        let of_flux = segments.len() > 1 && (first == "flux" || first == "lang");
        if let Some(qself) = &path.qself {
            let help = "call a function by its name, or a method on its operand: `x.relu()`";
            return self.refuse(at(qself.lt_token.span), "a kernel names no traits", help);
        }
        if segments.len() == 1
            && let Some((_, bound)) = self.names.iter().rev().find(|(known, _)| *known == name)
        {
            return bound.clone();
        }
        if of_module {
            let scope = self.scope;
            if let Some(unclear) = scope.unclear.get(&name) {
                return self.unclear(&name, *unclear, span);
            }
            if let Some(item) = scope.constants.get(&name) {
                return self.constant(item, span);
            }
            if let Some(function) = scope.functions.get(&name) {
                return Bound::Callable(Callable::Helper(function));
            }
            if scope.kernels.contains(&name) {
                let help = "put what both share into a helper function of the module";
                return self.refuse(
                    span,
                    format!("`{name}` is a kernel; kernels do not call each other"),
                    help,
                );
            }
        }
        if segments.len() == 2 && first == "Extent" {
            match name.as_str() {
                "M" => return Bound::Extent(Sym::M),
                "N" => return Bound::Extent(Sym::N),
                "K" => return Bound::Extent(Sym::K),
                _ => {}
            }
        }
        if segments.len() == 1 || of_flux {
            if function_names().any(|function| function == name) {
                let mut written = path.path.clone();
                written.segments.iter_mut().for_each(|s| s.arguments = PathArguments::None);
                if !self.functions.contains(&written) {
                    self.functions.push(written);
                }
            }
            if let Some(op) = unary_of(&name) {
                return Bound::Callable(Callable::Unary(op));
            }
            if let Some(op) = binary_of(&name) {
                return Bound::Callable(Callable::Binary(op));
            }
            if name == GEMM {
                return Bound::Callable(Callable::Gemm);
            }
            if name == CAST {
                return self.cast_to(&last.arguments, span);
            }
            if let Some(function) = self.protocol_function(&name, &last.arguments) {
                return Bound::Callable(Callable::Protocol(function));
            }
        }
        self.unknown(&text_of(&path.path), &name, span)
    }

    /// `cast::<T>` names its type; the type itself is not checked where none is written.
    pub(super) fn cast_to(&mut self, arguments: &PathArguments, span: Span) -> Bound<'a> {
        match written_element(arguments) {
            Some((written, element)) => {
                if !self.casts.iter().any(|(known, _)| known == written) {
                    self.casts.push((written.clone(), element));
                }
                Bound::Callable(Callable::Cast(Some(element)))
            }
            None => {
                let help = "write `cast::<bf16>(x)`; the types are bf16, f16 and f32";
                self.mistyped(span, "expected an element type to round to", help)
            }
        }
    }

    /// A name of the module of which rustc may know another item than was read.
    fn unclear(&mut self, name: &str, unclear: Unclear, span: Span) -> Bound<'a> {
        let (message, help, place, note) = match unclear {
            Unclear::Conditional(place) => (
                format!("rustc decides whether this `{name}` exists after the macro has read it"),
                "put the `cfg` on whole kernels, each with constants and helpers of its own",
                place,
                "its condition",
            ),
            Unclear::Twice(place) => (
                format!("there are two `{name}` in the module"),
                "give each a name of its own",
                place,
                "the second one",
            ),
        };
        let error = Diagnostic::new(Rule::Language, span, message).note(place, note).help(help);
        self.report(error)
    }

    fn unknown(&mut self, path: &str, name: &str, span: Span) -> Bound<'a> {
        let local: Vec<String> = self.names.iter().map(|(name, _)| name.clone()).collect();
        let scope = self.scope;
        let module = scope.constants.keys().chain(scope.functions.keys());
        let mut names: Vec<&str> = local.iter().chain(module).map(String::as_str).collect();
        for name in function_names() {
            names.push(name);
        }
        let help = if let Some(meant) = nearest(name, names) {
            format!("did you mean `{meant}`?")
        } else if scope.in_module {
            format!(
                "define `{name}` in this module; a kernel sees its own module and the functions \
                    of the prelude"
            )
        } else {
            format!(
                "put kernel and `{name}` in one `#[flux::module] mod`; a kernel sees its module \
                    and the functions of the prelude"
            )
        };
        self.mistyped(span, format!("`{path}` is unknown to the kernel"), help)
    }

    pub(super) fn call(&mut self, call: &'a ExprCall) -> Bound<'a> {
        let callee = self.expression(&call.func);
        let span = match super::expression::strip(&call.func) {
            Expr::Path(path) => {
                path.path.segments.last().map_or(position(path), |s| at(s.ident.span()))
            }
            other => position(other),
        };
        match callee {
            Bound::Callable(callable) => self.apply(&callable, call.args.iter().collect(), span),
            Bound::Broken => {
                // The arguments may hold further mistakes.
                for arg in &call.args {
                    self.expression(arg);
                }
                Bound::Broken
            }
            _ => {
                self.mistyped(span, "expected a function, found a value", "remove the parentheses")
            }
        }
    }

    fn apply(&mut self, callable: &Callable<'a>, args: Vec<&'a Expr>, span: Span) -> Bound<'a> {
        match callable {
            Callable::Gemm => return self.gemm(&args, span),
            Callable::Protocol(function) => return self.call_protocol(*function, &args, span),
            _ => {}
        }
        let bound: Vec<_> = args.iter().map(|arg| (self.expression(arg), position(*arg))).collect();
        self.apply_to(callable, bound, span)
    }

    /// Calls `callable` on what its arguments stand for.
    pub(super) fn apply_to(
        &mut self,
        callable: &Callable<'a>,
        args: Vec<(Bound<'a>, Span)>,
        span: Span,
    ) -> Bound<'a> {
        match callable {
            Callable::Closure(closure) => {
                let closure = closure.clone();
                self.call_closure(&closure, args, span)
            }
            Callable::Helper(function) => self.call_helper(function, args, span),
            Callable::Gemm => {
                self.mistyped(span, "`gemm` is called by name", "write `gemm(a, b.t(), tile)`")
            }
            Callable::Protocol(_) => self.mistyped(
                span,
                "functions of protocols are called by name",
                "call it: `rank()`",
            ),
            Callable::Unary(op) => {
                let name = op.name();
                let [arg] = args.as_slice() else {
                    return self.wrong_arity(name, 1, args.len(), span, &format!("{name}(x)"));
                };
                match self.as_value(arg.0.clone(), arg.1) {
                    Some(x) => Bound::Value(self.emit(Op::Unary { op: *op, x }, span)),
                    None => Bound::Broken,
                }
            }
            Callable::Binary(op) => {
                let name = op.name();
                let [x, y] = args.as_slice() else {
                    return self.wrong_arity(name, 2, args.len(), span, &format!("{name}(x, y)"));
                };
                let is_literal = |x: &Bound| matches!(x, Bound::Index(Index::Int(_)));
                if let (Bound::Index(_), Bound::Index(_)) = (&x.0, &y.0)
                    && !(is_literal(&x.0) && is_literal(&y.0))
                {
                    let message = format!("`{name}` is of tiles and f32, found integers");
                    let help = format!("of integers it is a method: `a.{name}(b)`");
                    return self.mistyped(span, message, help);
                }
                let x = self.as_value(x.0.clone(), x.1);
                let y = self.as_value(y.0.clone(), y.1);
                match (x, y) {
                    (Some(x), Some(y)) => {
                        Bound::Value(self.emit(Op::Binary { op: *op, x, y }, span))
                    }
                    _ => Bound::Broken,
                }
            }
            Callable::Cast(to) => {
                let [arg] = args.as_slice() else {
                    return self.wrong_arity(CAST, 1, args.len(), span, "cast::<bf16>(x)");
                };
                match (self.as_value(arg.0.clone(), arg.1), *to) {
                    (Some(x), Some(to)) => Bound::Value(self.emit(Op::Cast { x, to }, span)),
                    _ => Bound::Broken,
                }
            }
        }
    }

    pub(super) fn wrong_arity(
        &mut self,
        name: &str,
        expected: usize,
        found: usize,
        span: Span,
        usage: &str,
    ) -> Bound<'a> {
        let plural = if expected == 1 { "" } else { "s" };
        let message = format!("`{name}` takes {expected} argument{plural}, found {found}");
        self.mistyped(span, message, format!("write `{usage}`"))
    }

    fn gemm(&mut self, args: &[&'a Expr], span: Span) -> Bound<'a> {
        let [a, b, tile] = args else {
            return self.wrong_arity(GEMM, 3, args.len(), span, "gemm(a, b.t(), tile)");
        };
        let lhs = self.left_operand(a);
        let rhs = self.right_operand(b);
        let tile = match self.within {
            super::protocol::Within::Slice => self.slice(tile),
            _ => self.tile(tile),
        };
        match (lhs, rhs, tile) {
            (Some(a), Some((b, transposed)), Some(())) => {
                Bound::Value(self.emit(Op::Gemm { a, b, transposed }, span))
            }
            _ => Bound::Broken,
        }
    }

    /// Whether an output is of the rows that a rank owns: so are the tiles then.
    fn tiles_own_rows(&self) -> bool {
        self.outputs().into_iter().any(|output| {
            matches!(self.tensor(output).0, Distribution::Sharded | Distribution::Exchanged)
        })
    }

    fn left_operand(&mut self, expr: &'a Expr) -> Option<Lhs> {
        let span = position(super::expression::strip(expr));
        let (message, help) = match self.expression(expr) {
            Bound::Broken => return None,
            Bound::Ready(value) => return Some(Lhs::Ready(value)),
            Bound::Tensor(param) => {
                let name = self.name_of(param);
                match self.tensor(param) {
                    (Distribution::Global, false) => return Some(Lhs::Param(param)),
                    (Distribution::Gathered, _) => (
                        format!("rows of `{name}` may still be in flight"),
                        format!("write `let {name} = {name}.wait(tile.rows());`"),
                    ),
                    (Distribution::Sharded, false) if self.tiles_own_rows() => {
                        return Some(Lhs::Param(param));
                    }
                    (Distribution::Exchanged, false) => (
                        format!("columns of `{name}` may still be in flight"),
                        format!("write `let {name} = {name}.wait(tile.rows());`"),
                    ),
                    (Distribution::Sharded, false) => (
                        format!("`{name}` holds this rank's rows alone"),
                        format!(
                            "declare it `{name}: &Gathered<T>` to multiply the rows of every rank"
                        ),
                    ),
                    (
                        Distribution::Global
                        | Distribution::Scattered
                        | Distribution::Reduced
                        | Distribution::Sharded
                        | Distribution::Exchanged,
                        _,
                    ) => (
                        format!("`{name}` is an output and is never read"),
                        "multiply an input: `&Global<T>`, or `&Gathered<T>` after its wait"
                            .to_owned(),
                    ),
                }
            }
            // Only an input of this rank's own has a transpose.
            Bound::Transposed(param) => return Some(Lhs::Transposed(param)),
            Bound::Value(_) | Bound::Scalar(_) => (
                "expected a tensor as the left operand of `gemm`, found a computed tile".to_owned(),
                "a product of a product is a second kernel".to_owned(),
            ),
            Bound::Workspace(_) => (
                "rows of workspace may still be in flight".to_owned(),
                "wait for them: `let a = all.ready(tile.rows(), arrived.wait(…));`".to_owned(),
            ),
            Bound::SummedTransposed(param, wait) => {
                self.waited(wait);
                return Some(Lhs::Transposed(param));
            }
            Bound::Summed(param, wait) => {
                self.waited(wait);
                let name = self.name_of(param);
                (
                    format!(
                        "the rows of `{name}` are summed over, those of a left operand are the tile's"
                    ),
                    format!("write `gemm({name}.t(), b, tile)`, or `{name}.wait(tile.rows())`"),
                )
            }
            _ => (
                "expected a tensor as the left operand of `gemm`".to_owned(),
                "write `gemm(a, b.t(), tile)`".to_owned(),
            ),
        };
        self.mistyped(span, message, help);
        None
    }

    fn right_operand(&mut self, expr: &'a Expr) -> Option<(flux_ir::kernel::ParamId, bool)> {
        let span = position(super::expression::strip(expr));
        let (param, transposed) = match self.expression(expr) {
            Bound::Broken => return None,
            Bound::Tensor(param) => (param, false),
            Bound::Transposed(param) => (param, true),
            Bound::Summed(param, wait) => {
                self.waited(wait);
                return Some((param, false));
            }
            Bound::Ready(wait) => {
                self.waited(wait);
                let waited = self.waits.iter().find(|of| of.value == wait).map(|of| of.tensor);
                let (message, help) = match waited.map(|tensor| self.tensor(tensor).0) {
                    Some(Distribution::Gathered) => (
                        "the right operand of `gemm` is summed over by rows, these are the tile's",
                        "wait for what is summed over: `tile.reduction()`",
                    ),
                    _ => (
                        "the right operand of `gemm` is this rank's own tensor",
                        "only the left operand arrives in rows; the right one is a `&Global<T>`",
                    ),
                };
                self.mistyped(span, message, help);
                return None;
            }
            Bound::SummedTransposed(param, wait) => {
                self.waited(wait);
                let name = self.name_of(param);
                let message =
                    format!("the rows of `{name}` are summed over, transposed they are columns");
                let help = format!("write `gemm(x, {name}, tile)`, or `gemm({name}.t(), x, tile)`");
                self.mistyped(span, message, help);
                return None;
            }
            _ => {
                let help = "write `gemm(a, b.t(), tile)`";
                self.mistyped(span, "expected a tensor as the right operand of `gemm`", help);
                return None;
            }
        };
        let name = self.name_of(param);
        match self.tensor(param) {
            (Distribution::Global, false) => Some((param, transposed)),
            (_, true) => {
                let help = "multiply with an input: `&Global<T>`";
                self.mistyped(span, format!("`{name}` is an output and is never read"), help);
                None
            }
            (Distribution::Gathered, false) => {
                let help = format!("write `let {name} = {name}.wait(tile.reduction());` before it");
                let message = format!("rows of `{name}` may still be in flight from a peer");
                self.mistyped(span, message, help);
                None
            }
            (_, false) => {
                let help = format!(
                    "declare it `{name}: &Global<T>`: each rank multiplies with its own tensor"
                );
                self.mistyped(span, "the right operand of `gemm` is this rank's own tensor", help);
                None
            }
        }
    }

    fn call_closure(
        &mut self,
        closure: &Closure<'a>,
        args: Vec<(Bound<'a>, Span)>,
        span: Span,
    ) -> Bound<'a> {
        let expected = closure.closure.inputs.len();
        if expected != args.len() {
            return self.wrong_arity(
                "closure",
                expected,
                args.len(),
                span,
                "one argument for each parameter",
            );
        }
        if self.closures >= DEEPEST {
            let help = "a closure is evaluated in place, so it must not call itself";
            return self.refuse(span, "closures call each other without end", help);
        }
        let mut names = closure.names.clone();
        for (pattern, (bound, _)) in closure.closure.inputs.iter().zip(args) {
            if let Some(name) = self.parameter_name(pattern) {
                names.push((name, bound));
            }
        }
        let outer = std::mem::replace(&mut self.names, names);
        self.closures += 1;
        let result = self.expression(&closure.closure.body);
        self.closures -= 1;
        self.names = outer;
        result
    }

    fn call_helper(
        &mut self,
        function: &'a Function,
        args: Vec<(Bound<'a>, Span)>,
        span: Span,
    ) -> Bound<'a> {
        let name = function.name();
        if self.inlining.contains(&name) || self.inlining.len() >= DEEPEST {
            let help = "a helper is evaluated in place, so it must not call itself";
            return self.refuse(span, format!("`{name}` calls itself"), help);
        }
        let expected = function.sig.inputs.len();
        if expected != args.len() {
            let usage = format!("one argument for each parameter of {name}");
            return self.wrong_arity(&name, expected, args.len(), span, &usage);
        }
        let statements = match &function.statements {
            Ok(statements) => statements,
            Err(error) => {
                let at = at(error.span());
                return self.report(Diagnostic::new(Rule::Syntax, at, error.to_string()));
            }
        };
        let deep = deep_expression(|depth| statements.iter().for_each(|s| depth.visit_stmt(s)));
        if let Some(deep) = deep {
            return self.report(deep);
        }
        let signature = function.sig.to_token_stream();
        for condition in conditions(signature).into_iter().chain(conditions(function.body.stream()))
        {
            self.report(condition);
        }
        let mut names = Vec::new();
        for (input, (bound, _)) in function.sig.inputs.iter().zip(args) {
            match input {
                FnArg::Typed(input) => {
                    if let Some(name) = self.parameter_name(&input.pat) {
                        names.push((name, bound));
                    }
                }
                FnArg::Receiver(receiver) => {
                    let help = "give the parameter a name";
                    self.refuse(position(receiver), "a helper is a free function", help);
                }
            }
        }
        let outer = std::mem::replace(&mut self.names, names);
        let seen = self.errors.0.len();
        self.inlining.push(name);
        let result = self.statements(statements);
        self.inlining.pop();
        self.names = outer;
        for error in &mut self.errors.0[seen..] {
            error.notes.push((span, "called here".to_owned()));
        }
        result
    }
}
