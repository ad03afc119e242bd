//! `Q8_K`: 256 elements as signed bytes times a scale, with sums; `w = q * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | `d`, binary32 |
//! | 4..260 | `q`, signed bytes in element order |
//! | 260..292 | sixteen sums of 16 `q`, 16-bit: for dot products with the other K types; not read |
//!
//! Unlike the other scales `d` has 24 significant bits, so the one operation, the product, rounds.

use crate::lanes::Lanes;

use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 292;
/// Runs of a block.
pub(super) const RUNS: usize = LEN / RUN;
const _: () = assert!(BYTES == 4 + LEN + LEN / 16 * 2);

/// The format.
pub(crate) struct Q8K;

impl QuantFormat<BYTES, RUNS> for Q8K {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, d2, d3, rest @ ..] = block;
        let d = lanes.splat(f32::from_le_bytes([*d0, *d1, *d2, *d3]));
        let (runs, _) = rest[..LEN].as_chunks::<RUN>();
        for (run, quants) in runs.iter().enumerate() {
            for i in 0..RUN / L::N {
                let q = lanes.load_i8(&quants[i * L::N..]);
                sink.put(lanes, run, i, lanes.mul(lanes.to_f32(q), d));
            }
        }
    }
}
