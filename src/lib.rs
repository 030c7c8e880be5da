//! Flux.
