//! From the header of a GGUF file to a [`ModelSpec`].
//!
//! Keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>; what a
//! family adds or leaves out is said where it is read.

use super::spec::{patterned_ropes, patterned_windows};
use super::tensors::Table;
use super::{
    Architecture, Arithmetic, HeadKind, ModelError, ModelSpec, RopeFactors, RopeScaling, RopeSpec,
    RopeStyle, Shape, Yarn, names,
};
use crate::error::Error;
use std::num::NonZeroUsize;
use tidekv_format::Metadata;

/// Describes the model of a header.
///
/// # Errors
/// A family, a feature or a number that is not supported.
pub(super) fn describe(meta: &Metadata, table: &Table<'_>) -> Result<ModelSpec, Error> {
    let architecture = architecture(meta)?;
    let keys = Keys { meta, architecture };
    if keys.count("expert_count")?.is_some_and(|experts| experts > 0) {
        return Err(feature("mixture of experts"));
    }
    let mut shape = keys.shape(table)?;
    shape.windows = keys.windows(&shape)?;
    shape.validate()?;
    let arithmetic = keys.arithmetic(&shape)?;
    arithmetic.validate()?;
    let (ropes, layer_ropes) = keys.ropes(&shape, table)?;
    ropes.iter().try_for_each(RopeSpec::validate)?;
    let head = if table.has(names::HEAD) { HeadKind::Own } else { HeadKind::Tied };
    let name = meta.str("general.name")?.map(str::to_owned);
    Ok(ModelSpec { architecture, name, shape, arithmetic, ropes, layer_ropes, head })
}

fn feature(feature: &str) -> Error {
    ModelError::Feature { feature: feature.to_owned() }.into()
}

fn architecture(meta: &Metadata) -> Result<Architecture, Error> {
    let key = "general.architecture";
    let found = meta.str(key)?.ok_or_else(|| ModelError::MissingKey { key: key.to_owned() })?;
    let known = Architecture::ALL.into_iter().find(|family| family.name() == found);
    Ok(known.ok_or_else(|| ModelError::Architecture {
        found: found.to_owned(),
        supported: Architecture::ALL.map(Architecture::name).join(", "),
    })?)
}

/// Metadata of one architecture.
struct Keys<'a> {
    meta: &'a Metadata,
    architecture: Architecture,
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn count(&self, suffix: &str) -> Result<Option<usize>, Error> {
        let value = self.meta.u64(&self.key(suffix))?;
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    fn required(&self, suffix: &str) -> Result<usize, Error> {
        let missing = || ModelError::MissingKey { key: self.key(suffix) };
        Ok(self.count(suffix)?.ok_or_else(missing)?)
    }

    fn float(&self, suffix: &str) -> Result<Option<f32>, Error> {
        Ok(self.meta.f32(&self.key(suffix))?)
    }

    fn value(&self, suffix: &str, value: impl ToString, reason: &str) -> Error {
        let (key, value, reason) = (self.key(suffix), value.to_string(), reason.to_owned());
        ModelError::Value { key, value, reason }.into()
    }

    fn shape(&self, table: &Table<'_>) -> Result<Shape, Error> {
        let d_model = self.required("embedding_length")?;
        let n_heads = self.required("attention.head_count")?;
        let head_dim = match self.count("attention.key_length")? {
            Some(length) => length,
            None => d_model.checked_div(n_heads).unwrap_or(0),
        };
        if self.count("attention.value_length")?.is_some_and(|length| length != head_dim) {
            return Err(feature("values of another width than keys"));
        }
        Ok(Shape {
            n_layers: self.required("block_count")?,
            d_model,
            d_ff: self.required("feed_forward_length")?,
            n_heads,
            n_kv_heads: self.count("attention.head_count_kv")?.unwrap_or(n_heads),
            head_dim,
            // Not every file states it; the table's rows are what counts.
            vocab: table.rows(names::EMBEDDING)?,
            context: self.required("context_length")?,
            windows: Vec::new(),
        })
    }

    /// Sliding windows by layer. Gemma 2 alternates, beginning with a window; in
    /// Gemma 3 five layers with one precede each without. Elsewhere a file that
    /// has a window has it in every layer.
    fn windows(&self, shape: &Shape) -> Result<Vec<Option<NonZeroUsize>>, Error> {
        const WINDOW: &str = "attention.sliding_window";
        let period = match self.architecture {
            Architecture::Gemma2 => 2,
            Architecture::Gemma3 => 6,
            _ => 0,
        };
        let Some(window) = self.count(WINDOW)?.and_then(NonZeroUsize::new) else {
            return match period {
                0 => Ok(Vec::new()),
                _ => Err(ModelError::MissingKey { key: self.key(WINDOW) }.into()),
            };
        };
        // Queries never reach further back than the context: no window at all.
        if period == 0 && window.get() >= shape.context {
            return Ok(Vec::new());
        }
        // `validate` has the sizes still before it.
        if shape.n_layers > MAX_PATTERN_LAYERS {
            return Err(self.value("block_count", shape.n_layers, "is more than any model has"));
        }
        Ok(patterned_windows(shape.n_layers, window, period))
    }

    fn arithmetic(&self, shape: &Shape) -> Result<Arithmetic, Error> {
        const EPSILON: &str = "attention.layer_norm_rms_epsilon";
        let missing = || ModelError::MissingKey { key: self.key(EPSILON) };
        let eps = self.float(EPSILON)?.ok_or_else(missing)?;
        let plain = Arithmetic::of(self.architecture, shape, eps);
        Ok(match self.architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => Arithmetic {
                attention_scale: 1.0 / gemma_query_scalar(self.architecture, shape).sqrt(),
                attention_softcap: self.float("attn_logit_softcapping")?,
                logit_softcap: self.float("final_logit_softcapping")?,
                ..plain
            },
            Architecture::Granite => {
                let scale = |suffix| Ok::<_, Error>(self.float(suffix)?.unwrap_or(1.0));
                let attention = self.float("attention.scale")?;
                Arithmetic {
                    embedding_scale: scale("embedding_scale")?,
                    residual_scale: scale("residual_scale")?,
                    // The file holds what logits are divided by.
                    logit_scale: 1.0 / scale("logit_scale")?,
                    attention_scale: attention.unwrap_or(plain.attention_scale),
                    ..plain
                }
            }
            _ => plain,
        })
    }

    fn ropes(
        &self,
        shape: &Shape,
        table: &Table<'_>,
    ) -> Result<(Vec<RopeSpec>, Vec<Option<usize>>), Error> {
        let global = self.global_rope(shape, table)?;
        let all = vec![Some(0); shape.n_layers];
        match self.architecture {
            // Every fourth layer has no positions (NoPE, arXiv:2501.18795).
            Architecture::SmolLm3 => {
                let period = self.count("attention.no_rope_layer_step")?.unwrap_or(4).max(1);
                Ok((vec![global], patterned_ropes(shape.n_layers, period)))
            }
            // Layers with a window have a base of their own and no scaling.
            Architecture::Gemma3 => {
                let base = self.float("rope.freq_base_swa")?.unwrap_or(GEMMA3_LOCAL_BASE);
                let local = RopeSpec {
                    base,
                    scaling: RopeScaling::None,
                    factors: RopeFactors::None,
                    ..global.clone()
                };
                let of_layer = |layer| Some(usize::from(shape.window(layer).is_some()));
                Ok((vec![global, local], (0..shape.n_layers).map(of_layer).collect()))
            }
            _ => Ok((vec![global], all)),
        }
    }

    fn global_rope(&self, shape: &Shape, table: &Table<'_>) -> Result<RopeSpec, Error> {
        const DIMS: &str = "rope.dimension_count";
        let dims = self.count(DIMS)?.unwrap_or(shape.head_dim);
        if dims == 0 || dims % 2 == 1 || dims > shape.head_dim {
            let reason = "must be even and at most the head's width";
            return Err(self.value(DIMS, dims, reason));
        }
        let style = RopeStyle::of(self.architecture);
        let [short, long] = names::LONG_ROPE_FACTORS;
        let factors = if table.has(names::ROPE_FACTORS) {
            RopeFactors::Always(table.numbers(names::ROPE_FACTORS, dims / 2)?)
        } else if table.has(long) {
            let (short, long) = (table.numbers(short, dims / 2)?, table.numbers(long, dims / 2)?);
            RopeFactors::ByLength { short, long }
        } else {
            RopeFactors::None
        };
        let trained = self.count("rope.scaling.original_context_length")?;
        let trained_context = trained.map_or(shape.context, |n| n.min(shape.context));
        let scaling = match factors {
            RopeFactors::ByLength { .. } => RopeScaling::LongRope {
                factor: shape.context as f64 / trained_context.max(1) as f64,
                magnitude: self.float("rope.scaling.attn_factor")?.map(f64::from),
            },
            _ => self.scaling()?,
        };
        let base = self.float("rope.freq_base")?.unwrap_or(10_000.0);
        Ok(RopeSpec { style, base, dims, scaling, trained_context, factors })
    }

    fn scaling(&self) -> Result<RopeScaling, Error> {
        // Files before there were types state a factor alone, some under another name.
        let stated = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        // Writers put 0 where there is none.
        let factor = stated.filter(|&factor| factor != 0.0).map_or(1.0, f64::from);
        let yarn = match self.meta.str(&self.key("rope.scaling.type"))?.unwrap_or("linear") {
            "none" => return Ok(RopeScaling::None),
            "linear" if factor == 1.0 => return Ok(RopeScaling::None),
            "linear" => return Ok(RopeScaling::Linear { factor }),
            "yarn" => Yarn::new(factor),
            other => return Err(feature(&format!("RoPE scaling `{other}`"))),
        };
        let or =
            |suffix, default: f64| Ok::<_, Error>(self.float(suffix)?.map_or(default, f64::from));
        // The file's factor multiplies the one that YaRN prescribes.
        let attention = or("rope.scaling.attn_factor", 1.0)?;
        Ok(RopeScaling::Yarn(Yarn {
            magnitude: Some(attention * (0.1 * yarn.factor.ln() + 1.0)),
            fast: or("rope.scaling.yarn_beta_fast", yarn.fast)?,
            slow: or("rope.scaling.yarn_beta_slow", yarn.slow)?,
            ..yarn
        }))
    }
}

/// Base of Gemma 3's layers with a window, for files that do not state it
/// (arXiv:2503.19786, section 2).
const GEMMA3_LOCAL_BASE: f32 = 10_000.0;

/// Layers for which a list of windows is made before the shape is validated.
const MAX_PATTERN_LAYERS: usize = 1 << 16;

/// The number whose square root divides Gemma's attention logits: the head's
/// width, except in the 27B models, which use the hidden size per head
/// (<https://huggingface.co/google/gemma-2-27b>, `query_pre_attn_scalar` 144;
/// gemma-3-27b 168). GGUF files do not state it; only the depth tells.
fn gemma_query_scalar(architecture: Architecture, shape: &Shape) -> f32 {
    let of_27b = match architecture {
        Architecture::Gemma2 => 46,
        Architecture::Gemma3 => 62,
        _ => return shape.head_dim as f32,
    };
    if shape.n_layers == of_27b {
        return shape.d_model as f32 / shape.n_heads as f32;
    }
    shape.head_dim as f32
}
