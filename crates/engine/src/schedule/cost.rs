//! What a step costs: floating-point operations, for progress, remaining time and rates.

use super::{ScheduleKind, Step};
use crate::model::Shape;
use std::num::NonZeroUsize;
use std::ops::Add;

/// Floating-point operations, the unit in which progress is measured.
pub type Cost = f64;

/// Floating-point operations of prefill by what does them; a multiply-add counts as two.
///
/// Only what a model needs is counted: no exponential, no norm, no tile above the diagonal of
/// attention, no packing. Orders and chunks differ in none of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Products of activations and weights.
    pub products: Cost,
    /// Queries by keys and weights by values, of the keys that a query sees.
    pub attention: Cost,
    /// The two passes of a window of queries over all keys at a layer's end.
    pub scoring: Cost,
}

impl Work {
    /// Of one step of sequences with `n_tokens` tokens each, where the logits of each last token are
    /// asked for: the last layer then computes K and V of every row and the rest for one.
    pub fn of(shape: &Shape, n_tokens: &[usize], step: &Step) -> Work {
        let f = |n: usize| n as f64;
        let nothing = Work::default();
        match *step {
            Step::Embed { .. } => nothing,
            Step::Layer { seq, layer, chunk } => {
                let cached = 4.0 * f(shape.d_model) * f(shape.kv_cols());
                let others = 4.0 * f(shape.d_model) * f(shape.q_cols())
                    + 6.0 * f(shape.d_model) * f(shape.d_ff);
                let last_layer = layer + 1 == shape.n_layers;
                let whole = match (last_layer, chunk.end() == n_tokens[seq]) {
                    (false, _) => chunk.start..chunk.end(),
                    (true, true) => chunk.end() - 1..chunk.end(),
                    (true, false) => chunk.end()..chunk.end(),
                };
                let window = shape.window(layer).map_or(usize::MAX, |window| window.get());
                let seen = seen_before(whole.end, window) - seen_before(whole.start, window);
                Work {
                    products: cached * f(chunk.len) + others * f(whole.len()),
                    attention: 4.0 * seen * f(shape.q_cols()),
                    scoring: 0.0,
                }
            }
            Step::Evict { seq, layer } => {
                const WINDOW: f64 = 32.0;
                let scored = shape.window(layer).is_none();
                let passes = 2.0 * 2.0 * WINDOW * f(n_tokens[seq]) * f(shape.q_cols());
                Work { scoring: if scored { passes } else { 0.0 }, ..nothing }
            }
            Step::Head { .. } => {
                Work { products: 2.0 * f(shape.d_model) * f(shape.vocab), ..nothing }
            }
        }
    }

    /// Of reading prompts of `n_tokens` tokens each.
    pub fn of_prompts(shape: &Shape, n_tokens: &[usize]) -> Work {
        // Any order would do; this one has the fewest steps.
        let whole = ScheduleKind::OneShot.with_chunk(NonZeroUsize::MIN);
        let steps = whole.steps(shape.n_layers, n_tokens);
        steps.fold(Work::default(), |sum, step| sum + Work::of(shape, n_tokens, &step))
    }

    /// Seconds that it takes at these rates, in floating-point operations per second; scoring goes at
    /// the rate of attention, whose arithmetic it has.
    pub fn seconds(&self, products: f64, attention: f64) -> f64 {
        self.products / products + (self.attention + self.scoring) / attention
    }

    /// All of it.
    pub fn total(&self) -> Cost {
        self.products + self.attention + self.scoring
    }
}

/// Keys that the queries of positions `0..end` see, summed.
fn seen_before(end: usize, window: usize) -> f64 {
    // Query p sees min(p + 1, window) keys.
    let ramp = end.min(window) as f64;
    ramp * (ramp + 1.0) / 2.0 + end.saturating_sub(window) as f64 * window as f64
}

impl Add for Work {
    type Output = Work;

    fn add(self, other: Work) -> Work {
        Work {
            products: self.products + other.products,
            attention: self.attention + other.attention,
            scoring: self.scoring + other.scoring,
        }
    }
}

/// What one step counts in progress. Attention of a chunk grows with its position, so that progress
/// moves evenly although later chunks take longer.
pub fn step_cost(shape: &Shape, n_tokens: &[usize], step: &Step) -> Cost {
    let moved = match step {
        // A table look-up; not zero, so that an empty model still progresses.
        Step::Embed { chunk, .. } => (chunk.len * shape.d_model) as f64,
        _ => 0.0,
    };
    moved + Work::of(shape, n_tokens, step).total()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(window: Option<usize>) -> Shape {
        Shape {
            n_layers: 3,
            d_model: 8,
            d_ff: 20,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 4,
            vocab: 50,
            context: 1000,
            windows: vec![window.and_then(NonZeroUsize::new); 3],
        }
    }

    /// Every order does the same work, and it is what counting one query at a time gives.
    #[test]
    fn work_is_counted_by_query_in_every_order() {
        for window in [None, Some(5)] {
            let shape = shape(window);
            for n_tokens in [1usize, 4, 5, 6, 23] {
                let seen = |p: usize| (p + 1).min(window.unwrap_or(usize::MAX)) as f64;
                let all: f64 = (0..n_tokens).map(seen).sum();
                let last = seen(n_tokens - 1);
                let rows = n_tokens as f64;
                let (kv, rest) =
                    (2.0 * 2.0 * 8.0 * 8.0, 2.0 * (2.0 * 8.0 * 16.0 + 3.0 * 8.0 * 20.0));
                let expected = Work {
                    products: 3.0 * kv * rows + rest * (2.0 * rows + 1.0) + 2.0 * 8.0 * 50.0,
                    attention: 4.0 * 16.0 * (2.0 * all + last),
                    scoring: if window.is_none() { 3.0 * 4.0 * 32.0 * rows * 16.0 } else { 0.0 },
                };
                assert_eq!(Work::of_prompts(&shape, &[n_tokens]), expected);
                for kind in ScheduleKind::ALL {
                    let schedule = kind.with_chunk(NonZeroUsize::new(4).unwrap());
                    let tokens = [n_tokens];
                    let steps = schedule.steps(3, &tokens);
                    let work = steps
                        .fold(Work::default(), |sum, step| sum + Work::of(&shape, &tokens, &step));
                    assert_eq!(work, expected, "{kind}, {n_tokens} tokens, window {window:?}");
                }
            }
        }
    }
}
