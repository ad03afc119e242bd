//! The sizes of a model.

use super::{Config, bad};
use crate::model::{ModelError, Shape};

impl Config {
    /// Dimensions of the model with an embedding table of `vocab` rows, without its windows.
    ///
    /// # Errors
    /// A size that is missing or makes no sense, by its key.
    pub(super) fn shape(&self, vocab: usize) -> Result<Shape, ModelError> {
        let family = &self.family;
        let [d_model, d_ff, n_layers] = match family.sizes {
            Some(sizes) => sizes.map(Some),
            None => [None; 3],
        };
        let d_model = self.size("hidden_size", d_model)?;
        let n_heads = self.size("num_attention_heads", Some(family.n_heads))?;
        let n_kv_heads = self.count_or("num_key_value_heads", family.n_kv_heads)?;
        let shape = Shape {
            n_layers: self.size("num_hidden_layers", n_layers)?,
            d_model,
            d_ff: self.size("intermediate_size", d_ff)?,
            n_heads,
            n_kv_heads: n_kv_heads.unwrap_or(n_heads),
            head_dim: self.head_dim(d_model, n_heads)?,
            vocab,
            context: self.size("max_position_embeddings", Some(family.context))?,
            windows: Vec::new(),
        };
        shape.validate().map_err(in_its_words)?;
        Ok(shape)
    }

    /// Width of a head: stated, the family's, or the hidden size per head.
    fn head_dim(&self, d_model: usize, n_heads: usize) -> Result<usize, ModelError> {
        if let Some(dim) = self.count_or("head_dim", self.family.head_dim)? {
            return Ok(dim);
        }
        // What is 0 is refused with the sizes themselves.
        if d_model > 0 && n_heads > 0 && !d_model.is_multiple_of(n_heads.saturating_mul(2)) {
            let reason = format!(
                "must be an even multiple of num_attention_heads, {n_heads}, where head_dim is not \
                 stated"
            );
            return Err(bad("hidden_size", d_model, &reason));
        }
        Ok(d_model.checked_div(n_heads).unwrap_or(0).max(2))
    }
}

/// An error of [`Shape::validate`] with the key that `config.json` has for the field.
fn in_its_words(error: ModelError) -> ModelError {
    const KEYS: [(&str, &str); 7] = [
        ("n_layers", "num_hidden_layers"),
        ("d_model", "hidden_size"),
        ("d_ff", "intermediate_size"),
        ("n_heads", "num_attention_heads"),
        ("n_kv_heads", "num_key_value_heads"),
        ("vocab", "vocab_size"),
        ("context", "max_position_embeddings"),
    ];
    let ModelError::Value { key, value, reason } = error else { return error };
    let own = KEYS.iter().find(|(field, _)| *field == key).map(|&(_, own)| own.to_owned());
    ModelError::Value { key: own.unwrap_or(key), value, reason }
}
