//! Text to token ids and back, for byte-level BPE.
//!
//! Text becomes ids in four steps: fixed strings are cut out (control tokens
//! only where the caller wants them), the rest is normalised, cut into words
//! ([`super::pre`]), and each word's bytes are merged by rank with the
//! `tokenizers` crate (a heap and a linked list: `n log n`, no recursion).
//!
//! Control tokens are not in the vocabulary that BPE sees. Whatever a text
//! says, merging cannot produce one.

use super::chat::{ChatTemplate, RenderedChat};
use super::detokenize::{DetokenizeStream, Utf8Decoder};
use super::error::TextError;
use super::markers::{Markers, Piece};
use super::pre::{PreKind, PreTokenizer};
use super::vocab::{TokenBytes, TokenKind, VocabSource, byte_chars, refuse_other_families};
use std::collections::HashMap;
use std::ops::ControlFlow;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

/// Control tokens that end a turn or a text. A model stops at each of them that its vocabulary has, besides
/// the ones its header names: headers name one, and chat models use two.
const END_MARKERS: [&str; 8] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<EOT>",
];

/// Bytes of text between two polls of a cancellable call.
const POLL_BYTES: usize = 1 << 14;

/// Longer words are not remembered: they hardly ever come twice.
const REMEMBERED_WORD_BYTES: usize = 32;

/// What the written form of a control token means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// Characters like any others. For text from users and documents.
    AsText,
    /// The token. For text that the caller wrote or trusts.
    Recognize,
}

/// Asked every few kilobytes of text; [`ControlFlow::Break`] ends the call with [`TextError::Cancelled`].
pub type Poll<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// A model's tokenizer. Immutable: share it by reference between threads.
#[derive(Debug)]
pub struct Tokenizer {
    bpe: BPE,
    pre: PreTokenizer,
    /// Stand-in of each byte in token strings, `None` where the vocabulary lacks it.
    byte_chars: [Option<char>; 256],
    /// Control and user-defined tokens.
    specials: Markers,
    user_defined: Markers,
    kinds: Vec<TokenKind>,
    token_bytes: TokenBytes,
    /// The token that every prompt begins with, if the model wants one.
    prompt_bos: Option<u32>,
    /// Ascending.
    eos: Vec<u32>,
    source: VocabSource,
}

impl Tokenizer {
    /// Builds the tokenizer and checks the vocabulary against itself.
    pub fn new(mut source: VocabSource) -> Result<Tokenizer, TextError> {
        refuse_other_families(&source.model)?;
        let name =
            source.pre.as_deref().ok_or(TextError::MissingKey { key: "tokenizer.ggml.pre" })?;
        let kind = PreKind::from_name(name)?;
        let mut kinds = source.kinds()?;
        let eos = end_tokens(&source, &kinds);
        for &id in eos.iter().chain(&source.bos) {
            // Some converters type them as text; they are structure all the same.
            kinds[id as usize] = TokenKind::Control;
        }
        let prompt_bos = if source.add_bos.unwrap_or(kind.adds_bos_by_default()) {
            Some(source.bos.ok_or(TextError::MissingKey { key: "tokenizer.ggml.bos_token_id" })?)
        } else {
            None
        };
        let vocab = text_vocabulary(&source.tokens, &kinds);
        let byte_chars = byte_chars()
            .map(|c| vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str).then_some(c));
        let merges = checked_merges(&source.merges, &vocab)?;
        // Header text is large; the model has its own copy from here on.
        source.merges = Vec::new();
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(kind.whole_words_first())
            // The crate's cache is per thread and outlives the tokenizer; `Encoding` has its own.
            .cache_capacity(0)
            .build()
            .map_err(|error| TextError::Vocabulary { reason: error.to_string() })?;
        let specials = [TokenKind::Control, TokenKind::UserDefined];
        Ok(Tokenizer {
            bpe,
            pre: PreTokenizer::new(kind),
            byte_chars,
            specials: Markers::new(&source.tokens, &kinds, &specials)?,
            user_defined: Markers::new(&source.tokens, &kinds, &specials[1..])?,
            token_bytes: TokenBytes::new(&source.tokens, &kinds),
            kinds,
            prompt_bos,
            eos,
            source,
        })
    }

    /// Number of tokens. A model's embedding table may have more rows.
    pub fn vocab_len(&self) -> usize {
        self.kinds.len()
    }

    /// Ids that end generation, ascending: those of the header and every known end marker of the vocabulary.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Whether generation ends with this token.
    pub fn is_eos(&self, id: u32) -> bool {
        self.eos.binary_search(&id).is_ok()
    }

    /// The token that prompts begin with, for models that want one.
    pub fn prompt_bos(&self) -> Option<u32> {
        self.prompt_bos
    }

    /// What a token is for.
    pub fn kind(&self, id: u32) -> Result<TokenKind, TextError> {
        let vocab = self.vocab_len();
        self.kinds.get(id as usize).copied().ok_or(TextError::TokenOutOfRange { id, vocab })
    }

    /// A token as the vocabulary writes it (`Ġthe`, `<|im_end|>`): for inspection, not text.
    pub fn token(&self, id: u32) -> Result<&str, TextError> {
        let vocab = self.vocab_len();
        self.source
            .tokens
            .get(id as usize)
            .map(String::as_str)
            .ok_or(TextError::TokenOutOfRange { id, vocab })
    }

    /// The bytes a token adds to the text: none for control tokens, perhaps part of a character.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        self.token_bytes.get(id)
    }

    /// Ids of a whole prompt, with BOS in front if the model wants one and the text does not begin with it.
    ///
    /// User-defined tokens are recognised in both modes, as in the models' training; they are text.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        self.encode_polled(text, specials, &mut || ControlFlow::Continue(()))
    }

    /// [`Tokenizer::encode`] that can be cancelled between words. The longest pause is one word without a
    /// border: about a second per megabyte.
    pub fn encode_polled(
        &self,
        text: &str,
        specials: Specials,
        poll: Poll<'_>,
    ) -> Result<Vec<u32>, TextError> {
        let mut encoding = Encoding::new(self, poll);
        encoding.text(text, specials)?;
        Ok(self.with_bos(encoding.ids))
    }

    /// Ids of text that follows other tokens: never a BOS.
    pub fn encode_continuation(
        &self,
        text: &str,
        specials: Specials,
    ) -> Result<Vec<u32>, TextError> {
        let mut never = || ControlFlow::Continue(());
        let mut encoding = Encoding::new(self, &mut never);
        encoding.text(text, specials)?;
        Ok(encoding.ids)
    }

    /// The model's chat template, compiled.
    pub fn chat_template(&self) -> Result<ChatTemplate, TextError> {
        let text_of =
            |id: Option<&u32>| id.and_then(|&id| self.source.tokens.get(id as usize)).cloned();
        let source = self.source.chat_template.clone().ok_or(TextError::NoChatTemplate)?;
        let controls = self
            .source
            .tokens
            .iter()
            .zip(&self.kinds)
            .filter(|(_, kind)| **kind == TokenKind::Control);
        ChatTemplate::new(source, controls.map(|(token, _)| token.as_str())).map(|template| {
            template
                .with_markers(text_of(self.source.bos.as_ref()), text_of(self.source.eos.first()))
        })
    }

    /// Ids of a rendered chat. The template's markers become control tokens, the messages' characters never
    /// do; for messages that contain no marker the ids are those of
    /// `encode(chat.text(), Specials::Recognize)`.
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<u32>, TextError> {
        self.encode_chat_polled(chat, &mut || ControlFlow::Continue(()))
    }

    /// [`Tokenizer::encode_chat`] that can be cancelled; see [`Tokenizer::encode_polled`].
    pub fn encode_chat_polled(
        &self,
        chat: &RenderedChat,
        poll: Poll<'_>,
    ) -> Result<Vec<u32>, TextError> {
        let mut encoding = Encoding::new(self, poll);
        for piece in self.specials.pieces(chat.guarded()) {
            match piece {
                // A border where the guard stood is none: the text around it is encoded as one.
                Piece::Plain(guarded) => {
                    encoding.text(&chat.unguarded(guarded), Specials::AsText)?
                }
                Piece::Marker(id) => encoding.marker(id),
            }
        }
        Ok(self.with_bos(encoding.ids))
    }

    /// The text of the ids. Control tokens add nothing; bytes that are not UTF-8 become U+FFFD, as
    /// [`String::from_utf8_lossy`] does it.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        let mut decoder = Utf8Decoder::default();
        let mut text = String::new();
        for &id in ids {
            decoder.push(self.token_bytes.get(id)?, &mut text);
        }
        decoder.finish(&mut text);
        Ok(text)
    }

    /// A decoder for tokens that come one by one. Its pieces together are [`Tokenizer::decode`]'s text.
    pub fn detokenize_stream(&self) -> DetokenizeStream<'_> {
        DetokenizeStream::new(self)
    }

    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.prompt_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }
}

/// One call of encode: the ids so far, and when to poll.
struct Encoding<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    poll: Poll<'a>,
    /// Bytes of text done, and done when it was last polled.
    done: usize,
    polled: usize,
}

impl<'a> Encoding<'a> {
    fn new(tokenizer: &'a Tokenizer, poll: Poll<'a>) -> Encoding<'a> {
        Encoding { tokenizer, ids: Vec::new(), poll, done: 0, polled: 0 }
    }

    fn text(&mut self, text: &str, specials: Specials) -> Result<(), TextError> {
        let markers = match specials {
            Specials::AsText => &self.tokenizer.user_defined,
            Specials::Recognize => &self.tokenizer.specials,
        };
        for piece in markers.pieces(text) {
            match piece {
                Piece::Plain(plain) => self.words(plain)?,
                Piece::Marker(id) => self.marker(id),
            }
        }
        Ok(())
    }

    fn marker(&mut self, id: u32) {
        self.ids.push(id);
        self.done += self.tokenizer.source.tokens.get(id as usize).map_or(0, String::len);
    }

    /// Appends the ids of text without fixed strings.
    fn words(&mut self, text: &str) -> Result<(), TextError> {
        let text = self.tokenizer.pre.normalize(text);
        // Where the ids of a word are that was seen before. Lives as long as the text its keys are from.
        let mut seen: HashMap<&str, std::ops::Range<usize>> = HashMap::new();
        let mut stand_ins = String::new();
        for word in self.tokenizer.pre.words(&text) {
            if let Some(ids) = seen.get(word) {
                self.ids.extend_from_within(ids.clone());
            } else {
                let start = self.ids.len();
                self.word(word, &mut stand_ins)?;
                if word.len() <= REMEMBERED_WORD_BYTES {
                    seen.insert(word, start..self.ids.len());
                }
            }
            self.done += word.len();
            if self.done - self.polled >= POLL_BYTES {
                self.polled = self.done;
                if (self.poll)().is_break() {
                    return Err(TextError::Cancelled { bytes: self.done });
                }
            }
        }
        Ok(())
    }

    /// Appends the ids of one word; `stand_ins` is scratch.
    fn word(&mut self, word: &str, stand_ins: &mut String) -> Result<(), TextError> {
        stand_ins.clear();
        for (offset, character) in word.char_indices() {
            for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
                let no_token =
                    TextError::NoTokenForByte { byte, character, offset: self.done + offset };
                stand_ins.push(self.tokenizer.byte_chars[byte as usize].ok_or(no_token)?);
            }
        }
        let tokens = self.tokenizer.bpe.tokenize(stand_ins);
        let tokens = tokens.map_err(|error| TextError::Vocabulary { reason: error.to_string() })?;
        self.ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }
}

/// End ids of the header and end markers of the vocabulary, ascending.
fn end_tokens(source: &VocabSource, kinds: &[TokenKind]) -> Vec<u32> {
    let marks = |(token, kind): (&String, &TokenKind)| {
        *kind == TokenKind::Control && END_MARKERS.contains(&token.as_str())
    };
    let known = (0u32..).zip(source.tokens.iter().zip(kinds)).filter(|&(_, pair)| marks(pair));
    let mut eos: Vec<u32> = source.eos.iter().copied().chain(known.map(|(id, _)| id)).collect();
    eos.sort_unstable();
    eos.dedup();
    eos
}

/// The tokens BPE may produce. Of two equal strings the first keeps its id.
fn text_vocabulary(tokens: &[String], kinds: &[TokenKind]) -> Vocab {
    let mut vocab = Vocab::default();
    for (id, (token, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
        if *kind == TokenKind::Text {
            vocab.entry(token.clone()).or_insert(id);
        }
    }
    vocab
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
        pair.filter(known).map(|(left, right)| (left.to_owned(), right.to_owned())).ok_or_else(
            || TextError::Vocabulary {
                reason: format!("merge {rank}, {merge:?}, does not join two tokens to a third"),
            },
        )
    };
    merges.iter().enumerate().map(pair).collect()
}

#[cfg(test)]
pub(super) mod tests;
