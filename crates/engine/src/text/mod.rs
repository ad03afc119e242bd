//! Text to tokens and back: tokenizer, chat template, streaming decode.
//!
//! A prompt goes through here in this order: [`text_from_bytes`] (bytes to
//! text), in chat mode [`ChatTemplate::render`], then [`Tokenizer::encode`]
//! or [`Tokenizer::encode_chat`]. Generated ids come back through
//! [`DetokenizeStream`] and [`StopMatcher`].
//!
//! Tokenizers come from GGUF files ([`VocabSource`]: byte-level BPE with each published pre-tokenizer, and
//! SentencePiece's BPE) and from the files of a model directory ([`HfTokenizerFiles`]). What a file asks for
//! and the engine does not have is refused by name: guessing would give other ids than the model was trained
//! on.
//!
//! What is promised, with the test that holds it (`tests/text_models.rs` for the real models):
//!
//! - Text from a user never becomes a control token
//!   (`user_text_never_becomes_control`); [`chat`] says how.
//! - Prompts begin with exactly one BOS if the model wants one, else with none (`bos_is_there_once`).
//! - A megabyte of anything takes well under two seconds (`a_megabyte_of_anything`): every step is linear or
//!   `n log n`, nothing recurses over text.
//! - Encoding can be cancelled ([`Tokenizer::encode_polled`]) between words (`encode_can_be_cancelled`), and in
//!   SentencePiece models within them (`a_long_document_can_be_cancelled`).
//!   While it runs it holds up to about 150 bytes per byte of the longest word, before any engine buffer
//!   exists.

mod bytelevel;
pub mod chat;
mod detokenize;
mod error;
mod gguf;
mod hf;
mod jinja;
mod markers;
mod merge;
mod pre;
mod sentencepiece;
mod stop;
mod tokenizer;
mod vocab;

pub use chat::{ChatOptions, ChatTemplate, GenerationPrompt, Message, RenderedChat};
pub use detokenize::DetokenizeStream;
pub use error::{TextError, text_from_bytes};
pub use hf::{
    HfTokenizerFiles, MAX_CHAT_TEMPLATE_BYTES, MAX_CONFIG_BYTES, MAX_TOKENIZER_JSON_BYTES,
};
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::{Poll, Specials, Tokenizer};
pub use vocab::{TokenKind, VocabSource};
