//! Collectives of parts that need not be of one length.

use super::{Nccl, SUM, check, elements, pointer, raw, sys};
use crate::error::Error;
use crate::memory::{Span, within};
use crate::stream::Stream;
use crate::tensor_map::ElementKind;

impl Nccl {
    /// Every rank's `from`, one behind the other, into each rank's `to`; rank `p`'s is of `lengths[p]` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `to` is shorter than all lengths or `from` is shorter than the own one;
    /// [`Error::Nccl`].
    pub fn gather_parts(
        &self,
        stream: &Stream,
        (to, from): (Span<'_>, Span<'_>),
        lengths: &[u64],
    ) -> Result<(), Error> {
        self.require_lengths(to, lengths)?;
        let own = from.part(0, lengths[self.rank as usize])?;
        if lengths.iter().all(|&length| length == own.bytes()) {
            return self.all_gather(stream, to, own);
        }
        self.bound(stream)?;
        self.group(|| {
            self.for_each_part(to, lengths, |root, part| {
                let (count, kind) = (part.bytes() as usize, sys::ncclDataType_t::ncclUint8);
                let from = if root == self.rank { own } else { part };
                let (to, from, root) = (pointer(part), pointer(from), root as i32);
                // SAFETY: both spans are live memory of the device, as long as was checked, and stay so
                // until the stream has done the work.
                let result = unsafe {
                    sys::ncclBroadcast(from, to, count, kind, root, self.comm, raw(stream))
                };
                check("ncclBroadcast", result)
            })
        })
    }

    /// The sum over ranks of their `from`, of which part `p`, of `lengths[p]` bytes, goes to rank `p`'s `to`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `from` is shorter than all lengths or `to` is shorter than the own one;
    /// [`Error::Nccl`].
    pub fn sum_parts(
        &self,
        stream: &Stream,
        (to, from): (Span<'_>, Span<'_>),
        lengths: &[u64],
        element: ElementKind,
    ) -> Result<(), Error> {
        self.require_lengths(from, lengths)?;
        let own = to.part(0, lengths[self.rank as usize])?;
        if lengths.iter().all(|&length| length == own.bytes()) {
            return self.reduce_scatter(stream, own, from, element);
        }
        self.bound(stream)?;
        self.group(|| {
            self.for_each_part(from, lengths, |root, part| {
                let (count, kind) = elements(part, element);
                // Only the one who gets the sum has somewhere to put it.
                let to = if root == self.rank { pointer(own) } else { std::ptr::null_mut() };
                let (from, root) = (pointer(part), root as i32);
                // SAFETY: as in `gather_parts`.
                let result = unsafe {
                    sys::ncclReduce(from, to, count, kind, SUM, root, self.comm, raw(stream))
                };
                check("ncclReduce", result)
            })
        })
    }

    /// `from[p]` to rank `p`; what rank `q` has for this one into `to[q]`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] where there is not a part for each rank; [`Error::Nccl`].
    pub fn exchange(
        &self,
        stream: &Stream,
        to: &[Span<'_>],
        from: &[Span<'_>],
    ) -> Result<(), Error> {
        self.require_parts(to.len())?;
        self.require_parts(from.len())?;
        self.bound(stream)?;
        let kind = sys::ncclDataType_t::ncclUint8;
        let filled = |span: &Span<'_>| span.bytes() > 0;
        self.group(|| {
            for ((send, receive), peer) in from.iter().zip(to).zip(0..) {
                if filled(send) {
                    let (data, count) = (pointer(*send), send.bytes() as usize);
                    // SAFETY: as in `gather_parts`.
                    let sent =
                        unsafe { sys::ncclSend(data, count, kind, peer, self.comm, raw(stream)) };
                    check("ncclSend", sent)?;
                }
                if filled(receive) {
                    let (data, count) = (pointer(*receive), receive.bytes() as usize);
                    // SAFETY: as above.
                    let received =
                        unsafe { sys::ncclRecv(data, count, kind, peer, self.comm, raw(stream)) };
                    check("ncclRecv", received)?;
                }
            }
            Ok(())
        })
    }

    /// Enqueues what `make` calls as one operation.
    fn group(&self, make: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        // SAFETY: no preconditions.
        check("ncclGroupStart", unsafe { sys::ncclGroupStart() })?;
        let made = make();
        // A group that was begun is ended, whatever happened.
        // SAFETY: no preconditions.
        let ended = self.enqueued("ncclGroupEnd", unsafe { sys::ncclGroupEnd() });
        made.and(ended)
    }

    /// Calls `what` for each part of `whole` that has bytes, with the rank whose it is.
    fn for_each_part<'s>(
        &self,
        whole: Span<'s>,
        lengths: &[u64],
        mut what: impl FnMut(u32, Span<'s>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut offset = 0;
        for (&length, rank) in lengths.iter().zip(0..) {
            if length > 0 {
                what(rank, whole.part(offset, length)?)?;
            }
            offset += length;
        }
        Ok(())
    }

    fn require_lengths(&self, whole: Span<'_>, lengths: &[u64]) -> Result<(), Error> {
        self.require_parts(lengths.len())?;
        let total = lengths.iter().fold(0, |sum: u64, &length| sum.saturating_add(length));
        within("the parts of all ranks", 0, total, whole.bytes())
    }

    fn require_parts(&self, found: usize) -> Result<(), Error> {
        let (world, found) = (u64::from(self.world), found as u64);
        if found == world {
            return Ok(());
        }
        Err(Error::OutOfRange { what: "parts of a collective", low: world, high: world, found })
    }
}
