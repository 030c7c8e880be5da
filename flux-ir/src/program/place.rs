//! Regions of buffers, as index expressions.

use super::{BufferId, Expr};

/// On which rank something lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum At {
    /// On the acting agent's own rank.
    Own,
    /// On the rank of this number (which may be the own one), whose memory is mapped here: it is of the
    /// same node.
    Peer(Expr),
    /// On the rank of this number, which is of another node: reached by puts and signals over the network
    /// alone.
    Remote(Expr),
}

impl At {
    /// The rank, where it is named.
    pub const fn rank(&self) -> Option<&Expr> {
        match self {
            At::Own => None,
            At::Peer(rank) | At::Remote(rank) => Some(rank),
        }
    }

    /// The same, to be changed.
    pub const fn rank_mut(&mut self) -> Option<&mut Expr> {
        match self {
            At::Own => None,
            At::Peer(rank) | At::Remote(rank) => Some(rank),
        }
    }

    /// Whether it is reached over the network.
    pub const fn is_remote(&self) -> bool {
        matches!(self, At::Remote(_))
    }
}

/// A half-open range; empty where `hi <= lo`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Range {
    /// First.
    pub lo: Expr,
    /// End, exclusive.
    pub hi: Expr,
}

impl Range {
    /// Whether it is `0..end`.
    pub fn is_up_to(&self, end: &Expr) -> bool {
        self.lo == Expr::Int(0) && self.hi == *end
    }

    /// `lo..hi`.
    pub fn new(lo: impl Into<Expr>, hi: impl Into<Expr>) -> Self {
        Range { lo: lo.into(), hi: hi.into() }
    }

    /// Both ends as `change` makes them.
    #[must_use]
    pub fn map(&self, change: impl Fn(&Expr) -> Expr) -> Self {
        Range { lo: change(&self.lo), hi: change(&self.hi) }
    }

    /// The one slot `at`.
    pub fn one(at: impl Into<Expr>) -> Self {
        let at = at.into();
        Range { hi: at.clone() + 1i64, lo: at }
    }
}

/// A rectangle of one plane of a buffer on one rank. Rows and columns count in the whole tensor:
/// row `r` of a shard lies in its memory at row `r - first_row`, where `first_row` is
/// [`super::Buffer`]'s on the rank the shard lies on, and columns likewise.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// On which rank.
    pub at: At,
    /// Which buffer.
    pub buffer: BufferId,
    /// An index for each leading dimension of the buffer.
    pub planes: Vec<Expr>,
    /// Its rows.
    pub rows: Range,
    /// Its columns.
    pub cols: Range,
}
