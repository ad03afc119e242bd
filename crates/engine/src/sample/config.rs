//! The numbers that decide how tokens are chosen, and what each may be.

use crate::error::Error;
use std::num::NonZeroUsize;

/// How tokens are chosen. The module documentation of [`crate::sample`] has the
/// order in which the fields act, and their formulas.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleConfig {
    /// 0 always takes the most likely token (lowest id on ties).
    pub temperature: f32,
    /// Only the k most likely tokens; `None` for all.
    pub top_k: Option<usize>,
    /// Only the tokens whose surprise is nearest to the expected one, until their
    /// probabilities reach this sum; 1 for all.
    pub typical_p: f32,
    /// Only the most likely tokens whose probabilities reach this sum; 1 for
    /// all.
    pub top_p: f32,
    /// Only tokens at least this share as likely as the most likely one; 0 for
    /// all.
    pub min_p: f32,
    /// What has been said already becomes less likely.
    pub penalties: Penalties,
    /// Numbers added to the logits of single tokens, as (token id, bias);
    /// negative infinity rules a token out. Several for one token add up.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; the same seed gives the same tokens.
    pub seed: u64,
}

impl Default for SampleConfig {
    fn default() -> Self {
        SampleConfig {
            temperature: 0.0,
            top_k: None,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            penalties: Penalties::default(),
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Penalties of what has been said already.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Divides positive and multiplies negative logits of every token among the
    /// last [`Penalties::last_n`] of prompt and answer; 1 for none.
    pub repetition: f32,
    /// How far back repetition looks, in tokens of prompt and answer together;
    /// `None` for all. A long document holds nearly every token of the language,
    /// so that looking at all of it penalises nearly everything alike.
    pub last_n: Option<NonZeroUsize>,
    /// Subtracted from the logit of every token of the answer so far; 0 for none.
    pub presence: f32,
    /// Subtracted once for each time the token occurs in the answer so far; 0 for
    /// none.
    pub frequency: f32,
}

/// How far back the repetition penalty looks by default, in tokens.
pub const DEFAULT_LAST_N: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Largest repetition penalty; published uses stay below 2.
pub const MAX_REPETITION: f32 = 10.0;
/// Largest presence or frequency penalty, of either sign: the OpenAI API's.
pub const MAX_PENALTY: f32 = 2.0;
/// Largest finite logit bias, of either sign: the OpenAI API's.
pub const MAX_BIAS: f32 = 100.0;

impl Default for Penalties {
    fn default() -> Self {
        Penalties { repetition: 1.0, last_n: Some(DEFAULT_LAST_N), presence: 0.0, frequency: 0.0 }
    }
}

impl SampleConfig {
    /// Checks the numbers. Whether the model has the tokens of the bias is
    /// [`crate::Session::generate`]'s to check.
    ///
    /// # Errors
    /// [`Error::Setting`] names the first that makes no sense, with its limits.
    pub fn validate(&self) -> Result<(), Error> {
        let bad = |setting, value: String, reason: &'static str| {
            Err(Error::Setting { setting, value, reason: reason.into() })
        };
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            let reason = "must be 0 (always the most likely token) or a positive number";
            return bad("temperature", self.temperature.to_string(), reason);
        }
        if self.top_k == Some(0) {
            return bad("top-k", "0".to_owned(), "must be at least 1");
        }
        for (setting, value) in [("top-p", self.top_p), ("typical-p", self.typical_p)] {
            if !(value > 0.0 && value <= 1.0) {
                return bad(setting, value.to_string(), "must be above 0 and at most 1");
            }
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return bad("min-p", self.min_p.to_string(), "must be at least 0 and at most 1");
        }
        self.penalties.validate()?;
        let allowed = |bias: f32| bias == f32::NEG_INFINITY || bias.abs() <= MAX_BIAS;
        match self.logit_bias.iter().find(|(_, bias)| !allowed(*bias)) {
            Some((id, bias)) => {
                let reason = "must be from -100 to 100, or -inf to rule the token out";
                bad("logit-bias", format!("{id}={bias}"), reason)
            }
            None => Ok(()),
        }
    }
}

impl Penalties {
    fn validate(&self) -> Result<(), Error> {
        let bad = |setting, value: f32, reason: &'static str| {
            Err(Error::Setting { setting, value: value.to_string(), reason: reason.into() })
        };
        if !(self.repetition > 0.0 && self.repetition <= MAX_REPETITION) {
            let reason = "must be above 0 and at most 10 (1 is none)";
            return bad("repetition-penalty", self.repetition, reason);
        }
        let additive = [("presence-penalty", self.presence), ("frequency-penalty", self.frequency)];
        for (setting, value) in additive {
            if !(-MAX_PENALTY..=MAX_PENALTY).contains(&value) {
                return bad(setting, value, "must be from -2 to 2 (0 is none)");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_impossible_number_is_named_and_the_limits_themselves_pass() {
        let good = SampleConfig::default();
        let penalties = Penalties::default();
        let with = |penalties| SampleConfig { penalties, ..SampleConfig::default() };
        let cases = [
            (SampleConfig { temperature: -1.0, ..good.clone() }, "temperature"),
            (SampleConfig { temperature: f32::NAN, ..good.clone() }, "temperature"),
            (SampleConfig { temperature: f32::INFINITY, ..good.clone() }, "temperature"),
            (SampleConfig { top_k: Some(0), ..good.clone() }, "top-k"),
            (SampleConfig { top_p: 0.0, ..good.clone() }, "top-p"),
            (SampleConfig { top_p: 1.5, ..good.clone() }, "top-p"),
            (SampleConfig { typical_p: 0.0, ..good.clone() }, "typical-p"),
            (SampleConfig { typical_p: f32::NAN, ..good.clone() }, "typical-p"),
            (SampleConfig { min_p: -0.1, ..good.clone() }, "min-p"),
            (SampleConfig { min_p: 1.1, ..good.clone() }, "min-p"),
            (with(Penalties { repetition: 0.0, ..penalties }), "repetition-penalty"),
            (with(Penalties { repetition: 10.1, ..penalties }), "repetition-penalty"),
            (with(Penalties { presence: 2.1, ..penalties }), "presence-penalty"),
            (with(Penalties { frequency: f32::NAN, ..penalties }), "frequency-penalty"),
            (SampleConfig { logit_bias: vec![(1, 0.0), (2, 101.0)], ..good.clone() }, "logit-bias"),
            (SampleConfig { logit_bias: vec![(1, f32::INFINITY)], ..good.clone() }, "logit-bias"),
            (SampleConfig { logit_bias: vec![(1, f32::NAN)], ..good.clone() }, "logit-bias"),
        ];
        for (config, name) in cases {
            let error = config.validate().unwrap_err();
            assert!(matches!(error, Error::Setting { setting, .. } if setting == name), "{error}");
        }
        let limits = SampleConfig {
            top_k: Some(1),
            min_p: 1.0,
            penalties: Penalties {
                repetition: MAX_REPETITION,
                last_n: None,
                presence: -MAX_PENALTY,
                frequency: MAX_PENALTY,
            },
            logit_bias: vec![(0, MAX_BIAS), (1, -MAX_BIAS), (2, f32::NEG_INFINITY)],
            ..good.clone()
        };
        assert!(limits.validate().is_ok() && good.validate().is_ok());
    }

    #[test]
    fn messages_state_the_limits_that_are_checked() {
        let message = |config: SampleConfig| config.validate().unwrap_err().to_string();
        let penalties = |penalties| SampleConfig { penalties, ..SampleConfig::default() };
        let none = Penalties::default();
        let repetition = message(penalties(Penalties { repetition: 99.0, ..none }));
        assert!(repetition.contains(&format!("at most {MAX_REPETITION} ")), "{repetition}");
        let presence = message(penalties(Penalties { presence: 99.0, ..none }));
        assert!(presence.contains(&format!("from -{MAX_PENALTY} to {MAX_PENALTY} ")), "{presence}");
        let logit_bias = vec![(7, 999.0)];
        let bias = message(SampleConfig { logit_bias, ..SampleConfig::default() });
        assert!(
            bias.contains(&format!("7=999: must be from -{MAX_BIAS} to {MAX_BIAS},")),
            "{bias}"
        );
    }
}
