//! A model as a value: the one forward pass reads this and nothing else.

use super::{ModelError, RopeFactors, RopeFrequencies, RopeScaling, RopeSpec, Shape};
use std::fmt;
use std::num::NonZeroUsize;

/// Model families, by their name in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 2/3, Mistral, SmolLM2 and others.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3 without experts.
    Qwen3,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, its text part.
    Gemma3,
    /// Phi 3, 3.5 and 4.
    Phi3,
    /// SmolLM 3.
    SmolLm3,
    /// Granite 3 without experts.
    Granite,
    /// OLMo 2.
    Olmo2,
}

impl Architecture {
    /// Every supported family.
    pub const ALL: [Architecture; 9] = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Gemma2,
        Architecture::Gemma3,
        Architecture::Phi3,
        Architecture::SmolLm3,
        Architecture::Granite,
        Architecture::Olmo2,
    ];

    /// Whether it is a Gemma.
    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Architecture::Gemma2 | Architecture::Gemma3)
    }

    /// Whether neighbouring dimensions of a head rotate together in the order
    /// that the engine computes in: that of the family's GGUF files.
    pub(super) fn rotates_neighbours(self) -> bool {
        matches!(self, Architecture::Llama | Architecture::SmolLm3 | Architecture::Granite)
    }

    /// Name in `general.architecture`, also the prefix of its metadata keys.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Gemma2 => "gemma2",
            Architecture::Gemma3 => "gemma3",
            Architecture::Phi3 => "phi3",
            Architecture::SmolLm3 => "smollm3",
            Architecture::Granite => "granite",
            Architecture::Olmo2 => "olmo2",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the output projection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// The embedding table.
    Tied,
    /// An own matrix.
    Own,
}

/// Where a layer normalises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// The inputs of attention and MLP: `x + f(norm(x))`.
    Before,
    /// Their outputs too (Gemma): `x + norm(f(norm(x)))`.
    Around,
    /// Their outputs only (OLMo 2): `x + norm(f(x))`.
    After,
}

/// Normalisation of queries and keys before the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself, `[D]` weights (Qwen 3, Gemma 3).
    PerHead,
    /// All heads of a row together, `[Hq * D]` and `[Hkv * D]` weights (OLMo 2).
    AllHeads,
}

/// Nonlinearity of the gated MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x sigmoid(x)`.
    Silu,
    /// GELU in its tanh form (Hendrycks and Gimpel, arXiv:1606.08415, section 2).
    GeluTanh,
}

/// What the layers of a model compute, besides sizes: the same in every layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arithmetic {
    /// Where norms are.
    pub norms: NormPlacement,
    /// Norm of queries and keys, if any.
    pub qk_norm: Option<QkNorm>,
    /// Nonlinearity of the MLP.
    pub activation: Activation,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of attention logits, usually `1/sqrt(D)`.
    pub attention_scale: f32,
    /// Attention logits become `cap tanh(l / cap)`.
    pub attention_softcap: Option<f32>,
    /// Factor of what attention and MLP add to the residual stream.
    pub residual_scale: f32,
    /// Factor of the output logits.
    pub logit_scale: f32,
    /// Output logits become `cap tanh(l / cap)`.
    pub logit_softcap: Option<f32>,
}

impl Arithmetic {
    /// That of a family without the numbers that its files state: factors are 1,
    /// nothing is capped, and attention logits are divided by `sqrt(D)`.
    pub(super) fn of(architecture: Architecture, shape: &Shape, norm_eps: f32) -> Self {
        let plain = Arithmetic {
            norms: NormPlacement::Before,
            qk_norm: None,
            activation: Activation::Silu,
            norm_eps,
            embedding_scale: 1.0,
            attention_scale: 1.0 / (shape.head_dim as f32).sqrt(),
            attention_softcap: None,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
        };
        let gemma = Arithmetic {
            norms: NormPlacement::Around,
            activation: Activation::GeluTanh,
            embedding_scale: (shape.d_model as f32).sqrt(),
            ..plain
        };
        match architecture {
            Architecture::Llama
            | Architecture::Qwen2
            | Architecture::Phi3
            | Architecture::SmolLm3
            | Architecture::Granite => plain,
            Architecture::Qwen3 => Arithmetic { qk_norm: Some(QkNorm::PerHead), ..plain },
            Architecture::Gemma2 => gemma,
            Architecture::Gemma3 => Arithmetic { qk_norm: Some(QkNorm::PerHead), ..gemma },
            Architecture::Olmo2 => {
                Arithmetic { norms: NormPlacement::After, qk_norm: Some(QkNorm::AllHeads), ..plain }
            }
        }
    }

    /// Checks the numbers of a file.
    ///
    /// # Errors
    /// [`ModelError::Value`] names the first that is not a finite positive
    /// number.
    pub fn validate(&self) -> Result<(), ModelError> {
        let numbers = [
            ("norm epsilon", Some(self.norm_eps)),
            ("embedding scale", Some(self.embedding_scale)),
            ("attention scale", Some(self.attention_scale)),
            ("attention softcap", self.attention_softcap),
            ("residual scale", Some(self.residual_scale)),
            ("logit scale", Some(self.logit_scale)),
            ("logit softcap", self.logit_softcap),
        ];
        let bad = numbers
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .find(|&(_, value)| !(value.is_finite() && value > 0.0));
        match bad {
            None => Ok(()),
            Some((key, value)) => Err(ModelError::Value {
                key: key.to_owned(),
                value: value.to_string(),
                reason: "must be a finite number above 0".to_owned(),
            }),
        }
    }
}

/// What the forward pass needs to know about a model besides its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Family.
    pub architecture: Architecture,
    /// Name in the file, if it has one.
    pub name: Option<String>,
    /// Dimensions and windows. `shape.context` is the context after RoPE
    /// scaling.
    pub shape: Shape,
    /// What layers compute.
    pub arithmetic: Arithmetic,
    /// Rotary position embeddings that occur in the model, at least one.
    pub ropes: Vec<RopeSpec>,
    /// Which of [`ModelSpec::ropes`] each layer uses, `[N]`; `None` for a layer
    /// without positions.
    pub layer_ropes: Vec<Option<usize>>,
    /// Output projection.
    pub head: HeadKind,
}

impl ModelSpec {
    /// Overrides the file's RoPE scaling and stretches the context from the
    /// trained one. The override concerns the rotation of the first layer that
    /// sees the whole prompt: a window's own rotation never reaches beyond it.
    ///
    /// # Errors
    /// A number of the scaling that makes no sense.
    pub(crate) fn scale_rope(&mut self, scaling: RopeScaling) -> Result<(), ModelError> {
        let global = |layer: &usize| self.shape.window(*layer).is_none();
        let layer = (0..self.shape.n_layers)
            .filter(global)
            .find_map(|layer| self.layer_ropes.get(layer).copied().flatten());
        let rope = &mut self.ropes[layer.unwrap_or(0)];
        let stretched = (rope.trained_context as f64 * scaling.factor()) as usize;
        rope.scaling = scaling;
        if let RopeFactors::ByLength { .. } = rope.factors {
            rope.factors = RopeFactors::None;
        }
        self.shape.context = stretched.min(u32::MAX as usize);
        self.ropes.iter().try_for_each(RopeSpec::validate)
    }

    /// Frequencies of every rotation for a prompt of `n_tokens` tokens. Scalings
    /// that depend on the length are frozen at the prompt's.
    ///
    /// # Errors
    /// As [`RopeSpec::validate`]; a model that was opened has passed it.
    pub fn rotations(&self, n_tokens: usize) -> Result<Rotations, ModelError> {
        let tables =
            self.ropes.iter().map(|rope| rope.frequencies(n_tokens)).collect::<Result<_, _>>()?;
        Ok(Rotations { tables, layers: self.layer_ropes.clone() })
    }
}

/// The rotations of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotations {
    tables: Vec<RopeFrequencies>,
    layers: Vec<Option<usize>>,
}

impl Rotations {
    /// No layer rotates: for runs that compute nothing.
    pub fn none() -> Self {
        Rotations { tables: Vec::new(), layers: Vec::new() }
    }

    /// Rotation of `layer`; `None` where positions do not enter.
    pub fn of_layer(&self, layer: usize) -> Option<&RopeFrequencies> {
        self.layers.get(layer).copied().flatten().map(|table| &self.tables[table])
    }
}

/// Rotations of `n_layers` layers of which every `period`-th, counting from layer
/// `period - 1`, has no positions.
pub(super) fn patterned_ropes(n_layers: usize, period: usize) -> Vec<Option<usize>> {
    (0..n_layers).map(|layer| (!(layer + 1).is_multiple_of(period)).then_some(0)).collect()
}

/// The windows of `n_layers` layers of which every `period`-th, counting from
/// layer `period - 1`, sees everything and the others `window` keys.
pub(super) fn patterned_windows(
    n_layers: usize,
    window: NonZeroUsize,
    period: usize,
) -> Vec<Option<NonZeroUsize>> {
    let global = |layer: usize| period > 0 && (layer + 1).is_multiple_of(period);
    (0..n_layers).map(|layer| (!global(layer)).then_some(window)).collect()
}
