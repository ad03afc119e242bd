//! One step of the online softmax of one row, shared by prefill, decode and scoring.

use std::ops::Range;

use crate::exp::exp_nonpositive;
use crate::kv::KEY_BLOCK;
use crate::lanes::Lanes;

/// Running state of a row's softmax.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    /// m, the largest logit so far; -inf before the first.
    pub(crate) max: f32,
    /// l, the sum of `exp(s - m)` so far.
    pub(crate) sum: f32,
}

impl Running {
    /// No key seen.
    pub(crate) const EMPTY: Running = Running { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Folds in the `visible` (at least 1) logits of a block, `[KEY_BLOCK]`, and replaces them by
    /// their weights `exp(s - m')`; what their first and last vector hold beside them becomes +0,
    /// other vectors are not touched. Returns the factor `exp(m - m')` of everything summed before
    /// (0 in the first block).
    ///
    /// The sum adds the vectors in ascending order, then their lanes. Weights are never -0, so
    /// hidden lanes, which would add +0, change no bit: the order does not depend on `visible`.
    #[inline(always)]
    pub(crate) fn fold<L: Lanes>(
        &mut self,
        lanes: L,
        logits: &mut [f32],
        visible: Range<usize>,
    ) -> f32 {
        assert!(visible.start < visible.end && visible.end <= KEY_BLOCK);
        assert!(logits.len() >= KEY_BLOCK);
        hide(lanes, logits, &visible);
        let vectors = visible.start / L::N * L::N..visible.end.next_multiple_of(L::N);
        let logits = &mut logits[vectors];
        let max = largest(lanes, logits).max(self.max);
        let splat = lanes.splat(max);
        let mut sums = lanes.splat(0.0);
        for vector in logits.chunks_exact_mut(L::N) {
            let weight = exp_nonpositive(lanes, lanes.sub(lanes.load(vector), splat));
            lanes.store(weight, vector);
            sums = lanes.add(sums, weight);
        }
        let sum = lanes.reduce_add(sums);
        let alpha = exp_scalar(lanes, self.max - max);
        *self = Running { max, sum: self.sum * alpha + sum };
        alpha
    }
}

/// Sets what the first and the last vector of the `visible` logits hold beside them to -inf.
#[inline(always)]
fn hide<L: Lanes>(lanes: L, logits: &mut [f32], visible: &Range<usize>) {
    let hidden = lanes.splat(f32::NEG_INFINITY);
    let (before, tail) = (visible.start % L::N, visible.end % L::N);
    if before > 0 {
        let first = &mut logits[visible.start - before..];
        lanes.store(lanes.select(lanes.first(before), hidden, lanes.load(first)), first);
    }
    if tail > 0 {
        let last = &mut logits[visible.end - tail..];
        lanes.store(lanes.select(lanes.first(tail), lanes.load(last), hidden), last);
    }
}

/// Largest of whole vectors of logits, passing over NaN (whose weight then is NaN).
#[inline(always)]
fn largest<L: Lanes>(lanes: L, logits: &[f32]) -> f32 {
    let mut largest = lanes.splat(f32::NEG_INFINITY);
    for vector in logits.chunks_exact(L::N) {
        largest = lanes.max(lanes.load(vector), largest);
    }
    lanes.reduce_max(largest)
}

/// The vector exp of one number, so that a lone factor has the same bits as a lane.
#[inline(always)]
fn exp_scalar<L: Lanes>(lanes: L, x: f32) -> f32 {
    lanes.first_lane(exp_nonpositive(lanes, lanes.splat(x)))
}
