//! Inputs and comparisons shared by the tests of this crate.

use crate::isa::{Isa, Tier};

/// A small deterministic generator (SplitMix64, Steele et al. 2014).
pub(crate) struct Random(u64);

impl Random {
    /// The generator of `seed`.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `n` values, uniform in `[-range, range)`.
    pub(crate) fn uniform(&mut self, n: usize, range: f32) -> Vec<f32> {
        let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (0..n).map(|_| unit(self.bits()) * range).collect()
    }
}

/// Whether `got` is within `bound` of `want`; NaN is close to nothing.
pub(crate) fn is_close(got: f32, want: f64, bound: f64) -> bool {
    (f64::from(got) - want).abs() <= bound
}

/// Panics unless [`is_close`].
#[track_caller]
pub(crate) fn assert_close(name: &str, got: f32, want: f64, bound: f64) {
    let error = (f64::from(got) - want).abs();
    assert!(is_close(got, want, bound), "{name}: {got} for {want}, off by {error}, bound {bound}");
}

/// The distance of `got` from `want` in units in the last place of an f32 of `want`'s size.
///
/// Infinite where either is not finite, unless `want` is beyond f32 and `got` is that infinity;
/// the unit of zero is the smallest subnormal.
pub(crate) fn ulps(got: f32, want: f64) -> f64 {
    if f64::from(got) == want || f64::from(got) == f64::from(want as f32) && got.is_infinite() {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    let exponent = (want.abs().max(f64::from(f32::MIN_POSITIVE))).log2().floor() as i32;
    (f64::from(got) - want).abs() / f64::powi(2.0, exponent - 23)
}

/// `start + a[0] b[0] + a[1] b[1] + ...`, one f32 chain in this order, with the roundings of the
/// tier: one per term where it has fused multiply-add, else two.
pub(crate) fn chain(isa: Isa, start: f32, terms: impl Iterator<Item = (f32, f32)>) -> f32 {
    let fused = isa.tier() != Tier::Portable;
    terms.fold(start, |sum, (a, b)| if fused { a.mul_add(b, sum) } else { a * b + sum })
}

/// The bits of each value, for comparisons that tell 0 from -0 and NaN from NaN.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

mod tests {
    use super::*;

    #[test]
    fn close_has_an_edge_on_both_sides() {
        assert!(is_close(1.5, 1.0, 0.5) && is_close(0.5, 1.0, 0.5));
        assert!(!is_close(1.500_001, 1.0, 0.5) && !is_close(0.499_999, 1.0, 0.5));
    }

    #[test]
    fn nan_and_infinity_are_close_to_nothing() {
        assert!(!is_close(f32::NAN, 0.0, 1e9));
        assert!(!is_close(f32::NAN, f64::NAN, 1e9));
        assert!(!is_close(f32::INFINITY, f64::INFINITY, 1e9));
    }

    #[test]
    #[should_panic(expected = "off by")]
    fn assert_close_fails() {
        assert_close("must fail", 1.0, 2.0, 0.5);
    }

    #[test]
    fn ulps_count_units_of_the_expected_value() {
        assert_eq!(ulps(1.0 + f32::EPSILON, 1.0), 1.0);
        assert_eq!(ulps(1.0 - f32::EPSILON, 1.0), 1.0);
        assert_eq!(ulps(4.0 + 8.0 * f32::EPSILON, 4.0), 2.0);
        assert_eq!(ulps(f32::INFINITY, 1e300), 0.0);
        assert_eq!(ulps(0.0, 0.0), 0.0);
    }

    #[test]
    fn ulps_are_many_where_the_value_is_wrong() {
        assert!(ulps(1e-30, 0.0) > 1e6, "non-zero for zero");
        assert!(ulps(0.0, 1e-30) > 1e6, "zero for non-zero");
        assert!(ulps(-1.0, 1.0) > 1e6, "wrong sign");
        assert_eq!(ulps(f32::NAN, 1.0), f64::INFINITY);
        assert_eq!(ulps(f32::INFINITY, 1.0), f64::INFINITY);
        assert_eq!(ulps(f32::NEG_INFINITY, 1e300), f64::INFINITY);
        assert_eq!(ulps(1.0, f64::NAN), f64::INFINITY);
    }

    #[test]
    fn a_chain_is_ordered_and_has_the_roundings_of_its_tier() {
        // (1 + e)^2 = 1 + 2e + e^2, and 2e has no room for e^2 beside 1: only fusing keeps it.
        let x = 1.0 + f32::EPSILON;
        for isa in Isa::available() {
            let got = chain(isa, -(1.0 + 2.0 * f32::EPSILON), [(x, x)].into_iter());
            let kept = if isa.tier() == Tier::Portable { 0.0 } else { f32::EPSILON.powi(2) };
            assert_eq!(got, kept, "{}", isa.name());
            let terms = [(1e8, 1.0), (1.0, 1.0), (-1e8, 1.0)];
            assert_eq!(chain(isa, 0.0, terms.into_iter()), 0.0, "the middle term is lost");
        }
    }

    #[test]
    fn bits_tell_zeros_apart() {
        assert_ne!(bits(&[0.0]), bits(&[-0.0]));
    }

    #[test]
    fn uniform_fills_its_range() {
        let values = Random::new(0).uniform(10_000, 2.0);
        assert!(values.iter().all(|x| (-2.0..2.0).contains(x)));
        assert!(values.iter().any(|&x| x < -1.99) && values.iter().any(|&x| x > 1.99));
    }
}
