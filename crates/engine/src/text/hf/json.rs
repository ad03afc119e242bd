//! The files of a model directory, as far as the tokenizer needs them.

use super::super::error::TextError;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// `tokenizer.json` before its model is known to be one that can be read.
#[derive(Deserialize)]
pub(super) struct Probe {
    pub(super) model: ProbedModel,
}

#[derive(Deserialize)]
pub(super) struct ProbedModel {
    /// Files of the first years leave it out: they are BPE if they have merges.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
}

/// `tokenizer.json` with a BPE model
/// ([source](https://huggingface.co/docs/tokenizers/index), `Tokenizer::to_str`).
#[derive(Deserialize)]
pub(super) struct TokenizerJson {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    pub(super) model: BpeJson,
}

/// A token that is found in text before anything else.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct AddedToken {
    /// In `tokenizer_config.json` the key has it.
    #[serde(default)]
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
}

#[derive(Deserialize)]
pub(super) struct BpeJson {
    pub(super) vocab: HashMap<String, u32>,
    #[serde(default)]
    pub(super) merges: Vec<MergeJson>,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    pub(super) dropout: Option<f32>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
}

/// A merge: "left right" in older files, `["left", "right"]` in newer ones.
pub(super) struct MergeJson {
    pub(super) left: String,
    pub(super) right: String,
}

impl<'de> Deserialize<'de> for MergeJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MergeJson, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = MergeJson;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"left right\" or [\"left\", \"right\"]")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<MergeJson, E> {
                let (left, right) = text
                    .split_once(' ')
                    .ok_or_else(|| E::custom(format!("merge {text:?} has no blank")))?;
                Ok(MergeJson { left: left.to_owned(), right: right.to_owned() })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<MergeJson, A::Error> {
                let mut part = |len| {
                    pair.next_element()?
                        .ok_or_else(|| A::Error::invalid_length(len, &"two strings"))
                };
                let (left, right) = (part(0)?, part(1)?);
                match pair.next_element::<String>()? {
                    None => Ok(MergeJson { left, right }),
                    Some(_) => Err(A::Error::invalid_length(3, &"two strings")),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// `tokenizer_config.json` and `special_tokens_map.json`.
#[derive(Default, Deserialize)]
pub(super) struct TokenizerConfig {
    pub(super) bos_token: Option<TokenText>,
    pub(super) eos_token: Option<TokenText>,
    pub(super) add_bos_token: Option<bool>,
    pub(super) chat_template: Option<ChatTemplates>,
    /// By id, which is written as a string.
    #[serde(default)]
    pub(super) added_tokens_decoder: BTreeMap<String, AddedToken>,
}

/// A token by its text.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum TokenText {
    Plain(String),
    Described { content: String },
}

impl TokenText {
    pub(super) fn text(&self) -> &str {
        match self {
            TokenText::Plain(text) | TokenText::Described { content: text } => text,
        }
    }
}

/// One template, or several with names.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum ChatTemplates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
pub(super) struct NamedTemplate {
    name: String,
    template: String,
}

impl ChatTemplates {
    /// The one that is used without tools: the only one, `default`, or the first.
    pub(super) fn default_one(self) -> Option<String> {
        match self {
            ChatTemplates::One(template) => Some(template),
            ChatTemplates::Named(mut named) => {
                let at = named.iter().position(|t| t.name == "default").unwrap_or(0);
                (at < named.len()).then(|| named.swap_remove(at).template)
            }
        }
    }
}

/// `generation_config.json`.
#[derive(Default, Deserialize)]
pub(super) struct GenerationConfig {
    pub(super) eos_token_id: Option<OneOrMore>,
}

/// `config.json`: models that also see have another one in it, of their language model.
#[derive(Default, Deserialize)]
pub(super) struct ModelConfig {
    eos_token_id: Option<OneOrMore>,
    text_config: Option<GenerationConfig>,
}

impl ModelConfig {
    /// Ids that end generation.
    pub(super) fn eos_token_id(self) -> Option<OneOrMore> {
        self.eos_token_id.or_else(|| self.text_config?.eos_token_id)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

impl OneOrMore {
    pub(super) fn ids(&self) -> &[u32] {
        match self {
            OneOrMore::One(id) => std::slice::from_ref(id),
            OneOrMore::More(ids) => ids,
        }
    }
}

/// Reads a file of at most `limit` bytes.
pub(super) fn read<'b, T: Deserialize<'b>>(
    file: &'static str,
    bytes: &'b [u8],
    limit: usize,
) -> Result<T, TextError> {
    if bytes.len() > limit {
        let problem = format!("it has {} bytes (at most {limit})", bytes.len());
        return Err(TextError::File { file, problem });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| TextError::File { file, problem: error.to_string() })
}
