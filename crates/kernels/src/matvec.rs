//! Matrix-vector products over weights as they are stored: the whole of decode's linear algebra.
//!
//! A weight is decoded in registers and used once, so the cost is reading the blocks. The
//! arithmetic is that of f32 weights: output n is the dot product of `x` with the decoded row, not
//! of integers with a quantised `x`.
//!
//! Order of one output, for the tier's N lanes: 32 running sums for quantised weights, 4N for float
//! types; element k is added to sum k mod their number, in ascending k. The sums then lie in
//! vectors of N lanes, which are added as (0 + 1) + (2 + 3), and the lanes of the result by halves,
//! upper onto lower. Nothing else enters: an output's bits do not depend on which rows the call
//! computes.
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

/// Computes `y[i] = weights[rows.start + i] . x` for `x` of `[K]` and `y` of `[rows.len()]`.
///
/// The bits of an output depend on its weight row, `x` and the tier, and on nothing else: rows may
/// be split over threads at will. See the module documentation for the order of the sum and its
/// error.
///
/// # Panics
/// If `rows` ends beyond the matrix, or `x` or `y` has another length.
pub fn matvec(isa: Isa, weights: &WeightView, rows: Range<usize>, x: &[f32], y: &mut [f32]) {
    assert!(
        rows.start <= rows.end && rows.end <= weights.rows(),
        "rows {rows:?} of a matrix of {} rows",
        weights.rows()
    );
    assert_eq!(x.len(), weights.cols(), "x has one element per column");
    assert_eq!(y.len(), rows.len(), "y has one element per row of the range");
    dispatch(isa, MatVec { weights, rows, x, y });
}

struct MatVec<'a> {
    weights: &'a WeightView<'a>,
    rows: Range<usize>,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for MatVec<'_> {
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

impl MatVec<'_> {
    #[inline(always)]
    fn quantised_rows<F, L, const BYTES: usize, const R: usize>(self, lanes: L)
    where
        F: QuantFormat<BYTES, R>,
        L: Lanes,
    {
        const { assert!(RUN / L::N <= SUMS) };
        let (runs, _) = self.x.as_chunks::<RUN>();
        let (x, _) = runs.as_chunks::<R>();
        for (n, y) in self.rows.zip(self.y) {
            let (blocks, _) = self.weights.row(n).as_chunks::<BYTES>();
            let mut sums = [lanes.splat(0.0); SUMS];
            for (block, x) in blocks.iter().zip(x) {
                F::decode(lanes, block, &mut Dot::<L, R> { x, sums: &mut sums });
            }
            *y = join(lanes, sums);
        }
    }

    #[inline(always)]
    fn float_rows<F: FloatFormat, L: Lanes>(self, lanes: L) {
        let step = SUMS * L::N;
        let whole = self.x.len() / step * step;
        let (x, x_tail) = self.x.split_at(whole);
        let mut x_padded = [0.0; SUMS * MAX_LANES];
        x_padded[..x_tail.len()].copy_from_slice(x_tail);
        for (n, y) in self.rows.zip(self.y) {
            let (row, tail) = self.weights.row(n).split_at(whole * F::BYTES);
            let mut sums = [lanes.splat(0.0); SUMS];
            for (bytes, x) in row.chunks_exact(step * F::BYTES).zip(x.chunks_exact(step)) {
                add_step::<F, L>(lanes, bytes, x, &mut sums);
            }
            if !tail.is_empty() {
                let mut padded = [0; 4 * SUMS * MAX_LANES];
                padded[..tail.len()].copy_from_slice(tail);
                add_step::<F, L>(lanes, &padded, &x_padded, &mut sums);
            }
            *y = join(lanes, sums);
        }
    }
}

/// Multiplies the weights of one block with its part of x and adds the products to the sums.
struct Dot<'a, L: Lanes, const R: usize> {
    x: &'a [[f32; RUN]; R],
    sums: &'a mut [L::V; SUMS],
}

impl<L: Lanes, const R: usize> Sink<L> for Dot<'_, L, R> {
    #[inline(always)]
    fn put(&mut self, lanes: L, run: usize, i: usize, weights: L::V) {
        let x = lanes.load(&self.x[run][i * L::N..]);
        self.sums[i] = lanes.fma(weights, x, self.sums[i]);
    }
}

/// Adds one vector of products to each of the running sums.
#[inline(always)]
fn add_step<F: FloatFormat, L: Lanes>(lanes: L, bytes: &[u8], x: &[f32], sums: &mut [L::V; SUMS]) {
    for i in 0..SUMS {
        let w = F::load(lanes, &bytes[i * L::N * F::BYTES..]);
        sums[i] = lanes.fma(w, lanes.load(&x[i * L::N..]), sums[i]);
    }
}

/// The sum of all lanes of all vectors, in the stated order.
#[inline(always)]
fn join<L: Lanes>(lanes: L, [a, b, c, d]: [L::V; SUMS]) -> f32 {
    lanes.reduce_add(lanes.add(lanes.add(a, b), lanes.add(c, d)))
}

#[cfg(test)]
mod tests;
