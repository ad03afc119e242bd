//! Where raw scores come from: a dense float64 reference, or the real kernels.

use crate::fixture::Case;
use std::ops::Range;
use tidekv_kernels::Isa;
use tidekv_kernels::element::Element;
use tidekv_kernels::kv::{Append, KvLayout, append_k};
use tidekv_kernels::score::{RowStats, ScoreHead, score_block, score_scratch_len, score_stats};

/// Mean probability over the window, per query head and key.
pub trait RawScores {
    /// Scores of `keys` for query head `head`, `[keys.len()]`.
    fn block(&self, head: usize, keys: Range<usize>) -> Vec<f32>;
}

/// A mistake in the dense reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScorerBug {
    NoCausalMask,
    MaskOffByOne,
    SoftmaxOverPrefixOnly,
    ReversedQueries,
    SumOverRows,
    KvHeadByRemainder,
}

impl ScorerBug {
    pub const ALL: [ScorerBug; 6] = [
        ScorerBug::NoCausalMask,
        ScorerBug::MaskOffByOne,
        ScorerBug::SoftmaxOverPrefixOnly,
        ScorerBug::ReversedQueries,
        ScorerBug::SumOverRows,
        ScorerBug::KvHeadByRemainder,
    ];
}

/// Softmax over all S keys at once, in f64.
pub struct DenseScorer {
    /// `[Hq]` of `[S]`; the window's columns are there but never asked for.
    means: Vec<Vec<f32>>,
}

impl DenseScorer {
    pub fn new(case: &Case, bug: Option<ScorerBug>) -> Self {
        let means = (0..case.query_heads()).map(|head| dense_head(case, head, bug)).collect();
        DenseScorer { means }
    }
}

impl RawScores for DenseScorer {
    fn block(&self, head: usize, keys: Range<usize>) -> Vec<f32> {
        self.means[head][keys].to_vec()
    }
}

fn dense_head(case: &Case, head: usize, bug: Option<ScorerBug>) -> Vec<f32> {
    let (n_tokens, d) = (case.dims.n_tokens, case.head_dim);
    let kv_head = match bug {
        Some(ScorerBug::KvHeadByRemainder) => head % case.dims.kv_heads,
        _ => head / case.dims.group,
    };
    let keys = &case.k[kv_head];
    let mut means = vec![0.0_f64; n_tokens];
    for row in 0..case.window {
        let query = match bug {
            Some(ScorerBug::ReversedQueries) => case.window - 1 - row,
            _ => row,
        };
        let query = &case.q[head][query * d..][..d];
        let visible = match bug {
            Some(ScorerBug::NoCausalMask) => n_tokens,
            Some(ScorerBug::MaskOffByOne) => (case.prefix() + row + 2).min(n_tokens),
            Some(ScorerBug::SoftmaxOverPrefixOnly) => case.prefix(),
            _ => case.prefix() + row + 1,
        };
        let logits: Vec<f64> = keys
            .chunks_exact(d)
            .take(visible)
            .map(|key| {
                let dot: f64 = query.iter().zip(key).map(|(&q, &k)| f64::from(q * k)).sum();
                dot * f64::from(case.scale)
            })
            .collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - max).exp()).sum();
        for (mean, logit) in means.iter_mut().zip(&logits) {
            *mean += (logit - max).exp() / sum;
        }
    }
    let rows = if bug == Some(ScorerBug::SumOverRows) { 1.0 } else { case.window as f64 };
    means.iter().map(|sum| (sum / rows) as f32).collect()
}

/// The kernels of one tier over keys stored as `layout.element`.
pub struct KernelScorer<'a> {
    isa: Isa,
    case: &'a Case,
    layout: KvLayout,
    /// `[Hkv]` of K blocks.
    blocks: Vec<Vec<u8>>,
    /// `[Hq]` of `[W]`, from pass 1.
    pub row_max: Vec<Vec<f32>>,
    /// `[Hq]` of `[W]`, from pass 1.
    pub row_sum: Vec<Vec<f32>>,
}

impl<'a> KernelScorer<'a> {
    pub fn new(case: &'a Case, isa: Isa, element: Element) -> Self {
        let layout = KvLayout { head_dim: case.head_dim, element };
        let rows = case.dims.n_tokens;
        let store = |keys: &Vec<f32>| {
            let mut blocks = vec![0; layout.k_bytes(rows).unwrap()];
            let append = Append { first_pos: 0, rows, src: keys, stride: case.head_dim };
            append_k(isa, layout, &mut blocks, &append);
            blocks
        };
        let blocks = case.k.iter().map(store).collect();
        let empty = vec![vec![0.0; case.window]; case.query_heads()];
        let (row_max, row_sum) = (empty.clone(), empty);
        let mut scorer = KernelScorer { isa, case, layout, blocks, row_max, row_sum };
        for head in 0..case.query_heads() {
            let (mut max, mut sum) = (vec![0.0; case.window], vec![0.0; case.window]);
            let mut scratch = scorer.scratch();
            score_stats(isa, &scorer.head(head), &mut max, &mut sum, &mut scratch);
            (scorer.row_max[head], scorer.row_sum[head]) = (max, sum);
        }
        scorer
    }

    fn scratch(&self) -> Vec<f32> {
        vec![0.0; score_scratch_len(self.layout, self.case.window)]
    }

    fn head(&self, head: usize) -> ScoreHead<'_> {
        ScoreHead {
            layout: self.layout,
            k: &self.blocks[head / self.case.dims.group],
            n_keys: self.case.dims.n_tokens,
            q: &self.case.q[head],
            rows: self.case.window,
            scale: self.case.scale,
            softcap: None,
        }
    }
}

impl RawScores for KernelScorer<'_> {
    fn block(&self, head: usize, keys: Range<usize>) -> Vec<f32> {
        let mut out = vec![0.0; keys.len()];
        let stats = RowStats { max: &self.row_max[head], sum: &self.row_sum[head] };
        score_block(self.isa, &self.head(head), stats, keys, &mut out, &mut self.scratch());
        out
    }
}
