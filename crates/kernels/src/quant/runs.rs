//! The common form of all quantised blocks: runs of 32 small integers with scales and an offset.

use crate::lanes::Lanes;

/// Elements of a run.
pub(crate) const RUN: usize = 32;
/// Elements that share a scale, in the finest format (`Q6_K`).
const SCALED: usize = 16;

/// Offset of the formats that have none.
///
/// Adding -0 changes no value, zeros of either sign included, so these formats need no second
/// arithmetic.
pub(super) const NO_OFFSET: f32 = -0.0;

/// A block of `R` runs, unpacked: element `j` of run `r` is `quants[r][j] * scales[r][j / 16] +
/// offsets[r]`.
///
/// The product is exact in f32, or the offset is [`NO_OFFSET`] (each format's file says which): one
/// operation rounds, so the value has the same bits with and without FMA.
pub(crate) struct Runs<const R: usize> {
    pub(super) quants: [[u8; RUN]; R],
    pub(super) scales: [[f32; RUN / SCALED]; R],
    pub(super) offsets: [f32; R],
}

impl<const R: usize> Runs<R> {
    /// Elements `i * N..(i + 1) * N` of run `run`, as f32.
    #[inline(always)]
    pub(crate) fn weights<L: Lanes>(&self, lanes: L, run: usize, i: usize) -> L::V {
        let quants = lanes.to_f32(lanes.load_i8(&self.quants[run][i * L::N..]));
        let scale = lanes.splat(self.scales[run][i * L::N / SCALED]);
        lanes.fma(quants, scale, lanes.splat(self.offsets[run]))
    }
}

/// Decodes the blocks in `bytes` to `out`; the numbers of blocks agree.
#[inline(always)]
pub(super) fn decode<L: Lanes, const BYTES: usize, const R: usize>(
    lanes: L,
    bytes: &[u8],
    out: &mut [f32],
    unpack: impl Fn(&[u8; BYTES]) -> Runs<R>,
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<RUN>();
    for (block, outs) in blocks.iter().zip(outs.chunks_exact_mut(R)) {
        let runs = unpack(block);
        for (run, out) in outs.iter_mut().enumerate() {
            for i in 0..RUN / L::N {
                lanes.store(runs.weights(lanes, run, i), &mut out[i * L::N..]);
            }
        }
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
    let finite = if magnitude < 0x0400 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(
        sign | if magnitude < 0x7c00 {
            finite
        } else {
            shifted | EXPONENT
        },
    )
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
            assert!(
                same,
                "binary16 bits {bits:#06x}: {actual:?}, expected {expected:?}"
            );
        }
    }
}
