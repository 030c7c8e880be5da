//! Reads a kernel written in Rust into Kernel IR.
//!
//! The attribute macros and the `flux` command read kernels through this one crate, so they
//! cannot disagree on what a kernel means. It works on tokens alone: no types, no name
//! resolution, no files. What it cannot see (an item outside of the function or its
//! `#[flux::module]`) is an error that says where to put it.
//!
//! | step | file |
//! |---|---|
//! | a function whose body may be unfinished | `function.rs` |
//! | parameters | `signature.rs` |
//! | the loop and its statements to ops | `body/` |
//! | `#[schedule(…)]` | `schedule.rs` |
//! | `#[flux::module]`: constants and helper functions | `module.rs` |
//! | a whole source text | `file.rs` |
//! | what is not read: nested too deep, or perhaps not there | `limits.rs`, `conditional.rs` |
//! | from a position back to the token | `position.rs` |

#![forbid(unsafe_code)]

mod body;
mod conditional;
mod file;
mod function;
mod limits;
mod module;
mod position;
mod schedule;
mod signature;
mod suggest;

pub use body::{Reading, parse_kernel, read_kernel};
pub use file::{FileKernel, read_file};
pub use function::{Function, is_attribute};
pub use limits::too_deep;
pub use module::{Module, ModuleItem, ModuleScope};
pub use position::{SpanMap, position};
pub use schedule::{OrderSyntax, ScheduleSyntax, parse_schedules};
pub use signature::{Parameter, parse_signature};
