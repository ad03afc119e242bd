//! Tensor names in GGUF files: one map for every supported family.

/// Matrices of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerTensor {
    AttnNorm,
    Query,
    Key,
    Value,
    QueryBias,
    KeyBias,
    ValueBias,
    Output,
    MlpNorm,
    Gate,
    Up,
    Down,
}

impl LayerTensor {
    fn suffix(self) -> &'static str {
        match self {
            LayerTensor::AttnNorm => "attn_norm.weight",
            LayerTensor::Query => "attn_q.weight",
            LayerTensor::Key => "attn_k.weight",
            LayerTensor::Value => "attn_v.weight",
            LayerTensor::QueryBias => "attn_q.bias",
            LayerTensor::KeyBias => "attn_k.bias",
            LayerTensor::ValueBias => "attn_v.bias",
            LayerTensor::Output => "attn_output.weight",
            LayerTensor::MlpNorm => "ffn_norm.weight",
            LayerTensor::Gate => "ffn_gate.weight",
            LayerTensor::Up => "ffn_up.weight",
            LayerTensor::Down => "ffn_down.weight",
        }
    }

    /// Name of the tensor in layer `layer`.
    pub(super) fn name(self, layer: usize) -> String {
        format!("blk.{layer}.{}", self.suffix())
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

/// Tensors that mean the model computes something this engine does not, by a
/// part of their name, with the words a user would use for it.
pub(super) const UNSUPPORTED_PARTS: [(&str, &str); 9] = [
    ("_exps.", "mixture of experts"),
    ("ffn_gate_inp", "mixture of experts"),
    ("attn_q_norm", "query/key norm"),
    ("attn_k_norm", "query/key norm"),
    ("attn_qkv", "fused query/key/value projection"),
    ("post_attention_norm", "post-attention norm"),
    ("post_ffw_norm", "post-MLP norm"),
    ("ssm_", "state-space layers"),
    ("attn_sinks", "learned attention sinks"),
];
