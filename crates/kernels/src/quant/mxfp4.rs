//! `MXFP4`: 32 elements as 4-bit floats with a common power of two;
//! `w = DOUBLED[q] * 2^(e - 128)`.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | `e`, a scale of type E8M0: `2^(e - 127)`, and NaN for 255 |
//! | 1..17 | `q`: the low nibble of byte j is element j, the high nibble element j + 16 |
//!
//! The elements are E2M1, a sign bit, two exponent bits and a mantissa bit (OCP Microscaling
//! Formats (MX) Specification 1.0, sections 5.3.3 and 5.4.1); the table has twice their values,
//! which are integers, and the scale half its own. As in GGML's decoder code 8, a negative zero, is
//! a positive one. Unlike there a NaN scale is NaN, as the specification has it, and not 2^128: a
//! damaged block then ends the request instead of passing for large weights.
//!
//! A product by a power of two is exact: it is never below the smallest subnormal (`2^-128` is far
//! above it), and infinite where it exceeds the largest f32.

use crate::lanes::Lanes;

use super::nibble_table::NibbleRun;
use super::runs::{QuantFormat, RUN, Sink};

/// Elements of a block.
pub(super) const LEN: usize = 32;
/// Bytes of a block.
pub(super) const BYTES: usize = 17;
const _: () = assert!(BYTES == 1 + LEN / 2);
const _: () = assert!(LEN == RUN);

/// Twice the values of E2M1.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The format.
pub(crate) struct MXFP4;

impl QuantFormat<BYTES, 1> for MXFP4 {
    #[inline(always)]
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>) {
        let [e, rest @ ..] = block;
        let scale = lanes.splat(half_scale(*e));
        NibbleRun { nibbles: rest, table: &DOUBLED, scale }.decode(lanes, 0, sink);
    }
}

/// `2^(e - 128)`, half of the scale; NaN for 255.
#[inline(always)]
fn half_scale(e: u8) -> f32 {
    /// 2^-128, one of the two that are subnormal.
    const SMALLEST: u32 = 1 << 21;
    let bits = u32::from(e);
    f32::from_bits(match e {
        0 | 1 => SMALLEST << bits,
        u8::MAX => f32::NAN.to_bits(),
        _ => (bits - 1) << 23,
    })
}

#[cfg(test)]
mod tests {
    use super::half_scale;

    #[test]
    fn every_scale_is_half_its_power_of_two() {
        for e in 0..u8::MAX {
            assert_eq!(f64::from(half_scale(e)), 2f64.powi(i32::from(e) - 128), "e {e}");
        }
        assert!(half_scale(u8::MAX).is_nan());
    }
}
