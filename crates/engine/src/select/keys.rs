//! Scorers of one's own: what a position is worth, from its key and value.
//!
//! A [`KeyScorer`] is handed the finished layer block by block, in numbers, and
//! ranks its positions; everything else (mandatory sets, heaps, gathering, memory
//! in plan and ledger) is the engine's.

use super::Scorer;
use crate::model::Shape;
use std::fmt;
use std::ops::{ControlFlow, Deref, Range};
use std::slice::ChunksExact;
use std::sync::Arc;

/// Ranks the positions of a layer by their keys and values.
///
/// One value serves all layers of all prompts, at the same time where there are
/// several; what belongs to one layer of one prompt lives in the [`LayerScorer`]
/// that it makes. Layers with a sliding window keep their window and are never
/// scored.
///
/// ```
/// use tidekv::select::{KeyBlock, KeyScorer, LayerContext, LayerScorer, Scorer, Selector};
///
/// /// Keys of small norm draw the attention of many queries (arXiv:2406.11430).
/// struct SmallNorm;
///
/// impl KeyScorer for SmallNorm {
///     fn name(&self) -> &str {
///         "small-norm"
///     }
///     fn layer(&self, _: &LayerContext) -> Box<dyn LayerScorer + '_> {
///         Box::new(SmallNorm)
///     }
/// }
///
/// impl LayerScorer for SmallNorm {
///     fn score(&mut self, block: &KeyBlock<'_>, scores: &mut [f32]) {
///         for (head, scores) in scores.chunks_exact_mut(block.n_keys()).enumerate() {
///             for (score, key) in scores.iter_mut().zip(block.keys(head)) {
///                 *score = -key.iter().map(|x| x * x).sum::<f32>();
///             }
///         }
///     }
/// }
///
/// // The last 32 tokens are kept whatever their scores.
/// let selector = Selector { recent: 32, ..Selector::new(Scorer::custom(SmallNorm)) };
/// assert_eq!(selector.to_string(), "custom(small-norm)+recent(32)");
/// ```
pub trait KeyScorer: Send + Sync {
    /// Name in reports and messages.
    fn name(&self) -> &str;

    /// A scorer for one layer of one prompt.
    fn layer(&self, layer: &LayerContext) -> Box<dyn LayerScorer + '_>;

    /// Bytes that the scorer made by [`KeyScorer::layer`] holds: part of the plan,
    /// and charged while it lives. Depends on `layer` alone, and does not shrink
    /// when [`LayerContext::n_tokens`] grows.
    fn layer_bytes(&self, layer: &LayerContext) -> u64 {
        let _ = layer;
        0
    }
}

/// Scores one layer, in two passes over its keys and values: first
/// [`LayerScorer::observe`], then [`LayerScorer::score`]. In both, blocks ascend
/// and are adjacent; none is empty.
///
/// Blocks have at most [`crate::RunConfig::score_block`] positions. For a result
/// that does not depend on it, add up what is observed position by position, and
/// let a score depend on its own position and on what was observed.
pub trait LayerScorer {
    /// Sees the positions `0..S` before the first score is asked for. `Break` ends
    /// the pass: nothing more is needed.
    fn observe(&mut self, block: &KeyBlock<'_>) -> ControlFlow<()> {
        let _ = block;
        ControlFlow::Break(())
    }

    /// Writes the scores of a block, `[Hkv, n]`: the higher, the rather a position
    /// is kept; of equals, the earlier. Asked for the positions in front of the
    /// mandatory tail. Scores need no scale, but every one must be written and
    /// finite.
    fn score(&mut self, block: &KeyBlock<'_>, scores: &mut [f32]);
}

/// Which layer of what a scorer is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerContext {
    /// The layer, from 0.
    pub layer: usize,
    /// N, layers of the model.
    pub n_layers: usize,
    /// S, tokens of the prompt.
    pub n_tokens: usize,
    /// Hkv.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
}

impl LayerContext {
    /// Layer `layer` of a model of that shape, for a prompt of `n_tokens` tokens.
    pub fn new(shape: &Shape, layer: usize, n_tokens: usize) -> Self {
        LayerContext {
            layer,
            n_layers: shape.n_layers,
            n_tokens,
            kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
        }
    }
}

/// Keys and values of some positions of one layer, of all KV heads.
#[derive(Debug, Clone)]
pub struct KeyBlock<'a> {
    positions: Range<usize>,
    k: &'a [f32],
    v: &'a [f32],
    head_dim: usize,
}

impl<'a> KeyBlock<'a> {
    /// A block of keys and values `[Hkv, n, D]`, n the number of positions and D
    /// `head_dim`.
    ///
    /// # Panics
    /// If there are no positions, or keys and values are not equally long and whole
    /// heads.
    pub fn new(positions: Range<usize>, (k, v): (&'a [f32], &'a [f32]), head_dim: usize) -> Self {
        let head = positions.len() * head_dim;
        assert!(head > 0, "a block of {positions:?}, D = {head_dim}");
        assert!(k.len().is_multiple_of(head), "{} numbers are not heads of {head}", k.len());
        assert_eq!(k.len(), v.len(), "keys and values");
        KeyBlock { positions, k, v, head_dim }
    }

    /// Absolute positions.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// n, the number of positions; at least 1.
    pub fn n_keys(&self) -> usize {
        self.positions.len()
    }

    /// All keys, after rotation, as stored: `[Hkv, n, D]`.
    pub fn k(&self) -> &'a [f32] {
        self.k
    }

    /// All values, as stored: `[Hkv, n, D]`.
    pub fn v(&self) -> &'a [f32] {
        self.v
    }

    /// The n keys of a KV head, `[D]` each.
    ///
    /// # Panics
    /// If there is no such head.
    pub fn keys(&self, head: usize) -> ChunksExact<'a, f32> {
        self.rows(self.k, head)
    }

    /// The n values of a KV head, `[D]` each.
    ///
    /// # Panics
    /// If there is no such head.
    pub fn values(&self, head: usize) -> ChunksExact<'a, f32> {
        self.rows(self.v, head)
    }

    fn rows(&self, all: &'a [f32], head: usize) -> ChunksExact<'a, f32> {
        let floats = self.n_keys() * self.head_dim;
        all[head * floats..][..floats].chunks_exact(self.head_dim)
    }
}

/// A scorer from outside this crate, as a value: see [`Scorer::custom`].
///
/// Two are equal if they are the same, that is, clones of each other: a name does
/// not say with which settings a scorer was made. The text form of a selector
/// shows `custom(NAME)`, which cannot be read back.
#[derive(Clone)]
pub struct CustomScorer(Arc<dyn KeyScorer>);

impl CustomScorer {
    /// Wraps a scorer that is shared already.
    pub fn new(scorer: Arc<dyn KeyScorer>) -> Self {
        CustomScorer(scorer)
    }
}

impl Scorer {
    /// A scorer of one's own.
    pub fn custom(scorer: impl KeyScorer + 'static) -> Scorer {
        Scorer::Custom(CustomScorer::new(Arc::new(scorer)))
    }

    /// What ranks the positions, where that is done from keys and values.
    pub(crate) fn key_scorer(&self) -> Option<&dyn KeyScorer> {
        match self {
            Scorer::Custom(custom) => Some(&**custom),
            Scorer::Observation(_) | Scorer::Recency | Scorer::KeepAll => None,
        }
    }
}

impl Deref for CustomScorer {
    type Target = dyn KeyScorer;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for CustomScorer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CustomScorer {}

impl fmt::Debug for CustomScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomScorer").field(&self.name()).finish()
    }
}

impl fmt::Display for CustomScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "custom({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{SelectError, Selector};

    /// Scores nothing; only its name is looked at.
    struct Named(&'static str);

    impl KeyScorer for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn layer(&self, _: &LayerContext) -> Box<dyn LayerScorer + '_> {
            panic!("{} is not run", self.0)
        }
    }

    #[test]
    fn a_scorer_equals_its_clones_and_no_other_of_its_name() {
        let selector = Selector::new(Scorer::custom(Named("mine")));
        assert_eq!(selector.clone(), selector);
        assert_ne!(Selector::new(Scorer::custom(Named("mine"))), selector);
        assert_ne!(Selector::new(Scorer::Recency), selector);
    }

    #[test]
    fn the_text_form_shows_the_name_and_is_not_read_back() {
        // Not even where it is the name of something that can be read.
        let scorer = Scorer::custom(Named("snapkv"));
        let selector = Selector { sinks: 4, ..Selector::new(scorer) };
        assert_eq!(selector.to_string(), "custom(snapkv)+sinks(4)");
        assert!(format!("{selector:?}").contains("CustomScorer(\"snapkv\")"));
        let error = selector.to_string().parse::<Selector>().unwrap_err();
        assert_eq!(error, SelectError::CustomScorer { text: selector.to_string() });
    }

    #[test]
    fn a_custom_scorer_takes_every_mandatory_set() {
        let scorer = Scorer::custom(Named("mine"));
        let selector = Selector { sinks: 3, recent: 5, ..Selector::new(scorer) };
        assert_eq!(selector.validate(), Ok(()));
        assert_eq!(selector.mandatory(100).count(), 8);
        assert!(!selector.keeps_all(99, 100) && selector.keeps_all(100, 100));
    }

    #[test]
    fn blocks_hand_out_the_rows_of_each_head() {
        let k: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let v: Vec<f32> = k.iter().map(|x| -x).collect();
        let block = KeyBlock::new(7..10, (&k, &v), 2);
        assert_eq!((block.positions(), block.n_keys()), (7..10, 3));
        assert_eq!(block.keys(1).collect::<Vec<_>>(), [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]]);
        assert_eq!(block.values(0).next(), Some(&[-0.0, -1.0][..]));
        assert_eq!((block.k().len(), block.v()[11]), (12, -11.0));
    }

    #[test]
    #[should_panic(expected = "13 numbers are not heads of 6")]
    fn ragged_blocks_are_refused() {
        KeyBlock::new(0..3, (&[0.0; 13], &[0.0; 13]), 2);
    }
}
