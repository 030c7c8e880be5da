//! The text form of a Program.

mod read;
mod read_stmt;
mod write;
