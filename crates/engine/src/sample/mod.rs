//! Choosing the next token from logits.
//!
//! # Order
//!
//! 1. **Logit bias**: `l[t] += bias[t]`.
//! 2. **Repetition** penalty r, once for every token among the last n of prompt
//!    and answer: `l / r` where l > 0, else `l * r` (CTRL, arXiv:1909.05858,
//!    section 4.1, with the rule for negative logits of the later
//!    implementations).
//! 3. **Frequency** and **presence**: `l[t] -= c[t] * frequency + [c[t] > 0] * presence`,
//!    where c counts the answer alone (OpenAI API, "parameter details").
//! 4. **Temperature** T: 0 takes the largest logit and ends here; else
//!    `p = softmax(l / T)`.
//! 5. **Top-k**: the k most likely tokens.
//! 6. **Typical-p**: with the entropy H, tokens in ascending order of `|-ln p - H|`
//!    until their probabilities reach the sum (arXiv:2202.00666, equation 10).
//! 7. **Top-p**: tokens in descending order of p until they reach the sum
//!    (arXiv:1904.09751).
//! 8. **Min-p**: tokens with `p >= min_p * max(p)` (arXiv:2407.01082).
//! 9. One of what is left is drawn by its probability.
//!
//! Each filter sees the distribution that the one before it left, renormalised,
//! and keeps at least one token. Filters come after the temperature, as in the
//! OpenAI API and in Hugging Face's library; llama.cpp has the same filters in
//! the same order before it. Ties go to the lower id.
//!
//! All of this is in f64 and on one thread: the same logits, settings and seed
//! give the same token, however many threads the engine uses.
//!
//! [`Logprobs`] are of the model's own distribution, before step 1.

mod config;
mod filter;
mod history;
mod logprob;

pub use config::{DEFAULT_LAST_N, MAX_BIAS, MAX_PENALTY, MAX_REPETITION, Penalties, SampleConfig};
pub use logprob::{LogSoftmax, Logprobs, MAX_TOP_LOGPROBS, PromptLogprobs, TokenLogprob};

use crate::backend::BackendError;
use crate::error::Error;
use filter::{Candidate, fill, filter, total};
use history::History;

/// Draws tokens; holds the state of the random numbers and what penalties need
/// to know of the text so far.
#[derive(Debug, Clone)]
pub struct Sampler {
    config: SampleConfig,
    state: u64,
    history: History,
    // Kept between draws, so that a draw allocates nothing.
    scores: Vec<f64>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler with checked settings, before any text.
    ///
    /// # Errors
    /// As [`SampleConfig::validate`].
    pub fn new(config: SampleConfig) -> Result<Self, Error> {
        config.validate()?;
        Ok(Sampler {
            state: config.seed,
            history: History::new(config.penalties),
            config,
            scores: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// Tells the sampler what was read before the answer, in order: the prompt, then
    /// what followed it. Repetition takes account of it.
    pub fn read(&mut self, prompt: &[u32]) {
        self.history.push_prompt(prompt);
    }

    /// Tells the sampler that a token, drawn or not, is now part of the answer.
    pub fn accept(&mut self, token: u32) {
        self.history.push_answer(token);
    }

    /// Draws a token from `[vocab]` logits. A logit of negative infinity rules its
    /// token out. The token is not yet part of the answer ([`Sampler::accept`]).
    ///
    /// # Errors
    /// [`BackendError::NonFinite`] for a logit that is NaN or positive infinity,
    /// [`Error::Setting`] if nothing is left to be drawn.
    pub fn draw(&mut self, logits: &[f32]) -> Result<u32, Error> {
        self.score(logits)?;
        if self.config.temperature == 0.0 {
            return largest(&self.scores).ok_or_else(all_ruled_out);
        }
        fill(&mut self.candidates, &self.scores, self.config.temperature);
        filter(&mut self.candidates, &self.config);
        let mut left = self.uniform() * total(&self.candidates);
        for candidate in &self.candidates {
            left -= candidate.weight;
            if left < 0.0 {
                return Ok(candidate.id);
            }
        }
        // The sum was rounded up, and the draw fell beyond all of them.
        self.candidates.last().map(|candidate| candidate.id).ok_or_else(all_ruled_out)
    }

    /// Steps 1 to 3: logits with bias and penalties, in [`Sampler::scores`].
    fn score(&mut self, logits: &[f32]) -> Result<(), Error> {
        if let Some(id) = logits.iter().position(|&x| x.is_nan() || x == f32::INFINITY) {
            let position = self.history.n_tokens().saturating_sub(1);
            return Err(BackendError::NonFinite {
                place: format!("the logit of token {id}"),
                position,
            }
            .into());
        }
        self.scores.clear();
        self.scores.extend(logits.iter().map(|&logit| f64::from(logit)));
        for &(id, bias) in &self.config.logit_bias {
            if let Some(score) = self.scores.get_mut(id as usize) {
                *score += f64::from(bias);
            }
        }
        self.history.penalise(&mut self.scores);
        Ok(())
    }

    /// A number in [0, 1) with 53 random bits (SplitMix64; Steele et al. 2014).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn all_ruled_out() -> Error {
    Error::Setting {
        setting: "logit-bias",
        value: "-inf".to_owned(),
        reason: "rules out every token; leave at least one".into(),
    }
}

/// The index of the largest score, the lowest of equals; `None` if all are
/// negative infinity.
fn largest(scores: &[f64]) -> Option<u32> {
    let mut best = None;
    let mut most = f64::NEG_INFINITY;
    for (id, &score) in (0u32..).zip(scores) {
        if score > most {
            (best, most) = (Some(id), score);
        }
    }
    best
}

#[cfg(test)]
mod tests;
