//! What has been said, as far as penalties look at it.

use super::Penalties;
use std::collections::{HashMap, VecDeque};

/// Tokens of the prompt and the answer, counted.
#[derive(Debug, Clone)]
pub(super) struct History {
    penalties: Penalties,
    /// The tokens that repetition looks at, oldest first, and how often each
    /// occurs among them.
    recent: VecDeque<u32>,
    in_recent: HashMap<u32, usize>,
    /// How often each token occurs in the answer.
    in_answer: HashMap<u32, usize>,
    n_tokens: usize,
}

impl History {
    /// Nothing has been said.
    pub(super) fn new(penalties: Penalties) -> Self {
        History {
            penalties,
            recent: VecDeque::new(),
            in_recent: HashMap::new(),
            in_answer: HashMap::new(),
            n_tokens: 0,
        }
    }

    /// Tokens seen, prompt and answer.
    pub(super) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Adds tokens of the prompt.
    pub(super) fn push_prompt(&mut self, tokens: &[u32]) {
        self.n_tokens += tokens.len();
        if self.penalties.repetition == 1.0 {
            return;
        }
        let looked_at = self.penalties.last_n.map_or(tokens.len(), |n| n.get().min(tokens.len()));
        for &token in &tokens[tokens.len() - looked_at..] {
            self.push_recent(token);
        }
    }

    /// Adds a token of the answer.
    pub(super) fn push_answer(&mut self, token: u32) {
        self.n_tokens += 1;
        if self.penalties.repetition != 1.0 {
            self.push_recent(token);
        }
        if self.penalties.presence != 0.0 || self.penalties.frequency != 0.0 {
            *self.in_answer.entry(token).or_default() += 1;
        }
    }

    fn push_recent(&mut self, token: u32) {
        *self.in_recent.entry(token).or_default() += 1;
        // Without a border nothing ever leaves, so the order need not be kept.
        let Some(last_n) = self.penalties.last_n else { return };
        self.recent.push_back(token);
        if self.recent.len() <= last_n.get() {
            return;
        }
        if let Some(oldest) = self.recent.pop_front()
            && let Some(count) = self.in_recent.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.in_recent.remove(&oldest);
            }
        }
    }

    /// Applies the penalties to `[vocab]` scores: repetition, then presence and
    /// frequency. Each token's score depends on its own counts alone.
    pub(super) fn penalise(&self, scores: &mut [f64]) {
        let Penalties { repetition, presence, frequency, .. } = self.penalties;
        let repetition = f64::from(repetition);
        for &token in self.in_recent.keys() {
            if let Some(score) = scores.get_mut(token as usize) {
                *score = if *score > 0.0 { *score / repetition } else { *score * repetition };
            }
        }
        for (&token, &count) in &self.in_answer {
            if let Some(score) = scores.get_mut(token as usize) {
                *score -= count as f64 * f64::from(frequency) + f64::from(presence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn penalised(history: &History, scores: [f64; 5]) -> [f64; 5] {
        let mut scores = scores;
        history.penalise(&mut scores);
        scores
    }

    const NONE: Penalties =
        Penalties { repetition: 1.0, last_n: None, presence: 0.0, frequency: 0.0 };

    #[test]
    fn repetition_looks_at_prompt_and_answer_and_once_per_token() {
        let mut history = History::new(Penalties { repetition: 2.0, ..NONE });
        history.push_prompt(&[0, 1, 1]);
        history.push_answer(4);
        let scores = [3.0, -3.0, 5.0, -5.0, 0.0];
        assert_eq!(penalised(&history, scores), [1.5, -6.0, 5.0, -5.0, 0.0]);
        assert_eq!(history.n_tokens(), 4);
    }

    #[test]
    fn repetition_forgets_what_is_further_back() {
        let last_n = NonZeroUsize::new(3);
        let mut history = History::new(Penalties { repetition: 2.0, last_n, ..NONE });
        history.push_prompt(&[0, 1, 2, 1]);
        let scores = [4.0; 5];
        assert_eq!(penalised(&history, scores), [4.0, 2.0, 2.0, 4.0, 4.0]);
        history.push_answer(3);
        assert_eq!(penalised(&history, scores), [4.0, 2.0, 2.0, 2.0, 4.0]);
        // Both occurrences of 1 are gone only after two more.
        history.push_answer(3);
        assert_eq!(penalised(&history, scores), [4.0, 2.0, 4.0, 2.0, 4.0]);
        history.push_answer(3);
        assert_eq!(penalised(&history, scores), [4.0, 4.0, 4.0, 2.0, 4.0]);
    }

    #[test]
    fn presence_and_frequency_count_the_answer_alone() {
        let mut history = History::new(Penalties { presence: 0.5, frequency: 0.25, ..NONE });
        history.push_prompt(&[0, 0, 1]);
        for token in [1, 2, 2, 2] {
            history.push_answer(token);
        }
        assert_eq!(penalised(&history, [1.0; 5]), [1.0, 0.25, -0.25, 1.0, 1.0]);
    }

    #[test]
    fn a_token_beyond_the_logits_is_no_panic() {
        let mut history = History::new(Penalties { repetition: 2.0, presence: 1.0, ..NONE });
        history.push_prompt(&[9]);
        history.push_answer(u32::MAX);
        assert_eq!(penalised(&history, [1.0; 5]), [1.0; 5]);
    }
}
