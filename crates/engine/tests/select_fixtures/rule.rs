//! Comparison rules. Each has tests that it fails for.

use crate::fixture::{Case, Expected, KeptHead};

/// Unit roundoff of f32.
const U: f64 = 1.0 / (1 << 24) as f64;

/// Relative error that the fixtures allow in the outlier case.
const OUTLIER_TOLERANCE: f64 = 2e-3;

/// The fixtures' test rule: equal, or of equal length and different only inside
/// the ambiguous positions. With `strict`, a tie that exists in exact arithmetic
/// must be broken as the order says.
pub fn set_error(got: &[u32], want: &KeptHead, strict: bool) -> Option<String> {
    if got == want.kept {
        return None;
    }
    let only = |a: &[u32], b: &[u32]| -> Vec<u32> {
        a.iter().copied().filter(|position| !b.contains(position)).collect()
    };
    let (extra, missing) = (only(got, &want.kept), only(&want.kept, got));
    let swapped = [extra.clone(), missing.clone()].concat();
    let ascending = got.windows(2).all(|pair| pair[0] < pair[1]);
    let allowed = got.len() == want.kept.len()
        && ascending
        && swapped.iter().all(|position| want.ambiguous.contains(position));
    if allowed && !(strict && want.exact_tie) {
        return None;
    }
    Some(format!("{} kept of {}, extra {extra:?}, missing {missing:?}", got.len(), want.kept.len()))
}

/// Whether exact ties must be broken by the order. Equal reduced scores stay
/// equal under maximum pooling, in f32 as in f64. Averages, or means after
/// pooling, add equal numbers in another order and need not; and in the outlier
/// case probabilities that differ in f64 underflow to equal ones in f32.
pub fn ties_are_strict(case: &Case, expected: &Expected) -> bool {
    let ids = ["snapkv_grouped_mean_max", "snapkv_grouped_max_max", "streaming"];
    ids.iter().any(|id| expected.id.starts_with(id)) && !case.name.starts_with("c_")
}

/// Largest relative error of an f32 score.
///
/// A logit is a sum of D products times a scale: its error is at most (D + 2) u
/// times the sum of their magnitudes. The weight `exp(l - M) / Z` sees it twice
/// as strongly (once in l, once in M and Z) and adds a few roundings (10 u for
/// exp, the difference and the division); the mean over W rows, the reduction
/// over G heads and the pooling over k columns add one each per term. Summing Z
/// over S keys adds at most S u, spread over blocks. Both sides of a comparison
/// may be f32.
pub fn score_tolerance(case: &Case, kernel: usize) -> f64 {
    let logit = (case.head_dim + 2) as f64 * U * case.logit_magnitude();
    let terms = 10 + case.window + case.dims.group + kernel + case.dims.n_tokens;
    (2.0 * (2.0 * logit + terms as f64 * U)).min(OUTLIER_TOLERANCE)
}

/// Compares numbers: relative `tolerance`, or `floor` where `want` is tiny.
pub fn number_error(got: f64, want: f64, tolerance: f64, floor: f64) -> Option<String> {
    let error = (got - want).abs();
    // Not `>`: a NaN must not pass.
    let within = error <= tolerance * want.abs() || error <= floor;
    (!within).then(|| format!("{got:e} instead of {want:e}, error {error:e}"))
}

fn head(kept: &[u32], ambiguous: &[u32], exact_tie: bool) -> KeptHead {
    KeptHead { kept: kept.to_vec(), ambiguous: ambiguous.to_vec(), exact_tie }
}

#[test]
fn equal_sets_pass() {
    assert_eq!(set_error(&[1, 2, 9], &head(&[1, 2, 9], &[], false), true), None);
}

#[test]
fn swaps_inside_the_ambiguous_positions_pass() {
    let want = head(&[1, 2, 9], &[2, 5], false);
    assert_eq!(set_error(&[1, 5, 9], &want, true), None);
    let tie = head(&[1, 2, 9], &[2, 5], true);
    assert_eq!(set_error(&[1, 5, 9], &tie, false), None);
}

#[test]
fn any_other_difference_fails() {
    let want = head(&[1, 2, 9], &[2, 5], false);
    for got in [&[1, 2][..], &[1, 2, 5, 9], &[1, 5], &[1, 3, 9], &[0, 2, 9], &[9, 2, 1], &[]] {
        assert!(set_error(got, &want, false).is_some(), "{got:?}");
    }
    let unambiguous = head(&[1, 2, 9], &[], false);
    assert!(set_error(&[1, 5, 9], &unambiguous, false).is_some());
    let tie = head(&[1, 2, 9], &[2, 5], true);
    assert!(set_error(&[1, 5, 9], &tie, true).is_some());
}

#[test]
fn a_duplicate_does_not_stand_for_a_missing_position() {
    let want = head(&[1, 2, 9], &[2, 5, 9], false);
    assert!(set_error(&[1, 2, 2], &want, false).is_some());
    assert!(set_error(&[1, 5, 5], &want, false).is_some());
}

#[test]
fn numbers_out_of_tolerance_fail() {
    assert_eq!(number_error(1.0 + 1e-6, 1.0, 1e-5, 0.0), None);
    assert_eq!(number_error(1e-38, 0.0, 1e-5, 1e-37), None);
    for got in [1.0 + 2e-5, 0.0, f64::NAN, f64::INFINITY] {
        assert!(number_error(got, 1.0, 1e-5, 1e-37).is_some(), "{got}");
    }
}
