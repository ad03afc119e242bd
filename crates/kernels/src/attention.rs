//! Causal grouped-query attention of one KV head, without a score matrix.
//!
//! Two arithmetics over the same online softmax:
//!
//! * [`attend`] (prefill): query rows stacked with the G heads of their group into tiles, against
//!   the active K/V blocks of [`crate::kv`]. Key blocks ascend on the fixed grid of [`KEY_BLOCK`]
//!   absolute positions, and every row carries its own maximum, sum and output, rescaled in every
//!   block that the row sees. So the bits of a row depend on its query and on the keys up to its
//!   position only: not on the rows of the same call, on where the call starts, or on G.
//! * [`attend_one`] (decode): one query row per head over row-major retained keys, then the decode
//!   tail.
//!
//! With m the running maximum, l the running sum and O the running output of a row, a block with
//! logits s does `m' = max(m, max s)`, `P = exp(s - m')`, `a = exp(m - m')`, `l = l a + sum P`,
//! `O = O a + P V`, and the row ends as `O / l` (the online softmax of FlashAttention, Dao et al.
//! 2022, Algorithm 1, with one final division).
//!
//! [`KEY_BLOCK`]: crate::kv::KEY_BLOCK

mod decode;
pub(crate) mod logits;
mod output;
mod prefill;
pub(crate) mod softmax;

use crate::isa::Isa;
use crate::kv::KvLayout;
use crate::lanes::dispatch;

use decode::Decode;
use prefill::{Prefill, ScratchLen};

/// Query rows of one KV head's group against that head's active K/V.
///
/// Row `r` of the call sits at absolute position `first_pos + r` and sees keys `0..=first_pos + r`.
#[derive(Clone, Copy)]
pub struct Attend<'a> {
    /// Shape of K and V.
    pub layout: KvLayout,
    /// G, query heads that share this KV head.
    pub group: usize,
    /// The KV head's K blocks, holding at least `first_pos + rows` keys.
    pub k: &'a [u8],
    /// The KV head's V blocks, holding at least `first_pos + rows` values.
    pub v: &'a [u8],
    /// Absolute position of row 0.
    pub first_pos: usize,
    /// Query rows.
    pub rows: usize,
    /// Factor of the logits, usually 1/sqrt(D); applied to the query.
    pub scale: f32,
    /// Floats from one query row to the next.
    pub q_stride: usize,
    /// First column of the group inside a row; its heads fill `col..col + G * D`.
    pub col: usize,
}

/// Replaces post-RoPE queries by their attention output, in place.
///
/// `q` is `[rows, q_stride]`, its columns `col..col + G * D` are `[G, D]`; other columns are
/// untouched. `scratch` has [`attend_scratch_len`] floats. A visible logit that is NaN or +inf
/// makes the row's output NaN; one of -inf is a weight of zero.
pub fn attend(isa: Isa, attend: &Attend, q: &mut [f32], scratch: &mut [f32]) {
    attend.layout.assert_valid();
    let (d, keys) = (attend.layout.head_dim, attend.first_pos + attend.rows);
    let blocks = attend.layout.blocks(keys);
    assert!(attend.group > 0, "a KV head serves at least one query head");
    assert!(
        attend.k.len() >= blocks * attend.layout.k_block_bytes(),
        "K too short for {keys} keys"
    );
    assert!(
        attend.v.len() >= blocks * attend.layout.v_block_bytes(),
        "V too short for {keys} keys"
    );
    let width = attend.col + attend.group * d;
    assert!(
        attend.q_stride >= width,
        "query rows of {} floats hold no column {width}",
        attend.q_stride
    );
    assert!(
        attend.rows == 0 || q.len() >= (attend.rows - 1) * attend.q_stride + width,
        "q too short for {} rows",
        attend.rows
    );
    let scratch = &mut scratch[..attend_scratch_len(isa, attend.layout, attend.rows, attend.group)];
    dispatch(isa, Prefill { attend, q, scratch });
}

/// Floats of scratch that [`attend`] needs: the expanded K and V block and one tile of stacked
/// rows, whatever the number of keys. A bound for every smaller `rows` too.
pub fn attend_scratch_len(isa: Isa, layout: KvLayout, rows: usize, group: usize) -> usize {
    dispatch(isa, ScratchLen { layout, rows, group })
}

/// Part of the keys and values of one KV head in decode: retained rows or the decode tail.
#[derive(Clone, Copy)]
pub struct DecodeSegment<'a> {
    /// Row-major `[rows, D]` keys of the layout's element.
    pub k: &'a [u8],
    /// Row-major `[rows, D]` values of the layout's element.
    pub v: &'a [u8],
    /// Number of rows; may be zero.
    pub rows: usize,
}

/// Replaces one decode row's post-RoPE queries by their attention output, in place.
///
/// `q` is `[G, D]`, the query heads that share one KV head. All rows of all segments are visible;
/// they are taken in order, [`KEY_BLOCK`] at a time from the start of each segment. At least one
/// segment has a row. `scratch` has [`attend_one_scratch_len`] floats. The bits of a head do not
/// depend on the other heads of the call.
///
/// [`KEY_BLOCK`]: crate::kv::KEY_BLOCK
pub fn attend_one(
    isa: Isa,
    layout: KvLayout,
    scale: f32,
    q: &mut [f32],
    segments: &[DecodeSegment],
    scratch: &mut [f32],
) {
    layout.assert_valid();
    assert!(
        q.len().is_multiple_of(layout.head_dim),
        "q holds whole heads of {} floats",
        layout.head_dim
    );
    assert!(segments.iter().any(|s| s.rows > 0), "a query needs a key");
    for segment in segments {
        let bytes = segment.rows * layout.row_bytes();
        assert!(
            segment.k.len() == bytes && segment.v.len() == bytes,
            "segment of {} rows",
            segment.rows
        );
    }
    let scratch = &mut scratch[..attend_one_scratch_len(layout, q.len() / layout.head_dim)];
    dispatch(isa, Decode { layout, scale, q, segments, scratch });
}

/// Floats of scratch that [`attend_one`] needs for `group` heads.
pub fn attend_one_scratch_len(layout: KvLayout, group: usize) -> usize {
    decode::scratch_len(layout, group)
}

#[cfg(test)]
mod tests;
