//! A tokenizer from the files of a model directory, as Hugging Face's libraries write them.

use super::bytelevel::{ByteLevel, WholeWords};
use super::error::TextError;
use super::sentencepiece::{Pieces, SentencePiece, byte_of};
use super::tokenizer::{Parts, Strip, TextModel, end_tokens};
use super::vocab::TokenKind;
use json::{AddedToken, BpeJson, GenerationConfig, ModelConfig, TokenizerConfig, TokenizerJson};
use pipeline::{Pipeline, Spelling};
use std::collections::{HashMap, HashSet};
use tokenizers::models::bpe::{Merges, Vocab};

mod json;
mod pipeline;

/// The longest `tokenizer.json` that is read. The longest known one has 34 MB.
pub const MAX_TOKENIZER_JSON_BYTES: usize = 128 << 20;

/// The longest `tokenizer_config.json`, `generation_config.json` and `special_tokens_map.json`. The longest
/// known one has 1.2 MB.
pub const MAX_CONFIG_BYTES: usize = 16 << 20;

/// The longest chat template. The longest known one has 20 kB.
pub const MAX_CHAT_TEMPLATE_BYTES: usize = 1 << 16;

/// Ids without token that a vocabulary may have, beside as many as it has tokens.
const MAX_HOLES: usize = 4096;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const MODEL_CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The contents of a model directory's files that say how text becomes tokens.
///
/// ```no_run
/// use tidekv::text::{HfTokenizerFiles, Tokenizer};
///
/// let directory = std::path::Path::new("SmolLM2-135M-Instruct");
/// let files = HfTokenizerFiles {
///     tokenizer_json: std::fs::read(directory.join("tokenizer.json"))?,
///     tokenizer_config: std::fs::read(directory.join("tokenizer_config.json")).ok(),
///     generation_config: std::fs::read(directory.join("generation_config.json")).ok(),
///     ..HfTokenizerFiles::default()
/// };
/// let tokenizer = Tokenizer::from_hf(&files)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HfTokenizerFiles {
    /// `tokenizer.json`, at most [`MAX_TOKENIZER_JSON_BYTES`]: the vocabulary and how text is cut.
    pub tokenizer_json: Vec<u8>,
    /// `tokenizer_config.json`, at most [`MAX_CONFIG_BYTES`]: BOS, EOS, chat template.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `generation_config.json`, at most [`MAX_CONFIG_BYTES`]: ids that end generation.
    pub generation_config: Option<Vec<u8>>,
    /// `config.json`, at most [`MAX_CONFIG_BYTES`]: ids that end generation where `generation_config.json` has
    /// none.
    pub model_config: Option<Vec<u8>>,
    /// `special_tokens_map.json`, at most [`MAX_CONFIG_BYTES`]: BOS and EOS where `tokenizer_config.json` has
    /// none.
    pub special_tokens_map: Option<Vec<u8>>,
    /// `chat_template.jinja`, at most [`MAX_CHAT_TEMPLATE_BYTES`]: goes before that of `tokenizer_config.json`.
    pub chat_template: Option<Vec<u8>>,
}

/// Checks the files against each other and builds what the tokenizer is made of.
pub(super) fn parts(files: &HfTokenizerFiles) -> Result<Parts, TextError> {
    let bytes = &files.tokenizer_json;
    let probe: json::Probe = json::read(TOKENIZER, bytes, MAX_TOKENIZER_JSON_BYTES)?;
    if let Some(model) = probe.model.kind.filter(|kind| kind != "BPE") {
        return Err(TextError::UnsupportedModel { model });
    }
    let file: TokenizerJson = json::read(TOKENIZER, bytes, MAX_TOKENIZER_JSON_BYTES)?;
    let config = Config::read(files)?;
    let pipeline = pipeline::read(&file.normalizer, &file.pre_tokenizer)?;

    let added = config.added_tokens(&file)?;
    let mut table = TokenTable::new(&file.model.vocab, &added)?;
    let bos = table.id_of(config.bos.as_deref());
    let first_eos = table.id_of(config.eos.as_deref());
    let prompt_bos = match config.add_bos {
        Some(true) => Some(bos.ok_or_else(|| TextError::File {
            file: TOKENIZER_CONFIG,
            problem: "add_bos_token is true, but no token is the bos_token".to_owned(),
        })?),
        Some(false) => None,
        None => table.id_of(pipeline::prompt_bos(&file.post_processor)),
    };
    for id in [bos, first_eos, prompt_bos].into_iter().flatten().chain(config.eos_ids.clone()) {
        table.make_control(id)?;
    }
    let named: Vec<u32> = first_eos.into_iter().chain(config.eos_ids).collect();
    let eos = end_tokens(&named, &table.tokens, &table.kinds);
    let is_pieces = pipeline.spelling != Spelling::ByteLevel;
    let byte_tokens = is_pieces.then(|| table.byte_tokens(file.model.byte_fallback));
    let strips = added.iter().filter(|token| token.lstrip || token.rstrip);
    Ok(Parts {
        strips: strips
            .map(|token| (token.id, Strip { left: token.lstrip, right: token.rstrip }))
            .collect(),
        model: model(file.model, pipeline, &table, byte_tokens)?,
        byte_tokens,
        bos,
        prompt_bos,
        eos,
        first_eos,
        chat_template: config.chat_template,
        tokens: table.tokens,
        kinds: table.kinds,
    })
}

/// What the small files say.
struct Config {
    bos: Option<String>,
    eos: Option<String>,
    add_bos: Option<bool>,
    eos_ids: Vec<u32>,
    chat_template: Option<String>,
    /// Id and token of `added_tokens_decoder`.
    added: Vec<(String, AddedToken)>,
}

impl Config {
    fn read(files: &HfTokenizerFiles) -> Result<Config, TextError> {
        let config: TokenizerConfig = optional(TOKENIZER_CONFIG, &files.tokenizer_config)?;
        let map: TokenizerConfig = optional(SPECIAL_TOKENS_MAP, &files.special_tokens_map)?;
        let generation: GenerationConfig = optional(GENERATION_CONFIG, &files.generation_config)?;
        let model: ModelConfig = optional(MODEL_CONFIG, &files.model_config)?;
        let eos = generation.eos_token_id.or_else(|| model.eos_token_id());
        let text = |first: Option<json::TokenText>, second: Option<json::TokenText>| {
            first.or(second).map(|token| token.text().to_owned())
        };
        let own_file = files.chat_template.as_deref().map(chat_template).transpose()?;
        Ok(Config {
            bos: text(config.bos_token, map.bos_token),
            eos: text(config.eos_token, map.eos_token),
            add_bos: config.add_bos_token,
            eos_ids: eos.map(|ids| ids.ids().to_vec()).unwrap_or_default(),
            chat_template: own_file
                .or_else(|| config.chat_template.and_then(json::ChatTemplates::default_one)),
            added: config.added_tokens_decoder.into_iter().collect(),
        })
    }

    /// The added tokens of both files; `tokenizer.json` goes first.
    fn added_tokens(&self, file: &TokenizerJson) -> Result<Vec<AddedToken>, TextError> {
        let mut added = file.added_tokens.clone();
        let known: HashSet<u32> = added.iter().map(|token| token.id).collect();
        for (id, token) in &self.added {
            let id = id.parse().map_err(|_| TextError::File {
                file: TOKENIZER_CONFIG,
                problem: format!("the id {id:?} of an added token is no number"),
            })?;
            if !known.contains(&id) {
                added.push(AddedToken { id, ..token.clone() });
            }
        }
        Ok(added)
    }
}

fn optional<T: Default + serde::de::DeserializeOwned>(
    file: &'static str,
    bytes: &Option<Vec<u8>>,
) -> Result<T, TextError> {
    match bytes {
        Some(bytes) => json::read(file, bytes, MAX_CONFIG_BYTES),
        None => Ok(T::default()),
    }
}

fn chat_template(bytes: &[u8]) -> Result<String, TextError> {
    let problem = |problem: String| TextError::File { file: CHAT_TEMPLATE, problem };
    if bytes.len() > MAX_CHAT_TEMPLATE_BYTES {
        let len = bytes.len();
        return Err(problem(format!("it has {len} bytes (at most {MAX_CHAT_TEMPLATE_BYTES})")));
    }
    let text = super::text_from_bytes(bytes).map_err(|error| problem(error.to_string()))?;
    Ok(text.to_owned())
}

/// All tokens by id.
struct TokenTable {
    tokens: Vec<String>,
    kinds: Vec<TokenKind>,
}

impl TokenTable {
    fn new(vocab: &HashMap<String, u32>, added: &[AddedToken]) -> Result<TokenTable, TextError> {
        let ids = vocab.values().chain(added.iter().map(|token| &token.id));
        let len = ids.max().map_or(0, |&max| max as usize + 1);
        let count = vocab.len() + added.len();
        // Ids size the table: they must not name more than the file can fill.
        if len > 2 * count + MAX_HOLES {
            let reason = format!("the highest token id is {} for {count} tokens", len - 1);
            return Err(TextError::Vocabulary { reason });
        }
        let mut table =
            TokenTable { tokens: vec![String::new(); len], kinds: vec![TokenKind::Unused; len] };
        for (token, &id) in vocab {
            let place = &mut table.tokens[id as usize];
            if table.kinds[id as usize] != TokenKind::Unused {
                let reason = format!("the tokens {place:?} and {token:?} both have the id {id}");
                return Err(TextError::Vocabulary { reason });
            }
            place.clone_from(token);
            table.kinds[id as usize] = TokenKind::Text;
        }
        for token in added {
            table.tokens[token.id as usize].clone_from(&token.content);
            table.kinds[token.id as usize] =
                if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        }
        Ok(table)
    }

    fn id_of(&self, token: Option<&str>) -> Option<u32> {
        let token = token?;
        let at = self
            .tokens
            .iter()
            .zip(&self.kinds)
            .position(|(known, kind)| *kind != TokenKind::Unused && known == token)?;
        u32::try_from(at).ok()
    }

    fn make_control(&mut self, id: u32) -> Result<(), TextError> {
        let vocab = self.kinds.len();
        let kind = self.kinds.get_mut(id as usize);
        *kind.ok_or(TextError::TokenOutOfRange { id, vocab })? = TokenKind::Control;
        Ok(())
    }

    /// Tokens of single bytes, if the model falls back to them.
    fn byte_tokens(&self, byte_fallback: bool) -> [Option<u32>; 256] {
        let mut byte_tokens = [None; 256];
        let text = (0u32..).zip(self.tokens.iter().zip(&self.kinds));
        for (id, (token, _)) in text.filter(|(_, (_, kind))| **kind == TokenKind::Text) {
            if let Some(byte) = byte_of(token).filter(|_| byte_fallback) {
                byte_tokens[byte as usize].get_or_insert(id);
            }
        }
        byte_tokens
    }

    /// The tokens that merging may produce. Files merge up to added tokens too, such as runs of blanks, but
    /// text never becomes a control token.
    fn mergeable(&self) -> impl Iterator<Item = (&str, u32)> {
        let mergeable = |kind| matches!(kind, TokenKind::Text | TokenKind::UserDefined);
        (0u32..)
            .zip(self.tokens.iter().zip(&self.kinds))
            .filter(move |(_, (_, kind))| mergeable(**kind))
            .map(|(id, (token, _))| (token.as_str(), id))
    }
}

/// The model itself.
fn model(
    json: BpeJson,
    pipeline: Pipeline,
    table: &TokenTable,
    byte_tokens: Option<[Option<u32>; 256]>,
) -> Result<TextModel, TextError> {
    let refuse = |what: &str| TextError::UnsupportedPart { part: "model", what: what.to_owned() };
    let affixes = [&json.continuing_subword_prefix, &json.end_of_word_suffix];
    if affixes.iter().any(|affix| affix.as_ref().is_some_and(|affix| !affix.is_empty())) {
        return Err(refuse("marks at the borders of words"));
    }
    if json.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(refuse("dropout"));
    }
    let mergeable: HashMap<&str, u32> = table.mergeable().collect();
    let is_control: HashSet<&str> = table
        .tokens
        .iter()
        .zip(&table.kinds)
        .filter(|(_, kind)| **kind == TokenKind::Control)
        .map(|(token, _)| token.as_str())
        .collect();
    let mut merges: Merges = Vec::with_capacity(json.merges.len());
    for (rank, merge) in json.merges.into_iter().enumerate() {
        let joined = format!("{}{}", merge.left, merge.right);
        let parts = [merge.left.as_str(), merge.right.as_str(), joined.as_str()];
        if parts.iter().all(|part| mergeable.contains_key(part)) {
            merges.push((merge.left, merge.right));
        } else if !parts.iter().any(|part| is_control.contains(part)) {
            let reason = format!("merge {rank}, {parts:?}, does not join two tokens to a third");
            return Err(TextError::Vocabulary { reason });
        }
    }
    match (pipeline.spelling, byte_tokens) {
        (Spelling::Pieces(space_prefix), Some(byte_tokens)) => {
            if json.ignore_merges {
                return Err(refuse("ignore_merges without byte-level words"));
            }
            let bytes: HashSet<u32> = byte_tokens.iter().flatten().copied().collect();
            let pieces = Pieces {
                text: table.mergeable().filter(|(_, id)| !bytes.contains(id)).collect(),
                byte_tokens,
                n_tokens: u32::try_from(table.tokens.len()).unwrap_or(u32::MAX),
                space_prefix,
                pre: pipeline.pre,
            };
            let merges = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
            let model = SentencePiece::from_merges(pieces, merges)?;
            Ok(TextModel::SentencePiece(Box::new(model)))
        }
        (Spelling::ByteLevel, _) | (Spelling::Pieces(_), None) => {
            let whole_words =
                if json.ignore_merges { WholeWords::First } else { WholeWords::Merge };
            let vocab: Vocab =
                mergeable.into_iter().map(|(token, id)| (token.to_owned(), id)).collect();
            let model = ByteLevel::new(vocab, merges, whole_words, pipeline.pre)?;
            Ok(TextModel::ByteLevel(Box::new(model)))
        }
    }
}

#[cfg(test)]
mod tests;
