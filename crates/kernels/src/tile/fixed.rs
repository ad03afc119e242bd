//! Fixed-point factors of the micro-kernel: one multiply-add per block of a chain where f32 factors
//! have one per term.
//!
//! `C[r, j] = start[r, j] + sum over blocks b ascending of I[r, b, j] * (scale[r, b] * scale[b, j])`
//! with the exact integer `I` of the block's products.

use crate::fixed::{BLOCK, row_len, words};
use crate::lanes::Lanes;
use crate::tile::{Operands, ROW_VECTORS, width};
use std::hint::black_box;

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
        out: *mut f32,
        stride: usize,
        continued: bool,
    ) {
        let &FixedProduct { a, lda, b, k } = self;
        let mut a = a.as_ptr().wrapping_add(row * lda);
        let mut b = b.as_ptr();
        let zero = lanes.splat(0.0);
        if k == 0 && !continued {
            for (m, v) in (0..M).flat_map(|m| (0..ROW_VECTORS).map(move |v| (m, v))) {
                // SAFETY: a vector of row `m < M`, by the caller's contract.
                unsafe { lanes.store_ptr(zero, out.add(m * stride + v * L::N)) };
            }
        }
        for first in (0..k).step_by(BLOCK) {
            let words = words(BLOCK.min(k - first));
            // SAFETY: blocks of `1 + words` words (rows of B: of `width` words each) follow one
            // another from the first to the last of the row's `row_len(k)`, which lie in both
            // slices by the caller's contract.
            let sums = unsafe { sums::<L, M>(lanes, (a, lda), b, words) };
            // The chains stay in memory, since the sums of a block fill the register file: a
            // compiler that tries to keep both there moves each several times.
            let out = black_box(out);
            // SAFETY: scales are the first word of a block in A and its first row in B, see above;
            // the chains are vectors of row `m < M`, by the caller's contract.
            unsafe {
                let of_columns = [lanes.load_i32_ptr(b), lanes.load_i32_ptr(b.add(L::N))];
                for (m, sums) in sums.iter().enumerate() {
                    let of_row = lanes.of_bits(lanes.splat_i32(*a.add(m * lda)));
                    for (v, sum) in sums.iter().enumerate() {
                        let out = out.add(m * stride + v * L::N);
                        let chain = if continued || first > 0 { lanes.load_ptr(out) } else { zero };
                        let scale = lanes.mul(of_row, lanes.of_bits(of_columns[v]));
                        lanes.store_ptr(lanes.fma(lanes.to_f32(*sum), scale, chain), out);
                    }
                }
                a = a.add(1 + words);
                b = b.add((1 + words) * width::<L>());
            }
        }
    }
}

/// The integer sums of one block of `words` words, at least one, for M rows.
///
/// # Safety
/// `1 + words` words can be read from `a` on in each of M rows `lda` words apart, and as many rows
/// of [`width`] words from `b` on.
#[inline(always)]
unsafe fn sums<L: Lanes, const M: usize>(
    lanes: L,
    (a, lda): (*const i32, usize),
    b: *const i32,
    words: usize,
) -> [[L::I; ROW_VECTORS]; M] {
    let mut sums = [[lanes.splat_i32(0); ROW_VECTORS]; M];
    let mut word = 0;
    // A loop that may have no round costs moves of every sum.
    loop {
        // SAFETY: `1 + word <= words`, so these are inside the block by the caller's contract.
        unsafe {
            let b = b.add((1 + word) * width::<L>());
            let b = [lanes.load_i32_ptr(b), lanes.load_i32_ptr(b.add(L::N))];
            for (m, sums) in sums.iter_mut().enumerate() {
                let x = lanes.splat_i32(*a.add(m * lda + 1 + word));
                sums[0] = lanes.add_dot_i16(sums[0], x, b[0]);
                sums[1] = lanes.add_dot_i16(sums[1], x, b[1]);
            }
        }
        word += 1;
        if word >= words {
            return sums;
        }
    }
}
