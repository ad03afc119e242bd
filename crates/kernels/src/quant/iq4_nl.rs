//! `IQ4_NL`: 32 elements as 4-bit codes of unevenly spaced values; `w = VALUES[q] * d`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, binary16 |
//! | 2..18 | `q`: the low nibble of byte j is element j, the high nibble element j + 16 |
//!
//! The product has at most 7 + 11 significant bits: decoding is exact.

use crate::lanes::Lanes;

use super::nibble_table::NibbleRun;
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + LEN / 2);
const _: () = assert!(LEN == RUN);

/// The values of the codes (GGML's `kvalues_iq4nl`): dense near zero, where most weights are.
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The format.
pub(crate) struct IQ4NL;

impl QuantFormat<BYTES, 1> for IQ4NL {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [d0, d1, rest @ ..] = block;
        let scale = lanes.splat_f16([*d0, *d1]);
        NibbleRun { nibbles: rest, table: &VALUES, scale }.decode(lanes, 0, sink);
    }
}
