//! A dense forward pass in f64, the whole sequence at once and under any mask: the oracle of tests
//! that have no reference file.
//!
//! Written from the definition of the architectures; it shares no code with the engine and keeps
//! the whole attention row of every query. Weight rows are decoded as they are used, so even a real
//! model costs no memory beyond its file. Slow: for sequences of some hundred tokens.

use std::path::Path;

use half::{bf16, f16};
use tidekv_format::{GgufFile, TensorType};

use crate::family::{Arch, Norms};

/// A query that may look at a key; both are absolute positions, `key <= query`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// Layer.
    pub layer: usize,
    /// KV head of the key.
    pub kv_head: usize,
    /// Position of the query.
    pub query: usize,
    /// Position of the key.
    pub key: usize,
}

/// Hidden states of a whole sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// `[N + 1][S * d_model]`: the embeddings, then the output of each layer.
    pub hidden: Vec<Vec<f64>>,
    /// `[N][S * Hq * D]`: queries of each layer, rotated.
    pub queries: Vec<Vec<f64>>,
    /// `[N][S * Hkv * D]`: keys of each layer, rotated.
    pub keys: Vec<Vec<f64>>,
    d_model: usize,
}

impl Dense {
    /// Hidden state of one position after `layer` layers, `[d_model]`.
    pub fn row(&self, layer: usize, position: usize) -> &[f64] {
        &self.hidden[layer][position * self.d_model..][..self.d_model]
    }
}

/// A model file, evaluated in f64.
///
/// Files it cannot evaluate are a mistake of the test and panic.
pub struct Reference {
    file: GgufFile,
    arch: Arch,
    n_layers: usize,
    d_model: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    rope_dims: usize,
    norm_eps: f64,
    rope_base: f64,
    window: Option<usize>,
    embedding_scale: f64,
    attention_scale: f64,
    attention_cap: Option<f64>,
    residual_scale: f64,
    logit_divisor: f64,
    logit_cap: Option<f64>,
}

/// RoPE base of Gemma 3's layers with a window.
const GEMMA3_LOCAL_BASE: f64 = 10_000.0;

impl Reference {
    /// Opens a file of one of the families, without RoPE scaling other than LongRoPE's factors, its
    /// matrices in F32, F16, BF16, Q8_0 or Q4_1.
    ///
    /// # Panics
    ///
    /// If the file is not such a model.
    pub fn open(path: &Path) -> Reference {
        let file = GgufFile::open(path).unwrap_or_else(|error| panic!("{error}"));
        let name = file.metadata().str("general.architecture");
        let arch = match name {
            Ok(Some(name)) => Arch::from_name(name),
            _ => None,
        };
        let arch = arch.unwrap_or_else(|| panic!("no reference for the architecture {name:?}"));
        let key = |suffix: &str| format!("{}.{suffix}", arch.name());
        let optional = |suffix: &str| match file.metadata().u64(&key(suffix)) {
            Ok(value) => value.map(|value| value as usize),
            Err(error) => panic!("{error}"),
        };
        let count = |suffix: &str| optional(suffix).unwrap_or_else(|| panic!("no {suffix}"));
        let maybe = |suffix: &str| match file.metadata().f32(&key(suffix)) {
            Ok(value) => value.map(f64::from),
            Err(error) => panic!("{error}"),
        };
        let float = |suffix: &str| maybe(suffix).unwrap_or_else(|| panic!("no {suffix}"));
        assert_eq!(file.metadata().get(&key("rope.scaling.type")), None, "no scaled positions");
        let (d_model, n_heads) = (count("embedding_length"), count("attention.head_count"));
        let head_dim = optional("attention.key_length").unwrap_or(d_model / n_heads);
        let gemma_scale = if arch.is_gemma() { (d_model as f64).sqrt() } else { 1.0 };
        Reference {
            arch,
            n_layers: count("block_count"),
            d_model,
            n_heads,
            n_kv_heads: count("attention.head_count_kv"),
            head_dim,
            rope_dims: optional("rope.dimension_count").unwrap_or(head_dim),
            norm_eps: float("attention.layer_norm_rms_epsilon"),
            rope_base: float("rope.freq_base"),
            window: optional("attention.sliding_window"),
            embedding_scale: maybe("embedding_scale").unwrap_or(gemma_scale),
            attention_scale: maybe("attention.scale").unwrap_or(1.0 / (head_dim as f64).sqrt()),
            attention_cap: maybe("attn_logit_softcapping"),
            residual_scale: maybe("residual_scale").unwrap_or(1.0),
            logit_divisor: maybe("logit_scale").unwrap_or(1.0),
            logit_cap: maybe("final_logit_softcapping"),
            file,
        }
    }

    /// Largest prompt that LongRoPE's short factors are for, where the file has such factors.
    fn long_rope_from(&self) -> Option<u64> {
        let key = format!("{}.rope.scaling.original_context_length", self.arch.name());
        match self.file.metadata().u64(&key) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs `tokens` from position 0. A key beyond the query is never seen; of the others, those
    /// that `visible` admits. Every query must see at least one.
    pub fn forward(&self, tokens: &[u32], visible: impl Fn(Edge) -> bool) -> Dense {
        let positions: Vec<usize> = (0..tokens.len()).collect();
        self.forward_at(tokens, &positions, visible)
    }

    /// [`Reference::forward`] with RoPE at `positions` `[tokens]`; causality and `visible` go by the
    /// index of a token still. For tests of what wrong positions would do.
    pub fn forward_at(
        &self,
        tokens: &[u32],
        positions: &[usize],
        visible: impl Fn(Edge) -> bool,
    ) -> Dense {
        assert_eq!(tokens.len(), positions.len(), "a position for every token");
        let table = self.matrix("token_embd.weight");
        let mut embeddings: Vec<f64> =
            tokens.iter().flat_map(|&token| table.row(token as usize)).collect();
        embeddings.iter_mut().for_each(|x| *x *= self.embedding_scale);
        let mut dense = Dense {
            hidden: vec![embeddings],
            queries: Vec::new(),
            keys: Vec::new(),
            d_model: self.d_model,
        };
        for layer in 0..self.n_layers {
            self.layer(layer, &mut dense, positions, &visible);
        }
        dense
    }

    /// Final norm and output projection of one position, `[vocab]`.
    pub fn logits(&self, dense: &Dense, position: usize) -> Vec<f64> {
        let normed = self.norm(dense.row(self.n_layers, position), "output_norm.weight");
        let own = self.file.tensor("output.weight").is_some();
        let head = self.matrix(if own { "output.weight" } else { "token_embd.weight" });
        let logits = head.product(&normed).into_iter().map(|logit| logit / self.logit_divisor);
        logits.map(|logit| capped(logit, self.logit_cap)).collect()
    }

    fn layer(
        &self,
        layer: usize,
        dense: &mut Dense,
        positions: &[usize],
        visible: &impl Fn(Edge) -> bool,
    ) {
        let norms = self.arch.norms();
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let before = |x: &[f64], part: &str| match norms {
            Norms::After => x.to_vec(),
            _ => self.norm(x, &name(part)),
        };
        let after = |x: Vec<f64>, part: &str| match norms {
            Norms::Before => x,
            _ => self.norm(&x, &name(part)),
        };
        let x = &dense.hidden[layer];
        let [mut q, mut k, v] = self.project(layer, &before(x, "attn_norm"));
        self.norm_heads(&mut q, &name("attn_q_norm"));
        self.norm_heads(&mut k, &name("attn_k_norm"));
        if self.arch.rotates(layer) {
            let frequencies = self.frequencies(layer, positions.len());
            self.rotate(&mut q, self.n_heads, positions, &frequencies);
            self.rotate(&mut k, self.n_kv_heads, positions, &frequencies);
        }
        let attended = self.attention(layer, [&q, &k, &v], visible);
        let output = self.matrix(&name("attn_output")).product(&attended);
        let x = self.add(x, &after(output, "post_attention_norm"));

        let [gate, up] = self.gate_and_up(layer, &before(&x, "ffn_norm"));
        let gated: Vec<f64> = gate.iter().zip(&up).map(|(&g, u)| self.activate(g) * u).collect();
        let down = self.matrix(&name("ffn_down")).product(&gated);
        dense.hidden.push(self.add(&x, &after(down, "post_ffw_norm")));
        dense.queries.push(q);
        dense.keys.push(k);
    }

    /// Queries, keys and values of normed rows, with their biases.
    fn project(&self, layer: usize, x: &[f64]) -> [Vec<f64>; 3] {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let cols = [self.n_heads, self.n_kv_heads, self.n_kv_heads].map(|n| n * self.head_dim);
        if self.arch.is_fused() {
            return split_columns(&self.matrix(&name("attn_qkv.weight")).product(x), cols);
        }
        ["attn_q", "attn_k", "attn_v"].map(|part| {
            let out = self.matrix(&name(&format!("{part}.weight"))).product(x);
            let bias = name(&format!("{part}.bias"));
            if self.file.tensor(&bias).is_some() { add_rows(out, &self.vector(&bias)) } else { out }
        })
    }

    fn gate_and_up(&self, layer: usize, x: &[f64]) -> [Vec<f64>; 2] {
        let product = |part: &str| self.matrix(&format!("blk.{layer}.{part}.weight")).product(x);
        if self.arch.is_fused() {
            let both = product("ffn_up");
            let d_ff = both.len() / (x.len() / self.d_model) / 2;
            return split_columns(&both, [d_ff; 2]);
        }
        [product("ffn_gate"), product("ffn_up")]
    }

    fn activate(&self, x: f64) -> f64 {
        if self.arch.is_gemma() {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            return 0.5 * x * (1.0 + inner.tanh());
        }
        x / (1.0 + (-x).exp())
    }

    /// Norms heads or whole rows, as long as the file's weights; nothing if it has none.
    fn norm_heads(&self, rows: &mut Vec<f64>, name: &str) {
        if self.file.tensor(name).is_some() {
            *rows = self.norm(rows, name);
        }
    }

    fn add(&self, x: &[f64], y: &[f64]) -> Vec<f64> {
        x.iter().zip(y).map(|(x, y)| x + self.residual_scale * y).collect()
    }

    /// Softmax attention, q `[S, Hq * D]`, k and v `[S, Hkv * D]`; query head h reads KV head
    /// h / G.
    fn attention(
        &self,
        layer: usize,
        [q, k, v]: [&[f64]; 3],
        visible: &impl Fn(Edge) -> bool,
    ) -> Vec<f64> {
        let (d, q_cols) = (self.head_dim, self.n_heads * self.head_dim);
        let mut out = vec![0.0; q.len()];
        for (query, out) in out.chunks_exact_mut(q_cols).enumerate() {
            for (head, out) in out.chunks_exact_mut(d).enumerate() {
                let kv_head = head / (self.n_heads / self.n_kv_heads);
                let q = &q[query * q_cols + head * d..][..d];
                let row = |of, key| row_of(of, (key * self.n_kv_heads + kv_head) * d, d);
                let window = self.window.filter(|_| self.arch.has_window(layer));
                let first = window.map_or(0, |window| (query + 1).saturating_sub(window));
                let keys: Vec<usize> = (first..=query)
                    .filter(|&key| visible(Edge { layer, kv_head, query, key }))
                    .collect();
                let logit = |&key: &usize| {
                    capped(dot(q, row(k, key)) * self.attention_scale, self.attention_cap)
                };
                let logits: Vec<f64> = keys.iter().map(logit).collect();
                let max = logits.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(x));
                assert!(max > f64::NEG_INFINITY, "query {query} of layer {layer} sees no key");
                let weights: Vec<f64> = logits.iter().map(|x| (x - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (&key, weight) in keys.iter().zip(weights) {
                    for (out, v) in out.iter_mut().zip(row(v, key)) {
                        *out += weight / sum * v;
                    }
                }
            }
        }
        out
    }

    /// Radians per position of each pair in `layer`, for a prompt of `n_tokens`, and the factor of
    /// cosine and sine.
    fn frequencies(&self, layer: usize, n_tokens: usize) -> (Vec<f64>, f64) {
        let local = self.arch == Arch::Gemma3 && self.arch.has_window(layer);
        let base = if local { GEMMA3_LOCAL_BASE } else { self.rope_base };
        let dims = self.rope_dims;
        let plain = (0..dims / 2).map(|pair| base.powf(-2.0 * pair as f64 / dims as f64));
        let Some(trained) = self.long_rope_from() else { return (plain.collect(), 1.0) };
        let long = n_tokens as u64 > trained;
        let factors =
            self.vector(&format!("rope_factors_{}.weight", if long { "long" } else { "short" }));
        let key = format!("{}.context_length", self.arch.name());
        let context = self.file.metadata().u64(&key).ok().flatten().expect("a context length");
        let (stretch, trained) = (context as f64 / trained as f64, trained as f64);
        let magnitude = (1.0 + stretch.ln() / trained.ln()).sqrt();
        (plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect(), magnitude)
    }

    /// Rotates rows of `heads` heads by their positions.
    fn rotate(
        &self,
        rows: &mut [f64],
        heads: usize,
        positions: &[usize],
        (frequencies, magnitude): &(Vec<f64>, f64),
    ) {
        let (d, half) = (self.head_dim, self.rope_dims / 2);
        for (&position, row) in positions.iter().zip(rows.chunks_exact_mut(heads * d)) {
            for head in row.chunks_exact_mut(d) {
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let (a, b) = match self.arch.pairs_neighbours() {
                        true => (2 * pair, 2 * pair + 1),
                        false => (pair, pair + half),
                    };
                    let (sin, cos) = (position as f64 * frequency).sin_cos();
                    let (sin, cos) = (sin * magnitude, cos * magnitude);
                    (head[a], head[b]) =
                        (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                }
            }
        }
    }

    /// RMS norm of every stretch as long as the weights, times the weights.
    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let weights = self.vector(name);
        let normed = x.chunks_exact(weights.len()).flat_map(|row| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (mean + self.norm_eps).sqrt();
            row.iter().zip(&weights).map(move |(x, weight)| x * scale * weight)
        });
        normed.collect()
    }

    fn vector(&self, name: &str) -> Vec<f64> {
        self.matrix(name).row(0)
    }

    fn matrix(&self, name: &str) -> Matrix<'_> {
        let tensor = self.file.tensor(name).unwrap_or_else(|| panic!("no tensor `{name}`"));
        let row_bytes = tensor.ty.row_bytes(tensor.row_len());
        Matrix {
            ty: tensor.ty,
            row_bytes: row_bytes.unwrap_or_else(|| panic!("`{name}` is {}", tensor.ty)) as usize,
            bytes: self.file.bytes(tensor),
            cols: tensor.row_len() as usize,
        }
    }
}

/// Rows of weights as they lie in the file.
struct Matrix<'a> {
    ty: TensorType,
    row_bytes: usize,
    bytes: &'a [u8],
    cols: usize,
}

impl Matrix<'_> {
    fn row(&self, row: usize) -> Vec<f64> {
        let bytes = &self.bytes[row * self.row_bytes..][..self.row_bytes];
        let decoded = decode(self.ty, bytes);
        assert_eq!(decoded.len(), self.cols, "elements of a row");
        decoded
    }

    /// `x Wᵀ`, x `[rows, K]`, W `[M, K]`.
    fn product(&self, x: &[f64]) -> Vec<f64> {
        let n_rows = x.len() / self.cols;
        let n_out = self.bytes.len() / self.row_bytes;
        let mut out = vec![0.0; n_rows * n_out];
        for m in 0..n_out {
            let weights = self.row(m);
            for (row, x) in x.chunks_exact(self.cols).enumerate() {
                out[row * n_out + m] = dot(x, &weights);
            }
        }
        out
    }
}

/// The numbers of a row, by the definition of each type (ggml's `block_*` structs).
fn decode(ty: TensorType, bytes: &[u8]) -> Vec<f64> {
    let half = |bytes: &[u8]| f64::from(f16::from_le_bytes([bytes[0], bytes[1]]));
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match ty {
        TensorType::F32 => {
            bytes.as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect()
        }
        TensorType::F16 => pairs().map(|&x| f64::from(f16::from_le_bytes(x))).collect(),
        TensorType::BF16 => pairs().map(|&x| f64::from(bf16::from_le_bytes(x))).collect(),
        TensorType::Q8_0 => bytes
            .chunks_exact(34)
            .flat_map(|block| block[2..].iter().map(move |&q| half(block) * f64::from(q as i8)))
            .collect(),
        TensorType::Q4_1 => bytes
            .chunks_exact(20)
            .flat_map(|block| {
                let codes = &block[4..];
                let low = codes.iter().map(|code| code & 15);
                let all = low.chain(codes.iter().map(|code| code >> 4));
                all.map(move |code| half(block) * f64::from(code) + half(&block[2..]))
            })
            .collect(),
        _ => panic!("the reference does not decode {ty}"),
    }
}

fn row_of(rows: &[f64], at: usize, len: usize) -> &[f64] {
    &rows[at..][..len]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn capped(logit: f64, cap: Option<f64>) -> f64 {
    cap.map_or(logit, |cap| cap * (logit / cap).tanh())
}

/// Rows of several matrices side by side, `cols` columns each, as a matrix each.
fn split_columns<const P: usize>(rows: &[f64], cols: [usize; P]) -> [Vec<f64>; P] {
    let width = cols.iter().sum();
    let mut start = 0;
    cols.map(|n| {
        let part = rows.chunks_exact(width).flat_map(|row| &row[start..start + n]).copied();
        let part = part.collect();
        start += n;
        part
    })
}

fn add_rows(mut rows: Vec<f64>, bias: &[f64]) -> Vec<f64> {
    for row in rows.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MatrixTypes, TinySpec, encode_row, tiny_llama, tiny_qwen2};

    fn open(spec: &TinySpec) -> Reference {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        spec.write_to(&path).unwrap();
        Reference::open(&path)
    }

    #[test]
    fn a_query_that_sees_itself_alone_is_a_sequence_of_its_own() {
        for spec in [tiny_llama(3), tiny_qwen2(3)] {
            let model = open(&spec);
            let tokens = [7, 200, 31, 7];
            let alone = model.forward(&tokens, |edge| edge.key == edge.query);
            let causal = model.forward(&tokens, |_| true);
            for (position, &token) in tokens.iter().enumerate() {
                let single = model.forward(&[token], |_| true);
                // Values do not rotate, and a softmax over one key is 1.
                for layer in 0..=spec.n_layers {
                    assert_eq!(alone.row(layer, position), single.row(layer, 0));
                }
                // The same token elsewhere, among others, is another state.
                let differs = causal.row(spec.n_layers, position) != single.row(spec.n_layers, 0);
                assert_eq!(differs, position > 0);
            }
        }
    }

    #[test]
    fn keys_beyond_the_query_are_never_seen_and_hidden_ones_do_not_matter() {
        let model = open(&tiny_llama(4));
        let long = model.forward(&[5, 6, 7, 8], |_| true);
        let short = model.forward(&[5, 6, 7], |_| true);
        let last = model.n_layers;
        assert_eq!(long.row(last, 2), short.row(last, 2));

        let hide_1 = |edge: Edge| edge.key != 1 || edge.query == 1;
        let one = model.forward(&[5, 6, 7], hide_1);
        let other = model.forward(&[5, 99, 7], hide_1);
        assert_eq!(one.row(last, 2), other.row(last, 2));
        assert_ne!(one.row(last, 2), short.row(last, 2));
    }

    #[test]
    fn only_distances_between_positions_matter() {
        for spec in [tiny_llama(5), tiny_qwen2(5)] {
            let model = open(&spec);
            let tokens = [9, 8, 7];
            let at = |positions: &[usize]| {
                model.forward_at(&tokens, positions, |_| true).row(spec.n_layers, 2).to_vec()
            };
            let difference = |positions| {
                let (a, b) = (at(positions), at(&[0, 1, 2]));
                a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
            };
            // Rotations are orthogonal up to f64 rounding of angles below 1,002.
            assert!(difference(&[1000, 1001, 1002]) < 1e-11);
            assert!(difference(&[0, 1, 9]) > 1e-3);
        }
    }

    #[test]
    #[should_panic(expected = "query 2 of layer 0 sees no key")]
    fn a_query_without_keys_fails() {
        open(&tiny_llama(4)).forward(&[5, 6, 7], |edge| edge.query < 2);
    }

    #[test]
    fn rows_decode_to_what_was_encoded() {
        // Multiples of 1/8 from -2: exact in every float type; 16 levels of Q4_1; Q8_0 is checked
        // against its own step.
        let row: Vec<f32> = (0..64).map(|i| (i * 7 % 16) as f32 / 8.0 - 2.0 + 1.0 / 8.0).collect();
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q4_1] {
            let mut bytes = Vec::new();
            encode_row(ty, &row, &mut bytes);
            let decoded = decode(ty, &bytes);
            assert!(
                decoded.iter().zip(&row).all(|(d, x)| *d == f64::from(*x)),
                "{ty}: {decoded:?}"
            );
        }
        let mut bytes = Vec::new();
        encode_row(TensorType::Q8_0, &row, &mut bytes);
        let step = 1.875 / 127.0;
        for (decoded, x) in decode(TensorType::Q8_0, &bytes).iter().zip(&row) {
            // Half a step, and the stored scale's rounding on 127 of them.
            assert!((decoded - f64::from(*x)).abs() < step * (0.5 + 127.0 / 2048.0));
        }
    }

    #[test]
    #[should_panic(expected = "does not decode Q4_K")]
    fn other_types_fail() {
        let types =
            MatrixTypes { token_embd: TensorType::Q4_K, ..MatrixTypes::all(TensorType::F32) };
        let spec = TinySpec { d_model: 256, types, ..tiny_llama(1) };
        open(&spec).forward(&[1], |_| true);
    }
}
