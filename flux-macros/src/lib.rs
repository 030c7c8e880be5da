//! The attribute macros of flux.
