//! `Q8_1`: 32 elements as signed bytes times a scale, with their sum; `w = q * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..4 | `d` times the sum of `q`, binary16: for dot products of GGML's, not read here |
//! | 4..36 | `q`, signed bytes in element order |
//!
//! GGML makes such blocks of activations and has no tool that writes them to a file. Its struct had
//! `d` and `s` as binary32 first (40 bytes a block) and has them as binary16 now; the latter is the
//! layout that candle reads from files, and therefore the one here. A tensor of the former has
//! another length, which [`WeightView::new`](super::WeightView::new) refuses.
//!
//! The product has at most 8 + 11 significant bits: decoding is exact.

use crate::lanes::Lanes;

use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 36;
const _: () = assert!(BYTES == 2 + 2 + LEN);
const _: () = assert!(LEN == RUN);

/// The format.
pub(crate) struct Q8_1;

impl QuantFormat<BYTES, 1> for Q8_1 {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, _, _, quants @ ..] = block;
        let d = lanes.splat_f16([*d0, *d1]);
        for i in 0..RUN / L::N {
            let q = lanes.load_i8(&quants[i * L::N..]);
            sink.put(lanes, 0, i, lanes.mul(lanes.to_f32(q), d));
        }
    }
}
