//! `Q6_K`: 256 elements in sixteen groups of 16, each with a signed 8-bit scale;
//! `w = (d * scale) * (q - 32)`.
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
//! of its 32 bytes.
//!
//! The product has at most 11 + 7 + 5 significant bits: decoding is exact.

use crate::element::f16_to_f32;
use crate::lanes::Lanes;
use crate::lanes::halves::{HALVES, Halves};

use super::ints::{IntFormat, IntSink, high_nibbles, low_nibbles};
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 210;
/// Runs of a block.
pub(super) const RUNS: usize = LEN / RUN;
/// Elements of a group; a group shares a scale, two groups are a run.
const GROUP: usize = 16;
const GROUPS: usize = LEN / GROUP;
const _: () = assert!(BYTES == LEN / 2 + LEN / 4 + GROUPS + 2);
const _: () = assert!(GROUPS == 2 * RUNS);

/// The format.
pub(crate) struct Q6K;

impl QuantFormat<BYTES, RUNS> for Q6K {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let (lower, rest) = block.split_at(LEN / 2);
        let (upper, rest) = rest.split_at(LEN / 4);
        let (scales, d) = rest.split_at(GROUPS);
        let d = f16_to_f32(u16::from_le_bytes([d[0], d[1]]));
        let (lower, _) = lower.as_chunks::<RUN>();
        let (upper, _) = upper.as_chunks::<RUN>();
        let nibble = lanes.splat_i32(0x0f);
        let top_two = lanes.splat_i32(0x30);
        let bias = lanes.splat_i32(-32);
        for half in 0..2 {
            for i in 0..RUN / L::N {
                let at = i * L::N;
                let first = lanes.load_u8(&lower[2 * half][at..]);
                let second = lanes.load_u8(&lower[2 * half + 1][at..]);
                let top = lanes.load_u8(&upper[half][at..]);
                let quants = [
                    lanes.or(lanes.and(first, nibble), lanes.and(lanes.shl(top, 4), top_two)),
                    lanes.or(lanes.and(second, nibble), lanes.and(lanes.shl(top, 2), top_two)),
                    lanes.or(lanes.shr(first, 4), lanes.and(top, top_two)),
                    lanes.or(lanes.shr(second, 4), lanes.and(lanes.shr(top, 2), top_two)),
                ];
                for (run, q) in quants.into_iter().enumerate() {
                    let run = 4 * half + run;
                    let scale = d * f32::from(scales[2 * run + at / GROUP].cast_signed());
                    let q = lanes.to_f32(lanes.add_i32(q, bias));
                    sink.put(lanes, run, i, lanes.mul(q, lanes.splat(scale)));
                }
            }
        }
    }
}

impl IntFormat<BYTES, RUNS> for Q6K {
    #[inline(always)]
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>) {
        let (lower, rest) = block.split_at(LEN / 2);
        let (upper, rest) = rest.split_at(LEN / 4);
        let (scales, d) = rest.split_at(GROUPS);
        let d = lanes.splat_f16([d[0], d[1]]);
        // Scales of the first groups of all runs in the even halves, of the second in the odd ones.
        let scales = lanes.load_i8_halves(scales);
        let first = lanes.to_f32(lanes.dot_i16(scales, lanes.splat_i32(1)));
        let second = lanes.to_f32(lanes.dot_i16(scales, lanes.splat_i32(1 << 16)));
        sink.scales(lanes, [lanes.mul(first, d), lanes.mul(second, d)]);
        let (lower, _) = lower.as_chunks::<RUN>();
        let (upper, _) = upper.as_chunks::<RUN>();
        let top_two = lanes.splat_half(0x30);
        let bias = lanes.splat_half(-32);
        for half_block in 0..2 {
            for half in 0..2 {
                let at = half * HALVES;
                let first = lanes.load_u8_halves(&lower[2 * half_block][at..]);
                let second = lanes.load_u8_halves(&lower[2 * half_block + 1][at..]);
                let top = lanes.load_u8_halves(&upper[half_block][at..]);
                let quants = [
                    (low_nibbles(lanes, first), lanes.shl(top, 4)),
                    (low_nibbles(lanes, second), lanes.shl(top, 2)),
                    (high_nibbles(lanes, first), top),
                    (high_nibbles(lanes, second), lanes.shr(top, 2)),
                ];
                for (run, (lower, upper)) in quants.into_iter().enumerate() {
                    let q = lanes.or(lower, lanes.and(upper, top_two));
                    let q = lanes.add_halves(q, bias);
                    sink.put_half(lanes, [4 * half_block + run, half], q);
                }
            }
        }
    }
}
