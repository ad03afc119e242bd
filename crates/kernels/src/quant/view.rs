//! A weight matrix where it lies: block type, shape and bytes.

use std::ops::Range;

use super::BlockType;

/// Why bytes are not a weight matrix of the stated type and shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// A row would end inside a block.
    #[error(
        "a row of {cols} elements is not a whole number of {block} blocks of {block_len} elements; \
         use a file whose tensor has another type"
    )]
    PartialBlock {
        /// Storage type of the matrix.
        block: BlockType,
        /// Elements of a row.
        cols: usize,
        /// Elements of a block of this type.
        block_len: usize,
    },
    /// The number of bytes does not fit in the address space.
    #[error(
        "a {block} matrix of {rows} x {cols} elements exceeds the address space; \
         the shape is corrupt, fetch the file again"
    )]
    TooLarge {
        /// Storage type of the matrix.
        block: BlockType,
        /// Rows of the matrix.
        rows: usize,
        /// Elements of a row.
        cols: usize,
    },
    /// The bytes are fewer or more than the shape needs.
    #[error(
        "a {block} matrix of {rows} x {cols} elements takes {expected} bytes but has {actual}; \
         the file is cut short or its header is wrong, fetch it again"
    )]
    Length {
        /// Storage type of the matrix.
        block: BlockType,
        /// Rows of the matrix.
        rows: usize,
        /// Elements of a row.
        cols: usize,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
}

/// Where the rows of a weight matrix lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// Row n is the n-th.
    #[default]
    AsStored,
    /// The rows of every head, `head_dim` of them, are read in the order 0, D/2, 1, D/2 + 1, ...:
    /// projections stored for rotation of a head's halves then rotate by neighbouring pairs.
    NeighbouringHalves {
        /// D, even; divides the number of rows.
        head_dim: usize,
    },
}

impl RowOrder {
    /// Where row `n` lies.
    #[inline]
    pub fn stored(self, n: usize) -> usize {
        match self {
            RowOrder::AsStored => n,
            RowOrder::NeighbouringHalves { head_dim } => {
                let (head, row) = (n / head_dim, n % head_dim);
                head * head_dim + row % 2 * (head_dim / 2) + row / 2
            }
        }
    }
}

/// A borrowed row-major weight matrix `[N, K]` (N output features, K input features) in a block
/// type.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    block: BlockType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
    order: RowOrder,
}

impl<'a> WeightView<'a> {
    /// Views `bytes` as `rows` x `cols` elements of type `block`; any alignment.
    ///
    /// # Errors
    /// If `cols` is not a whole number of blocks, or `bytes` has another length than the shape
    /// needs.
    pub fn new(
        block: BlockType,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Self, WeightError> {
        let block_len = block.block_len();
        if !cols.is_multiple_of(block_len) {
            return Err(WeightError::PartialBlock { block, cols, block_len });
        }
        let row_bytes = block.row_bytes(cols).ok_or(WeightError::TooLarge { block, rows, cols })?;
        let expected =
            row_bytes.checked_mul(rows).ok_or(WeightError::TooLarge { block, rows, cols })?;
        if bytes.len() != expected {
            return Err(WeightError::Length { block, rows, cols, expected, actual: bytes.len() });
        }
        Ok(Self { block, rows, cols, row_bytes, bytes, order: RowOrder::AsStored })
    }

    /// The same matrix with its rows in another order.
    ///
    /// # Panics
    /// If a head has an odd number of rows, or the rows are not whole heads.
    #[must_use]
    pub fn with_order(self, order: RowOrder) -> Self {
        if let RowOrder::NeighbouringHalves { head_dim } = order {
            let whole = head_dim > 0 && head_dim.is_multiple_of(2);
            assert!(whole && self.rows.is_multiple_of(head_dim), "heads of {head_dim} rows");
        }
        Self { order, ..self }
    }

    /// Storage type.
    #[must_use]
    pub const fn block(&self) -> BlockType {
        self.block
    }

    /// Rows N, the output features.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Columns K, the input features.
    #[must_use]
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// All bytes, row after row as stored.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The blocks of row `n`, `cols` elements.
    ///
    /// # Panics
    /// If `n >= rows`.
    #[must_use]
    #[inline]
    pub fn row(&self, n: usize) -> &'a [u8] {
        assert!(n < self.rows, "row {n} of a matrix of {} rows", self.rows);
        let n = self.order.stored(n);
        &self.bytes[n * self.row_bytes..(n + 1) * self.row_bytes]
    }

    /// The blocks of elements `cols` of row `n`.
    ///
    /// # Panics
    /// If `n >= rows`, or `cols` ends beyond the row, or does not start and end on block
    /// boundaries.
    #[must_use]
    #[inline]
    pub fn row_part(&self, n: usize, cols: Range<usize>) -> &'a [u8] {
        let block_len = self.block.block_len();
        assert!(
            cols.start.is_multiple_of(block_len) && cols.end.is_multiple_of(block_len),
            "elements {cols:?} do not start and end on {} blocks of {block_len}",
            self.block
        );
        let block_bytes = self.block.block_bytes();
        &self.row(n)[cols.start / block_len * block_bytes..cols.end / block_len * block_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockType, RowOrder, WeightError, WeightView};

    #[test]
    fn rejects_lengths_that_do_not_match_the_shape() {
        for block in BlockType::ALL {
            let expected = 3 * block.row_bytes(512).unwrap();
            for actual in [0, expected - 1, expected + 1, expected + block.block_bytes()] {
                let error = WeightView::new(block, 3, 512, &vec![0; actual]).unwrap_err();
                assert_eq!(
                    error,
                    WeightError::Length { block, rows: 3, cols: 512, expected, actual }
                );
                let message = error.to_string();
                assert!(
                    message.contains(&format!("takes {expected} bytes but has {actual}")),
                    "the message must name both sizes: {message}"
                );
            }
            assert_eq!(WeightView::new(block, 3, 512, &vec![0; expected]).unwrap().rows(), 3);
        }
    }

    #[test]
    fn rejects_rows_that_end_inside_a_block() {
        for block in BlockType::ALL.into_iter().filter(|block| block.block_len() > 1) {
            let cols = block.block_len() + 1;
            let error = WeightView::new(block, 1, cols, &[]).unwrap_err();
            assert_eq!(
                error,
                WeightError::PartialBlock { block, cols, block_len: block.block_len() }
            );
        }
    }

    #[test]
    fn rejects_shapes_that_overflow() {
        for (rows, cols) in [(2, usize::MAX / 4 + 1), (1 << 40, 1 << 40)] {
            let error = WeightView::new(BlockType::F32, rows, cols, &[]).unwrap_err();
            assert_eq!(error, WeightError::TooLarge { block: BlockType::F32, rows, cols });
        }
    }

    #[test]
    fn an_empty_matrix_is_legal() {
        assert_eq!(WeightView::new(BlockType::Q4K, 0, 256, &[]).unwrap().rows(), 0);
        assert!(WeightView::new(BlockType::F16, 2, 0, &[]).unwrap().row(1).is_empty());
    }

    #[test]
    fn parts_of_a_row_are_its_blocks() {
        let bytes: Vec<u8> = (0..3 * 2 * 20).map(|at| at as u8).collect();
        let view = WeightView::new(BlockType::Q4_1, 3, 64, &bytes).unwrap();
        assert_eq!(view.row(1), &bytes[40..80]);
        assert_eq!(view.row_part(1, 32..64), &bytes[60..80]);
        assert_eq!(view.row_part(2, 0..64), view.row(2));
        assert!(view.row_part(0, 32..32).is_empty());
    }

    #[test]
    fn neighbouring_halves_interleave_the_rows_of_each_head() {
        let bytes: Vec<u8> = (0..8u8).flat_map(|row| [row, 0]).collect();
        let view = WeightView::new(BlockType::F16, 8, 1, &bytes).unwrap();
        let view = view.with_order(RowOrder::NeighbouringHalves { head_dim: 4 });
        let rows: Vec<u8> = (0..8).map(|row| view.row(row)[0]).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    #[should_panic(expected = "heads of 6 rows")]
    fn rows_that_are_no_whole_heads_have_no_such_order() {
        let view = WeightView::new(BlockType::F16, 8, 1, &[0; 16]).unwrap();
        let _ = view.with_order(RowOrder::NeighbouringHalves { head_dim: 6 });
    }

    #[test]
    #[should_panic(expected = "do not start and end on Q4_1 blocks of 32")]
    fn parts_off_the_block_grid_are_refused() {
        let bytes = [0; 40];
        let view = WeightView::new(BlockType::Q4_1, 1, 64, &bytes).unwrap();
        let _ = view.row_part(0, 16..32);
    }

    #[test]
    #[should_panic(expected = "row 1 of a matrix of 1 rows")]
    fn rows_beyond_the_matrix_are_refused() {
        let bytes = [0; 20];
        let _ = WeightView::new(BlockType::Q4_1, 1, 32, &bytes).unwrap().row(1);
    }
}
