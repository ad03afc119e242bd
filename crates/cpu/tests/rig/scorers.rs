//! A scorer of keys and values that needs both passes and holds memory.

use tidekv::memory::layout::product;
use tidekv::select::{KeyBlock, KeyScorer, LayerContext, LayerScorer};

use std::ops::ControlFlow;

/// A position is worth the more, the farther its key is from the mean key of its
/// head and the larger its value.
pub struct FarFromMean;

/// Sum of the keys of every head, `[Hkv][D]`.
struct Sums(Vec<Vec<f32>>, usize);

impl KeyScorer for FarFromMean {
    fn name(&self) -> &str {
        "far-from-mean"
    }

    fn layer(&self, layer: &LayerContext) -> Box<dyn LayerScorer + '_> {
        Box::new(Sums(vec![vec![0.0; layer.head_dim]; layer.kv_heads], layer.n_tokens))
    }

    fn layer_bytes(&self, layer: &LayerContext) -> u64 {
        product(&[layer.kv_heads, layer.head_dim, size_of::<f32>()])
    }
}

impl LayerScorer for Sums {
    fn observe(&mut self, block: &KeyBlock<'_>) -> ControlFlow<()> {
        for (head, sum) in self.0.iter_mut().enumerate() {
            block.keys(head).for_each(|key| add(sum, key));
        }
        ControlFlow::Continue(())
    }

    fn score(&mut self, block: &KeyBlock<'_>, scores: &mut [f32]) {
        for (head, scores) in scores.chunks_exact_mut(block.n_keys()).enumerate() {
            let rows = block.keys(head).zip(block.values(head));
            for (score, (key, value)) in scores.iter_mut().zip(rows) {
                *score = worth(&self.0[head], self.1, (key, value));
            }
        }
    }
}

/// Adds a key to the sum of those before it.
pub fn add(sum: &mut [f32], key: &[f32]) {
    sum.iter_mut().zip(key).for_each(|(sum, x)| *sum += x);
}

/// What a position is worth beside `n_tokens` keys of the sum `sum`, `[D]`.
pub fn worth(sum: &[f32], n_tokens: usize, (key, value): (&[f32], &[f32])) -> f32 {
    let mean = |sum: &f32| sum / n_tokens as f32;
    let distance: f32 = key.iter().zip(sum).map(|(x, sum)| (x - mean(sum)).powi(2)).sum();
    distance * value.iter().map(|x| x * x).sum::<f32>()
}
