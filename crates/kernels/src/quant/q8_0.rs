//! `Q8_0`: 32 elements as signed bytes times a scale; `w = q * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..34 | `q`, signed bytes in element order |
//!
//! The product has at most 8 + 11 significant bits: decoding is exact.

use super::runs::{NO_OFFSET, RUN, Runs, scale_f16};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 34;
const _: () = assert!(BYTES == 2 + LEN);
const _: () = assert!(LEN == RUN);

/// Unpacks one block.
#[inline(always)]
pub(crate) fn unpack(block: &[u8; BYTES]) -> Runs<1> {
    let [d0, d1, quants @ ..] = block;
    let d = scale_f16([*d0, *d1]);
    Runs {
        quants: [*quants],
        scales: [[d, d]],
        offsets: [NO_OFFSET],
    }
}
