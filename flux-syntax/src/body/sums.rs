//! Sums over ranks that a kernel writes out: tiles put to workspace whose data carry their own flag, and the
//! total of what came.

use super::protocol::Within;
use super::{Bound, Reader};
use crate::suggest::did_you_mean;
use flux_ir::Span;
use flux_ir::kernel::{Op, Protocol};
use flux_ir::program::{BufferId, Expr as Index, Range};
use syn::{Expr, ExprForLoop};

impl<'a> Reader<'a> {
    /// A method of `flagged` workspace.
    pub(super) fn flagged_method(
        &mut self,
        buffer: BufferId,
        name: &str,
        span: Span,
        args: &[&'a Expr],
    ) -> Bound<'a> {
        match (name, args) {
            ("put", [to, tile, x]) => self.put_tile(buffer, [*to, *tile, *x], span),
            ("sum", [tile, own]) => {
                let tile = self.tile(tile);
                let own = self.value(own);
                let (Some(()), Some(own)) = (tile, own) else { return Bound::Broken };
                if !self.in_tile(name, span) || !self.outside_of_puts(span) {
                    return Bound::Broken;
                }
                Bound::Value(self.emit(Op::Total { buffer, own }, span))
            }
            ("put", _) => self.wrong_arity(name, 3, args.len(), span, "parts.put(to, tile, x)"),
            ("sum", _) => self.wrong_arity(name, 2, args.len(), span, "parts.sum(tile, x)"),
            _ => {
                let help = did_you_mean(name, &["put", "sum"]);
                self.mistyped(span, format!("flagged workspace has no method `{name}`"), help)
            }
        }
    }

    /// `parts.put(to, tile, x)`.
    fn put_tile(&mut self, buffer: BufferId, args: [&'a Expr; 3], span: Span) -> Bound<'a> {
        let [to, tile, x] = args;
        let (to, tile, x) = (self.index(to), self.tile(tile), self.value(x));
        let (Some(to), Some(()), Some(x)) = (to, tile, x) else { return Bound::Broken };
        if !self.in_tile("put", span) {
            return Bound::Broken;
        }
        let once = || Range::new(0i64, 1i64);
        let hops = self.hops.clone().unwrap_or_else(once);
        self.emit(Op::Put { buffer, hops, to, x }, span);
        Bound::Unit
    }

    /// Whether there is workspace that tiles are put to.
    pub(super) fn has_flagged(&self) -> bool {
        let buffers = self.protocol.iter().flat_map(|protocol| protocol.parts.buffers.values());
        buffers.into_iter().any(|buffer| !buffer.planes.is_empty())
    }

    /// `for hop in 1..world() { parts.put(…); }`.
    pub(super) fn put_loop(&mut self, for_loop: &'a ExprForLoop, hops: Range) -> Bound<'a> {
        let Some(name) = self.loop_name(&for_loop.pat) else { return Bound::Broken };
        self.within = Within::Puts;
        self.hops = Some(hops);
        let depth = self.names.len();
        self.names.push((name, Bound::Index(Index::from(Protocol::HOP))));
        for statement in &for_loop.body.stmts {
            self.statement(statement);
        }
        self.names.truncate(depth);
        self.hops = None;
        self.within = Within::Tile;
        Bound::Unit
    }

    /// Whether the statement at hand stands in the loop over tiles, or in one over ranks in it.
    fn in_tile(&mut self, name: &str, span: Span) -> bool {
        let is_tile = matches!(self.within, Within::Tile | Within::Puts) && self.closures == 0;
        if !is_tile {
            let help = "move it into `for tile in c.tiles() { … }`, ahead of the store";
            self.refuse(span, format!("`{name}` of a tile stands in the loop over tiles"), help);
        }
        is_tile
    }

    /// Refuses in a loop over ranks what happens once to a tile.
    pub(super) fn outside_of_puts(&mut self, span: Span) -> bool {
        let outside = self.within != Within::Puts;
        if !outside {
            let help = "move it behind the loop";
            self.refuse(span, "a loop over ranks puts the tile and does nothing else", help);
        }
        outside
    }
}
