//! The one micro-kernel: rows of A times two vectors' width of B.
//!
//! `C[r, j] = start[r, j] + sum over k ascending of A[r, k] * B[k, j]`, each element one chain of
//! multiply-adds in one register. A row's chain is the same in a full tile, in a tail of fewer
//! rows and alone, so its bits do not depend on its neighbours; K is never split.
//!
//! GEMM, attention (`Q K^T` and `P V`) and scoring differ in where the chains start and in what
//! happens to their results: the [`Rows`] they pass. In which form the factors are, and so what the
//! terms of a chain are, is an [`Operands`]: f32 here, fixed point in [`fixed`].

pub(crate) mod fixed;

use crate::lanes::Lanes;

/// Vectors in a row of the tile.
pub(crate) const ROW_VECTORS: usize = 2;

/// Columns of the tile, and so the width of a packed panel of B.
pub(crate) const fn width<L: Lanes>() -> usize {
    ROW_VECTORS * L::N
}

/// Where the accumulators of a row come from and go to. Row numbers count from the first row of
/// [`Product::a`].
pub(crate) trait Rows<L: Lanes> {
    /// The values that the chains of `row` start from.
    ///
    /// Implementations are `#[inline(always)]`.
    fn start(&self, lanes: L, row: usize) -> [L::V; ROW_VECTORS];

    /// Takes the finished chains of `row`.
    ///
    /// Implementations are `#[inline(always)]`.
    fn finish(&mut self, lanes: L, row: usize, acc: [L::V; ROW_VECTORS]);
}

/// The factors of a product, in one of their forms.
pub(crate) trait Operands<L: Lanes>: Copy {
    /// Panics unless the operands hold `rows` rows.
    ///
    /// Implementations are `#[inline(always)]`.
    fn assert_rows(&self, rows: usize);

    /// Extends the chains of rows `row..row + M`.
    ///
    /// Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// [`Operands::assert_rows`] has returned for `row + M` rows or more.
    unsafe fn extend<const M: usize>(
        &self,
        lanes: L,
        row: usize,
        chains: &mut [[L::V; ROW_VECTORS]; M],
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
        chains: &mut [[L::V; ROW_VECTORS]; M],
    ) {
        let &Product { a, lda, b, ldb, k } = self;
        let mut acc = *chains;
        let a = a.as_ptr().wrapping_add(row * lda);
        let b = b.as_ptr();
        for i in 0..k {
            // SAFETY: `i < k`, so rows `row + m` of A and row `i` of B lie in their slices by the
            // caller's contract.
            unsafe {
                let b = b.add(i * ldb);
                let b = [lanes.load_ptr(b), lanes.load_ptr(b.add(L::N))];
                for (m, acc) in acc.iter_mut().enumerate() {
                    let x = lanes.splat(*a.add(m * lda + i));
                    acc[0] = lanes.fma(x, b[0], acc[0]);
                    acc[1] = lanes.fma(x, b[1], acc[1]);
                }
            }
        }
        *chains = acc;
    }
}

/// Computes `rows` rows of `product`, in tiles of [`Lanes::ROW_TILE`] and one tail.
///
/// # Panics
/// If A or B is shorter than `rows` and `k` need.
#[inline(always)]
pub(crate) fn multiply<L: Lanes, O: Operands<L>, R: Rows<L>>(
    lanes: L,
    product: O,
    rows: usize,
    sink: &mut R,
) {
    product.assert_rows(rows);
    let mut row = 0;
    while row < rows {
        let count = L::ROW_TILE.min(rows - row);
        // SAFETY: asserted above for all rows.
        unsafe { tile_of(lanes, &product, row, count, sink) };
        row += count;
    }
}

/// Calls [`tile`] with `count`, at most [`Lanes::ROW_TILE`], as a constant.
///
/// # Safety
/// As for [`Operands::extend`].
#[inline(always)]
unsafe fn tile_of<L: Lanes, O: Operands<L>, R: Rows<L>>(
    lanes: L,
    product: &O,
    row: usize,
    count: usize,
    sink: &mut R,
) {
    macro_rules! choose {
        ($($n:literal)*) => {
            match count {
                // The guard is a constant: arms beyond the tier's tile do not exist in its code.
                $($n if $n <= L::ROW_TILE => {
                    // SAFETY: the caller's contract.
                    unsafe { tile::<L, O, R, $n>(lanes, product, row, sink) }
                })*
                _ => unreachable!("a tile of {count} rows"),
            }
        };
    }
    choose!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

/// Rows `row..row + M` of `product`.
///
/// # Safety
/// As for [`Operands::extend`].
#[inline(always)]
unsafe fn tile<L: Lanes, O: Operands<L>, R: Rows<L>, const M: usize>(
    lanes: L,
    product: &O,
    row: usize,
    sink: &mut R,
) {
    let mut chains = [[lanes.splat(0.0); ROW_VECTORS]; M];
    for (m, chains) in chains.iter_mut().enumerate() {
        *chains = sink.start(lanes, row + m);
    }
    // SAFETY: the caller's contract.
    unsafe { product.extend(lanes, row, &mut chains) };
    for (m, chains) in chains.iter().enumerate() {
        sink.finish(lanes, row + m, *chains);
    }
}

#[cfg(test)]
mod tests;
