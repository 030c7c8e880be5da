//! The time model: closed forms, symmetry, monotonicity, machines, and what was measured.

mod closed_forms;
mod kernels;
mod machines;
mod measured;
mod monotone;
mod rendering;
mod symmetry;
