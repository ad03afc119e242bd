//! Matrix-vector products in integers: x in block fixed point, weights as they are stored.
//!
//! A run of 32 elements of x is held as 16-bit integers times one f32 scale, `x[i] = scale * q[i]`
//! with `|q| <= 32767` and `scale = max |x| / 32767`. Weights of [`has_ints`] are integers of at
//! most 8 bits times a scale of their own, so the products of a lane's two or four elements add up
//! exactly in 32 bits; the rest of a row is a chain of f32 multiply-adds per lane.
//!
//! Order of one output: element j of a half run is added in lane `j / 2` of eight. The two halves
//! of run r go to sum `r mod 2` of two as one; where they have scales of their own, each to the sum
//! of its number. Offsets meet the sum of their run's elements and go to the second sum: of a block
//! of one run an eighth to each lane, of a block of eight runs each to the lane of its number. Both
//! sums are added and then the lanes, by halves. An output's bits depend on its weight row, its x
//! and the tier, and on nothing else.
//!
//! Error: x is off by at most half a step of its run, `max |x| / 65534`, and the output by the sum
//! of that times the weights' magnitudes, beside f32 sums as in [`super`]: with `g = gamma(K / 32 +
//! 12)` at most `g` times the sum over elements of `(|scale q| + |offset|) |x|`. Where a step
//! counts, a product in bf16 would be off by 128 of them.
//!
//! A run with an infinity or NaN has the scale NaN, and so has every output.

use std::ops::Range;

use super::{Tile, Vector, in_tiles};
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
/// an eighth of the sum of their elements, then their words, element `2 i` in the lower 16 bits of word `i`.
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
                total = lanes.add_dot_i16(total, packed, ones);
                lanes.store(lanes.of_bits(packed), &mut words[half * L::N..]);
            }
            // Below 2^24, so exact.
            *sum = *scale * lanes.reduce_add(lanes.to_f32(total)) / L::N as f32;
        }
    }
}

/// Computes `y[i] = weights[rows.start + i] . x` for every vector, with an `x` of [`fix_vector`] and
/// weights of [`has_ints`]. See the module documentation for the order of the sum and its error.
///
/// # Panics
/// If `rows` ends beyond the matrix, an `x` or `y` has another length, or weights are of another
/// type.
pub fn matvec_fixed(
    isa: Isa,
    weights: &WeightView,
    rows: Range<usize>,
    vectors: &mut [Vector<'_>],
) {
    assert!(
        rows.start <= rows.end && rows.end <= weights.rows(),
        "rows {rows:?} of a matrix of {} rows",
        weights.rows()
    );
    for Vector { x, y } in &*vectors {
        let len = fixed_len(weights.cols());
        assert_eq!(x.len(), len, "x is the fixed point of one float per column");
        assert_eq!(y.len(), rows.len(), "y has one element per row of the range");
    }
    in_tiles(rows, vectors, &Ints { isa, weights });
}

/// Products with weights as integers.
struct Ints<'a> {
    isa: Isa,
    weights: &'a WeightView<'a>,
}

impl Tile for Ints<'_> {
    fn multiply<const T: usize>(
        &self,
        rows: Range<usize>,
        at: usize,
        mut vectors: [&mut Vector<'_>; T],
    ) {
        let k = self.weights.cols();
        let xs = vectors.each_ref().map(|vector| Fixed::of(k, vector.x));
        let ys = vectors.each_mut().map(|vector| &mut vector.y[at..at + rows.len()]);
        dispatch_halves(self.isa, MatVec { weights: self.weights, first: rows.start, xs, ys });
    }
}

/// Rows from `first` on times T vectors.
struct MatVec<'a, 'y, const T: usize> {
    weights: &'a WeightView<'a>,
    first: usize,
    xs: [Fixed<'a>; T],
    ys: [&'y mut [f32]; T],
}

impl<const T: usize> HalvesKernel for MatVec<'_, '_, T> {
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

impl<const T: usize> MatVec<'_, '_, T> {
    #[inline(always)]
    fn rows_of<F, L, const BYTES: usize, const R: usize>(self, lanes: L)
    where
        F: IntFormat<BYTES, R>,
        L: Halves,
    {
        let MatVec { weights, first, xs, mut ys } = self;
        let n_rows = ys[0].len();
        // Two rows at a time hide each other's latencies; they are far apart, so that both are read
        // in one direction, which is what CPUs fetch ahead for. Several vectors hide them as well.
        let half = if T == 1 { n_rows / 2 } else { 0 };
        for index in 0..half {
            let rows = [first + index, first + half + index];
            let [lower, upper] = dot_rows::<F, L, _, _, T, 2>(lanes, weights, rows, &xs);
            ys[0][index] = lower[0];
            ys[0][half + index] = upper[0];
        }
        for index in 2 * half..n_rows {
            let [row] = dot_rows::<F, L, _, _, T, 1>(lanes, weights, [first + index], &xs);
            for (y, row) in ys.iter_mut().zip(row) {
                y[index] = row;
            }
        }
    }
}

/// The products of `rows` with every vector, `[M][T]`.
#[inline(always)]
fn dot_rows<F, L, const BYTES: usize, const R: usize, const T: usize, const M: usize>(
    lanes: L,
    weights: &WeightView<'_>,
    rows: [usize; M],
    xs: &[Fixed<'_>; T],
) -> [[f32; T]; M]
where
    F: IntFormat<BYTES, R>,
    L: Halves,
{
    let n_blocks = weights.cols() / (R * RUN);
    let mut blocks: [&[[u8; BYTES]]; M] = [&[]; M];
    for m in 0..M {
        blocks[m] = &weights.row(rows[m]).as_chunks::<BYTES>().0[..n_blocks];
    }
    let mut parts: [Parts<'_, R>; T] = [Parts::default(); T];
    for t in 0..T {
        parts[t] = Parts::of(&xs[t], n_blocks);
    }
    let mut sums = [[[lanes.splat(0.0); 2]; T]; M];
    for at in 0..n_blocks {
        for (blocks, sums) in blocks.iter().zip(&mut sums) {
            let worth = [[[0.0; R]; 2]; T];
            let mut dot = Dot::<L, R, T> { parts: &parts, at, worth, sums };
            F::decode_ints(lanes, &blocks[at], &mut dot);
        }
    }
    let mut y = [[0.0; T]; M];
    for m in 0..M {
        for t in 0..T {
            y[m][t] = lanes.reduce_add(lanes.add(sums[m][t][0], sums[m][t][1]));
        }
    }
    y
}

/// A vector in the parts that blocks of R runs meet.
#[derive(Clone, Copy, Default)]
struct Parts<'a, const R: usize> {
    scales: &'a [[f32; R]],
    sums: &'a [[f32; R]],
    words: &'a [[[f32; WORDS]; R]],
}

impl<'a, const R: usize> Parts<'a, R> {
    #[inline(always)]
    fn of(x: &Fixed<'a>, n_blocks: usize) -> Self {
        Parts {
            scales: &x.scales.as_chunks().0[..n_blocks],
            sums: &x.sums.as_chunks().0[..n_blocks],
            words: &x.words.as_chunks().0[..n_blocks],
        }
    }
}

/// Multiplies the integers of one block with its part of every x and adds the products to the sums.
struct Dot<'a, L: Lanes, const R: usize, const T: usize> {
    parts: &'a [Parts<'a, R>; T],
    /// Which block.
    at: usize,
    /// Scales of each x times those of the weights, for the first halves of the runs and the second.
    worth: [[[f32; R]; 2]; T],
    sums: &'a mut [[L::V; 2]; T],
}

impl<L: Halves, const R: usize, const T: usize> Dot<'_, L, R, T> {
    /// Products of the integers of half a run, two to a lane.
    #[inline(always)]
    fn products(&self, lanes: L, t: usize, [run, half]: [usize; 2], ints: L::I) -> L::I {
        let words = &self.parts[t].words[self.at][run];
        lanes.dot_i16(ints, lanes.to_bits(lanes.load(&words[half * L::N..])))
    }

    #[inline(always)]
    fn add(&mut self, lanes: L, t: usize, [run, half]: [usize; 2], products: L::I, sum: usize) {
        let worth = lanes.splat(self.worth[t][half][run]);
        let sums = &mut self.sums[t];
        sums[sum] = lanes.fma(lanes.to_f32(products), worth, sums[sum]);
    }
}

impl<L: Halves, const R: usize, const T: usize> IntSink<L> for Dot<'_, L, R, T> {
    #[inline(always)]
    fn scale(&mut self, lanes: L, scale: L::V) {
        for t in 0..T {
            self.worth[t][0][0] = self.parts[t].scales[self.at][0] * lanes.first_lane(scale);
        }
    }

    #[inline(always)]
    fn scales(&mut self, lanes: L, [first, second]: [L::V; 2]) {
        for t in 0..T {
            let of_x = lanes.load(&self.parts[t].scales[self.at]);
            lanes.store(lanes.mul(first, of_x), &mut self.worth[t][0]);
            lanes.store(lanes.mul(second, of_x), &mut self.worth[t][1]);
        }
    }

    #[inline(always)]
    fn put(&mut self, lanes: L, run: usize, [first, second]: [L::I; 2]) {
        for t in 0..T {
            let first = self.products(lanes, t, [run, 0], first);
            let second = self.products(lanes, t, [run, 1], second);
            self.add(lanes, t, [run, 0], lanes.add_i32(first, second), run % 2);
        }
    }

    #[inline(always)]
    fn put_half(&mut self, lanes: L, at: [usize; 2], ints: L::I) {
        for t in 0..T {
            let products = self.products(lanes, t, at, ints);
            self.add(lanes, t, at, products, at[1]);
        }
    }

    #[inline(always)]
    fn offset(&mut self, lanes: L, offset: L::V) {
        for t in 0..T {
            let sum = lanes.splat(self.parts[t].sums[self.at][0]);
            self.sums[t][1] = lanes.fma(offset, sum, self.sums[t][1]);
        }
    }

    #[inline(always)]
    fn offsets(&mut self, lanes: L, offsets: L::V) {
        let eight = lanes.mul(offsets, lanes.splat(L::N as f32));
        for t in 0..T {
            let sums = lanes.load(&self.parts[t].sums[self.at]);
            self.sums[t][1] = lanes.fma(eight, sums, self.sums[t][1]);
        }
    }
}

#[cfg(test)]
mod tests;
