//! Causal grouped-query attention of one KV head, without a score matrix.
//!
//! Two arithmetics over the same online softmax:
//!
//! * [`attend`] (prefill): query rows stacked with the G heads of their group into tiles, against
//!   the active K/V blocks of [`crate::kv`]. Key blocks ascend on the fixed grid of [`KEY_BLOCK`]
//!   absolute positions, and every row carries its own maximum, sum and output, rescaled in every
//!   block that the row sees. So the bits of a row depend on its query and on the keys that it sees
//!   only (those up to its position, or the last of them in a sliding window): not on the rows of
//!   the same call, on where the call starts, or on G.
//! * [`attend_one`] (decode): one query row per head over row-major retained keys, then the decode
//!   tail.
//!
//! With m the running maximum, l the running sum and O the running output of a row, a block with
//! logits s does `m' = max(m, max s)`, `P = exp(s - m')`, `a = exp(m - m')`, `l = l a + sum P`,
//! `O = O a + P V`, and the row ends as `O / l` (the online softmax of FlashAttention, Dao et al.
//! 2022, Algorithm 1, with one final division). In [`Factors::Fixed`] both products of prefill have
//! fixed-point factors ([`crate::fixed`]): queries and keys in blocks of dims; weights, times the
//! scales of their values, in blocks of keys. Both arithmetics can soft-cap the logits first: `s = c tanh(s /
//! c)` for a cap c (Gemma 2, Gemma Team 2024, section 2).
//!
//! [`KEY_BLOCK`]: crate::kv::KEY_BLOCK

use std::num::NonZeroUsize;

mod decode;
pub(crate) mod logits;
mod output;
mod prefill;
pub(crate) mod softmax;

use crate::exp;
use crate::gemm::Factors;
use crate::isa::Isa;
use crate::kv::KvLayout;
use crate::lanes::{Kernel, Lanes, dispatch};

use decode::Decode;
use prefill::{Prefill, ScratchLen, TILE_ROWS};

/// Query rows of one KV head's group against that head's active K/V.
///
/// Row `r` of the call sits at absolute position `p = first_pos + r` and sees keys `0..=p`, or with
/// a window of w keys `max(0, p + 1 - w)..=p`.
#[derive(Clone, Copy)]
pub struct Attend<'a> {
    /// The form of both products' factors; the active K and V are the same in both.
    pub factors: Factors,
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
    /// Keys that a row sees at most, the one at its own position included; `None`: all before it.
    /// Key blocks that no row of a tile sees are not read.
    pub window: Option<NonZeroUsize>,
    /// `Some(c)`: a scaled logit l becomes `c tanh(l / c)`; finite and positive.
    pub softcap: Option<f32>,
    /// Floats from one query row to the next.
    pub q_stride: usize,
    /// First column of the group inside a row; its heads fill `col..col + G * D`.
    pub col: usize,
}

/// Replaces post-RoPE queries by their attention output, in place.
///
/// `q` is `[rows, q_stride]`, its columns `col..col + G * D` are `[G, D]`; other columns are
/// untouched. `scratch` has [`attend_scratch_len`] floats. A visible logit that is NaN or +inf
/// makes the row's output NaN; one of -inf is a weight of zero. A soft-cap makes infinite logits the
/// cap, with their sign. In fixed point an infinite element is NaN. Keys and values that a row does not see have no effect on it, NaN included.
pub fn attend(isa: Isa, attend: &Attend, q: &mut [f32], scratch: &mut [f32]) {
    attend.layout.assert_valid();
    assert_cap(attend.softcap);
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

/// Positions whose rows, of G heads each, [`attend`] takes through the key blocks together: in calls
/// of as many rows or a multiple of it every expanded block is used most.
pub fn tile_positions(group: usize) -> usize {
    (TILE_ROWS / group).max(1)
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

/// What one decode row's query heads attend to.
#[derive(Clone, Copy)]
pub struct AttendOne<'a> {
    /// Shape of K and V.
    pub layout: KvLayout,
    /// Factor of the logits, usually 1/sqrt(D); applied to the query.
    pub scale: f32,
    /// `Some(c)`: a scaled logit l becomes `c tanh(l / c)`; finite and positive.
    pub softcap: Option<f32>,
    /// The rows that the query sees, of which there is at least one. A layer with a sliding window
    /// passes the rows inside it.
    pub segments: &'a [DecodeSegment<'a>],
}

/// Replaces one decode row's post-RoPE queries by their attention output, in place.
///
/// `q` is `[G, D]`, the query heads that share one KV head. All rows of all segments are visible;
/// they are taken in order, [`KEY_BLOCK`] at a time from the start of each segment. `scratch` has [`attend_one_scratch_len`] floats. The bits of a head do not
/// depend on the other heads of the call.
///
/// [`KEY_BLOCK`]: crate::kv::KEY_BLOCK
pub fn attend_one(isa: Isa, attend: &AttendOne, q: &mut [f32], scratch: &mut [f32]) {
    let AttendOne { layout, softcap, segments, .. } = *attend;
    layout.assert_valid();
    assert_cap(softcap);
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
    dispatch(isa, Decode { attend, q, scratch });
}

/// Floats of scratch that [`attend_one`] needs for `group` heads.
pub fn attend_one_scratch_len(layout: KvLayout, group: usize) -> usize {
    decode::scratch_len(layout, group)
}

/// Soft-caps `logits` in place: each l becomes `cap * tanh(l / cap)`, for logits that no attention
/// of this module made (a model's output logits, Gemma 2).
///
/// `cap` is finite and positive. Within `4 cap 2^-24` of the exact value; NaN stays NaN, infinite
/// logits become the cap with their sign. The bits of a logit depend on nothing but it and the cap.
pub fn soft_cap(isa: Isa, cap: f32, logits: &mut [f32]) {
    assert_cap(Some(cap));
    dispatch(isa, SoftCap { cap, logits });
}

struct SoftCap<'a> {
    cap: f32,
    logits: &'a mut [f32],
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for part in self.logits.chunks_mut(L::N) {
            let capped = exp::soft_cap(lanes, self.cap, lanes.load_first(part));
            lanes.store_first(capped, part);
        }
    }
}

/// Panics unless the cap, if there is one, is finite and positive.
pub(crate) fn assert_cap(cap: Option<f32>) {
    assert!(
        cap.is_none_or(|cap| cap > 0.0 && cap.is_finite()),
        "a soft-cap is finite and positive, got {cap:?}"
    );
}

#[cfg(test)]
mod tests;
