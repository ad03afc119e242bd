//! The exponential function on lanes, and SiLU built on it.

use crate::lanes::Lanes;

/// Below it [`exp`] is exactly zero: the results would be within 4 % of, or below, the smallest
/// normal f32, which no softmax weight or sigmoid of this crate needs.
pub(crate) const EXP_ZERO_BELOW: f32 = -87.3;

/// Largest argument with a finite result, `ln(f32::MAX)` rounded down.
const EXP_FINITE_UP_TO: f32 = 88.722_83;

/// `e^x` in every lane.
///
/// Within 1.25 units in the last place for x from [`EXP_ZERO_BELOW`] to [`EXP_FINITE_UP_TO`], zero
/// below (so `exp(-inf) = 0`), infinity above, NaN for NaN, and exactly 1 for 0.
///
/// `x = n ln 2 + r` with integer `n` and `|r| <= ln 2 / 2`; `ln 2` is subtracted in two parts, the
/// first with few enough bits that `n` times it is exact. The polynomial for `e^r` has the
/// coefficients of Cephes `expf` (S. L. Moshier); `2^n` is added into the exponent field.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(lanes: L, x: L::V) -> L::V {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 leaves no bits below the unit: the sum is rounded to an integer, and its
    // low bits are that integer.
    const ROUND: f32 = 12_582_912.0;
    const COEFFICIENTS: [f32; 5] =
        [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

    let shifted = lanes.fma(x, lanes.splat(std::f32::consts::LOG2_E), lanes.splat(ROUND));
    let n = lanes.sub(shifted, lanes.splat(ROUND));
    let r = lanes.fma(n, lanes.splat(-LN_2_HIGH), x);
    let r = lanes.fma(n, lanes.splat(-LN_2_LOW), r);

    let mut q = lanes.splat(1.987_569_1e-4);
    for c in COEFFICIENTS {
        q = lanes.fma(q, r, lanes.splat(c));
    }
    // 1 + (r + r^2 q): the small terms first, so that their rounding is small too.
    let small = lanes.fma(lanes.mul(r, r), q, r);
    let mantissa = lanes.add(small, lanes.splat(1.0));

    let exponent = lanes.shl(lanes.to_bits(shifted), 23);
    let scaled = lanes.of_bits(lanes.add_i32(lanes.to_bits(mantissa), exponent));
    // Where x is large or NaN the exponent arithmetic is meaningless; x + inf is the answer.
    let large = lanes.add(x, lanes.splat(f32::INFINITY));
    let result = lanes.select(lanes.le(x, lanes.splat(EXP_FINITE_UP_TO)), scaled, large);
    lanes.select(lanes.lt(x, lanes.splat(EXP_ZERO_BELOW)), lanes.splat(0.0), result)
}

/// `x * sigmoid(x) = x / (1 + e^-x)` in every lane, within 4.5 units in the last place; zero below
/// -[`EXP_FINITE_UP_TO`], where the exact values are within 3e-37 of it.
///
/// NaN for NaN and for `-inf` (whose limit is 0, but a non-finite activation must stay visible).
#[inline(always)]
pub(crate) fn silu<L: Lanes>(lanes: L, x: L::V) -> L::V {
    let one = lanes.splat(1.0);
    let e = exp(lanes, lanes.sub(lanes.splat(0.0), x));
    lanes.div(x, lanes.add(one, e))
}

#[cfg(test)]
mod tests;
