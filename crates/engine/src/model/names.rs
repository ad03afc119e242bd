//! Tensor names: one map per container for every supported family.

use super::{Architecture, ModelError};

/// Parts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Norm of attention's input.
    AttnNorm,
    Query,
    Key,
    Value,
    QueryBias,
    KeyBias,
    ValueBias,
    /// Query, key and value rows in one matrix.
    FusedQkv,
    /// Their biases in one vector.
    FusedQkvBias,
    QueryNorm,
    KeyNorm,
    Output,
    /// Norm of attention's output.
    PostAttnNorm,
    /// Norm of the MLP's input.
    MlpNorm,
    Gate,
    Up,
    /// Gate rows, then up rows, in one matrix.
    FusedGateUp,
    Down,
    /// Norm of the MLP's output.
    PostMlpNorm,
}

/// How a container names tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Naming {
    /// GGUF.
    Gguf,
    /// Safetensors of Hugging Face models.
    HuggingFace {
        /// In front of every name but the output projection's, such as `model.`.
        prefix: String,
        /// In front of the output projection's name.
        head_prefix: String,
        /// Family: two of them give the same name to different norms.
        architecture: Architecture,
    },
}

impl Naming {
    /// Name of `part` in layer `layer`.
    pub(super) fn layer_part(&self, part: Part, layer: usize) -> String {
        match self {
            Naming::Gguf => gguf_part(part, layer),
            Naming::HuggingFace { prefix, architecture, .. } => {
                format!("{prefix}layers.{layer}.{}", hugging_face_part(part, *architecture))
            }
        }
    }

    /// Embedding table, `[vocab, d_model]`.
    pub(super) fn embedding(&self) -> String {
        match self {
            Naming::Gguf => EMBEDDING.to_owned(),
            Naming::HuggingFace { prefix, .. } => format!("{prefix}embed_tokens.weight"),
        }
    }

    /// Final norm.
    pub(super) fn final_norm(&self) -> String {
        match self {
            Naming::Gguf => FINAL_NORM.to_owned(),
            Naming::HuggingFace { prefix, .. } => format!("{prefix}norm.weight"),
        }
    }

    /// Output projection; absent when tied to the embedding.
    pub(super) fn head(&self) -> String {
        match self {
            Naming::Gguf => HEAD.to_owned(),
            Naming::HuggingFace { head_prefix, .. } => format!("{head_prefix}lm_head.weight"),
        }
    }

    /// Whether norm weights are stored as the difference from 1.
    pub(super) fn stores_norms_less_one(&self, architecture: Architecture) -> bool {
        architecture.is_gemma() && *self != Naming::Gguf
    }

    /// Whether queries and keys are stored for a rotation of halves although the
    /// family's heads rotate by neighbours, as its GGUF files store them.
    pub(super) fn stores_halves(&self, architecture: Architecture) -> bool {
        architecture.rotates_neighbours() && *self != Naming::Gguf
    }

    /// Whether a tensor may be left out: buffers that are computed from the
    /// configuration, and what a text model does not need of one that also sees.
    pub(super) fn may_be_unread(&self, tensor: &str) -> bool {
        const VISION: [&str; 2] = ["vision_tower.", "multi_modal_projector."];
        match self {
            Naming::Gguf => false,
            Naming::HuggingFace { prefix, .. } => {
                // No part of a layer but its own buffers.
                let of_layer = tensor.starts_with(&format!("{prefix}layers."));
                tensor.ends_with(".rotary_emb.inv_freq")
                    || !of_layer && VISION.iter().any(|part| tensor.contains(part))
            }
        }
    }
}

/// What a user would call the part of a model that `tensor` belongs to, where that
/// is known.
pub(super) fn feature_of(tensor: &str) -> Option<&'static str> {
    FEATURES.iter().find(|(part, _)| tensor.contains(part)).map(|&(_, feature)| feature)
}

fn hugging_face_part(part: Part, architecture: Architecture) -> &'static str {
    match part {
        Part::AttnNorm => "input_layernorm.weight",
        Part::Query => "self_attn.q_proj.weight",
        Part::Key => "self_attn.k_proj.weight",
        Part::Value => "self_attn.v_proj.weight",
        Part::QueryBias => "self_attn.q_proj.bias",
        Part::KeyBias => "self_attn.k_proj.bias",
        Part::ValueBias => "self_attn.v_proj.bias",
        Part::FusedQkv => "self_attn.qkv_proj.weight",
        Part::FusedQkvBias => "self_attn.qkv_proj.bias",
        Part::QueryNorm => "self_attn.q_norm.weight",
        Part::KeyNorm => "self_attn.k_norm.weight",
        Part::Output => "self_attn.o_proj.weight",
        Part::PostAttnNorm => "post_attention_layernorm.weight",
        // Llama's norm in front of the MLP has the name of Gemma's behind the
        // attention.
        Part::MlpNorm if architecture.is_gemma() => "pre_feedforward_layernorm.weight",
        Part::MlpNorm => "post_attention_layernorm.weight",
        Part::Gate => "mlp.gate_proj.weight",
        Part::Up => "mlp.up_proj.weight",
        Part::FusedGateUp => "mlp.gate_up_proj.weight",
        Part::Down => "mlp.down_proj.weight",
        Part::PostMlpNorm => "post_feedforward_layernorm.weight",
    }
}

fn gguf_part(part: Part, layer: usize) -> String {
    let suffix = match part {
        Part::AttnNorm => "attn_norm.weight",
        Part::Query => "attn_q.weight",
        Part::Key => "attn_k.weight",
        Part::Value => "attn_v.weight",
        Part::QueryBias => "attn_q.bias",
        Part::KeyBias => "attn_k.bias",
        Part::ValueBias => "attn_v.bias",
        Part::FusedQkv => "attn_qkv.weight",
        Part::FusedQkvBias => "attn_qkv.bias",
        Part::QueryNorm => "attn_q_norm.weight",
        Part::KeyNorm => "attn_k_norm.weight",
        Part::Output => "attn_output.weight",
        Part::PostAttnNorm => "post_attention_norm.weight",
        Part::MlpNorm => "ffn_norm.weight",
        Part::Gate => "ffn_gate.weight",
        // The fused matrix has the name of the plain one, and twice its rows.
        Part::Up | Part::FusedGateUp => "ffn_up.weight",
        Part::Down => "ffn_down.weight",
        Part::PostMlpNorm => "post_ffw_norm.weight",
    };
    format!("blk.{layer}.{suffix}")
}

/// Refuses a model of experts, and weights packed by other libraries, by the
/// tensors' names: before anything is missed because those have its place.
pub(super) fn refuse_replaced<'t>(
    mut tensors: impl Iterator<Item = &'t str>,
) -> Result<(), ModelError> {
    const EXPERTS: [&str; 4] = ["_exps.", ".experts.", "block_sparse_moe", "ffn_gate_inp"];
    const PACKED: [&str; 6] =
        [".qweight", ".weight_packed", ".weight_scale", ".weight.absmax", ".SCB", ".scales"];
    let one_of = |parts: &[&str], tensor: &str| parts.iter().any(|part| tensor.contains(part));
    let replaced = tensors.find(|tensor| one_of(&EXPERTS, tensor) || one_of(&PACKED, tensor));
    match replaced {
        None => Ok(()),
        Some(tensor) if one_of(&EXPERTS, tensor) => {
            Err(ModelError::Feature { feature: "mixture of experts".to_owned() })
        }
        Some(tensor) => {
            let quantisation = format!("a library that stores `{tensor}`");
            Err(ModelError::Quantised { quantisation })
        }
    }
}

/// Embedding table, `[vocab, d_model]`.
pub(super) const EMBEDDING: &str = "token_embd.weight";
/// Final norm.
pub(super) const FINAL_NORM: &str = "output_norm.weight";
/// Output projection; absent when tied to the embedding.
pub(super) const HEAD: &str = "output.weight";
/// Divisors of the RoPE frequencies (Llama 3.1).
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Divisors of the RoPE frequencies within and beyond the trained context
/// (Phi 3).
pub(super) const LONG_ROPE_FACTORS: [&str; 2] =
    ["rope_factors_short.weight", "rope_factors_long.weight"];

/// Tensors that mean the model computes something this engine does not, by a
/// part of their name, with the words a user would use for it. Only for the
/// words: a tensor that no part of the forward pass reads is refused anyway, and
/// experts are by [`refuse_replaced`].
const FEATURES: [(&str, &str); 9] = [
    ("ssm_", "state-space layers"),
    ("attn_sinks", "learned attention sinks"),
    ("attn_output.bias", "a bias of the attention output"),
    ("o_proj.bias", "a bias of the attention output"),
    ("ffn_", "a bias or another extra of the MLP"),
    ("mlp.", "a bias or another extra of the MLP"),
    ("norm.bias", "layer norms with a bias"),
    ("output.bias", "a bias of the output projection"),
    ("lm_head.bias", "a bias of the output projection"),
];
