//! Rotary position embedding as data: which pairs rotate, and how fast.

use super::ModelError;
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
    /// YaRN (arXiv:2309.00071): slow frequencies are interpolated, fast ones
    /// kept, and the rotation is scaled by `0.1 ln(factor) + 1`.
    Yarn {
        /// How much longer the context becomes.
        factor: f64,
    },
}

impl RopeScaling {
    /// How much longer than the trained context a prompt may be.
    pub fn factor(&self) -> f64 {
        match *self {
            RopeScaling::None => 1.0,
            RopeScaling::Linear { factor } | RopeScaling::Yarn { factor } => factor,
        }
    }
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RopeScaling::None => f.write_str("none"),
            RopeScaling::Linear { factor } => write!(f, "linear:{factor}"),
            RopeScaling::Yarn { factor } => write!(f, "yarn:{factor}"),
        }
    }
}

/// Text that is not a RoPE scaling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a RoPE scaling; use none, linear:F or yarn:F with a factor F of at least 1")]
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
        if !(1.0..=1024.0).contains(&factor) {
            return Err(bad());
        }
        match kind {
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => Ok(RopeScaling::Yarn { factor }),
            _ => Err(bad()),
        }
    }
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
    /// Context the model was trained with, for YaRN.
    pub trained_context: usize,
    /// Divisors of the frequencies from the file (`rope_freqs`), `[dims/2]`.
    pub factors: Option<Vec<f32>>,
}

/// Inverse frequencies of a model and the scale of its rotation.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position for every pair, `[dims/2]`.
    pub inverse: Vec<f32>,
    /// Factor of cos and sin (1 except for YaRN).
    pub magnitude: f32,
}

/// YaRN's turning points, in rotations over the trained context.
const YARN_FAST: f64 = 32.0;
const YARN_SLOW: f64 = 1.0;

impl RopeSpec {
    /// Computes the frequencies.
    ///
    /// # Errors
    /// [`ModelError::Value`] when `factors` has another length than `dims/2`.
    pub fn frequencies(&self) -> Result<RopeFrequencies, ModelError> {
        let pairs = self.dims / 2;
        let base = f64::from(self.base);
        // f64 and then f32: within half an ulp of the reference's f32 powers.
        let mut inverse: Vec<f64> =
            (0..pairs).map(|i| base.powf(-2.0 * i as f64 / self.dims as f64)).collect();
        if let Some(factors) = &self.factors {
            if factors.len() != pairs || factors.iter().any(|&factor| factor <= 0.0) {
                return Err(ModelError::Value {
                    key: "rope_freqs".to_owned(),
                    value: format!("{} factors", factors.len()),
                    reason: "must hold one positive factor per rotating pair",
                });
            }
            for (frequency, &factor) in inverse.iter_mut().zip(factors) {
                *frequency /= f64::from(factor);
            }
        }
        let mut magnitude = 1.0;
        match self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                inverse.iter_mut().for_each(|frequency| *frequency /= factor);
            }
            RopeScaling::Yarn { factor } => {
                self.apply_yarn(factor, &mut inverse);
                magnitude = 0.1 * factor.ln() + 1.0;
            }
        }
        Ok(RopeFrequencies {
            inverse: inverse.into_iter().map(|frequency| frequency as f32).collect(),
            magnitude: magnitude as f32,
        })
    }

    /// Blends each frequency between itself (fast) and itself / factor (slow),
    /// on a linear ramp between the two turning points.
    fn apply_yarn(&self, factor: f64, inverse: &mut [f64]) {
        let (dims, base) = (self.dims as f64, f64::from(self.base));
        let context = self.trained_context as f64;
        // The pair that makes `turns` rotations over the trained context.
        let pair = |turns: f64| dims * (context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        let low = pair(YARN_FAST).floor().max(0.0);
        let high = pair(YARN_SLOW).ceil().min(dims - 1.0);
        // Equal ends would divide by zero; the reference widens them likewise.
        let width = if high == low { 0.001 } else { high - low };
        for (i, frequency) in inverse.iter_mut().enumerate() {
            let slow = ((i as f64 - low) / width).clamp(0.0, 1.0);
            *frequency = *frequency / factor * slow + *frequency * (1.0 - slow);
        }
    }
}

impl RopeFrequencies {
    /// Writes cos and sin of every pair at `position`.
    ///
    /// The angle is an f32 product as in the reference implementations; its
    /// cosine is taken in f64 so that the rounding is the same on every system.
    pub fn angles(&self, position: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((&inverse, cos), sin) in self.inverse.iter().zip(cos).zip(sin) {
            let angle = f64::from(position as f32 * inverse);
            *cos = angle.cos() as f32 * self.magnitude;
            *sin = angle.sin() as f32 * self.magnitude;
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
            factors: None,
        }
    }

    #[test]
    fn unscaled_frequencies_are_powers_of_the_base() {
        let frequencies = spec(RopeScaling::None).frequencies().unwrap();
        assert_eq!(frequencies.inverse, [1.0, 0.1, 0.01, 0.001]);
        let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
        frequencies.angles(3, &mut cos, &mut sin);
        assert_eq!(cos[0], 3f64.cos() as f32);
        assert_eq!(sin[1], f64::from(3.0f32 * 0.1).sin() as f32);
    }

    #[test]
    fn linear_divides_and_factors_divide() {
        let linear = spec(RopeScaling::Linear { factor: 4.0 }).frequencies().unwrap();
        assert_eq!(linear.inverse[0], 0.25);
        let mut with_factors = spec(RopeScaling::None);
        with_factors.factors = Some(vec![1.0, 2.0, 4.0, 8.0]);
        assert_eq!(with_factors.frequencies().unwrap().inverse[3], 0.000_125);
        with_factors.factors = Some(vec![1.0]);
        assert!(with_factors.frequencies().is_err());
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        // Turning points for 8 dims, base 10,000, context 2,048 (by hand):
        // low = floor(8 ln(2048 / 64 pi) / (2 ln 10000)) = 1, high = ceil(2.513) = 3.
        let yarn = spec(RopeScaling::Yarn { factor: 4.0 }).frequencies().unwrap();
        assert_eq!(yarn.inverse[0], 1.0);
        assert_eq!(yarn.inverse[1], 0.1);
        assert!((yarn.inverse[2] - 0.01 * 0.625).abs() < 1e-9, "{:?}", yarn.inverse);
        assert!((yarn.inverse[3] - 0.000_25).abs() < 1e-9);
        assert!((yarn.magnitude - 1.138_629_4).abs() < 1e-6);
    }

    #[test]
    fn scaling_text_round_trips_and_bad_text_is_refused() {
        for text in ["none", "linear:4", "yarn:16", "yarn:1.5"] {
            assert_eq!(text.parse::<RopeScaling>().unwrap().to_string(), text);
        }
        for text in ["", "yarn", "yarn:0.5", "yarn:x", "ntk:2", "linear:NaN"] {
            assert!(text.parse::<RopeScaling>().is_err(), "{text}");
        }
    }
}
