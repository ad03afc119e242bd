//! Rotary position embedding as data: which pairs rotate, and how fast.

use super::{Architecture, ModelError};
use std::f64::consts::PI;
use std::fmt;

/// Which two dimensions form a rotating pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours `(2i, 2i + 1)`: files of the llama architecture, whose Q and K
    /// rows are permuted for it.
    Interleaved,
    /// `(i, i + D/2)`: the style of the reference implementations ("NEOX").
    Half,
}

impl RopeStyle {
    /// The pairing of a family.
    pub(super) fn of(architecture: Architecture) -> Self {
        match architecture.rotates_neighbours() {
            true => RopeStyle::Interleaved,
            false => RopeStyle::Half,
        }
    }
}

/// How positions beyond the trained context are mapped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Positions as they are.
    None,
    /// Every frequency divided by the factor.
    Linear {
        /// How much longer the context becomes.
        factor: f64,
    },
    /// NTK-aware scaling that grows with the prompt: beyond the trained context
    /// L the base is multiplied by `(factor S / L - (factor - 1))^(R / (R - 2))`
    /// for a prompt of S tokens and R rotating dimensions (the `dynamic` type of
    /// Hugging Face's `rope_scaling`). Frozen at the prompt's length.
    Dynamic {
        /// How much longer the context becomes.
        factor: f64,
    },
    /// YaRN (arXiv:2309.00071): slow frequencies are interpolated, fast ones
    /// kept.
    Yarn(Yarn),
    /// Llama 3.1: wavelengths above `L / low` are stretched by the factor, those
    /// below `L / high` kept, those between blended (`rope_type` `llama3`).
    Llama3 {
        /// How much longer the context becomes.
        factor: f64,
        /// Turns over the trained context below which a pair is stretched.
        low: f64,
        /// Turns over the trained context above which a pair is kept.
        high: f64,
    },
    /// LongRoPE (arXiv:2402.13753): the divisors of [`RopeFactors::ByLength`].
    LongRope {
        /// How much longer the context becomes.
        factor: f64,
        /// Factor of cos and sin; `None` for `sqrt(1 + ln factor / ln L)`.
        magnitude: Option<f64>,
    },
}

/// Parameters of YaRN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// How much longer the context becomes.
    pub factor: f64,
    /// Factor of cos and sin; `None` for `0.1 ln(factor) + 1`.
    pub magnitude: Option<f64>,
    /// Turns over the trained context above which a pair is kept.
    pub fast: f64,
    /// Turns over the trained context below which a pair is interpolated.
    pub slow: f64,
}

impl Yarn {
    /// The published turning points.
    pub fn new(factor: f64) -> Self {
        Yarn { factor, magnitude: None, fast: 32.0, slow: 1.0 }
    }
}

impl RopeScaling {
    /// How much longer than the trained context a prompt may be.
    pub fn factor(&self) -> f64 {
        match *self {
            RopeScaling::None => 1.0,
            RopeScaling::Linear { factor }
            | RopeScaling::Dynamic { factor }
            | RopeScaling::Yarn(Yarn { factor, .. })
            | RopeScaling::Llama3 { factor, .. }
            | RopeScaling::LongRope { factor, .. } => factor,
        }
    }

    /// Checks the numbers of the variant.
    fn validate(&self) -> Result<(), ModelError> {
        let in_range = (1.0..=MAX_FACTOR).contains(&self.factor());
        require("factor", self.factor(), in_range, "from 1 to 1024")?;
        let positive = |key, number| {
            let sound = f64::is_finite(number) && number > 0.0;
            require(key, number, sound, "a finite number above 0")
        };
        match *self {
            RopeScaling::Yarn(Yarn { magnitude, fast, slow, .. }) => {
                positive("attention_factor", magnitude.unwrap_or(1.0))?;
                positive("beta_slow", slow)?;
                positive("beta_fast", fast)?;
                require("beta_fast", fast, fast > slow, &format!("above beta_slow, {slow}"))
            }
            RopeScaling::Llama3 { low, high, .. } => {
                positive("low_freq_factor", low)?;
                positive("high_freq_factor", high)?;
                let limit = format!("above low_freq_factor, {low}");
                require("high_freq_factor", high, high > low, &limit)
            }
            RopeScaling::LongRope { magnitude, .. } => {
                positive("attention_factor", magnitude.unwrap_or(1.0))
            }
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => Ok(()),
        }
    }
}

/// Largest factor by which a context is stretched; published models have 32 to 64.
const MAX_FACTOR: f64 = 1024.0;

/// Refuses a number of a rotation unless it is `sound`.
fn require(key: &str, value: impl ToString, sound: bool, limit: &str) -> Result<(), ModelError> {
    match sound {
        true => Ok(()),
        false => Err(ModelError::Value {
            key: format!("RoPE: {key}"),
            value: value.to_string(),
            reason: format!("must be {limit}"),
        }),
    }
}

/// Checks divisors of the frequencies of `pairs` rotating pairs.
fn validate_factors(key: &str, factors: &[f32], pairs: usize) -> Result<(), ModelError> {
    let limit = format!("one number for each of the {pairs} rotating pairs");
    require(key, format!("{} numbers", factors.len()), factors.len() == pairs, &limit)?;
    let positive = |factor: f32| factor.is_finite() && factor > 0.0;
    match factors.iter().enumerate().find(|&(_, &factor)| !positive(factor)) {
        None => Ok(()),
        Some((index, factor)) => {
            require(&format!("{key}[{index}]"), factor, false, "a finite number above 0")
        }
    }
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RopeScaling::None => f.write_str("none"),
            RopeScaling::Linear { factor } => write!(f, "linear:{factor}"),
            RopeScaling::Dynamic { factor } => write!(f, "dynamic:{factor}"),
            RopeScaling::Yarn(Yarn { factor, .. }) => write!(f, "yarn:{factor}"),
            RopeScaling::Llama3 { factor, .. } => write!(f, "llama3:{factor}"),
            RopeScaling::LongRope { factor, .. } => write!(f, "longrope:{factor}"),
        }
    }
}

/// Text that is not a RoPE scaling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a RoPE scaling; use none, linear:F, dynamic:F, yarn:F or llama3:F with a factor F from 1 to 1024"
)]
pub struct BadRopeScaling(pub String);

impl std::str::FromStr for RopeScaling {
    type Err = BadRopeScaling;

    fn from_str(text: &str) -> Result<Self, BadRopeScaling> {
        let bad = || BadRopeScaling(text.to_owned());
        if text == "none" {
            return Ok(RopeScaling::None);
        }
        let (kind, factor) = text.split_once(':').ok_or_else(bad)?;
        let factor: f64 = factor.parse().map_err(|_| bad())?;
        if !(1.0..=MAX_FACTOR).contains(&factor) {
            return Err(bad());
        }
        match kind {
            "linear" => Ok(RopeScaling::Linear { factor }),
            "dynamic" => Ok(RopeScaling::Dynamic { factor }),
            "yarn" => Ok(RopeScaling::Yarn(Yarn::new(factor))),
            // The turning points of every published Llama 3.1 and 3.2.
            "llama3" => Ok(RopeScaling::Llama3 { factor, low: 1.0, high: 4.0 }),
            _ => Err(bad()),
        }
    }
}

/// Divisors of the frequencies that a file brings along, `[dims/2]` each.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeFactors {
    /// None.
    None,
    /// The same for every prompt (`rope_freqs`).
    Always(Vec<f32>),
    /// By the prompt's length (LongRoPE).
    ByLength {
        /// Up to the trained context.
        short: Vec<f32>,
        /// Beyond it.
        long: Vec<f32>,
    },
}

/// Everything that determines the rotation of a position.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Pairing of dimensions.
    pub style: RopeStyle,
    /// Base of the frequencies.
    pub base: f32,
    /// Number of leading dimensions of a head that rotate; even, at most D.
    pub dims: usize,
    /// Mapping of long positions.
    pub scaling: RopeScaling,
    /// L, the context the model was trained with before any scaling.
    pub trained_context: usize,
    /// Divisors from the file.
    pub factors: RopeFactors,
}

/// Inverse frequencies of a model and the scale of its rotation.
///
/// In f64: rounded to f32, as the reference implementations keep them, a
/// frequency moves the angle at position p by up to `p 2^-25` of itself, 0.03
/// radians at a million.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position for every pair, `[dims/2]`.
    pub inverse: Vec<f64>,
    /// Factor of cos and sin (1 except for YaRN and LongRoPE).
    pub magnitude: f64,
}

impl RopeSpec {
    /// Checks every number that enters a rotation. Keys are named as Hugging Face's
    /// `rope_scaling` names them.
    ///
    /// # Errors
    /// [`ModelError::Value`] names the first that makes no sense, with its limit.
    pub fn validate(&self) -> Result<(), ModelError> {
        require("rope_theta", self.base, self.base.is_finite() && self.base > 1.0, "above 1")?;
        let dims = self.dims >= 2 && self.dims.is_multiple_of(2);
        require("rotating dimensions", self.dims, dims, "an even number above 0")?;
        let original = "original_max_position_embeddings";
        require(original, self.trained_context, self.trained_context > 0, "at least 1")?;
        self.scaling.validate()?;
        let pairs = self.dims / 2;
        match &self.factors {
            RopeFactors::None => Ok(()),
            RopeFactors::Always(factors) => validate_factors("rope_freqs", factors, pairs),
            RopeFactors::ByLength { short, long } => {
                validate_factors("short_factor", short, pairs)?;
                validate_factors("long_factor", long, pairs)
            }
        }
    }

    /// Computes the frequencies for a prompt of `n_tokens` tokens.
    ///
    /// # Errors
    /// As [`RopeSpec::validate`].
    pub fn frequencies(&self, n_tokens: usize) -> Result<RopeFrequencies, ModelError> {
        self.validate()?;
        let base = self.base_for(n_tokens);
        let dims = self.dims as f64;
        let mut inverse: Vec<f64> =
            (0..self.dims / 2).map(|i| base.powf(-2.0 * i as f64 / dims)).collect();
        for (frequency, &factor) in inverse.iter_mut().zip(self.factors_for(n_tokens)) {
            *frequency /= f64::from(factor);
        }
        match self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. } => {}
            RopeScaling::Linear { factor } => {
                inverse.iter_mut().for_each(|frequency| *frequency /= factor);
            }
            RopeScaling::Yarn(yarn) => self.apply_yarn(yarn, &mut inverse),
            RopeScaling::Llama3 { factor, low, high } => {
                let turns = self.trained_context as f64 / (2.0 * PI);
                for frequency in &mut inverse {
                    let keep = ((*frequency * turns - low) / (high - low)).clamp(0.0, 1.0);
                    *frequency *= (1.0 - keep) / factor + keep;
                }
            }
        }
        Ok(RopeFrequencies { inverse, magnitude: self.magnitude() })
    }

    /// The base, which dynamic scaling raises for prompts beyond the trained
    /// context.
    fn base_for(&self, n_tokens: usize) -> f64 {
        let base = f64::from(self.base);
        let RopeScaling::Dynamic { factor } = self.scaling else { return base };
        // Two rotating dimensions are one pair of frequency 1, whatever the base.
        if n_tokens <= self.trained_context || self.dims <= 2 {
            return base;
        }
        let (dims, stretch) = (self.dims as f64, n_tokens as f64 / self.trained_context as f64);
        base * (factor * stretch - (factor - 1.0)).powf(dims / (dims - 2.0))
    }

    /// Divisors of the frequencies; empty where there are none.
    fn factors_for(&self, n_tokens: usize) -> &[f32] {
        match &self.factors {
            RopeFactors::None => &[],
            RopeFactors::Always(factors) => factors,
            RopeFactors::ByLength { long, .. } if n_tokens > self.trained_context => long,
            RopeFactors::ByLength { short, .. } => short,
        }
    }

    fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn(Yarn { factor, magnitude, .. }) => {
                magnitude.unwrap_or_else(|| 0.1 * factor.ln() + 1.0)
            }
            RopeScaling::LongRope { factor, magnitude } => magnitude
                .unwrap_or_else(|| (1.0 + factor.ln() / (self.trained_context as f64).ln()).sqrt()),
            _ => 1.0,
        }
    }

    /// Blends each frequency between itself (fast) and itself / factor (slow),
    /// on a linear ramp between the two turning points.
    fn apply_yarn(&self, yarn: Yarn, inverse: &mut [f64]) {
        let (dims, base) = (self.dims as f64, f64::from(self.base));
        let context = self.trained_context as f64;
        // The pair that makes `turns` rotations over the trained context.
        let pair = |turns: f64| dims * (context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        let low = pair(yarn.fast).floor().max(0.0);
        let high = pair(yarn.slow).ceil().min(dims - 1.0);
        // Equal ends would divide by zero; the reference widens them likewise.
        let width = if high == low { 0.001 } else { high - low };
        for (i, frequency) in inverse.iter_mut().enumerate() {
            let slow = ((i as f64 - low) / width).clamp(0.0, 1.0);
            *frequency = *frequency / yarn.factor * slow + *frequency * (1.0 - slow);
        }
    }
}

impl RopeFrequencies {
    /// Writes cos and sin of every pair at `position`, times the magnitude, each
    /// `[dims/2]`.
    ///
    /// Rounded once, at the end: the result is within half an ulp of the formula's
    /// (and 4e-9) at any position up to a million.
    pub fn angles(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((&inverse, cos), sin) in self.inverse.iter().zip(cos).zip(sin) {
            let angle = f64::from(position) * inverse;
            *cos = (angle.cos() * self.magnitude) as f32;
            *sin = (angle.sin() * self.magnitude) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec {
            style: RopeStyle::Half,
            base: 10_000.0,
            dims: 8,
            scaling,
            trained_context: 2048,
            factors: RopeFactors::None,
        }
    }

    /// Frequencies in f32, where rounding in f64 does not show.
    fn narrow(frequencies: &RopeFrequencies) -> Vec<f32> {
        frequencies.inverse.iter().map(|&frequency| frequency as f32).collect()
    }

    #[test]
    fn unscaled_frequencies_are_powers_of_the_base() {
        let frequencies = spec(RopeScaling::None).frequencies(1).unwrap();
        assert_eq!(narrow(&frequencies), [1.0, 0.1, 0.01, 0.001]);
        let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
        frequencies.angles(3, &mut cos, &mut sin);
        assert_eq!(cos[0], 3f64.cos() as f32);
        assert_eq!(sin[1], 0.3f64.sin() as f32);
    }

    #[test]
    fn linear_divides_and_factors_divide() {
        let linear = spec(RopeScaling::Linear { factor: 4.0 }).frequencies(1).unwrap();
        assert_eq!(linear.inverse[0], 0.25);
        let mut with_factors = spec(RopeScaling::None);
        with_factors.factors = RopeFactors::Always(vec![1.0, 2.0, 4.0, 8.0]);
        assert_eq!(narrow(&with_factors.frequencies(1).unwrap())[3], 0.000_125);
        for bad in [vec![1.0], vec![1.0, 1.0, 0.0, 1.0], vec![1.0, 1.0, f32::NAN, 1.0]] {
            with_factors.factors = RopeFactors::Always(bad);
            assert!(with_factors.frequencies(1).is_err());
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        // Turning points for 8 dims, base 10,000, context 2,048 (by hand):
        // low = floor(8 ln(2048 / 64 pi) / (2 ln 10000)) = 1, high = ceil(2.513) = 3.
        let yarn = spec(RopeScaling::Yarn(Yarn::new(4.0))).frequencies(1).unwrap();
        assert_eq!(yarn.inverse[0], 1.0);
        assert_eq!(narrow(&yarn), [1.0, 0.1, 0.006_25, 0.000_25]);
        assert!((yarn.magnitude - 1.138_629_436).abs() < 1e-9);
    }

    #[test]
    fn dynamic_scaling_raises_the_base_beyond_the_trained_context_only() {
        let dynamic = spec(RopeScaling::Dynamic { factor: 2.0 });
        let plain = spec(RopeScaling::None).frequencies(1).unwrap();
        assert_eq!(dynamic.frequencies(2048).unwrap(), plain);
        // S = 2 L: base (2 * 2 - 1)^(8 / 6) = 10,000 * 3^(4/3), by hand.
        let long = dynamic.frequencies(4096).unwrap();
        let base = 10_000.0 * 3f64.powf(4.0 / 3.0);
        assert_eq!(long.inverse[1], base.powf(-0.25));
        assert_eq!((long.inverse[0], long.magnitude), (1.0, 1.0));
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_stretches_long_ones() {
        // L = 2,048 makes 2,048 / 2 pi = 325.9 turns of pair 0, 32.6, 3.26 and 0.326 of the
        // others: pairs 0 and 1 are kept, pair 3 is stretched, pair 2 is blended.
        let spec = spec(RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0 });
        let frequencies = narrow(&spec.frequencies(1).unwrap());
        assert_eq!(frequencies[..2], [1.0, 0.1]);
        assert_eq!(frequencies[3], 0.001 / 8.0);
        let keep = (0.01 * 2048.0 / (2.0 * PI) - 1.0) / 3.0;
        assert_eq!(frequencies[2], (0.01 * ((1.0 - keep) / 8.0 + keep)) as f32);
    }

    #[test]
    fn longrope_chooses_its_factors_by_the_length() {
        let mut spec = spec(RopeScaling::LongRope { factor: 4.0, magnitude: None });
        spec.factors = RopeFactors::ByLength { short: vec![1.0; 4], long: vec![2.0; 4] };
        let (short, long) = (spec.frequencies(2048).unwrap(), spec.frequencies(2049).unwrap());
        assert_eq!(short.inverse[0], 1.0);
        assert_eq!(long.inverse[0], 0.5);
        let magnitude = (1.0 + 4f64.ln() / 2048f64.ln()).sqrt();
        assert_eq!((short.magnitude, long.magnitude), (magnitude, magnitude));
    }

    #[test]
    fn numbers_that_make_no_sense_are_named_with_their_limit() {
        let yarn = |change: fn(&mut Yarn)| {
            let mut yarn = Yarn::new(4.0);
            change(&mut yarn);
            spec(RopeScaling::Yarn(yarn))
        };
        let llama3 = |factor, low, high| spec(RopeScaling::Llama3 { factor, low, high });
        let long = |short: Vec<f32>, long: Vec<f32>| RopeSpec {
            factors: RopeFactors::ByLength { short, long },
            ..spec(RopeScaling::LongRope { factor: 4.0, magnitude: None })
        };
        let plain = spec(RopeScaling::None);
        for (spec, words) in [
            (spec(RopeScaling::Linear { factor: 0.5 }), ["factor = 0.5", "from 1 to 1024"]),
            (spec(RopeScaling::Dynamic { factor: f64::NAN }), ["factor = NaN", "from 1 to 1024"]),
            (yarn(|yarn| yarn.factor = f64::INFINITY), ["factor = inf", "from 1 to 1024"]),
            (yarn(|yarn| yarn.fast = 1.0), ["beta_fast = 1", "above beta_slow, 1"]),
            (yarn(|yarn| yarn.slow = -1.0), ["beta_slow = -1", "above 0"]),
            (yarn(|yarn| yarn.fast = f64::NAN), ["beta_fast = NaN", "finite"]),
            (yarn(|yarn| yarn.magnitude = Some(0.0)), ["attention_factor = 0", "above 0"]),
            (llama3(8.0, 4.0, 4.0), ["high_freq_factor = 4", "above low_freq_factor, 4"]),
            (llama3(8.0, 0.0, 4.0), ["low_freq_factor = 0", "above 0"]),
            (llama3(f64::NAN, 1.0, 4.0), ["factor = NaN", "from 1 to 1024"]),
            (long(vec![1.0; 3], vec![1.0; 4]), ["short_factor = 3 numbers", "the 4 rotating"]),
            (
                long(vec![1.0; 4], vec![1.0, 1.0, f32::INFINITY, 1.0]),
                ["long_factor[2] = inf", "finite"],
            ),
            (long(vec![1.0, -1.0, 1.0, 1.0], vec![1.0; 4]), ["short_factor[1] = -1", "above 0"]),
            (RopeSpec { trained_context: 0, ..plain.clone() }, ["original_max", "at least 1"]),
            (RopeSpec { base: 1.0, ..plain.clone() }, ["rope_theta = 1", "above 1"]),
            (RopeSpec { dims: 0, ..plain.clone() }, ["dimensions = 0", "above 0"]),
        ] {
            let error = spec.validate().unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
            assert!(spec.frequencies(1).is_err());
        }
        long(vec![1.0; 4], vec![1.0; 4]).validate().unwrap();
        plain.validate().unwrap();
    }

    #[test]
    fn scaling_text_round_trips_and_bad_text_is_refused() {
        for text in ["none", "linear:4", "dynamic:2", "yarn:16", "yarn:1.5", "llama3:8"] {
            assert_eq!(text.parse::<RopeScaling>().unwrap().to_string(), text);
        }
        for text in ["", "yarn", "yarn:0.5", "yarn:x", "ntk:2", "linear:NaN"] {
            assert!(text.parse::<RopeScaling>().is_err(), "{text}");
        }
    }
}
