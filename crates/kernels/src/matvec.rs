//! Matrix-vector products over weights as they are stored: the linear algebra of decoding. Weights of
//! a few types go without floats, see [`fixed`]; this is the product of all others, and of all in
//! single precision.
//!
//! A weight is decoded in registers and used there for a tile of vectors, so the cost is that of
//! reading and decoding the blocks. The arithmetic is that of f32 weights: output n is the dot
//! product of `x` with the decoded row, not of integers with a quantised `x`.
//!
//! Order of one output, for the tier's N lanes: 32 running sums for quantised weights, 4N for float
//! types; element k is added to sum k mod their number, in ascending k. The sums then lie in
//! vectors of N lanes, which are added as (0 + 1) + (2 + 3), and the lanes of the result by halves,
//! upper onto lower. Nothing else enters: an output's bits depend neither on which rows the call
//! computes nor on the other vectors.
//!
//! Error: with u = 2^-24, an output differs from the exact dot product of the decoded weights by at
//! most `gamma(ceil(K / 32) + 6) * sum |w_k x_k|` where `gamma(n) = n u / (1 - n u)` (Higham,
//! Accuracy and Stability of Numerical Algorithms, 3.1): `ceil(K / 32)` additions in a sum, then
//! five with 8 lanes or six with 16 to join the sums, and on the portable tier, which has 8, one
//! rounding of the product.

pub mod fixed;

use std::ops::Range;

use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, MAX_LANES, dispatch};
use crate::quant::float::{BF16, F16, F32, FloatFormat};
use crate::quant::iq4_nl::IQ4NL;
use crate::quant::iq4_xs::IQ4XS;
use crate::quant::mxfp4::MXFP4;
use crate::quant::q2_k::Q2K;
use crate::quant::q3_k::Q3K;
use crate::quant::q4_0::Q4_0;
use crate::quant::q4_1::Q4_1;
use crate::quant::q4_k::Q4K;
use crate::quant::q5_0::Q5_0;
use crate::quant::q5_1::Q5_1;
use crate::quant::q5_k::Q5K;
use crate::quant::q6_k::Q6K;
use crate::quant::q8_0::Q8_0;
use crate::quant::q8_1::Q8_1;
use crate::quant::q8_k::Q8K;
use crate::quant::runs::{QuantFormat, RUN, Sink};
use crate::quant::{BlockType, WeightView};

/// Vectors of running sums: enough chains to hide the latency of the FMA units.
const SUMS: usize = 4;
/// Most vectors that share a decoded weight: the sums of two fill half of the 16 registers that
/// AVX2 has, those of four pass through the L1 cache and still cost less than decoding again.
const TILE: usize = 4;
/// Rows that all tiles use while they are in the caches.
const CACHED_ROWS: usize = 16;

/// A vector and where its product goes.
pub struct Vector<'a> {
    /// `[K]`.
    pub x: &'a [f32],
    /// One element per row that is computed.
    pub y: &'a mut [f32],
}

/// Computes `y[i] = weights[rows.start + i] . x` for every vector, `x` of `[K]` and `y` of
/// `[rows.len()]`. Several vectors share the decoding of the weights.
///
/// The bits of an output depend on its weight row, its `x` and the tier, and on nothing else: rows
/// may be split over threads and vectors over calls at will. See the module documentation for the
/// order of the sum and its error.
///
/// # Panics
/// If `rows` ends beyond the matrix, or an `x` or `y` has another length.
pub fn matvec(isa: Isa, weights: &WeightView, rows: Range<usize>, vectors: &mut [Vector<'_>]) {
    assert!(
        rows.start <= rows.end && rows.end <= weights.rows(),
        "rows {rows:?} of a matrix of {} rows",
        weights.rows()
    );
    for Vector { x, y } in &*vectors {
        assert_eq!(x.len(), weights.cols(), "x has one element per column");
        assert_eq!(y.len(), rows.len(), "y has one element per row of the range");
    }
    in_tiles(rows, vectors, &Floats { isa, weights });
}

/// A product of rows of weights with as many vectors as share what is decoded.
pub(crate) trait Tile {
    /// Computes `rows` for T vectors; their outputs begin at `at` in each `y`.
    fn multiply<const T: usize>(
        &self,
        rows: Range<usize>,
        at: usize,
        vectors: [&mut Vector<'_>; T],
    );
}

/// Hands `vectors` to `work` in tiles.
pub(crate) fn in_tiles(rows: Range<usize>, vectors: &mut [Vector<'_>], work: &impl Tile) {
    if vectors.is_empty() {
        return;
    }
    // Tiles of one size or nearly: 3 + 2 decode as often as 4 + 1 and keep more in registers.
    let n_tiles = vectors.len().div_ceil(TILE);
    let tile = vectors.len().div_ceil(n_tiles);
    let step = if n_tiles > 1 { CACHED_ROWS } else { rows.len().max(1) };
    for start in rows.clone().step_by(step) {
        let part = start..(start + step).min(rows.end);
        for vectors in vectors.chunks_mut(tile) {
            let (rows, at) = (part.clone(), start - rows.start);
            match vectors {
                [a] => work.multiply(rows, at, [a]),
                [a, b] => work.multiply(rows, at, [a, b]),
                [a, b, c] => work.multiply(rows, at, [a, b, c]),
                [a, b, c, d] => work.multiply(rows, at, [a, b, c, d]),
                _ => unreachable!("a tile has 1 to {TILE} vectors"),
            }
        }
    }
}

/// Products with weights decoded to floats.
struct Floats<'a> {
    isa: Isa,
    weights: &'a WeightView<'a>,
}

impl Tile for Floats<'_> {
    fn multiply<const T: usize>(
        &self,
        rows: Range<usize>,
        at: usize,
        vectors: [&mut Vector<'_>; T],
    ) {
        dispatch(self.isa, MatVec { weights: self.weights, rows, at, vectors });
    }
}

/// One tile of T vectors.
struct MatVec<'a, 'v, const T: usize> {
    weights: &'a WeightView<'a>,
    rows: Range<usize>,
    /// Where the outputs of `rows` begin in each `y`.
    at: usize,
    vectors: [&'a mut Vector<'v>; T],
}

impl<const T: usize> Kernel for MatVec<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        match self.weights.block() {
            BlockType::F32 => self.float_rows::<F32, L>(lanes),
            BlockType::F16 => self.float_rows::<F16, L>(lanes),
            BlockType::BF16 => self.float_rows::<BF16, L>(lanes),
            BlockType::Q4_0 => self.quantised_rows::<Q4_0, L, _, _>(lanes),
            BlockType::Q4_1 => self.quantised_rows::<Q4_1, L, _, _>(lanes),
            BlockType::Q5_0 => self.quantised_rows::<Q5_0, L, _, _>(lanes),
            BlockType::Q5_1 => self.quantised_rows::<Q5_1, L, _, _>(lanes),
            BlockType::Q8_0 => self.quantised_rows::<Q8_0, L, _, _>(lanes),
            BlockType::Q8_1 => self.quantised_rows::<Q8_1, L, _, _>(lanes),
            BlockType::Q2K => self.quantised_rows::<Q2K, L, _, _>(lanes),
            BlockType::Q3K => self.quantised_rows::<Q3K, L, _, _>(lanes),
            BlockType::Q4K => self.quantised_rows::<Q4K, L, _, _>(lanes),
            BlockType::Q5K => self.quantised_rows::<Q5K, L, _, _>(lanes),
            BlockType::Q6K => self.quantised_rows::<Q6K, L, _, _>(lanes),
            BlockType::Q8K => self.quantised_rows::<Q8K, L, _, _>(lanes),
            BlockType::IQ4NL => self.quantised_rows::<IQ4NL, L, _, _>(lanes),
            BlockType::IQ4XS => self.quantised_rows::<IQ4XS, L, _, _>(lanes),
            BlockType::MXFP4 => self.quantised_rows::<MXFP4, L, _, _>(lanes),
        }
    }
}

impl<const T: usize> MatVec<'_, '_, T> {
    #[inline(always)]
    fn quantised_rows<F, L, const BYTES: usize, const R: usize>(self, lanes: L)
    where
        F: QuantFormat<BYTES, R>,
        L: Lanes,
    {
        const { assert!(RUN / L::N <= SUMS) };
        let MatVec { weights, rows, at, vectors } = self;
        let xs = vectors.each_ref().map(|vector| vector.x.as_chunks().0.as_chunks().0);
        for (index, n) in rows.enumerate() {
            let (blocks, _) = weights.row(n).as_chunks::<BYTES>();
            let xs = xs.map(|x| &x[..blocks.len()]);
            let mut sums = [[lanes.splat(0.0); SUMS]; T];
            for (block_index, block) in blocks.iter().enumerate() {
                let xs: [&[[f32; RUN]; R]; T] = xs.map(|x| &x[block_index]);
                F::decode(lanes, block, &mut Dot { xs, sums: &mut sums });
            }
            for t in 0..T {
                vectors[t].y[at + index] = join(lanes, sums[t]);
            }
        }
    }

    #[inline(always)]
    fn float_rows<F: FloatFormat, L: Lanes>(self, lanes: L) {
        let MatVec { weights, rows, at, vectors } = self;
        let step = SUMS * L::N;
        let whole = weights.cols() / step * step;
        let xs = vectors.each_ref().map(|vector| &vector.x[..whole]);
        let mut padded_xs = [[0.0; SUMS * MAX_LANES]; T];
        for t in 0..T {
            let tail = &vectors[t].x[whole..];
            padded_xs[t][..tail.len()].copy_from_slice(tail);
        }
        for (index, n) in rows.enumerate() {
            let (row, tail) = weights.row(n).split_at(whole * F::BYTES);
            let mut sums = [[lanes.splat(0.0); SUMS]; T];
            for (step_index, bytes) in row.chunks_exact(step * F::BYTES).enumerate() {
                let xs = xs.map(|x| &x[step_index * step..][..step]);
                add_step::<F, L, T>(lanes, bytes, xs, &mut sums);
            }
            if !tail.is_empty() {
                let mut padded = [0; 4 * SUMS * MAX_LANES];
                padded[..tail.len()].copy_from_slice(tail);
                let xs = padded_xs.each_ref().map(|x| &x[..]);
                add_step::<F, L, T>(lanes, &padded, xs, &mut sums);
            }
            for t in 0..T {
                vectors[t].y[at + index] = join(lanes, sums[t]);
            }
        }
    }
}

/// Multiplies the weights of one block with its part of every x and adds the products to the sums.
struct Dot<'a, L: Lanes, const R: usize, const T: usize> {
    xs: [&'a [[f32; RUN]; R]; T],
    sums: &'a mut [[L::V; SUMS]; T],
}

impl<L: Lanes, const R: usize, const T: usize> Sink<L> for Dot<'_, L, R, T> {
    #[inline(always)]
    fn put(&mut self, lanes: L, run: usize, i: usize, weights: L::V) {
        for t in 0..T {
            let x = lanes.load(&self.xs[t][run][i * L::N..]);
            self.sums[t][i] = lanes.fma(weights, x, self.sums[t][i]);
        }
    }
}

/// Adds one vector of products to each of the running sums.
#[inline(always)]
fn add_step<F: FloatFormat, L: Lanes, const T: usize>(
    lanes: L,
    bytes: &[u8],
    xs: [&[f32]; T],
    sums: &mut [[L::V; SUMS]; T],
) {
    for i in 0..SUMS {
        let w = F::load(lanes, &bytes[i * L::N * F::BYTES..]);
        for t in 0..T {
            sums[t][i] = lanes.fma(w, lanes.load(&xs[t][i * L::N..]), sums[t][i]);
        }
    }
}

/// The sum of all lanes of all vectors, in the stated order.
#[inline(always)]
fn join<L: Lanes>(lanes: L, [a, b, c, d]: [L::V; SUMS]) -> f32 {
    lanes.reduce_add(lanes.add(lanes.add(a, b), lanes.add(c, d)))
}

#[cfg(test)]
mod tests;
