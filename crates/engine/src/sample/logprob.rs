//! Log-probabilities: how likely the model itself thought a token.

use crate::memory::StepMemory;
use crate::observe::{Observer, Progress, Tap};
use crate::schedule::Step;
use std::ops::ControlFlow;

/// A token with its natural logarithm of the probability, in nats; at most 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: u32,
    /// ln of its probability under the model: the softmax of the logits as they
    /// are, before bias, penalties, temperature and filters.
    pub logprob: f32,
}

/// How likely a token was, and what would have been likelier.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// The token that was taken.
    pub chosen: TokenLogprob,
    /// The most likely tokens, best first, the lower id of equals; the chosen one
    /// is among them only if it is one of them.
    pub top: Vec<TokenLogprob>,
}

/// Most alternatives that may be asked for at a token: the OpenAI API's limit.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// The logarithm of the softmax of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogSoftmax {
    // Apart, because a large logit would swallow the sum's logarithm.
    best: f64,
    ln_sum: f64,
}

impl LogSoftmax {
    /// Of finite `[vocab]` logits.
    pub fn new(logits: &[f32]) -> Self {
        let best = logits.iter().fold(f64::NEG_INFINITY, |best, &x| best.max(f64::from(x)));
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - best).exp()).sum();
        LogSoftmax { best, ln_sum: sum.ln() }
    }

    /// ln of the probability of a token with this logit, in nats.
    pub fn of(self, logit: f32) -> f64 {
        (f64::from(logit) - self.best) - self.ln_sum
    }
}

impl Logprobs {
    /// Of `chosen` and of the `n_top` most likely tokens under finite `[vocab]`
    /// logits.
    ///
    /// # Panics
    /// If `chosen` is not below the number of logits.
    pub fn new(logits: &[f32], chosen: u32, n_top: usize) -> Self {
        let softmax = LogSoftmax::new(logits);
        let of = |token, logit| TokenLogprob { token, logprob: softmax.of(logit) as f32 };
        let top = most_likely(logits, n_top).into_iter().map(|(logit, id)| of(id, logit));
        Logprobs { chosen: of(chosen, logits[chosen as usize]), top: top.collect() }
    }
}

/// The `n` largest logits with their ids, largest first, the lower id of equals.
fn most_likely(logits: &[f32], n: usize) -> Vec<(f32, u32)> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(n.min(logits.len()) + 1);
    for (id, &logit) in (0u32..).zip(logits) {
        // Nearly every logit fails here, so the insertion below is rare.
        if best.len() == n && best.last().is_none_or(|&(least, _)| logit <= least) {
            continue;
        }
        let at = best.partition_point(|&(other, _)| other >= logit);
        best.insert(at, (logit, id));
        best.truncate(n);
    }
    best
}

/// An observer that hands out the log-probability of every token of each prompt
/// but its first, which has nothing before it. Works on a run with
/// [`crate::Outputs::AllLogits`]; holds one row of logits at a time and keeps
/// nothing.
pub struct PromptLogprobs<'a> {
    /// The prompts of the batch.
    pub prompts: &'a [&'a [u32]],
    /// Alternatives wanted at each token.
    pub n_top: usize,
    /// Sees everything else.
    pub inner: &'a mut dyn Observer,
    /// Gets the sequence of the batch, the position of a token there, ascending
    /// from 1, and its figures.
    pub each: &'a mut dyn FnMut(usize, usize, Logprobs),
}

impl Observer for PromptLogprobs<'_> {
    fn before(&mut self, step: &Step, progress: &Progress, tap: &dyn Tap) -> ControlFlow<()> {
        self.inner.before(step, progress, tap)
    }

    fn after(&mut self, step: &Step, memory: &StepMemory, tap: &dyn Tap) {
        self.inner.after(step, memory, tap);
    }

    fn logits_row(&mut self, seq: usize, position: usize, logits: &[f32]) {
        let next = self.prompts.get(seq).and_then(|prompt| prompt.get(position + 1));
        if let Some(&next) = next {
            (self.each)(seq, position + 1, Logprobs::new(logits, next, self.n_top));
        }
        self.inner.logits_row(seq, position, logits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_softmax() {
        // Probabilities 1/8, 1/4, 1/2, 1/8.
        let logits = [1f32, 2.0, 4.0, 1.0].map(f32::ln);
        let logprobs = Logprobs::new(&logits, 0, 3);
        let close = |found: TokenLogprob, token, probability: f32| {
            // Four roundings of f32 logarithms near 2.
            assert_eq!(found.token, token);
            assert!((found.logprob - probability.ln()).abs() < 1e-6, "{found:?}");
        };
        close(logprobs.chosen, 0, 0.125);
        assert_eq!(logprobs.top.len(), 3);
        close(logprobs.top[0], 2, 0.5);
        close(logprobs.top[1], 1, 0.25);
        close(logprobs.top[2], 0, 0.125);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logprobs = Logprobs::new(&[3e38, 3e38, -3e38], 1, 1);
        assert!((logprobs.chosen.logprob + 2f32.ln()).abs() < 1e-6, "{logprobs:?}");
        assert_eq!(logprobs.top[0].token, 0);
    }

    #[test]
    fn the_best_are_those_of_a_sort() {
        let logits: Vec<f32> = (0..1000).map(|i| (i * 7919 % 613) as f32).collect();
        let mut sorted: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for n in [0, 1, 2, 20, 999, 1000, 2000] {
            assert_eq!(most_likely(&logits, n), sorted[..n.min(1000)], "{n}");
        }
        assert!(Logprobs::new(&logits, 999, 0).top.is_empty());
    }

    #[test]
    fn a_row_says_how_likely_the_next_token_was() {
        let mut seen = Vec::new();
        let mut observer = PromptLogprobs {
            prompts: &[&[2, 0, 1], &[1, 2]],
            n_top: 1,
            inner: &mut crate::Unobserved,
            each: &mut |seq, position, logprobs| seen.push((seq, position, logprobs)),
        };
        let rows = [[9.0f32, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0; 3]];
        for (position, row) in rows.iter().enumerate() {
            observer.logits_row(0, position, row);
        }
        for (position, row) in rows[1..].iter().enumerate() {
            observer.logits_row(1, position, row);
        }
        let figures = |row: usize, token| Logprobs::new(&rows[row], token, 1);
        assert_eq!(seen, [(0, 1, figures(0, 0)), (0, 2, figures(1, 1)), (1, 1, figures(1, 2))]);
        let likely = |index: usize| seen[index].2.chosen.logprob > -0.01;
        assert_eq!([likely(0), likely(1), likely(2)], [true, false, true]);
    }
}
