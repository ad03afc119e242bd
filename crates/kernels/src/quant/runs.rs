//! What all quantised formats share: runs of 32 elements and the sinks that take them.

use crate::lanes::Lanes;

/// Elements of a run. Every block is a whole number of runs.
pub(crate) const RUN: usize = 32;

/// A quantised format: blocks of `BYTES` bytes that decode to `R` runs.
///
/// The lengths are parameters, not associated constants, so that they may be array lengths; callers
/// leave them to inference. The format is a type and not a function passed as a value, because the
/// latter may end up called, compiled without the instructions of the tier.
pub(crate) trait QuantFormat<const BYTES: usize, const R: usize> {
    /// Decodes one block into `sink`, each vector once; vectors with the same `i` come in ascending
    /// order of their runs. Implementations are `#[inline(always)]`.
    fn decode<L: Lanes>(lanes: L, block: &[u8; BYTES], sink: &mut impl Sink<L>);
}

/// Takes the weights of a block.
pub(crate) trait Sink<L: Lanes> {
    /// Takes elements `i * N..(i + 1) * N` of run `run` of the block.
    fn put(&mut self, lanes: L, run: usize, i: usize, weights: L::V);
}

/// Decodes the blocks in `bytes` to `out`; the numbers of blocks agree.
#[inline(always)]
pub(super) fn decode<F, L, const BYTES: usize, const R: usize>(
    lanes: L,
    bytes: &[u8],
    out: &mut [f32],
) where
    F: QuantFormat<BYTES, R>,
    L: Lanes,
{
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (runs, _) = out.as_chunks_mut::<RUN>();
    let (outs, _) = runs.as_chunks_mut::<R>();
    for (block, out) in blocks.iter().zip(outs) {
        F::decode(lanes, block, &mut Store(out));
    }
}

/// Stores the runs of one block.
struct Store<'a, const R: usize>(&'a mut [[f32; RUN]; R]);

impl<L: Lanes, const R: usize> Sink<L> for Store<'_, R> {
    #[inline(always)]
    fn put(&mut self, lanes: L, run: usize, i: usize, weights: L::V) {
        lanes.store(weights, &mut self.0[run][i * L::N..]);
    }
}
