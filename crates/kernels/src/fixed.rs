//! Block fixed point: the factors of prefill's products where a CPU multiplies pairs of 16-bit
//! integers faster than floats.
//!
//! A run of up to [`BLOCK`] consecutive numbers along K is held as integers times one f32 scale,
//! `x[i] = scale * q[i]` with `|q| <= Q` and `scale = max |x| (1 / Q)`; Q is 8191 for activations and
//! 4095 for weights. A block's products then add up exactly in 32 bits
//! (`64 * 8191 * 4095 < 2^31`), and a chain of K has one f32 multiply-add per block. An element is
//! off by at most half a step, `max |x| / (2 Q)`: against bf16, which is off by up to `|x| / 512`,
//! 1/32 (activations) and 1/16 (weights) for the largest elements of a block, and less exact only
//! for elements below 1/32 and 1/16 of the largest.
//!
//! A block whose largest magnitude is below 2^-100 counts as zeros. A block with an infinity or NaN
//! has the scale NaN, so that every product with it is NaN.
//!
//! Element `i` of a block shares a 32-bit word with element `i + half`, where `half` is half the
//! block's length, rounded up: the lower 16 bits are the first one's. Words and scales are kept in
//! buffers of f32, whose bits they are.

use crate::exp::ROUND;
use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::tile;

/// Elements of a block; the last block of a row may be shorter.
pub const BLOCK: usize = 64;

/// Largest integer of an activation.
pub(crate) const Q_ROWS: f32 = 8191.0;

/// Largest integer of a weight.
pub(crate) const Q_WEIGHTS: f32 = 4095.0;

/// Blocks below it count as zeros: their scale's reciprocal could overflow.
const ZERO_BELOW: f32 = 7.888_609e-31;

/// Words of a block of `len` elements, without its scale.
pub(crate) const fn words(len: usize) -> usize {
    len.div_ceil(2)
}

/// Words of a row of `k` elements with its scales: `[scale, words]` per block. At most `k` for
/// every k but 1.
pub(crate) const fn row_len(k: usize) -> usize {
    k / BLOCK * (1 + words(BLOCK)) + if k.is_multiple_of(BLOCK) { 0 } else { 1 + words(k % BLOCK) }
}

/// Replaces rows of activations by their fixed-point form, which takes less room: row r, `k` floats
/// from `r * stride` on, becomes a row for [`crate::gemm::Factors::Fixed`] at the same place. What
/// lies behind a row's end keeps its values. The bits of a row depend on that row only.
///
/// # Panics
/// If a row lies outside `data`, or `k` is 1 and `stride` too.
pub fn fix_rows(isa: Isa, data: &mut [f32], stride: usize, k: usize) {
    if k == 0 {
        return;
    }
    assert!(row_len(k) <= stride && k <= stride, "rows of {k} with stride {stride}");
    dispatch(isa, FixRows { data, stride, k });
}

struct FixRows<'a> {
    data: &'a mut [f32],
    stride: usize,
    k: usize,
}

impl Kernel for FixRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let FixRows { data, stride, k } = self;
        for row in data.chunks_mut(stride) {
            fix_row(lanes, row, k);
        }
    }
}

/// Replaces the first `k` floats of a row by their fixed-point form.
#[inline(always)]
pub(crate) fn fix_row<L: Lanes>(lanes: L, row: &mut [f32], k: usize) {
    assert!(row.len() >= k.max(row_len(k)), "a row of {} for {k}", row.len());
    let mut block = [0.0; BLOCK];
    // A block is copied before its words overwrite it: they end before it does.
    for (index, from) in (0..k).step_by(BLOCK).enumerate() {
        let len = BLOCK.min(k - from);
        let half = words(len);
        block.fill(0.0);
        block[..half].copy_from_slice(&row[from..from + half]);
        block[BLOCK / 2..][..len - half].copy_from_slice(&row[from + half..from + len]);
        let mut vectors = [lanes.splat(0.0); MAX_VECTORS];
        for (vector, from) in vectors.iter_mut().zip(block.chunks_exact(L::N)) {
            *vector = lanes.load(from);
        }
        fix_row_block(lanes, &vectors, &mut row[index * (1 + words(BLOCK))..][..1 + half]);
    }
}

/// Vectors of a block on the tier with the fewest lanes.
pub(crate) const MAX_VECTORS: usize = BLOCK / 8;

/// Writes `[scale, words]` of a block of activations, given as its first `BLOCK / N` vectors: its
/// halves begin at 0 and `BLOCK / 2`.
#[inline(always)]
pub(crate) fn fix_row_block<L: Lanes>(lanes: L, block: &[L::V; MAX_VECTORS], fixed: &mut [f32]) {
    const { assert!(BLOCK / L::N <= MAX_VECTORS) };
    let mut largest = Largest::new(lanes);
    for vector in block.iter().take(BLOCK / L::N) {
        largest.see(lanes, *vector);
    }
    // Every lane gets the largest of all.
    let most = lanes.splat(lanes.reduce_max(largest.magnitude(lanes)));
    let Scale { scale, inverse } = scale_of(lanes, most, Q_ROWS);
    let half = BLOCK / 2 / L::N;
    let (scale_word, words) = fixed.split_at_mut(1);
    scale_word[0] = lanes.first_lane(scale);
    for i in 0..half {
        let (low, high) = (lanes.mul(block[i], inverse), lanes.mul(block[half + i], inverse));
        let pair = lanes.of_bits(pair(lanes, low, high));
        match words.len() == BLOCK / 2 {
            true => lanes.store(pair, &mut words[i * L::N..]),
            // A short block's words end somewhere.
            false => lanes.store_first(pair, words.get_mut(i * L::N..).unwrap_or_default()),
        }
    }
}

/// What decides the scale of the blocks that lie in the lanes.
pub(crate) struct Largest<L: Lanes> {
    /// Bits of the largest magnitude. As integers they are in the order of the magnitudes, with
    /// infinity and then NaN above every number.
    bits: L::I,
}

/// Scales of the blocks that lie in the lanes.
pub(crate) struct Scale<L: Lanes> {
    /// What an integer is worth.
    pub(crate) scale: L::V,
    /// Its reciprocal; zero where the block counts as zeros or is not finite.
    pub(crate) inverse: L::V,
}

impl<L: Lanes> Largest<L> {
    #[inline(always)]
    pub(crate) fn new(lanes: L) -> Self {
        Largest { bits: lanes.splat_i32(0) }
    }

    #[inline(always)]
    pub(crate) fn see(&mut self, lanes: L, x: L::V) {
        self.bits = lanes.max_i32(self.bits, lanes.to_bits(lanes.abs(x)));
    }

    /// The largest magnitude; infinity where something was not finite.
    #[inline(always)]
    pub(crate) fn magnitude(&self, lanes: L) -> L::V {
        let magnitude = lanes.of_bits(self.bits);
        let infinity = lanes.splat(f32::INFINITY);
        lanes.select(lanes.lt(magnitude, infinity), magnitude, infinity)
    }

    /// The scale for integers up to `q`.
    #[inline(always)]
    pub(crate) fn scale(&self, lanes: L, q: f32) -> Scale<L> {
        scale_of(lanes, self.magnitude(lanes), q)
    }
}

/// The scale of blocks with these largest magnitudes, for integers up to `q`; NaN for infinity.
#[inline(always)]
pub(crate) fn scale_of<L: Lanes>(lanes: L, magnitude: L::V, q: f32) -> Scale<L> {
    let zero = lanes.splat(0.0);
    let is_zero = lanes.lt(magnitude, lanes.splat(ZERO_BELOW));
    let scale = lanes.select(is_zero, zero, lanes.mul(magnitude, lanes.splat(1.0 / q)));
    let inverse = lanes.select(is_zero, zero, lanes.div(lanes.splat(q), magnitude));
    Scale { scale: lanes.add(scale, lanes.mul(magnitude, zero)), inverse }
}

/// The words of two vectors of elements over their scales, rounded to nearest, halves to even.
#[inline(always)]
pub(crate) fn pair<L: Lanes>(lanes: L, low: L::V, high: L::V) -> L::I {
    // The quotient was rounded before, on every tier, so that all have the same integers.
    let integer = |x| lanes.to_bits(lanes.add(x, lanes.splat(ROUND)));
    let low = lanes.and(integer(low), lanes.splat_i32(0xffff));
    lanes.or(low, lanes.shl(integer(high), 16))
}

/// Writes the blocks of N columns, `[k][N]`, as the right operand of a product: each row of words
/// [`tile::width`] words behind the last.
#[inline(always)]
pub(crate) fn fix_columns<L: Lanes>(lanes: L, columns: &[f32], panel: &mut [f32]) {
    let width = tile::width::<L>();
    for (index, block) in columns.chunks(BLOCK * L::N).enumerate() {
        let mut largest = Largest::new(lanes);
        for row in block.chunks_exact(L::N) {
            largest.see(lanes, lanes.load(row));
        }
        let Scale { scale, inverse } = largest.scale(lanes, Q_WEIGHTS);
        let panel = &mut panel[row_len(index * BLOCK) * width..];
        lanes.store(scale, panel);
        let words = words(block.len() / L::N);
        let (low, high) = block.split_at(words * L::N);
        let rows = panel[width..].chunks_mut(width).zip(low.chunks_exact(L::N));
        for (word, (to, low)) in rows.enumerate() {
            // The last word of an odd block has one element.
            let high = match high.get(word * L::N..(word + 1) * L::N) {
                Some(high) => lanes.load(high),
                None => lanes.splat(0.0),
            };
            let low = lanes.mul(lanes.load(low), inverse);
            let pair = pair(lanes, low, lanes.mul(high, inverse));
            lanes.store(lanes.of_bits(pair), to);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
