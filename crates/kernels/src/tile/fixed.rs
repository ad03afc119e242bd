//! Fixed-point factors of the micro-kernel: one multiply-add per block of a chain where f32 factors
//! have one per term.
//!
//! `C[r, j] = start[r, j] + sum over blocks b ascending of I[r, b, j] * (scale[r, b] * scale[b, j])`
//! with the exact integer `I` of the block's products.

use crate::fixed::{BLOCK, row_len, words};
use crate::lanes::Lanes;
use crate::tile::{Operands, ROW_VECTORS, width};

/// The operands, as the words that `fixed` describes.
#[derive(Clone, Copy)]
pub(crate) struct FixedProduct<'a> {
    /// A: row `r` begins at `r * lda`, `[scale, words]` per block.
    pub(crate) a: &'a [i32],
    /// Words from one row of A to the next.
    pub(crate) lda: usize,
    /// B: per block `[1 + words][width]`, the scales of the columns first.
    pub(crate) b: &'a [i32],
    /// Length of the chains in elements.
    pub(crate) k: usize,
}

impl<L: Lanes> Operands<L> for FixedProduct<'_> {
    #[inline(always)]
    fn assert_rows(&self, rows: usize) {
        let &FixedProduct { a, lda, b, k } = self;
        if rows > 0 {
            let len = row_len(k);
            assert!(a.len() >= (rows - 1) * lda + len, "A [{rows}, {k}] with stride {lda}");
            assert!(b.len() >= len * width::<L>(), "B [{k}, width]");
        }
    }

    #[inline(always)]
    unsafe fn extend<const M: usize>(
        &self,
        lanes: L,
        row: usize,
        chains: &mut [[L::V; ROW_VECTORS]; M],
    ) {
        let &FixedProduct { a, lda, b, k } = self;
        let mut a = a.as_ptr().wrapping_add(row * lda);
        let mut b = b.as_ptr();
        for first in (0..k).step_by(BLOCK) {
            let words = words(BLOCK.min(k - first));
            // SAFETY: blocks of `1 + words` words (rows of B: of `width` words each) follow one
            // another from the first to the last of the row's `row_len(k)`, which lie in both
            // slices by the caller's contract.
            unsafe {
                block::<L, M>(lanes, (a, lda), b, words, chains);
                a = a.add(1 + words);
                b = b.add((1 + words) * width::<L>());
            }
        }
    }
}

/// Adds the products of one block to the sums of M rows.
///
/// # Safety
/// `1 + words` words can be read from `a` on in each of M rows `lda` words apart, and as many rows
/// of [`width`] words from `b` on.
#[inline(always)]
unsafe fn block<L: Lanes, const M: usize>(
    lanes: L,
    (a, lda): (*const i32, usize),
    b: *const i32,
    words: usize,
    sums: &mut [[L::V; ROW_VECTORS]; M],
) {
    let mut acc = [[lanes.splat_i32(0); ROW_VECTORS]; M];
    for word in 0..words {
        // SAFETY: `1 + word <= words`, so these are inside the block by the caller's contract.
        unsafe {
            let b = b.add((1 + word) * width::<L>());
            let b = [lanes.load_i32_ptr(b), lanes.load_i32_ptr(b.add(L::N))];
            for (m, acc) in acc.iter_mut().enumerate() {
                let x = lanes.splat_i32(*a.add(m * lda + 1 + word));
                acc[0] = lanes.add_dot_i16(acc[0], x, b[0]);
                acc[1] = lanes.add_dot_i16(acc[1], x, b[1]);
            }
        }
    }
    // SAFETY: the scales are the block's first word in A and first row in B.
    unsafe {
        let of_columns = [lanes.load_i32_ptr(b), lanes.load_i32_ptr(b.add(L::N))];
        // By reference: iterators over values may stay calls, through memory.
        for (m, (sums, acc)) in sums.iter_mut().zip(&acc).enumerate() {
            let of_row = lanes.of_bits(lanes.splat_i32(*a.add(m * lda)));
            for v in 0..ROW_VECTORS {
                let scale = lanes.mul(of_row, lanes.of_bits(of_columns[v]));
                sums[v] = lanes.fma(lanes.to_f32(acc[v]), scale, sums[v]);
            }
        }
    }
}
