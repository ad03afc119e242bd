//! `Q8_0`: 32 elements as signed bytes times a scale; `w = q * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..34 | `q`, signed bytes in element order |
//!
//! The product has at most 8 + 11 significant bits: decoding is exact.

use crate::lanes::Lanes;
use crate::lanes::halves::{HALVES, Halves};

use super::ints::{IntFormat, IntSink};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 34;
const _: () = assert!(BYTES == 2 + LEN);
const _: () = assert!(LEN == RUN);

/// The format.
pub(crate) struct Q8_0;

impl QuantFormat<BYTES, 1> for Q8_0 {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, quants @ ..] = block;
        let d = lanes.splat_f16([*d0, *d1]);
        for i in 0..RUN / L::N {
            let q = lanes.load_i8(&quants[i * L::N..]);
            sink.put(lanes, 0, i, lanes.mul(lanes.to_f32(q), d));
        }
    }
}

impl IntFormat<BYTES, 1> for Q8_0 {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let [d0, d1, quants @ ..] = block;
        let (low, high) = quants.split_at(HALVES);
        sink.scale(lanes, lanes.splat_f16([*d0, *d1]));
        sink.put(lanes, 0, [lanes.load_i8_halves(low), lanes.load_i8_halves(high)]);
    }
}
