//! `Q6_K`: 256 elements in sixteen groups of 16, each with a signed 8-bit scale; `w = (d * scale) *
//! (q - 32)`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..128 | lower four bits of `q`: 64 bytes for each half block |
//! | 128..192 | upper two bits of `q`: 32 bytes for each half block |
//! | 192..208 | scales, signed bytes in element order of their groups |
//! | 208..210 | `d`, binary16 |
//!
//! A half block is four runs of 32 elements: runs 0 and 1 are the low nibbles of its first and
//! second 32 bytes, runs 2 and 3 the high nibbles; the upper bits of run r are bits 2r and 2r + 1
//! of its 32 bytes. `d * scale` is exact in f32 (at most 11 + 7 significant bits), so the one
//! rounding is that of the last product.

use super::runs::{NO_OFFSET, RUN, Runs, scale_f16};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 210;
/// Runs of a block.
pub(super) const RUNS: usize = LEN / RUN;
/// Groups that share a scale, two in a run.
const GROUPS: usize = LEN / 16;
const _: () = assert!(BYTES == LEN / 2 + LEN / 4 + GROUPS + 2);
const _: () = assert!(GROUPS == 2 * RUNS);

/// Unpacks one block.
#[inline(always)]
pub(crate) fn unpack(block: &[u8; BYTES]) -> Runs<RUNS> {
    let (lower, rest) = block.split_at(LEN / 2);
    let (upper, rest) = rest.split_at(LEN / 4);
    let (scales, d) = rest.split_at(GROUPS);
    let d = scale_f16([d[0], d[1]]);
    let (lower, _) = lower.as_chunks::<RUN>();
    let (upper, _) = upper.as_chunks::<RUN>();
    let (scales, _) = scales.as_chunks::<2>();

    let mut runs = Runs {
        quants: [[0; RUN]; RUNS],
        scales: [[0.0; 2]; RUNS],
        offsets: [NO_OFFSET; RUNS],
    };
    for half in 0..2 {
        for j in 0..RUN {
            let (first, second, top) = (lower[2 * half][j], lower[2 * half + 1][j], upper[half][j]);
            let quants = [
                first & 0x0f | (top & 3) << 4,
                second & 0x0f | (top >> 2 & 3) << 4,
                first >> 4 | (top >> 4 & 3) << 4,
                second >> 4 | top >> 6 << 4,
            ];
            for (run, q) in quants.into_iter().enumerate() {
                runs.quants[4 * half + run][j] = q.wrapping_sub(32);
            }
        }
    }
    for (out, scales) in runs.scales.iter_mut().zip(scales) {
        *out = scales.map(|scale| d * f32::from(scale.cast_signed()));
    }
    runs
}
