//! What a model's files say about themselves, in either format, whether or not
//! the engine supports the model.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value as Json;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tidekv_format::{
    FormatError, GgufModel, LooksLike, Metadata, SafetensorsModel, TensorInfo, TensorStore,
};

/// A file of the model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelPart {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
}

/// A number of the model, or one for each layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Dimension {
    /// The same everywhere.
    One(u64),
    /// Different from layer to layer, `[N]`.
    PerLayer(Vec<u64>),
}

/// Shows the range of numbers that differ.
impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::One(number) => write!(f, "{number}"),
            Dimension::PerLayer(numbers) => {
                let (least, most) = (numbers.iter().min(), numbers.iter().max());
                write!(f, "{} to {}", least.unwrap_or(&0), most.unwrap_or(&0))
            }
        }
    }
}

/// A number that sizes a model, under the names it goes by.
pub struct Field {
    /// For people.
    pub label: &'static str,
    /// In reports; that of the engine's shape where it has the number.
    pub key: &'static str,
    /// After the architecture in GGUF metadata.
    gguf: &'static str,
    /// In `config.json`; the first that is there.
    config: &'static [&'static str],
}

/// The numbers that are shown, in this order.
pub const FIELDS: [Field; 10] = [
    field("layers", "n_layers", "block_count", &["num_hidden_layers"]),
    field("hidden size", "d_model", "embedding_length", &["hidden_size"]),
    field("MLP width", "d_ff", "feed_forward_length", &["intermediate_size"]),
    field("query heads", "n_heads", "attention.head_count", &["num_attention_heads"]),
    field("KV heads", "n_kv_heads", "attention.head_count_kv", &["num_key_value_heads"]),
    field("head width", "head_dim", "attention.key_length", &["head_dim"]),
    field("experts", "n_experts", "expert_count", &["num_local_experts", "num_experts"]),
    field("sliding window", "window", "attention.sliding_window", &["sliding_window"]),
    field("vocabulary", "vocab", "vocab_size", &["vocab_size"]),
    field("context", "context", "context_length", &["max_position_embeddings"]),
];

const fn field(
    label: &'static str,
    key: &'static str,
    gguf: &'static str,
    config: &'static [&'static str],
) -> Field {
    Field { label, key, gguf, config }
}

/// The files of a model, opened.
pub enum Contents {
    /// One GGUF file or all parts of a split one.
    Gguf(GgufModel),
    /// Safetensors files with the `config.json` beside them, if it can be read.
    Safetensors(SafetensorsModel, Option<Json>),
}

/// Most bytes of a `config.json`; published ones have a few thousand.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

impl Contents {
    /// Opens a GGUF file, a safetensors file, or a directory of those. Reads
    /// headers only.
    ///
    /// # Errors
    /// Whatever keeps the table of tensors from being read: no model at all, or a
    /// damaged one.
    pub fn open(path: &Path) -> anyhow::Result<Contents> {
        let opened = match path.is_dir() {
            true => Contents::open_safetensors(path),
            false => match GgufModel::open(path) {
                Err(FormatError::NotGguf(LooksLike::Safetensors)) => {
                    Contents::open_safetensors(path)
                }
                opened => opened.map(Contents::Gguf),
            },
        };
        opened.with_context(|| path.display().to_string())
    }

    fn open_safetensors(path: &Path) -> Result<Contents, FormatError> {
        let model = SafetensorsModel::open(path)?;
        let dir = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        Ok(Contents::Safetensors(model, read_config(&dir.join("config.json"))))
    }

    fn store(&self) -> &TensorStore {
        match self {
            Contents::Gguf(model) => model.store(),
            Contents::Safetensors(model, _) => model.store(),
        }
    }

    /// All tensors.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.store().tensors()
    }

    /// The files, in order.
    pub fn parts(&self) -> Vec<ModelPart> {
        let part = |(path, bytes): (&Path, u64)| ModelPart { path: path.to_owned(), bytes };
        self.store().files().map(part).collect()
    }

    /// The format and its version, where it has one.
    pub fn container(&self) -> (&'static str, Option<u32>) {
        match self {
            Contents::Gguf(model) => ("GGUF", Some(model.version())),
            Contents::Safetensors(..) => ("safetensors", None),
        }
    }

    /// GGUF metadata.
    pub fn metadata(&self) -> Option<&Metadata> {
        match self {
            Contents::Gguf(model) => Some(model.metadata()),
            Contents::Safetensors(..) => None,
        }
    }

    /// A string of the metadata; one of another type counts as absent.
    pub fn string(&self, key: &str) -> Option<&str> {
        self.metadata()?.str(key).ok().flatten()
    }

    /// The family, by its name in the file.
    pub fn architecture(&self) -> Option<&str> {
        match self {
            Contents::Gguf(_) => self.string("general.architecture"),
            Contents::Safetensors(_, config) => config.as_ref()?.get("model_type")?.as_str(),
        }
    }

    /// A number of the model, where the file states it.
    pub fn dimension(&self, field: &Field) -> Option<Dimension> {
        match self {
            Contents::Gguf(model) => {
                let key = format!("{}.{}", self.architecture()?, field.gguf);
                match model.metadata().u64(&key) {
                    Ok(number) => number.map(Dimension::One),
                    Err(_) => model.metadata().u64s(&key).ok().flatten().map(Dimension::PerLayer),
                }
            }
            Contents::Safetensors(_, config) => {
                let config = config.as_ref()?;
                // Models of text and images keep the text part's numbers apart.
                let places = [Some(config), config.get("text_config")];
                let number = |place: &Json| {
                    field.config.iter().find_map(|key| place.get(key).and_then(Json::as_u64))
                };
                places.into_iter().flatten().find_map(number).map(Dimension::One)
            }
        }
    }
}

/// A `config.json`; one that cannot be read is the engine's to complain about.
fn read_config(path: &Path) -> Option<Json> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_CONFIG_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// What llama.cpp calls the mixture of types in a file, by the number in
/// `general.file_type` (`enum llama_ftype` of its `llama.h`).
pub fn file_type(number: u64) -> Option<&'static str> {
    Some(match number {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4",
        39 => "NVFP4",
        40 => "Q1_0",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_per_layer_are_shown_as_a_range() {
        assert_eq!(Dimension::One(8).to_string(), "8");
        assert_eq!(Dimension::PerLayer(vec![8, 2, 4]).to_string(), "2 to 8");
        assert_eq!(Dimension::PerLayer(Vec::new()).to_string(), "0 to 0");
        let json = |dimension: &Dimension| serde_json::to_string(dimension).unwrap();
        assert_eq!(json(&Dimension::One(8)), "8");
        assert_eq!(json(&Dimension::PerLayer(vec![8, 2])), "[8,2]");
    }

    #[test]
    fn an_unreadable_config_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        assert_eq!(read_config(&path), None);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(read_config(&path), None);
        std::fs::write(&path, "{\"a\": 1}").unwrap();
        assert_eq!(read_config(&path), Some(serde_json::json!({"a": 1})));
    }
}
