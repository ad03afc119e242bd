//! Rotary position embedding of one head.

use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

/// Which dimensions of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Dimensions `2i` and `2i + 1`: the original layout, and Llama's in GGUF files.
    Interleaved,
    /// Dimensions `i` and `i + R/2` of the R rotated ones: the layout of Hugging Face models.
    Half,
}

/// Rotates the first `R = 2 * cos.len()` dimensions of the head `x` `[D]` in place; the others
/// keep their values.
///
/// Pair `i` turns by the angle whose cosine and sine are `cos[i]` and `sin[i]`:
/// `(a, b) -> (a cos - b sin, b cos + a sin)`. Source: Su et al., "RoFormer" (2021), eq. (34).
/// The bits are the same on every tier and for both styles.
///
/// # Panics
/// If `cos` and `sin` differ in length or the head has fewer than `R` dimensions.
pub fn rotate(isa: Isa, style: RopeStyle, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    assert_eq!(cos.len(), sin.len(), "one sine for each cosine");
    let dims = 2 * cos.len();
    assert!(x.len() >= dims, "{dims} rotated dimensions of a head of {}", x.len());
    dispatch(isa, Rotate { style, x: &mut x[..dims], cos, sin });
}

struct Rotate<'a> {
    style: RopeStyle,
    x: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    // Plain Rust, which LLVM vectorises for the tier that it is inlined into, shuffles included.
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let Rotate { style, x, cos, sin } = self;
        let angles = cos.iter().zip(sin);
        match style {
            RopeStyle::Interleaved => {
                for (pair, (&cos, &sin)) in x.chunks_exact_mut(2).zip(angles) {
                    let (a, b) = (pair[0], pair[1]);
                    pair[0] = a * cos - b * sin;
                    pair[1] = b * cos + a * sin;
                }
            }
            RopeStyle::Half => {
                let (first, second) = x.split_at_mut(cos.len());
                for ((a, b), (&cos, &sin)) in first.iter_mut().zip(second).zip(angles) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::{Random, assert_close};

    fn angles(n: usize) -> (Vec<f32>, Vec<f32>) {
        let angle = |i: usize| 0.37f32 * i as f32 + 0.1;
        ((0..n).map(|i| angle(i).cos()).collect(), (0..n).map(|i| angle(i).sin()).collect())
    }

    /// The dimensions of pair `i`.
    fn pair(style: RopeStyle, i: usize, pairs: usize) -> (usize, usize) {
        match style {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::Half => (i, i + pairs),
        }
    }

    #[test]
    fn turns_each_pair_and_leaves_the_rest() {
        let mut random = Random::new(2);
        for style in [RopeStyle::Interleaved, RopeStyle::Half] {
            for (head_dim, pairs) in
                [(0, 0), (2, 0), (2, 1), (16, 7), (64, 32), (80, 20), (130, 64)]
            {
                let (cos, sin) = angles(pairs);
                let before = &random.uniform(head_dim + 1, 2.0)[1..];
                let mut on_first_tier: Option<Vec<f32>> = None;
                for isa in Isa::available() {
                    let mut after = before.to_vec();
                    rotate(isa, style, &mut after, &cos, &sin);
                    for i in 0..pairs {
                        let (p, q) = pair(style, i, pairs);
                        let (a, b) = (f64::from(before[p]), f64::from(before[q]));
                        let (cos, sin) = (f64::from(cos[i]), f64::from(sin[i]));
                        // Two products and a sum, each within half an ulp of at most 4.
                        let bound = 3.0 * 2.0 * f64::from(f32::EPSILON);
                        assert_close("first of a pair", after[p], a * cos - b * sin, bound);
                        assert_close("second of a pair", after[q], b * cos + a * sin, bound);
                    }
                    assert_eq!(after[2 * pairs..], before[2 * pairs..], "unrotated dimensions");
                    let first = on_first_tier.get_or_insert_with(|| after.clone());
                    assert_eq!(*first, after, "{} and the portable tier", isa.name());
                }
            }
        }
    }

    #[test]
    fn styles_differ_only_in_where_a_pair_lies() {
        let pairs = 24;
        let (cos, sin) = angles(pairs);
        let half = Random::new(3).uniform(2 * pairs, 2.0);
        let mut interleaved = vec![0.0; 2 * pairs];
        for i in 0..pairs {
            interleaved[2 * i] = half[i];
            interleaved[2 * i + 1] = half[i + pairs];
        }
        for isa in Isa::available() {
            let (mut half, mut interleaved) = (half.clone(), interleaved.clone());
            rotate(isa, RopeStyle::Half, &mut half, &cos, &sin);
            rotate(isa, RopeStyle::Interleaved, &mut interleaved, &cos, &sin);
            for i in 0..pairs {
                assert_eq!(interleaved[2 * i].to_bits(), half[i].to_bits());
                assert_eq!(interleaved[2 * i + 1].to_bits(), half[i + pairs].to_bits());
            }
        }
    }

    #[test]
    #[should_panic(expected = "rotated dimensions of a head")]
    fn a_head_shorter_than_the_rotation_is_refused() {
        rotate(Isa::detect(), RopeStyle::Half, &mut [0.0; 6], &[1.0; 4], &[0.0; 4]);
    }
}
