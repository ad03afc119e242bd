//! The exponential function on lanes, and what is built on it: tanh, and the activations SiLU and
//! GELU.

use crate::lanes::Lanes;

/// Below it [`exp`] is exactly zero: the results would be within 4 % of, or below, the smallest
/// normal f32, which no softmax weight or sigmoid of this crate needs.
pub(crate) const EXP_ZERO_BELOW: f32 = -87.3;

/// Largest argument with a finite result, `ln(f32::MAX)` rounded down.
const EXP_FINITE_UP_TO: f32 = 88.722_83;

/// Adding it leaves no bits below the unit: a sum of magnitude below 2^22 is rounded to an integer,
/// halves to even, and its low bits are that integer.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// `x = n ln 2 + r` with integer `n` and `|r| <= ln 2 / 2`: `n + round` and `r`, for a `round` that is
/// [`ROUND`] or an integer next to it.
///
/// `ln 2` is subtracted in two parts, the first with few enough bits that `n` times it is exact.
#[inline(always)]
fn reduce<L: Lanes>(lanes: L, x: L::V, round: f32) -> (L::V, L::V) {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let shifted = lanes.fma(x, lanes.splat(std::f32::consts::LOG2_E), lanes.splat(round));
    let n = lanes.sub(shifted, lanes.splat(round));
    let r = lanes.fma(n, lanes.splat(-LN_2_HIGH), x);
    (shifted, lanes.fma(n, lanes.splat(-LN_2_LOW), r))
}

/// `e^x` in every lane.
///
/// Within 1.25 units in the last place for x from [`EXP_ZERO_BELOW`] to [`EXP_FINITE_UP_TO`], zero
/// below (so `exp(-inf) = 0`), infinity above, NaN for NaN, and exactly 1 for 0.
///
/// The polynomial for `e^r` (see [`reduce`]) has the coefficients of Cephes `expf` (S. L. Moshier);
/// `2^n` is added into the exponent field.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(lanes: L, x: L::V) -> L::V {
    const COEFFICIENTS: [f32; 5] =
        [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

    let (shifted, r) = reduce(lanes, x, ROUND);

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

/// `e^x` in every lane for x up to 0: what a softmax needs, with three quarters of the operations of
/// [`exp`].
///
/// Within 3 units in the last place from [`EXP_ZERO_BELOW`] on, zero below (so `exp(-inf) = 0`), NaN
/// for NaN, and exactly 1 for 0. Without meaning for positive x.
///
/// As [`exp`], but the polynomial is `1 + r q(r)` with q of degree 4 and the smallest largest
/// relative error for it, 9.1e-8 (fitted in f64 by Lawson's iteration, then rounded), and `2^n` is a
/// factor, not a sum in the exponent field, so that NaN stays NaN whatever its bits.
#[inline(always)]
pub(crate) fn exp_nonpositive<L: Lanes>(lanes: L, x: L::V) -> L::V {
    const COEFFICIENTS: [f32; 4] = [4.189_793e-2, 1.666_763_6e-1, 4.999_915e-1, 9.999_997e-1];

    // With the exponent's bias the low bits are those of 2^n.
    let (shifted, r) = reduce(lanes, x, ROUND + 127.0);
    let mut p = lanes.splat(8.290_315e-3);
    for c in COEFFICIENTS {
        p = lanes.fma(p, r, lanes.splat(c));
    }
    p = lanes.fma(p, r, lanes.splat(1.0));
    let power = lanes.of_bits(lanes.shl(lanes.to_bits(shifted), 23));
    let result = lanes.mul(p, power);
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

/// From here on [`tanh`] goes by the exponential; below it the subtraction would cancel.
const TANH_BY_EXP_FROM: f32 = 0.625;

/// The hyperbolic tangent in every lane, within 2.5 units in the last place for every f32.
///
/// Odd to the bit, so `-0` for `-0`; never beyond 1 in magnitude, and exactly that from 9.02 up to
/// infinity; NaN for NaN.
///
/// From [`TANH_BY_EXP_FROM`] on `1 - 2 / (e^2|x| + 1)`, below it `|x| + |x|^3 p(x^2)` with the
/// coefficients of Cephes `tanhf` (S. L. Moshier); the sign is put back as a bit.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(lanes: L, x: L::V) -> L::V {
    const COEFFICIENTS: [f32; 4] = [2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];

    let bits = lanes.to_bits(x);
    let sign = lanes.and(bits, lanes.splat_i32(i32::MIN));
    let magnitude = lanes.abs(x);

    let square = lanes.mul(magnitude, magnitude);
    let mut p = lanes.splat(-5.704_988_7e-3);
    for c in COEFFICIENTS {
        p = lanes.fma(p, square, lanes.splat(c));
    }
    let near = lanes.fma(lanes.mul(magnitude, square), p, magnitude);

    let (one, two) = (lanes.splat(1.0), lanes.splat(2.0));
    let e = exp(lanes, lanes.add(magnitude, magnitude));
    let far = lanes.sub(one, lanes.div(two, lanes.add(e, one)));

    // A NaN is not below the bound, and `far` keeps it.
    let is_near = lanes.lt(magnitude, lanes.splat(TANH_BY_EXP_FROM));
    let result = lanes.select(is_near, near, far);
    lanes.of_bits(lanes.or(lanes.to_bits(result), sign))
}

/// The GELU of Hendrycks and Gimpel (2016) in its tanh form, `0.5 x (1 + tanh(w / 2))` with
/// `w = sqrt(8 / pi) (x + 0.044715 x^3)`, in every lane.
///
/// From -10 on within `4.5 + 7 |w| sigmoid(-w)` units in the last place: below 6.5 for positive x,
/// and for negative x an absolute error below 1.5e-7. Below -10 the result falls to zero, off by
/// less than 4e-38. NaN for NaN and for `-inf` (as in [`silu`]), `+inf` for `+inf`.
///
/// Computed as the equal `x sigmoid(w) = x / (1 + e^-w)`, in which nothing cancels.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Lanes>(lanes: L, x: L::V) -> L::V {
    const CUBIC: f32 = 0.044_715;
    /// `-sqrt(8 / pi)`.
    const FACTOR: f32 = -1.595_769_2;

    let one = lanes.splat(1.0);
    let polynomial = lanes.fma(lanes.mul(x, x), lanes.splat(CUBIC), one);
    let minus_w = lanes.mul(lanes.mul(x, lanes.splat(FACTOR)), polynomial);
    lanes.div(x, lanes.add(one, exp(lanes, minus_w)))
}

/// Soft-capped logits, `cap * tanh(x / cap)` in every lane; `cap` is finite and positive.
///
/// Within `4 cap 2^-24` of the exact value: 2.5 for [`tanh`], whose values above 1/2 have that
/// unit, less than 0.5 for the quotient (`y (1 - tanh(y)^2)` is at most 0.45), and 1 for the
/// product. NaN for NaN; an infinite logit becomes the cap.
#[inline(always)]
pub(crate) fn soft_cap<L: Lanes>(lanes: L, cap: f32, x: L::V) -> L::V {
    let cap = lanes.splat(cap);
    lanes.mul(cap, tanh(lanes, lanes.div(x, cap)))
}

#[cfg(test)]
mod tests;
