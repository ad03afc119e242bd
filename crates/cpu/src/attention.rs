//! Attention of prefill over threads: query rows are shared out, and every task runs over all heads.

use crate::pool::Shares;
use crate::product::Compute;
use crate::sizes::query_rows;
use std::num::NonZeroUsize;
use tidekv_kernels::attention::{Attend, attend};
use tidekv_kernels::kv::KvLayout;

/// Part of the largest attention task that the last ones have: shorter ones would
/// expand every key block for too few rows.
const SMALLEST_PART: usize = 4;

/// Consecutive query rows against the keys and values of their layer.
#[derive(Clone, Copy)]
pub(crate) struct AttendRows<'a> {
    pub(crate) layout: KvLayout,
    /// Blocks of keys and of values, `Hkv` equal parts each.
    pub(crate) kv: [&'a [u8]; 2],
    pub(crate) n_kv_heads: usize,
    /// G, query heads per KV head.
    pub(crate) group: usize,
    /// Absolute position of the first row.
    pub(crate) first_pos: usize,
    pub(crate) n_rows: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<NonZeroUsize>,
    pub(crate) softcap: Option<f32>,
}

impl Compute<'_> {
    /// Replaces queries `[n_rows, stride]`, `Hq D` in a row, by the attention's
    /// output. `threads` is scratch, one equal part per thread.
    pub(crate) fn attend(
        &self,
        rows: &AttendRows<'_>,
        (q, stride): (&mut [f32], usize),
        threads: &mut [f32],
    ) {
        let AttendRows { layout, kv: [k, v], n_kv_heads, group, n_rows, .. } = *rows;
        let head_bytes = k.len() / n_kv_heads;
        let most = query_rows(group, self.pool.n_threads());
        let least = (most / SMALLEST_PART).max(1);
        let shares = Shares { least, most: most / least * least, threads: self.pool.n_threads() };
        // Later rows see more keys and cost more: they go first, so that no
        // thread is left with a long task at the end.
        let mut rest = q;
        let tasks = shares.of(n_rows).map(|from_the_end| {
            let first_row = n_rows - from_the_end.end;
            let (others, q) = std::mem::take(&mut rest).split_at_mut(first_row * stride);
            rest = others;
            (first_row..n_rows - from_the_end.start, q)
        });
        self.pool.each_with(tasks, threads, |(task, q), scratch| {
            for head in 0..n_kv_heads {
                let of_head = head * head_bytes..(head + 1) * head_bytes;
                let work = Attend {
                    factors: self.factors,
                    layout,
                    group,
                    k: &k[of_head.clone()],
                    v: &v[of_head],
                    first_pos: rows.first_pos + task.start,
                    rows: task.len(),
                    scale: rows.scale,
                    window: rows.window,
                    softcap: rows.softcap,
                    q_stride: stride,
                    col: head * group * layout.head_dim,
                };
                attend(self.isa, &work, q, scratch);
            }
        });
    }
}
