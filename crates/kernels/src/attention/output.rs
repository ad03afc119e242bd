//! The running output O of the online softmax: rescaled before each P·V, and normalised at the end.

use crate::lanes::Lanes;

/// `O = O alpha`; `out` is whole vectors.
#[inline(always)]
pub(crate) fn rescale<L: Lanes>(lanes: L, alpha: f32, out: &mut [f32]) {
    let factor = lanes.splat(alpha);
    for vector in out.chunks_exact_mut(L::N) {
        lanes.store(lanes.mul(lanes.load(vector), factor), vector);
    }
}

/// `to = from / sum`; `from` is `to` padded to whole vectors. A zero loses its sign, which may depend
/// on how many keys of weight zero were added.
#[inline(always)]
pub(crate) fn normalise<L: Lanes>(lanes: L, from: &[f32], sum: f32, to: &mut [f32]) {
    let divisor = lanes.splat(sum);
    for (to, from) in to.chunks_mut(L::N).zip(from.chunks_exact(L::N)) {
        let quotient = lanes.div(lanes.load(from), divisor);
        lanes.store_first(lanes.add(quotient, lanes.splat(0.0)), to);
    }
}
