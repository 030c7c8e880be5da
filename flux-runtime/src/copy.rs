//! Bytes and words that move behind other work of a stream.

use crate::driver;
use crate::error::Error;
use crate::memory::{Span, within};
use crate::stream::Stream;
use cudarc::driver::sys;

/// Rows in memory: a span and the bytes from one row to the next.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Memory from the first byte of the first row on.
    pub span: Span<'a>,
    /// Bytes from one row to the next.
    pub pitch_bytes: u64,
}

/// The greatest pitch that a two-dimensional copy takes.
const MOST_PITCH: u64 = i32::MAX as u64;

/// Words that one batch writes: the driver takes 256 operations.
const MOST_WORDS: usize = 128;

/// The value of a written word.
type WriteValue =
    sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1;

impl Rows<'_> {
    /// Checks that `rows` rows of `row_bytes` bytes lie within the span and apart.
    fn require(&self, row_bytes: u64, rows: u64) -> Result<(), Error> {
        if rows > 1 && row_bytes > self.pitch_bytes {
            let (what, high) = ("bytes of a row", self.pitch_bytes);
            return Err(Error::OutOfRange { what, low: 0, high, found: row_bytes });
        }
        let (what, bytes) = ("the rows of a copy", self.span.bytes());
        let above = (rows - 1).checked_mul(self.pitch_bytes);
        match above.and_then(|above| above.checked_add(row_bytes)) {
            Some(length) => within(what, 0, length, bytes),
            None => Err(Error::OutOfBounds { what, offset: 0, length: u64::MAX, bytes }),
        }
    }
}

impl Stream {
    /// Copies `rows` rows of `row_bytes` bytes. Either side may be memory of this device, of a
    /// peer, or pinned host memory. No rows, or empty ones, are no copy.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`], [`Error::OutOfRange`], [`Error::Driver`].
    pub fn copy_2d(
        &self,
        to: Rows<'_>,
        from: Rows<'_>,
        row_bytes: u64,
        rows: u64,
    ) -> Result<(), Error> {
        if row_bytes == 0 || rows == 0 {
            return Ok(());
        }
        to.require(row_bytes, rows)?;
        from.require(row_bytes, rows)?;
        let dense = to.pitch_bytes == row_bytes && from.pitch_bytes == row_bytes;
        if dense || rows == 1 {
            return self.copy(to.span.part(0, rows * row_bytes)?, from.span);
        }
        for pitch in [to.pitch_bytes, from.pitch_bytes] {
            if pitch > MOST_PITCH {
                let what = "the pitch of a copy, in bytes";
                return Err(Error::OutOfRange { what, low: 1, high: MOST_PITCH, found: pitch });
            }
        }
        self.device().bind()?;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            srcHost: std::ptr::null(),
            srcDevice: from.span.address(),
            srcArray: std::ptr::null_mut(),
            srcPitch: from.pitch_bytes as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.span.address(),
            dstArray: std::ptr::null_mut(),
            dstPitch: to.pitch_bytes as usize,
            WidthInBytes: row_bytes as usize,
            Height: rows as usize,
        };
        // SAFETY: both sides were checked to lie within spans, which are valid for the device.
        let result = unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.raw()) };
        self.device().check("cuMemcpy2DAsync", result)
    }

    /// Fills `to` from the first bytes of `from`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `from` is shorter, [`Error::Driver`].
    pub fn copy(&self, to: Span<'_>, from: Span<'_>) -> Result<(), Error> {
        within("the source of a copy", 0, to.bytes(), from.bytes())?;
        if to.bytes() == 0 {
            return Ok(());
        }
        self.device().bind()?;
        let bytes = to.bytes() as usize;
        // SAFETY: both spans have that many bytes and are valid for the device.
        let result = unsafe { sys::cuMemcpyAsync(to.address(), from.address(), bytes, self.raw()) };
        self.device().check("cuMemcpyAsync", result)
    }

    /// As [`Stream::copy_2d`], within this device, by its copy engines where the driver will: an
    /// ordinary copy is itself a kernel, and waits for one that fills the device. That is a wish
    /// (`CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`), granted on some machines with one driver and
    /// not on others, and unknown before CUDA 13: whoever waits for the copy leaves room for it.
    ///
    /// # Errors
    ///
    /// As of [`Stream::copy_2d`].
    pub fn copy_2d_beside(
        &self,
        to: Rows<'_>,
        from: Rows<'_>,
        row_bytes: u64,
        rows: u64,
    ) -> Result<(), Error> {
        if row_bytes == 0 || rows == 0 || !driver::copies_beside() {
            return self.copy_2d(to, from, row_bytes, rows);
        }
        to.require(row_bytes, rows)?;
        from.require(row_bytes, rows)?;
        self.device().bind()?;
        let dense = to.pitch_bytes == row_bytes && from.pitch_bytes == row_bytes;
        // One row of all bytes.
        let (width, height) = if dense { (row_bytes * rows, 1) } else { (row_bytes, rows) };
        let operand = |rows: Rows<'_>| sys::CUmemcpy3DOperand {
            type_: sys::CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER,
            op: sys::CUmemcpy3DOperand_st__bindgen_ty_1 {
                ptr: sys::CUmemcpy3DOperand_st__bindgen_ty_1__bindgen_ty_1 {
                    ptr: rows.span.address(),
                    rowLength: if dense { 0 } else { rows.pitch_bytes as usize },
                    layerHeight: 0,
                    locHint: self.device().location(),
                },
            },
        };
        let mut copy = sys::CUDA_MEMCPY3D_BATCH_OP {
            src: operand(from),
            dst: operand(to),
            extent: sys::CUextent3D { width: width as usize, height: height as usize, depth: 1 },
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            flags: sys::CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32,
        };
        // SAFETY: both sides were checked to lie within spans, which are valid for the device; the
        // driver reads the one operation before it returns.
        let result = unsafe { sys::cuMemcpy3DBatchAsync_v2(1, &mut copy, 0, self.raw()) };
        self.device().check("cuMemcpy3DBatchAsync", result)
    }

    /// Writes the first word of `word`, after all that is enqueued, with a fence of system scope
    /// in front: whoever sees the value sees what the stream did before.
    ///
    /// The value is part of the enqueued work, so a captured graph repeats it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`], [`Error::Misaligned`], [`Error::Driver`].
    pub fn write_u32(&self, word: Span<'_>, value: u32) -> Result<(), Error> {
        within("a word", 0, 4, word.bytes())?;
        require_word_address(word.address())?;
        self.device().bind()?;
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        let (stream, address) = (self.raw(), word.address());
        // SAFETY: the word lies within a span and is aligned.
        let result = unsafe { sys::cuStreamWriteValue32_v2(stream, address, value, flags) };
        self.device().check("cuStreamWriteValue32", result)
    }

    /// As [`Stream::write_u32`] of several words, in about the time of one.
    ///
    /// # Errors
    ///
    /// As of [`Stream::write_u32`].
    pub fn write_words(&self, words: &[(Span<'_>, u32)]) -> Result<(), Error> {
        let mut operations = Vec::with_capacity(words.len());
        for (word, value) in words {
            within("a word", 0, 4, word.bytes())?;
            require_word_address(word.address())?;
            operations.push(sys::CUstreamBatchMemOpParams {
                writeValue: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                    operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                    address: word.address(),
                    __bindgen_anon_1: WriteValue { value: *value },
                    flags: sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
                    alias: 0,
                },
            });
        }
        self.device().bind()?;
        for part in operations.chunks_mut(MOST_WORDS) {
            let (count, first) = (part.len() as u32, part.as_mut_ptr());
            // SAFETY: every word lies within a span and is aligned; the driver reads `count`
            // operations before it returns.
            let result = unsafe { sys::cuStreamBatchMemOp_v2(self.raw(), count, first, 0) };
            self.device().check("cuStreamBatchMemOp", result)?;
        }
        Ok(())
    }

    /// Lets all that is enqueued later wait until the first word of `word` has reached `value`, as
    /// counters that wrap do: it goes on from any value up to 2³¹ - 1 after it.
    ///
    /// Nothing ends this wait but the word: whoever enqueues it sees to it that the word comes, also
    /// after a failure.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`], [`Error::Misaligned`], [`Error::Driver`].
    pub fn wait_u32(&self, word: Span<'_>, value: u32) -> Result<(), Error> {
        within("a word", 0, 4, word.bytes())?;
        require_word_address(word.address())?;
        self.device().bind()?;
        let flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        let (stream, address) = (self.raw(), word.address());
        // SAFETY: the word lies within a span and is aligned.
        let result = unsafe { sys::cuStreamWaitValue32_v2(stream, address, value, flags) };
        self.device().check("cuStreamWaitValue32", result)
    }

    /// Sets every byte of `span`.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn fill_u8(&self, span: Span<'_>, byte: u8) -> Result<(), Error> {
        if span.bytes() == 0 {
            return Ok(());
        }
        self.device().bind()?;
        let (address, bytes) = (span.address(), span.bytes() as usize);
        // SAFETY: the span has that many bytes and is valid for the device.
        let result = unsafe { sys::cuMemsetD8Async(address, byte, bytes, self.raw()) };
        self.device().check("cuMemsetD8Async", result)
    }

    /// Sets every 32-bit word of `span`, which must consist of whole words.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`], [`Error::Driver`].
    pub fn fill_u32(&self, span: Span<'_>, word: u32) -> Result<(), Error> {
        require_word_address(span.address())?;
        if !span.bytes().is_multiple_of(4) {
            let what = "the length of a fill by words, in bytes";
            return Err(Error::Misaligned { what, multiple: 4, found: span.bytes() });
        }
        if span.bytes() == 0 {
            return Ok(());
        }
        self.device().bind()?;
        let (address, words) = (span.address(), (span.bytes() / 4) as usize);
        // SAFETY: the span has that many words and is valid for the device.
        let result = unsafe { sys::cuMemsetD32Async(address, word, words, self.raw()) };
        self.device().check("cuMemsetD32Async", result)
    }
}

fn require_word_address(address: u64) -> Result<(), Error> {
    if address.is_multiple_of(4) {
        return Ok(());
    }
    let what = "the address of a 32-bit word, in bytes";
    Err(Error::Misaligned { what, multiple: 4, found: address })
}

#[cfg(test)]
mod tests {
    use super::{Rows, require_word_address};
    use crate::Error;
    use crate::memory::Span;

    #[test]
    fn rows_end_with_their_last_byte_and_not_with_their_pitch() {
        let rows = |bytes| Rows { span: Span::new(0x100, bytes), pitch_bytes: 10 };
        assert_eq!(rows(24).require(4, 3), Ok(()));
        assert!(matches!(rows(23).require(4, 3), Err(Error::OutOfBounds { length: 24, .. })));
        assert!(matches!(rows(99).require(11, 2), Err(Error::OutOfRange { high: 10, .. })));
        assert_eq!(rows(11).require(11, 1), Ok(()));
        assert!(rows(u64::MAX).require(4, u64::MAX).is_err());
    }

    #[test]
    fn words_lie_on_multiples_of_four() {
        assert_eq!(require_word_address(8), Ok(()));
        let error = require_word_address(6).unwrap_err();
        let said = "the address of a 32-bit word, in bytes must be a multiple of 4, it is 6";
        assert_eq!(error.to_string(), said);
    }
}
