//! The numbers of a model that size buffers.

use super::ModelError;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;

/// Dimensions of a decoder-only Transformer. Everything the memory plan needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// N, number of layers.
    pub n_layers: usize,
    /// Hidden size.
    pub d_model: usize,
    /// MLP width.
    pub d_ff: usize,
    /// Hq, query heads.
    pub n_heads: usize,
    /// Hkv, key/value heads.
    pub n_kv_heads: usize,
    /// D, width of a head.
    pub head_dim: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Largest prompt plus answer in tokens.
    pub context: usize,
    /// Keys that a query of each layer sees, its own position included; `None`
    /// for a layer that sees all before it. `[N]`, or empty when all layers do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Option<NonZeroUsize>>,
}

/// Largest value accepted for a dimension: big enough for any model, small
/// enough that a product of three cannot overflow 64 bits.
const MAX_DIMENSION: usize = 1 << 21;

impl Shape {
    /// G, query heads per KV head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Columns of the query projection, `Hq * D`.
    pub fn q_cols(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of the key or value projection, `Hkv * D`.
    pub fn kv_cols(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Keys that a query of `layer` sees, its own position included; `None` if it
    /// sees all before it.
    pub fn window(&self, layer: usize) -> Option<NonZeroUsize> {
        self.windows.get(layer).copied().flatten()
    }

    /// Layers without a window: those that take part in budgets.
    pub fn n_global_layers(&self) -> usize {
        self.n_layers - self.windows.iter().flatten().count()
    }

    /// Number of weights of the model, with an own output head.
    pub fn n_weights(&self) -> u64 {
        let (d, ff) = (self.d_model as u64, self.d_ff as u64);
        let attention = 2 * d * (self.q_cols() as u64 + self.kv_cols() as u64);
        let layer = attention + 3 * d * ff + 2 * d;
        2 * d * self.vocab as u64 + d + self.n_layers as u64 * layer
    }

    /// Checks that the numbers describe a model.
    ///
    /// # Errors
    /// [`ModelError::Value`] names the first field that does not.
    pub fn validate(&self) -> Result<(), ModelError> {
        let fields = [
            ("n_layers", self.n_layers),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
            ("n_heads", self.n_heads),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("vocab", self.vocab),
            ("context", self.context),
        ];
        let bad = |key: &str, value: usize, reason: &str| {
            let (key, value, reason) = (key.to_owned(), value.to_string(), reason.to_owned());
            Err(ModelError::Value { key, value, reason })
        };
        for (key, value) in fields {
            if value == 0 {
                return bad(key, value, "must be at least 1");
            }
            // A context is a limit that nothing is allocated for.
            if key != "context" && value > MAX_DIMENSION {
                return bad(key, value, "is larger than any model (2,097,152 at most)");
            }
        }
        if !self.windows.is_empty() && self.windows.len() != self.n_layers {
            return bad("windows", self.windows.len(), "must be one per layer, or none");
        }
        if self.context > u32::MAX as usize {
            return bad("context", self.context, "positions are 32-bit");
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return bad("n_kv_heads", self.n_kv_heads, "must divide the number of query heads");
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim > 512 {
            return bad("head_dim", self.head_dim, "must be even and at most 512");
        }
        Ok(())
    }

    /// Shapes that need no file, by name.
    pub fn named(name: &str) -> Option<Shape> {
        let llama = Shape {
            n_layers: 32,
            d_model: 4096,
            d_ff: 14_336,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 128,
            vocab: 128_256,
            context: 131_072,
            windows: Vec::new(),
        };
        match name {
            "llama-3.1-8b" => Some(llama),
            // Mistral-7B-Instruct-v0.2: no sliding window.
            "mistral-7b" => Some(Shape { vocab: 32_000, context: 32_768, ..llama }),
            _ => None,
        }
    }

    /// Names that [`Shape::named`] knows.
    pub const NAMES: [&'static str; 2] = ["llama-3.1-8b", "mistral-7b"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_shapes_are_valid_and_have_the_published_size() {
        for name in Shape::NAMES {
            Shape::named(name).unwrap().validate().unwrap();
        }
        // Llama-3.1-8B has 8.03 billion parameters.
        let billions = Shape::named("llama-3.1-8b").unwrap().n_weights() as f64 / 1e9;
        assert!((billions - 8.03).abs() < 0.01, "{billions}");
    }

    #[test]
    fn impossible_shapes_are_refused_by_field() {
        let good = Shape::named("mistral-7b").unwrap();
        let cases = [
            (Shape { n_layers: 0, ..good.clone() }, "n_layers"),
            (Shape { d_ff: 1 << 30, ..good.clone() }, "d_ff"),
            (Shape { n_kv_heads: 5, ..good.clone() }, "n_kv_heads"),
            (Shape { head_dim: 7, ..good.clone() }, "head_dim"),
            (Shape { context: usize::MAX, ..good.clone() }, "context"),
            (Shape { windows: vec![None], ..good.clone() }, "windows"),
        ];
        for (shape, field) in cases {
            let error = shape.validate().unwrap_err();
            assert!(matches!(&error, ModelError::Value { key, .. } if key == field), "{error}");
        }
    }
}
