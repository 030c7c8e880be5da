//! Method calls: on tensors, on the tile, on values.

use super::call::{binary_of, unary_of};
use super::index::tile_rows;
use super::protocol::Within;
use super::{Bound, Callable, Keep, Reader, Wait};
use crate::function::text_of_name;
use crate::position::{at, position};
use crate::suggest::{did_you_mean, listed};
use flux_ir::Span;
use flux_ir::kernel::{Binary, Distribution, Op, ParamId, Protocol, Unary, Value};
use syn::{Expr, ExprMethodCall, PathArguments};

/// How each method of a tensor is written, with the distributions that have it.
const TENSOR_METHODS: [(&str, &str); 11] = [
    ("part", "a.part(shard(rank()))"),
    ("wait", "a.wait(tile.rows())"),
    ("all_gather_into", "a.all_gather_into(all)"),
    ("t", "b.t()"),
    ("cols", "x.cols(tile)"),
    ("rows", "x.rows(tile)"),
    ("load", "x.load(tile)"),
    ("store", "c.store(tile, x)"),
    ("add", "c.add(tile, x)"),
    ("reduce", "c.reduce(tile, x)"),
    ("tiles", "for tile in c.tiles()"),
];

/// The methods of `f32` that mean the same on it as on a tile.
const NUMBER_METHODS: [&str; 4] = ["max", "min", "exp", "tanh"];

/// The methods of a tensor, by what it is.
fn methods(distribution: Distribution, written: bool) -> &'static [&'static str] {
    match (distribution, written) {
        (Distribution::Gathered, _) => &["wait", "all_gather_into"],
        (Distribution::Sharded, false) => &["load", "rows", "part"],
        (Distribution::Exchanged, false) => &["wait"],
        (Distribution::Sharded | Distribution::Exchanged, true) => &["tiles", "store"],
        (Distribution::Global, false) => &["t", "load", "cols", "rows", "part"],
        (Distribution::Global, true) => &["tiles", "store"],
        (Distribution::Scattered | Distribution::Reduced, _) => {
            &["tiles", "add", "reduce", "store"]
        }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn method_call(&mut self, call: &'a ExprMethodCall) -> Bound<'a> {
        let receiver = self.expression(&call.receiver);
        let name = text_of_name(&call.method);
        let span = at(call.method.span());
        let args: Vec<_> = call.args.iter().collect();
        match receiver {
            Bound::Workspace(buffer) => self.workspace_method(buffer, &name, span, &args),
            Bound::Flagged(buffer) => self.flagged_method(buffer, &name, span, &args),
            Bound::Signals(signal) => self.signals_method(signal, &name, span, &args),
            Bound::Index(index) => self.index_method(index, &name, span, &args),
            part @ (Bound::Own(..) | Bound::Part(_)) => self.part_method(part, span, call),
            Bound::Slice if name == "index" && args.is_empty() => {
                Bound::Index(Protocol::SLICE.into())
            }
            Bound::TileRows if name == "start" && args.is_empty() => Bound::Index(tile_rows().lo),
            Bound::TileRows if name == "end" && args.is_empty() => Bound::Index(tile_rows().hi),
            Bound::Tile if name == "k_slices" => match args.as_slice() {
                [slices] => match self.index(slices) {
                    Some(slices) => Bound::Slices(slices),
                    None => Bound::Broken,
                },
                _ => self.wrong_arity(&name, 1, args.len(), span, "tile.k_slices(4)"),
            },
            Bound::Tensor(param) => self.tensor_method(param, &name, span, call),
            Bound::Tile if name == "rows" => {
                if call.args.is_empty() {
                    return Bound::TileRows;
                }
                self.wrong_arity("rows", 0, call.args.len(), span, "tile.rows()")
            }
            Bound::Tile if name == "reduction" => {
                if call.args.is_empty() {
                    return Bound::TileReduction;
                }
                self.wrong_arity("reduction", 0, call.args.len(), span, "tile.reduction()")
            }
            Bound::Tile => {
                let help = "there is `tile.rows()`; columns are read by `bias.cols(tile)`";
                self.mistyped(span, format!("a tile has no method `{name}`"), help)
            }
            Bound::Value(_) | Bound::Scalar(_) => {
                let Some(x) = self.as_value(receiver, position(&call.receiver)) else {
                    return Bound::Broken;
                };
                self.value_method(x, &name, span, call)
            }
            Bound::Broken => {
                for arg in &call.args {
                    self.expression(arg);
                }
                Bound::Broken
            }
            Bound::Ready(ready) if name == "load" => {
                let args: Vec<_> = call.args.iter().collect();
                match args.as_slice() {
                    [tile] => self.read(tile, Op::LoadReady { ready }, span),
                    _ => self.wrong_arity("load", 1, args.len(), span, "rows.load(tile)"),
                }
            }
            Bound::Ready(_) => {
                let help = "multiply it: `gemm(a, b.t(), tile)`, or read it: `rows.load(tile)`";
                self.mistyped(span, format!("ready rows have no method `{name}`"), help)
            }
            Bound::Transposed(param) => {
                let help =
                    format!("multiply with it: `gemm(a, {}.t(), tile)`", self.name_of(param));
                self.mistyped(span, format!("a transposed tensor has no method `{name}`"), help)
            }
            Bound::Summed(param, wait) if name == "t" && call.args.is_empty() => {
                Bound::SummedTransposed(param, wait)
            }
            Bound::Summed(_, wait) | Bound::SummedTransposed(_, wait) => {
                self.waited(wait);
                let help = "multiply with it: `gemm(a.t(), x, tile)`, or `gemm(x.t(), b, tile)`";
                self.mistyped(span, format!("gathered rows have no method `{name}`"), help)
            }
            _ => self.mistyped(span, format!("there is no method `{name}` here"), "remove it"),
        }
    }

    fn tensor_method(
        &mut self,
        param: ParamId,
        name: &str,
        span: Span,
        call: &'a ExprMethodCall,
    ) -> Bound<'a> {
        let (distribution, written) = self.tensor(param);
        let allowed = methods(distribution, written);
        if !allowed.contains(&name) {
            return self.no_such_method(param, name, span, allowed);
        }
        let args: Vec<_> = call.args.iter().collect();
        let usage = TENSOR_METHODS.iter().find(|(known, _)| *known == name).map_or("", |(_, u)| u);
        let expected = match name {
            "t" | "tiles" => 0,
            "wait" | "cols" | "rows" | "load" | "part" | "all_gather_into" => 1,
            _ => 2,
        };
        if args.len() != expected {
            return self.wrong_arity(name, expected, args.len(), span, usage);
        }
        match (name, args.as_slice()) {
            ("t", []) => Bound::Transposed(param),
            ("wait", [rows]) => self.wait(param, rows, span),
            ("all_gather_into", [output]) => self.all_gather_into(param, output, span),
            ("part", [rows]) => self.part(param, rows, span),
            ("cols", [tile]) => self.read(tile, Op::Cols { tensor: param }, span),
            ("rows", [tile]) => self.read(tile, Op::Rows { tensor: param }, span),
            ("load", [tile]) => self.read(tile, Op::Load { tensor: param }, span),
            ("store", [tile, x]) => self.store(param, tile, x, span),
            ("add", [tile, x]) => {
                let Some(total) = self.reduce(param, tile, x, span) else {
                    return Bound::Broken;
                };
                self.write(param, total, span)
            }
            ("reduce", [tile, x]) => match self.reduce(param, tile, x, span) {
                Some(total) => Bound::Value(total),
                None => Bound::Broken,
            },
            _ => {
                let help = "the loop over tiles is the only one: `for tile in c.tiles() { … }`";
                self.refuse(span, "a tile is computed without loops", help)
            }
        }
    }

    fn no_such_method(
        &mut self,
        param: ParamId,
        name: &str,
        span: Span,
        allowed: &[&str],
    ) -> Bound<'a> {
        let (distribution, written) = self.tensor(param);
        let tensor = self.name_of(param);
        let reads = ["wait", "t", "cols", "rows", "load"].contains(&name);
        let writes = ["store", "add", "reduce", "tiles"].contains(&name);
        match distribution {
            _ if written && reads => {
                let help =
                    "an output is only written; read an input, `&Global<T>` or `&Sharded<T>`";
                self.mistyped(span, format!("`{tensor}` is an output and is never read"), help)
            }
            _ if !written && writes => {
                let help = format!("declare it `{tensor}: &mut Global<T>` to write it");
                self.mistyped(span, format!("`{tensor}` is an input and is never written"), help)
            }
            Distribution::Global if written && writes => {
                let help = format!(
                    "write `{tensor}.store(tile, …)`, or declare `{tensor}: &mut Scattered<T>` \
                        or `&mut Reduced<T>` to sum over the ranks"
                );
                self.mistyped(
                    span,
                    format!("`{tensor}` is a `Global`: nothing is summed into it"),
                    help,
                )
            }
            Distribution::Global if name == "wait" => {
                let help = format!("use `{tensor}` as it is, or declare `{tensor}: &Gathered<T>`");
                self.mistyped(
                    span,
                    format!("`{tensor}` is this rank's own tensor: there is nothing to wait for"),
                    help,
                )
            }
            Distribution::Gathered | Distribution::Exchanged if reads => {
                let use_of = match name {
                    "load" => format!("{tensor}.load(tile)"),
                    _ => format!("gemm({tensor}, b.t(), tile)"),
                };
                let help =
                    format!("write `let {tensor} = {tensor}.wait(tile.rows());` and `{use_of}`");
                let what = if distribution == Distribution::Gathered { "rows" } else { "columns" };
                self.mistyped(span, format!("{what} of `{tensor}` may still be in flight"), help)
            }
            Distribution::Sharded if name == "cols" => {
                let help = format!(
                    "declare `{tensor}: &Global<T>`: a vector over the columns is the same on \
                        every rank"
                );
                self.mistyped(span, format!("`{tensor}` holds this rank's rows alone"), help)
            }
            Distribution::Sharded if name == "wait" => {
                let help =
                    format!("declare `{tensor}: &Gathered<T>` to read the rows of every rank");
                self.mistyped(
                    span,
                    format!(
                        "`{tensor}` holds this rank's rows alone: there is nothing to wait for"
                    ),
                    help,
                )
            }
            Distribution::Global
            | Distribution::Gathered
            | Distribution::Sharded
            | Distribution::Scattered
            | Distribution::Reduced
            | Distribution::Exchanged => {
                let help = did_you_mean(name, allowed);
                self.mistyped(span, format!("`{tensor}` has no method `{name}`"), help)
            }
        }
    }

    fn wait(&mut self, tensor: ParamId, rows: &'a Expr, span: Span) -> Bound<'a> {
        match self.expression(rows) {
            Bound::TileRows => {
                let value = self.emit(Op::Wait { tensor }, span);
                self.waits.push(Wait { value, tensor, span, used: false });
                Bound::Ready(value)
            }
            Bound::TileReduction if self.tensor(tensor).0 == Distribution::Gathered => {
                let value = self.emit(Op::Wait { tensor }, span);
                self.waits.push(Wait { value, tensor, span, used: false });
                Bound::Summed(tensor, value)
            }
            Bound::Broken => Bound::Broken,
            _ => {
                let name = self.name_of(tensor);
                let (what, help) = match self.tensor(tensor).0 {
                    Distribution::Gathered => (
                        "expected the rows of the tile, or what its products sum over",
                        format!(
                            "write `{name}.wait(tile.rows())`, or `{name}.wait(tile.reduction())`"
                        ),
                    ),
                    _ => (
                        "expected the rows of the tile",
                        format!("write `{name}.wait(tile.rows())`"),
                    ),
                };
                self.mistyped(position(rows), what, help)
            }
        }
    }

    /// `a.all_gather_into(all)`, beside the loop over tiles.
    fn all_gather_into(&mut self, tensor: ParamId, output: &'a Expr, span: Span) -> Bound<'a> {
        let name = self.name_of(tensor);
        let param = match self.expression(output) {
            Bound::Broken => return Bound::Broken,
            Bound::Tensor(param) => param,
            _ => {
                let help = format!("write `{name}.all_gather_into(all)`, of `all: &mut Global<_>`");
                return self.mistyped(position(output), "expected an output", help);
            }
        };
        if self.within != Within::Kernel || self.closures > 0 {
            let help = format!(
                "move it ahead of the loop: `{name}.all_gather_into({});`",
                self.name_of(param)
            );
            return self.refuse(span, "all rows are gathered once, not for each tile", help);
        }
        self.keeps.push(Keep { tensor, output: param, span });
        Bound::Role
    }

    fn read(&mut self, tile: &'a Expr, op: Op, span: Span) -> Bound<'a> {
        match self.tile(tile) {
            Some(()) => Bound::Value(self.emit(op, span)),
            None => Bound::Broken,
        }
    }

    fn store(&mut self, output: ParamId, tile: &'a Expr, x: &'a Expr, span: Span) -> Bound<'a> {
        let tile = self.tile(tile);
        let value = self.value(x);
        let (Some(()), Some(value)) = (tile, value) else {
            return Bound::Broken;
        };
        self.write(output, value, span)
    }

    fn reduce(
        &mut self,
        output: ParamId,
        tile: &'a Expr,
        x: &'a Expr,
        span: Span,
    ) -> Option<Value> {
        let tile = self.tile(tile);
        let x = self.value(x);
        let (Some(()), Some(x)) = (tile, x) else {
            return None;
        };
        self.outside_of_puts(span).then(|| self.emit(Op::Reduce { output, x }, span))
    }

    fn write(&mut self, output: ParamId, x: Value, span: Span) -> Bound<'a> {
        if self.closures > 0 {
            let help = "store what it yields: `c.store(tile, f(x));`";
            return self.refuse(span, "a closure computes a value and stores nothing", help);
        }
        if !self.outside_of_puts(span) {
            return Bound::Broken;
        }
        self.emit(Op::Store { output, x }, span);
        Bound::Unit
    }

    fn value_method(
        &mut self,
        x: Value,
        name: &str,
        span: Span,
        call: &'a ExprMethodCall,
    ) -> Bound<'a> {
        let args: Vec<_> = call.args.iter().collect();
        // On a number, any other method is the user's own, or none.
        if self.numbers.contains(&x) && !NUMBER_METHODS.contains(&name) {
            let message = format!("a number has no method `{name}` in a kernel");
            let help = format!("there are {}", listed(&NUMBER_METHODS));
            return self.mistyped(span, message, help);
        }
        if let Some(op) = unary_of(name) {
            if !args.is_empty() {
                return self.wrong_arity(name, 0, args.len(), span, &format!("x.{name}()"));
            }
            return Bound::Value(self.emit(Op::Unary { op, x }, span));
        }
        if let Some(op) = binary_of(name) {
            let [y] = args.as_slice() else {
                return self.wrong_arity(name, 1, args.len(), span, &format!("x.{name}(y)"));
            };
            let Some(y) = self.value(y) else {
                return Bound::Broken;
            };
            return Bound::Value(self.emit(Op::Binary { op, x, y }, span));
        }
        match (name, args.as_slice()) {
            ("cast", []) => {
                let arguments = match &call.turbofish {
                    Some(turbofish) => PathArguments::AngleBracketed(turbofish.clone()),
                    None => PathArguments::None,
                };
                match self.cast_to(&arguments, span) {
                    Bound::Callable(Callable::Cast(Some(to))) => {
                        Bound::Value(self.emit(Op::Cast { x, to }, span))
                    }
                    _ => Bound::Broken,
                }
            }
            ("cast", _) => self.wrong_arity(name, 0, args.len(), span, "x.cast::<bf16>()"),
            ("map", [f]) => {
                let at = position(*f);
                let args = vec![(Bound::Value(x), span)];
                self.elementwise(f, args, at, "x.map(|x| gelu(x))")
            }
            ("zip_map", [y, f]) => {
                let Some(y) = self.value(y) else {
                    return Bound::Broken;
                };
                let at = position(*f);
                let args = vec![(Bound::Value(x), span), (Bound::Value(y), span)];
                self.elementwise(f, args, at, "x.zip_map(y, |x, y| gelu(x + y))")
            }
            ("map", _) => self.wrong_arity(name, 1, args.len(), span, "x.map(|x| gelu(x))"),
            ("zip_map", _) => {
                self.wrong_arity(name, 2, args.len(), span, "x.zip_map(y, |x, y| gelu(x + y))")
            }
            _ => {
                let unary = Unary::ALL.into_iter().filter(|op| *op != Unary::Neg).map(Unary::name);
                let names: Vec<_> =
                    [Binary::Max.name(), Binary::Min.name(), "cast", "map", "zip_map"]
                        .into_iter()
                        .chain(unary)
                        .collect();
                self.mistyped(
                    span,
                    format!("a tile has no method `{name}`"),
                    did_you_mean(name, &names),
                )
            }
        }
    }

    fn elementwise(
        &mut self,
        f: &'a Expr,
        args: Vec<(Bound<'a>, Span)>,
        span: Span,
        usage: &str,
    ) -> Bound<'a> {
        match self.expression(f) {
            Bound::Callable(callable) => self.apply_to(&callable, args, span),
            Bound::Broken => Bound::Broken,
            _ => self.mistyped(span, "expected a function of elements", format!("write `{usage}`")),
        }
    }
}
