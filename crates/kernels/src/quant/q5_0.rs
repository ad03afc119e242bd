//! `Q5_0`: 32 elements as signed 5-bit multiples of a scale; `w = (q - 16) * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..6 | fifth bits of `q`, little-endian: bit j belongs to element j |
//! | 6..22 | lower four bits: low nibble of byte j for element j, high nibble for element j + 16 |
//!
//! The product has at most 5 + 11 significant bits: decoding is exact.

use crate::lanes::halves::Halves;
use crate::lanes::{Lanes, MAX_LANES};

use super::bit_word::{add_where_set, units};
use super::ints::{IntFormat, IntSink, high_nibbles, low_nibbles};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 22;
const _: () = assert!(BYTES == 2 + LEN / 8 + LEN / 2);
/// Elements in the low nibbles, and in the high ones.
const HALF: usize = LEN / 2;
const _: () = assert!(LEN == RUN);
/// With its fifth bit set, `q - 16` is the lower four bits; a clear one lowers it by 16.
const CLEAR: [f32; MAX_LANES] = units(-16.0);

/// The format.
pub(crate) struct Q5_0;

impl QuantFormat<BYTES, 1> for Q5_0 {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, f0, f1, f2, f3, nibbles @ ..] = block;
        let d = lanes.splat_f16([*d0, *d1]);
        let clear = lanes.splat_i32(!i32::from_le_bytes([*f0, *f1, *f2, *f3]));
        let half = HALF / L::N;
        for i in 0..half {
            let both = lanes.load_u8(&nibbles[i * L::N..]);
            let low = lanes.and(both, lanes.splat_i32(0x0f));
            let high = lanes.shr(both, 4);
            let first = (i * L::N) as i32;
            let low = add_where_set(lanes, low, lanes.shr(clear, first), &CLEAR);
            let high = add_where_set(lanes, high, lanes.shr(clear, HALF as i32 + first), &CLEAR);
            sink.put(lanes, 0, i, lanes.mul(low, d));
            sink.put(lanes, 0, half + i, lanes.mul(high, d));
        }
    }
}

impl IntFormat<BYTES, 1> for Q5_0 {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let [d0, d1, f0, f1, f2, f3, nibbles @ ..] = block;
        let both = lanes.load_u8_halves(nibbles);
        // Without its fifth bit `q - 16` is the lower four bits below ones.
        let low_clear = lanes.halves_where_clear(u16::from_le_bytes([*f0, *f1]));
        let high_clear = lanes.halves_where_clear(u16::from_le_bytes([*f2, *f3]));
        let ones = lanes.splat_half(!0x0f);
        let low = lanes.or(low_nibbles(lanes, both), lanes.and(low_clear, ones));
        let high = lanes.or(high_nibbles(lanes, both), lanes.and(high_clear, ones));
        sink.scale(lanes, lanes.splat_f16([*d0, *d1]));
        sink.put(lanes, 0, [low, high]);
    }
}
