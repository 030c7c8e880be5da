//! cuBLASLt's GEMM: the live baseline that benches run beside ours.
//!
//! The library is loaded at the first use; where it is missing, [`Blas::new`] says so.

use crate::device::Device;
use crate::error::Error;
use crate::event::{Event, Timing};
use crate::memory::{DeviceBuffer, Span, within};
use crate::stream::Stream;
use crate::tensor_map::ElementKind;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that an algorithm may use beside its operands: what the library's documentation
/// recommends for Hopper, and more.
const WORKSPACE_BYTES: u64 = 64 << 20;

/// Algorithms that [`Gemm::tune`] tries.
const CANDIDATES: usize = 8;

/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;

/// Functions of libcublasLt that are called here. cudarc looks each up at its first use.
const SYMBOLS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
];

/// C\[M, N\], a product over K, all row-major without gaps, sums in f32: where no [`Layout`] is
/// named, of A\[M, K\] and B\[N, K\]ᵀ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GemmShape {
    /// Rows of C.
    pub m: u64,
    /// Columns of C.
    pub n: u64,
    /// What is summed over.
    pub k: u64,
    /// Format of all three.
    pub element: ElementKind,
    /// What all three addresses are multiples of, in bytes: 256 for whole buffers. Less may cost
    /// speed.
    pub alignment: u32,
}

impl GemmShape {
    fn require(&self) -> Result<(), Error> {
        let high = i32::MAX as u64;
        for (what, found) in [("M of a GEMM", self.m), ("N of a GEMM", self.n), ("K", self.k)] {
            if !(1..=high).contains(&found) {
                return Err(Error::OutOfRange { what, low: 1, high, found });
            }
        }
        Ok(())
    }

    /// Checks an operand of `rows` by `cols` elements.
    fn require_operand(
        &self,
        what: &'static str,
        span: Span<'_>,
        rows: u64,
        cols: u64,
    ) -> Result<(), Error> {
        within(what, 0, rows * cols * u64::from(self.element.bytes()), span.bytes())?;
        let (multiple, found) = (u64::from(self.alignment), span.address());
        if multiple == 0 || !found.is_multiple_of(multiple) {
            return Err(Error::Misaligned { what, multiple, found });
        }
        Ok(())
    }
}

/// How the operands of C\[M, N\] lie in memory, row-major: named as the field names them, N for
/// "as it is" and T for "transposed", left operand first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// A\[M, K\] · B\[N, K\]ᵀ.
    #[default]
    Nt,
    /// A\[M, K\] · B\[K, N\].
    Nn,
    /// A\[K, M\]ᵀ · B\[K, N\].
    Tn,
}

/// In which format the library may keep sums that it cuts along K.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sums {
    /// In any, that of the result included: what is fastest.
    AsItLikes,
    /// In f32 until the one rounding at the end.
    InF32,
}

/// The library, opened for one device.
pub struct Blas {
    device: Arc<Device>,
    handle: sys::cublasLtHandle_t,
}

// SAFETY: a handle may be used by several threads at once (cuBLASLt, "Thread safety").
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl Blas {
    /// Opens the library.
    ///
    /// # Errors
    ///
    /// [`Error::NoBlas`] where it is not found or too old, [`Error::Blas`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Blas>, Error> {
        require_library()?;
        device.bind()?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(Arc::new(Blas { device: device.clone(), handle }))
    }

    /// Plans a GEMM with the algorithm that the library's heuristic prefers.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for empty extents; [`Error::Blas`] where no algorithm will do;
    /// [`Error::OutOfMemory`] for its workspace.
    pub fn gemm(self: &Arc<Self>, shape: GemmShape) -> Result<Gemm, Error> {
        self.gemm_with(shape, Sums::AsItLikes)
    }

    /// As [`Blas::gemm`], where sums cut along K are kept as `sums` says.
    ///
    /// # Errors
    ///
    /// As [`Blas::gemm`].
    pub fn gemm_with(self: &Arc<Self>, shape: GemmShape, sums: Sums) -> Result<Gemm, Error> {
        self.gemm_of(shape, Layout::Nt, sums)
    }

    /// As [`Blas::gemm_with`], of operands that lie as `layout` says.
    ///
    /// # Errors
    ///
    /// As [`Blas::gemm`].
    pub fn gemm_of(
        self: &Arc<Self>,
        shape: GemmShape,
        layout: Layout,
        sums: Sums,
    ) -> Result<Gemm, Error> {
        shape.require()?;
        self.device.bind()?;
        // The library thinks in columns: row-major C[M, N] is column-major Cᵀ[N, M], and
        // Cᵀ = B·Aᵀ, where row-major B[N, K] is column-major Bᵀ[K, N].
        let GemmShape { m, n, k, element, .. } = shape;
        let operation = Descriptor::new()?;
        let left = match layout {
            Layout::Nt => {
                operation.transpose(Side::Left)?;
                MatrixLayout::new(element, k, n)?
            }
            Layout::Nn | Layout::Tn => MatrixLayout::new(element, n, k)?,
        };
        let right = match layout {
            Layout::Nt | Layout::Nn => MatrixLayout::new(element, k, m)?,
            Layout::Tn => {
                operation.transpose(Side::Right)?;
                MatrixLayout::new(element, m, k)?
            }
        };
        let out = MatrixLayout::new(element, n, m)?;
        let preference = Preference::new(shape.alignment, sums)?;
        let mut found = [MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit(); CANDIDATES];
        let mut count = 0;
        // SAFETY: all descriptors are alive, and the array has the length given.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                operation.0,
                left.0,
                right.0,
                out.0,
                out.0,
                preference.0,
                CANDIDATES as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        status.result().map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
        let algorithms: Vec<_> = found
            .iter()
            .take(count.unsigned_abs() as usize)
            // SAFETY: the library has written the first `count` results.
            .map(|one| unsafe { one.assume_init() })
            .filter(|one| one.state.result().is_ok())
            .map(|one| one.algo)
            .collect();
        if algorithms.is_empty() {
            let (call, status) = ("cublasLtMatmulAlgoGetHeuristic", "no algorithm".into());
            return Err(Error::Blas { call, status });
        }
        let workspace = DeviceBuffer::alloc(&self.device, WORKSPACE_BYTES)?;
        let blas = self.clone();
        Ok(Gemm { blas, shape, operation, left, right, out, algorithms, chosen: 0, workspace })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle was made by `new` and is destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blas").field("device", &self.device.ordinal()).finish_non_exhaustive()
    }
}

/// A planned GEMM. It has a workspace of its own, so run it on one stream at a time.
pub struct Gemm {
    blas: Arc<Blas>,
    shape: GemmShape,
    operation: Descriptor,
    left: MatrixLayout,
    right: MatrixLayout,
    out: MatrixLayout,
    algorithms: Vec<sys::cublasLtMatmulAlgo_t>,
    chosen: usize,
    workspace: DeviceBuffer,
}

// SAFETY: the descriptors are only read after `Blas::gemm`.
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

impl Gemm {
    /// What it computes.
    pub fn shape(&self) -> GemmShape {
        self.shape
    }

    /// Enqueues the product.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`], [`Error::Misaligned`], [`Error::OtherDevice`], [`Error::Blas`].
    pub fn run(&self, stream: &Stream, a: Span<'_>, b: Span<'_>, c: Span<'_>) -> Result<(), Error> {
        self.run_with(self.chosen, stream, a, b, c)
    }

    /// Runs each algorithm that the heuristic offers `repeats` times, and keeps the fastest.
    /// Overwrites C. Gives the milliseconds of one run of each.
    ///
    /// # Errors
    ///
    /// As [`Gemm::run`], and [`Error::Timeout`] after `limit`.
    pub fn tune(
        &mut self,
        stream: &Stream,
        a: Span<'_>,
        b: Span<'_>,
        c: Span<'_>,
        repeats: u32,
        limit: Duration,
    ) -> Result<Vec<f32>, Error> {
        let repeats = repeats.max(1);
        let start = Event::new(&self.blas.device, Timing::On)?;
        let end = Event::new(&self.blas.device, Timing::On)?;
        let mut times = Vec::with_capacity(self.algorithms.len());
        for index in 0..self.algorithms.len() {
            // The first run loads the kernel.
            self.run_with(index, stream, a, b, c)?;
            stream.record(&start)?;
            for _ in 0..repeats {
                self.run_with(index, stream, a, b, c)?;
            }
            stream.record(&end)?;
            end.synchronize(limit)?;
            times.push(end.ms_since(&start)? / repeats as f32);
        }
        let fastest = times.iter().enumerate().min_by(|x, y| x.1.total_cmp(y.1));
        self.chosen = fastest.map_or(0, |(index, _)| index);
        Ok(times)
    }

    fn run_with(
        &self,
        algorithm: usize,
        stream: &Stream,
        a: Span<'_>,
        b: Span<'_>,
        c: Span<'_>,
    ) -> Result<(), Error> {
        let GemmShape { m, n, k, .. } = self.shape;
        self.shape.require_operand("A of a GEMM", a, m, k)?;
        self.shape.require_operand("B of a GEMM", b, n, k)?;
        self.shape.require_operand("C of a GEMM", c, m, n)?;
        self.blas.device.require_same("the stream", stream.device())?;
        self.blas.device.bind()?;
        let (one, zero) = (1.0f32, 0.0f32);
        let out = c.address() as *mut c_void;
        // SAFETY: all descriptors are alive, the operands have the extents that the layouts say,
        // and the factors are read before the call returns.
        let run = unsafe {
            result::matmul(
                self.blas.handle,
                self.operation.0,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                b.address() as *const c_void,
                self.left.0,
                a.address() as *const c_void,
                self.right.0,
                out,
                self.out.0,
                out,
                self.out.0,
                &self.algorithms[algorithm],
                self.workspace.address() as *mut c_void,
                self.workspace.bytes() as usize,
                stream.raw().cast(),
            )
        };
        run.map_err(failed("cublasLtMatmul"))
    }
}

impl fmt::Debug for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gemm")
            .field("shape", &self.shape)
            .field("algorithms", &self.algorithms.len())
            .field("chosen", &self.chosen)
            .finish_non_exhaustive()
    }
}

/// An operand of the library's.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// Operation descriptor: sums and factors in f32.
struct Descriptor(sys::cublasLtMatmulDesc_t);

impl Descriptor {
    fn new() -> Result<Descriptor, Error> {
        let (sums, factors) =
            (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F);
        result::create_matmul_desc(sums, factors)
            .map(Descriptor)
            .map_err(failed("cublasLtMatmulDescCreate"))
    }

    fn transpose(&self, side: Side) -> Result<(), Error> {
        use sys::cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB,
        };
        let attribute = match side {
            Side::Left => CUBLASLT_MATMUL_DESC_TRANSA,
            Side::Right => CUBLASLT_MATMUL_DESC_TRANSB,
        };
        let value = std::ptr::from_ref(&TRANSPOSED).cast();
        // SAFETY: the descriptor is alive, and this attribute is a 32-bit integer.
        let set = unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, value, size_of::<i32>())
        };
        set.map_err(failed("cublasLtMatmulDescSetAttribute"))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// A column-major matrix without gaps.
struct MatrixLayout(sys::cublasLtMatrixLayout_t);

impl MatrixLayout {
    fn new(element: ElementKind, rows: u64, cols: u64) -> Result<MatrixLayout, Error> {
        let format = match element {
            ElementKind::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            ElementKind::F16 => sys::cudaDataType::CUDA_R_16F,
            ElementKind::F32 => sys::cudaDataType::CUDA_R_32F,
        };
        result::create_matrix_layout(format, rows, cols, rows as i64)
            .map(MatrixLayout)
            .map_err(failed("cublasLtMatrixLayoutCreate"))
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// What the heuristic may count on.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(alignment: u32, sums: Sums) -> Result<Preference, Error> {
        use sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        };
        let made =
            result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        let preference = Preference(made);
        let bytes = WORKSPACE_BYTES as usize;
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes)?;
        if sums == Sums::InF32 {
            let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
            preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &(scheme as u32))?;
        }
        for which in [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(which, &alignment)?;
        }
        Ok(preference)
    }

    fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), Error> {
        let bytes = std::ptr::from_ref(value).cast();
        // SAFETY: the preference is alive; the library checks the size of the value against the
        // attribute's, and reads that many bytes.
        let set =
            unsafe { result::set_matmul_pref_attribute(self.0, attribute, bytes, size_of::<T>()) };
        set.map_err(failed("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// cudarc panics where the library or a function is missing, so both are looked for first.
fn require_library() -> Result<(), Error> {
    // SAFETY: opening the library runs its initialisers, which have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoBlas { symbol: SYMBOLS[0] });
    }
    for &symbol in SYMBOLS {
        // SAFETY: the library has just been found.
        let library = unsafe { sys::culib() };
        // SAFETY: the symbol is only looked for, never called as this type.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
        if found.is_err() {
            return Err(Error::NoBlas { symbol });
        }
    }
    Ok(())
}

fn failed(call: &'static str) -> impl FnOnce(CublasError) -> Error {
    move |error| Error::Blas { call, status: format!("{:?}", error.0) }
}

#[cfg(test)]
mod tests {
    use super::{ElementKind, GemmShape, Span, require_library};
    use crate::Error;

    const SHAPE: GemmShape =
        GemmShape { m: 4, n: 8, k: 16, element: ElementKind::Bf16, alignment: 256 };

    #[test]
    fn empty_extents_are_refused() {
        assert_eq!(SHAPE.require(), Ok(()));
        for empty in [GemmShape { m: 0, ..SHAPE }, GemmShape { n: 0, ..SHAPE }] {
            assert!(matches!(empty.require(), Err(Error::OutOfRange { found: 0, .. })));
        }
        assert!(GemmShape { k: 1 << 31, ..SHAPE }.require().is_err());
    }

    #[test]
    fn operands_have_room_and_the_promised_alignment() {
        let check = |address, bytes| SHAPE.require_operand("A", Span::new(address, bytes), 4, 16);
        assert_eq!(check(0x1000, 128), Ok(()));
        assert!(matches!(check(0x1000, 127), Err(Error::OutOfBounds { length: 128, .. })));
        assert!(matches!(check(0x1010, 128), Err(Error::Misaligned { multiple: 256, .. })));
    }

    #[test]
    fn a_missing_library_is_an_error() {
        match require_library() {
            Ok(()) => {}
            Err(error) => assert!(error.to_string().contains("libcublasLt"), "{error}"),
        }
    }
}
