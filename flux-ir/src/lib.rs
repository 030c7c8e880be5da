//! The two IRs of flux, schedules, lowering, checker and text form.
//!
//! **Kernel IR** ([`kernel`]) is what the user wrote; a **[`Schedule`]** says how it shall run;
//! **[`lower`]** makes a **[`Program`]** ([`program`]) of both: what will happen on every rank.
//! The checker ([`check`]) alone makes a [`check::Verified`] Program, and only such a Program is
//! compiled or run. Nothing here knows LLVM, CUDA, processes, files or the environment.

#![forbid(unsafe_code)]

pub mod abi;
pub mod arena;
pub mod check;
pub mod diagnostic;
pub mod element;
pub mod eval;
pub mod fingerprint;
pub mod kernel;
pub mod lower;
pub mod order;
pub mod parametric;
pub mod program;
pub mod schedule;
pub mod span;
pub mod stream;
pub mod target;
pub mod text;
pub mod tile;

pub use diagnostic::{Diagnostic, Diagnostics, Rule};
pub use element::Element;
pub use kernel::Kernel;
pub use order::{Arrival, Departure, Order};
pub use program::Program;
pub use schedule::{
    AllGather, AllReduce, Balance, Cache, Consumers, Head, ReduceScatter, Schedule, Tail, Transport,
};
pub use span::Span;
pub use target::Target;
pub use tile::{Grid, Ranks, Shape, TileCoord, TileShape};
