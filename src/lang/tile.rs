//! The tile of the loop.

use super::Never;

/// The tiles of an output: what the loop of a kernel runs over.
///
/// In which order they are visited, and by which CTA, is the schedule's to say.
#[derive(Debug)]
pub struct Tiles(pub(super) Never);

impl Iterator for Tiles {
    type Item = Tile;

    fn next(&mut self) -> Option<Tile> {
        match self.0 {}
    }
}

/// A tile of an output: some rows and columns of it, computed by one CTA.
///
/// How many is the schedule's to say; at the edges of the output there are fewer.
///
/// ```
/// # use flux::prelude::*;
/// #[flux::kernel]
/// fn product(a: &Global<f16>, b: &Global<f16>, c: &mut Global<f16>) {
///     for tile in c.tiles() {
///         c.store(tile, gemm(a, b.t(), tile));
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Tile(pub(super) Never);

impl Tile {
    /// The rows of the tile, for [`Gathered::wait`](super::Gathered::wait).
    pub fn rows(self) -> Rows {
        match self.0 {}
    }
}

/// The rows of a tile.
#[derive(Debug, Clone, Copy)]
pub struct Rows(pub(super) Never);
