//! The one micro-kernel: rows of A times two vectors' width of B.
//!
//! `C[r, j] = start[r, j] + sum over k ascending of A[r, k] * B[k, j]`, each element one chain of
//! multiply-adds in one register. A row's chain is the same in a full tile, in a tail of fewer
//! rows and alone, so its bits do not depend on its neighbours; K is never split.
//!
//! GEMM, attention (`Q K^T` and `P V`) and scoring differ in where their [`Chains`] lie. In which
//! form the factors are, and so what the terms of a chain are, is an [`Operands`]: f32 here, fixed
//! point in [`fixed`].

pub(crate) mod fixed;

use crate::lanes::Lanes;

/// Vectors in a row of the tile.
pub(crate) const ROW_VECTORS: usize = 2;

/// Columns of the tile, and so the width of a packed panel of B.
pub(crate) const fn width<L: Lanes>() -> usize {
    ROW_VECTORS * L::N
}

/// Where the chains of a product lie: row r is the [`width`] floats from `r * stride` on.
pub(crate) struct Chains<'a> {
    /// From the first row's first column on.
    pub(crate) out: &'a mut [f32],
    /// Floats from one row to the next.
    pub(crate) stride: usize,
    /// Whether the chains go on from what is there, or start from zero.
    pub(crate) continued: bool,
}

impl Chains<'_> {
    /// Panics unless there are `rows` rows.
    #[inline(always)]
    fn assert_rows<L: Lanes>(&self, rows: usize) {
        let Chains { out, stride, .. } = self;
        let enough = rows == 0 || out.len() >= (rows - 1) * stride + width::<L>();
        assert!(enough, "chains [{rows}, width] with stride {stride}");
    }
}

/// The factors of a product, in one of their forms.
pub(crate) trait Operands<L: Lanes>: Copy {
    /// Panics unless the operands hold `rows` rows.
    ///
    /// Implementations are `#[inline(always)]`.
    fn assert_rows(&self, rows: usize);

    /// Extends the chains of rows `row..row + M`, which lie from `out` on, `stride` floats from row
    /// to row.
    ///
    /// Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// [`Operands::assert_rows`] has returned for `row + M` rows or more, and [`width`] floats of M
    /// rows can be read and written.
    unsafe fn extend<const M: usize>(
        &self,
        lanes: L,
        row: usize,
        out: *mut f32,
        stride: usize,
        continued: bool,
    );
}

/// The operands of `A [rows, k]` times `B [k, width]`, row-major with strides in elements.
///
/// If `lda * 4` is a multiple of 4096 bytes, all rows of a tile share one set of the L1 cache;
/// a few elements of padding per row avoid that.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// A: row `r` begins at `r * lda`.
    pub(crate) a: &'a [f32],
    /// Elements from one row of A to the next.
    pub(crate) lda: usize,
    /// B: row `k` begins at `k * ldb` and has [`width`] elements.
    pub(crate) b: &'a [f32],
    /// Elements from one row of B to the next.
    pub(crate) ldb: usize,
    /// Length of the chains.
    pub(crate) k: usize,
}

impl<L: Lanes> Operands<L> for Product<'_> {
    #[inline(always)]
    fn assert_rows(&self, rows: usize) {
        let &Product { a, lda, b, ldb, k } = self;
        if k > 0 && rows > 0 {
            assert!(a.len() >= (rows - 1) * lda + k, "A [{rows}, {k}] with stride {lda}");
            assert!(b.len() >= (k - 1) * ldb + width::<L>(), "B [{k}, width] with stride {ldb}");
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
        let &Product { a, lda, b, ldb, k } = self;
        let mut chains = [[lanes.splat(0.0); ROW_VECTORS]; M];
        if continued {
            for (m, chains) in chains.iter_mut().enumerate() {
                for (v, chain) in chains.iter_mut().enumerate() {
                    // SAFETY: a vector of row `m < M`, by the caller's contract.
                    *chain = unsafe { lanes.load_ptr(out.add(m * stride + v * L::N)) };
                }
            }
        }
        let a = a.as_ptr().wrapping_add(row * lda);
        let b = b.as_ptr();
        for i in 0..k {
            // SAFETY: `i < k`, so rows `row + m` of A and row `i` of B lie in their slices by the
            // caller's contract.
            unsafe {
                let b = b.add(i * ldb);
                let b = [lanes.load_ptr(b), lanes.load_ptr(b.add(L::N))];
                for (m, chains) in chains.iter_mut().enumerate() {
                    let x = lanes.splat(*a.add(m * lda + i));
                    chains[0] = lanes.fma(x, b[0], chains[0]);
                    chains[1] = lanes.fma(x, b[1], chains[1]);
                }
            }
        }
        for (m, chains) in chains.iter().enumerate() {
            for (v, chain) in chains.iter().enumerate() {
                // SAFETY: as above.
                unsafe { lanes.store_ptr(*chain, out.add(m * stride + v * L::N)) };
            }
        }
    }
}

/// Computes `rows` rows of `product`, in tiles of [`Lanes::ROW_TILE`] and a few smaller ones behind
/// them.
///
/// # Panics
/// If A, B or the chains are shorter than `rows` and `k` need.
#[inline(always)]
pub(crate) fn multiply<L: Lanes, O: Operands<L>>(
    lanes: L,
    product: O,
    rows: usize,
    chains: Chains<'_>,
) {
    product.assert_rows(rows);
    chains.assert_rows::<L>(rows);
    let Chains { out, stride, continued } = chains;
    let out = out.as_mut_ptr();
    macro_rules! largest_tile {
        ($row:ident: $($n:literal)*) => {
            match rows - $row {
                // The first part is a constant: arms beyond the tier's tile do not exist in its code.
                $(left if $n <= L::ROW_TILE && $n <= left => {
                    // SAFETY: both assertions above, for all rows.
                    unsafe {
                        let out = out.add($row * stride);
                        product.extend::<$n>(lanes, $row, out, stride, continued);
                    }
                    $n
                })*
                left => unreachable!("a tile of {left} rows"),
            }
        };
    }
    let mut row = 0;
    while row < rows {
        row += largest_tile!(row: 14 8 6 4 2 1);
    }
}

#[cfg(test)]
mod tests;
