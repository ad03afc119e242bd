//! From the `config.json` of a Hugging Face directory to a [`ModelSpec`].
//!
//! It is read as the family's configuration class reads it
//! (<https://github.com/huggingface/transformers/tree/main/src/transformers/models>,
//! `configuration_*.py`): what is not stated has the class's value, and what the engine
//! cannot obey is refused with its key and value.

mod agreement;
mod arithmetic;
mod family;
mod fields;
mod files;
mod layers;
mod quantisation;
mod rotation;
mod scaling;
mod sizes;

pub(super) use files::{directory_of, tokenizer_files};

use super::names::Naming;
use super::tensors::Table;
use super::{HeadKind, ModelError, ModelSpec, RopeSpec};
use crate::error::Error;
use crate::text::MAX_CONFIG_BYTES;
use family::Family;
use fields::{bad, count, float, object, switch};
use serde_json::{Map, Value};
use std::path::Path;
use tidekv_format::TensorStore;

/// `config.json`.
pub(super) struct Config {
    /// What it says about the language model.
    fields: Map<String, Value>,
    /// What stands around that in models that also see.
    outer: Map<String, Value>,
    family: Family,
    name: Option<String>,
}

impl Config {
    /// Reads and recognises the configuration of a model directory.
    ///
    /// # Errors
    /// A missing or faulty file, or a family that is not supported.
    pub(super) fn read(directory: &Path) -> Result<Config, Error> {
        const NAME: &str = "config.json";
        let remedy = "a model directory needs it beside the safetensors files";
        let bytes = files::required(directory, NAME, MAX_CONFIG_BYTES, remedy)?;
        let fields: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| {
            ModelError::File { path: directory.join(NAME), reason: fields::fault(&bytes, &error) }
        })?;
        let name = directory.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        Ok(Config::of(fields, name)?)
    }

    fn of(mut fields: Map<String, Value>, name: Option<String>) -> Result<Config, ModelError> {
        let missing = || ModelError::MissingKey { key: "model_type".to_owned() };
        let found = fields.get("model_type").and_then(Value::as_str).ok_or_else(missing)?;
        let family = Family::named(found)?;
        quantisation::refuse(&fields)?;
        let text = fields.remove("text_config").filter(|text| !text.is_null());
        let (fields, outer) = match (family.nests(), text) {
            (true, Some(Value::Object(text))) => {
                quantisation::refuse(&text)?;
                (text, fields)
            }
            (true, Some(other)) => return Err(bad("text_config", other, "must be an object")),
            (true, None) => {
                let reason = "needs `text_config`, which is missing; if the model is of text \
                              alone, its type is gemma3_text";
                return Err(bad("model_type", family.model_type, reason));
            }
            (false, Some(other)) => {
                let reason = format!("a model of type `{}` has none", family.model_type);
                return Err(bad("text_config", other, &reason));
            }
            (false, None) => (fields, Map::new()),
        };
        Ok(Config { fields, outer, family, name })
    }

    /// How the tensors of this model are named: the prefix is what stands in
    /// front of the embedding table's name.
    pub(super) fn naming(&self, store: &TensorStore) -> Result<Naming, ModelError> {
        const PREFIXES: [(&str, &str); 4] = [
            ("model.", ""),
            ("", ""),
            ("language_model.model.", "language_model."),
            ("model.language_model.", ""),
        ];
        let has = |prefix: &str| store.tensor(&format!("{prefix}embed_tokens.weight")).is_some();
        let missing = || ModelError::MissingTensor { name: "model.embed_tokens.weight".to_owned() };
        let (prefix, head_prefix) =
            PREFIXES.into_iter().find(|(prefix, _)| has(prefix)).ok_or_else(missing)?;
        Ok(Naming::HuggingFace {
            prefix: prefix.to_owned(),
            head_prefix: head_prefix.to_owned(),
            architecture: self.family.architecture,
        })
    }

    /// Describes the model.
    ///
    /// # Errors
    /// A feature or a number that is not supported, or a statement that the tensors
    /// contradict.
    pub(super) fn describe(&self, table: &Table<'_>) -> Result<ModelSpec, Error> {
        let vocab = table.rows(&table.naming().embedding())?;
        let mut shape = self.shape(vocab)?;
        self.agree(&shape, table)?;
        let arithmetic = self.arithmetic(&shape)?;
        arithmetic.validate()?;
        let ropes = self.ropes(&shape)?;
        ropes.iter().try_for_each(RopeSpec::validate)?;
        shape.context = ropes.iter().map(|rope| stretched(rope, shape.context)).max().unwrap_or(0);
        shape.windows = self.windows(&shape)?;
        let layer_ropes = self.layer_ropes(&shape, ropes.len())?;
        shape.validate()?;
        let head = if table.has(&table.naming().head()) { HeadKind::Own } else { HeadKind::Tied };
        let (architecture, name) = (self.family.architecture, self.name.clone());
        Ok(ModelSpec { architecture, name, shape, arithmetic, ropes, layer_ropes, head })
    }
}

/// The context that a rotation reaches, where the file states the trained one.
fn stretched(rope: &RopeSpec, context: usize) -> usize {
    let reached = rope.trained_context as f64 * rope.scaling.factor();
    // Positions are 32-bit.
    context.max(reached.min(f64::from(u32::MAX)) as usize)
}

#[cfg(test)]
mod rope_reference;
#[cfg(test)]
mod tests;
