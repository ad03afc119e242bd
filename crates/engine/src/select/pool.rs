//! Pooling along positions over a stream of score blocks, and the reduction over
//! the query heads of a KV head.

use super::{GroupReduce, Pool, SelectError};
use std::ops::Range;

impl GroupReduce {
    /// The accumulator before the first head.
    fn start(self) -> f32 {
        match self {
            GroupReduce::Mean | GroupReduce::Sum => 0.0,
            GroupReduce::Max => f32::NEG_INFINITY,
        }
    }

    fn fold(self, accumulated: f32, score: f32) -> f32 {
        match self {
            GroupReduce::Mean | GroupReduce::Sum => accumulated + score,
            GroupReduce::Max => accumulated.max(score),
        }
    }

    fn finish(self, accumulated: f32, group: usize) -> f32 {
        match self {
            GroupReduce::Mean => accumulated / group as f32,
            GroupReduce::Max | GroupReduce::Sum => accumulated,
        }
    }
}

/// Reduces `scores` `[G, len]` (row-major, the query heads of one KV head) to
/// `out` `[len]`. Heads are taken in ascending order for every key, so the bits
/// of a key depend neither on the block nor on its neighbours.
///
/// # Panics
/// If `scores` is not a whole, positive number of rows of `out.len()`.
pub fn reduce_group(reduce: GroupReduce, scores: &[f32], out: &mut [f32]) {
    let len = out.len();
    if len == 0 {
        assert!(scores.is_empty(), "{} scores for no keys", scores.len());
        return;
    }
    let group = scores.len() / len;
    assert!(
        group > 0 && group * len == scores.len(),
        "{} scores are not rows of {len} keys",
        scores.len()
    );
    out.fill(reduce.start());
    for row in scores.chunks_exact(len) {
        for (accumulated, &score) in out.iter_mut().zip(row) {
            *accumulated = reduce.fold(*accumulated, score);
        }
    }
    for accumulated in out {
        *accumulated = reduce.finish(*accumulated, group);
    }
}

/// Shape of a [`Pooling`] and the bytes it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolingLayout {
    /// How neighbours are combined.
    pub pool: Pool,
    /// Odd number of neighbours.
    pub kernel: usize,
    /// How the rows of a KV head are combined, after pooling.
    pub reduce: GroupReduce,
    /// Hkv.
    pub kv_heads: usize,
    /// Rows per KV head that arrive: 1 when the group was reduced before, G when
    /// pooling comes first.
    pub rows: usize,
}

impl PoolingLayout {
    /// Bytes of the carried columns, `[Hkv * rows, kernel]` f32. `None` beyond
    /// 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        let kv_heads = u64::try_from(self.kv_heads).ok()?;
        let rows = u64::try_from(self.rows).ok()?;
        let kernel = u64::try_from(self.kernel).ok()?;
        kv_heads.checked_mul(rows)?.checked_mul(kernel)?.checked_mul(size_of::<f32>() as u64)
    }
}

/// Pools a stream of score columns, position by position, in memory independent
/// of the stream's length.
///
/// The pooled value of position i needs raw columns `i-h ..= i+h`, h = kernel/2.
/// Every row carries its last `kernel` raw columns in ascending order; a value
/// is emitted h columns late, and [`Pooling::flush`] emits the last h. Padding
/// therefore exists only before position 0 and after the last one, never at a
/// block border, for blocks of any length (shorter than the kernel too). Each
/// window is summed afresh, in ascending order: the bits do not depend on the
/// block size.
#[derive(Debug)]
pub struct Pooling {
    layout: PoolingLayout,
    /// `[Hkv * rows, kernel]`, the last raw columns of each row, oldest first.
    windows: Vec<f32>,
    /// Columns taken so far.
    columns: usize,
}

impl Pooling {
    /// Allocates everything the stream will need.
    pub fn new(layout: PoolingLayout) -> Self {
        let len = layout.kv_heads * layout.rows * layout.kernel;
        let mut windows = Vec::with_capacity(len);
        windows.resize(len, layout.pool.padding());
        Pooling { layout, windows, columns: 0 }
    }

    /// Columns taken so far: the position that the next block starts at.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Takes raw scores `[Hkv * rows, keys.len()]` (row-major) and hands every
    /// value that is now complete to `emit(kv_head, position, score)`; for one
    /// KV head positions ascend without gaps.
    ///
    /// # Errors
    /// A score that is not finite.
    ///
    /// # Panics
    /// If `keys` does not continue the stream or `scores` has another length.
    pub fn push(
        &mut self,
        keys: Range<usize>,
        scores: &[f32],
        mut emit: impl FnMut(usize, usize, f32),
    ) -> Result<(), SelectError> {
        let PoolingLayout { kv_heads, rows, .. } = self.layout;
        assert_eq!(keys.start, self.columns, "score blocks must be ascending and adjacent");
        let len = keys.len();
        assert_eq!(scores.len(), kv_heads * rows * len, "scores of {keys:?}");
        if let Some(index) = scores.iter().position(|score| !score.is_finite()) {
            return Err(SelectError::NonFiniteScore {
                head: index / len,
                position: keys.start + index % len,
                value: scores[index],
            });
        }
        for (kv_head, block) in scores.chunks_exact((rows * len).max(1)).enumerate() {
            for offset in 0..len {
                let pooled = self.advance(kv_head, |row| block[row * len + offset]);
                if let Some(position) = self.emitted_by(keys.start + offset) {
                    emit(kv_head, position, pooled);
                }
            }
        }
        self.columns = keys.end;
        Ok(())
    }

    /// Ends the stream: emits the positions whose right neighbours do not exist.
    pub fn flush(mut self, mut emit: impl FnMut(usize, usize, f32)) {
        let PoolingLayout { pool, kv_heads, kernel, .. } = self.layout;
        for kv_head in 0..kv_heads {
            for column in self.columns..self.columns + kernel / 2 {
                let pooled = self.advance(kv_head, |_| pool.padding());
                if let Some(position) = self.emitted_by(column) {
                    emit(kv_head, position, pooled);
                }
            }
        }
    }

    /// Bytes held.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.windows.capacity() * size_of::<f32>()
    }

    /// The position that is complete once `column` has arrived.
    fn emitted_by(&self, column: usize) -> Option<usize> {
        column.checked_sub(self.layout.kernel / 2)
    }

    /// Shifts one column into every row of `kv_head`; returns the pooled value
    /// at the centre of the windows, reduced over the rows in ascending order.
    fn advance(&mut self, kv_head: usize, column: impl Fn(usize) -> f32) -> f32 {
        let PoolingLayout { pool, kernel, reduce, rows, .. } = self.layout;
        let windows = &mut self.windows[kv_head * rows * kernel..][..rows * kernel];
        let mut reduced = reduce.start();
        for (row, window) in windows.chunks_exact_mut(kernel).enumerate() {
            window.copy_within(1.., 0);
            window[kernel - 1] = column(row);
            reduced = reduce.fold(reduced, pool.combine(window));
        }
        reduce.finish(reduced, rows)
    }
}

impl Pool {
    /// The value beyond both ends of the scored positions.
    fn padding(self) -> f32 {
        match self {
            Pool::Avg => 0.0,
            Pool::Max => f32::NEG_INFINITY,
        }
    }

    /// Pooled value of one window.
    fn combine(self, window: &[f32]) -> f32 {
        match self {
            Pool::Avg => window.iter().sum::<f32>() / window.len() as f32,
            Pool::Max => window.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(layout: PoolingLayout, scores: &[f32], block: usize) -> Vec<Vec<f32>> {
        let heads = layout.kv_heads * layout.rows;
        let n = scores.len() / heads;
        let mut out = vec![Vec::new(); layout.kv_heads];
        let mut emit = |head: usize, position: usize, score| {
            assert_eq!(position, out[head].len());
            out[head].push(score);
        };
        let mut pooling = Pooling::new(layout);
        for start in (0..n).step_by(block) {
            let keys = start..(start + block).min(n);
            let rows = scores.chunks_exact(n).flat_map(|row| row[keys.clone()].to_vec());
            pooling.push(keys.clone(), &rows.collect::<Vec<_>>(), &mut emit).unwrap();
        }
        pooling.flush(emit);
        out
    }

    fn layout(pool: Pool, kernel: usize) -> PoolingLayout {
        PoolingLayout { pool, kernel, reduce: GroupReduce::Mean, kv_heads: 1, rows: 1 }
    }

    #[test]
    fn average_pads_with_zeros_and_always_divides_by_the_kernel() {
        for block in [1, 2, 3, 6] {
            let out = pooled(layout(Pool::Avg, 3), &[3.0, 6.0, 0.0, 9.0, 3.0, 12.0], block);
            assert_eq!(out, [[3.0, 3.0, 5.0, 4.0, 8.0, 5.0]], "blocks of {block}");
        }
    }

    #[test]
    fn maximum_sees_nothing_beyond_the_ends() {
        for block in [1, 2, 5] {
            let out = pooled(layout(Pool::Max, 3), &[-1.0, -5.0, -4.0, -2.0, -3.0], block);
            assert_eq!(out, [[-1.0, -1.0, -2.0, -2.0, -2.0]], "blocks of {block}");
        }
    }

    #[test]
    fn kernel_wider_than_the_stream() {
        for block in [1, 2] {
            let out = pooled(layout(Pool::Avg, 7), &[7.0, 14.0], block);
            assert_eq!(out, [[3.0, 3.0]], "blocks of {block}");
            let out = pooled(layout(Pool::Max, 7), &[7.0, 14.0], block);
            assert_eq!(out, [[14.0, 14.0]], "blocks of {block}");
        }
    }

    #[test]
    fn kernel_of_one_is_the_identity() {
        assert_eq!(pooled(layout(Pool::Avg, 1), &[0.5, -0.25], 1), [[0.5, -0.25]]);
    }

    #[test]
    fn an_empty_stream_yields_nothing() {
        let mut pooling = Pooling::new(layout(Pool::Max, 5));
        pooling.push(0..0, &[], |_, _, _| panic!("emitted")).unwrap();
        pooling.flush(|_, position, _| panic!("emitted {position}"));
    }

    #[test]
    fn pooling_before_grouping_takes_one_row_per_query_head() {
        let scores = [0.0, 8.0, 0.0, 0.0, 0.0, 4.0];
        let layout = PoolingLayout {
            pool: Pool::Max,
            kernel: 3,
            reduce: GroupReduce::Mean,
            kv_heads: 1,
            rows: 2,
        };
        assert_eq!(pooled(layout, &scores, 2), [[4.0, 6.0, 6.0]]);
        // The other order is another function: group means are 0, 4, 2.
        let mut means = [0.0; 3];
        reduce_group(GroupReduce::Mean, &scores, &mut means);
        let grouped = PoolingLayout { rows: 1, ..layout };
        assert_eq!(pooled(grouped, &means, 2), [[4.0, 4.0, 4.0]]);
    }

    #[test]
    fn group_reductions() {
        let scores = [1.0, -2.0, 3.0, -6.0];
        let reduced = |reduce| {
            let mut out = [0.0; 2];
            reduce_group(reduce, &scores, &mut out);
            out
        };
        assert_eq!(reduced(GroupReduce::Mean), [2.0, -4.0]);
        assert_eq!(reduced(GroupReduce::Sum), [4.0, -8.0]);
        assert_eq!(reduced(GroupReduce::Max), [3.0, -2.0]);
        reduce_group(GroupReduce::Sum, &[], &mut []);
    }

    #[test]
    #[should_panic(expected = "not rows of 2 keys")]
    fn group_reduction_refuses_ragged_rows() {
        reduce_group(GroupReduce::Sum, &[1.0, 2.0, 3.0], &mut [0.0; 2]);
    }

    #[test]
    fn scores_that_are_not_finite_name_row_and_position() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let layout = PoolingLayout { kv_heads: 2, ..layout(Pool::Max, 3) };
            let mut pooling = Pooling::new(layout);
            pooling.push(0..1, &[0.0; 2], |_, _, _| {}).unwrap();
            let error = pooling.push(1..3, &[0.0, 0.0, 0.0, value], |_, _, _| {}).unwrap_err();
            let SelectError::NonFiniteScore { head: 1, position: 2, value: found } = error else {
                panic!("{error}");
            };
            assert_eq!(found.to_bits(), value.to_bits());
        }
    }

    #[test]
    #[should_panic(expected = "ascending and adjacent")]
    fn blocks_with_a_gap_are_refused() {
        let mut pooling = Pooling::new(layout(Pool::Max, 3));
        pooling.push(1..2, &[0.0], |_, _, _| {}).unwrap();
    }

    #[test]
    fn bytes_are_the_carried_columns() {
        let layout = PoolingLayout { kv_heads: 8, rows: 4, ..layout(Pool::Max, 7) };
        let pooling = Pooling::new(layout);
        assert_eq!(layout.bytes(), Some(8 * 4 * 7 * 4));
        assert_eq!(pooling.allocated(), 8 * 4 * 7 * 4);
        assert_eq!(PoolingLayout { rows: usize::MAX, ..layout }.bytes(), None);
    }
}
