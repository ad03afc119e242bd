//! The unquantised types `F32`, `F16` and `BF16`: blocks of one little-endian element.

use crate::lanes::{Lanes, MAX_LANES};

/// A float type as vectors of weights.
pub(crate) trait FloatFormat {
    /// Bytes of one element.
    const BYTES: usize;

    /// The first `L::N` elements of `bytes`, widened exactly.
    fn load<L: Lanes>(lanes: L, bytes: &[u8]) -> L::V;
}

/// IEEE 754 binary32.
pub(crate) struct F32;
/// IEEE 754 binary16.
pub(crate) struct F16;
/// bfloat16, the upper half of a binary32.
pub(crate) struct BF16;

impl FloatFormat for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, bytes: &[u8]) -> L::V {
        let (elements, _) = bytes[..4 * L::N].as_chunks::<4>();
        let mut floats = [0.0; MAX_LANES];
        for i in 0..L::N {
            floats[i] = f32::from_le_bytes(elements[i]);
        }
        lanes.load(&floats)
    }
}

impl FloatFormat for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, bytes: &[u8]) -> L::V {
        lanes.load_f16(bytes)
    }
}

impl FloatFormat for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, bytes: &[u8]) -> L::V {
        lanes.load_bf16(bytes)
    }
}

/// Decodes the elements in `bytes` to `out`; the lengths agree.
#[inline(always)]
pub(super) fn decode<F: FloatFormat, L: Lanes>(lanes: L, bytes: &[u8], out: &mut [f32]) {
    let mut vectors = bytes.chunks_exact(F::BYTES * L::N);
    let mut outs = out.chunks_exact_mut(L::N);
    for (bytes, out) in vectors.by_ref().zip(outs.by_ref()) {
        lanes.store(F::load(lanes, bytes), out);
    }
    let rest = vectors.remainder();
    if !rest.is_empty() {
        let mut padded = [0; 4 * MAX_LANES];
        padded[..rest.len()].copy_from_slice(rest);
        lanes.store_first(F::load(lanes, &padded), outs.into_remainder());
    }
}
