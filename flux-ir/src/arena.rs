//! Newtype handles and the arena they index.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A typed index into an [`Arena`].
pub trait Handle: Copy + Eq + fmt::Debug {
    /// The handle of the entry at `index`.
    fn new(index: usize) -> Self;
    /// The position of the entry.
    fn index(self) -> usize;
}

/// Declares handle types: newtypes over `u32`.
macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $crate::arena::Handle for $name {
            fn new(index: usize) -> Self {
                $name(u32::try_from(index).expect("an arena never holds 2^32 entries"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}
pub(crate) use handles;

/// A vector that is indexed by its own handle type.
#[derive(Clone, PartialEq, Eq)]
pub struct Arena<H, T> {
    entries: Vec<T>,
    handle: PhantomData<fn(H)>,
}

impl<H: Handle, T> Arena<H, T> {
    /// An empty arena.
    pub const fn new() -> Self {
        Arena { entries: Vec::new(), handle: PhantomData }
    }

    /// Appends `entry` and returns its handle.
    pub fn push(&mut self, entry: T) -> H {
        self.entries.push(entry);
        H::new(self.entries.len() - 1)
    }

    /// The entry behind `handle`, or `None` where the handle is of another arena.
    pub fn get(&self, handle: H) -> Option<&T> {
        self.entries.get(handle.index())
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Handles and entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (H, &T)> {
        self.entries.iter().enumerate().map(|(index, entry)| (H::new(index), entry))
    }

    /// The entries, in order.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.entries.iter()
    }

    /// The handles, in order.
    pub fn handles(&self) -> impl Iterator<Item = H> + use<H, T> {
        (0..self.entries.len()).map(H::new)
    }
}

impl<H: Handle, T> Default for Arena<H, T> {
    fn default() -> Self {
        Arena::new()
    }
}

impl<H, T: fmt::Debug> fmt::Debug for Arena<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries.fmt(f)
    }
}

impl<H: Handle, T> Index<H> for Arena<H, T> {
    type Output = T;
    fn index(&self, handle: H) -> &T {
        &self.entries[handle.index()]
    }
}

impl<H: Handle, T> IndexMut<H> for Arena<H, T> {
    fn index_mut(&mut self, handle: H) -> &mut T {
        &mut self.entries[handle.index()]
    }
}

impl<H: Handle, T> FromIterator<T> for Arena<H, T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Arena { entries: entries.into_iter().collect(), handle: PhantomData }
    }
}
