//! `IQ4_XS`: 256 elements in eight groups of 32, each with a signed 6-bit scale, and the unevenly
//! spaced values of `IQ4_NL`; `w = VALUES[q] * (d * (scale - 32))`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..4 | upper two bits of the scales, little-endian: bits 2g and 2g + 1 belong to group g |
//! | 4..8 | lower four bits of the scales, little-endian: bits 4g to 4g + 3 belong to group g |
//! | 8..136 | `q`: 16 bytes for each group, low nibble of byte j for element j, high for j + 16 |
//!
//! The product has at most 7 + 11 + 6 significant bits, 24: decoding is exact.

use crate::element::f16_to_f32;
use crate::lanes::Lanes;

use super::iq4_nl::VALUES;
use super::nibble_table::NibbleRun;
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 256;
/// Bytes of a block.
pub(super) const BYTES: usize = 136;
/// Groups of a block; a group shares a scale and is one run.
pub(super) const GROUPS: usize = LEN / RUN;
const _: () = assert!(BYTES == 2 + GROUPS * 2 / 8 + GROUPS * 4 / 8 + LEN / 2);

/// The format.
pub(crate) struct IQ4XS;

impl QuantFormat<BYTES, GROUPS> for IQ4XS {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, h0, h1, l0, l1, l2, l3, nibbles @ ..] = block;
        let d = f16_to_f32(u16::from_le_bytes([*d0, *d1]));
        let upper = u16::from_le_bytes([*h0, *h1]);
        let lower = u32::from_le_bytes([*l0, *l1, *l2, *l3]);
        let (groups, _) = nibbles.as_chunks::<{ RUN / 2 }>();
        for (group, nibbles) in groups.iter().enumerate() {
            let low = (lower >> (4 * group) & 0x0f) as u8;
            let high = (upper >> (2 * group) & 0x03) as u8;
            let scale = lanes.splat(d * (f32::from(low | high << 4) - 32.0));
            NibbleRun { nibbles, table: &VALUES, scale }.decode(lanes, group, sink);
        }
    }
}
