//! What all quantised formats share: runs of 32 elements, the sinks that take them, their scales.

use crate::lanes::Lanes;

/// Elements of a run. Every block is a whole number of runs.
pub(crate) const RUN: usize = 32;

/// A quantised format: blocks of `BYTES` bytes that decode to `R` runs.
///
/// The lengths are parameters, not associated constants, so that they may be array lengths; callers
/// leave them to inference. The format is a type and not a function passed as a value, because the
/// latter may end up called, compiled without the instructions of the tier.
pub(crate) trait QuantFormat<const BYTES: usize, const R: usize> {
    /// Decodes one block into `sink`, each vector once; vectors with the same `i` come in ascending
    /// order of their runs. Implementations are `#[inline(always)]`.
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>);
}

/// Takes the weights of a block.
pub(crate) trait Sink<L: Lanes> {
    /// Takes elements `i * N..(i + 1) * N` of run `run` of the block.
    fn put(&mut self, lanes: L, run: usize, i: usize, weights: L::V);
}

/// Decodes the blocks in `bytes` to `out`; the numbers of blocks agree.
#[inline(always)]
pub(super) fn decode<F, L, const BYTES: usize, const R: usize>(
    lanes: L,
    bytes: &[u8],
    out: &mut [f32],
) where
    F: QuantFormat<BYTES, R>,
    L: Lanes,
{
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (runs, _) = out.as_chunks_mut::<RUN>();
    let (outs, _) = runs.as_chunks_mut::<R>();
    for (block, out) in blocks.iter().zip(outs) {
        F::decode(lanes, block, &mut Store(out));
    }
}

/// Stores the runs of one block.
struct Store<'a, const R: usize>(&'a mut [[f32; RUN]; R]);

impl<L: Lanes, const R: usize> Sink<L> for Store<'_, R> {
    #[inline(always)]
    fn put(&mut self, lanes: L, run: usize, i: usize, weights: L::V) {
        lanes.store(weights, &mut self.0[run][i * L::N..]);
    }
}

/// Widens a little-endian binary16 scale, exactly.
///
/// Without branches and without arithmetic on f32 subnormals: the scales of real weights are often
/// subnormal in binary16, a branch on that would be mispredicted, and several CPUs take 100 cycles
/// for a subnormal operand.
#[inline(always)]
pub(super) fn scale_f16(bytes: [u8; 2]) -> f32 {
    /// Difference of the exponent biases (127 - 15), in place.
    const REBIAS: u32 = 112 << 23;
    /// 2^-14: with the ten bits of a subnormal as its mantissa, it exceeds itself by the
    /// subnormal's value.
    const SMALLEST_NORMAL: u32 = 113 << 23;
    const EXPONENT: u32 = 0x7f80_0000;

    let half = u32::from(u16::from_le_bytes(bytes));
    let sign = (half & 0x8000) << 16;
    let magnitude = half & 0x7fff;
    let shifted = magnitude << 13;

    let normal = shifted + REBIAS;
    let above = f32::from_bits(shifted + SMALLEST_NORMAL);
    let subnormal = (above - f32::from_bits(SMALLEST_NORMAL)).to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude < 0x7c00 { finite } else { shifted | EXPONENT })
}

#[cfg(test)]
mod tests {
    use super::scale_f16;

    #[test]
    fn widening_is_exact_for_every_binary16() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32_const();
            let actual = scale_f16(bits.to_le_bytes());
            let same =
                actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan();
            assert!(same, "binary16 bits {bits:#06x}: {actual:?}, expected {expected:?}");
        }
    }
}
