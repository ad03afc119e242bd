//! Root mean square normalisation.

use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

/// `out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]` for one row `[d_model]`.
///
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), with the `eps` of the
/// Llama implementations.
///
/// # Panics
/// If the three slices differ in length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), weight.len(), "weights of a row");
    assert_eq!(x.len(), out.len(), "normalised elements of a row");
    dispatch(isa, RmsNorm { x, weight, eps, out });
}

/// [`rms_norm`] of `x` onto itself, with the same bits.
///
/// # Panics
/// If the two slices differ in length.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "weights of a row");
    dispatch(isa, RmsNormInPlace { x, weight, eps });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

/// Running sums per lane: enough to hide the latency of the addition.
const SUMS: usize = 4;

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let RmsNorm { x, weight, eps, out } = self;
        let scale = scale_of(lanes, x, eps);
        // Plain Rust: two roundings per element on every tier, and LLVM vectorises it.
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

struct RmsNormInPlace<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNormInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let RmsNormInPlace { x, weight, eps } = self;
        let scale = scale_of(lanes, x, eps);
        for (x, weight) in x.iter_mut().zip(weight) {
            *x = *x * scale * weight;
        }
    }
}

/// What a row is multiplied by.
#[inline(always)]
fn scale_of<L: Lanes>(lanes: L, x: &[f32], eps: f32) -> f32 {
    let mean = sum_of_squares(lanes, x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// `sum of x[i]^2`, in `SUMS * N` chains.
#[inline(always)]
fn sum_of_squares<L: Lanes>(lanes: L, x: &[f32]) -> f32 {
    let mut sums = [lanes.splat(0.0); SUMS];
    let mut blocks = x.chunks_exact(SUMS * L::N);
    for block in blocks.by_ref() {
        for (s, sum) in sums.iter_mut().enumerate() {
            let v = lanes.load(&block[s * L::N..]);
            *sum = lanes.fma(v, v, *sum);
        }
    }
    let tail = blocks.remainder();
    for (s, sum) in sums.iter_mut().enumerate() {
        let v = lanes.load_first(tail.get(s * L::N..).unwrap_or_default());
        *sum = lanes.fma(v, v, *sum);
    }
    let [a, b, c, d] = sums;
    lanes.reduce_add(lanes.add(lanes.add(a, b), lanes.add(c, d)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Random, assert_close, bits, is_close};

    /// The definition in f64.
    fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
        x.iter().zip(weight).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)).collect()
    }

    #[test]
    fn equals_the_definition_at_every_tail_length() {
        let mut random = Random::new(1);
        for isa in Isa::available() {
            for n in (0..=130).chain([896, 897, 4096]) {
                // One element more, so that the slices begin unaligned.
                let x = &random.uniform(n + 1, 3.0)[1..];
                let weight = &random.uniform(n + 1, 2.0)[1..];
                let mut out = vec![f32::NAN; n + 1];
                rms_norm(isa, x, weight, 1e-5, &mut out[1..]);
                // The sum of squares has only positive terms: its relative error is at most n
                // roundings, half of which reaches the root; five roundings follow.
                let relative = (n as f64 / 2.0 + 5.0) * f64::from(f32::EPSILON);
                for (i, (&got, want)) in out[1..].iter().zip(reference(x, weight, 1e-5)).enumerate()
                {
                    let name = format!("{} n {n} element {i}", isa.name());
                    assert_close(&name, got, want, relative * want.abs());
                }
                let mut in_place = x.to_vec();
                rms_norm_in_place(isa, &mut in_place, weight, 1e-5);
                assert_eq!(bits(&in_place), bits(&out[1..]), "{} n {n} in place", isa.name());
            }
        }
    }

    #[test]
    fn a_wrong_element_is_found() {
        assert!(!is_close(1.001, 1.0, 1e-4));
        assert!(!is_close(f32::NAN, 1.0, 1e-4));
    }

    #[test]
    fn a_nan_spoils_the_whole_row() {
        for isa in Isa::available() {
            for n in [1, 7, 8, 33, 64] {
                let mut x = vec![1.0; n];
                x[n - 1] = f32::NAN;
                let mut out = vec![0.0; n];
                rms_norm(isa, &x, &vec![1.0; n], 1e-5, &mut out);
                assert!(out.iter().all(|x| x.is_nan()), "{} n {n}", isa.name());
            }
        }
    }
}
