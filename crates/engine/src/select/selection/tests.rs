//! Properties of the streaming selection against a naive dense one.

use super::*;
use crate::select::{GroupReduce, Observation, PRESETS, Pool};
use proptest::prelude::*;

/// Raw scores `[rows, n]` of one prompt.
struct Raw {
    rows: usize,
    n: usize,
    scores: Vec<f32>,
}

impl Raw {
    /// Scores with few distinct values, so that ties are everywhere.
    fn seeded(rows: usize, n: usize, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(2) | 1;
        let scores = (0..rows * n).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 60) as f32) * 0.125
        });
        Raw { rows, n, scores: scores.collect() }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.scores[row * self.n..][..self.n]
    }

    /// Columns `keys` of every row, row-major.
    fn block(&self, keys: Range<usize>) -> Vec<f32> {
        (0..self.rows).flat_map(|row| self.row(row)[keys.clone()].to_vec()).collect()
    }
}

fn selector(observation: Observation, sinks: usize, recent: usize) -> Selector {
    Selector { sinks, recent, ..Selector::new(Scorer::Observation(observation)) }
}

/// Streams `raw` in blocks of `block` keys.
fn stream(layout: SelectionLayout, raw: &Raw, block: usize) -> Kept {
    let mut selection = Selection::new(layout);
    let end = layout.scored_keys().end;
    for start in (0..end).step_by(block) {
        let keys = start..(start + block).min(end);
        selection.push(keys.clone(), &raw.block(keys)).unwrap();
    }
    selection.finish()
}

/// The same by definition: dense pooling, full sort.
fn naive(selector: &Selector, dims: SelectionDims, budget: usize, raw: &Raw) -> Vec<Vec<u32>> {
    let SelectionDims { n_tokens, kv_heads, .. } = dims;
    let Scorer::Observation(o) = selector.scorer else { panic!("observation only") };
    let everything = (0..n_tokens as u32).collect::<Vec<_>>();
    if n_tokens <= budget {
        return vec![everything; kv_heads];
    }
    let tail = o.window.max(selector.recent);
    let forced = |p: usize| p < selector.sinks || p + tail >= n_tokens;
    let n = n_tokens.saturating_sub(o.window);
    let h = o.kernel as isize / 2;
    let pool = |row: &[f32], i: usize| {
        let near = (i as isize - h..=i as isize + h).map(|j| {
            let inside = usize::try_from(j).ok().and_then(|j| row.get(j)).copied();
            inside.unwrap_or(if o.pool == Pool::Avg { 0.0 } else { f32::NEG_INFINITY })
        });
        match o.pool {
            Pool::Avg => near.sum::<f32>() / o.kernel as f32,
            Pool::Max => near.fold(f32::NEG_INFINITY, f32::max),
        }
    };
    let rows = raw.rows / kv_heads;
    (0..kv_heads)
        .map(|head| {
            let mut ranked: Vec<(f32, usize)> = (0..n)
                .filter(|&i| !forced(i))
                .map(|i| {
                    let pooled = (0..rows).map(|r| pool(raw.row(head * rows + r), i));
                    let score = match o.group {
                        GroupReduce::Mean => pooled.sum::<f32>() / rows as f32,
                        GroupReduce::Sum => pooled.sum::<f32>(),
                        GroupReduce::Max => pooled.fold(f32::NEG_INFINITY, f32::max),
                    };
                    (score, i)
                })
                .collect();
            ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut kept: Vec<usize> = (0..n_tokens).filter(|&i| forced(i)).collect();
            let free = budget - kept.len();
            kept.extend(ranked.iter().take(free).map(|&(_, i)| i));
            kept.sort_unstable();
            kept.into_iter().map(|i| i as u32).collect()
        })
        .collect()
}

fn lists(kept: &Kept) -> Vec<Vec<u32>> {
    let list = |head| kept.head(head).iter().map(|p: &Pos| p.0).collect();
    (0..kept.n_heads()).map(list).collect()
}

fn assert_well_formed(selector: &Selector, dims: SelectionDims, budget: usize, kept: &Kept) {
    let SelectionDims { n_tokens, kv_heads, .. } = dims;
    let mandatory = selector.mandatory(n_tokens);
    assert_eq!(kept.n_heads(), kv_heads);
    for head in lists(kept) {
        assert_eq!(head.len(), budget.min(n_tokens));
        assert!(head.windows(2).all(|pair| pair[0] < pair[1]), "{head:?}");
        assert!(head.iter().all(|&p| (p as usize) < n_tokens));
        for forced in (0..mandatory.sinks_end).chain(mandatory.tail_start..n_tokens) {
            assert!(head.binary_search(&(forced as u32)).is_ok(), "{forced} not in {head:?}");
        }
    }
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let pool = prop_oneof![Just(Pool::Avg), Just(Pool::Max)];
    let group =
        prop_oneof![Just(GroupReduce::Mean), Just(GroupReduce::Max), Just(GroupReduce::Sum)];
    let order = prop_oneof![Just(PoolOrder::GroupThenPool), Just(PoolOrder::PoolThenGroup)];
    (1usize..9, 0usize..5, pool, group, order).prop_map(|(window, half, pool, group, order)| {
        Observation { window, kernel: 2 * half + 1, pool, group, order }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every S from 1 to W + K + 2, every block size from 1 to past the prefix.
    #[test]
    fn streaming_equals_the_naive_selection(
        observation in any_observation(),
        (sinks, recent, spare) in (0usize..5, 0usize..12, 0usize..14),
        (kv_heads, group, seed) in (1usize..4, 1usize..4, any::<u64>()),
    ) {
        let selector = selector(observation, sinks, recent);
        let budget = sinks + observation.window.max(recent) + spare;
        for n_tokens in 1..=observation.window + budget + 2 {
            let dims = SelectionDims { n_tokens, kv_heads, group };
            let layout = SelectionLayout::new(&selector, dims, budget).unwrap();
            let rows = match layout.score_source() {
                Some(ScoreSource::Window(ScoreRows::PerQueryHead)) => kv_heads * group,
                _ => kv_heads,
            };
            let raw = Raw::seeded(rows, layout.scored_keys().len(), seed);
            prop_assert_eq!(layout.needs_scores(), n_tokens > budget && layout.chosen > 0);
            let first = stream(layout, &raw, 1);
            assert_well_formed(&selector, dims, budget, &first);
            if layout.needs_scores() {
                prop_assert_eq!(lists(&first), naive(&selector, dims, budget, &raw));
            }
            for block in 2..=raw.n + 1 {
                prop_assert_eq!(&stream(layout, &raw, block), &first, "blocks of {}", block);
            }
        }
    }

    /// Blocks of changing length give what equal ones give.
    #[test]
    fn the_cut_does_not_matter(
        observation in any_observation(),
        cuts in proptest::collection::vec(1usize..12, 1..60),
        seed in any::<u64>(),
    ) {
        let n: usize = cuts.iter().sum();
        let dims = SelectionDims { n_tokens: n + observation.window, kv_heads: 2, group: 2 };
        let selector = selector(observation, 1, 0);
        let budget = observation.window + 1 + n / 3;
        let layout = SelectionLayout::new(&selector, dims, budget).unwrap();
        prop_assume!(layout.needs_scores());
        let rows = if observation.order == PoolOrder::PoolThenGroup { 4 } else { 2 };
        let raw = Raw::seeded(rows, n, seed);
        let mut selection = Selection::new(layout);
        let mut start = 0;
        for cut in cuts {
            selection.push(start..start + cut, &raw.block(start..start + cut)).unwrap();
            start += cut;
        }
        prop_assert_eq!(selection.finish(), stream(layout, &raw, n));
    }
}

#[test]
fn recency_keeps_sinks_and_the_rest_of_the_budget() {
    let layout = |text: &str, n_tokens, budget| {
        let selector: Selector = text.parse().unwrap();
        let dims = SelectionDims { n_tokens, kv_heads: 2, group: 3 };
        SelectionLayout::new(&selector, dims, budget).unwrap()
    };
    let kept = |text: &str, n_tokens, budget| {
        let layout = layout(text, n_tokens, budget);
        assert!(!layout.needs_scores());
        assert_eq!((layout.bytes(), layout.window(), layout.scored_keys()), (0, 0, 0..0));
        lists(&Selection::new(layout).finish())
    };
    assert_eq!(kept("streaming", 10, 7), vec![vec![0, 1, 2, 3, 7, 8, 9]; 2]);
    assert_eq!(kept("streaming", 10, 5), vec![vec![0, 1, 2, 3, 9]; 2]);
    assert_eq!(kept("recent", 10, 3), vec![vec![7, 8, 9]; 2]);
    assert_eq!(kept("recent", 3, 3), vec![vec![0, 1, 2]; 2]);
    assert_eq!(kept("none", 4, 1), vec![vec![0, 1, 2, 3]; 2]);
    assert_eq!(kept("snapkv", 40, 40), vec![(0..40).collect::<Vec<_>>(); 2]);
    // Exactly the mandatory set: nothing is left for scores to decide.
    assert_eq!(kept("snapkv(window=2)+sinks(1)", 9, 3), vec![vec![0, 7, 8]; 2]);
}

#[test]
fn every_preset_keeps_the_budget_at_every_length() {
    for preset in &PRESETS {
        let budget = 70;
        for n_tokens in 0..=140 {
            let dims = SelectionDims { n_tokens, kv_heads: 2, group: 2 };
            let layout = SelectionLayout::new(&preset.selector, dims, budget).unwrap();
            let raw = Raw::seeded(2, layout.scored_keys().len(), 7);
            let kept = stream(layout, &raw, 16);
            let expected = if preset.name == "none" { n_tokens } else { budget.min(n_tokens) };
            assert_well_formed(&preset.selector, dims, expected, &kept);
            assert_eq!(layout.kept(), expected);
            assert_eq!(layout.positions_bytes(), 2 * expected as u64 * 4);
        }
    }
}

#[test]
fn the_layout_says_what_to_score() {
    let dims = SelectionDims { n_tokens: 100, kv_heads: 2, group: 4 };
    let layout = |text: &str| {
        let selector: Selector = text.parse().unwrap();
        SelectionLayout::new(&selector, dims, 50).unwrap()
    };
    let snapkv = layout("snapkv");
    assert!(snapkv.needs_scores());
    assert_eq!((snapkv.window(), snapkv.scored_keys()), (32, 0..68));
    let grouped = ScoreSource::Window(ScoreRows::Grouped(GroupReduce::Mean));
    assert_eq!(snapkv.score_source(), Some(grouped));
    let pooled_first = layout("snapkv(order=pool-then-group)+recent(40)");
    // Positions 60..68 are kept anyway but their scores pool into the prefix.
    assert_eq!((pooled_first.window(), pooled_first.scored_keys()), (32, 0..68));
    let per_query_head = ScoreSource::Window(ScoreRows::PerQueryHead);
    assert_eq!(pooled_first.score_source(), Some(per_query_head));
    assert_eq!(layout("streaming").score_source(), None);
}

/// Bytes that a selection really holds.
fn allocated(selection: &Selection) -> u64 {
    let heaps: usize = selection.best.iter().map(|best| best.capacity()).sum();
    let headers = selection.best.capacity() * size_of::<TopK<Candidate>>();
    let pooling = selection.pooling.as_ref().map_or(0, Pooling::allocated);
    (heaps * size_of::<Candidate>() + headers + pooling) as u64
}

#[test]
fn memory_is_the_layouts_and_does_not_grow_or_depend_on_the_prompt() {
    for text in ["snapkv", "snapkv(order=pool-then-group)", "snapkv-kvpress+sinks(4)", "streaming"]
    {
        let selector: Selector = text.parse().unwrap();
        let mut sizes = Vec::new();
        for n_tokens in [300, 3000] {
            let dims = SelectionDims { n_tokens, kv_heads: 3, group: 2 };
            let layout = SelectionLayout::new(&selector, dims, 128).unwrap();
            let mut selection = Selection::new(layout);
            assert_eq!(allocated(&selection), layout.bytes(), "{text}");
            let per_query_head = Some(ScoreSource::Window(ScoreRows::PerQueryHead));
            let rows = if layout.score_source() == per_query_head { 6 } else { 3 };
            let end = layout.scored_keys().end;
            if layout.needs_scores() {
                let raw = Raw::seeded(rows, end, 3);
                selection.push(0..end, &raw.scores).unwrap();
            }
            assert_eq!(allocated(&selection), layout.bytes(), "{text}");
            let (positions, offsets) = selection.finish().into_parts();
            assert_eq!(positions.capacity() as u64 * 4, layout.positions_bytes());
            assert_eq!(offsets, [0, 128, 256, 384]);
            sizes.push(layout.bytes());
        }
        assert_eq!(sizes[0], sizes[1], "{text}");
    }
}

#[test]
fn golden_bytes_of_the_llama_shape() {
    // 32 layers of 8 KV heads at K = 4,096: 4 MiB of positions (design section 6).
    let dims = SelectionDims { n_tokens: 131_072, kv_heads: 8, group: 4 };
    let selector = Selector::preset("snapkv").unwrap();
    let layout = SelectionLayout::new(selector, dims, 4096).unwrap();
    assert_eq!(32 * layout.positions_bytes(), 4 << 20);
    let header = size_of::<TopK<Candidate>>() as u64;
    assert_eq!(layout.bytes(), 8 * ((4096 - 32) * 8 + header) + 8 * 7 * 4);
}

#[test]
fn impossible_layouts_are_refused() {
    let dims = SelectionDims { n_tokens: 100, kv_heads: 2, group: 1 };
    let refuse = |selector: &Selector, dims, budget| {
        SelectionLayout::new(selector, dims, budget).unwrap_err()
    };
    let snapkv = Selector::preset("snapkv").unwrap();
    assert!(matches!(refuse(snapkv, dims, 31), SelectError::BudgetTooSmall { needed: 32, .. }));
    let streaming = Selector::preset("streaming").unwrap();
    assert!(matches!(refuse(streaming, dims, 4), SelectError::BudgetTooSmall { needed: 5, .. }));
    let even = selector(Observation { kernel: 6, ..Observation::SNAPKV }, 0, 0);
    assert_eq!(refuse(&even, dims, 64), SelectError::EvenKernel { kernel: 6 });
    let huge = selector(Observation { kernel: usize::MAX, ..Observation::SNAPKV }, 0, 0);
    assert!(matches!(refuse(&huge, dims, 64), SelectError::TooLarge { kv_heads: 2, .. }));
}

#[test]
fn a_score_that_is_not_a_number_is_an_error() {
    let dims = SelectionDims { n_tokens: 10, kv_heads: 1, group: 1 };
    let selector = selector(Observation { window: 2, ..Observation::SNAPKV }, 0, 0);
    let mut selection = Selection::new(SelectionLayout::new(&selector, dims, 4).unwrap());
    let error = selection.push(0..2, &[0.5, f32::NAN]).unwrap_err();
    assert!(matches!(error, SelectError::NonFiniteScore { head: 0, position: 1, .. }));
}

#[test]
#[should_panic(expected = "scores are missing")]
fn finishing_early_is_refused() {
    let dims = SelectionDims { n_tokens: 100, kv_heads: 1, group: 1 };
    let snapkv = Selector::preset("snapkv").unwrap();
    let mut selection = Selection::new(SelectionLayout::new(snapkv, dims, 40).unwrap());
    selection.push(0..10, &[0.0; 10]).unwrap();
    selection.finish();
}

#[test]
#[should_panic(expected = "only 0..68 are scored")]
fn scores_of_the_window_are_refused() {
    let dims = SelectionDims { n_tokens: 100, kv_heads: 1, group: 1 };
    let snapkv = Selector::preset("snapkv").unwrap();
    let mut selection = Selection::new(SelectionLayout::new(snapkv, dims, 40).unwrap());
    selection.push(0..69, &[0.0; 69]).unwrap();
}
