//! The time model: closed forms, symmetry, monotonicity, machines, recordings, and what was
//! measured.

mod closed_forms;
mod kernels;
mod machines;
mod measured;
mod monotone;
mod nodes;
mod recordings;
mod rendering;
mod symmetry;
