//! Text to token ids and back.
//!
//! Text becomes ids in four steps: fixed strings are cut out (control tokens
//! only where the caller wants them), the rest is normalised, cut into words
//! ([`super::bytelevel`]) or runs ([`super::sentencepiece`]), and each of
//! these is merged by rank.
//!
//! Control tokens are not in the vocabulary that merging sees. Whatever a
//! text says, merging cannot produce one.

use super::bytelevel::ByteLevel;
use super::chat::{ChatTemplate, RenderedChat};
use super::detokenize::DetokenizeStream;
use super::error::TextError;
use super::gguf;
use super::hf::{self, HfTokenizerFiles};
use super::markers::{Markers, Piece};
use super::sentencepiece::{BLANK, Place, SentencePiece, SpacePrefix};
use super::vocab::{Spelling, TokenBytes, TokenKind, VocabSource};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Control tokens that end a turn or a text. A model stops at each of them that its vocabulary has, besides
/// the ones its header names: headers name one, and chat models use two.
const END_MARKERS: [&str; 11] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|END_OF_TURN_TOKEN|>",
    "[|endofturn|]",
    "<end_of_turn>",
    "<turn|>",
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

/// What text without fixed strings is encoded by.
#[derive(Debug)]
pub(super) enum TextModel {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
}

/// Blanks of the text around a fixed string that belong to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) left: bool,
    pub(super) right: bool,
}

/// What a tokenizer is made of, whatever file it comes from.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) model: TextModel,
    /// Tokens as the vocabulary writes them; the index is the id.
    pub(super) tokens: Vec<String>,
    /// One per token.
    pub(super) kinds: Vec<TokenKind>,
    /// Tokens of single bytes, in SentencePiece models.
    pub(super) byte_tokens: Option<[Option<u32>; 256]>,
    /// Fixed strings that take blanks of the text with them.
    pub(super) strips: HashMap<u32, Strip>,
    /// What templates see as `bos_token`.
    pub(super) bos: Option<u32>,
    /// What every prompt begins with.
    pub(super) prompt_bos: Option<u32>,
    /// Ends of generation, ascending.
    pub(super) eos: Vec<u32>,
    /// What templates see as `eos_token`.
    pub(super) first_eos: Option<u32>,
    /// Jinja.
    pub(super) chat_template: Option<String>,
}

/// A model's tokenizer. Immutable: share it by reference between threads.
#[derive(Debug)]
pub struct Tokenizer {
    parts: Parts,
    /// Control and user-defined tokens.
    specials: Markers,
    user_defined: Markers,
    token_bytes: TokenBytes,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file and checks the vocabulary against itself.
    ///
    /// # Errors
    /// A vocabulary that contradicts itself, or asks for what the engine does not have.
    pub fn new(source: VocabSource) -> Result<Tokenizer, TextError> {
        Tokenizer::from_parts(gguf::parts(source)?)
    }

    /// Builds the tokenizer of a model directory; see [`HfTokenizerFiles`].
    ///
    /// # Errors
    /// Files that cannot be read or are too large, and as [`Tokenizer::new`].
    pub fn from_hf(files: &HfTokenizerFiles) -> Result<Tokenizer, TextError> {
        Tokenizer::from_parts(hf::parts(files)?)
    }

    fn from_parts(parts: Parts) -> Result<Tokenizer, TextError> {
        let spelling = match &parts.byte_tokens {
            None => Spelling::ByteLevel,
            Some(byte_tokens) => Spelling::SentencePiece(byte_tokens),
        };
        // In text a piece's blank is a space.
        let in_text = |token| match spelling {
            Spelling::ByteLevel => Cow::Borrowed(token),
            Spelling::SentencePiece(_) => unblanked(token),
        };
        let texts: Vec<Cow<'_, str>> = parts.tokens.iter().map(|token| in_text(token)).collect();
        let wanted = [TokenKind::Control, TokenKind::UserDefined];
        Ok(Tokenizer {
            specials: Markers::new(&texts, &parts.kinds, &wanted)?,
            user_defined: Markers::new(&texts, &parts.kinds, &wanted[1..])?,
            token_bytes: TokenBytes::new(&parts.tokens, &parts.kinds, spelling),
            parts,
        })
    }

    /// Number of tokens. A model's embedding table may have more rows.
    pub fn vocab_len(&self) -> usize {
        self.parts.kinds.len()
    }

    /// Ids that end generation, ascending: those of the header and every known end marker of the vocabulary.
    pub fn eos(&self) -> &[u32] {
        &self.parts.eos
    }

    /// Whether generation ends with this token.
    pub fn is_eos(&self, id: u32) -> bool {
        self.parts.eos.binary_search(&id).is_ok()
    }

    /// The token that prompts begin with, for models that want one.
    pub fn prompt_bos(&self) -> Option<u32> {
        self.parts.prompt_bos
    }

    /// What a token is for.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn kind(&self, id: u32) -> Result<TokenKind, TextError> {
        let vocab = self.vocab_len();
        self.parts.kinds.get(id as usize).copied().ok_or(TextError::TokenOutOfRange { id, vocab })
    }

    /// A token as the vocabulary writes it (`Ġthe`, `<|im_end|>`): for inspection, not text.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn token(&self, id: u32) -> Result<&str, TextError> {
        let vocab = self.vocab_len();
        self.parts
            .tokens
            .get(id as usize)
            .map(String::as_str)
            .ok_or(TextError::TokenOutOfRange { id, vocab })
    }

    /// The bytes a token adds to the text: none for control tokens, perhaps part of a character.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        self.token_bytes.get(id)
    }

    /// Ids of a whole prompt, with BOS in front if the model wants one and the text does not begin with it.
    ///
    /// User-defined tokens are recognised in both modes, as in the models' training; they are text.
    ///
    /// # Errors
    /// A byte that the vocabulary has no token for.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        self.encode_polled(text, specials, &mut || ControlFlow::Continue(()))
    }

    /// [`Tokenizer::encode`] that can be cancelled: between words, and in SentencePiece models between merges.
    /// The longest pause is one word without a border of a byte-level model: about a second per megabyte.
    ///
    /// # Errors
    /// [`TextError::Cancelled`] with the bytes done, and as [`Tokenizer::encode`].
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

    /// Ids of text that follows other tokens: never a BOS, and no blank in front that the text does not have.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_continuation(
        &self,
        text: &str,
        specials: Specials,
    ) -> Result<Vec<u32>, TextError> {
        let mut never = || ControlFlow::Continue(());
        let mut encoding = Encoding::new(self, &mut never);
        encoding.place = Place { fresh: false, first: false };
        encoding.text(text, specials)?;
        Ok(encoding.ids)
    }

    /// The model's chat template, compiled.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`], or a source that is no template.
    pub fn chat_template(&self) -> Result<ChatTemplate, TextError> {
        let Parts { tokens, kinds, bos, first_eos, chat_template, .. } = &self.parts;
        let text_of = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).cloned();
        let source = chat_template.clone().ok_or(TextError::NoChatTemplate)?;
        let controls = tokens.iter().zip(kinds).filter(|(_, kind)| **kind == TokenKind::Control);
        ChatTemplate::new(source, controls.map(|(token, _)| token.as_str()))
            .map(|template| template.with_markers(text_of(*bos), text_of(*first_eos)))
    }

    /// Ids of a rendered chat. The template's markers become control tokens, the messages' characters never
    /// do; for messages that contain no marker the ids are those of
    /// `encode(chat.text(), Specials::Recognize)`.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<u32>, TextError> {
        self.encode_chat_polled(chat, &mut || ControlFlow::Continue(()))
    }

    /// [`Tokenizer::encode_chat`] that can be cancelled; see [`Tokenizer::encode_polled`].
    ///
    /// # Errors
    /// As [`Tokenizer::encode_polled`].
    pub fn encode_chat_polled(
        &self,
        chat: &RenderedChat,
        poll: Poll<'_>,
    ) -> Result<Vec<u32>, TextError> {
        let mut encoding = Encoding::new(self, poll);
        let mut pieces = self.specials.pieces(chat.guarded()).peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                // A border where the guard stood is none: the text around it is encoded as one.
                Piece::Plain(guarded) => {
                    let text = chat.unguarded(guarded);
                    encoding.text(encoding.stripped(&text, pieces.peek()), Specials::AsText)?;
                }
                Piece::Marker(id) => encoding.marker(id),
            }
        }
        Ok(self.with_bos(encoding.ids))
    }

    /// The text of the ids. Control tokens add nothing; bytes that are not UTF-8 become U+FFFD, as
    /// [`String::from_utf8_lossy`] does it. The blank that SentencePiece models put in front of text is taken
    /// away where encoding puts it: behind BOS and other fixed strings.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        let mut stream = self.detokenize_stream();
        let mut text = String::new();
        for &id in ids {
            stream.push_to(id, &mut text)?;
        }
        stream.finish_to(&mut text);
        Ok(text)
    }

    /// A decoder for tokens that come one by one. Its pieces together are [`Tokenizer::decode`]'s text.
    pub fn detokenize_stream(&self) -> DetokenizeStream<'_> {
        DetokenizeStream::new(self)
    }

    /// Whether the text behind this token begins with a blank that encoding put there; `first` is whether
    /// nothing stands before the token.
    pub(super) fn blank_follows(&self, id: u32, first: bool) -> bool {
        let TextModel::SentencePiece(model) = &self.parts.model else { return false };
        let kind = self.parts.kinds.get(id as usize);
        let fixed = matches!(kind, Some(TokenKind::Control | TokenKind::UserDefined));
        fixed
            && match model.space_prefix() {
                SpacePrefix::Never => false,
                SpacePrefix::First => first,
                SpacePrefix::SectionsWithout | SpacePrefix::Sections => true,
            }
    }

    /// Blanks that belong to a fixed string.
    fn strip(&self, id: u32) -> Strip {
        self.parts.strips.get(&id).copied().unwrap_or_default()
    }

    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.parts.prompt_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }
}

/// A token with blanks for `▁`.
fn unblanked(token: &str) -> Cow<'_, str> {
    if token.contains(BLANK) { Cow::Owned(token.replace(BLANK, " ")) } else { Cow::Borrowed(token) }
}

/// One call of encode: the ids so far, and when to poll.
struct Encoding<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    poll: Poll<'a>,
    /// What is in front of the text to come.
    place: Place,
    /// Whether the last token takes the blanks behind it.
    strip: bool,
    /// Bytes of text done, and done when it was last polled.
    done: usize,
    polled: usize,
}

impl<'a> Encoding<'a> {
    fn new(tokenizer: &'a Tokenizer, poll: Poll<'a>) -> Encoding<'a> {
        let place = Place { fresh: true, first: true };
        Encoding { tokenizer, ids: Vec::new(), poll, place, strip: false, done: 0, polled: 0 }
    }

    fn text(&mut self, text: &str, specials: Specials) -> Result<(), TextError> {
        let markers = match specials {
            Specials::AsText => &self.tokenizer.user_defined,
            Specials::Recognize => &self.tokenizer.specials,
        };
        let mut pieces = markers.pieces(text).peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Plain(plain) => self.plain(self.stripped(plain, pieces.peek()))?,
                Piece::Marker(id) => self.marker(id),
            }
        }
        Ok(())
    }

    /// `text` without the blanks that belong to the fixed strings around it.
    fn stripped<'t>(&self, text: &'t str, next: Option<&Piece<'_>>) -> &'t str {
        let text = if self.strip { text.trim_start() } else { text };
        match next {
            Some(Piece::Marker(id)) if self.tokenizer.strip(*id).left => text.trim_end(),
            _ => text,
        }
    }

    fn marker(&mut self, id: u32) {
        self.ids.push(id);
        self.done += self.tokenizer.parts.tokens.get(id as usize).map_or(0, String::len);
        self.place = Place { fresh: true, first: false };
        self.strip = self.tokenizer.strip(id).right;
    }

    /// Appends the ids of text without fixed strings.
    fn plain(&mut self, text: &str) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.tokenizer.parts.model {
            TextModel::ByteLevel(model) => self.words(model, text),
            TextModel::SentencePiece(model) => self.runs(model, text),
        }?;
        self.place = Place { fresh: false, first: false };
        self.strip = false;
        Ok(())
    }

    fn words(&mut self, model: &ByteLevel, text: &str) -> Result<(), TextError> {
        let text = model.pre().normalize(text);
        let mut seen = Seen::default();
        let mut stand_ins = String::new();
        model.pre().words(&text, &mut |word| {
            if !seen.repeat(word, &mut self.ids) {
                let start = self.ids.len();
                model.encode_word(word, self.done, &mut stand_ins, &mut self.ids)?;
                seen.remember(word, start..self.ids.len());
            }
            self.advance(word.len())
        })
    }

    fn runs(&mut self, model: &SentencePiece, text: &str) -> Result<(), TextError> {
        let written = model.written(text, self.place);
        let mut seen = Seen::default();
        model.runs(&written, &mut |run| {
            if !seen.repeat(run, &mut self.ids) {
                let start = self.ids.len();
                model.encode_run(run, self.done, &mut self.poll, &mut self.ids)?;
                seen.remember(run, start..self.ids.len());
            }
            self.advance(run.len())
        })
    }

    /// Counts text that is done, and polls once in a while.
    fn advance(&mut self, bytes: usize) -> Result<(), TextError> {
        self.done += bytes;
        if self.done - self.polled >= POLL_BYTES {
            self.polled = self.done;
            if (self.poll)().is_break() {
                return Err(TextError::Cancelled { bytes: self.done });
            }
        }
        Ok(())
    }
}

/// Where the ids of a word are that was seen before. Lives as long as the text its keys are from.
#[derive(Default)]
struct Seen<'t> {
    ids_of: HashMap<&'t str, std::ops::Range<usize>>,
}

impl<'t> Seen<'t> {
    /// Appends the ids of a word that was seen; whether it was.
    fn repeat(&self, word: &str, ids: &mut Vec<u32>) -> bool {
        self.ids_of.get(word).map(|known| ids.extend_from_within(known.clone())).is_some()
    }

    fn remember(&mut self, word: &'t str, ids: std::ops::Range<usize>) {
        if word.len() <= REMEMBERED_WORD_BYTES {
            self.ids_of.insert(word, ids);
        }
    }
}

/// End ids that the file names and end markers of the vocabulary, ascending.
pub(super) fn end_tokens(named: &[u32], tokens: &[String], kinds: &[TokenKind]) -> Vec<u32> {
    let marks = |(token, kind): (&String, &TokenKind)| {
        *kind == TokenKind::Control && END_MARKERS.contains(&token.as_str())
    };
    let known = (0u32..).zip(tokens.iter().zip(kinds)).filter(|&(_, pair)| marks(pair));
    let mut eos: Vec<u32> = named.iter().copied().chain(known.map(|(id, _)| id)).collect();
    eos.sort_unstable();
    eos.dedup();
    eos
}

#[cfg(test)]
pub(super) mod tests;
