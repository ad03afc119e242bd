//! What a step costs, for progress and remaining time.

use super::Step;
use crate::model::Shape;

/// Floating-point operations, the unit in which progress is measured.
pub type Cost = f64;

/// Multiply-adds (counted as two) of one prefill step of sequences with
/// `n_tokens` tokens each. Attention of a chunk grows with its position, so that
/// progress moves evenly although later chunks take longer.
pub fn step_cost(shape: &Shape, n_tokens: &[usize], step: &Step) -> Cost {
    let f = |n: usize| n as f64;
    let matrices = f(shape.d_model) * f(2 * shape.q_cols() + 2 * shape.kv_cols())
        + 3.0 * f(shape.d_model) * f(shape.d_ff);
    match step {
        // A table look-up; not zero, so that an empty model still progresses.
        Step::Embed { chunk, .. } => f(chunk.len * shape.d_model),
        Step::Layer { layer, chunk, .. } => {
            let seen = f(chunk.len) * (f(chunk.start) + f(chunk.len) / 2.0);
            let whole = 2.0 * matrices * f(chunk.len) + 4.0 * seen * f(shape.q_cols());
            // The last layer computes only what the logits of one row need.
            let last = layer + 1 == shape.n_layers;
            if last { 4.0 * f(shape.d_model) * f(shape.kv_cols()) * f(chunk.len) } else { whole }
        }
        Step::Evict { seq, .. } => {
            // Two passes of a window of queries over all keys.
            const WINDOW: f64 = 32.0;
            2.0 * 2.0 * WINDOW * f(n_tokens[*seq]) * f(shape.q_cols())
        }
        Step::Head { .. } => 2.0 * f(shape.d_model) * f(shape.vocab),
    }
}
