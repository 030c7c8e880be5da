//! The text form of a Program.

mod read;
mod read_stmt;
mod write;

pub(super) use read::Reader;
pub(super) use write::Writer;
pub(crate) use write::show_expr;
