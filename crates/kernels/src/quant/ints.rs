//! Weights as integers with scales, for products in integers: the formats whose elements are
//! `scale * q + offset` with the scale shared by 16 elements or more.

use super::runs::QuantFormat;
use crate::lanes::Lanes;
use crate::lanes::halves::Halves;

/// A format with integer elements of at most 8 bits with their sign, in blocks of one run or of as
/// many as there are lanes.
pub(crate) trait IntFormat<const BYTES: usize, const R: usize>:
    QuantFormat<BYTES, R>
{
    /// Decodes one block into `sink`: the scales first, then every run once, or both its halves,
    /// and the offsets, if the format has any. Implementations are `#[inline(always)]`.
    fn decode_ints<L: Halves>(lanes: L, block: &[u8; BYTES], sink: &mut impl IntSink<L>);
}

/// Takes the integers of a block. An element is worth the scale of its half run times its integer,
/// and the offset of its run more.
pub(crate) trait IntSink<L: Lanes> {
    /// Takes the scale of a block of one run, in all lanes.
    fn scale(&mut self, lanes: L, scale: L::V);
    /// Takes the scales of the runs' first halves and of their second ones, run `r` in lane `r`.
    fn scales(&mut self, lanes: L, scales: [L::V; 2]);
    /// Takes the 16 elements of each half of run `run`, whose halves have the same scale.
    fn put(&mut self, lanes: L, run: usize, ints: [L::I; 2]);
    /// Takes the 16 elements of one half of a run, `[run, half]`.
    fn put_half(&mut self, lanes: L, at: [usize; 2], ints: L::I);
    /// Takes the offset of a block of one run, in all lanes.
    fn offset(&mut self, lanes: L, offset: L::V);
    /// Takes the offsets of the runs, run `r` in lane `r`.
    fn offsets(&mut self, lanes: L, offsets: L::V);
}

/// The low nibbles of 16 zero-extended bytes.
#[inline(always)]
pub(super) fn low_nibbles<L: Halves>(lanes: L, bytes: L::I) -> L::I {
    lanes.and(bytes, lanes.splat_half(0x0f))
}

/// The high nibbles of 16 zero-extended bytes.
#[inline(always)]
pub(super) fn high_nibbles<L: Halves>(lanes: L, bytes: L::I) -> L::I {
    // What is shifted in from the next half lies above the nibble.
    lanes.and(lanes.shr(bytes, 4), lanes.splat_half(0x0f))
}

#[cfg(test)]
mod tests;
