//! What `config.json` says about the weights, about attention and about the end of an answer
//! has to be so: what would compute another model, or never stop, is refused.

use super::family::Biases;
use super::{Config, bad};
use crate::model::names::Part;
use crate::model::tensors::Table;
use crate::model::{ModelError, Shape};
use serde_json::{Map, Value};

/// What to do where two files do not fit each other.
const FETCH: &str = "fetch both files again from where the model comes from";

impl Config {
    /// Checks what the file says against the tensors beside it; `shape` has the rows of their
    /// embedding table.
    ///
    /// # Errors
    /// The first statement that does not hold, by its key.
    pub(super) fn agree(&self, shape: &Shape, table: &Table<'_>) -> Result<(), ModelError> {
        self.width(shape, table)?;
        self.vocabulary(shape.vocab)?;
        for fields in [&self.fields, &self.outer] {
            causal(fields)?;
            end_of_answer(fields, shape.vocab)?;
        }
        self.biases(shape, table)?;
        self.head(table)
    }

    fn width(&self, shape: &Shape, table: &Table<'_>) -> Result<(), ModelError> {
        const KEY: &str = "hidden_size";
        let name = table.naming().embedding();
        let cols = table.cols(&name)?;
        if cols == shape.d_model {
            return Ok(());
        }
        let rows = format!("the rows of tensor `{name}` have {cols} numbers; ");
        let reason = match self.get(KEY) {
            Some(_) => rows + FETCH,
            None => {
                let family = self.family.model_type;
                format!(
                    "that is what a {family} file which does not state it means, but {rows}\
                     config.json is incomplete, so {FETCH}"
                )
            }
        };
        Err(bad(KEY, shape.d_model, &reason))
    }

    fn vocabulary(&self, vocab: usize) -> Result<(), ModelError> {
        const KEY: &str = "vocab_size";
        match self.count(KEY)? {
            Some(stated) if stated != vocab => {
                Err(bad(KEY, stated, &format!("the embedding has {vocab} rows; {FETCH}")))
            }
            _ => Ok(()),
        }
    }

    fn biases(&self, shape: &Shape, table: &Table<'_>) -> Result<(), ModelError> {
        const ATTENTION: &str = "attention_bias";
        const MLP: &str = "mlp_bias";
        let biased = match self.family.biases {
            Biases::Built => return Ok(()),
            Biases::Never => false,
            Biases::Attention | Biases::AttentionAndMlp => self.switch(ATTENTION)?.unwrap_or(false),
        };
        for layer in 0..shape.n_layers {
            let name = |part| table.naming().layer_part(part, layer);
            let there = [Part::QueryBias, Part::FusedQkvBias]
                .map(name)
                .into_iter()
                .find(|name| table.has(name));
            let reason = match (biased, there) {
                (true, None) => format!("tensor `{}` is missing; {FETCH}", name(Part::QueryBias)),
                (false, Some(name)) if self.family.biases == Biases::Never => {
                    let family = self.family.model_type;
                    let feature = format!("tensor `{name}` in a model of type `{family}`");
                    return Err(ModelError::Feature { feature });
                }
                (false, Some(name)) => format!("must be true: there is a tensor `{name}`"),
                _ => continue,
            };
            return Err(bad(ATTENTION, biased, &reason));
        }
        match self.family.biases == Biases::AttentionAndMlp && self.switch(MLP)? == Some(true) {
            true => {
                Err(ModelError::Feature { feature: format!("a bias of the MLP ({MLP} = true)") })
            }
            false => Ok(()),
        }
    }

    /// Whether there is an output projection where the file says that it is not the
    /// embedding.
    fn head(&self, table: &Table<'_>) -> Result<(), ModelError> {
        const KEY: &str = "tie_word_embeddings";
        let tied = match self.switch(KEY)? {
            Some(tied) => tied,
            None => super::switch(&self.outer, KEY)?.unwrap_or(self.family.tied),
        };
        let name = table.naming().head();
        if !tied && !table.has(&name) {
            let reason = format!(
                "tensor `{name}` is missing; if the embedding is the output projection, set it \
                 to true"
            );
            return Err(bad(KEY, false, &reason));
        }
        Ok(())
    }
}

/// Refuses attention to what follows: an answer is computed from what precedes it.
fn causal(fields: &Map<String, Value>) -> Result<(), ModelError> {
    for (key, causal) in [("use_bidirectional_attention", false), ("is_causal", true)] {
        match fields.get(key) {
            None | Some(Value::Null) => {}
            Some(stated) if *stated == causal => {}
            Some(stated) => {
                let feature = format!("attention that is not causal ({key} = {stated})");
                return Err(ModelError::Feature { feature });
            }
        }
    }
    Ok(())
}

/// Refuses ids that no token has: an answer would not end at them.
fn end_of_answer(fields: &Map<String, Value>, vocab: usize) -> Result<(), ModelError> {
    const KEY: &str = "eos_token_id";
    let is_id = |value: &Value| value.as_u64().is_some_and(|id| id < vocab as u64);
    match fields.get(KEY) {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(ids)) if ids.iter().all(is_id) => Ok(()),
        Some(id) if is_id(id) => Ok(()),
        Some(other) => {
            let reason = format!(
                "must be the id of a token, below {vocab}, or a list of such ids, or null: answers \
                 would not end"
            );
            Err(bad(KEY, other, &reason))
        }
    }
}
