//! What the layers of a model compute with: the activation and the factors.

use super::{Config, bad};
use crate::model::{Activation, Architecture, Arithmetic, ModelError, Shape};
use serde_json::Value;

impl Config {
    /// What layers compute.
    ///
    /// # Errors
    /// An activation that is not supported, or a number out of its range.
    pub(super) fn arithmetic(&self, shape: &Shape) -> Result<Arithmetic, ModelError> {
        let family = &self.family;
        let factor = |key: &str, default: f64| {
            Ok::<_, ModelError>(self.factor_or(key, Some(default))?.unwrap_or(default as f32))
        };
        let eps = factor("rms_norm_eps", family.norm_eps)?;
        let plain = Arithmetic::of(family.architecture, shape, eps);
        let plain = Arithmetic { activation: self.activation(plain.activation)?, ..plain };
        Ok(match family.architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => Arithmetic {
                attention_scale: 1.0 / factor("query_pre_attn_scalar", 256.0)?.sqrt(),
                attention_softcap: self
                    .factor_or("attn_logit_softcapping", family.attention_softcap)?,
                logit_softcap: self.factor_or("final_logit_softcapping", family.logit_softcap)?,
                ..plain
            },
            Architecture::Granite => Arithmetic {
                embedding_scale: factor("embedding_multiplier", 1.0)?,
                residual_scale: factor("residual_multiplier", 1.0)?,
                attention_scale: factor("attention_multiplier", 1.0)?,
                logit_scale: 1.0 / factor("logits_scaling", 1.0)?,
                ..plain
            },
            _ => plain,
        })
    }

    /// The activation that the file names under the family's key, or `of_family`.
    fn activation(&self, of_family: Activation) -> Result<Activation, ModelError> {
        let key = self.family.activation_key;
        match self.get(key) {
            None => Ok(of_family),
            Some(Value::String(name)) => match name.as_str() {
                "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
                "silu" | "swish" => Ok(Activation::Silu),
                _ => Err(ModelError::Feature { feature: format!("the activation {key} = {name}") }),
            },
            Some(other) => Err(bad(key, other, "must be the name of an activation")),
        }
    }
}
