//! Where in the user's source something was written.

use std::fmt;

/// A position in the user's source file: line and column, both counted from 1; zero is unknown.
///
/// Every entry of both IRs carries one, so that a rule found broken far below the surface is
/// still reported at the token that caused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Span {
    /// Line, from 1; 0 where the position is unknown.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Span {
    /// A span that points nowhere, for entries no user wrote.
    pub const UNKNOWN: Span = Span { line: 0, column: 0 };

    /// A span at `line` and `column`, both from 1.
    pub const fn new(line: u32, column: u32) -> Self {
        Span { line, column }
    }

    /// Whether the position is known.
    pub const fn is_known(self) -> bool {
        self.line != 0
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}
