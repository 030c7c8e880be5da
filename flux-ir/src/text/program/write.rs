//! Writes a Program.

use super::super::write::{float, line, name};
use crate::order::Order;
use crate::program::{
    At, BinOp, Buffer, BufferId, Cond, Expr, Op, Place, Product, Program, Range, SignalId, Stmt,
    Sym, Table, TableId, Update, ValueOp, VarId,
};
use crate::schedule::{Balance, Cache};
use crate::span::Span;
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer::of(self);
        writer.sections(1)?;
        writeln!(f, "program @{} for {} {{", name(&self.name), self.target)?;
        write!(f, "  tile {} stages {} consumers ", self.tile, self.stages)?;
        f.write_str(self.consumers.name())?;
        if self.split_k != 1 {
            write!(f, " split_k {}", self.split_k)?;
        }
        if self.balance != Balance::Tiles {
            write!(f, " balance {}", self.balance.name())?;
        }
        if self.cache != Cache::Normal {
            write!(f, " cache {}", self.cache.name())?;
        }
        if self.jitter != 0 {
            write!(f, " jitter {}", self.jitter)?;
        }
        if self.node != 0 {
            write!(f, " node {}", self.node)?;
        }
        writeln!(f)?;
        if !writer.seen.iter().copied().eq(self.vars.handles()) {
            let names: Vec<_> = self.vars.handles().map(|var| writer.var_name(var)).collect();
            writeln!(f, "  vars {}", names.join(", "))?;
        }
        f.write_str(&writer.out)?;
        f.write_str("}\n")
    }
}

/// An expression as the text form shows it, for messages.
pub(crate) fn show_expr(program: &Program, expr: &Expr) -> String {
    Writer::of(program).expr(expr)
}

/// A Program being written, or a part of one.
pub(in crate::text) struct Writer<'p> {
    program: &'p Program,
    /// Variables in the order of first appearance in `out`.
    pub(in crate::text) seen: Vec<VarId>,
    pub(in crate::text) out: String,
}

/// How tightly an operator binds.
const SUM: u8 = 1;
const PRODUCT: u8 = 2;
const ATOM: u8 = 3;

impl<'p> Writer<'p> {
    pub(in crate::text) fn of(program: &'p Program) -> Self {
        Writer { program, seen: Vec::new(), out: String::new() }
    }

    /// Every declaration, at nesting `depth`.
    pub(in crate::text) fn sections(&mut self, depth: usize) -> fmt::Result {
        let program = self.program;
        for (var, value) in &program.lets {
            let text = self.definition(*var, value);
            line(&mut self.out, depth, &text, Span::UNKNOWN)?;
        }
        if !program.lengths.is_empty() {
            let lengths: Vec<_> = program.lengths.iter().map(u32::to_string).collect();
            line(&mut self.out, depth, &format!("lengths {}", lengths.join(", ")), Span::UNKNOWN)?;
        }
        for buffer in program.buffers.values() {
            let text = self.buffer_decl(buffer);
            line(&mut self.out, depth, &text, buffer.span)?;
        }
        for scalar in &program.scalars {
            line(&mut self.out, depth, &format!("scalar %{}", name(scalar)), Span::UNKNOWN)?;
        }
        for signal in program.signals.values() {
            let len = self.expr(&signal.len);
            let mut text = format!("signal %{}[{len}] {}", name(&signal.name), signal.home.name());
            if let Some(carrier) = signal.carrier {
                text += &format!(" by {}", self.buffer(carrier));
            }
            line(&mut self.out, depth, &text, Span::UNKNOWN)?;
        }
        for table in program.tables.values() {
            let text = self.table_decl(table);
            line(&mut self.out, depth, &text, Span::UNKNOWN)?;
        }
        for (id, value) in program.values.iter() {
            let text = format!("{id} = {}", self.value_op(&value.op));
            line(&mut self.out, depth, &text, value.span)?;
        }
        for agent in program.agents.values() {
            let head = format!("agent {} on {} {{", name(&agent.name), agent.engine.name());
            line(&mut self.out, depth, &head, Span::UNKNOWN)?;
            self.body(depth + 1, &agent.body)?;
            if !agent.exit.is_empty() {
                line(&mut self.out, depth, "} exit {", Span::UNKNOWN)?;
                self.body(depth + 1, &agent.exit)?;
            }
            line(&mut self.out, depth, "}", Span::UNKNOWN)?;
        }
        Ok(())
    }

    pub(in crate::text) fn var_name(&self, var: VarId) -> String {
        match self.program.vars.get(var) {
            Some(entry) => format!("%{}", name(&entry.name)),
            None => format!("%\"?{}\"", var.0),
        }
    }

    fn var(&mut self, var: VarId) -> String {
        if !self.seen.contains(&var) {
            self.seen.push(var);
        }
        self.var_name(var)
    }

    pub(in crate::text) fn buffer(&self, buffer: BufferId) -> String {
        match self.program.buffers.get(buffer) {
            Some(entry) => format!("%{}", name(&entry.name)),
            None => format!("%\"?{}\"", buffer.0),
        }
    }

    pub(in crate::text) fn signal(&self, signal: SignalId) -> String {
        match self.program.signals.get(signal) {
            Some(entry) => format!("%{}", name(&entry.name)),
            None => format!("%\"?{}\"", signal.0),
        }
    }

    fn table(&self, table: TableId) -> String {
        match self.program.tables.get(table) {
            Some(entry) => format!("%{}", name(&entry.name)),
            None => format!("%\"?{}\"", table.0),
        }
    }

    fn definition(&mut self, var: VarId, value: &Expr) -> String {
        format!("let {} = {}", self.var(var), self.expr(value))
    }

    fn buffer_decl(&mut self, buffer: &Buffer) -> String {
        let mut text = format!("buffer %{} : {}", name(&buffer.name), buffer.element);
        if !buffer.planes.is_empty() {
            text.push_str(&format!("[{}]", self.exprs(&buffer.planes)));
        }
        let (rows, cols) = (self.expr(&buffer.rows), self.expr(&buffer.cols));
        text.push_str(&format!("[{rows}, {cols}] {}", buffer.kind.name()));
        if buffer.sums {
            text.push_str(" sums");
        }
        if buffer.first_row != Expr::Int(0) {
            text.push_str(&format!(" first_row {}", self.expr(&buffer.first_row)));
        }
        if buffer.first_col != Expr::Int(0) {
            text.push_str(&format!(" first_col {}", self.expr(&buffer.first_col)));
        }
        text
    }

    fn table_decl(&mut self, table: &Table) -> String {
        let len = self.expr(&table.len);
        let order = match &table.order {
            Order::Custom(custom) => format!("custom({})", name(&custom.name)),
            built_in => built_in.to_string(),
        };
        let tiled = match table.tiled.is_up_to(&Sym::M.into()) {
            true => String::new(),
            false => format!(" of {}", self.range(&table.tiled)),
        };
        let cut = if table.by_shard { " by shard" } else { "" };
        let (m, n) = (self.var(table.m), self.var(table.n));
        let [first, second] = &table.fields;
        let (first, second) = (self.expr(first), self.expr(second));
        let table = name(&table.name);
        format!("table %{table}[{len}] order {order}{tiled}{cut} ({m}, {n}) -> ({first}, {second})")
    }

    fn value_op(&self, op: &ValueOp) -> String {
        match op {
            ValueOp::Acc(index) => format!("acc {index}"),
            ValueOp::Sum => "sum".into(),
            ValueOp::Const(number) => format!("const {}", float(*number)),
            ValueOp::Scalar(index) => match self.program.scalars.get(*index as usize) {
                Some(scalar) => format!("scalar %{}", name(scalar)),
                None => format!("scalar %\"?{index}\""),
            },
            ValueOp::Cols(buffer) => format!("cols {}", self.buffer(*buffer)),
            ValueOp::Rows(buffer) => format!("rows {}", self.buffer(*buffer)),
            ValueOp::Load(buffer) => format!("load {}", self.buffer(*buffer)),
            ValueOp::Loaded(index) => format!("loaded {index}"),
            ValueOp::Unary(op, x) => format!("{} {x}", op.name()),
            ValueOp::Binary(op, x, y) => format!("{} {x}, {y}", op.name()),
            ValueOp::Cast(x, to) => format!("cast {x} to {to}"),
        }
    }

    fn body(&mut self, depth: usize, body: &[Stmt]) -> fmt::Result {
        for stmt in body {
            let text = self.stmt(&stmt.op);
            line(&mut self.out, depth, &text, stmt.span)?;
            if let Op::For { body, .. } | Op::If { body, .. } = &stmt.op {
                self.body(depth + 1, body)?;
                line(&mut self.out, depth, "}", Span::UNKNOWN)?;
            }
        }
        Ok(())
    }

    /// A statement, or the head of one that has a body.
    fn stmt(&mut self, op: &Op) -> String {
        match op {
            Op::Let { var, value } => self.definition(*var, value),
            Op::Row { table, index, vars } => {
                let vars = vars.map(|var| self.var(var)).join(", ");
                format!("row ({vars}) = {}[{}]", self.table(*table), self.expr(index))
            }
            Op::For { var, from, to, step, body: _ } => {
                let var = self.var(*var);
                let (from, to) = (self.expr(from), self.expr(to));
                if *step == Expr::Int(1) {
                    return format!("for {var} in {from}..{to} {{");
                }
                format!("for {var} in {from}..{to} step {} {{", self.expr(step))
            }
            Op::If { cond, body: _ } => {
                let (a, sign, b) = match cond {
                    Cond::Eq(a, b) => (a, "==", b),
                    Cond::Ne(a, b) => (a, "!=", b),
                    Cond::Lt(a, b) => (a, "<", b),
                };
                format!("if {} {sign} {} {{", self.expr(a), self.expr(b))
            }
            Op::Wait { signal, slots, target, scope } => {
                let slots = self.slots(*signal, slots);
                format!("wait {slots} >= {} scope {}", self.expr(target), scope.name())
            }
            Op::FenceProxyAsync => "fence proxy.async".into(),
            Op::Mainloop { products } => {
                let products: Vec<_> = products.iter().map(|p| self.product(p)).collect();
                format!("mainloop {}", products.join(", "))
            }
            Op::Store { to, value, adds } => {
                let sign = if *adds { "+=" } else { "<-" };
                format!("store {} {sign} {value}", self.place(to))
            }
            Op::Sum { var, own, from } => {
                format!("sum {} own {own} from {}", self.var(*var), self.place(from))
            }
            Op::Load { index, from } => format!("load {index} from {}", self.place(from)),
            Op::Signal { at, signal, slot, update, scope, after } => {
                let mut text = format!("signal {}{}", self.at(at), self.signal(*signal));
                text.push_str(&format!("[{}] ", self.expr(slot)));
                text.push_str(&match update {
                    Update::Add(count) => format!("+= {}", self.expr(count)),
                    Update::Set(value) => format!("= {}", self.expr(value)),
                });
                format!("{text} scope {} after {}", scope.name(), after.name())
            }
            Op::Copy { from, to, adds } => {
                let sign = if *adds { "+=" } else { "<-" };
                format!("copy {} {sign} {}", self.place(to), self.place(from))
            }
        }
    }

    /// `%signal[slot]` or `%signal[from..to]`.
    pub(in crate::text) fn slots(&mut self, signal: SignalId, slots: &Range) -> String {
        let one = Range::one(slots.lo.clone()) == *slots;
        let slots = if one { self.expr(&slots.lo) } else { self.range(slots) };
        format!("{}[{slots}]", self.signal(signal))
    }

    fn product(&mut self, product: &Product) -> String {
        let (a, b) = (self.place(&product.a), self.place(&product.b));
        let [of_a, of_b] = [product.transposed.a, product.transposed.b]
            .map(|turned| if turned { "^T" } else { "" });
        format!("{a}{of_a} * {b}{of_b}")
    }

    fn at(&mut self, at: &At) -> String {
        match at {
            At::Own => String::new(),
            At::Peer(rank) => format!("peer({}).", self.expr(rank)),
            At::Remote(rank) => format!("remote({}).", self.expr(rank)),
        }
    }

    fn place(&mut self, place: &Place) -> String {
        let mut text = self.at(&place.at) + &self.buffer(place.buffer);
        if !place.planes.is_empty() {
            text.push_str(&format!("{{{}}}", self.exprs(&place.planes)));
        }
        let (rows, cols) = (self.range(&place.rows), self.range(&place.cols));
        format!("{text}[{rows}, {cols}]")
    }

    pub(in crate::text) fn range(&mut self, range: &Range) -> String {
        format!("{}..{}", self.expr(&range.lo), self.expr(&range.hi))
    }

    fn exprs(&mut self, exprs: &[Expr]) -> String {
        let exprs: Vec<_> = exprs.iter().map(|expr| self.expr(expr)).collect();
        exprs.join(", ")
    }

    pub(in crate::text) fn expr(&mut self, expr: &Expr) -> String {
        let mut text = String::new();
        self.expr_into(&mut text, expr, SUM);
        text
    }

    /// Appends `expr`, in parentheses where it binds less tightly than `least`.
    fn expr_into(&mut self, text: &mut String, expr: &Expr, least: u8) {
        let (op, a, b) = match expr {
            Expr::Int(value) => return text.push_str(&value.to_string()),
            Expr::Sym(sym) => return text.push_str(sym.name()),
            Expr::Var(var) => return text.push_str(&self.var(*var)),
            Expr::First(rank) => {
                text.push_str("first(");
                self.expr_into(text, rank, SUM);
                return text.push(')');
            }
            Expr::Bin(op, a, b) => (op, a, b),
        };
        let (level, sign) = match op {
            BinOp::Add => (SUM, " + "),
            BinOp::Sub => (SUM, " - "),
            BinOp::Mul => (PRODUCT, " * "),
            BinOp::Div => (PRODUCT, " / "),
            BinOp::Rem => (PRODUCT, " % "),
            BinOp::CeilDiv => {
                text.push_str("ceil(");
                self.expr_into(text, a, PRODUCT);
                text.push_str(" / ");
                self.expr_into(text, b, ATOM);
                return text.push(')');
            }
            BinOp::Min | BinOp::Max => {
                text.push_str(if *op == BinOp::Min { "min(" } else { "max(" });
                self.expr_into(text, a, SUM);
                text.push_str(", ");
                self.expr_into(text, b, SUM);
                return text.push(')');
            }
        };
        let bracket = level < least;
        if bracket {
            text.push('(');
        }
        self.expr_into(text, a, level);
        text.push_str(sign);
        self.expr_into(text, b, level + 1);
        if bracket {
            text.push(')');
        }
    }
}
