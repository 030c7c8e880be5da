//! `libflux`: bundles of compiled kernels for C, and for whatever calls C. `include/flux.h` is made
//! from this crate (`tests/header.rs` keeps it so), `docs/interop.md` tells how to use it.
//!
//! Every function returns a status and leaves a sentence for `flux_last_error`. Nothing unwinds into
//! the caller. What is opened is named by a number that is never given twice, so that one that was
//! closed, or is of something else, is an error and no memory of somebody else's.

// Names are those of the header.
#![allow(non_camel_case_types, reason = "C writes types so")]
#![allow(clippy::missing_safety_doc, reason = "the header says it once, for all functions")]
#![allow(unreachable_pub, reason = "what is exported is public, whatever module it stands in")]

mod argument;
mod bundle;
mod crew;
mod dlpack;
mod kernel;
mod status;
mod symmetric;
mod table;
mod world;
