//! Byte-level BPE: words of bytes, each byte written as a character, merged by rank.
//!
//! The merging is the `tokenizers` crate's (a heap and a linked list:
//! `n log n`, no recursion); the cutting is [`super::pre`]'s.

use super::error::TextError;
use super::pre::PreTokenizer;
use super::vocab::byte_chars;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

/// A vocabulary of byte strings.
#[derive(Debug)]
pub(super) struct ByteLevel {
    bpe: BPE,
    pre: PreTokenizer,
    /// Stand-in of each byte in token strings, `None` where the vocabulary lacks it.
    byte_chars: [Option<char>; 256],
}

/// Whether merges are asked about a word that is a token already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WholeWords {
    /// They are: merges alone decide.
    Merge,
    /// They are not: the word is that token.
    First,
}

impl ByteLevel {
    /// `vocab`: the tokens that text may become; `merges`: pairs of them that join to a third, best first.
    pub(super) fn new(
        vocab: Vocab,
        merges: Merges,
        whole_words: WholeWords,
        pre: PreTokenizer,
    ) -> Result<ByteLevel, TextError> {
        let byte_chars = byte_chars()
            .map(|c| vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str).then_some(c));
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(whole_words == WholeWords::First)
            // The crate's cache is per thread and outlives the tokenizer; `Encoding` has its own.
            .cache_capacity(0)
            .build()
            .map_err(|error| TextError::Vocabulary { reason: error.to_string() })?;
        Ok(ByteLevel { bpe, pre, byte_chars })
    }

    pub(super) fn pre(&self) -> &PreTokenizer {
        &self.pre
    }

    /// Appends the ids of one word. `offset` is its place in the text, for messages; `stand_ins` is scratch.
    pub(super) fn encode_word(
        &self,
        word: &str,
        offset: usize,
        stand_ins: &mut String,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        stand_ins.clear();
        for (at, character) in word.char_indices() {
            for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
                let no_token = TextError::NoTokenForByte { byte, character, offset: offset + at };
                stand_ins.push(self.byte_chars[byte as usize].ok_or(no_token)?);
            }
        }
        let tokens = self.bpe.tokenize(stand_ins);
        let tokens = tokens.map_err(|error| TextError::Vocabulary { reason: error.to_string() })?;
        ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }
}
