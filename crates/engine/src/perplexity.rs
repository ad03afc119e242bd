//! Perplexity: how well a model foresees a text.
//!
//! # What is computed
//!
//! A text of n tokens is read in windows of at most L tokens that begin `stride`
//! tokens apart. Every token is scored once, in the first window that holds it
//! with something in front, so that each but those of the first window has at
//! least `L - stride` tokens of context. The negative log-likelihood (NLL) of a
//! token is `ln sum(exp l) - l[token]` of the logits l one position before, in
//! nats ([`LogSoftmax`]); the perplexity is exp of the mean over all scored tokens.
//!
//! If the model's prompts begin with a BOS token, every window does: it takes one
//! of the L places, is never scored itself, and lets the text's first token be
//! scored. Without one the first token has nothing in front and is not scored.
//!
//! Rows of logits are streamed ([`Outputs::AllLogits`]): memory is that of
//! reading one window, whatever the text's length, plus its token ids.
//!
//! Reading attends to the whole window in every schedule, so neither selector nor
//! budget has a say; the smallest cache there is is kept.

use crate::backend::Backend;
use crate::config::{DEFAULT_CHUNK, DEFAULT_SCORE_BLOCK, Outputs, RunConfig};
use crate::element::Element;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::StepMemory;
use crate::observe::{Observer, Progress, Tap};
use crate::sample::LogSoftmax;
use crate::schedule::{ScheduleKind, Step};
use crate::select::{Scorer, Selector};
use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::ops::{AddAssign, ControlFlow, Range};

/// Settings of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct PerplexityConfig {
    /// L, tokens of a window, BOS included; `None` for the model's context.
    pub context: Option<NonZeroUsize>,
    /// Tokens from the beginning of a window to that of the next; `None` for half
    /// a window.
    pub stride: Option<NonZeroUsize>,
    /// The token that every window begins with, if any; usually
    /// [`crate::text::Tokenizer::prompt_bos`].
    pub bos: Option<u32>,
    /// C, tokens that pass through a layer at a time.
    pub chunk: NonZeroUsize,
    /// Storage of K/V.
    pub kv: Element,
    /// Storage of hidden states between layers.
    pub bridge: Element,
    /// Largest number of bytes that may be allocated; `None` for no limit.
    pub memory_limit: Option<u64>,
}

impl Default for PerplexityConfig {
    fn default() -> Self {
        PerplexityConfig {
            context: None,
            stride: None,
            bos: None,
            chunk: DEFAULT_CHUNK,
            kv: Element::default(),
            bridge: Element::default(),
            memory_limit: None,
        }
    }
}

/// Tokens of the smallest window: one to be scored, and one or BOS in front of it.
pub const SMALLEST_WINDOW: usize = 2;

/// A part of the text that is read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Tokens of the text that are read.
    pub tokens: Range<usize>,
    /// Those of them that are scored: the rest has been already, or has nothing in
    /// front.
    pub scored: Range<usize>,
}

/// How windows lie in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    n_tokens: usize,
    /// Tokens of the text in a full window.
    room: usize,
    stride: usize,
    /// Tokens at a window's start that cannot be scored: 1 without BOS.
    unscored: usize,
}

impl Windows {
    /// Windows of `context` tokens, BOS included if there is one, over a text of
    /// `n_tokens` tokens; a `stride` of `None` is half the window's text.
    ///
    /// # Errors
    /// [`Error::Setting`] for a text, window or stride that leaves no token, or
    /// not every token, to be scored.
    pub fn new(
        n_tokens: usize,
        context: usize,
        stride: Option<NonZeroUsize>,
        bos: Option<u32>,
    ) -> Result<Self, Error> {
        let bad = |setting, value: usize, reason: Cow<'static, str>| {
            Err(Error::Setting { setting, value: value.to_string(), reason })
        };
        if n_tokens == 0 {
            return Err(Error::EmptyPrompt);
        }
        let unscored = usize::from(bos.is_none());
        let room = context.saturating_sub(usize::from(bos.is_some()));
        if room <= unscored {
            let reason = format!("leaves no token to be scored; use at least {SMALLEST_WINDOW}");
            return bad("context-size", context, reason.into());
        }
        if n_tokens <= unscored {
            let reason = "a text needs at least 2, since nothing comes before its first";
            return bad("tokens", n_tokens, reason.into());
        }
        let stride = stride.map_or((room / 2).max(1), NonZeroUsize::get);
        let most = room - unscored;
        if stride > most {
            let reason = format!(
                "leaves tokens between windows of {context} tokens unscored; use at most {most}"
            );
            return bad("stride", stride, reason.into());
        }
        Ok(Windows { n_tokens, room, stride, unscored })
    }

    /// Number of windows.
    pub fn count(&self) -> usize {
        1 + self.n_tokens.saturating_sub(self.room).div_ceil(self.stride)
    }

    /// Tokens that are scored.
    pub fn n_scored(&self) -> usize {
        self.n_tokens - self.unscored
    }

    /// Tokens between the beginnings of two windows.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The windows, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Window> + use<> {
        let Windows { n_tokens, room, stride, unscored } = *self;
        (0..self.count()).map(move |index| {
            let start = index * stride;
            let end = start.saturating_add(room).min(n_tokens);
            // The window before ended `room` after its own beginning.
            let done = if index == 0 { unscored } else { start - stride + room };
            Window { tokens: start..end, scored: done..end }
        })
    }
}

/// Scored tokens, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Likelihood {
    /// Tokens scored.
    pub n_tokens: usize,
    /// Sum of their negative log-likelihoods, nats.
    pub nll: f64,
}

impl Likelihood {
    /// Mean negative log-likelihood, nats per token; NaN of no tokens.
    pub fn mean_nll(&self) -> f64 {
        self.nll / self.n_tokens as f64
    }

    /// exp of the mean.
    pub fn perplexity(&self) -> f64 {
        self.mean_nll().exp()
    }
}

impl AddAssign for Likelihood {
    fn add_assign(&mut self, other: Self) {
        self.n_tokens += other.n_tokens;
        self.nll += other.nll;
    }
}

/// Measures a text under a model, window by window.
///
/// ```no_run
/// # fn measure<B: tidekv::Backend>(engine: &tidekv::Engine<B>, text: &str) -> Result<f64, tidekv::Error> {
/// use tidekv::perplexity::{Likelihood, Perplexity, PerplexityConfig};
/// use tidekv::text::Specials;
///
/// let tokens = engine.tokenizer()?.encode_continuation(text, Specials::AsText)?;
/// let bos = engine.tokenizer()?.prompt_bos();
/// let config = PerplexityConfig { bos, ..PerplexityConfig::default() };
/// let measurement = Perplexity::new(engine, &tokens, &config)?;
/// let mut total = Likelihood::default();
/// for window in measurement.windows().iter() {
///     total += measurement.score(&window, &mut tidekv::Unobserved)?;
/// }
/// # Ok(total.perplexity()) }
/// ```
pub struct Perplexity<'e, B: Backend> {
    engine: &'e Engine<B>,
    tokens: &'e [u32],
    bos: Option<u32>,
    windows: Windows,
    run: RunConfig,
}

impl<'e, B: Backend> Perplexity<'e, B> {
    /// Measures `tokens`, a text without BOS.
    ///
    /// # Errors
    /// As [`Windows::new`], and [`Error::Setting`] for a window longer than the
    /// model's context.
    pub fn new(
        engine: &'e Engine<B>,
        tokens: &'e [u32],
        config: &PerplexityConfig,
    ) -> Result<Self, Error> {
        let limit = engine.model().spec.shape.context;
        let context = config.context.map_or(limit, NonZeroUsize::get);
        if context > limit {
            return Err(Error::Setting {
                setting: "context-size",
                value: context.to_string(),
                reason: format!(
                    "is more than the model's context of {limit} tokens; stretch it with \
                     --rope-scaling"
                )
                .into(),
            });
        }
        Ok(Perplexity {
            engine,
            tokens,
            bos: config.bos,
            windows: Windows::new(tokens.len(), context, config.stride, config.bos)?,
            run: RunConfig {
                schedule: ScheduleKind::Tide.with_chunk(config.chunk),
                selector: Selector::new(Scorer::Recency),
                budget: 1,
                score_block: DEFAULT_SCORE_BLOCK,
                kv: config.kv,
                bridge: config.bridge,
                max_new_tokens: 0,
                outputs: Outputs::AllLogits,
                memory_limit: config.memory_limit,
            },
        })
    }

    /// How the windows lie.
    pub fn windows(&self) -> Windows {
        self.windows
    }

    /// The token that every window begins with, if any.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that are read for a window, BOS included.
    pub fn n_read(&self, window: &Window) -> usize {
        window.tokens.len() + usize::from(self.bos.is_some())
    }

    /// Settings of the run of each window: what a plan of it is made from.
    pub fn run_config(&self) -> &RunConfig {
        &self.run
    }

    /// Reads a window and scores its tokens. `observer` sees the run and may
    /// cancel it.
    ///
    /// # Errors
    /// As [`Engine::prefill`].
    pub fn score(&self, window: &Window, observer: &mut dyn Observer) -> Result<Likelihood, Error> {
        let text = &self.tokens[window.tokens.clone()];
        let prompt: Vec<u32> = self.bos.iter().chain(text).copied().collect();
        let before_text = prompt.len() - text.len();
        let mut rows = Rows {
            prompt: &prompt,
            first: before_text + window.scored.start - window.tokens.start,
            likelihood: Likelihood::default(),
            inner: observer,
        };
        self.engine.prefill(&prompt, &self.run, &mut rows)?;
        Ok(rows.likelihood)
    }
}

/// Scores the tokens of a prompt as the logits before them pass.
struct Rows<'a> {
    prompt: &'a [u32],
    /// Position of the first token that is scored.
    first: usize,
    likelihood: Likelihood,
    inner: &'a mut dyn Observer,
}

impl Observer for Rows<'_> {
    fn before(&mut self, step: &Step, progress: &Progress, tap: &dyn Tap) -> ControlFlow<()> {
        self.inner.before(step, progress, tap)
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, tap: &dyn Tap) {
        self.inner.after(step, memory, tap);
    }

    fn logits_row(&mut self, _: usize, position: usize, logits: &[f32]) {
        let next = position + 1;
        if next < self.first {
            return;
        }
        if let Some(&token) = self.prompt.get(next) {
            let nll = -LogSoftmax::new(logits).of(logits[token as usize]);
            self.likelihood += Likelihood { n_tokens: 1, nll };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOS: Option<u32> = Some(1);

    fn windows(n_tokens: usize, context: usize, stride: usize, bos: Option<u32>) -> Vec<Window> {
        let windows = Windows::new(n_tokens, context, NonZeroUsize::new(stride), bos).unwrap();
        let all: Vec<Window> = windows.iter().collect();
        assert_eq!(all.len(), windows.count());
        assert_eq!(all.iter().map(|w| w.scored.len()).sum::<usize>(), windows.n_scored());
        all
    }

    #[test]
    fn a_short_text_is_one_window() {
        let whole = |tokens, scored| vec![Window { tokens, scored }];
        assert_eq!(windows(5, 8, 4, None), whole(0..5, 1..5));
        assert_eq!(windows(8, 8, 4, None), whole(0..8, 1..8));
        // BOS takes a place.
        assert_eq!(windows(7, 8, 4, BOS), whole(0..7, 0..7));
        assert_eq!(windows(1, 2, 1, BOS), whole(0..1, 0..1));
    }

    #[test]
    fn windows_overlap_and_score_what_is_new() {
        let window = |tokens, scored| Window { tokens, scored };
        let expected = [window(0..8, 1..8), window(4..12, 8..12), window(8..13, 12..13)];
        assert_eq!(windows(13, 8, 4, None), expected);
        let expected = [window(0..7, 0..7), window(7..13, 7..13)];
        assert_eq!(windows(13, 8, 7, BOS), expected);
    }

    #[test]
    fn every_token_is_scored_once_with_the_context_promised() {
        for n_tokens in 2..40 {
            for context in 2..12 {
                for bos in [None, BOS] {
                    let room = context - bos.iter().count();
                    let unscored = 1 - bos.iter().count();
                    for stride in 1..=room - unscored {
                        let mut next = unscored;
                        for (index, window) in
                            windows(n_tokens, context, stride, bos).iter().enumerate()
                        {
                            assert_eq!(window.scored.start, next);
                            assert!(window.tokens.len() <= room && !window.scored.is_empty());
                            let in_front = window.scored.start - window.tokens.start;
                            assert!(index == 0 || in_front == room - stride);
                            assert_eq!(window.tokens.end, window.scored.end);
                            next = window.scored.end;
                        }
                        assert_eq!(next, n_tokens);
                    }
                }
            }
        }
    }

    #[test]
    fn what_leaves_tokens_unscored_is_refused() {
        let setting = |n_tokens, context, stride, bos| match Windows::new(
            n_tokens,
            context,
            NonZeroUsize::new(stride),
            bos,
        ) {
            Err(Error::Setting { setting, .. }) => setting,
            other => panic!("{other:?}"),
        };
        assert_eq!(setting(9, 1, 0, None), "context-size");
        assert_eq!(setting(9, 0, 0, None), "context-size");
        assert_eq!(setting(9, 1, 0, BOS), "context-size");
        assert_eq!(setting(1, 8, 0, None), "tokens");
        assert_eq!(setting(9, 8, 8, None), "stride");
        assert_eq!(setting(9, 8, 8, BOS), "stride");
        assert!(matches!(Windows::new(0, 8, None, None), Err(Error::EmptyPrompt)));
        // Half a window, and at least one token.
        assert_eq!(Windows::new(9, 8, None, None).unwrap().stride(), 4);
        assert_eq!(Windows::new(9, 2, None, BOS).unwrap().stride(), 1);
    }

    #[test]
    fn rows_before_the_first_scored_token_do_not_count() {
        let rows = [[0.0f32, 0.0], [0.0, 0.0], [3f32.ln(), 0.0], [9.0, 0.0]];
        let likelihood = |first| {
            let mut scored = Rows {
                prompt: &[0, 1, 1, 0],
                first,
                likelihood: Likelihood::default(),
                inner: &mut crate::Unobserved,
            };
            for (position, row) in rows.iter().enumerate() {
                scored.logits_row(0, position, row);
            }
            scored.likelihood
        };
        // Probabilities 1/2, 1/2 and 3/4; ln 3 in f32 is 5e-8 off at most.
        let all = likelihood(1);
        assert_eq!(all.n_tokens, 3);
        assert!((all.nll - (16f64 / 3.0).ln()).abs() < 1e-7, "{all:?}");
        assert!((all.perplexity() - (16f64 / 3.0).cbrt()).abs() < 1e-7);
        let last = likelihood(3);
        assert_eq!(last.n_tokens, 1);
        assert!((last.mean_nll() - (4f64 / 3.0).ln()).abs() < 1e-7, "{last:?}");
        let mut sum = likelihood(1);
        sum += last;
        assert_eq!(sum, Likelihood { n_tokens: 4, nll: all.nll + last.nll });
    }
}
