//! 16-bit numbers on a device: drawn, compared, summed. What benches need beside a baseline, so
//! that operands need not be made on the host, nor results be brought there.

use crate::device::Device;
use crate::error::Error;
use crate::launch::{Launch, Residency};
use crate::memory::{DeviceBuffer, Span};
use crate::module::{Function, Module};
use crate::stream::Stream;
use crate::tensor_map::ElementKind;
use std::sync::Arc;
use std::time::Duration;

/// The kernels for both formats, before names and conversions are put in.
const TEMPLATE: &str = include_str!("numbers.ptx.in");

/// Mixes the index of a pair with the seed (the finalizer of splitmix64).
const HASH: &str = "
    mov.u64         %rd9, 0x9e3779b97f4a7c15;
    mad.lo.s64      %rd7, %rd4, %rd9, %rd3;
    shr.u64         %rd8, %rd7, 30;
    xor.b64         %rd7, %rd7, %rd8;
    mov.u64         %rd9, 0xbf58476d1ce4e5b9;
    mul.lo.s64      %rd7, %rd7, %rd9;
    shr.u64         %rd8, %rd7, 27;
    xor.b64         %rd7, %rd7, %rd8;
    mov.u64         %rd9, 0x94d049bb133111eb;
    mul.lo.s64      %rd7, %rd7, %rd9;
    shr.u64         %rd8, %rd7, 31;
    xor.b64         %rd7, %rd7, %rd8;";

/// Stores a pair, or its first half where it is the last of an odd number.
const STORE: &str = "
    cvt.rn.ELEMENTx2.f32 %r7, %f6, %f5;
    cvt.u16.u32     %h1, %r7;
    add.u64         %rd10, %rd6, 1;
    setp.lt.u64     %p2, %rd10, %rd2;
    shl.b64         %rd11, %rd6, 1;
    add.u64         %rd12, %rd1, %rd11;
    @%p2 st.global.b32 [%rd12], %r7;
    @!%p2 st.global.b16 [%rd12], %h1;";

const THREADS: u32 = 256;

/// CTAs per multiprocessor: enough loads in flight to fill the memory.
const CTAS_PER_SM: u32 = 8;

/// The kernels, loaded for one format.
#[derive(Debug)]
pub struct Numbers {
    element: ElementKind,
    normal: Function,
    integers: Function,
    compare: Function,
    sum: Function,
    /// A count and a number.
    found: DeviceBuffer,
    ctas: u32,
}

/// What [`Numbers::compare`] found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Elements beyond the bound; one that is no number always is.
    pub wrong: u32,
    /// The largest difference of two elements; no number where one of them is none.
    pub largest: f32,
}

/// How far two elements may lie apart: `relative · max(|x|, |y|) + absolute`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Of the larger one's size.
    pub relative: f32,
    /// Whatever the size.
    pub absolute: f32,
}

impl Bound {
    /// Not at all (zeros of either sign are the same).
    pub const EXACT: Bound = Bound { relative: 0.0, absolute: 0.0 };
}

impl Numbers {
    /// Loads the kernels.
    ///
    /// # Errors
    ///
    /// [`Error::NotSixteenBits`] for `f32`; those of [`Module::load`].
    pub fn load(device: &Arc<Device>, element: ElementKind) -> Result<Numbers, Error> {
        let name = match element {
            ElementKind::Bf16 => "bf16",
            ElementKind::F16 => "f16",
            ElementKind::F32 => return Err(Error::NotSixteenBits),
        };
        let module = Module::load(device, &source(name))?;
        let function = |kernel: &str| module.function(&format!("{kernel}_{name}"), 0);
        Ok(Numbers {
            element,
            normal: function("normal")?,
            integers: function("integers")?,
            compare: function("compare")?,
            sum: function("sum")?,
            found: DeviceBuffer::alloc(device, 8)?,
            ctas: CTAS_PER_SM * device.properties().sms,
        })
    }

    /// The format.
    pub fn element(&self) -> ElementKind {
        self.element
    }

    /// Fills `span` with numbers of a normal distribution around 0, `scale` wide. The same seed
    /// draws the same numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`], [`Error::Driver`].
    pub fn normal(
        &self,
        stream: &Stream,
        span: Span<'_>,
        seed: u64,
        scale: f32,
    ) -> Result<(), Error> {
        require_aligned(span, 4)?;
        let words = [span.address(), span.bytes() / 2, seed, scale.to_bits().into()];
        self.run(&self.normal, stream, &words)
    }

    /// Fills `span` with -1, 0 and 1: a part `density` of the elements is not 0.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`], [`Error::Driver`].
    pub fn integers(
        &self,
        stream: &Stream,
        span: Span<'_>,
        seed: u64,
        density: f32,
    ) -> Result<(), Error> {
        require_aligned(span, 4)?;
        let threshold = (density.clamp(0.0, 1.0) * 65536.0) as u64;
        let words = [span.address(), span.bytes() / 2, seed, threshold];
        self.run(&self.integers, stream, &words)
    }

    /// Compares all elements of two spans of one length, behind the work of `stream`, and waits
    /// for the answer.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`] where `other` is shorter; [`Error::Timeout`] after `limit`;
    /// [`Error::Driver`].
    pub fn compare(
        &self,
        stream: &Stream,
        span: Span<'_>,
        other: Span<'_>,
        bound: Bound,
        limit: Duration,
    ) -> Result<Difference, Error> {
        let other = other.part(0, span.bytes())?;
        require_aligned(span, 2)?;
        require_aligned(other, 2)?;
        stream.fill_u32(self.found.span(), 0)?;
        let tolerance =
            u64::from(bound.relative.to_bits()) | u64::from(bound.absolute.to_bits()) << 32;
        let found = self.found.address();
        let words = [span.address(), other.address(), span.bytes() / 2, found, tolerance];
        self.run(&self.compare, stream, &words)?;
        stream.synchronize(limit)?;
        let mut found = [0u32; 2];
        self.found.copy_to(0, &mut found)?;
        Ok(Difference { wrong: found[0], largest: f32::from_bits(found[1]) })
    }

    /// `out = own + planes[0] + planes[1] + …` in f32, rounded once: as many planes of the length
    /// of `out` as `planes` says, `stride` bytes apart.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`]; [`Error::Misaligned`] unless all begins and ends at multiples of 16
    /// bytes; [`Error::Driver`].
    pub fn sum(
        &self,
        stream: &Stream,
        out: Span<'_>,
        own: Span<'_>,
        (planes, stride): (Span<'_>, u64),
        count: u32,
    ) -> Result<(), Error> {
        let own = own.part(0, out.bytes())?;
        for span in [out, own, planes] {
            require_aligned(span, 16)?;
        }
        for found in [out.bytes(), stride] {
            if !found.is_multiple_of(16) {
                return Err(Error::Misaligned { what: "a plane of a sum", multiple: 16, found });
            }
        }
        if count > 0 {
            let last = u64::from(count - 1).saturating_mul(stride);
            planes.part(0, last.saturating_add(out.bytes()))?;
        }
        let words = [
            own.address(),
            planes.address(),
            count.into(),
            stride,
            out.address(),
            out.bytes() / 16,
        ];
        self.run(&self.sum, stream, &words)
    }

    fn run(&self, function: &Function, stream: &Stream, words: &[u64]) -> Result<(), Error> {
        let launch = Launch {
            function,
            ctas: self.ctas,
            threads: THREADS,
            shared_bytes: 0,
            residency: Residency::Independent,
            maps: &[],
            words,
        };
        // SAFETY: the words are those that the kernels in `numbers.ptx.in` name, over spans whose
        // lengths and alignments were checked; spans are valid until the stream has passed.
        unsafe { launch.enqueue(stream) }
    }
}

/// The kernels for one format.
fn source(element: &str) -> String {
    let mut text = String::from(".version 7.8\n.target sm_80\n.address_size 64\n\n");
    for line in TEMPLATE.lines() {
        let line = match line.trim() {
            "HASH" => HASH.to_owned(),
            "STORE" => STORE.to_owned(),
            call if call.starts_with("LOW(") => convert(element, call, "LOW(", false),
            call if call.starts_with("HIGH(") => convert(element, call, "HIGH(", true),
            _ => line.to_owned(),
        };
        text += &line;
        text.push('\n');
    }
    text.replace("ELEMENT", element)
}

/// `f32` of one half of a word: `LOW(%f1, %r5)`.
fn convert(element: &str, call: &str, name: &str, high: bool) -> String {
    let arguments = call.trim_start_matches(name).trim_end_matches(')');
    let (to, from) = arguments.split_once(", ").unwrap_or((arguments, ""));
    match (element, high) {
        // bf16 is the upper half of f32.
        ("bf16", false) => {
            format!("    {{ .reg .b32 %x; shl.b32 %x, {from}, 16; mov.b32 {to}, %x; }}")
        }
        ("bf16", true) => {
            format!("    {{ .reg .b32 %x; and.b32 %x, {from}, 0xffff0000; mov.b32 {to}, %x; }}")
        }
        (_, false) => {
            format!("    {{ .reg .b16 %x, %y; mov.b32 {{%x, %y}}, {from}; cvt.f32.f16 {to}, %x; }}")
        }
        (_, true) => {
            format!("    {{ .reg .b16 %x, %y; mov.b32 {{%x, %y}}, {from}; cvt.f32.f16 {to}, %y; }}")
        }
    }
}

fn require_aligned(span: Span<'_>, multiple: u64) -> Result<(), Error> {
    let found = span.address();
    if found.is_multiple_of(multiple) {
        return Ok(());
    }
    Err(Error::Misaligned { what: "the numbers, in bytes", multiple, found })
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn nothing_of_the_template_is_left() {
        for element in ["bf16", "f16"] {
            let text = source(element);
            for token in ["ELEMENT", "HASH\n", "STORE\n", "LOW(", "HIGH("] {
                // The head of the file explains them; comments are no code.
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                assert!(code.clone().all(|line| !format!("{line}\n").contains(token)), "{token}");
            }
            for kernel in ["normal", "integers", "compare", "sum"] {
                assert!(text.contains(&format!(".entry {kernel}_{element}(")));
            }
        }
    }
}
