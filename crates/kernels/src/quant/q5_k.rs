//! `Q5_K`: 256 elements in eight groups of 32, each with a 6-bit scale and a 6-bit minimum;
//! `w = (d * scale) * q - dmin * min`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..16 | scales and minima as in `Q4_K`, see [`Groups`] |
//! | 16..48 | fifth bits of `q`: bit g of byte j belongs to element j of group g |
//! | 48..176 | lower four bits: 32 bytes per pair of groups, low nibbles the first, high the second |
//!
//! Both products are exact in f32 (at most 11 + 6 + 5 significant bits), so the one rounding is
//! that of the difference.

use crate::lanes::Lanes;
use crate::lanes::halves::{HALVES, Halves};

use super::ints::{IntFormat, IntSink, high_nibbles, low_nibbles};
use super::q4_k::{GROUPS, Groups, put_groups};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 176;
const _: () = assert!(LEN == GROUPS * RUN);
const _: () = assert!(BYTES == Groups::BYTES + LEN / 8 + LEN / 2);

/// The format.
pub(crate) struct Q5K;

impl QuantFormat<BYTES, GROUPS> for Q5K {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let (groups, rest) = block.split_at(Groups::BYTES);
        let (fifths, nibbles) = rest.split_at(LEN / 8);
        let Groups { scales, offsets } = Groups::unpack(groups);
        let (pairs, _) = nibbles.as_chunks::<RUN>();
        let nibble = lanes.splat_i32(0x0f);
        let fifth_bit = lanes.splat_i32(0x10);
        for (pair, nibbles) in pairs.iter().enumerate() {
            let (low_group, high_group) = (2 * pair, 2 * pair + 1);
            let (low_scale, low_offset) =
                (lanes.splat(scales[low_group]), lanes.splat(offsets[low_group]));
            let (high_scale, high_offset) =
                (lanes.splat(scales[high_group]), lanes.splat(offsets[high_group]));
            for i in 0..RUN / L::N {
                let both = lanes.load_u8(&nibbles[i * L::N..]);
                // Bits 4 and up: shifted right by the number of the group, its bit has the weight
                // 16.
                let eight = lanes.shl(lanes.load_u8(&fifths[i * L::N..]), 4);
                let low_fifth = lanes.and(lanes.shr(eight, low_group as i32), fifth_bit);
                let high_fifth = lanes.and(lanes.shr(eight, high_group as i32), fifth_bit);
                let low = lanes.to_f32(lanes.or(lanes.and(both, nibble), low_fifth));
                let high = lanes.to_f32(lanes.or(lanes.shr(both, 4), high_fifth));
                sink.put(lanes, low_group, i, lanes.fma(low, low_scale, low_offset));
                sink.put(lanes, high_group, i, lanes.fma(high, high_scale, high_offset));
            }
        }
    }
}

impl IntFormat<BYTES, GROUPS> for Q5K {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let (groups, rest) = block.split_at(Groups::BYTES);
        let (fifths, nibbles) = rest.split_at(LEN / 8);
        put_groups(lanes, groups, sink);
        let (pairs, _) = nibbles.as_chunks::<RUN>();
        let fifth_bit = lanes.splat_half(0x10);
        // As in `decode`; what shifts bring from the next half lies beside the bit.
        let (first, second) = fifths.split_at(HALVES);
        let first_fifths = lanes.shl(lanes.load_u8_halves(first), 4);
        let second_fifths = lanes.shl(lanes.load_u8_halves(second), 4);
        for (pair, nibbles) in pairs.iter().enumerate() {
            let (first, second) = nibbles.split_at(HALVES);
            let (first, second) = (lanes.load_u8_halves(first), lanes.load_u8_halves(second));
            let shift = 2 * pair as i32;
            let low = [
                lanes.or(
                    low_nibbles(lanes, first),
                    lanes.and(lanes.shr(first_fifths, shift), fifth_bit),
                ),
                lanes.or(
                    low_nibbles(lanes, second),
                    lanes.and(lanes.shr(second_fifths, shift), fifth_bit),
                ),
            ];
            let high = [
                lanes.or(
                    high_nibbles(lanes, first),
                    lanes.and(lanes.shr(first_fifths, shift + 1), fifth_bit),
                ),
                lanes.or(
                    high_nibbles(lanes, second),
                    lanes.and(lanes.shr(second_fifths, shift + 1), fifth_bit),
                ),
            ];
            sink.put(lanes, 2 * pair, low);
            sink.put(lanes, 2 * pair + 1, high);
        }
    }
}
