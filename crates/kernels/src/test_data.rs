//! Inputs and comparisons shared by the tests of this crate.

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
    fn uniform_fills_its_range() {
        let values = Random::new(0).uniform(10_000, 2.0);
        assert!(values.iter().all(|x| (-2.0..2.0).contains(x)));
        assert!(values.iter().any(|&x| x < -1.99) && values.iter().any(|&x| x > 1.99));
    }
}
