//! Nibbles that index a table of sixteen values, as in `IQ4_NL`, `IQ4_XS` and `MXFP4`.

use crate::lanes::Lanes;

use super::runs::{RUN, Sink};

/// The weights of a run: a table entry times the run's scale each.
pub(super) struct NibbleRun<'a, L: Lanes> {
    /// The low nibble of byte j is element j, the high nibble element j + 16.
    pub(super) nibbles: &'a [u8; RUN / 2],
    /// Values of the sixteen codes.
    pub(super) table: &'a [i8; 16],
    /// The scale, in every lane.
    pub(super) scale: L::V,
}

impl<L: Lanes> NibbleRun<'_, L> {
    /// Decodes to run `run` of `sink`.
    #[inline(always)]
    pub(super) fn decode(self, lanes: L, run: usize, sink: &mut impl Sink<L>) {
        let half = self.nibbles.len() / L::N;
        for i in 0..half {
            let (low, high) = lanes.lookup_nibbles(self.table, &self.nibbles[i * L::N..]);
            sink.put(lanes, run, i, lanes.mul(lanes.to_f32(low), self.scale));
            sink.put(lanes, run, half + i, lanes.mul(lanes.to_f32(high), self.scale));
        }
    }
}
