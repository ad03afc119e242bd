//! Matrix-vector products in integers: x in block fixed point, weights as they are stored.
//!
//! A run of 32 elements of x is held as 16-bit integers times one f32 scale, `x[i] = scale * q[i]`
//! with `|q| <= 32767` and `scale = max |x| / 32767`. Weights of [`has_ints`] are integers of at
//! most 8 bits times a scale of their own, so the products of four elements add up exactly in 32
//! bits; they become f32 there, and the rest of a row is a chain of f32 multiply-adds per lane.
//!
//! Order of one output: the 16 elements of half h of run r are added in lane `j / 2 mod 8` of their
//! vector to sum `2 * (r mod 2) + h` of four; offsets times the sums of their runs form a sum of
//! their own. Sums are added as (0 + 1) + (2 + 3), lanes by halves, and the offsets' sum last. An
//! output's bits depend on its weight row, x and the tier, and on nothing else.
//!
//! Error: x is off by at most half a step of its run, `max |x| / 65534`, and the output by the sum
//! of that times the weights' magnitudes, beside f32 sums as in [`super`]: with `g = gamma(K / 32 +
//! 12)` at most `g` times the sum over runs of `(|scale q| + |offset|) . |x|`.
//!
//! A run with an infinity or NaN has the scale NaN, and so has every output.

use std::ops::Range;

use crate::fixed::{Largest, Scale};
use crate::isa::Isa;
use crate::lanes::Lanes;
use crate::lanes::halves::{HALVES, Halves, HalvesKernel, dispatch_halves};
use crate::quant::ints::{IntFormat, IntSink};
use crate::quant::q4_0::Q4_0;
use crate::quant::q4_1::Q4_1;
use crate::quant::q4_k::Q4K;
use crate::quant::q5_0::Q5_0;
use crate::quant::q5_1::Q5_1;
use crate::quant::q5_k::Q5K;
use crate::quant::q6_k::Q6K;
use crate::quant::q8_0::Q8_0;
use crate::quant::runs::RUN;
use crate::quant::{BlockType, WeightView};

/// Largest integer of x.
const Q: f32 = 32767.0;

/// Words of a run: two integers each.
const WORDS: usize = RUN / 2;

/// Whether [`matvec_fixed`] takes weights of this type.
pub fn has_ints(block: BlockType) -> bool {
    use BlockType::*;
    matches!(block, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4K | Q5K | Q6K)
}

/// Floats that hold a vector of `k` elements, whole runs of 32, in fixed point.
pub const fn fixed_len(k: usize) -> usize {
    k / RUN * (2 + WORDS)
}

/// x in fixed point, in buffers of f32 whose bits the words are: of all runs the scale, then of all
/// the sum of their elements, then their words, element `2 i` in the lower 16 bits of word `i`.
#[derive(Clone, Copy)]
struct Fixed<'a> {
    scales: &'a [f32],
    sums: &'a [f32],
    words: &'a [[f32; WORDS]],
}

impl<'a> Fixed<'a> {
    fn of(k: usize, floats: &'a [f32]) -> Fixed<'a> {
        let runs = k / RUN;
        let (scales, rest) = floats.split_at(runs);
        let (sums, words) = rest.split_at(runs);
        Fixed { scales, sums, words: words.as_chunks().0 }
    }
}

/// Brings `x`, `[K]`, to fixed point, `fixed_len(K)` floats.
///
/// # Panics
/// If K is no whole number of runs of 32, or `fixed` has another length.
pub fn fix_vector(isa: Isa, x: &[f32], fixed: &mut [f32]) {
    assert!(x.len().is_multiple_of(RUN), "{} elements are no whole runs of {RUN}", x.len());
    assert_eq!(fixed.len(), fixed_len(x.len()), "floats for {} elements", x.len());
    dispatch_halves(isa, Fix { x, fixed });
}

struct Fix<'a> {
    x: &'a [f32],
    fixed: &'a mut [f32],
}

impl HalvesKernel for Fix<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Halves>(self, lanes: L) {
        let (runs, _) = self.x.as_chunks::<RUN>();
        let (scales, rest) = self.fixed.split_at_mut(runs.len());
        let (sums, words) = rest.split_at_mut(runs.len());
        let (words, _) = words.as_chunks_mut::<WORDS>();
        let ones = lanes.splat_half(1);
        for (((run, words), scale), sum) in runs.iter().zip(words).zip(scales).zip(sums) {
            let mut largest = Largest::new(lanes);
            for part in run.chunks_exact(L::N) {
                largest.see(lanes, lanes.load(part));
            }
            let most = lanes.splat(lanes.reduce_max(largest.magnitude(lanes)));
            let Scale { scale: step, inverse } = crate::fixed::scale_of(lanes, most, Q);
            *scale = lanes.first_lane(step);
            let mut total = lanes.splat_i32(0);
            for half in 0..2 {
                let part = &run[half * HALVES..][..HALVES];
                let low = lanes.mul(lanes.load(part), inverse);
                let high = lanes.mul(lanes.load(&part[L::N..]), inverse);
                let packed = lanes.pack_halves(low, high);
                total = lanes.add_i32(total, lanes.dot_i16(packed, ones));
                lanes.store(lanes.of_bits(packed), &mut words[half * L::N..]);
            }
            // Below 2^24, so exact.
            *sum = *scale * lanes.reduce_add(lanes.to_f32(total)) / L::N as f32;
        }
    }
}

/// Computes `y[i] = weights[rows.start + i] . x` for an `x` of [`fix_vector`] and weights of
/// [`has_ints`]. See the module documentation for the order of the sum and its error.
///
/// # Panics
/// If `rows` ends beyond the matrix, `x` or `y` has another length, or weights are of another type.
pub fn matvec_fixed(isa: Isa, weights: &WeightView, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
    assert!(
        rows.start <= rows.end && rows.end <= weights.rows(),
        "rows {rows:?} of a matrix of {} rows",
        weights.rows()
    );
    assert_eq!(x.len(), fixed_len(weights.cols()), "x is the fixed point of one float per column");
    assert_eq!(y.len(), rows.len(), "y has one element per row of the range");
    let x = Fixed::of(weights.cols(), x);
    dispatch_halves(isa, MatVec { weights, rows, x, y });
}

struct MatVec<'a> {
    weights: &'a WeightView<'a>,
    rows: Range<usize>,
    x: Fixed<'a>,
    y: &'a mut [f32],
}

impl HalvesKernel for MatVec<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Halves>(self, lanes: L) {
        match self.weights.block() {
            BlockType::Q4_0 => self.rows_of::<Q4_0, L, _, _>(lanes),
            BlockType::Q4_1 => self.rows_of::<Q4_1, L, _, _>(lanes),
            BlockType::Q5_0 => self.rows_of::<Q5_0, L, _, _>(lanes),
            BlockType::Q5_1 => self.rows_of::<Q5_1, L, _, _>(lanes),
            BlockType::Q8_0 => self.rows_of::<Q8_0, L, _, _>(lanes),
            BlockType::Q4K => self.rows_of::<Q4K, L, _, _>(lanes),
            BlockType::Q5K => self.rows_of::<Q5K, L, _, _>(lanes),
            BlockType::Q6K => self.rows_of::<Q6K, L, _, _>(lanes),
            other => panic!("{other} weights have no integers of 8 bits and less"),
        }
    }
}

impl MatVec<'_> {
    #[inline(always)]
    fn rows_of<F, L, const BYTES: usize, const R: usize>(self, lanes: L)
    where
        F: IntFormat<BYTES, R>,
        L: Halves,
    {
        // Two rows at a time hide each other's latencies. They are far apart, so that both are read
        // in one direction, which is what CPUs fetch ahead for.
        let half = self.y.len() / 2;
        let (lower, rest) = self.y.split_at_mut(half);
        let (upper, last) = rest.split_at_mut(half);
        let mut n = self.rows.start;
        for (lower, upper) in lower.iter_mut().zip(upper) {
            [*lower, *upper] =
                dot_rows::<F, L, _, _, 2>(lanes, self.weights, [n, n + half], self.x);
            n += 1;
        }
        for last in last {
            [*last] = dot_rows::<F, L, _, _, 1>(lanes, self.weights, [n + half], self.x);
        }
    }
}

/// The products of rows `n`.
#[inline(always)]
fn dot_rows<F, L, const BYTES: usize, const R: usize, const M: usize>(
    lanes: L,
    weights: &WeightView<'_>,
    n: [usize; M],
    x: Fixed<'_>,
) -> [f32; M]
where
    F: IntFormat<BYTES, R>,
    L: Halves,
{
    let (scales, _) = x.scales.as_chunks::<R>();
    let (run_sums, _) = x.sums.as_chunks::<R>();
    let (words, _) = x.words.as_chunks::<R>();
    let mut rows: [&[[u8; BYTES]]; M] = [&[]; M];
    for m in 0..M {
        rows[m] = &weights.row(n[m]).as_chunks::<BYTES>().0[..words.len()];
    }
    let mut sums = [[lanes.splat(0.0); 2]; M];
    for (at, ((words, scales), run_sums)) in words.iter().zip(scales).zip(run_sums).enumerate() {
        for m in 0..M {
            let worth = [[0.0; R]; 2];
            let mut dot = Dot::<L, R> { words, scales, run_sums, worth, sums: &mut sums[m] };
            F::decode_ints(lanes, &rows[m][at], &mut dot);
        }
    }
    let mut y = [0.0; M];
    for m in 0..M {
        y[m] = lanes.reduce_add(lanes.add(sums[m][0], sums[m][1]));
    }
    y
}

/// Multiplies the integers of one block with its part of x and adds the products to the sums.
struct Dot<'a, L: Lanes, const R: usize> {
    words: &'a [[f32; WORDS]; R],
    scales: &'a [f32; R],
    run_sums: &'a [f32; R],
    /// Scale of x times that of the weights, for the first halves of the runs and the second ones.
    worth: [[f32; R]; 2],
    sums: &'a mut [L::V; 2],
}

impl<L: Halves, const R: usize> Dot<'_, L, R> {
    /// Products of the integers of half a run, two to a lane.
    #[inline(always)]
    fn products(&self, lanes: L, [run, half]: [usize; 2], ints: L::I) -> L::I {
        let x = lanes.to_bits(lanes.load(&self.words[run][half * L::N..]));
        lanes.dot_i16(ints, x)
    }

    #[inline(always)]
    fn add(&mut self, lanes: L, [run, half]: [usize; 2], products: L::I, sum: usize) {
        let worth = lanes.splat(self.worth[half][run]);
        self.sums[sum] = lanes.fma(lanes.to_f32(products), worth, self.sums[sum]);
    }
}

impl<L: Halves, const R: usize> IntSink<L> for Dot<'_, L, R> {
    #[inline(always)]
    fn scale(&mut self, lanes: L, scale: L::V) {
        self.worth[0][0] = self.scales[0] * lanes.first_lane(scale);
    }

    #[inline(always)]
    fn scales(&mut self, lanes: L, [first, second]: [L::V; 2]) {
        let of_x = lanes.load(self.scales);
        lanes.store(lanes.mul(first, of_x), &mut self.worth[0]);
        lanes.store(lanes.mul(second, of_x), &mut self.worth[1]);
    }

    #[inline(always)]
    fn put(&mut self, lanes: L, run: usize, [first, second]: [L::I; 2]) {
        let first = self.products(lanes, [run, 0], first);
        let second = self.products(lanes, [run, 1], second);
        self.add(lanes, [run, 0], lanes.add_i32(first, second), run % 2);
    }

    #[inline(always)]
    fn put_half(&mut self, lanes: L, at: [usize; 2], ints: L::I) {
        let products = self.products(lanes, at, ints);
        self.add(lanes, at, products, at[1]);
    }

    #[inline(always)]
    fn offset(&mut self, lanes: L, offset: L::V) {
        self.sums[1] = lanes.fma(offset, lanes.splat(self.run_sums[0]), self.sums[1]);
    }

    #[inline(always)]
    fn offsets(&mut self, lanes: L, offsets: L::V) {
        let eight = lanes.mul(offsets, lanes.splat(L::N as f32));
        self.sums[1] = lanes.fma(eight, lanes.load(self.run_sums), self.sums[1]);
    }
}

#[cfg(test)]
mod tests;
