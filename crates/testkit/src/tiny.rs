//! Models of a few layers with seeded random weights, in files that look like real ones.

use std::io;
use std::path::Path;

use tidekv_format::{TensorType, Value};

use crate::family::{Arch, Norms};
use crate::gguf_writer::GgufWriter;
use crate::tiny_tokenizer::{self, MIN_VOCAB, PreTokenizer};
use crate::weights::{SeededRows, Spread};

/// Spread of the QKV biases: large enough that a forward pass without them is plainly wrong.
const BIAS_STD: f32 = 0.5;
/// Norm weights are 1 with this spread: one that is skipped or taken from another layer shows.
const NORM_STD: f32 = 0.1;

/// Where the logits come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// From the embedding table; the file has no `output.weight`.
    Tied,
    /// From an `output.weight` of its own.
    Untied,
}

/// Storage type of every matrix. Norms and biases are F32, as in real files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the tensors of the same names")]
pub struct MatrixTypes {
    pub token_embd: TensorType,
    pub output: TensorType,
    pub attn_q: TensorType,
    pub attn_k: TensorType,
    pub attn_v: TensorType,
    pub attn_output: TensorType,
    pub ffn_gate: TensorType,
    pub ffn_up: TensorType,
    pub ffn_down: TensorType,
}

impl MatrixTypes {
    /// The same type everywhere.
    pub fn all(ty: TensorType) -> MatrixTypes {
        MatrixTypes {
            token_embd: ty,
            output: ty,
            attn_q: ty,
            attn_k: ty,
            attn_v: ty,
            attn_output: ty,
            ffn_gate: ty,
            ffn_up: ty,
            ffn_down: ty,
        }
    }
}

/// A model to be written. Fields are public: take a preset and change what the test is about.
///
/// Matrices that read K inputs have standard deviation 1/sqrt(K), so that with inputs of unit scale
/// (after a norm) their outputs have unit scale too: attention scores and logits vary by about 1, and
/// the hidden state grows with the square root of the depth, not exponentially.
#[derive(Debug, Clone, PartialEq)]
pub struct TinySpec {
    /// Architecture.
    pub arch: Arch,
    /// Layers, N.
    pub n_layers: usize,
    /// Width of the hidden state.
    pub d_model: usize,
    /// Width of the MLP. Block types need rows of whole blocks: then a multiple of 32, or 256 for K-quants.
    pub d_ff: usize,
    /// Query heads, Hq.
    pub n_heads: usize,
    /// KV heads, Hkv; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Head dimension, D; need not be `d_model / n_heads`. Even, for RoPE.
    pub head_dim: usize,
    /// Tokens in the vocabulary, at least [`MIN_VOCAB`](crate::MIN_VOCAB).
    pub vocab: usize,
    /// Longest context the file admits, tokens.
    pub context: usize,
    /// RoPE base.
    pub rope_base: f32,
    /// Epsilon of the RMS norms.
    pub rms_epsilon: f32,
    /// Sliding window, tokens: of the layers that [`Arch::has_window`] says.
    pub window: Option<usize>,
    /// Where the logits come from.
    pub head: Head,
    /// How matrices are stored.
    pub types: MatrixTypes,
    /// Seed of all weights.
    pub seed: u64,
}

/// Three layers with G = 3, tied head, F32, and a `d_ff` that no vector width divides.
pub fn tiny_llama(seed: u64) -> TinySpec {
    TinySpec {
        arch: Arch::Llama,
        n_layers: 3,
        d_model: 96,
        d_ff: 205,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 16,
        vocab: MIN_VOCAB,
        context: 8192,
        rope_base: 1e5,
        rms_epsilon: 1e-5,
        window: None,
        head: Head::Tied,
        types: MatrixTypes::all(TensorType::F32),
        seed,
    }
}

/// Three layers with G = 7, untied head, QKV biases, F32.
pub fn tiny_qwen2(seed: u64) -> TinySpec {
    TinySpec {
        arch: Arch::Qwen2,
        n_layers: 3,
        d_model: 224,
        d_ff: 320,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 16,
        vocab: MIN_VOCAB,
        context: 8192,
        rope_base: 1e6,
        rms_epsilon: 1e-6,
        window: None,
        head: Head::Untied,
        types: MatrixTypes::all(TensorType::F32),
        seed,
    }
}

/// Every family with layers enough for its pattern, G = 2, D other than `d_model / Hq`, F32, and
/// where it has windows one of 16 tokens.
pub fn tiny_families(seed: u64) -> Vec<TinySpec> {
    let of = |arch: Arch| TinySpec {
        arch,
        n_layers: arch.pattern_layers(),
        d_model: 64,
        d_ff: 112,
        n_heads: 4,
        n_kv_heads: 2,
        // Phi 3 knows no width of heads but this.
        head_dim: if arch == Arch::Phi3 { 16 } else { 32 },
        window: arch.windowed().then_some(16),
        head: if arch.is_gemma() { Head::Tied } else { Head::Untied },
        ..tiny_llama(seed)
    };
    Arch::ALL.into_iter().map(of).collect()
}

/// Two layers of the shape of Llama-3.1-8B in BF16: a file of 2.98 GB, about 15 s to write. It has
/// no `rope_freqs.weight`: the shape is what it is for, not positions beyond 8,192.
pub fn llama_8b_two_layers() -> TinySpec {
    TinySpec {
        arch: Arch::Llama,
        n_layers: 2,
        d_model: 4096,
        d_ff: 14_336,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        context: 131_072,
        rope_base: 5e5,
        rms_epsilon: 1e-5,
        window: None,
        head: Head::Untied,
        types: MatrixTypes::all(TensorType::BF16),
        seed: 8,
    }
}

impl TinySpec {
    /// Writes the model to `path`, row by row: memory use does not grow with the model.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        self.writer().write_to(path)
    }

    /// The file before it is written, for tests that change a key or a tensor first.
    pub fn writer(&self) -> GgufWriter {
        assert!(
            self.n_heads.is_multiple_of(self.n_kv_heads),
            "{} heads on {} KV heads",
            self.n_heads,
            self.n_kv_heads
        );
        assert!(self.head_dim.is_multiple_of(2), "an odd head dimension {}", self.head_dim);
        let mut writer = GgufWriter::new();
        self.set_metadata(&mut writer);
        self.add_embedding_and_head(&mut writer);
        for layer in 0..self.n_layers {
            self.add_layer(&mut writer, layer);
        }
        self.add_norm(&mut writer, "output_norm.weight");
        self.add_rope_factors(&mut writer);
        writer
    }

    fn set_metadata(&self, writer: &mut GgufWriter) {
        let arch = self.arch.name();
        writer.set("general.architecture", Value::String(arch.into()));
        writer.set("general.type", Value::String("model".into()));
        writer.set("general.name", Value::String(format!("Seeded {arch} {}", self.seed)));
        let mut set = |suffix: &str, value| {
            writer.set(&format!("{arch}.{suffix}"), value);
        };
        let count = |n: usize| Value::U32(u32::try_from(n).expect("model dimensions fit 32 bits"));
        set("block_count", count(self.n_layers));
        set("context_length", count(self.context));
        set("embedding_length", count(self.d_model));
        set("feed_forward_length", count(self.d_ff));
        set("attention.head_count", count(self.n_heads));
        set("attention.head_count_kv", count(self.n_kv_heads));
        set("rope.freq_base", Value::F32(self.rope_base));
        set("attention.layer_norm_rms_epsilon", Value::F32(self.rms_epsilon));
        if self.head_dim * self.n_heads != self.d_model {
            set("attention.key_length", count(self.head_dim));
            set("attention.value_length", count(self.head_dim));
        }
        // As in the real files: those of qwen2 leave these two to the reader.
        if self.arch == Arch::Llama {
            set("vocab_size", count(self.vocab));
            set("rope.dimension_count", count(self.head_dim));
        }
        if let Some(window) = self.window {
            set("attention.sliding_window", count(window));
        }
        self.arch.set_numbers(self.head_dim, &mut set);
        let pre = match self.arch {
            Arch::Qwen2 => PreTokenizer::Qwen2,
            _ => PreTokenizer::Smollm,
        };
        for (key, value) in tiny_tokenizer::entries(pre, self.vocab) {
            writer.set(key, value);
        }
        writer.set("general.quantization_version", Value::U32(2));
    }

    fn add_embedding_and_head(&self, writer: &mut GgufWriter) {
        if self.head == Head::Untied {
            self.add_matrix(writer, "output.weight", self.types.output, [self.d_model, self.vocab]);
        }
        self.add_matrix(
            writer,
            "token_embd.weight",
            self.types.token_embd,
            [self.d_model, self.vocab],
        );
    }

    fn add_layer(&self, writer: &mut GgufWriter, layer: usize) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (d_model, d_ff) = (self.d_model, self.d_ff);
        let (d_q, d_kv) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let types = &self.types;
        let norms = self.arch.norms();
        if norms != Norms::After {
            self.add_norm(writer, &name("attn_norm.weight"));
        }
        if self.arch.is_fused() {
            let rows = d_q + 2 * d_kv;
            self.add_matrix(writer, &name("attn_qkv.weight"), types.attn_q, [d_model, rows]);
        } else {
            self.add_matrix(writer, &name("attn_q.weight"), types.attn_q, [d_model, d_q]);
            self.add_matrix(writer, &name("attn_k.weight"), types.attn_k, [d_model, d_kv]);
            self.add_matrix(writer, &name("attn_v.weight"), types.attn_v, [d_model, d_kv]);
        }
        if self.arch == Arch::Qwen2 {
            self.add_bias(writer, &name("attn_q.bias"), d_q);
            self.add_bias(writer, &name("attn_k.bias"), d_kv);
            self.add_bias(writer, &name("attn_v.bias"), d_kv);
        }
        if let Some([q, k]) = self.arch.qk_norm([d_q, d_kv], self.head_dim) {
            let spread = Spread { mean: 1.0, std: NORM_STD };
            self.add_vector(writer, &name("attn_q_norm.weight"), q, spread);
            self.add_vector(writer, &name("attn_k_norm.weight"), k, spread);
        }
        self.add_matrix(writer, &name("attn_output.weight"), types.attn_output, [d_q, d_model]);
        if norms != Norms::Before {
            self.add_norm(writer, &name("post_attention_norm.weight"));
        }
        if norms != Norms::After {
            self.add_norm(writer, &name("ffn_norm.weight"));
        }
        if self.arch.is_fused() {
            self.add_matrix(writer, &name("ffn_up.weight"), types.ffn_up, [d_model, 2 * d_ff]);
        } else {
            self.add_matrix(writer, &name("ffn_gate.weight"), types.ffn_gate, [d_model, d_ff]);
            self.add_matrix(writer, &name("ffn_up.weight"), types.ffn_up, [d_model, d_ff]);
        }
        self.add_matrix(writer, &name("ffn_down.weight"), types.ffn_down, [d_ff, d_model]);
        if norms != Norms::Before {
            self.add_norm(writer, &name("post_ffw_norm.weight"));
        }
    }

    /// LongRoPE's divisors within and beyond the trained context.
    fn add_rope_factors(&self, writer: &mut GgufWriter) {
        let Some(dims) = self.arch.long_rope_dims(self.head_dim) else { return };
        for (name, mean) in [("rope_factors_short.weight", 1.5), ("rope_factors_long.weight", 4.0)]
        {
            self.add_vector(writer, name, dims / 2, Spread { mean, std: NORM_STD });
        }
    }

    /// A matrix that maps K inputs to M outputs, ggml shape `[K, M]`.
    fn add_matrix(
        &self,
        writer: &mut GgufWriter,
        name: &str,
        ty: TensorType,
        [inputs, outputs]: [usize; 2],
    ) {
        let std = 1.0 / (inputs as f32).sqrt();
        let weights = self.seeded(name, ty, [outputs, inputs], Spread { mean: 0.0, std });
        let shape = [inputs as u64, outputs as u64];
        writer.streamed_tensor(name, &shape, ty, move |out| weights.write(out));
    }

    fn add_norm(&self, writer: &mut GgufWriter, name: &str) {
        self.add_vector(writer, name, self.d_model, Spread { mean: 1.0, std: NORM_STD });
    }

    fn add_bias(&self, writer: &mut GgufWriter, name: &str, n: usize) {
        self.add_vector(writer, name, n, Spread { mean: 0.0, std: BIAS_STD });
    }

    fn add_vector(&self, writer: &mut GgufWriter, name: &str, n: usize, spread: Spread) {
        let weights = self.seeded(name, TensorType::F32, [1, n], spread);
        writer.streamed_tensor(name, &[n as u64], TensorType::F32, move |out| weights.write(out));
    }

    fn seeded(
        &self,
        name: &str,
        ty: TensorType,
        [rows, cols]: [usize; 2],
        spread: Spread,
    ) -> SeededRows {
        SeededRows { name: name.to_owned(), seed: self.seed, rows, cols, ty, spread }
    }
}

#[cfg(test)]
mod tests;
