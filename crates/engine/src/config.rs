//! Settings of one run: everything that decides its result and its memory.

use crate::element::Element;
use crate::error::Error;
use crate::model::Shape;
use crate::schedule::{Schedule, ScheduleKind};
use crate::select::{BudgetRequest, Scorer, SelectError, SelectionDims, SelectionLayout, Selector};
use std::borrow::Cow;
use std::num::NonZeroUsize;

/// What a prefill hands back besides the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Outputs {
    /// Logits of the last token. The last layer then computes K/V of all tokens
    /// and the rest for that token only.
    #[default]
    LastLogits,
    /// As [`Outputs::LastLogits`], but every row of the last layer is computed,
    /// so that observers can read it.
    AllHidden,
    /// Logits of every token, streamed row by row to the observer.
    AllLogits,
}

/// Settings of one run.
///
/// ```
/// use std::num::NonZeroUsize;
/// use tidekv::schedule::ScheduleKind;
/// use tidekv::{Element, RunConfig};
///
/// // The defaults: TideKV's schedule, 2,048 tokens at a time, 4,096 positions kept.
/// let config = RunConfig::default();
/// assert_eq!((config.selector.to_string(), config.budget), ("snapkv".to_owned(), 4096));
///
/// let chunk = NonZeroUsize::new(512).ok_or("a chunk of nothing")?;
/// let config = RunConfig {
///     schedule: ScheduleKind::Tide.with_chunk(chunk),
///     selector: "snapkv+sinks(4)".parse()?,
///     budget: 1024,
///     kv: Element::F16,
///     memory_limit: Some(4 << 30),
///     ..RunConfig::default()
/// };
/// assert!(config.schedule.evicts());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// Order, chunking and eviction.
    pub schedule: Schedule,
    /// What is kept where the schedule evicts.
    pub selector: Selector,
    /// K, positions per KV head and layer that are kept, window and sinks
    /// included.
    pub budget: usize,
    /// bs, keys per score block.
    pub score_block: NonZeroUsize,
    /// Storage of K/V.
    pub kv: Element,
    /// Storage of hidden states between layers.
    pub bridge: Element,
    /// Largest number of generated tokens.
    pub max_new_tokens: usize,
    /// What prefill computes.
    pub outputs: Outputs,
    /// Largest number of bytes TideKV may allocate; `None` for no limit.
    pub memory_limit: Option<u64>,
}

/// Default chunk C, in tokens.
pub const DEFAULT_CHUNK: NonZeroUsize = NonZeroUsize::new(2048).unwrap();
/// Default budget K, in positions.
pub const DEFAULT_BUDGET: usize = 4096;
/// Default score block bs, in keys.
pub const DEFAULT_SCORE_BLOCK: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Default largest answer, in tokens.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 256;

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            schedule: ScheduleKind::Tide.with_chunk(DEFAULT_CHUNK),
            selector: Selector::preset("snapkv").cloned().unwrap_or(Selector::new(Scorer::KeepAll)),
            budget: DEFAULT_BUDGET,
            score_block: DEFAULT_SCORE_BLOCK,
            kv: Element::default(),
            bridge: Element::default(),
            max_new_tokens: DEFAULT_MAX_NEW_TOKENS,
            outputs: Outputs::default(),
            memory_limit: None,
        }
    }
}

impl RunConfig {
    /// The selector in effect: a schedule that never evicts keeps everything.
    pub(crate) fn effective_selector(&self) -> Cow<'_, Selector> {
        match self.schedule.evicts() {
            true => Cow::Borrowed(&self.selector),
            false => Cow::Owned(Selector::new(Scorer::KeepAll)),
        }
    }

    /// The selection of every layer for a prompt of `n_tokens` tokens: budgets,
    /// mandatory sets and scratch. Known, and checked, before any compute. A layer
    /// with a window keeps exactly the window's last positions under every
    /// schedule, and takes no part in the budgets.
    ///
    /// # Errors
    /// A budget that cannot hold the mandatory set, or a faulty selector.
    pub fn selections(
        &self,
        shape: &Shape,
        n_tokens: usize,
    ) -> Result<Vec<SelectionLayout>, SelectError> {
        let selector = self.effective_selector();
        let n_layers = shape.n_global_layers();
        let request = BudgetRequest { budget: self.budget, n_tokens, n_layers };
        let dims = SelectionDims { n_tokens, kv_heads: shape.n_kv_heads, group: shape.group() };
        let mut budgets = selector.budgets(request)?.into_iter();
        // No later query sees what lies before a layer's window.
        let last = Selector::new(Scorer::Recency);
        let layer = |layer: usize| match shape.window(layer) {
            Some(window) => SelectionLayout::new(&last, dims, window.get().min(n_tokens)),
            None => SelectionLayout::new(&selector, dims, budgets.next().unwrap_or(n_tokens)),
        };
        (0..shape.n_layers).map(layer).collect()
    }

    /// [`RunConfig::selections`] of every prompt of a batch, `[B][N]`.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`], [`Error::EmptyPrompt`], or as
    /// [`RunConfig::selections`]; of several prompts the error says which.
    pub(crate) fn batch_selections(
        &self,
        shape: &Shape,
        n_tokens: &[usize],
    ) -> Result<Vec<Vec<SelectionLayout>>, Error> {
        if n_tokens.is_empty() {
            return Err(Error::EmptyBatch);
        }
        let of_prompt = |(index, &n): (usize, &usize)| {
            let selections = match n {
                0 => Err(Error::EmptyPrompt),
                _ => self.selections(shape, n).map_err(Error::from),
            };
            selections.map_err(|error| error.of_prompt(index, n_tokens.len()))
        };
        n_tokens.iter().enumerate().map(of_prompt).collect()
    }

    /// Rows of the decode tail: one per generated token that is fed back. The
    /// prompt has no say, although one near the context's end leaves less room:
    /// a tail that shrinks as prompts grow would make a longer prompt need less
    /// memory than a shorter one.
    pub fn tail_rows(&self, shape: &Shape) -> usize {
        self.max_new_tokens.min(shape.context)
    }

    /// Checks a prompt against the model.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::PromptTooLong`] or
    /// [`Error::TokenOutOfRange`].
    pub fn check_prompt(&self, shape: &Shape, tokens: &[u32]) -> Result<(), Error> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > shape.context {
            return Err(Error::PromptTooLong { tokens: tokens.len(), context: shape.context });
        }
        let vocab = shape.vocab;
        match tokens.iter().position(|&id| id as usize >= vocab) {
            Some(index) => Err(Error::TokenOutOfRange { id: tokens[index], index, vocab }),
            None => Ok(()),
        }
    }

    /// Checks the prompts of a batch against the model.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`], or as [`RunConfig::check_prompt`]; of several prompts
    /// the error says which.
    pub fn check_prompts(&self, shape: &Shape, prompts: &[&[u32]]) -> Result<(), Error> {
        if prompts.is_empty() {
            return Err(Error::EmptyBatch);
        }
        prompts.iter().enumerate().try_for_each(|(index, tokens)| {
            let checked = self.check_prompt(shape, tokens);
            checked.map_err(|error| error.of_prompt(index, prompts.len()))
        })
    }
}
