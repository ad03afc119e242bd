//! The streaming state of one layer's selection: layout, score blocks in, kept
//! positions out.

use super::budget::check_positions;
use super::topk::{Candidate, TopK};
use super::{
    Granularity, GroupReduce, HeadBudget, Mandatory, Pool, PoolOrder, Pooling, PoolingLayout,
    Scorer, SelectError, Selector,
};
use crate::position::Pos;
use std::ops::Range;

/// What a selection depends on besides the selector and the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectionDims {
    /// S, tokens of the prompt.
    pub n_tokens: usize,
    /// Hkv.
    pub kv_heads: usize,
    /// G, query heads per KV head.
    pub group: usize,
}

/// Which rows the score blocks of a selection have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreRows {
    /// One row per KV head, its query heads combined by [`super::reduce_group`]:
    /// `[Hkv, len]`.
    Grouped(GroupReduce),
    /// One row per query head: `[Hq, len]`.
    PerQueryHead,
}

/// Who gives the scores of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScoreSource {
    /// The backend, from the observation window, with these rows.
    Window(ScoreRows),
    /// A [`super::KeyScorer`], from keys and values: `[Hkv, len]`.
    Keys,
}

/// The score stream that a selection has to be fed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scoring {
    /// Queries the scores come from, W; 0 where they come from keys and values.
    window: usize,
    /// Scored positions are `0..end`. For an observation window that is the
    /// prefix, S - W: window scores must not leak into the prefix by pooling.
    end: usize,
    source: ScoreSource,
    pooling: PoolingLayout,
}

/// Everything about one layer's selection that is known before its scores: what
/// is mandatory, what has to be scored, and the bytes it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectionLayout {
    kv_heads: usize,
    mandatory: Mandatory,
    /// Positions chosen by score, per KV head.
    chosen: usize,
    scoring: Option<Scoring>,
    bytes: u64,
    positions_bytes: u64,
}

impl SelectionLayout {
    /// The selection of a layer whose budget is `budget` (K_l).
    ///
    /// # Errors
    /// What [`Selector::budgets`] refuses, and sizes beyond 64 bits.
    pub fn new(
        selector: &Selector,
        dims: SelectionDims,
        budget: usize,
    ) -> Result<Self, SelectError> {
        let SelectionDims { n_tokens, kv_heads, .. } = dims;
        selector.validate()?;
        check_positions(n_tokens)?;
        selector.check_budget(budget, n_tokens)?;

        let mandatory = resolve_mandatory(selector, budget, n_tokens);
        let kept = if selector.keeps_all(budget, n_tokens) { n_tokens } else { budget };
        let chosen = kept - mandatory.count();
        let scoring = if chosen == 0 { None } else { scoring(selector, dims) };
        let kernel = scoring.map_or(1, |scoring| scoring.pooling.kernel);
        let too_large = SelectError::TooLarge { kv_heads, budget, kernel };
        Ok(SelectionLayout {
            kv_heads,
            mandatory,
            chosen,
            scoring,
            bytes: scratch_bytes(scoring, kv_heads, chosen).ok_or(too_large.clone())?,
            positions_bytes: positions_bytes(kv_heads, kept).ok_or(too_large)?,
        })
    }

    /// Bytes that [`Selection::new`] allocates (component `scratch`): Hkv heaps
    /// of exactly K_l minus mandatory entries, and the pooling's carried columns.
    /// Independent of S; nothing grows later.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the positions that [`Selection::finish`] returns (component
    /// `positions`): 4 each.
    pub fn positions_bytes(&self) -> u64 {
        self.positions_bytes
    }

    /// Positions kept per KV head: min(K_l, S), or S when everything is kept.
    pub fn kept(&self) -> usize {
        self.mandatory.count() + self.chosen
    }

    /// Whether scores decide anything. If not, `finish` may be called at once.
    pub fn needs_scores(&self) -> bool {
        self.scoring.is_some()
    }

    /// W, the number of last queries that the scores come from; 0 when no scores
    /// are needed, or none from queries.
    pub fn window(&self) -> usize {
        self.scoring.map_or(0, |scoring| scoring.window)
    }

    /// Positions to score, in ascending blocks of any size; empty when no scores
    /// are needed.
    pub fn scored_keys(&self) -> Range<usize> {
        0..self.scoring.map_or(0, |scoring| scoring.end)
    }

    /// Who gives the scores, or `None` when none are needed.
    pub fn score_source(&self) -> Option<ScoreSource> {
        self.scoring.map(|scoring| scoring.source)
    }

    /// S, tokens of the prompt.
    pub fn n_tokens(&self) -> usize {
        self.mandatory.n_tokens
    }
}

/// Mandatory positions under this budget: all of them when nothing is evicted;
/// for recency the rest of the budget is the tail.
fn resolve_mandatory(selector: &Selector, budget: usize, n_tokens: usize) -> Mandatory {
    let mandatory = selector.mandatory(n_tokens);
    if selector.keeps_all(budget, n_tokens) {
        return Mandatory { sinks_end: 0, tail_start: 0, n_tokens };
    }
    match selector.scorer {
        Scorer::Observation(_) | Scorer::KeepAll | Scorer::Custom(_) => mandatory,
        Scorer::Recency => {
            let recent = budget - mandatory.sinks_end;
            Mandatory { tail_start: n_tokens - recent, ..mandatory }
        }
    }
}

/// The score stream of a selector that has something to choose.
fn scoring(selector: &Selector, dims: SelectionDims) -> Option<Scoring> {
    // The heaps below are the shape of this product; another one is another
    // shape.
    let (HeadBudget::PerHead, Granularity::Token) = (selector.heads, selector.unit);
    let observation = match selector.scorer {
        Scorer::Observation(observation) => observation,
        Scorer::Custom(_) => return Some(key_scoring(selector, dims)),
        Scorer::Recency | Scorer::KeepAll => return None,
    };
    let (score_rows, rows) = match observation.order {
        PoolOrder::GroupThenPool => (ScoreRows::Grouped(observation.group), 1),
        PoolOrder::PoolThenGroup => (ScoreRows::PerQueryHead, dims.group),
    };
    Some(Scoring {
        window: observation.window,
        end: dims.n_tokens - observation.window,
        source: ScoreSource::Window(score_rows),
        pooling: PoolingLayout {
            pool: observation.pool,
            kernel: observation.kernel,
            reduce: observation.group,
            kv_heads: dims.kv_heads,
            rows,
        },
    })
}

/// Scores from keys and values: one row per KV head, taken as they are.
fn key_scoring(selector: &Selector, dims: SelectionDims) -> Scoring {
    Scoring {
        window: 0,
        end: selector.mandatory(dims.n_tokens).tail_start,
        source: ScoreSource::Keys,
        pooling: PoolingLayout {
            pool: Pool::Max,
            kernel: 1,
            reduce: GroupReduce::Max,
            kv_heads: dims.kv_heads,
            rows: 1,
        },
    }
}

fn scratch_bytes(scoring: Option<Scoring>, kv_heads: usize, chosen: usize) -> Option<u64> {
    let Some(scoring) = scoring else {
        return Some(0);
    };
    let heap = TopK::<Candidate>::bytes(chosen)?;
    let heads = u64::try_from(kv_heads).ok()?;
    let per_head = heap.checked_add(size_of::<TopK<Candidate>>() as u64)?;
    heads.checked_mul(per_head)?.checked_add(scoring.pooling.bytes()?)
}

fn positions_bytes(kv_heads: usize, kept: usize) -> Option<u64> {
    let positions = u64::try_from(kv_heads).ok()?.checked_mul(u64::try_from(kept).ok()?)?;
    positions.checked_mul(size_of::<Pos>() as u64)
}

/// The selection of one layer while its score blocks arrive.
///
/// ```
/// use tidekv::select::{Selection, SelectionDims, SelectionLayout, Selector};
/// let selector: Selector = "observation(window=2,kernel=1)".parse()?;
/// let dims = SelectionDims { n_tokens: 8, kv_heads: 1, group: 1 };
/// let mut selection = Selection::new(SelectionLayout::new(&selector, dims, 4)?);
/// selection.push(0..4, &[0.1, 0.5, 0.2, 0.5])?;
/// selection.push(4..6, &[0.4, 0.3])?;
/// let kept: Vec<u32> = selection.finish().head(0).iter().map(|position| position.0).collect();
/// assert_eq!(kept, [1, 3, 6, 7]); // two by score, two of the window
/// # Ok::<(), tidekv::select::SelectError>(())
/// ```
#[derive(Debug)]
pub struct Selection {
    layout: SelectionLayout,
    pooling: Option<Pooling>,
    /// `[Hkv]`; empty when no scores are needed.
    best: Vec<TopK<Candidate>>,
}

impl Selection {
    /// Allocates [`SelectionLayout::bytes`] and not a byte later.
    pub fn new(layout: SelectionLayout) -> Self {
        let heaps = if layout.needs_scores() { layout.kv_heads } else { 0 };
        let mut best = Vec::with_capacity(heaps);
        best.extend((0..heaps).map(|_| TopK::new(layout.chosen)));
        let pooling = layout.scoring.map(|scoring| Pooling::new(scoring.pooling));
        Selection { layout, pooling, best }
    }

    /// What this selection was made for.
    pub fn layout(&self) -> &SelectionLayout {
        &self.layout
    }

    /// Takes the scores of the next positions, `[rows, keys.len()]` row-major
    /// with rows as [`SelectionLayout::score_source`] says, before pooling. How
    /// the scored positions are cut into blocks does not change the result.
    ///
    /// # Errors
    /// A score that is NaN or infinite; the selection is of no use afterwards.
    ///
    /// # Panics
    /// If no scores are needed, or blocks overlap, leave a gap, pass the end of
    /// [`SelectionLayout::scored_keys`] or have another length than they say.
    pub fn push(&mut self, keys: Range<usize>, scores: &[f32]) -> Result<(), SelectError> {
        let end = self.layout.scored_keys().end;
        assert!(keys.end <= end, "scores of {keys:?}, but only 0..{end} are scored");
        let Some(pooling) = &mut self.pooling else {
            return Ok(());
        };
        let offer = offer_to(&mut self.best, self.layout.mandatory);
        pooling.push(keys, scores, offer)
    }

    /// Ends the stream and lists what is kept.
    ///
    /// # Panics
    /// If scored positions are missing.
    pub fn finish(mut self) -> Kept {
        let SelectionLayout { kv_heads, mandatory, .. } = self.layout;
        if let Some(pooling) = self.pooling.take() {
            let scored = self.layout.scored_keys();
            assert_eq!(pooling.columns(), scored.end, "scores are missing");
            pooling.flush(offer_to(&mut self.best, mandatory));
        }
        let kept = self.layout.kept();
        let mut positions = Vec::with_capacity(kv_heads * kept);
        for kv_head in 0..kv_heads {
            positions.extend(span(0..mandatory.sinks_end));
            let first_chosen = positions.len();
            if let Some(best) = self.best.get_mut(kv_head) {
                positions.extend(best.drain().map(|candidate| candidate.position));
            }
            positions[first_chosen..].sort_unstable();
            positions.extend(span(mandatory.tail_start..mandatory.n_tokens));
            assert_eq!(positions.len(), (kv_head + 1) * kept, "kept rows of KV head {kv_head}");
        }
        Kept { positions, offsets: (0..=kv_heads).map(|head| head * kept).collect() }
    }
}

/// Offers pooled scores to the heap of their KV head. Mandatory positions are
/// left out, not given a fake score: they are kept anyway.
fn offer_to(
    best: &mut [TopK<Candidate>],
    mandatory: Mandatory,
) -> impl FnMut(usize, usize, f32) + '_ {
    let eligible = mandatory.sinks_end..mandatory.tail_start;
    move |kv_head, position, score| {
        if eligible.contains(&position) {
            best[kv_head].offer(Candidate { score, position: pos(position) });
        }
    }
}

fn span(positions: Range<usize>) -> impl Iterator<Item = Pos> {
    positions.map(pos)
}

/// S was checked to fit when the layout was made.
fn pos(position: usize) -> Pos {
    Pos(position as u32)
}

/// The positions that a layer keeps, per KV head and ascending, mandatory ones
/// included; flattened in the layout of the retained cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    positions: Vec<Pos>,
    offsets: Vec<usize>,
}

impl Kept {
    /// Hkv.
    pub fn n_heads(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Positions kept by KV head `head`, ascending.
    pub fn head(&self, head: usize) -> &[Pos] {
        &self.positions[self.offsets[head]..self.offsets[head + 1]]
    }

    /// All positions, heads back to back.
    pub fn positions(&self) -> &[Pos] {
        &self.positions
    }

    /// `[Hkv + 1]`: head h is `positions[offsets[h]..offsets[h + 1]]`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Positions and offsets, to be stored without a copy.
    pub fn into_parts(self) -> (Vec<Pos>, Vec<usize>) {
        (self.positions, self.offsets)
    }
}

#[cfg(test)]
mod tests;
