//! What the configuration class of each family assumes where `config.json` is silent.
//!
//! Files that were written as differences from their class leave out what equals it, so
//! a key that is absent has the class's value, and one that is `null` has none.

use crate::model::{Architecture, ModelError};

/// Which layers have a window, where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// None, whatever the file states.
    Never,
    /// All; types of layers are not read.
    EveryLayer,
    /// Those from `max_window_layers` on, if `use_sliding_window`.
    FromLayer {
        /// `max_window_layers`.
        default: usize,
    },
    /// Those without positions, if `use_sliding_window`.
    WithoutPositions,
    /// All but every n-th.
    AllButEvery {
        /// n.
        default: usize,
        /// The key that states another n.
        key: Option<&'static str>,
    },
}

impl Windows {
    /// Whether `use_sliding_window` turns the window on.
    pub(super) fn has_switch(self) -> bool {
        matches!(self, Windows::FromLayer { .. } | Windows::WithoutPositions)
    }

    /// Whether `layer_types` goes before the rule.
    pub(super) fn reads_types(self) -> bool {
        !matches!(self, Windows::Never | Windows::EveryLayer)
    }
}

/// Biases of the projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Biases {
    /// Whatever the tensors say: the class has them without a key.
    Built,
    /// None.
    Never,
    /// Those of attention by `attention_bias`.
    Attention,
    /// Those of attention by `attention_bias`, those of the MLP by `mlp_bias`.
    AttentionAndMlp,
}

/// A family by its `model_type`, with the defaults that matter to the engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    pub(super) model_type: &'static str,
    pub(super) architecture: Architecture,
    /// `hidden_size`, `intermediate_size` and `num_hidden_layers`, in families whose files
    /// are written as differences; elsewhere a file without them is taken for damaged.
    pub(super) sizes: Option<[usize; 3]>,
    /// `num_attention_heads`.
    pub(super) n_heads: usize,
    /// `num_key_value_heads`; `None` for as many as query heads.
    pub(super) n_kv_heads: Option<usize>,
    /// `head_dim`; `None` for the hidden size per head.
    pub(super) head_dim: Option<usize>,
    /// `max_position_embeddings`.
    pub(super) context: usize,
    /// `original_max_position_embeddings`.
    pub(super) trained_context: Option<usize>,
    /// `rms_norm_eps`.
    pub(super) norm_eps: f64,
    /// `rope_theta`.
    pub(super) rope_base: f64,
    /// `rope_local_base_freq`, in families whose layers with a window have a rotation of
    /// their own.
    pub(super) window_rope_base: Option<f64>,
    /// `sliding_window`.
    pub(super) window: Option<usize>,
    pub(super) windows: Windows,
    /// `attn_logit_softcapping`; `None` in families that have no such thing.
    pub(super) attention_softcap: Option<f64>,
    /// `final_logit_softcapping`.
    pub(super) logit_softcap: Option<f64>,
    /// Where the activation is stated; what it is otherwise is the architecture's.
    pub(super) activation_key: &'static str,
    /// `tie_word_embeddings`.
    pub(super) tied: bool,
    pub(super) biases: Biases,
}

const LLAMA: Family = Family {
    model_type: "llama",
    architecture: Architecture::Llama,
    sizes: None,
    n_heads: 32,
    n_kv_heads: None,
    head_dim: None,
    context: 2048,
    trained_context: None,
    norm_eps: 1e-6,
    rope_base: 10_000.0,
    window_rope_base: None,
    window: None,
    windows: Windows::Never,
    attention_softcap: None,
    logit_softcap: None,
    activation_key: "hidden_act",
    tied: false,
    biases: Biases::AttentionAndMlp,
};

const MISTRAL: Family = Family {
    model_type: "mistral",
    n_kv_heads: Some(8),
    context: 131_072,
    window: Some(4096),
    windows: Windows::EveryLayer,
    biases: Biases::Never,
    ..LLAMA
};

const QWEN2: Family = Family {
    model_type: "qwen2",
    architecture: Architecture::Qwen2,
    n_kv_heads: Some(32),
    context: 32_768,
    window: Some(4096),
    windows: Windows::FromLayer { default: 28 },
    biases: Biases::Built,
    ..LLAMA
};

const QWEN3: Family = Family {
    model_type: "qwen3",
    architecture: Architecture::Qwen3,
    head_dim: Some(128),
    biases: Biases::Attention,
    ..QWEN2
};

const GEMMA2: Family = Family {
    model_type: "gemma2",
    architecture: Architecture::Gemma2,
    n_heads: 8,
    n_kv_heads: Some(4),
    head_dim: Some(256),
    context: 8192,
    window: Some(4096),
    windows: Windows::AllButEvery { default: 2, key: None },
    attention_softcap: Some(50.0),
    logit_softcap: Some(30.0),
    activation_key: "hidden_activation",
    tied: true,
    biases: Biases::Attention,
    ..LLAMA
};

const GEMMA3: Family = Family {
    model_type: "gemma3",
    architecture: Architecture::Gemma3,
    sizes: Some([2304, 9216, 26]),
    context: 131_072,
    rope_base: 1_000_000.0,
    window_rope_base: Some(10_000.0),
    windows: Windows::AllButEvery { default: 6, key: Some("sliding_window_pattern") },
    attention_softcap: None,
    logit_softcap: None,
    ..GEMMA2
};

const PHI3: Family = Family {
    model_type: "phi3",
    architecture: Architecture::Phi3,
    context: 4096,
    trained_context: Some(4096),
    norm_eps: 1e-5,
    windows: Windows::EveryLayer,
    biases: Biases::Never,
    ..LLAMA
};

const SMOLLM3: Family = Family {
    model_type: "smollm3",
    architecture: Architecture::SmolLm3,
    n_heads: 16,
    n_kv_heads: Some(4),
    context: 32_768,
    rope_base: 2_000_000.0,
    windows: Windows::WithoutPositions,
    tied: true,
    ..LLAMA
};

const GRANITE: Family =
    Family { model_type: "granite", architecture: Architecture::Granite, ..LLAMA };

const OLMO2: Family = Family {
    model_type: "olmo2",
    architecture: Architecture::Olmo2,
    norm_eps: 1e-5,
    biases: Biases::Attention,
    ..LLAMA
};

/// Every family; one of them has its text part under a name of its own.
const FAMILIES: [Family; 11] = [
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    Family { model_type: "gemma3_text", ..GEMMA3 },
    PHI3,
    SMOLLM3,
    GRANITE,
    OLMO2,
];

impl Family {
    /// Whether files state the language model in `text_config`.
    pub(super) fn nests(&self) -> bool {
        self.model_type == "gemma3"
    }

    /// The family that files call `model_type`.
    ///
    /// # Errors
    /// One that is not supported.
    pub(super) fn named(model_type: &str) -> Result<Family, ModelError> {
        if let Some(family) = FAMILIES.into_iter().find(|family| family.model_type == model_type) {
            return Ok(family);
        }
        // "mixtral", "qwen3_moe", "granitemoe".
        if model_type.contains("moe") || model_type == "mixtral" {
            return Err(ModelError::Feature { feature: "mixture of experts".to_owned() });
        }
        let mut supported = FAMILIES.map(|family| family.model_type).join(", ");
        supported += " (as `model_type`)";
        Err(ModelError::Architecture { found: model_type.to_owned(), supported })
    }
}
