//! Choosing the next token from logits.

use crate::error::Error;

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleConfig {
    /// 0 always takes the most likely token (lowest id on ties).
    pub temperature: f32,
    /// Only the k most likely tokens; `None` for all.
    pub top_k: Option<usize>,
    /// Only the most likely tokens whose probabilities reach this sum; 1 for
    /// all.
    pub top_p: f32,
    /// Seed of the random numbers; the same seed gives the same tokens.
    pub seed: u64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        SampleConfig { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 }
    }
}

impl SampleConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::Setting`] names the first that makes no sense.
    pub fn validate(&self) -> Result<(), Error> {
        let bad = |setting, value: String, reason| Err(Error::Setting { setting, value, reason });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            let reason = "must be 0 (always the most likely token) or a positive number";
            return bad("temperature", self.temperature.to_string(), reason);
        }
        if self.top_k == Some(0) {
            return bad("top-k", "0".to_owned(), "must be at least 1");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top-p", self.top_p.to_string(), "must be above 0 and at most 1");
        }
        Ok(())
    }
}

/// Draws tokens; holds the state of the random numbers.
#[derive(Debug, Clone)]
pub struct Sampler {
    config: SampleConfig,
    state: u64,
}

impl Sampler {
    /// A sampler with checked settings.
    ///
    /// # Errors
    /// As [`SampleConfig::validate`].
    pub fn new(config: SampleConfig) -> Result<Self, Error> {
        config.validate()?;
        Ok(Sampler { config, state: config.seed })
    }

    /// Draws a token from `[vocab]` logits, which are finite.
    pub fn draw(&mut self, logits: &[f32]) -> u32 {
        if self.config.temperature == 0.0 {
            return most_likely(logits);
        }
        let mut ranked: Vec<(f32, u32)> =
            (0u32..).zip(logits).map(|(id, &logit)| (logit, id)).collect();
        // Ties by id, so that equal logits draw equally everywhere.
        let by_logit = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if let Some(k) = self.config.top_k.filter(|&k| k < ranked.len()) {
            ranked.select_nth_unstable_by(k, by_logit);
            ranked.truncate(k);
        }
        ranked.sort_unstable_by(by_logit);
        let best = f64::from(ranked[0].0);
        let temperature = f64::from(self.config.temperature);
        let weight = |logit: f32| ((f64::from(logit) - best) / temperature).exp();
        let total: f64 = ranked.iter().map(|&(logit, _)| weight(logit)).sum();
        // The nucleus is the shortest prefix that reaches top-p; drawing inside
        // it is drawing below the prefix's own sum.
        let mut nucleus = 0.0;
        let mut kept = 0;
        for &(logit, _) in &ranked {
            nucleus += weight(logit);
            kept += 1;
            if nucleus >= f64::from(self.config.top_p) * total {
                break;
            }
        }
        let mut left = self.uniform() * nucleus;
        for &(logit, id) in &ranked[..kept] {
            left -= weight(logit);
            if left < 0.0 {
                return id;
            }
        }
        ranked[kept - 1].1
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

/// The token with the largest logit; the lowest id on ties.
pub fn most_likely(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(config: SampleConfig) -> Sampler {
        Sampler::new(config).unwrap()
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equals() {
        assert_eq!(sampler(SampleConfig::default()).draw(&[1.0, 3.0, 3.0]), 1);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let config = SampleConfig { temperature: 0.5, ..SampleConfig::default() };
        let mut sampler = sampler(config);
        let logits = [0.0, 0.5, 1.0];
        let weights = logits.map(|logit: f64| (logit / 0.5).exp());
        let mut counts = [0.0; 3];
        const DRAWS: usize = 100_000;
        for _ in 0..DRAWS {
            counts[sampler.draw(&logits.map(|logit| logit as f32)) as usize] += 1.0;
        }
        for (count, weight) in counts.iter().zip(weights) {
            let p = weight / weights.iter().sum::<f64>();
            // Five standard deviations of a binomial share.
            let bound = 5.0 * (p * (1.0 - p) / DRAWS as f64).sqrt();
            assert!((count / DRAWS as f64 - p).abs() < bound, "{count} {p}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.0, 1.0, 2.0, 3.0];
        let draws = |config| {
            let mut sampler = sampler(config);
            let mut seen: Vec<u32> = (0..2000).map(|_| sampler.draw(&logits)).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        let hot = SampleConfig { temperature: 1.0, ..SampleConfig::default() };
        assert_eq!(draws(SampleConfig { top_k: Some(2), ..hot }), [2, 3]);
        // p(3) = 0.644, p(3) + p(2) = 0.881.
        assert_eq!(draws(SampleConfig { top_p: 0.64, ..hot }), [3]);
        assert_eq!(draws(SampleConfig { top_p: 0.8, ..hot }), [2, 3]);
        assert_eq!(draws(hot), [0, 1, 2, 3]);
    }

    #[test]
    fn same_seed_same_tokens_and_bad_settings_are_refused() {
        let config = SampleConfig { temperature: 1.0, seed: 7, ..SampleConfig::default() };
        let draw = |config| {
            let mut sampler = sampler(config);
            (0..20).map(|_| sampler.draw(&[0.1; 50])).collect::<Vec<_>>()
        };
        assert_eq!(draw(config), draw(config));
        assert_ne!(draw(config), draw(SampleConfig { seed: 8, ..config }));
        for bad in [
            SampleConfig { temperature: -1.0, ..config },
            SampleConfig { temperature: f32::NAN, ..config },
            SampleConfig { top_k: Some(0), ..config },
            SampleConfig { top_p: 0.0, ..config },
            SampleConfig { top_p: 1.5, ..config },
        ] {
            assert!(Sampler::new(bad).is_err(), "{bad:?}");
        }
    }
}
