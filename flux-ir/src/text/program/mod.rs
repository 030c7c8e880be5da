//! The text form of a Program.

mod read;
mod read_stmt;
mod write;

pub(crate) use write::show_expr;
