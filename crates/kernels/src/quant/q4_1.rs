//! `Q4_1`: 32 elements as 4-bit steps `d` above a minimum `m`; `w = q * d + m`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..4 | `m`, binary16 |
//! | 4..20 | `q`: the low nibble of byte j is element j, the high nibble element j + 16 |
//!
//! The product has at most 4 + 11 significant bits and is exact: only the sum rounds.

use crate::lanes::Lanes;
use crate::lanes::halves::Halves;

use super::ints::{IntFormat, IntSink, high_nibbles, low_nibbles};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 20;
const _: () = assert!(BYTES == 2 + 2 + LEN / 2);
/// Elements in the low nibbles, and in the high ones.
const HALF: usize = LEN / 2;
const _: () = assert!(LEN == RUN);

/// The format.
pub(crate) struct Q4_1;

impl QuantFormat<BYTES, 1> for Q4_1 {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, m0, m1, nibbles @ ..] = block;
        let d = lanes.splat_f16([*d0, *d1]);
        let m = lanes.splat_f16([*m0, *m1]);
        let half = HALF / L::N;
        for i in 0..half {
            let both = lanes.load_u8(&nibbles[i * L::N..]);
            let low = lanes.and(both, lanes.splat_i32(0x0f));
            let high = lanes.shr(both, 4);
            sink.put(lanes, 0, i, lanes.fma(lanes.to_f32(low), d, m));
            sink.put(lanes, 0, half + i, lanes.fma(lanes.to_f32(high), d, m));
        }
    }
}

impl IntFormat<BYTES, 1> for Q4_1 {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let [d0, d1, m0, m1, nibbles @ ..] = block;
        let both = lanes.load_u8_halves(nibbles);
        sink.scale(lanes, lanes.splat_f16([*d0, *d1]));
        sink.put(lanes, 0, [low_nibbles(lanes, both), high_nibbles(lanes, both)]);
        sink.offset(lanes, lanes.splat_f16([*m0, *m1]));
    }
}
