//! Reads the declarations of a Program.

use super::super::cursor::{Cursor, DEPTH, Parsed, binary, unary};
use super::super::lex::Token;
use crate::arena::Handle;
use crate::diagnostic::Diagnostics;
use crate::program::{
    Agent, BinOp, Buffer, BufferId, BufferKind, Engine, Expr, Home, Program, Range, SignalArray,
    Sym, Table, ValueEntry, ValueId, ValueOp, Var, VarId,
};
use crate::schedule::{Balance, Cache, Consumers, Schedule};
use crate::span::Span;
use crate::target::Target;
use crate::tile::TileShape;
use std::collections::HashMap;
use std::str::FromStr;

impl FromStr for Program {
    type Err = Diagnostics;

    fn from_str(text: &str) -> Result<Self, Diagnostics> {
        Ok(read(Cursor::new(text)?)?)
    }
}

/// The Program so far: names are looked up in it.
pub(in crate::text) struct Reader {
    pub(in crate::text) cursor: Cursor,
    pub(in crate::text) program: Program,
    vars: HashMap<String, VarId>,
}

fn read(mut cursor: Cursor) -> Parsed<Program> {
    cursor.word("program")?;
    let name = cursor.global()?;
    cursor.word("for")?;
    let target = cursor.choice("a target", &Target::ALL, Target::name)?;
    for token in ["{", "tile", "("] {
        if token == "tile" { cursor.word(token) } else { cursor.punct(token) }?;
    }
    let m = cursor.u32()?;
    cursor.punct(",")?;
    let n = cursor.u32()?;
    cursor.punct(",")?;
    let tile = TileShape { m, n, k: cursor.u32()? };
    cursor.punct(")")?;
    cursor.word("stages")?;
    let stages = cursor.u32()?;
    cursor.word("consumers")?;
    let consumers = cursor.choice("a form of consumers", &Consumers::ALL, Consumers::name)?;
    let split_k = if cursor.take_word("split_k") { cursor.u32()? } else { 1 };
    let balance = if cursor.take_word("balance") {
        cursor.choice("a balance", &Balance::ALL, Balance::name)?
    } else {
        Balance::Tiles
    };
    let cache = if cursor.take_word("cache") {
        cursor.choice("a cache policy", &Cache::ALL, Cache::name)?
    } else {
        Cache::Normal
    };
    let jitter = if cursor.take_word("jitter") { cursor.u32()? } else { 0 };
    let schedule = Schedule { target, tile, stages, ..Schedule::host() };
    let schedule = schedule.consumers(consumers).split_k(split_k).balance(balance).cache(cache);
    let node = if cursor.take_word("node") { cursor.u32()? } else { 0 };
    let schedule = schedule.jitter(jitter).node(node);
    let mut reader = Reader::new(cursor, Program::empty(&name, &schedule));
    reader.variables()?;
    while !reader.cursor.at("}") {
        reader.section()?;
    }
    reader.cursor.punct("}")?;
    reader.cursor.end()?;
    Ok(reader.program)
}

impl Reader {
    /// Goes on at `cursor`, behind what is in `program`.
    pub(in crate::text) fn new(cursor: Cursor, program: Program) -> Self {
        let vars = program.vars.iter().map(|(id, var)| (var.name.clone(), id)).collect();
        Reader { cursor, program, vars }
    }

    /// The order of the variables, where it is written.
    pub(in crate::text) fn variables(&mut self) -> Parsed<()> {
        if self.cursor.take_word("vars") {
            let vars = self.cursor.list(|cursor| cursor.name("a variable `%name`"))?;
            vars.into_iter().for_each(|name| _ = self.intern(name));
        }
        Ok(())
    }

    pub(in crate::text) fn section(&mut self) -> Parsed<()> {
        if self.cursor.take_word("let") {
            let definition = self.definition()?;
            self.program.lets.push(definition);
        } else if self.cursor.take_word("lengths") {
            self.program.lengths = self.cursor.list(Cursor::u32)?;
        } else if self.cursor.take_word("buffer") {
            self.buffer_decl()?;
        } else if self.cursor.take_word("scalar") {
            let position = self.cursor.position();
            let name = self.cursor.name("a scalar `%name`")?;
            once(position, "scalar", &name, self.program.scalars.contains(&name))?;
            self.program.scalars.push(name);
        } else if self.cursor.take_word("signal") {
            self.signal_decl()?;
        } else if self.cursor.take_word("table") {
            self.table_decl()?;
        } else if self.cursor.take_word("agent") {
            let name = self.cursor.plain_name("the agent's name")?;
            self.cursor.word("on")?;
            let engine = self.cursor.choice("an engine", &Engine::ALL, Engine::name)?;
            let body = self.body()?.0;
            let exit = if self.cursor.take_word("exit") { self.body()?.0 } else { Vec::new() };
            self.program.agents.push(Agent { name, engine, body, exit });
        } else if matches!(self.cursor.peek(), Token::Name(_)) {
            self.value_decl()?;
        } else {
            let expected =
                "`let`, `lengths`, `buffer`, `scalar`, `signal`, `table`, `%e0 =` or `agent`";
            return self.cursor.unexpected(expected);
        }
        Ok(())
    }

    fn buffer_decl(&mut self) -> Parsed<()> {
        let position = self.cursor.position();
        let name = self.cursor.name("a buffer `%name`")?;
        let known = self.program.buffers.values().any(|buffer| buffer.name == name);
        once(position, "buffer", &name, known)?;
        self.cursor.punct(":")?;
        let element = self.cursor.element()?;
        let mut extents = self.bracketed()?;
        let planes = if self.cursor.at("[") {
            std::mem::replace(&mut extents, self.bracketed()?)
        } else {
            Vec::new()
        };
        let Ok([rows, cols]) = <[Expr; 2]>::try_from(extents) else {
            return self.cursor.error("expected rows and columns `[rows, cols]`");
        };
        let kinds =
            [BufferKind::Input, BufferKind::Exposed, BufferKind::Output, BufferKind::Symmetric];
        let kind = self.cursor.choice("a kind of buffer", &kinds, BufferKind::name)?;
        let sums = self.cursor.take_word("sums");
        let first_row =
            if self.cursor.take_word("first_row") { self.expr()? } else { Expr::Int(0) };
        let first_col =
            if self.cursor.take_word("first_col") { self.expr()? } else { Expr::Int(0) };
        let span = self.cursor.span();
        let buffer =
            Buffer { name, kind, sums, element, planes, rows, first_row, cols, first_col, span };
        self.program.buffers.push(buffer);
        Ok(())
    }

    fn signal_decl(&mut self) -> Parsed<()> {
        let position = self.cursor.position();
        let name = self.cursor.name("a signal `%name`")?;
        let known = self.program.signals.values().any(|signal| signal.name == name);
        once(position, "signal", &name, known)?;
        self.cursor.punct("[")?;
        let len = self.expr()?;
        self.cursor.punct("]")?;
        let homes = [Home::Device, Home::Host];
        let home = self.cursor.choice("a home", &homes, Home::name)?;
        let carrier = match self.cursor.take_word("by") {
            true => Some(self.buffer()?),
            false => None,
        };
        self.program.signals.push(SignalArray { name, len, home, carrier });
        Ok(())
    }

    fn table_decl(&mut self) -> Parsed<()> {
        let position = self.cursor.position();
        let name = self.cursor.name("a table `%name`")?;
        let known = self.program.tables.values().any(|table| table.name == name);
        once(position, "table", &name, known)?;
        self.cursor.punct("[")?;
        let len = self.expr()?;
        self.cursor.punct("]")?;
        self.cursor.word("order")?;
        let order = self.cursor.order()?;
        let tiled = match self.cursor.take_word("of") {
            true => self.range()?,
            false => Range::new(0i64, Sym::M),
        };
        let by_shard = self.cursor.take_word("by");
        if by_shard {
            self.cursor.word("shard")?;
        }
        self.cursor.punct("(")?;
        let m = self.var()?;
        self.cursor.punct(",")?;
        let n = self.var()?;
        self.cursor.punct(")")?;
        self.cursor.punct("->")?;
        self.cursor.punct("(")?;
        let first = self.expr()?;
        self.cursor.punct(",")?;
        let second = self.expr()?;
        self.cursor.punct(")")?;
        let fields = [first, second];
        self.program.tables.push(Table { name, len, order, tiled, by_shard, m, n, fields });
        Ok(())
    }

    fn value_decl(&mut self) -> Parsed<()> {
        let next = ValueId::new(self.program.values.len());
        let position = self.cursor.position();
        if self.value()? != next {
            return Cursor::error_at(position, format!("expected `{next}`, the next value"));
        }
        self.cursor.punct("=")?;
        let Token::Word(word) = self.cursor.peek().clone() else {
            return self.cursor.unexpected("an operation");
        };
        let position = self.cursor.position();
        self.cursor.bump();
        let op = match word.as_str() {
            "acc" => ValueOp::Acc(self.cursor.u32()?),
            "sum" => ValueOp::Sum,
            "const" => ValueOp::Const(self.cursor.float()?),
            "scalar" => {
                let position = self.cursor.position();
                let name = self.cursor.name("a scalar `%name`")?;
                match self.program.scalars.iter().position(|scalar| *scalar == name) {
                    Some(index) => ValueOp::Scalar(index as u32),
                    None => return unknown(position, "scalar", &name),
                }
            }
            "cols" => ValueOp::Cols(self.buffer()?),
            "rows" => ValueOp::Rows(self.buffer()?),
            "load" => ValueOp::Load(self.buffer()?),
            "loaded" => ValueOp::Loaded(self.cursor.u32()?),
            "cast" => {
                let x = self.value()?;
                self.cursor.word("to")?;
                ValueOp::Cast(x, self.cursor.element()?)
            }
            word => {
                if let Some(op) = unary(word) {
                    ValueOp::Unary(op, self.value()?)
                } else if let Some(op) = binary(word) {
                    let x = self.value()?;
                    self.cursor.punct(",")?;
                    ValueOp::Binary(op, x, self.value()?)
                } else {
                    return Cursor::error_at(position, format!("there is no operation `{word}`"));
                }
            }
        };
        self.program.values.push(ValueEntry { op, span: self.cursor.span() });
        Ok(())
    }

    /// `%e7`.
    pub(super) fn value(&mut self) -> Parsed<ValueId> {
        if let Token::Name(name) = self.cursor.peek()
            && let Some(Ok(index)) = name.strip_prefix('e').map(str::parse)
        {
            self.cursor.bump();
            return Ok(ValueId(index));
        }
        self.cursor.unexpected("a value `%e0`")
    }

    fn intern(&mut self, name: String) -> VarId {
        let vars = &mut self.program.vars;
        *self.vars.entry(name).or_insert_with_key(|name| vars.push(Var { name: name.clone() }))
    }

    pub(super) fn var(&mut self) -> Parsed<VarId> {
        let name = self.cursor.name("a variable `%name`")?;
        Ok(self.intern(name))
    }

    pub(in crate::text) fn buffer(&mut self) -> Parsed<BufferId> {
        let position = self.cursor.position();
        let name = self.cursor.name("a buffer `%name`")?;
        match self.program.buffers.iter().find(|(_, buffer)| buffer.name == name) {
            Some((id, _)) => Ok(id),
            None => unknown(position, "buffer", &name),
        }
    }

    pub(super) fn definition(&mut self) -> Parsed<(VarId, Expr)> {
        let var = self.var()?;
        self.cursor.punct("=")?;
        Ok((var, self.expr()?))
    }

    fn bracketed(&mut self) -> Parsed<Vec<Expr>> {
        self.cursor.punct("[")?;
        let exprs = self.exprs()?;
        self.cursor.punct("]")?;
        Ok(exprs)
    }

    pub(super) fn exprs(&mut self) -> Parsed<Vec<Expr>> {
        let mut exprs = vec![self.expr()?];
        while self.cursor.take(",") {
            exprs.push(self.expr()?);
        }
        Ok(exprs)
    }

    pub(in crate::text) fn expr(&mut self) -> Parsed<Expr> {
        Ok(self.sum()?.0)
    }

    /// Sums and differences, and how deep the tree is.
    fn sum(&mut self) -> Parsed<(Expr, u32)> {
        let mut left = self.product()?;
        loop {
            let op = match self.cursor.peek() {
                Token::Punct("+") => BinOp::Add,
                Token::Punct("-") => BinOp::Sub,
                _ => return Ok(left),
            };
            self.cursor.bump();
            let right = self.product()?;
            left = self.join(op, left, right)?;
        }
    }

    fn product(&mut self) -> Parsed<(Expr, u32)> {
        let mut left = self.atom()?;
        loop {
            let op = match self.cursor.peek() {
                Token::Punct("*") => BinOp::Mul,
                Token::Punct("/") => BinOp::Div,
                Token::Punct("%") => BinOp::Rem,
                _ => return Ok(left),
            };
            self.cursor.bump();
            let right = self.atom()?;
            left = self.join(op, left, right)?;
        }
    }

    fn join(&self, op: BinOp, a: (Expr, u32), b: (Expr, u32)) -> Parsed<(Expr, u32)> {
        let depth = a.1.max(b.1) + 1;
        if depth > DEPTH {
            return self.cursor.error(format!("expected at most {DEPTH} levels, found more"));
        }
        Ok((Expr::Bin(op, Box::new(a.0), Box::new(b.0)), depth))
    }

    fn atom(&mut self) -> Parsed<(Expr, u32)> {
        match self.cursor.peek() {
            Token::Number(..) | Token::Punct("-") => Ok((Expr::Int(self.cursor.i64()?), 1)),
            Token::Name(_) => Ok((Expr::Var(self.var()?), 1)),
            Token::Punct("(") => {
                self.cursor.bump();
                let inner = self.nested(Self::sum)?;
                self.cursor.punct(")")?;
                Ok(inner)
            }
            Token::Word(word) if word == "ceil" => self.ceil(),
            Token::Word(word) if word == "first" => {
                self.cursor.bump();
                self.cursor.punct("(")?;
                let (rank, depth) = self.nested(Self::sum)?;
                self.cursor.punct(")")?;
                Ok((rank.first(), depth + 1))
            }
            Token::Word(word) if word == "min" || word == "max" => {
                let op = if word == "min" { BinOp::Min } else { BinOp::Max };
                self.cursor.bump();
                self.cursor.punct("(")?;
                let a = self.nested(Self::sum)?;
                self.cursor.punct(",")?;
                let b = self.nested(Self::sum)?;
                self.cursor.punct(")")?;
                self.join(op, a, b)
            }
            Token::Word(word) if Sym::ALL.iter().any(|sym| sym.name() == word) => {
                Ok((Expr::Sym(self.cursor.choice("a symbol", &Sym::ALL, Sym::name)?), 1))
            }
            _ => self.cursor.unexpected("an index expression"),
        }
    }

    /// `ceil(a / b)`.
    fn ceil(&mut self) -> Parsed<(Expr, u32)> {
        self.cursor.bump();
        self.cursor.punct("(")?;
        let (inner, depth) = self.nested(Self::product)?;
        let Expr::Bin(BinOp::Div, a, b) = inner else {
            return self.cursor.error("expected a quotient `ceil(a / b)`");
        };
        self.cursor.punct(")")?;
        Ok((Expr::Bin(BinOp::CeilDiv, a, b), depth))
    }

    /// Runs `parse` one level deeper.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.cursor.deeper()?;
        let parsed = parse(self);
        self.cursor.shallower();
        parsed
    }
}

fn once(position: Span, what: &str, name: &str, known: bool) -> Parsed<()> {
    if known {
        return Cursor::error_at(position, format!("{what} `%{name}` is declared twice"));
    }
    Ok(())
}

pub(super) fn unknown<T>(position: Span, what: &str, name: &str) -> Parsed<T> {
    Cursor::error_at(position, format!("there is no {what} `%{name}`"))
}
