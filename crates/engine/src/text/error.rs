//! What can go wrong between text and token ids, with the numbers.

use tidekv_format::FormatError;

/// Errors of tokenizer, chat template and detokenizer. A model without a usable tokenizer still reads and
/// answers token ids, one without a usable template still continues text; who calls knows whether that helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A metadata value has the wrong type.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Metadata the tokenizer cannot be built without.
    #[error("the model file has no `{key}`, so its text cannot be tokenized")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
    },
    /// A tokenizer family the engine does not have.
    #[error(
        "tokenizer model `{model}` is not supported (supported: byte-level BPE, called gpt2 in GGUF files, and SentencePiece's BPE, called llama or gemma4)"
    )]
    UnsupportedModel {
        /// `tokenizer.ggml.model`, or `model.type` of `tokenizer.json`.
        model: String,
    },
    /// A pre-tokenizer the engine does not have. Guessing one would give other ids than the model was trained on.
    #[error("pre-tokenizer `{pre}` is not supported (supported: {known})")]
    UnsupportedPre {
        /// `tokenizer.ggml.pre`.
        pre: String,
        /// The supported ones.
        known: String,
    },
    /// A part of `tokenizer.json` the engine does not have. Leaving it out would give other ids than the model
    /// was trained on.
    #[error("the `{part}` of tokenizer.json has {what}, which is not supported")]
    UnsupportedPart {
        /// `normalizer`, `pre_tokenizer` or `model`.
        part: &'static str,
        /// What it has.
        what: String,
    },
    /// A file of a model directory that cannot be what it should be.
    #[error("{file} of the model directory is damaged: {problem}; fetch it again")]
    File {
        /// Its name.
        file: &'static str,
        /// What is wrong, with the numbers.
        problem: String,
    },
    /// A vocabulary that contradicts itself.
    #[error("the model's vocabulary is damaged: {reason}; fetch the model again")]
    Vocabulary {
        /// What contradicts what, with the numbers.
        reason: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab} tokens")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Number of tokens.
        vocab: usize,
    },
    /// Text the vocabulary has no tokens for.
    #[error(
        "the model's vocabulary has no token for byte {byte:#04x} of the character {character:?} at byte {offset} of the text; remove the character"
    )]
    NoTokenForByte {
        /// The byte.
        byte: u8,
        /// The character it belongs to.
        character: char,
        /// Byte offset of the character in the (normalised, in chat mode rendered) text.
        offset: usize,
    },
    /// Bytes that are not text.
    #[error(
        "the text is not valid UTF-8: {problem} at byte {offset} of {len}; convert it to UTF-8 first"
    )]
    InvalidUtf8 {
        /// What is wrong there.
        problem: &'static str,
        /// Offset of the first wrong byte.
        offset: usize,
        /// Length of the text in bytes.
        len: usize,
    },
    /// A model without a chat template.
    #[error("the model has no chat template")]
    NoChatTemplate,
    /// A template that does not compile or fails.
    #[error("the model's chat template fails{}: {problem}", .line.map(|l| format!(" at line {l}")).unwrap_or_default())]
    Template {
        /// What is wrong.
        problem: String,
        /// Line of the template.
        line: Option<usize>,
    },
    /// The template called `raise_exception`: it does not take such messages.
    #[error("the model's chat template refuses these messages: {reason}")]
    TemplateRefused {
        /// The template's words.
        reason: String,
    },
    /// A template that does not say all that it was given.
    #[error(
        "the model's chat template leaves out text of message {number} (role {role}), which the model \
         would then not read", number = index + 1
    )]
    MessageLeftOut {
        /// Index of the message.
        index: usize,
        /// Its role.
        role: String,
    },
    /// A role that is not a plain name. Templates paste roles into control tokens.
    #[error(
        "the role {role:?} of message {index} is not a name of ASCII letters, digits, `_` and `-`"
    )]
    BadRole {
        /// The role.
        role: String,
        /// Index of the message.
        index: usize,
    },
    /// No code point is left to mark message text with.
    #[error(
        "the messages use all 32 noncharacters U+FDD0 to U+FDEF, which text must not contain; remove one"
    )]
    NoncharactersUsedUp,
    /// A stop string without characters would stop before the first token.
    #[error("stop string {index} is empty; give at least one character")]
    EmptyStopString {
        /// Its place in the list.
        index: usize,
    },
    /// The caller asked to stop.
    #[error("cancelled after {bytes} bytes of text were tokenized")]
    Cancelled {
        /// Bytes done.
        bytes: usize,
    },
}

impl TextError {
    /// Whether the model's vocabulary or its files are damaged, rather than missing or not supported.
    pub fn is_damage(&self) -> bool {
        matches!(self, TextError::Format(_) | TextError::File { .. } | TextError::Vocabulary { .. })
    }
}

/// `bytes` as text, or where it stops being UTF-8.
///
/// A byte order mark is not removed: it is part of the text.
///
/// # Errors
/// [`TextError::InvalidUtf8`] with the offset.
pub fn text_from_bytes(bytes: &[u8]) -> Result<&str, TextError> {
    std::str::from_utf8(bytes).map_err(|error| TextError::InvalidUtf8 {
        problem: if error.error_len().is_some() {
            "an invalid sequence"
        } else {
            "an incomplete character"
        },
        offset: error.valid_up_to(),
        len: bytes.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_utf8_names_the_offset() {
        assert_eq!(text_from_bytes("naïve".as_bytes()).unwrap(), "naïve");
        let message = |bytes: &[u8]| text_from_bytes(bytes).unwrap_err().to_string();
        assert_eq!(
            message(b"abc\xffdef"),
            "the text is not valid UTF-8: an invalid sequence at byte 3 of 7; convert it to UTF-8 first"
        );
        assert!(
            message("日本".as_bytes().split_last().unwrap().1)
                .contains("incomplete character at byte 3 of 5")
        );
    }

    #[test]
    fn template_error_names_the_line_only_if_known() {
        let error = |line| TextError::Template { problem: "p".into(), line }.to_string();
        assert_eq!(error(Some(7)), "the model's chat template fails at line 7: p");
        assert_eq!(error(None), "the model's chat template fails: p");
    }
}
