//! Index expressions: integers of a launch.

use super::VarId;

/// An integer every agent knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sym {
    /// Rows of the whole output.
    M,
    /// Columns of the output.
    N,
    /// Length of the reduction.
    K,
    /// Rows of the longest shard: `ceil(M / world)`, where shards have no lengths of their own
    /// ([`Program::lengths`](super::Program::lengths)).
    Shard,
    /// The number of ranks.
    World,
    /// This rank.
    Rank,
    /// The number of this launch of the kernel instance, from 1.
    Epoch,
    /// This CTA, below [`Sym::Ctas`].
    Cta,
    /// The number of CTAs of a rank's grid.
    Ctas,
}

impl Sym {
    /// Every symbol.
    pub const ALL: [Sym; 9] = [
        Sym::M,
        Sym::N,
        Sym::K,
        Sym::Shard,
        Sym::World,
        Sym::Rank,
        Sym::Epoch,
        Sym::Cta,
        Sym::Ctas,
    ];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Sym::M => "M",
            Sym::N => "N",
            Sym::K => "K",
            Sym::Shard => "shard",
            Sym::World => "world",
            Sym::Rank => "rank",
            Sym::Epoch => "epoch",
            Sym::Cta => "cta",
            Sym::Ctas => "ctas",
        }
    }
}

/// A binary operation on integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BinOp {
    /// Sum.
    Add,
    /// Difference; may be negative.
    Sub,
    /// Product.
    Mul,
    /// Quotient rounded down; operands are not negative, the divisor is positive.
    Div,
    /// Quotient rounded up; operands are not negative, the divisor is positive.
    CeilDiv,
    /// Remainder; operands are not negative, the divisor is positive.
    Rem,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

/// An integer expression, evaluated in 64 bits on the host and in 32 on the device (launches
/// whose intermediate values leave 31 bits are refused).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A literal.
    Int(i64),
    /// A symbol of the launch.
    Sym(Sym),
    /// A variable.
    Var(VarId),
    /// The first row that a rank owns; M for the number of ranks and beyond it.
    First(Box<Expr>),
    /// A binary operation.
    Bin(BinOp, Box<Expr>, Box<Expr>),
}

impl Expr {
    fn bin(op: BinOp, a: impl Into<Expr>, b: impl Into<Expr>) -> Expr {
        Expr::Bin(op, Box::new(a.into()), Box::new(b.into()))
    }

    /// The first row that rank `self` owns.
    #[must_use]
    pub fn first(self) -> Expr {
        Expr::First(Box::new(self))
    }

    /// `ceil(self / divisor)`.
    pub fn ceil_div(self, divisor: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::CeilDiv, self, divisor)
    }

    /// This expression with `sym` replaced by `by`.
    #[must_use]
    pub fn substitute(&self, sym: Sym, by: &Expr) -> Expr {
        match self {
            Expr::Sym(found) if *found == sym => by.clone(),
            Expr::Int(_) | Expr::Sym(_) | Expr::Var(_) => self.clone(),
            Expr::First(rank) => rank.substitute(sym, by).first(),
            Expr::Bin(op, a, b) => {
                Expr::Bin(*op, Box::new(a.substitute(sym, by)), Box::new(b.substitute(sym, by)))
            }
        }
    }

    /// This expression with every variable replaced by what `by` says.
    #[must_use]
    pub fn replace(&self, by: &impl Fn(VarId) -> Expr) -> Expr {
        match self {
            Expr::Var(var) => by(*var),
            Expr::Int(_) | Expr::Sym(_) => self.clone(),
            Expr::First(rank) => rank.replace(by).first(),
            Expr::Bin(op, a, b) => Expr::Bin(*op, Box::new(a.replace(by)), Box::new(b.replace(by))),
        }
    }

    /// Whether it depends on `var`.
    pub fn mentions(&self, var: VarId) -> bool {
        match self {
            Expr::Var(found) => *found == var,
            Expr::Int(_) | Expr::Sym(_) => false,
            Expr::First(rank) => rank.mentions(var),
            Expr::Bin(_, a, b) => a.mentions(var) || b.mentions(var),
        }
    }

    /// The smaller of two.
    pub fn min(self, other: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::Min, self, other)
    }

    /// The larger of two.
    pub fn max(self, other: impl Into<Expr>) -> Expr {
        Expr::bin(BinOp::Max, self, other)
    }
}

impl From<i64> for Expr {
    fn from(value: i64) -> Self {
        Expr::Int(value)
    }
}

impl From<u32> for Expr {
    fn from(value: u32) -> Self {
        Expr::Int(value.into())
    }
}

impl From<Sym> for Expr {
    fn from(sym: Sym) -> Self {
        Expr::Sym(sym)
    }
}

impl From<VarId> for Expr {
    fn from(var: VarId) -> Self {
        Expr::Var(var)
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<T: Into<Expr>> std::ops::$trait<T> for Expr {
            type Output = Expr;
            fn $method(self, other: T) -> Expr {
                Expr::bin(BinOp::$op, self, other)
            }
        }
    )*};
}

arithmetic! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    Rem rem Rem;
}
