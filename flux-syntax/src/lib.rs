//! Reads a kernel written in Rust into Kernel IR.
