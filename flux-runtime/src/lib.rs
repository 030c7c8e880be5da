//! Devices, streams, symmetric memory, signals, ranks and launches.
//!
//! This crate knows no IR and no schedule: it answers how bytes, words and kernels reach one GPU,
//! and how the ranks of one process meet. Which copies and launches there are is the caller's
//! business.
//!
//! | question | here |
//! |---|---|
//! | is there a driver, and is it new enough | [`probe`] |
//! | what a caller's thread is set to | [`CurrentContext`] |
//! | a GPU and its numbers | [`Device`], [`DeviceProperties`], [`Architecture`] |
//! | what links the GPUs of this machine | [`topology`] |
//! | order of work | [`Stream`], [`Event`] |
//! | work recorded once and replayed | [`Graph`], [`Stream::begin_capture`] |
//! | memory on the GPU, on the host, of the caller | [`DeviceBuffer`], [`HostBuffer`], [`HostSlice`], [`Span`] |
//! | tensors of other libraries | [`DlTensor`], [`DeviceBuffer::from_cudarc`], [`DeviceBuffer::as_cudarc`] |
//! | moving bytes and words behind other work | [`Stream::copy_2d`], [`Stream::write_u32`], [`Stream::wait_u32`] |
//! | the same memory on each rank | [`Heaps`], [`Layout`] |
//! | PTX, functions, launching | [`Module`], [`Function`], [`Launch`], [`TensorMap`] |
//! | how many CTAs a rank may have | [`SmBudget`], [`Function::require_resident`] |
//! | ranks finding each other | [`Rendezvous`] |
//! | a rank that is a process: its number, its peers, memory that all of them map | [`Job`], [`Joined`], [`Coordinator`], [`Segment`] |
//! | a wait that gave up, as a sentence | [`StallReport`] |
//! | the live baselines of benches | [`blas`], [`nccl`] |
//! | what kernels need that put data to other nodes | [`network`] |
//! | drawing, comparing and summing numbers on a device | [`numbers`] |
//!
//! # Safety
//!
//! Memory of a GPU is never seen through a Rust reference, so copies between [`Span`]s are safe:
//! their bounds are checked, and freeing memory waits for the work that uses it. Unsafe are only
//! the adoption of raw pointers and handles, whose lifetime nobody here can see, and the launch of
//! a kernel, which may write wherever its arguments say.
//!
//! # What may wait for the whole device
//!
//! Allocating, freeing (so dropping a buffer) and loading a module may wait until the device is
//! idle. Between the launches of kernels that wait for each other, do none of them: the second
//! kernel would not start before the first has given up. All other waits of this crate have a
//! limit.
//!
//! # Without a driver
//!
//! Nothing panics: each entry point begins with [`probe`] or takes a [`Device`], which only
//! [`probe`] can lead to.

pub mod blas;
pub mod nccl;
pub mod network;
pub mod numbers;
pub mod topology;

mod budget;
mod copy;
mod current;
mod device;
mod dlpack;
mod driver;
mod environment;
mod error;
mod event;
mod graph;
mod handover;
mod heap;
mod host;
mod host_slice;
mod job;
mod join;
mod launch;
mod mapping;
mod memory;
mod module;
mod rendezvous;
mod report;
mod segment;
mod stream;
mod tensor_map;

pub use budget::SmBudget;
pub use copy::Rows;
pub use current::CurrentContext;
pub use device::{Architecture, Capability, Device, DeviceProperties, Uuid};
pub use dlpack::{DlForm, DlMatrix, DlPlace, DlTensor};
pub use driver::{DriverInfo, DriverVersion, OLDEST_DRIVER, probe};
pub use error::Error;
pub use event::{Event, Timing};
pub use graph::Graph;
pub use heap::{HEAP_ALIGNMENT, HeapMemory, HeapPart, Heaps, Layout};
pub use host::HostBuffer;
pub use host_slice::HostSlice;
pub use job::{Job, Meet};
pub use join::{JOIN_LIMIT, Joined, Peer};
pub use launch::{Launch, PARAMETER_BYTES, Residency};
pub use memory::{CudarcSlice, DeviceBuffer, Span};
pub use module::{Function, Module};
pub use rendezvous::Rendezvous;
pub use rendezvous::coordinator::Coordinator;
pub use report::StallReport;
pub use segment::Segment;
pub use stream::Stream;
pub use tensor_map::{ElementKind, Tensor2d, TensorMap};
