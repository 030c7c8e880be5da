//! Reads statements and regions.

use super::super::cursor::Parsed;
use super::super::lex::Token;
use super::read::{Reader, unknown};
use crate::program::{
    At, Completion, Cond, Expr, Op, Place, Product, Range, Scope, SignalId, Stmt, TableId,
    Transposed, Update,
};
use crate::span::Span;

impl Reader {
    /// `{ … }` and the span behind its first brace.
    pub(super) fn body(&mut self) -> Parsed<(Vec<Stmt>, Span)> {
        self.cursor.punct("{")?;
        let span = self.cursor.span();
        let body = self.nested(|reader| {
            let mut body = Vec::new();
            while !reader.cursor.at("}") {
                body.push(reader.stmt()?);
            }
            Ok(body)
        })?;
        self.cursor.punct("}")?;
        Ok((body, span))
    }

    fn stmt(&mut self) -> Parsed<Stmt> {
        if self.cursor.take_word("for") {
            let var = self.var()?;
            self.cursor.word("in")?;
            let Range { lo: from, hi: to } = self.range()?;
            let step = if self.cursor.take_word("step") { self.expr()? } else { Expr::Int(1) };
            let (body, span) = self.body()?;
            return Ok(Stmt { op: Op::For { var, from, to, step, body }, span });
        }
        if self.cursor.take_word("if") {
            let cond = self.cond()?;
            let (body, span) = self.body()?;
            return Ok(Stmt { op: Op::If { cond, body }, span });
        }
        let op = self.simple()?;
        Ok(Stmt { op, span: self.cursor.span() })
    }

    fn cond(&mut self) -> Parsed<Cond> {
        let a = self.expr()?;
        let cond = match self.cursor.peek() {
            Token::Punct("==") => Cond::Eq,
            Token::Punct("!=") => Cond::Ne,
            Token::Punct("<") => Cond::Lt,
            _ => return self.cursor.unexpected("`==`, `!=` or `<`"),
        };
        self.cursor.bump();
        Ok(cond(a, self.expr()?))
    }

    fn simple(&mut self) -> Parsed<Op> {
        if self.cursor.take_word("let") {
            let (var, value) = self.definition()?;
            return Ok(Op::Let { var, value });
        }
        if self.cursor.take_word("row") {
            return self.row();
        }
        if self.cursor.take_word("wait") {
            return self.wait();
        }
        if self.cursor.take_word("fence") {
            self.cursor.word("proxy")?;
            self.cursor.punct(".")?;
            self.cursor.word("async")?;
            return Ok(Op::FenceProxyAsync);
        }
        if self.cursor.take_word("mainloop") {
            let mut products = vec![self.matrix_product()?];
            while self.cursor.take(",") {
                products.push(self.matrix_product()?);
            }
            return Ok(Op::Mainloop { products });
        }
        if self.cursor.take_word("store") {
            let to = self.place()?;
            let adds = self.cursor.take("+=");
            if !adds {
                self.cursor.punct("<-")?;
            }
            return Ok(Op::Store { to, value: self.value()?, adds });
        }
        if self.cursor.take_word("sum") {
            let var = self.var()?;
            self.cursor.word("own")?;
            let own = self.value()?;
            self.cursor.word("from")?;
            return Ok(Op::Sum { var, own, from: self.place()? });
        }
        if self.cursor.take_word("load") {
            let index = self.cursor.u32()?;
            self.cursor.word("from")?;
            return Ok(Op::Load { index, from: self.place()? });
        }
        if self.cursor.take_word("signal") {
            return self.signal_stmt();
        }
        if self.cursor.take_word("copy") {
            let to = self.place()?;
            let adds = self.cursor.take("+=");
            if !adds {
                self.cursor.punct("<-")?;
            }
            return Ok(Op::Copy { from: self.place()?, to, adds });
        }
        self.cursor.unexpected("a statement or `}`")
    }

    fn row(&mut self) -> Parsed<Op> {
        self.cursor.punct("(")?;
        let mut vars = [self.var()?; 4];
        for var in &mut vars[1..] {
            self.cursor.punct(",")?;
            *var = self.var()?;
        }
        self.cursor.punct(")")?;
        self.cursor.punct("=")?;
        let table = self.table()?;
        self.cursor.punct("[")?;
        let index = self.expr()?;
        self.cursor.punct("]")?;
        Ok(Op::Row { table, index, vars })
    }

    fn wait(&mut self) -> Parsed<Op> {
        let (signal, slots) = self.slots()?;
        self.cursor.punct(">=")?;
        let target = self.expr()?;
        Ok(Op::Wait { signal, slots, target, scope: self.scope()? })
    }

    /// `%signal[slot]` or `%signal[from..to]`.
    pub(in crate::text) fn slots(&mut self) -> Parsed<(SignalId, Range)> {
        let signal = self.signal()?;
        self.cursor.punct("[")?;
        let lo = self.expr()?;
        let slots =
            if self.cursor.take("..") { Range { lo, hi: self.expr()? } } else { Range::one(lo) };
        self.cursor.punct("]")?;
        Ok((signal, slots))
    }

    fn signal_stmt(&mut self) -> Parsed<Op> {
        let at = self.at()?;
        let signal = self.signal()?;
        self.cursor.punct("[")?;
        let slot = self.expr()?;
        self.cursor.punct("]")?;
        let update = if self.cursor.take("+=") {
            Update::Add(self.expr()?)
        } else if self.cursor.take("=") {
            Update::Set(self.expr()?)
        } else {
            return self.cursor.unexpected("`+=` or `=`");
        };
        let scope = self.scope()?;
        self.cursor.word("after")?;
        let after = self.cursor.choice("a completion", &Completion::ALL, Completion::name)?;
        Ok(Op::Signal { at, signal, slot, update, scope, after })
    }

    fn scope(&mut self) -> Parsed<Scope> {
        self.cursor.word("scope")?;
        self.cursor.choice("a scope", &Scope::ALL, Scope::name)
    }

    pub(in crate::text) fn signal(&mut self) -> Parsed<SignalId> {
        let position = self.cursor.position();
        let name = self.cursor.name("a signal `%name`")?;
        match self.program.signals.iter().find(|(_, signal)| signal.name == name) {
            Some((id, _)) => Ok(id),
            None => unknown(position, "signal", &name),
        }
    }

    fn table(&mut self) -> Parsed<TableId> {
        let position = self.cursor.position();
        let name = self.cursor.name("a table `%name`")?;
        match self.program.tables.iter().find(|(_, table)| table.name == name) {
            Some((id, _)) => Ok(id),
            None => unknown(position, "table", &name),
        }
    }

    fn matrix_product(&mut self) -> Parsed<Product> {
        let (a, a_transposed) = (self.place()?, self.transposed()?);
        self.cursor.punct("*")?;
        let (b, b_transposed) = (self.place()?, self.transposed()?);
        let transposed = Transposed { a: a_transposed, b: b_transposed };
        Ok(Product { a, b, transposed })
    }

    /// `^T` behind an operand, or nothing.
    fn transposed(&mut self) -> Parsed<bool> {
        let transposed = self.cursor.take("^");
        if transposed {
            self.cursor.word("T")?;
        }
        Ok(transposed)
    }

    fn at(&mut self) -> Parsed<At> {
        let of: fn(Expr) -> At = if self.cursor.take_word("peer") {
            At::Peer
        } else if self.cursor.take_word("remote") {
            At::Remote
        } else {
            return Ok(At::Own);
        };
        self.cursor.punct("(")?;
        let rank = self.expr()?;
        self.cursor.punct(")")?;
        self.cursor.punct(".")?;
        Ok(of(rank))
    }

    fn place(&mut self) -> Parsed<Place> {
        let at = self.at()?;
        let buffer = self.buffer()?;
        let mut planes = Vec::new();
        if self.cursor.take("{") {
            planes = self.exprs()?;
            self.cursor.punct("}")?;
        }
        self.cursor.punct("[")?;
        let rows = self.range()?;
        self.cursor.punct(",")?;
        let cols = self.range()?;
        self.cursor.punct("]")?;
        Ok(Place { at, buffer, planes, rows, cols })
    }

    pub(in crate::text) fn range(&mut self) -> Parsed<Range> {
        let lo = self.expr()?;
        self.cursor.punct("..")?;
        Ok(Range { lo, hi: self.expr()? })
    }
}
