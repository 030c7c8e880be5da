//! Host memory of the caller.

use crate::error::Error;
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Numbers in memory of the caller's, as a slice: what it lies in goes on owning it.
pub struct HostSlice<T> {
    data: NonNull<T>,
    len: usize,
    /// Dropped with the slice.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: it is reached as a `&[T]` or a `&mut [T]` would be.
unsafe impl<T: Send> Send for HostSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for HostSlice<T> {}

impl<T> HostSlice<T> {
    /// Adopts `len` numbers at `data`. None may lie anywhere.
    ///
    /// # Errors
    ///
    /// [`Error::HostAddress`] where `data` is null, or is no multiple of the alignment of `T`;
    /// [`Error::HostRange`] where so many numbers from there on are more than there are addresses.
    ///
    /// # Safety
    ///
    /// Until the value is dropped the memory is valid, holds values of `T`, and is read and written by
    /// way of this value alone. Where it is only ever read by way of this value (as an input of
    /// launches is), others may read it, and it may be memory that cannot be written.
    pub unsafe fn from_raw(data: *mut T, len: usize) -> Result<HostSlice<T>, Error> {
        if len == 0 {
            return Ok(HostSlice { data: NonNull::dangling(), len, owner: None });
        }
        let (address, align) = (data as u64, align_of::<T>());
        let Some(data) = NonNull::new(data).filter(|data| data.is_aligned()) else {
            return Err(Error::HostAddress { address, align });
        };
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        if bytes > isize::MAX as u64 || address.checked_add(bytes).is_none() {
            return Err(Error::HostRange { address, bytes });
        }
        Ok(HostSlice { data, len, owner: None })
    }

    /// The same, which holds `owner` for as long.
    #[must_use]
    pub fn with_owner(self, owner: Box<dyn Any + Send + Sync>) -> HostSlice<T> {
        HostSlice { owner: Some(owner), ..self }
    }
}

impl<T> Deref for HostSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: whoever made the value promised so many numbers there, that nobody writes
        // meanwhile.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for HostSlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; whoever writes promised that nobody else reaches the memory.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for HostSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostSlice")
            .field("data", &self.data)
            .field("len", &self.len)
            .field("owned", &self.owner.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::HostSlice;
    use crate::Error;
    use std::sync::Arc;

    #[test]
    fn a_slice_is_the_callers_memory_and_holds_its_owner() {
        let mut numbers = [1.0_f32, 2.0, 3.0];
        let owner = Arc::new(());
        // SAFETY: the numbers are used through the slice alone until it is dropped.
        let slice = unsafe { HostSlice::from_raw(numbers.as_mut_ptr(), 3) };
        let mut slice = slice.expect("an array").with_owner(Box::new(Arc::clone(&owner)));
        slice[1] += slice[2];
        assert_eq!((&*slice, Arc::strong_count(&owner)), (&[1.0, 5.0, 3.0][..], 2));
        drop(slice);
        assert_eq!((numbers[1], Arc::strong_count(&owner)), (5.0, 1));
    }

    #[test]
    fn no_memory_is_refused_and_no_numbers_lie_anywhere() {
        for address in [0_usize, 6] {
            let data = std::ptr::without_provenance_mut::<f32>(address);
            // SAFETY: neither address is accepted.
            let error = unsafe { HostSlice::from_raw(data, 1) }.unwrap_err();
            assert_eq!(error, Error::HostAddress { address: address as u64, align: 4 });
        }
        for (address, len) in [(usize::MAX - 3, 2), (4, usize::MAX / 4), (4, usize::MAX / 8 + 1)] {
            let data = std::ptr::without_provenance_mut::<f32>(address);
            // SAFETY: none of them is accepted.
            let error = unsafe { HostSlice::from_raw(data, len) }.unwrap_err();
            assert_eq!(error, Error::HostRange { address: address as u64, bytes: 4 * len as u64 });
        }
        // SAFETY: there is no number.
        let empty = unsafe { HostSlice::<f32>::from_raw(std::ptr::null_mut(), 0) };
        assert!(empty.expect("nothing").is_empty());
    }
}
