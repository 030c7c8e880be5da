//! The text form of a Kernel.

use super::cursor::{Cursor, Parsed, binary, unary};
use super::lex::Token;
use super::write;
use crate::arena::{Arena, Handle};
use crate::diagnostic::Diagnostics;
use crate::kernel::{Distribution, Kernel, Lhs, Op, OpEntry, Param, ParamId, ParamType, Value};
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

    fn write_op(&self, value: Value, op: &Op) -> String {
        let yields = match op {
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
            Op::Store { output, x } => return format!("store {}, {x}", self.shown(*output)),
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
        let tiles = format!("for tile in {} {{", self.shown(self.tiles_of));
        write::line(f, 1, &tiles, self.loop_span)?;
        for (value, entry) in self.ops.iter() {
            write::line(f, 2, &self.write_op(value, &entry.op), entry.span)?;
        }
        f.write_str("  }\n}\n")
    }
}

impl FromStr for Kernel {
    type Err = Diagnostics;

    fn from_str(text: &str) -> Result<Self, Diagnostics> {
        Ok(Reader { cursor: Cursor::new(text)?, params: Arena::new() }.kernel()?)
    }
}

struct Reader {
    cursor: Cursor,
    params: Arena<ParamId, Param>,
}

impl Reader {
    fn kernel(mut self) -> Parsed<Kernel> {
        self.cursor.word("kernel")?;
        let name = self.cursor.global()?;
        self.cursor.punct("(")?;
        while !self.cursor.at(")") {
            self.declare()?;
            if !self.cursor.take(",") {
                break;
            }
        }
        self.cursor.punct(")")?;
        self.cursor.punct("{")?;
        let span = self.cursor.span();
        for word in ["for", "tile", "in"] {
            self.cursor.word(word)?;
        }
        let tiles_of = self.param()?;
        self.cursor.punct("{")?;
        let loop_span = self.cursor.span();
        let mut ops = Arena::new();
        while !self.cursor.at("}") {
            let op = self.op(Value::new(ops.len()))?;
            ops.push(OpEntry { op, span: self.cursor.span() });
        }
        self.cursor.punct("}")?;
        self.cursor.punct("}")?;
        self.cursor.end()?;
        Ok(Kernel { name, params: self.params, tiles_of, loop_span, ops, span })
    }

    fn declare(&mut self) -> Parsed<()> {
        let position = self.cursor.position();
        let name = self.cursor.name("a parameter `%name`")?;
        if self.params.values().any(|param| param.name == name) {
            return Cursor::error_at(position, format!("parameter `%{name}` is declared twice"));
        }
        self.cursor.punct(":")?;
        let ty = if self.cursor.take("&") {
            let written = self.cursor.take_word("mut");
            let distribution =
                self.cursor.choice("a distribution", &Distribution::ALL, Distribution::name)?;
            self.cursor.punct("<")?;
            let element = self.cursor.element()?;
            self.cursor.punct(">")?;
            ParamType::Tensor { distribution, element, written }
        } else {
            self.cursor.word("f32")?;
            ParamType::Scalar
        };
        let span = self.cursor.span();
        self.params.push(Param { name, ty, span });
        Ok(())
    }

    /// `.t` behind an operand, or nothing.
    fn transposed(&mut self) -> Parsed<bool> {
        let transposed = self.cursor.take(".");
        if transposed {
            self.cursor.word("t")?;
        }
        Ok(transposed)
    }

    fn param(&mut self) -> Parsed<ParamId> {
        let position = self.cursor.position();
        let name = self.cursor.name("a parameter `%name`")?;
        match self.params.iter().find(|(_, param)| param.name == name) {
            Some((id, _)) => Ok(id),
            None => Cursor::error_at(position, format!("there is no parameter `%{name}`")),
        }
    }

    fn value(&mut self) -> Parsed<Value> {
        let Token::Value(value) = *self.cursor.peek() else {
            return self.cursor.unexpected("a value `%0`");
        };
        self.cursor.bump();
        Ok(Value(value))
    }

    fn op(&mut self, next: Value) -> Parsed<Op> {
        if self.cursor.take_word("store") {
            let output = self.param()?;
            self.cursor.punct(",")?;
            return Ok(Op::Store { output, x: self.value()? });
        }
        if *self.cursor.peek() != Token::Value(next.0) {
            return self.cursor.unexpected(&format!("`store` or `{next} =`"));
        }
        self.cursor.bump();
        self.cursor.punct("=")?;
        let Token::Word(word) = self.cursor.peek().clone() else {
            return self.cursor.unexpected("an operation");
        };
        if let Some(op) = unary(&word) {
            self.cursor.bump();
            return Ok(Op::Unary { op, x: self.value()? });
        }
        if let Some(op) = binary(&word) {
            self.cursor.bump();
            let x = self.value()?;
            self.cursor.punct(",")?;
            return Ok(Op::Binary { op, x, y: self.value()? });
        }
        let known = ["wait", "gemm", "cols", "rows", "load", "const", "scalar", "cast", "reduce"];
        if !known.contains(&word.as_str()) {
            return self.cursor.unexpected("an operation");
        }
        self.cursor.bump();
        Ok(match word.as_str() {
            "wait" => Op::Wait { tensor: self.param()? },
            "gemm" => {
                let a = match self.cursor.peek() {
                    Token::Value(_) => Lhs::Ready(self.value()?),
                    _ => {
                        let param = self.param()?;
                        if self.transposed()? { Lhs::Transposed(param) } else { Lhs::Param(param) }
                    }
                };
                self.cursor.punct(",")?;
                Op::Gemm { a, b: self.param()?, transposed: self.transposed()? }
            }
            "cols" => Op::Cols { tensor: self.param()? },
            "rows" => Op::Rows { tensor: self.param()? },
            "load" => match self.cursor.peek() {
                Token::Value(_) => Op::LoadReady { ready: self.value()? },
                _ => Op::Load { tensor: self.param()? },
            },
            "const" => Op::Const(self.cursor.float()?),
            "scalar" => Op::Scalar { param: self.param()? },
            "cast" => {
                let x = self.value()?;
                self.cursor.word("to")?;
                Op::Cast { x, to: self.cursor.element()? }
            }
            _ => {
                let output = self.param()?;
                self.cursor.punct(",")?;
                Op::Reduce { output, x: self.value()? }
            }
        })
    }
}
