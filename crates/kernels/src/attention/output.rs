//! The running output O of the online softmax: rescaled, extended by P·V, and normalised at the
//! end.

use crate::lanes::Lanes;
use crate::tile::{self, ROW_VECTORS, Rows};

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

/// Micro-kernel chains that continue in rows of O: `O += P V`.
pub(crate) struct Extend<'a> {
    /// O from the first row and column of the product.
    pub(crate) out: &'a mut [f32],
    /// Floats from one row of O to the next.
    pub(crate) stride: usize,
}

impl<L: Lanes> Rows<L> for Extend<'_> {
    #[inline(always)]
    fn start(&self, lanes: L, row: usize) -> [L::V; ROW_VECTORS] {
        let out = &self.out[row * self.stride..][..tile::width::<L>()];
        [lanes.load(out), lanes.load(&out[L::N..])]
    }

    #[inline(always)]
    fn finish(&mut self, lanes: L, row: usize, acc: [L::V; ROW_VECTORS]) {
        let out = &mut self.out[row * self.stride..][..tile::width::<L>()];
        lanes.store(acc[0], out);
        lanes.store(acc[1], &mut out[L::N..]);
    }
}
