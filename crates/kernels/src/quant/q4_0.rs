//! `Q4_0`: 32 elements as signed 4-bit multiples of a scale; `w = (q - 8) * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..18 | `q`: the low nibble of byte j is element j, the high nibble element j + 16 |
//!
//! The product has at most 4 + 11 significant bits: decoding is exact.

use crate::lanes::Lanes;
use crate::lanes::halves::Halves;

use super::ints::{IntFormat, IntSink, high_nibbles, low_nibbles};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + LEN / 2);
/// Elements in the low nibbles, and in the high ones.
const HALF: usize = LEN / 2;
const _: () = assert!(LEN == RUN);

/// The format.
pub(crate) struct Q4_0;

impl QuantFormat<BYTES, 1> for Q4_0 {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, nibbles @ ..] = block;
        let d = lanes.splat_f16([*d0, *d1]);
        let bias = lanes.splat_i32(-8);
        let half = HALF / L::N;
        for i in 0..half {
            let both = lanes.load_u8(&nibbles[i * L::N..]);
            let low = lanes.add_i32(lanes.and(both, lanes.splat_i32(0x0f)), bias);
            let high = lanes.add_i32(lanes.shr(both, 4), bias);
            sink.put(lanes, 0, i, lanes.mul(lanes.to_f32(low), d));
            sink.put(lanes, 0, half + i, lanes.mul(lanes.to_f32(high), d));
        }
    }
}

impl IntFormat<BYTES, 1> for Q4_0 {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let [d0, d1, nibbles @ ..] = block;
        let both = lanes.load_u8_halves(nibbles);
        let bias = lanes.splat_half(-8);
        let low = lanes.add_halves(low_nibbles(lanes, both), bias);
        let high = lanes.add_halves(high_nibbles(lanes, both), bias);
        sink.scale(lanes, lanes.splat_f16([*d0, *d1]));
        sink.put(lanes, 0, [low, high]);
    }
}
