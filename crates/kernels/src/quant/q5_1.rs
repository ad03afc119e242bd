//! `Q5_1`: 32 elements as 5-bit steps `d` above a minimum `m`; `w = q * d + m`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..4 | `m`, binary16 |
//! | 4..8 | fifth bits of `q`, little-endian: bit j belongs to element j |
//! | 8..24 | lower four bits: low nibble of byte j for element j, high nibble for element j + 16 |
//!
//! The product has at most 5 + 11 significant bits and is exact: only the sum rounds.

use crate::lanes::halves::Halves;
use crate::lanes::{Lanes, MAX_LANES};

use super::bit_word::{add_where_set, units};
use super::ints::{IntFormat, IntSink, high_nibbles, low_nibbles};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 24;
const _: () = assert!(BYTES == 2 + 2 + LEN / 8 + LEN / 2);
/// Elements in the low nibbles, and in the high ones.
const HALF: usize = LEN / 2;
const _: () = assert!(LEN == RUN);
/// A fifth bit that is set raises `q` by 16.
const SET: [f32; MAX_LANES] = units(16.0);

/// The format.
pub(crate) struct Q5_1;

impl QuantFormat<BYTES, 1> for Q5_1 {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, m0, m1, f0, f1, f2, f3, nibbles @ ..] = block;
        let d = lanes.splat_f16([*d0, *d1]);
        let m = lanes.splat_f16([*m0, *m1]);
        let set = lanes.splat_i32(i32::from_le_bytes([*f0, *f1, *f2, *f3]));
        let half = HALF / L::N;
        for i in 0..half {
            let both = lanes.load_u8(&nibbles[i * L::N..]);
            let low = lanes.and(both, lanes.splat_i32(0x0f));
            let high = lanes.shr(both, 4);
            let first = (i * L::N) as i32;
            let low = add_where_set(lanes, low, lanes.shr(set, first), &SET);
            let high = add_where_set(lanes, high, lanes.shr(set, HALF as i32 + first), &SET);
            sink.put(lanes, 0, i, lanes.fma(low, d, m));
            sink.put(lanes, 0, half + i, lanes.fma(high, d, m));
        }
    }
}

impl IntFormat<BYTES, 1> for Q5_1 {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let [d0, d1, m0, m1, f0, f1, f2, f3, nibbles @ ..] = block;
        let both = lanes.load_u8_halves(nibbles);
        // Without its fifth bit `q - 16` is the lower four bits below ones.
        let low_clear = lanes.halves_where_clear(u16::from_le_bytes([*f0, *f1]));
        let high_clear = lanes.halves_where_clear(u16::from_le_bytes([*f2, *f3]));
        let (ones, sixteen) = (lanes.splat_half(!0x0f), lanes.splat_half(16));
        let low = lanes.or(low_nibbles(lanes, both), lanes.and(low_clear, ones));
        let high = lanes.or(high_nibbles(lanes, both), lanes.and(high_clear, ones));
        let (low, high) = (lanes.add_halves(low, sixteen), lanes.add_halves(high, sixteen));
        sink.scale(lanes, lanes.splat_f16([*d0, *d1]));
        sink.put(lanes, 0, [low, high]);
        sink.offset(lanes, lanes.splat_f16([*m0, *m1]));
    }
}
