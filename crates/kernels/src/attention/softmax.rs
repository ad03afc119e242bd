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

    /// Folds in the `visible` (at least 1) logits of a block as [`see`] and [`weigh`] do. Returns the
    /// factor `exp(m - m')` of everything summed before (0 in the first block).
    #[inline(always)]
    pub(crate) fn fold<L: Lanes>(
        &mut self,
        lanes: L,
        logits: &mut [f32],
        visible: Range<usize>,
    ) -> f32 {
        let max = see(lanes, logits, &visible).max(self.max);
        let sum = weigh(lanes, logits, &visible, max);
        // The vector exp, so that a lone factor has the same bits as a lane.
        let alpha = lanes.first_lane(exp_nonpositive(lanes, lanes.splat(self.max - max)));
        *self = Running { max, sum: self.sum * alpha + sum };
        alpha
    }
}

/// The largest of the `visible` (at least 1) logits of a block, `[KEY_BLOCK]`; what their first and
/// last vector hold beside them becomes -inf. NaN is passed over (its weight then is NaN).
#[inline(always)]
pub(crate) fn see<L: Lanes>(lanes: L, logits: &mut [f32], visible: &Range<usize>) -> f32 {
    hide(lanes, logits, visible);
    let mut largest = lanes.splat(f32::NEG_INFINITY);
    for vector in seen::<L>(logits, visible).chunks_exact(L::N) {
        largest = lanes.max(lanes.load(vector), largest);
    }
    lanes.reduce_max(largest)
}

/// Replaces the `visible` logits of a block, which [`see`] has seen, by their weights `exp(s - max)`;
/// what their first and last vector hold beside them becomes +0, other vectors are not touched.
/// Returns their sum.
///
/// The sum adds the vectors in ascending order, then their lanes. Weights are never -0, so hidden
/// lanes, which would add +0, change no bit: the order does not depend on `visible`.
#[inline(always)]
pub(crate) fn weigh<L: Lanes>(
    lanes: L,
    logits: &mut [f32],
    visible: &Range<usize>,
    max: f32,
) -> f32 {
    let max = lanes.splat(max);
    let mut sums = lanes.splat(0.0);
    for vector in seen::<L>(logits, visible).chunks_exact_mut(L::N) {
        let weight = exp_nonpositive(lanes, lanes.sub(lanes.load(vector), max));
        lanes.store(weight, vector);
        sums = lanes.add(sums, weight);
    }
    lanes.reduce_add(sums)
}

/// The vectors that have a visible logit.
#[inline(always)]
fn seen<'a, L: Lanes>(logits: &'a mut [f32], visible: &Range<usize>) -> &'a mut [f32] {
    assert!(visible.start < visible.end && visible.end <= KEY_BLOCK);
    &mut logits[visible.start / L::N * L::N..visible.end.next_multiple_of(L::N)]
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
