//! `Q3_K`: 256 elements in sixteen groups of 16, each with a signed 6-bit scale;
//! `w = (d * (scale - 32)) * (q - 4)`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..32 | third bits of `q`: bit r of byte j belongs to element j of run r |
//! | 32..96 | lower two bits of `q`: 32 bytes for each half block |
//! | 96..108 | sixteen scales, packed, see [`unpack_scales`] |
//! | 108..110 | `d`, binary16 |
//!
//! A half block is four runs of 32 elements: the lower bits of its run r are bits 2r and 2r + 1 of
//! its 32 bytes. The third bits run through the block, eight runs on the same 32 bytes.
//!
//! The product has at most 11 + 6 + 3 significant bits: decoding is exact.

use crate::element::f16_to_f32;
use crate::lanes::Lanes;

use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 110;
/// Runs of a block.
pub(super) const RUNS: usize = LEN / RUN;
/// Elements of a group; a group shares a scale, two groups are a run.
const GROUP: usize = 16;
const GROUPS: usize = LEN / GROUP;
const SCALE_BYTES: usize = 12;
const _: () = assert!(BYTES == LEN / 8 + LEN / 4 + SCALE_BYTES + 2);
const _: () = assert!(GROUPS == 2 * RUNS);
const _: () = assert!(SCALE_BYTES * 8 == GROUPS * 6);

/// The format.
pub(crate) struct Q3K;

impl QuantFormat<BYTES, RUNS> for Q3K {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let (thirds, rest) = block.split_at(LEN / 8);
        let (lower, rest) = rest.split_at(LEN / 4);
        let (words, d) = rest.as_chunks::<4>();
        let d = f16_to_f32(u16::from_le_bytes([d[0], d[1]]));
        let scales = unpack_scales([0, 1, 2].map(|word| u32::from_le_bytes(words[word])));
        let scales = scales.map(|scale| d * (f32::from(scale) - 32.0));
        let (halves, _) = lower.as_chunks::<RUN>();
        let (two_bits, third_bit) = (lanes.splat_i32(3), lanes.splat_i32(4));
        let bias = lanes.splat_i32(-4);
        for (half, lower) in halves.iter().enumerate() {
            for i in 0..RUN / L::N {
                let at = i * L::N;
                let four = lanes.load_u8(&lower[at..]);
                // The half block's third bits, in bits 0 to 3.
                let third = lanes.shr(lanes.load_u8(&thirds[at..]), 4 * half as i32);
                let quants = [
                    lanes.or(lanes.and(four, two_bits), lanes.and(lanes.shl(third, 2), third_bit)),
                    lanes.or(
                        lanes.and(lanes.shr(four, 2), two_bits),
                        lanes.and(lanes.shl(third, 1), third_bit),
                    ),
                    lanes.or(lanes.and(lanes.shr(four, 4), two_bits), lanes.and(third, third_bit)),
                    lanes.or(lanes.shr(four, 6), lanes.and(lanes.shr(third, 1), third_bit)),
                ];
                for (run, q) in quants.into_iter().enumerate() {
                    let run = 4 * half + run;
                    let q = lanes.to_f32(lanes.add_i32(q, bias));
                    let scale = lanes.splat(scales[2 * run + at / GROUP]);
                    sink.put(lanes, run, i, lanes.mul(q, scale));
                }
            }
        }
    }
}

/// Unpacks the 6-bit scales of the sixteen groups, four at a time in the bytes of a word.
///
/// Byte j of words 0 and 1 has the lower four bits of scale j (0..8) in its low nibble and those of
/// scale j + 8 in its high nibble. The upper two bits of scales 4p..4p + 4 are bits 2p and 2p + 1
/// of the four bytes of word 2.
#[inline(always)]
fn unpack_scales([first, second, upper]: [u32; 3]) -> [u8; GROUPS] {
    const NIBBLES: u32 = 0x0f0f_0f0f;
    const UPPER_TWO: u32 = 0x3030_3030;
    let words = [
        first & NIBBLES | upper << 4 & UPPER_TWO,
        second & NIBBLES | upper << 2 & UPPER_TWO,
        first >> 4 & NIBBLES | upper & UPPER_TWO,
        second >> 4 & NIBBLES | upper >> 2 & UPPER_TWO,
    ];
    let mut scales = [0; GROUPS];
    for (bytes, word) in scales.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    scales
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, SCALE_BYTES, unpack_scales};

    /// The packing rule stated bit by bit, as a format description would.
    fn unpack_one(packed: &[u8; SCALE_BYTES], group: usize) -> u8 {
        let low = if group < 8 { packed[group] & 15 } else { packed[group - 8] >> 4 };
        let upper = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        low | upper << 4
    }

    #[test]
    fn every_packed_bit_reaches_its_place() {
        for bit in 0..8 * SCALE_BYTES {
            let mut packed = [0u8; SCALE_BYTES];
            packed[bit / 8] = 1 << (bit % 8);
            let words =
                [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| packed[at + i])));
            let scales = unpack_scales(words);
            let expected: [u8; GROUPS] = std::array::from_fn(|group| unpack_one(&packed, group));
            assert_eq!(scales, expected, "bit {bit}");
        }
    }
}
