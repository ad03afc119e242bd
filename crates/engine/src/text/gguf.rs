//! A tokenizer from what a GGUF file says.

use super::bytelevel::{ByteLevel, WholeWords};
use super::error::TextError;
use super::pre::{PreTokenizer, table};
use super::sentencepiece::{Pieces, SentencePiece, SpacePrefix, byte_of};
use super::tokenizer::{Parts, Strip, TextModel, end_tokens};
use super::vocab::{Family, TokenKind, VocabSource};
use std::collections::HashMap;
use tokenizers::models::bpe::{Merges, Vocab};

/// Code of single bytes in `tokenizer.ggml.token_type`.
const BYTE: i32 = 6;

/// Newlines apart: how text is cut before the pieces of `gemma4` vocabularies merge, which have none of both
/// newlines and others
/// ([source](https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp), `LLAMA_VOCAB_PRE_TYPE_GEMMA4`).
const NEWLINES_APART: &str = r"[^\n]+|\n+";

/// Control tokens that never swallow blanks, see [`VocabSource::markers_strip_right`].
const NEVER_STRIP: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// Checks the vocabulary against itself and builds what the tokenizer is made of.
pub(super) fn parts(source: VocabSource) -> Result<Parts, TextError> {
    let family = Family::of(&source.model)?;
    let mut kinds = source.kinds()?;
    let eos = end_tokens(&source.eos, &source.tokens, &kinds);
    for &id in eos.iter().chain(&source.bos) {
        // Some converters type them as text; they are structure all the same.
        kinds[id as usize] = TokenKind::Control;
    }
    let (model, adds_bos) = match family {
        Family::ByteLevel => byte_level(&source, &kinds)?,
        Family::SentencePiece => {
            (TextModel::SentencePiece(Box::new(scored(&source, &kinds)?)), true)
        }
        Family::MergedPieces => {
            (TextModel::SentencePiece(Box::new(merged(&source, &kinds)?)), true)
        }
    };
    let prompt_bos = if source.add_bos.unwrap_or(adds_bos) {
        Some(source.bos.ok_or(TextError::MissingKey { key: "tokenizer.ggml.bos_token_id" })?)
    } else {
        None
    };
    let byte_tokens = match family {
        Family::ByteLevel => None,
        Family::SentencePiece | Family::MergedPieces => Some(byte_tokens(&source)),
    };
    Ok(Parts {
        strips: strips(&source, &kinds),
        model,
        byte_tokens,
        bos: source.bos,
        prompt_bos,
        eos,
        first_eos: source.eos.first().copied(),
        chat_template: source.chat_template,
        tokens: source.tokens,
        kinds,
    })
}

/// The model, and whether prompts begin with BOS when the file does not say.
fn byte_level(source: &VocabSource, kinds: &[TokenKind]) -> Result<(TextModel, bool), TextError> {
    let name = source.pre.as_deref().ok_or(TextError::MissingKey { key: "tokenizer.ggml.pre" })?;
    let recipe = table::recipe(name).ok_or_else(|| TextError::UnsupportedPre {
        pre: name.to_owned(),
        known: table::known_names(),
    })?;
    let pre = PreTokenizer::new(recipe.nfc, recipe.stages.iter().copied())
        .unwrap_or_else(|error| panic!("a constant pattern: {error}"));
    let mut vocab = Vocab::default();
    for (token, id) in of_kind(source, kinds, TokenKind::Text) {
        // Of two equal strings the first keeps its id.
        vocab.entry(token.to_owned()).or_insert(id);
    }
    let merges = checked_merges(&source.merges, &vocab)?;
    let whole_words = if recipe.whole_words_first { WholeWords::First } else { WholeWords::Merge };
    let model = ByteLevel::new(vocab, merges, whole_words, pre)?;
    Ok((TextModel::ByteLevel(Box::new(model)), recipe.adds_bos))
}

fn scored(source: &VocabSource, kinds: &[TokenKind]) -> Result<SentencePiece, TextError> {
    let (n_tokens, n_scores) = (source.tokens.len(), source.scores.len());
    if n_scores != n_tokens {
        let reason = format!("{n_tokens} tokens, but {n_scores} scores");
        return Err(TextError::Vocabulary { reason });
    }
    let space_prefix = match source.add_space_prefix {
        Some(false) => SpacePrefix::Never,
        Some(true) | None => SpacePrefix::Sections,
    };
    SentencePiece::from_scores(pieces(source, kinds, space_prefix, &[]), &source.scores)
}

fn merged(source: &VocabSource, kinds: &[TokenKind]) -> Result<SentencePiece, TextError> {
    // Runs of newlines and of blanks are user-defined, and merges make them.
    let user_defined: Vec<(String, u32)> = of_kind(source, kinds, TokenKind::UserDefined)
        .map(|(token, id)| (token.replace(' ', "▁"), id))
        .collect();
    let mut pieces = pieces(source, kinds, SpacePrefix::Never, &[NEWLINES_APART]);
    pieces.text.extend(user_defined.iter().map(|(token, id)| (token.as_str(), *id)));
    let mut split = Vec::with_capacity(source.merges.len());
    for (rank, merge) in source.merges.iter().enumerate() {
        // A piece may be a blank itself: the first one is text.
        let behind_first = merge.chars().next().map_or(0, char::len_utf8);
        let border = merge[behind_first..].find(' ').map(|at| behind_first + at);
        let pair = border.map(|at| (&merge[..at], &merge[at + 1..]));
        split.push(pair.ok_or_else(|| no_join(rank, merge))?);
    }
    SentencePiece::from_merges(pieces, split.into_iter())
}

fn pieces<'v>(
    source: &'v VocabSource,
    kinds: &[TokenKind],
    space_prefix: SpacePrefix,
    patterns: &[&str],
) -> Pieces<'v> {
    let is_byte = |id: u32| source.token_types.get(id as usize) == Some(&BYTE);
    Pieces {
        text: of_kind(source, kinds, TokenKind::Text).filter(|&(_, id)| !is_byte(id)).collect(),
        byte_tokens: byte_tokens(source),
        // The number of ids that fit is checked where the token types are.
        n_tokens: u32::try_from(source.tokens.len()).unwrap_or(u32::MAX),
        space_prefix,
        pre: PreTokenizer::new(false, patterns.iter().copied())
            .unwrap_or_else(|error| panic!("a constant pattern: {error}")),
    }
}

/// Tokens of single bytes. Of two for one byte the first counts.
fn byte_tokens(source: &VocabSource) -> [Option<u32>; 256] {
    let mut byte_tokens = [None; 256];
    let typed = source.tokens.iter().zip(&source.token_types);
    for (id, (token, _)) in (0u32..).zip(typed).filter(|(_, (_, code))| **code == BYTE) {
        if let Some(byte) = byte_of(token) {
            byte_tokens[byte as usize].get_or_insert(id);
        }
    }
    byte_tokens
}

/// The tokens of one kind, with their ids.
fn of_kind<'v>(
    source: &'v VocabSource,
    kinds: &[TokenKind],
    wanted: TokenKind,
) -> impl Iterator<Item = (&'v str, u32)> {
    let tokens = source.tokens.iter().map(String::as_str).zip(0u32..);
    tokens.zip(kinds).filter(move |(_, kind)| **kind == wanted).map(|(token, _)| token)
}

/// Merges as pairs, each of text tokens that join to one.
fn checked_merges(merges: &[String], vocab: &Vocab) -> Result<Merges, TextError> {
    let pair = |(rank, merge): (usize, &String)| {
        let pair = merge.split_once(' ');
        let known = |(left, right): &(&str, &str)| {
            vocab.contains_key(*left)
                && vocab.contains_key(*right)
                && vocab.contains_key(&format!("{left}{right}"))
        };
        pair.filter(known)
            .map(|(left, right)| (left.to_owned(), right.to_owned()))
            .ok_or_else(|| no_join(rank, merge))
    };
    merges.iter().enumerate().map(pair).collect()
}

fn no_join(rank: usize, merge: &str) -> TextError {
    TextError::Vocabulary {
        reason: format!("merge {rank}, {merge:?}, does not join two tokens to a third"),
    }
}

/// Fixed strings that swallow blanks, see [`VocabSource::markers_strip_right`].
fn strips(source: &VocabSource, kinds: &[TokenKind]) -> HashMap<u32, Strip> {
    if !source.markers_strip_right {
        return HashMap::new();
    }
    let fixed = |kind| matches!(kind, TokenKind::Control | TokenKind::UserDefined);
    (0u32..)
        .zip(source.tokens.iter().zip(kinds))
        .filter(|(_, (token, kind))| fixed(**kind) && !NEVER_STRIP.contains(&token.as_str()))
        .map(|(id, _)| (id, Strip { left: false, right: true }))
        .collect()
}
