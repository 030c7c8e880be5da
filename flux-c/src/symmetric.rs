//! Memory of the same size on every rank, which all of them reach.

use crate::argument::{FLUX_BF16, FLUX_F16, FLUX_F32};
use crate::dlpack::form;
use crate::status::{Failure, guarded, put, require};
use crate::table::{self, Object, flux_handle};
use crate::world::OpenWorld;
use flux_dsl::runtime::{DlForm, DlTensor};
use flux_dsl::{Element, SymmetricTensor};
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::Arc;

/// The parts of the ranks of this process.
#[derive(Debug)]
pub(crate) struct OpenSymmetric {
    // Dropped ahead of the world, which they are of.
    ranks: Vec<Part>,
    world: Arc<OpenWorld>,
}

#[derive(Debug)]
enum Part {
    Bf16(SymmetricTensor<bf16>),
    F16(SymmetricTensor<f16>),
    F32(SymmetricTensor<f32>),
}

impl Part {
    fn address(&self, of: u32) -> Result<u64, Failure> {
        match self {
            Part::Bf16(tensor) => address(tensor, of),
            Part::F16(tensor) => address(tensor, of),
            Part::F32(tensor) => address(tensor, of),
        }
    }

    fn dlpack(&self, of: u32, form: DlForm) -> Result<DlTensor, Failure> {
        Ok(match self {
            Part::Bf16(tensor) => tensor.of(of)?.to_dlpack(form),
            Part::F16(tensor) => tensor.of(of)?.to_dlpack(form),
            Part::F32(tensor) => tensor.of(of)?.to_dlpack(form),
        }?)
    }
}

fn address<T: Element>(tensor: &SymmetricTensor<T>, of: u32) -> Result<u64, Failure> {
    let part = tensor.of(of)?;
    Ok(part.buffer().map_or(0, |buffer| buffer.address()))
}

/// Makes a matrix of zeros on every rank of a world on GPUs, whose memory all ranks reach: kernels of
/// one's own can store into those of peers. dtype is FLUX_BF16, FLUX_F16 or FLUX_F32. Processes make the
/// same ones, in the same order as they load kernels. The memory lives until the tensor and every DLPack
/// tensor of it are gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_symmetric_open(
    world: flux_handle,
    rows: u64,
    cols: u64,
    dtype: i32,
    symmetric: *mut flux_handle,
) -> i32 {
    guarded(|| {
        let world = table::world(world)?;
        // SAFETY: it is null or the caller's, to be written.
        unsafe { require(symmetric, "symmetric") }?;
        let extent = |extent: u64| {
            usize::try_from(extent).map_err(|_| Failure::invalid(format!("{extent} is too large")))
        };
        let (rows, cols) = (extent(rows)?, extent(cols)?);
        let ranks = world.each(move |world, local| {
            let rank = &world.member(local).rank;
            Ok(match dtype {
                FLUX_BF16 => Part::Bf16(rank.symmetric(rows, cols)?),
                FLUX_F16 => Part::F16(rank.symmetric(rows, cols)?),
                FLUX_F32 => Part::F32(rank.symmetric(rows, cols)?),
                found => {
                    let known = "FLUX_BF16, FLUX_F16 or FLUX_F32 (1 to 3)";
                    return Err(Failure::invalid(format!("expected {known}, found type {found}")));
                }
            })
        })?;
        let opened = Object::Symmetric(Arc::new(OpenSymmetric { ranks, world }));
        // SAFETY: it is the caller's, to be written.
        unsafe { put(symmetric, table::open(opened), "symmetric") }
    })
}

/// The address of the matrix of rank of, as the device of rank, which is of this process, reaches it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_symmetric_data(
    symmetric: flux_handle,
    rank: u32,
    of: u32,
    data: *mut *mut c_void,
) -> i32 {
    guarded(|| {
        let symmetric = table::symmetric(symmetric)?;
        let part = &symmetric.ranks[symmetric.world.local(rank)?];
        let address = part.address(of)? as usize;
        // SAFETY: it is null or the caller's, to be written.
        unsafe { put(data, std::ptr::with_exposed_provenance_mut(address), "data") }
    })
}

/// The same as a DLPack tensor: a DLManagedTensorVersioned where versioned is 1, a DLManagedTensor where
/// it is 0. It is the caller's, who calls its deleter or hands it to somebody who does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flux_symmetric_dlpack(
    symmetric: flux_handle,
    rank: u32,
    of: u32,
    versioned: i32,
    managed: *mut *mut c_void,
) -> i32 {
    guarded(|| {
        let symmetric = table::symmetric(symmetric)?;
        // SAFETY: it is null or the caller's, to be written.
        unsafe { require(managed, "managed") }?;
        let part = &symmetric.ranks[symmetric.world.local(rank)?];
        let tensor = part.dlpack(of, form(versioned)?)?;
        // SAFETY: it is the caller's, to be written.
        unsafe { put(managed, tensor.into_raw(), "managed") }
    })
}
