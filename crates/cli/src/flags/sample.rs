//! Flags of the answer: how its tokens are chosen and what is reported of them.

use super::number::count;
use clap::Args;
use std::num::NonZeroUsize;
use std::str::FromStr;
use tidekv::sample::{MAX_TOP_LOGPROBS, Penalties};
use tidekv::{Outputs, SampleConfig};

/// How tokens of the answer are chosen.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Sampling")]
pub struct SampleFlags {
    /// 0 always takes the most likely token; larger is more varied
    ///
    /// What acts first: --logit-bias, the penalties, the temperature; then, unless it is 0, --top-k,
    /// --typical-p, --top-p and --min-p, each on what the one before has left.
    #[arg(long, default_value = "0", value_name = "T", value_parser = temperature)]
    #[arg(allow_negative_numbers = true)]
    pub temperature: f32,
    /// Only the N most likely tokens [default: all]
    #[arg(long, value_name = "N", value_parser = top_k)]
    pub top_k: Option<usize>,
    /// Only the tokens about as surprising as the text is on average, until they reach this
    /// probability
    #[arg(long, default_value = "1", value_name = "P", value_parser = typical_p)]
    #[arg(allow_negative_numbers = true)]
    pub typical_p: f32,
    /// Only the most likely tokens that together reach this probability
    #[arg(long, default_value = "1", value_name = "P", value_parser = top_p)]
    #[arg(allow_negative_numbers = true)]
    pub top_p: f32,
    /// Only tokens at least P times as likely as the most likely one
    #[arg(long, default_value = "0", value_name = "P", value_parser = min_p)]
    #[arg(allow_negative_numbers = true)]
    pub min_p: f32,
    /// Divides (negative: multiplies) the logits of what was said before, prompt included; 1 is
    /// none
    #[arg(long, default_value = "1", value_name = "R", value_parser = repetition)]
    #[arg(allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    /// How many of the last tokens, prompt and answer together, --repetition-penalty looks at; or
    /// all
    #[arg(long, default_value = "64", value_name = "N|all")]
    pub repetition_last_n: LastN,
    /// Subtracted from the logit of each token that is in the answer, -2 to 2
    #[arg(long, default_value = "0", value_name = "A", value_parser = presence)]
    #[arg(allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted as often as the token is in the answer, -2 to 2
    #[arg(long, default_value = "0", value_name = "A", value_parser = frequency)]
    #[arg(allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Added to the logit of a token, -100 to 100, or -inf to rule it out; several with commas or
    /// by repeating
    #[arg(long, value_name = "ID=BIAS", value_parser = bias, value_delimiter = ',')]
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same answer
    #[arg(long, default_value = "0", value_name = "N")]
    pub seed: u64,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
}

/// What is reported of tokens.
#[derive(Args, Debug, Clone, Copy, Default)]
#[command(next_help_heading = "Output")]
pub struct LogprobFlags {
    /// Report how likely each token of the answer was, with the N most likely ones (`logprobs`)
    ///
    /// ln of the probability under the model itself, before bias, penalties, temperature and
    /// filters.
    #[arg(long, value_name = "N", value_parser = n_top, requires = "json")]
    pub logprobs: Option<usize>,
    /// Report the same of each token of the prompt but the first (`prompt_logprobs`)
    ///
    /// All rows of the last layer are then computed, and logits for each: slower, and with memory for
    /// up to 16 MiB of logits and a row on top of what `tidekv plan` says. The report grows with the
    /// prompt.
    #[arg(long, value_name = "N", value_parser = n_top, requires = "json")]
    pub prompt_logprobs: Option<usize>,
}

impl LogprobFlags {
    /// What prefill has to compute for them.
    pub fn outputs(&self) -> Outputs {
        match self.prompt_logprobs {
            Some(_) => Outputs::AllLogits,
            None => Outputs::LastLogits,
        }
    }
}

/// How far back repetition looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastN {
    /// At everything.
    All,
    /// At this many tokens.
    Tokens(NonZeroUsize),
}

impl FromStr for LastN {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(LastN::All);
        }
        let tokens = count(text).map_err(|error| format!("{error}, or all"))?;
        let none = "must be at least 1, or all; --repetition-penalty 1 is none";
        NonZeroUsize::new(tokens).map(LastN::Tokens).ok_or_else(|| none.to_owned())
    }
}

impl Default for SampleFlags {
    /// The most likely token, always.
    fn default() -> Self {
        let SampleConfig {
            temperature,
            top_k,
            typical_p,
            top_p,
            min_p,
            penalties,
            logit_bias,
            seed,
        } = SampleConfig::default();
        SampleFlags {
            temperature,
            top_k,
            typical_p,
            top_p,
            min_p,
            repetition_penalty: penalties.repetition,
            repetition_last_n: penalties.last_n.map_or(LastN::All, LastN::Tokens),
            presence_penalty: penalties.presence,
            frequency_penalty: penalties.frequency,
            logit_bias,
            seed,
            stop: Vec::new(),
        }
    }
}

impl SampleFlags {
    /// The sampler's settings.
    pub fn config(&self) -> SampleConfig {
        SampleConfig {
            temperature: self.temperature,
            top_k: self.top_k,
            typical_p: self.typical_p,
            top_p: self.top_p,
            min_p: self.min_p,
            penalties: Penalties {
                repetition: self.repetition_penalty,
                last_n: match self.repetition_last_n {
                    LastN::All => None,
                    LastN::Tokens(tokens) => Some(tokens),
                },
                presence: self.presence_penalty,
                frequency: self.frequency_penalty,
            },
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

/// Settings that differ from the default in one number.
fn with<T: Copy>(value: T, set: impl FnOnce(&mut SampleConfig, T)) -> Result<T, String> {
    let mut config = SampleConfig::default();
    set(&mut config, value);
    config.validate().map(|()| value).map_err(|error| error.to_string())
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a number"))
}

fn temperature(text: &str) -> Result<f32, String> {
    with(number(text)?, |config, value| config.temperature = value)
}

fn top_k(text: &str) -> Result<usize, String> {
    with(number(text)?, |config, value| config.top_k = Some(value))
}

fn typical_p(text: &str) -> Result<f32, String> {
    with(number(text)?, |config, value| config.typical_p = value)
}

fn top_p(text: &str) -> Result<f32, String> {
    with(number(text)?, |config, value| config.top_p = value)
}

fn min_p(text: &str) -> Result<f32, String> {
    with(number(text)?, |config, value| config.min_p = value)
}

fn repetition(text: &str) -> Result<f32, String> {
    with(number(text)?, |config, value| config.penalties.repetition = value)
}

fn presence(text: &str) -> Result<f32, String> {
    with(number(text)?, |config, value| config.penalties.presence = value)
}

fn frequency(text: &str) -> Result<f32, String> {
    with(number(text)?, |config, value| config.penalties.frequency = value)
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let form = || format!("`{text}` is not ID=BIAS, such as 42=-5 or 42=-inf");
    let (id, bias) = text.split_once('=').ok_or_else(form)?;
    let id = id.trim().parse().map_err(|_| form())?;
    let bias = bias.trim().parse().map_err(|_| form())?;
    with((id, bias), |config, value| config.logit_bias = vec![value])
}

fn n_top(text: &str) -> Result<usize, String> {
    match number(text)? {
        n if n <= MAX_TOP_LOGPROBS => Ok(n),
        _ => Err(format!("must be at most {MAX_TOP_LOGPROBS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_the_sampler_takes() {
        assert_eq!(temperature("0.7"), Ok(0.7));
        assert_eq!(top_k("40"), Ok(40));
        assert_eq!((top_p("0.9"), typical_p("0.2"), min_p("0.05")), (Ok(0.9), Ok(0.2), Ok(0.05)));
        assert_eq!(
            (repetition("1.1"), presence("-2"), frequency("2")),
            (Ok(1.1), Ok(-2.0), Ok(2.0))
        );
        for parse in [temperature, typical_p, top_p, min_p, repetition, presence, frequency] {
            for text in ["-3", "NaN", "inf", "warm", ""] {
                assert!(parse(text).is_err(), "{text}");
            }
        }
        assert!(top_p("0").is_err() && top_p("1.1").is_err() && min_p("1.1").is_err());
        assert!(top_k("0").is_err() && top_k("-1").is_err());
        assert_eq!((n_top("0"), n_top("20")), (Ok(0), Ok(20)));
        assert!(n_top("21").is_err_and(|error| error.contains("at most 20")));
    }

    #[test]
    fn biases_are_pairs() {
        assert_eq!(bias("42=-5.5"), Ok((42, -5.5)));
        assert_eq!(bias(" 1 = 100 "), Ok((1, 100.0)));
        assert_eq!(bias("7=-inf"), Ok((7, f32::NEG_INFINITY)));
        for text in ["42", "=1", "x=1", "1=x", "1=", "-1=1", "1=inf", "1=NaN", "1=-101"] {
            assert!(bias(text).is_err(), "{text}");
        }
    }

    #[test]
    fn repetition_looks_at_some_or_at_all() {
        assert_eq!("all".parse(), Ok(LastN::All));
        assert_eq!("4k".parse(), Ok(LastN::Tokens(NonZeroUsize::new(4096).unwrap())));
        for text in ["0", "-1", "none", ""] {
            assert!(text.parse::<LastN>().is_err(), "{text}");
        }
    }

    #[test]
    fn defaults_are_the_samplers() {
        assert_eq!(SampleFlags::default().config(), SampleConfig::default());
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            sample: SampleFlags,
        }
        let parsed = <Line as clap::Parser>::parse_from(["line"]);
        assert_eq!(parsed.sample.config(), SampleConfig::default());
    }
}
