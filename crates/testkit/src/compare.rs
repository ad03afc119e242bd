//! Comparators. They say what differs and where, and nothing that is not finite passes for close.

/// Panics unless both slices hold the same bits: 0.0 and -0.0 differ, a NaN equals itself. The
/// message names `what`, the first difference and how many there are.
#[track_caller]
pub fn assert_bits_eq(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(
        actual.len(),
        expected.len(),
        "{what}: {} values instead of {}",
        actual.len(),
        expected.len()
    );
    let differs = |(_, (a, e)): &(usize, (&f32, &f32))| a.to_bits() != e.to_bits();
    let mut differences = actual.iter().zip(expected).enumerate().filter(differs);
    if let Some((i, (a, e))) = differences.next() {
        let n = 1 + differences.count();
        panic!(
            "{what}: {n} of {} values differ, first at [{i}]: {a:e} ({:#010x}) instead of {e:e} ({:#010x}); \
             largest difference {:e}",
            actual.len(),
            a.to_bits(),
            e.to_bits(),
            max_abs_diff(actual, expected),
        );
    }
}

/// Largest |a - e|; infinite if either side has a value that is not finite.
///
/// # Panics
///
/// If the lengths differ.
#[track_caller]
pub fn max_abs_diff(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len(), "slices of different lengths");
    let distance = |(&a, &e): (&f32, &f32)| {
        // A maximum over floats would skip a NaN.
        if a.is_finite() && e.is_finite() {
            (f64::from(a) - f64::from(e)).abs()
        } else {
            f64::INFINITY
        }
    };
    actual.iter().zip(expected).map(distance).fold(0.0, f64::max)
}

/// ||a - e|| / ||e|| in the Euclidean norm, accumulated in f64. 0 if both are zero, infinite if only
/// `expected` is or if either side has a value that is not finite.
///
/// # Panics
///
/// If the lengths differ.
#[track_caller]
pub fn rel_l2(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len(), "slices of different lengths");
    let (mut difference, mut norm) = (0f64, 0f64);
    for (&a, &e) in actual.iter().zip(expected) {
        let (a, e) = (f64::from(a), f64::from(e));
        if !(a.is_finite() && e.is_finite()) {
            return f64::INFINITY;
        }
        difference += (a - e) * (a - e);
        norm += e * e;
    }
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f32; 4] = [1.0, -2.0, 0.5, 0.0];

    #[test]
    fn equal_slices_pass() {
        assert_bits_eq(&X, &X, "x");
        assert_bits_eq(&[f32::NAN], &[f32::NAN], "nan");
        assert_bits_eq(&[], &[], "nothing");
        assert_eq!(max_abs_diff(&X, &X), 0.0);
        assert_eq!(rel_l2(&X, &X), 0.0);
        assert_eq!(rel_l2(&[0.0; 3], &[0.0; 3]), 0.0);
    }

    #[test]
    #[should_panic(
        expected = "hidden: 2 of 4 values differ, first at [1]: -2.0000002e0 (0xc0000001) instead of -2e0"
    )]
    fn one_bit_is_a_difference() {
        assert_bits_eq(&[1.0, (-2.0f32).next_down(), 0.5, 1.0], &X, "hidden");
    }

    #[test]
    #[should_panic(expected = "first at [0]: -0e0")]
    fn negative_zero_is_a_difference() {
        assert_bits_eq(&[-0.0], &[0.0], "zero");
    }

    #[test]
    #[should_panic(expected = "logits: 3 values instead of 4")]
    fn bits_of_another_length_fail() {
        assert_bits_eq(&X[..3], &X, "logits");
    }

    #[test]
    fn distances_are_measured() {
        let y = [1.0, -2.0, 0.75, 0.0];
        assert_eq!(max_abs_diff(&y, &X), 0.25);
        assert!((rel_l2(&y, &X) - 0.25 / 5.25f64.sqrt()).abs() < 1e-15);
        assert_eq!(rel_l2(&[1.0], &[0.0]), f64::INFINITY);
    }

    #[test]
    fn what_is_not_finite_is_infinitely_far() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (a, e) in
                [([bad, 0.0], [0.0, 0.0]), ([0.0, 0.0], [0.0, bad]), ([bad, 1.0], [bad, 1.0])]
            {
                assert_eq!(max_abs_diff(&a, &e), f64::INFINITY);
                assert_eq!(rel_l2(&a, &e), f64::INFINITY);
            }
        }
    }

    #[test]
    #[should_panic(expected = "slices of different lengths")]
    fn max_abs_diff_of_different_lengths_fails() {
        max_abs_diff(&X[..1], &X);
    }

    #[test]
    #[should_panic(expected = "slices of different lengths")]
    fn rel_l2_of_different_lengths_fails() {
        rel_l2(&X, &X[..1]);
    }
}
