//! From the `config.json` of a Hugging Face directory to a [`ModelSpec`].
//!
//! Fields and their defaults:
//! <https://github.com/huggingface/transformers/tree/main/src/transformers/models>,
//! `configuration_*.py` of each family.

mod quantisation;
mod rotation;
mod scaling;

use super::names::Naming;
use super::spec::{patterned_ropes, patterned_windows};
use super::tensors::Table;
use super::{
    Activation, Architecture, Arithmetic, HeadKind, ModelError, ModelSpec, RopeSpec, Shape,
};
use crate::error::Error;
use crate::text::{
    HfTokenizerFiles, MAX_CHAT_TEMPLATE_BYTES, MAX_CONFIG_BYTES, MAX_TOKENIZER_JSON_BYTES,
};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use tidekv_format::TensorStore;

/// The directory whose `config.json` describes the model at `path`, if it is one
/// of safetensors.
pub(super) fn directory_of(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let name = path.file_name()?.to_str()?;
    let ours = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    // A bare file name has an empty parent.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    ours.then(|| parent.unwrap_or(Path::new(".")).to_owned())
}

/// Reads a file of a model directory, at most `limit` bytes; `None` if there is
/// none.
fn read(directory: &Path, name: &str, limit: usize) -> Result<Option<Vec<u8>>, ModelError> {
    let path = directory.join(name);
    let unreadable =
        |error: std::io::Error| ModelError::File { path: path.clone(), reason: error.to_string() };
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => {}
        // To open a named pipe would wait for its writer.
        Ok(_) => {
            let reason = "it is not a regular file".to_owned();
            return Err(ModelError::File { path, reason });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    }
    let file = File::open(&path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > limit {
        let reason = format!("it is longer than {limit} bytes, more than any such file has");
        return Err(ModelError::File { path, reason });
    }
    Ok(Some(bytes))
}

fn required(
    directory: &Path,
    name: &str,
    limit: usize,
    remedy: &str,
) -> Result<Vec<u8>, ModelError> {
    read(directory, name, limit)?.ok_or_else(|| ModelError::File {
        path: directory.join(name),
        reason: format!("it is missing; {remedy}"),
    })
}

/// Reads what the tokenizer is made of.
pub(super) fn tokenizer_files(directory: &Path) -> Result<HfTokenizerFiles, Error> {
    let config = |name| read(directory, name, MAX_CONFIG_BYTES);
    Ok(HfTokenizerFiles {
        tokenizer_json: required(
            directory,
            "tokenizer.json",
            MAX_TOKENIZER_JSON_BYTES,
            "fetch it from where the model comes from",
        )?,
        tokenizer_config: config("tokenizer_config.json")?,
        generation_config: config("generation_config.json")?,
        special_tokens_map: config("special_tokens_map.json")?,
        chat_template: read(directory, "chat_template.jinja", MAX_CHAT_TEMPLATE_BYTES)?,
    })
}

/// `config.json`, its text part.
pub(super) struct Config {
    fields: Map<String, Value>,
    architecture: Architecture,
    name: Option<String>,
}

/// `model_type` of each family; those with several write different things that
/// are computed alike.
const MODEL_TYPES: [(&str, Architecture); 11] = [
    ("llama", Architecture::Llama),
    ("mistral", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("gemma2", Architecture::Gemma2),
    ("gemma3", Architecture::Gemma3),
    ("gemma3_text", Architecture::Gemma3),
    ("phi3", Architecture::Phi3),
    ("smollm3", Architecture::SmolLm3),
    ("granite", Architecture::Granite),
    ("olmo2", Architecture::Olmo2),
];

impl Config {
    /// Reads and recognises the configuration of a model directory.
    ///
    /// # Errors
    /// A missing or faulty file, or a family that is not supported.
    pub(super) fn read(directory: &Path) -> Result<Config, Error> {
        const NAME: &str = "config.json";
        let remedy = "a model directory needs it beside the safetensors files";
        let bytes = required(directory, NAME, MAX_CONFIG_BYTES, remedy)?;
        let path = directory.join(NAME);
        let fields: Map<String, Value> = serde_json::from_slice(&bytes)
            .map_err(|error| ModelError::File { path, reason: error.to_string() })?;
        let name = directory.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        Ok(Config::of(fields, name)?)
    }

    fn of(mut fields: Map<String, Value>, name: Option<String>) -> Result<Config, ModelError> {
        let missing = || ModelError::MissingKey { key: "model_type".to_owned() };
        let found = fields.get("model_type").and_then(Value::as_str).ok_or_else(missing)?;
        let known = MODEL_TYPES.iter().find(|(model_type, _)| *model_type == found);
        let Some(&(_, architecture)) = known else {
            // "mixtral", "qwen3_moe", "granitemoe".
            if found.contains("moe") || found == "mixtral" {
                return Err(ModelError::Feature { feature: "mixture of experts".to_owned() });
            }
            let mut supported = MODEL_TYPES.map(|(model_type, _)| model_type).join(", ");
            supported += " (as `model_type`)";
            return Err(ModelError::Architecture { found: found.to_owned(), supported });
        };
        quantisation::refuse(&fields)?;
        // Models that also see keep the language model's fields apart.
        match fields.remove("text_config") {
            None | Some(Value::Null) => {}
            Some(Value::Object(text)) => {
                quantisation::refuse(&text)?;
                fields = text;
            }
            Some(other) => return Err(bad("text_config", other, "must be an object")),
        }
        Ok(Config { fields, architecture, name })
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
            architecture: self.architecture,
        })
    }

    /// Describes the model.
    ///
    /// # Errors
    /// A feature or a number that is not supported.
    pub(super) fn describe(&self, table: &Table<'_>) -> Result<ModelSpec, Error> {
        let mut shape = self.shape(table.rows(&table.naming().embedding())?)?;
        shape.validate()?;
        shape.windows = self.windows(&shape)?;
        let arithmetic = self.arithmetic(&shape)?;
        arithmetic.validate()?;
        let ropes = self.ropes(&shape)?;
        ropes.iter().try_for_each(RopeSpec::validate)?;
        let layer_ropes = self.layer_ropes(&shape, ropes.len())?;
        shape.context = ropes.iter().map(|rope| stretched(rope, shape.context)).max().unwrap_or(0);
        shape.validate()?;
        let head = if table.has(&table.naming().head()) { HeadKind::Own } else { HeadKind::Tied };
        let (architecture, name) = (self.architecture, self.name.clone());
        Ok(ModelSpec { architecture, name, shape, arithmetic, ropes, layer_ropes, head })
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(fields)),
            Some(other) => Err(bad(key, other, "must be an object")),
        }
    }

    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        count(&self.fields, key)
    }

    fn required(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| ModelError::MissingKey { key: key.to_owned() })
    }

    fn float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(float(&self.fields, key)?.map(|value| value as f32))
    }

    /// Dimensions of the model with an embedding table of `vocab` rows.
    fn shape(&self, vocab: usize) -> Result<Shape, ModelError> {
        let (d_model, n_heads) =
            (self.required("hidden_size")?, self.required("num_attention_heads")?);
        let of_family = match self.architecture {
            // What these two assume when the file is silent.
            Architecture::Gemma2 | Architecture::Gemma3 => Some(256),
            Architecture::Qwen3 => Some(128),
            _ => None,
        };
        let head_dim = match self.count("head_dim")?.or(of_family) {
            Some(dim) => dim,
            None => d_model.checked_div(n_heads).unwrap_or(0),
        };
        Ok(Shape {
            n_layers: self.required("num_hidden_layers")?,
            d_model,
            d_ff: self.required("intermediate_size")?,
            n_heads,
            n_kv_heads: self.count("num_key_value_heads")?.unwrap_or(n_heads),
            head_dim,
            vocab,
            context: self.required("max_position_embeddings")?,
            windows: Vec::new(),
        })
    }

    fn windows(&self, shape: &Shape) -> Result<Vec<Option<NonZeroUsize>>, ModelError> {
        let Some(window) = self.count("sliding_window")?.and_then(NonZeroUsize::new) else {
            return Ok(Vec::new());
        };
        if !self.reads_window() {
            return Ok(Vec::new());
        }
        if let Some(Value::Array(types)) = self.get("layer_types") {
            let of_type = |value: &Value| match value.as_str() {
                Some("full_attention") => Ok(None),
                Some("sliding_attention") => Ok(Some(window)),
                _ => Err(ModelError::Feature { feature: format!("layers of type {value}") }),
            };
            return types.iter().map(of_type).collect();
        }
        let windows = match self.architecture {
            Architecture::Gemma2 => patterned_windows(shape.n_layers, window, 2),
            Architecture::Gemma3 => {
                let period = self.count("sliding_window_pattern")?.unwrap_or(6);
                patterned_windows(shape.n_layers, window, period)
            }
            Architecture::Qwen2 | Architecture::Qwen3 => {
                let first = self.count("max_window_layers")?.unwrap_or(0);
                let windowed = |layer| (layer >= first).then_some(window);
                (0..shape.n_layers).map(windowed).collect()
            }
            _ => patterned_windows(shape.n_layers, window, 0),
        };
        let bites = window.get() < shape.context && windows.iter().any(Option::is_some);
        Ok(if bites { windows } else { Vec::new() })
    }

    /// Whether the reference reads `sliding_window` in this family: files of others may
    /// state one that their model never had.
    fn reads_window(&self) -> bool {
        match self.architecture {
            Architecture::Llama => self.get("model_type").is_some_and(|found| found == "mistral"),
            // These state a window that a switch leaves unused.
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::SmolLm3 => {
                self.get("use_sliding_window").and_then(Value::as_bool) == Some(true)
            }
            Architecture::Gemma2 | Architecture::Gemma3 | Architecture::Phi3 => true,
            Architecture::Granite | Architecture::Olmo2 => false,
        }
    }

    /// Whether the file says that the output projection is not the embedding.
    pub(super) fn has_own_head(&self) -> bool {
        self.get("tie_word_embeddings").and_then(Value::as_bool) == Some(false)
    }

    fn arithmetic(&self, shape: &Shape) -> Result<Arithmetic, ModelError> {
        let eps = self.float("rms_norm_eps")?.unwrap_or(1e-6);
        let plain = Arithmetic::of(self.architecture, shape, eps);
        let plain = Arithmetic { activation: self.activation(plain.activation)?, ..plain };
        Ok(match self.architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => {
                let scalar = self.float("query_pre_attn_scalar")?.unwrap_or(256.0);
                Arithmetic {
                    attention_scale: 1.0 / scalar.sqrt(),
                    attention_softcap: self.float("attn_logit_softcapping")?,
                    logit_softcap: self.float("final_logit_softcapping")?,
                    ..plain
                }
            }
            Architecture::Granite => Arithmetic {
                embedding_scale: self.float("embedding_multiplier")?.unwrap_or(1.0),
                residual_scale: self.float("residual_multiplier")?.unwrap_or(1.0),
                attention_scale: self.float("attention_multiplier")?.unwrap_or(1.0),
                logit_scale: 1.0 / self.float("logits_scaling")?.unwrap_or(1.0),
                ..plain
            },
            _ => plain,
        })
    }

    /// The activation that the file names, or `of_family`.
    fn activation(&self, of_family: Activation) -> Result<Activation, ModelError> {
        let named = self.get("hidden_activation").or_else(|| self.get("hidden_act"));
        match named.map(Value::as_str) {
            None => Ok(of_family),
            // Gemma's published files say "gelu" and mean its tanh form.
            Some(Some("gelu")) if self.architecture.is_gemma() => Ok(Activation::GeluTanh),
            Some(Some("gelu_pytorch_tanh")) => Ok(Activation::GeluTanh),
            Some(Some("silu" | "swish")) => Ok(Activation::Silu),
            Some(other) => Err(ModelError::Feature {
                feature: format!("activation {}", other.unwrap_or("of an unknown kind")),
            }),
        }
    }

    fn layer_ropes(&self, shape: &Shape, n: usize) -> Result<Vec<Option<usize>>, ModelError> {
        let smollm3 = self.architecture == Architecture::SmolLm3;
        if let (true, Some(Value::Array(rotates))) = (smollm3, self.get("no_rope_layers")) {
            let layer = |value: &Value| match value.as_u64() {
                Some(0) => Ok(None),
                Some(_) => Ok(Some(0)),
                None => Err(bad("no_rope_layers", value, "must hold 0 or 1 for each layer")),
            };
            let layers: Vec<_> = rotates.iter().map(layer).collect::<Result<_, _>>()?;
            if layers.len() != shape.n_layers {
                return Err(bad("no_rope_layers", layers.len(), "must be one per layer"));
            }
            return Ok(layers);
        }
        if smollm3 {
            let period = self.count("no_rope_layer_interval")?.unwrap_or(4).max(1);
            return Ok(patterned_ropes(shape.n_layers, period));
        }
        let local = |layer| usize::from(n > 1 && shape.window(layer).is_some());
        Ok((0..shape.n_layers).map(|layer| Some(local(layer))).collect())
    }
}

/// The context that a rotation reaches, where the file states the trained one.
fn stretched(rope: &RopeSpec, context: usize) -> usize {
    let reached = rope.trained_context as f64 * rope.scaling.factor();
    // A context beyond 32-bit positions is refused by `Shape::validate`.
    context.max(reached as usize)
}

fn bad(key: &str, value: impl ToString, reason: &str) -> ModelError {
    ModelError::Value { key: key.to_owned(), value: value.to_string(), reason: reason.to_owned() }
}

fn count(fields: &Map<String, Value>, key: &str) -> Result<Option<usize>, ModelError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
            count.map(Some).ok_or_else(|| bad(key, value, "must be a whole number"))
        }
    }
}

fn float(fields: &Map<String, Value>, key: &str) -> Result<Option<f64>, ModelError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or_else(|| bad(key, value, "must be a number")),
    }
}

#[cfg(test)]
mod rope_reference;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Result<Config, ModelError> {
        Config::of(serde_json::from_str(json).unwrap(), None)
    }

    #[test]
    fn families_are_known_by_their_type_and_the_rest_is_refused_by_name() {
        let mistral = config(r#"{"model_type": "mistral"}"#).unwrap();
        assert_eq!(mistral.architecture, Architecture::Llama);
        let nested = r#"{"model_type": "gemma3", "text_config": {"hidden_size": 7}}"#;
        assert_eq!(config(nested).unwrap().required("hidden_size"), Ok(7));
        let no_text = config(r#"{"model_type": "gemma3", "text_config": []}"#).err().unwrap();
        assert!(no_text.to_string().contains("text_config = []: must be an object"), "{no_text}");
        let refused = |json: &str| config(json).err().unwrap().to_string();
        assert!(refused(r#"{"model_type": "mixtral"}"#).contains("mixture of experts"));
        assert!(refused(r#"{"model_type": "qwen3_moe"}"#).contains("mixture of experts"));
        assert!(refused(r#"{"model_type": "bert"}"#).contains("`bert`: not supported"));
        assert!(refused("{}").contains("model_type"));
    }

    #[test]
    fn numbers_of_the_wrong_kind_are_named() {
        let config = config(r#"{"model_type": "llama", "hidden_size": "wide"}"#).unwrap();
        let error = config.required("hidden_size").unwrap_err().to_string();
        assert!(error.contains("hidden_size"), "{error}");
        let missing = config.required("intermediate_size").unwrap_err().to_string();
        assert!(missing.contains("intermediate_size"), "{missing}");
    }
}
