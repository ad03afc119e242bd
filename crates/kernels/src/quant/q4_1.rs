//! `Q4_1`: 32 elements as 4-bit steps `d` above a minimum `m`; `w = q * d + m`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..4 | `m`, binary16 |
//! | 4..20 | `q`: the low nibble of byte j is element j, the high nibble element j + 16 |
//!
//! The product has at most 4 + 11 significant bits and is exact: only the sum rounds.

use super::runs::{RUN, Runs, scale_f16};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 20;
const _: () = assert!(BYTES == 2 + 2 + LEN / 2);
const _: () = assert!(LEN == RUN);

/// Unpacks one block.
#[inline(always)]
pub(crate) fn unpack(block: &[u8; BYTES]) -> Runs<1> {
    let [d0, d1, m0, m1, nibbles @ ..] = block;
    let d = scale_f16([*d0, *d1]);
    let mut quants = [0; LEN];
    for j in 0..LEN / 2 {
        quants[j] = nibbles[j] & 0x0f;
        quants[j + LEN / 2] = nibbles[j] >> 4;
    }
    Runs {
        quants: [quants],
        scales: [[d, d]],
        offsets: [scale_f16([*m0, *m1])],
    }
}
