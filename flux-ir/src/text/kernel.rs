//! The text form of a Kernel.

use super::cursor::{Cursor, Parsed, binary, unary};
use super::lex::Token;
use super::program;
use super::write;
use crate::arena::{Arena, Handle};
use crate::diagnostic::Diagnostics;
use crate::kernel::{
    Distribution, Kernel, Lhs, Op, OpEntry, Param, ParamId, ParamType, Protocol, Value,
};
use crate::program::Expr;
use crate::span::Span;
use std::fmt::{self, Write};
use std::str::FromStr;

impl fmt::Display for ParamType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParamType::Tensor { distribution, element, written } => {
                let reference = if *written { "&mut " } else { "&" };
                write!(f, "{reference}{}<{element}>", distribution.name())
            }
            ParamType::Scalar => f.write_str("f32"),
        }
    }
}

impl Kernel {
    /// `%name` of a parameter; a handle that points nowhere shows its number.
    fn shown(&self, param: ParamId) -> String {
        match self.params.get(param) {
            Some(param) => format!("%{}", write::name(&param.name)),
            None => format!("%\"?{}\"", param.0),
        }
    }

    fn write_op(&self, parts: &mut program::Writer<'_>, value: Value, op: &Op) -> String {
        let yields = match op {
            Op::Await { signal, slots, times } => {
                let slots = parts.slots(*signal, slots);
                match times {
                    Expr::Int(1) => format!("await {slots}"),
                    times => format!("await {slots} times {}", parts.expr(times)),
                }
            }
            Op::Ready { buffer, after } => {
                format!("ready {} after {after}", parts.buffer(*buffer))
            }
            Op::Wait { tensor } => format!("wait {}", self.shown(*tensor)),
            Op::Gemm { a, b, transposed } => {
                let a = match a {
                    Lhs::Param(param) => self.shown(*param),
                    Lhs::Transposed(param) => format!("{}.t", self.shown(*param)),
                    Lhs::Ready(value) => value.to_string(),
                };
                let suffix = if *transposed { ".t" } else { "" };
                format!("gemm {a}, {}{suffix}", self.shown(*b))
            }
            Op::Cols { tensor } => format!("cols {}", self.shown(*tensor)),
            Op::Rows { tensor } => format!("rows {}", self.shown(*tensor)),
            Op::Load { tensor } => format!("load {}", self.shown(*tensor)),
            Op::LoadReady { ready } => format!("load {ready}"),
            Op::Const(number) => format!("const {}", write::float(*number)),
            Op::Scalar { param } => format!("scalar {}", self.shown(*param)),
            Op::Unary { op, x } => format!("{} {x}", op.name()),
            Op::Binary { op, x, y } => format!("{} {x}, {y}", op.name()),
            Op::Cast { x, to } => format!("cast {x} to {to}"),
            Op::Reduce { output, x } => format!("reduce {}, {x}", self.shown(*output)),
            Op::Total { buffer, own } => format!("total {} own {own}", parts.buffer(*buffer)),
            Op::Put { buffer, hops, to, x } => {
                let (to, hops) = (parts.expr(to), parts.range(hops));
                return format!("put {x} in {} to {to} for {hops}", parts.buffer(*buffer));
            }
            Op::Store { output, x } => return format!("store {}, {x}", self.shown(*output)),
            Op::Keep { output, rows } => return format!("keep {}, {rows}", self.shown(*output)),
        };
        format!("{value} = {yields}")
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = format!("kernel @{}(", write::name(&self.name));
        let spans = self.params.values().any(|param| param.span.is_known());
        for (index, param) in self.params.values().enumerate() {
            head.push_str(match (index, spans) {
                (0, false) => "",
                (0, true) => "\n  ",
                (_, false) => ", ",
                (_, true) => ",\n  ",
            });
            write!(head, "%{}: {}", write::name(&param.name), param.ty)?;
            if param.span.is_known() {
                write!(head, " @{}", param.span)?;
            }
        }
        head.push_str(if spans { "\n) {" } else { ") {" });
        match head.rsplit_once('\n') {
            Some((above, last)) => {
                writeln!(f, "{above}")?;
                write::line(f, 0, last, self.span)?;
            }
            None => write::line(f, 0, &head, self.span)?,
        }
        let empty = Protocol::new("");
        let protocol = self.protocol.as_deref();
        let mut parts = program::Writer::of(&protocol.unwrap_or(&empty).parts);
        parts.sections(2)?;
        let slices = protocol.and_then(|protocol| protocol.slices.as_ref());
        let slices = slices.map(|slices| format!(" slices {}", parts.expr(slices)));
        let tiles =
            format!("for tile in {}{} {{", self.shown(self.tiles_of), slices.unwrap_or_default());
        let mut tile_loop = String::new();
        write::line(&mut tile_loop, 1, &tiles, self.loop_span)?;
        for (value, entry) in self.ops.iter() {
            let op = self.write_op(&mut parts, value, &entry.op);
            write::line(&mut tile_loop, 2, &op, entry.span)?;
        }
        if let Some(protocol) = protocol {
            write::line(f, 1, "protocol {", Span::UNKNOWN)?;
            if let Some(vars) = unordered(protocol, &parts) {
                write::line(f, 2, &format!("vars {vars}"), Span::UNKNOWN)?;
            }
            f.write_str(&parts.out)?;
            f.write_str("  }\n")?;
        }
        f.write_str(&tile_loop)?;
        f.write_str("  }\n}\n")
    }
}

/// Every variable of a protocol, where the text does not mention them in their order.
fn unordered(protocol: &Protocol, parts: &program::Writer<'_>) -> Option<String> {
    let reserved = Protocol::RESERVED.len();
    let mentioned = parts.seen.iter().filter(|var| var.index() >= reserved).copied();
    let vars = &protocol.parts.vars;
    if mentioned.eq(vars.handles().skip(reserved)) {
        return None;
    }
    Some(vars.handles().map(|var| parts.var_name(var)).collect::<Vec<_>>().join(", "))
}

impl FromStr for Kernel {
    type Err = Diagnostics;

    fn from_str(text: &str) -> Result<Self, Diagnostics> {
        let parts = program::Reader::new(Cursor::new(text)?, Protocol::new("").parts);
        Ok(Reader { parts, params: Arena::new() }.kernel()?)
    }
}

struct Reader {
    /// The protocol, whose cursor is the one of the whole text.
    parts: program::Reader,
    params: Arena<ParamId, Param>,
}

impl Reader {
    fn kernel(mut self) -> Parsed<Kernel> {
        self.parts.cursor.word("kernel")?;
        let name = self.parts.cursor.global()?;
        self.parts.cursor.punct("(")?;
        while !self.parts.cursor.at(")") {
            self.declare()?;
            if !self.parts.cursor.take(",") {
                break;
            }
        }
        self.parts.cursor.punct(")")?;
        self.parts.cursor.punct("{")?;
        let span = self.parts.cursor.span();
        let has_protocol = self.parts.cursor.take_word("protocol");
        if has_protocol {
            self.protocol(&name)?;
        }
        for word in ["for", "tile", "in"] {
            self.parts.cursor.word(word)?;
        }
        let tiles_of = self.param()?;
        let slices = match has_protocol && self.parts.cursor.take_word("slices") {
            true => Some(self.parts.expr()?),
            false => None,
        };
        self.parts.cursor.punct("{")?;
        let loop_span = self.parts.cursor.span();
        let mut ops = Arena::new();
        while !self.parts.cursor.at("}") {
            let op = self.op(Value::new(ops.len()))?;
            ops.push(OpEntry { op, span: self.parts.cursor.span() });
        }
        self.parts.cursor.punct("}")?;
        self.parts.cursor.punct("}")?;
        self.parts.cursor.end()?;
        let protocol =
            has_protocol.then(|| Box::new(Protocol { parts: self.parts.program, slices }));
        Ok(Kernel { name, params: self.params, tiles_of, loop_span, ops, protocol, span })
    }

    fn protocol(&mut self, name: &str) -> Parsed<()> {
        self.parts.program.name = name.into();
        self.parts.cursor.punct("{")?;
        self.parts.variables()?;
        while !self.parts.cursor.at("}") {
            self.parts.section()?;
        }
        self.parts.cursor.punct("}")
    }

    fn declare(&mut self) -> Parsed<()> {
        let position = self.parts.cursor.position();
        let name = self.parts.cursor.name("a parameter `%name`")?;
        if self.params.values().any(|param| param.name == name) {
            return Cursor::error_at(position, format!("parameter `%{name}` is declared twice"));
        }
        self.parts.cursor.punct(":")?;
        let ty = if self.parts.cursor.take("&") {
            let written = self.parts.cursor.take_word("mut");
            let distribution = self.parts.cursor.choice(
                "a distribution",
                &Distribution::ALL,
                Distribution::name,
            )?;
            self.parts.cursor.punct("<")?;
            let element = self.parts.cursor.element()?;
            self.parts.cursor.punct(">")?;
            ParamType::Tensor { distribution, element, written }
        } else {
            self.parts.cursor.word("f32")?;
            ParamType::Scalar
        };
        let span = self.parts.cursor.span();
        self.params.push(Param { name, ty, span });
        Ok(())
    }

    /// `.t` behind an operand, or nothing.
    fn transposed(&mut self) -> Parsed<bool> {
        let transposed = self.parts.cursor.take(".");
        if transposed {
            self.parts.cursor.word("t")?;
        }
        Ok(transposed)
    }

    fn param(&mut self) -> Parsed<ParamId> {
        let position = self.parts.cursor.position();
        let name = self.parts.cursor.name("a parameter `%name`")?;
        match self.params.iter().find(|(_, param)| param.name == name) {
            Some((id, _)) => Ok(id),
            None => Cursor::error_at(position, format!("there is no parameter `%{name}`")),
        }
    }

    fn value(&mut self) -> Parsed<Value> {
        let Token::Value(value) = *self.parts.cursor.peek() else {
            return self.parts.cursor.unexpected("a value `%0`");
        };
        self.parts.cursor.bump();
        Ok(Value(value))
    }

    fn op(&mut self, next: Value) -> Parsed<Op> {
        if self.parts.cursor.take_word("store") {
            let output = self.param()?;
            self.parts.cursor.punct(",")?;
            return Ok(Op::Store { output, x: self.value()? });
        }
        if self.parts.cursor.take_word("put") {
            let x = self.value()?;
            self.parts.cursor.word("in")?;
            let buffer = self.parts.buffer()?;
            self.parts.cursor.word("to")?;
            let to = self.parts.expr()?;
            self.parts.cursor.word("for")?;
            return Ok(Op::Put { buffer, hops: self.parts.range()?, to, x });
        }
        if self.parts.cursor.take_word("keep") {
            let output = self.param()?;
            self.parts.cursor.punct(",")?;
            return Ok(Op::Keep { output, rows: self.value()? });
        }
        if *self.parts.cursor.peek() != Token::Value(next.0) {
            return self.parts.cursor.unexpected(&format!("`store`, `put`, `keep` or `{next} =`"));
        }
        self.parts.cursor.bump();
        self.parts.cursor.punct("=")?;
        let Token::Word(word) = self.parts.cursor.peek().clone() else {
            return self.parts.cursor.unexpected("an operation");
        };
        if let Some(op) = unary(&word) {
            self.parts.cursor.bump();
            return Ok(Op::Unary { op, x: self.value()? });
        }
        if let Some(op) = binary(&word) {
            self.parts.cursor.bump();
            let x = self.value()?;
            self.parts.cursor.punct(",")?;
            return Ok(Op::Binary { op, x, y: self.value()? });
        }
        let known = [
            "await", "ready", "wait", "gemm", "cols", "rows", "load", "const", "scalar", "cast",
            "reduce", "total",
        ];
        if !known.contains(&word.as_str()) {
            return self.parts.cursor.unexpected("an operation");
        }
        self.parts.cursor.bump();
        Ok(match word.as_str() {
            "await" => {
                let (signal, slots) = self.parts.slots()?;
                let times = match self.parts.cursor.take_word("times") {
                    true => self.parts.expr()?,
                    false => Expr::Int(1),
                };
                Op::Await { signal, slots, times }
            }
            "ready" => {
                let buffer = self.parts.buffer()?;
                self.parts.cursor.word("after")?;
                Op::Ready { buffer, after: self.value()? }
            }
            "total" => {
                let buffer = self.parts.buffer()?;
                self.parts.cursor.word("own")?;
                Op::Total { buffer, own: self.value()? }
            }
            "wait" => Op::Wait { tensor: self.param()? },
            "gemm" => {
                let a = match self.parts.cursor.peek() {
                    Token::Value(_) => Lhs::Ready(self.value()?),
                    _ => {
                        let param = self.param()?;
                        if self.transposed()? { Lhs::Transposed(param) } else { Lhs::Param(param) }
                    }
                };
                self.parts.cursor.punct(",")?;
                Op::Gemm { a, b: self.param()?, transposed: self.transposed()? }
            }
            "cols" => Op::Cols { tensor: self.param()? },
            "rows" => Op::Rows { tensor: self.param()? },
            "load" => match self.parts.cursor.peek() {
                Token::Value(_) => Op::LoadReady { ready: self.value()? },
                _ => Op::Load { tensor: self.param()? },
            },
            "const" => Op::Const(self.parts.cursor.float()?),
            "scalar" => Op::Scalar { param: self.param()? },
            "cast" => {
                let x = self.value()?;
                self.parts.cursor.word("to")?;
                Op::Cast { x, to: self.parts.cursor.element()? }
            }
            _ => {
                let output = self.param()?;
                self.parts.cursor.punct(",")?;
                Op::Reduce { output, x: self.value()? }
            }
        })
    }
}
