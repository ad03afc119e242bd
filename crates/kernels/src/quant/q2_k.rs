//! `Q2_K`: 256 elements in sixteen groups of 16, each with a 4-bit scale and a 4-bit minimum;
//! `w = (d * scale) * q - dmin * min`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..16 | a byte per group in element order: the low nibble is its scale, the high its minimum |
//! | 16..80 | `q`: 32 bytes for each half block |
//! | 80..82 | `d`, binary16, of the scales |
//! | 82..84 | `dmin`, binary16, of the minima |
//!
//! A half block is four runs of 32 elements: run r is bits 2r and 2r + 1 of its 32 bytes.
//!
//! Both products are exact in f32 (at most 11 + 4 + 2 significant bits), so the one rounding is
//! that of the difference.

use crate::element::f16_to_f32;
use crate::lanes::Lanes;

use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 84;
/// Runs of a block.
pub(super) const RUNS: usize = LEN / RUN;
/// Elements of a group; a group shares a scale and a minimum, two groups are a run.
const GROUP: usize = 16;
const GROUPS: usize = LEN / GROUP;
const _: () = assert!(BYTES == GROUPS + LEN / 4 + 2 + 2);
const _: () = assert!(GROUPS == 2 * RUNS);

/// The format.
pub(crate) struct Q2K;

impl QuantFormat<BYTES, RUNS> for Q2K {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let (groups, rest) = block.split_at(GROUPS);
        let (quants, rest) = rest.split_at(LEN / 4);
        let d = f16_to_f32(u16::from_le_bytes([rest[0], rest[1]]));
        let dmin = f16_to_f32(u16::from_le_bytes([rest[2], rest[3]]));
        let (mut scales, mut offsets) = ([0.0; GROUPS], [0.0; GROUPS]);
        for group in 0..GROUPS {
            scales[group] = d * f32::from(groups[group] & 0x0f);
            offsets[group] = -(dmin * f32::from(groups[group] >> 4));
        }
        let (halves, _) = quants.as_chunks::<RUN>();
        let two_bits = lanes.splat_i32(3);
        for (half, quants) in halves.iter().enumerate() {
            for i in 0..RUN / L::N {
                let at = i * L::N;
                let four = lanes.load_u8(&quants[at..]);
                let quants = [
                    lanes.and(four, two_bits),
                    lanes.and(lanes.shr(four, 2), two_bits),
                    lanes.and(lanes.shr(four, 4), two_bits),
                    lanes.shr(four, 6),
                ];
                for (run, q) in quants.into_iter().enumerate() {
                    let run = 4 * half + run;
                    let group = 2 * run + at / GROUP;
                    let (scale, offset) = (lanes.splat(scales[group]), lanes.splat(offsets[group]));
                    sink.put(lanes, run, i, lanes.fma(lanes.to_f32(q), scale, offset));
                }
            }
        }
    }
}
