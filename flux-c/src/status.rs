//! How functions say what went wrong.

use flux_dsl::Error;
use flux_dsl::runtime::Error as RuntimeError;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Done.
pub const FLUX_OK: i32 = 0;
/// An argument that is wrong: null, a handle of something else, a shape that does not fit, ranks that
/// are not about to do the same. Nothing has run.
pub const FLUX_INVALID: i32 = 1;
/// No driver, no such device, or one that kernels do not run on.
pub const FLUX_UNAVAILABLE: i32 = 2;
/// A launch gave up, or rests on one that did: its outputs are not to be used. Every rank recovers
/// (flux_recover) before it launches again.
pub const FLUX_STALLED: i32 = 3;
/// Anything else: a call of the driver, memory that ran out, a rank that did not come.
pub const FLUX_FAILED: i32 = 4;
/// A fault of this library.
pub const FLUX_PANIC: i32 = 5;

/// What went wrong: a status and a sentence.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    status: i32,
    text: String,
}

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure { status: FLUX_INVALID, text: text.into() }
    }

    /// A panic that was caught.
    pub(crate) fn panic(payload: &(dyn Any + Send)) -> Failure {
        let said = payload.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = format!("a fault of flux: {}", said.unwrap_or("a panic without words"));
        Failure { status: FLUX_PANIC, text }
    }

    /// The same of a thing that is named ahead of it.
    pub(crate) fn of(self, what: &str) -> Failure {
        Failure { text: format!("{what}: {}", self.text), ..self }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { status: status(&error), text: error.to_string() }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        Error::from(error).into()
    }
}

fn status(error: &Error) -> i32 {
    match error {
        Error::Together(error) => status(error),
        Error::WorldSize(_)
        | Error::WorldName(_)
        | Error::DataLength { .. }
        | Error::WrongPlace { .. }
        | Error::Extents { .. }
        | Error::ShardRows { .. }
        | Error::RowsOfRank { .. }
        | Error::RowsInAll { .. }
        | Error::RowsOfRanks { .. }
        | Error::ShardColumns { .. }
        | Error::NotVector { .. }
        | Error::TooLarge { .. }
        | Error::EmptyReduction
        | Error::RanksDisagree { .. }
        | Error::NotCompiled { .. }
        | Error::StaleImage { .. }
        | Error::Bundle { .. }
        | Error::ArgumentCount { .. }
        | Error::ArgumentType { .. }
        | Error::Unaligned { .. }
        | Error::Unsupported { .. }
        | Error::Rejected { .. } => FLUX_INVALID,
        Error::Stalled { .. }
        | Error::PeerBehind { .. }
        | Error::PeerGaveUp { .. }
        | Error::PeerGone { .. }
        | Error::Interrupted { .. }
        | Error::Poisoned { .. }
        | Error::Recovering { .. } => FLUX_STALLED,
        Error::Runtime(error) => runtime_status(error),
        _ => FLUX_FAILED,
    }
}

fn runtime_status(error: &RuntimeError) -> i32 {
    match error {
        RuntimeError::NoDriver
        | RuntimeError::DriverIncomplete { .. }
        | RuntimeError::DriverTooOld { .. }
        | RuntimeError::NoDevice
        | RuntimeError::NoSuchDevice { .. }
        | RuntimeError::DriverStart { .. }
        | RuntimeError::WrongArchitecture { .. }
        | RuntimeError::TooFewConnections { .. } => FLUX_UNAVAILABLE,
        RuntimeError::ForeignAddress { .. }
        | RuntimeError::HostAddress { .. }
        | RuntimeError::HostRange { .. }
        | RuntimeError::DlPack { .. }
        | RuntimeError::OutOfBounds { .. }
        | RuntimeError::OtherDevice { .. }
        | RuntimeError::NoSuchRank { .. } => FLUX_INVALID,
        _ => FLUX_FAILED,
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of a function; what it fails with is kept for `flux_last_error`.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let outcome = outcome.unwrap_or_else(|payload| Err(Failure::panic(&*payload)));
    let Failure { status, text } = match outcome {
        Ok(()) => Failure { status: FLUX_OK, text: String::new() },
        Err(failure) => failure,
    };
    let text: Vec<u8> = text.into_bytes().into_iter().filter(|&byte| byte != 0).collect();
    // A thread that ends has nobody left to ask.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).ok());
    status
}

/// What the last call on this thread failed with, in words; empty where it succeeded. Valid until the
/// next call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn flux_last_error() -> *const c_char {
    let kept = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
    kept.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The version of the functions in this header: FLUX_ABI where it was compiled for this library.
#[unsafe(no_mangle)]
pub extern "C" fn flux_abi() -> u32 {
    FLUX_ABI
}

/// Counts changes that programs compiled for an earlier header do not survive.
pub const FLUX_ABI: u32 = 1;

/// The version of the library, as "0.1.0". Bundles are of one version.
#[unsafe(no_mangle)]
pub extern "C" fn flux_version() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// Text of the caller.
///
/// # Safety
/// `text` is null or points to bytes that end with a zero.
pub(crate) unsafe fn text<'t>(text: *const c_char, name: &str) -> Result<&'t str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("`{name}` is null, expected text")));
    }
    // SAFETY: the caller says so.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("`{name}` is not UTF-8")))
}

/// Puts a result where the caller wants it.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, name: &str) -> Result<(), Failure> {
    // SAFETY: the caller says so.
    unsafe { require(to, name)? };
    // SAFETY: as above, and it is not null.
    unsafe { to.write(value) };
    Ok(())
}

/// Refuses null.
///
/// # Safety
/// None: it is not followed.
pub(crate) unsafe fn require<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("`{name}` is null")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::invalid(format!("`{name}` is not aligned")));
    }
    Ok(())
}

/// Values of the caller's.
///
/// # Safety
/// Unless there is none, `values` is null or points to so many.
pub(crate) unsafe fn slice<'t, T>(
    values: *const T,
    count: usize,
    name: &str,
) -> Result<&'t [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: it is not followed.
    unsafe { require(values, name)? };
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::invalid(format!("{count} values of `{name}` are too many")));
    }
    // SAFETY: the caller says so.
    Ok(unsafe { std::slice::from_raw_parts(values, count) })
}
