//! Tiny models as Hugging Face directories: the same weights as the GGUF file of
//! the same spec, under the names, in the row order and with the configuration
//! that the `transformers` library writes for the family.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};
use tidekv_format::{Array, TensorType};

use crate::family::Arch;
use crate::safetensors_writer::SafetensorsWriter;
use crate::streamed::StreamedTensor;
use crate::tiny::{Head, TinySpec};

impl TinySpec {
    /// Writes `config.json`, `tokenizer.json` and the weights to `dir`, in `shards` files.
    ///
    /// # Panics
    ///
    /// If a matrix has a type that safetensors files do not have.
    pub fn write_hugging_face(&self, dir: &Path, shards: usize) -> io::Result<()> {
        let gguf = self.writer();
        let mut writer = SafetensorsWriter::new();
        for tensor in gguf.tensors() {
            // LongRoPE's factors stand in the configuration.
            if !tensor.name.starts_with("rope_factors") {
                self.add(&mut writer, tensor)?;
            }
        }
        match shards {
            1 => writer.write_to(&dir.join("model.safetensors"))?,
            _ => writer.write_sharded(dir, shards).map(drop)?,
        }
        fs::write(dir.join("config.json"), self.config(&gguf)?.to_string())?;
        fs::write(dir.join("tokenizer.json"), tokenizer(&gguf).to_string())
    }

    fn add(&self, writer: &mut SafetensorsWriter, tensor: &StreamedTensor) -> io::Result<()> {
        let mut bytes = Vec::new();
        tensor.write(&mut bytes)?;
        let head = tensor.name.ends_with("attn_q.weight")
            || tensor.name.ends_with("attn_k.weight")
            || tensor.name.ends_with("attn_q.bias")
            || tensor.name.ends_with("attn_k.bias");
        if head && self.arch.pairs_neighbours() {
            let heads = tensor.shape.last().map_or(0, |&rows| rows as usize) / self.head_dim;
            bytes = halves_of_heads(&bytes, heads, self.head_dim);
        }
        if tensor.name.contains("norm") && self.arch.is_gemma() {
            bytes = less_one(tensor.ty, &bytes);
        }
        writer.tensor(&name(&tensor.name, self.arch), &tensor.shape, tensor.ty, bytes);
        Ok(())
    }

    fn config(&self, gguf: &crate::GgufWriter) -> io::Result<Value> {
        let mut config = Map::new();
        let mut set = |key: &str, value: Value| {
            config.insert(key.to_owned(), value);
        };
        let model_type = match self.arch {
            Arch::Gemma3 => "gemma3_text",
            // The same family with windows has a name of its own.
            Arch::Llama if self.window.is_some() => "mistral",
            other => other.name(),
        };
        set("model_type", json!(model_type));
        set("vocab_size", json!(self.vocab));
        set("tie_word_embeddings", json!(self.head == Head::Tied));
        // The families' defaults lie beyond this vocabulary.
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            set(key, Value::Null);
        }
        set("num_hidden_layers", json!(self.n_layers));
        set("hidden_size", json!(self.d_model));
        set("intermediate_size", json!(self.d_ff));
        set("num_attention_heads", json!(self.n_heads));
        set("num_key_value_heads", json!(self.n_kv_heads));
        set("head_dim", json!(self.head_dim));
        set("max_position_embeddings", json!(self.context));
        set("rms_norm_eps", json!(f64::from(self.rms_epsilon)));
        set("rope_theta", json!(f64::from(self.rope_base)));
        set("sliding_window", json!(self.window));
        set("use_sliding_window", json!(self.window.is_some()));
        let activation = if self.arch.is_gemma() { "gelu_pytorch_tanh" } else { "silu" };
        set("hidden_act", json!(activation));
        if self.arch.is_gemma() {
            set("query_pre_attn_scalar", json!(self.head_dim));
        }
        let number = |key: &str| gguf.number(&format!("{}.{key}", self.arch.name()));
        match self.arch {
            Arch::Gemma2 => {
                set("attn_logit_softcapping", json!(number("attn_logit_softcapping")));
                set("final_logit_softcapping", json!(number("final_logit_softcapping")));
            }
            Arch::Granite => {
                set("embedding_multiplier", json!(number("embedding_scale")));
                set("residual_multiplier", json!(number("residual_scale")));
                set("attention_multiplier", json!(number("attention.scale")));
                set("logits_scaling", json!(number("logit_scale")));
            }
            Arch::Phi3 => {
                let dims = number("rope.dimension_count").unwrap_or(0.0);
                set("partial_rotary_factor", json!(dims / self.head_dim as f64));
                let trained = number("rope.scaling.original_context_length").unwrap_or(0.0);
                set("original_max_position_embeddings", json!(trained as u64));
                let factors = |name: &str| vector(gguf, name);
                let scaling = json!({
                    "type": "longrope",
                    "short_factor": factors("rope_factors_short.weight")?,
                    "long_factor": factors("rope_factors_long.weight")?,
                });
                set("rope_scaling", scaling);
            }
            _ => {}
        }
        Ok(Value::Object(config))
    }
}

/// The numbers of an F32 vector.
fn vector(gguf: &crate::GgufWriter, name: &str) -> io::Result<Vec<f64>> {
    let tensor = gguf.tensors().iter().find(|tensor| tensor.name == name);
    let mut bytes = Vec::new();
    tensor.unwrap_or_else(|| panic!("no tensor `{name}`")).write(&mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect())
}

/// Rows 0, 1, 2, 3, ... of each head, which stand for neighbours that rotate together, moved to
/// 0, D/2, 1, D/2 + 1, ...: the order in which its halves do.
fn halves_of_heads(bytes: &[u8], heads: usize, head_dim: usize) -> Vec<u8> {
    let row = bytes.len() / (heads * head_dim);
    let mut out = vec![0; bytes.len()];
    for n in 0..heads * head_dim {
        let (head, at) = (n / head_dim, n % head_dim);
        let to = head * head_dim + at % 2 * (head_dim / 2) + at / 2;
        out[to * row..(to + 1) * row].copy_from_slice(&bytes[n * row..(n + 1) * row]);
    }
    out
}

/// Norm weights as their difference from 1, which f32 has exactly for weights from 1/2 to 2.
fn less_one(ty: TensorType, bytes: &[u8]) -> Vec<u8> {
    assert_eq!(ty, TensorType::F32, "norms are F32");
    bytes.as_chunks().0.iter().flat_map(|&x| (f32::from_le_bytes(x) - 1.0).to_le_bytes()).collect()
}

fn name(gguf: &str, arch: Arch) -> String {
    let of_model = match gguf {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(name) = of_model {
        return name.to_owned();
    }
    let rest = gguf.strip_prefix("blk.").unwrap_or_else(|| panic!("no place for `{gguf}`"));
    let (layer, part) = rest.split_once('.').unwrap_or_else(|| panic!("no place for `{gguf}`"));
    let (part, kind) = part.rsplit_once('.').unwrap_or_else(|| panic!("no place for `{gguf}`"));
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "attn_output" => "self_attn.o_proj",
        "post_attention_norm" => "post_attention_layernorm",
        "ffn_norm" if arch.is_gemma() => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if arch.is_fused() => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "post_ffw_norm" => "post_feedforward_layernorm",
        other => panic!("no place for `{other}`"),
    };
    format!("model.layers.{layer}.{part}.{kind}")
}

/// A byte-level BPE tokenizer of the file's vocabulary. Text is cut as GPT-2 cuts it, whatever the
/// file says: these models are compared by ids.
fn tokenizer(gguf: &crate::GgufWriter) -> Value {
    let strings = |key: &str| match gguf.value(key) {
        Some(tidekv_format::Value::Array(Array::String(strings))) => strings.clone(),
        other => panic!("{key}: {other:?}"),
    };
    let tokens = strings("tokenizer.ggml.tokens");
    let control = |token: &String| token.starts_with("<|");
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let added: Vec<Value> = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| control(token))
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true,
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": strings("tokenizer.ggml.merges"),
        },
    })
}
