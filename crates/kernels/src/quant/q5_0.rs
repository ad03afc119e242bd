//! `Q5_0`: 32 elements as signed 5-bit multiples of a scale; `w = (q - 16) * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..6 | fifth bits of `q`, little-endian: bit j belongs to element j |
//! | 6..22 | lower four bits: the low nibble of byte j is element j, the high nibble element j + 16 |
//!
//! The product has at most 5 + 11 significant bits: decoding is exact.

use super::runs::{NO_OFFSET, RUN, Runs, scale_f16};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 22;
const _: () = assert!(BYTES == 2 + LEN / 8 + LEN / 2);
const _: () = assert!(LEN == RUN);

/// Unpacks one block.
#[inline(always)]
pub(crate) fn unpack(block: &[u8; BYTES]) -> Runs<1> {
    let [d0, d1, h0, h1, h2, h3, nibbles @ ..] = block;
    let d = scale_f16([*d0, *d1]);
    let fifth = u32::from_le_bytes([*h0, *h1, *h2, *h3]);
    let mut quants = [0; LEN];
    for j in 0..LEN / 2 {
        let low = nibbles[j] & 0x0f | ((fifth >> j & 1) as u8) << 4;
        let high = nibbles[j] >> 4 | ((fifth >> (j + LEN / 2) & 1) as u8) << 4;
        quants[j] = low.wrapping_sub(16);
        quants[j + LEN / 2] = high.wrapping_sub(16);
    }
    Runs {
        quants: [quants],
        scales: [[d, d]],
        offsets: [NO_OFFSET],
    }
}
