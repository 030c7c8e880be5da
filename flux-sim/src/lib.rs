//! Runs a Program without a GPU.
