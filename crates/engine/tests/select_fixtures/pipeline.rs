//! From raw scores to kept sets: the library's stream, and a dense copy of the
//! definition into which bugs can be put.

use crate::fixture::Case;
use crate::scorer::RawScores;
use std::ops::Range;
use tidekv::position::Pos;
use tidekv::select::{
    GroupReduce, Observation, Pool, PoolOrder, Pooling, PoolingLayout, ScoreRows, ScoreSource,
    Scorer, Selection, SelectionLayout, Selector, reduce_group,
};

/// Something that pools and selects. `block` is bs.
pub trait Pipeline {
    /// Pooled scores `[Hkv]` of `[S - W]`.
    fn pooled(&self, case: &Case, selector: &Selector, block: usize) -> Vec<Vec<f32>>;
    /// Kept positions of every KV head.
    fn kept(&self, case: &Case, selector: &Selector, budget: usize, block: usize) -> Vec<Vec<u32>>;
}

fn observation(selector: &Selector) -> Observation {
    match &selector.scorer {
        Scorer::Observation(observation) => *observation,
        other => panic!("{other:?} has no scores"),
    }
}

fn blocks(end: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
    (0..end).step_by(block).map(move |start| start..(start + block).min(end))
}

/// A change to a selector.
pub type Edit = fn(Selector) -> Selector;

/// The library: blocks of raw scores through `Pooling` and `Selection`.
pub struct Streaming<'a> {
    pub raw: &'a dyn RawScores,
    /// Applied to every selector first; the identity unless a bug is wanted.
    pub edit: Edit,
}

impl<'a> Streaming<'a> {
    pub fn new(raw: &'a dyn RawScores) -> Self {
        Streaming { raw, edit: |selector| selector }
    }

    /// A score block with the rows that the selection asks for.
    fn rows(&self, case: &Case, rows: ScoreRows, keys: Range<usize>) -> Vec<f32> {
        let per_query_head: Vec<f32> =
            (0..case.query_heads()).flat_map(|head| self.raw.block(head, keys.clone())).collect();
        let ScoreRows::Grouped(reduce) = rows else {
            return per_query_head;
        };
        let mut grouped = vec![0.0; case.dims.kv_heads * keys.len()];
        let groups = per_query_head.chunks_exact(case.dims.group * keys.len());
        for (out, group) in grouped.chunks_exact_mut(keys.len()).zip(groups) {
            reduce_group(reduce, group, out);
        }
        grouped
    }
}

impl Pipeline for Streaming<'_> {
    fn pooled(&self, case: &Case, selector: &Selector, block: usize) -> Vec<Vec<f32>> {
        let observation = observation(&(self.edit)(selector.clone()));
        let (rows, rows_per_head) = match observation.order {
            PoolOrder::GroupThenPool => (ScoreRows::Grouped(observation.group), 1),
            PoolOrder::PoolThenGroup => (ScoreRows::PerQueryHead, case.dims.group),
        };
        let mut pooling = Pooling::new(PoolingLayout {
            pool: observation.pool,
            kernel: observation.kernel,
            reduce: observation.group,
            kv_heads: case.dims.kv_heads,
            rows: rows_per_head,
        });
        let mut out = vec![Vec::new(); case.dims.kv_heads];
        for keys in blocks(case.prefix(), block) {
            let scores = self.rows(case, rows, keys.clone());
            pooling.push(keys, &scores, |head, _, score| out[head].push(score)).unwrap();
        }
        pooling.flush(|head, _, score| out[head].push(score));
        out
    }

    fn kept(&self, case: &Case, selector: &Selector, budget: usize, block: usize) -> Vec<Vec<u32>> {
        let selector = (self.edit)(selector.clone());
        let layout = SelectionLayout::new(&selector, case.dims, budget).unwrap();
        let mut selection = Selection::new(layout);
        if let Some(ScoreSource::Window(rows)) = layout.score_source() {
            for keys in blocks(layout.scored_keys().end, block) {
                let scores = self.rows(case, rows, keys.clone());
                selection.push(keys, &scores).unwrap();
            }
        }
        let kept = selection.finish();
        let positions = |head| kept.head(head).iter().map(|position: &Pos| position.0).collect();
        (0..kept.n_heads()).map(positions).collect()
    }
}

/// A mistake after scoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectBug {
    /// Each block is padded as if it were the whole prefix.
    NoHalo,
    /// Averages near the ends divide by the neighbours that exist.
    DivisorWithoutPadding,
    /// Maximum pooling pads with zeros beyond the ends, one column too far.
    WindowLeaksIntoPrefix,
    /// The higher position wins a tie.
    ReversedTies,
    /// One position too few is chosen.
    BudgetOffByOne,
    /// The window is kept beside the budget instead of inside it.
    WindowOutsideBudget,
    /// The lowest scores win.
    LowestScores,
}

impl SelectBug {
    pub const ALL: [SelectBug; 7] = [
        SelectBug::NoHalo,
        SelectBug::DivisorWithoutPadding,
        SelectBug::WindowLeaksIntoPrefix,
        SelectBug::ReversedTies,
        SelectBug::BudgetOffByOne,
        SelectBug::WindowOutsideBudget,
        SelectBug::LowestScores,
    ];
}

/// The definition: everything at once, a full sort, no library code.
pub struct Dense<'a> {
    pub raw: &'a dyn RawScores,
    pub bug: Option<SelectBug>,
}

impl Dense<'_> {
    fn has(&self, bug: SelectBug) -> bool {
        self.bug == Some(bug)
    }

    fn pool_row(&self, row: &[f32], n: usize, o: Observation, block: usize) -> Vec<f32> {
        let half = o.kernel / 2;
        // With the leak, the first window column is a neighbour of the prefix.
        let end = if self.has(SelectBug::WindowLeaksIntoPrefix) { n + 1 } else { n };
        let pool = |at: usize| {
            let (from, to) = if self.has(SelectBug::NoHalo) {
                (at / block * block, (at / block * block + block).min(n))
            } else {
                (0, end)
            };
            let near = &row[at.saturating_sub(half).max(from)..(at + half + 1).min(to)];
            let divisor =
                if self.has(SelectBug::DivisorWithoutPadding) { near.len() } else { o.kernel };
            match o.pool {
                Pool::Avg => near.iter().sum::<f32>() / divisor as f32,
                Pool::Max => near.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            }
        };
        (0..n).map(pool).collect()
    }

    fn reduce(rows: &[Vec<f32>], reduce: GroupReduce) -> Vec<f32> {
        let column = |at: usize| {
            let values = rows.iter().map(|row| row[at]);
            match reduce {
                GroupReduce::Mean => values.sum::<f32>() / rows.len() as f32,
                GroupReduce::Sum => values.sum(),
                GroupReduce::Max => values.fold(f32::NEG_INFINITY, f32::max),
            }
        };
        (0..rows[0].len()).map(column).collect()
    }
}

impl Pipeline for Dense<'_> {
    fn pooled(&self, case: &Case, selector: &Selector, block: usize) -> Vec<Vec<f32>> {
        let (o, n) = (observation(selector), case.prefix());
        let heads: Vec<Vec<f32>> =
            (0..case.query_heads()).map(|head| self.raw.block(head, 0..n + 1)).collect();
        let group = |group: &[Vec<f32>]| match o.order {
            PoolOrder::GroupThenPool => self.pool_row(&Self::reduce(group, o.group), n, o, block),
            PoolOrder::PoolThenGroup => {
                let pooled: Vec<_> =
                    group.iter().map(|row| self.pool_row(row, n, o, block)).collect();
                Self::reduce(&pooled, o.group)
            }
        };
        heads.chunks_exact(case.dims.group).map(group).collect()
    }

    fn kept(&self, case: &Case, selector: &Selector, budget: usize, block: usize) -> Vec<Vec<u32>> {
        let n_tokens = case.dims.n_tokens;
        if n_tokens <= budget {
            return vec![(0..n_tokens as u32).collect(); case.dims.kv_heads];
        }
        if selector.scorer == Scorer::Recency {
            let recent = n_tokens + selector.sinks - budget;
            let kept = (0..selector.sinks).chain(recent..n_tokens).map(|p| p as u32);
            return vec![kept.collect(); case.dims.kv_heads];
        }
        let mut free = budget - case.window;
        if self.has(SelectBug::BudgetOffByOne) {
            free = free.saturating_sub(1);
        }
        if self.has(SelectBug::WindowOutsideBudget) {
            free = budget.min(case.prefix());
        }
        let select = |scores: Vec<f32>| {
            let mut ranked: Vec<usize> = (0..scores.len()).collect();
            ranked.sort_by(|&a, &b| {
                let by_score = scores[b].total_cmp(&scores[a]);
                let by_score =
                    if self.has(SelectBug::LowestScores) { by_score.reverse() } else { by_score };
                let by_position = a.cmp(&b);
                by_score.then(if self.has(SelectBug::ReversedTies) {
                    by_position.reverse()
                } else {
                    by_position
                })
            });
            let mut kept: Vec<u32> = ranked[..free].iter().map(|&p| p as u32).collect();
            kept.extend(case.prefix() as u32..n_tokens as u32);
            kept.sort_unstable();
            kept
        };
        self.pooled(case, selector, block).into_iter().map(select).collect()
    }
}
