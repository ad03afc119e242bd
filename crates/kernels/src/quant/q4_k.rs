//! `Q4_K`: 256 elements in eight groups of 32, each with a 6-bit scale and a 6-bit minimum;
//! `w = (d * scale) * q - dmin * min`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16, of the scales |
//! | 2..4 | `dmin`, binary16, of the minima |
//! | 4..16 | eight scales and eight minima, packed, see [`unpack_scales`] |
//! | 16..144 | `q`: 32 bytes per pair of groups, the low nibbles the first, the high the second |
//!
//! Both products are exact in f32 (at most 11 + 6 + 4 significant bits), so the one rounding is
//! that of the difference.

use crate::element::f16_to_f32;
use crate::lanes::Lanes;
use crate::lanes::halves::{HALVES, Halves};

use super::ints::{IntFormat, IntSink, high_nibbles, low_nibbles};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 144;
/// Groups of a block; a group shares a scale and a minimum and is one run.
pub(super) const GROUPS: usize = LEN / RUN;
const _: () = assert!(BYTES == Groups::BYTES + LEN / 2);

/// The format.
pub(crate) struct Q4K;

impl QuantFormat<BYTES, GROUPS> for Q4K {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let (groups, nibbles) = block.split_at(Groups::BYTES);
        let Groups { scales, offsets } = Groups::unpack(groups);
        let (pairs, _) = nibbles.as_chunks::<RUN>();
        for (pair, nibbles) in pairs.iter().enumerate() {
            let (low_group, high_group) = (2 * pair, 2 * pair + 1);
            let (low_scale, low_offset) =
                (lanes.splat(scales[low_group]), lanes.splat(offsets[low_group]));
            let (high_scale, high_offset) =
                (lanes.splat(scales[high_group]), lanes.splat(offsets[high_group]));
            for i in 0..RUN / L::N {
                let both = lanes.load_u8(&nibbles[i * L::N..]);
                let low = lanes.to_f32(lanes.and(both, lanes.splat_i32(0x0f)));
                let high = lanes.to_f32(lanes.shr(both, 4));
                sink.put(lanes, low_group, i, lanes.fma(low, low_scale, low_offset));
                sink.put(lanes, high_group, i, lanes.fma(high, high_scale, high_offset));
            }
        }
    }
}

impl IntFormat<BYTES, GROUPS> for Q4K {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let (groups, nibbles) = block.split_at(Groups::BYTES);
        put_groups(lanes, groups, sink);
        let (pairs, _) = nibbles.as_chunks::<RUN>();
        for (pair, nibbles) in pairs.iter().enumerate() {
            let (first, second) = nibbles.split_at(HALVES);
            let (first, second) = (lanes.load_u8_halves(first), lanes.load_u8_halves(second));
            let low = [low_nibbles(lanes, first), low_nibbles(lanes, second)];
            let high = [high_nibbles(lanes, first), high_nibbles(lanes, second)];
            sink.put(lanes, 2 * pair, low);
            sink.put(lanes, 2 * pair + 1, high);
        }
    }
}

/// What the groups of a `Q4_K` or `Q5_K` block share: `w = scale * q + offset`.
pub(super) struct Groups {
    /// `d * scale` of each group.
    pub(super) scales: [f32; GROUPS],
    /// `-(dmin * min)` of each group.
    pub(super) offsets: [f32; GROUPS],
}

impl Groups {
    /// Bytes at the start of a block that hold them: `d`, `dmin`, eight scales, eight minima.
    pub(super) const BYTES: usize = 2 + 2 + GROUPS * (6 + 6) / 8;

    /// Reads the first [`Groups::BYTES`] bytes of a block.
    #[inline(always)]
    pub(super) fn unpack(bytes: &[u8]) -> Groups {
        let (words, _) = bytes[..Self::BYTES].as_chunks::<4>();
        let [d0, d1, m0, m1] = words[0];
        let d = f16_to_f32(u16::from_le_bytes([d0, d1]));
        let dmin = f16_to_f32(u16::from_le_bytes([m0, m1]));
        let (scales, mins) = unpack_scales([1, 2, 3].map(|word| u32::from_le_bytes(words[word])));
        Groups {
            scales: scales.map(|scale| d * f32::from(scale)),
            offsets: mins.map(|min| -(dmin * f32::from(min))),
        }
    }
}

/// Gives `sink` the scales and offsets of the groups, from the first [`Groups::BYTES`] bytes of a
/// block.
#[inline(always)]
pub(super) fn put_groups<L: Halves>(lanes: L, bytes: &[u8], sink: &mut impl IntSink<L>) {
    let (words, _) = bytes[..Groups::BYTES].as_chunks::<4>();
    let [d0, d1, m0, m1] = words[0];
    let word = |at: usize| u32::from_le_bytes(words[at]);
    let (scales, mins) = unpack_scales([word(1), word(2), word(3)]);
    let scales = lanes.mul(lanes.to_f32(lanes.load_u8(&scales)), lanes.splat_f16([d0, d1]));
    let mins = lanes.mul(lanes.to_f32(lanes.load_u8(&mins)), lanes.splat_f16([m0, m1]));
    sink.scales(lanes, [scales, scales]);
    sink.offsets(lanes, lanes.sub(lanes.splat(0.0), mins));
}

/// Unpacks the 6-bit scales and minima of the eight groups, four at a time in the bytes of a word.
///
/// Word 0 holds scales 0..4 and word 1 minima 0..4 in the low six bits of their bytes. Scales 4..8
/// have their low nibble in the low nibbles of word 2 and their upper two bits at the top of word
/// 0's bytes; minima 4..8 likewise from the high nibbles of word 2 and the top of word 1.
#[inline(always)]
fn unpack_scales([first, second, third]: [u32; 3]) -> ([u8; GROUPS], [u8; GROUPS]) {
    const SIX_BITS: u32 = 0x3f3f_3f3f;
    const NIBBLES: u32 = 0x0f0f_0f0f;
    const UPPER_TWO: u32 = 0x3030_3030;
    let scales = [first & SIX_BITS, third & NIBBLES | first >> 2 & UPPER_TWO];
    let mins = [second & SIX_BITS, third >> 4 & NIBBLES | second >> 2 & UPPER_TWO];
    (join(scales), join(mins))
}

#[inline(always)]
fn join([low, high]: [u32; 2]) -> [u8; GROUPS] {
    (u64::from(low) | u64::from(high) << 32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, unpack_scales};

    /// The packing rule stated bit by bit, as a format description would.
    fn unpack_one(packed: &[u8; 12], group: usize) -> (u8, u8) {
        if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let low = packed[group + 4];
            (low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
        }
    }

    #[test]
    fn every_packed_bit_reaches_its_place() {
        for bit in 0..96 {
            let mut packed = [0u8; 12];
            packed[bit / 8] = 1 << (bit % 8);
            let words =
                [0, 4, 8].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| packed[at + i])));
            let (scales, mins) = unpack_scales(words);
            for group in 0..GROUPS {
                assert_eq!(
                    (scales[group], mins[group]),
                    unpack_one(&packed, group),
                    "bit {bit}, group {group}"
                );
            }
        }
    }
}
