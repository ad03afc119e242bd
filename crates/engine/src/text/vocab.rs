//! The vocabulary as a GGUF file describes it, and what each token stands for.

use super::error::TextError;
use super::sentencepiece::BLANK;
use crate::report::counted;
use std::collections::HashMap;
use tidekv_format::Metadata;

/// The tokenizer part of a GGUF header
/// ([specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer)), plain data.
///
/// `tokenizer.ggml.add_eos_token` is not here on purpose: an end marker after
/// the prompt would end the text the model is asked to continue.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VocabSource {
    /// `tokenizer.ggml.model`: the family. `gpt2` is byte-level BPE, `llama` SentencePiece's BPE with scores,
    /// `gemma4` the same with merges.
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of byte-level BPE.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`; the index is the id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, one per token; see [`TokenKind`].
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: "left right", best first. Not in `llama` vocabularies.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores` of `llama` vocabularies, one per token: the higher, the earlier it is merged.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`, then `eot_token_id` and `eom_token_id` where present.
    pub eos: Vec<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`: whether `llama` text gets a blank in front; it does if this is `None`.
    pub add_space_prefix: Option<bool>,
    /// Whether control and user-defined tokens swallow the blanks behind them. No key says so: Phi-3's do, in
    /// its `tokenizer.json` (`rstrip`), and `general.architecture` tells which files are of its kind.
    pub markers_strip_right: bool,
    /// `tokenizer.chat_template`, Jinja.
    pub chat_template: Option<String>,
}

impl VocabSource {
    /// Reads the tokenizer keys. The checks against each other are [`super::Tokenizer::new`]'s.
    ///
    /// # Errors
    /// A key that is missing or of another type, or a kind of vocabulary that is not known.
    pub fn from_metadata(metadata: &Metadata) -> Result<VocabSource, TextError> {
        fn required<T>(value: Option<T>, key: &'static str) -> Result<T, TextError> {
            value.ok_or(TextError::MissingKey { key })
        }
        const MODEL: &str = "tokenizer.ggml.model";
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const TYPES: &str = "tokenizer.ggml.token_type";
        const MERGES: &str = "tokenizer.ggml.merges";
        const SCORES: &str = "tokenizer.ggml.scores";

        // The family comes first: it says which of merges and scores must be there.
        let model = required(metadata.str(MODEL)?, MODEL)?.to_owned();
        let family = Family::of(&model)?;
        let scored = family == Family::SentencePiece;
        let (merges, scores) = if scored {
            (Vec::new(), required(metadata.f32s(SCORES)?, SCORES)?.to_vec())
        } else {
            (required(metadata.strings(MERGES)?, MERGES)?.to_vec(), Vec::new())
        };
        let architecture = metadata.str("general.architecture")?;
        let mut eos = Vec::new();
        for key in [
            "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.eot_token_id",
            "tokenizer.ggml.eom_token_id",
        ] {
            eos.extend(metadata.u32(key)?);
        }
        Ok(VocabSource {
            model,
            pre: metadata.str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: required(metadata.strings(TOKENS)?, TOKENS)?.to_vec(),
            token_types: required(metadata.i32s(TYPES)?, TYPES)?.to_vec(),
            merges,
            scores,
            bos: metadata.u32("tokenizer.ggml.bos_token_id")?,
            eos,
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
            markers_strip_right: scored && architecture == Some("phi3"),
            chat_template: metadata.str("tokenizer.chat_template")?.map(str::to_owned),
        })
    }

    /// Types of all tokens, after the checks of everything that is an id or goes by the id.
    pub(super) fn kinds(&self) -> Result<Vec<TokenKind>, TextError> {
        let vocab = self.tokens.len();
        if self.token_types.len() != vocab {
            let types = counted(self.token_types.len(), "token type");
            let reason = format!("{}, but {types}", counted(vocab, "token"));
            return Err(TextError::Vocabulary { reason });
        }
        let begin = self.bos.iter().map(|id| ("BOS", id));
        let mut markers = begin.chain(self.eos.iter().map(|id| ("EOS", id)));
        if let Some((marker, id)) = markers.find(|&(_, &id)| id as usize >= vocab) {
            let tokens = counted(vocab, "token");
            let reason = format!("its {marker} token has the id {id}, and there are {tokens}");
            return Err(TextError::Vocabulary { reason });
        }
        let kind = |(id, &code): (usize, &i32)| {
            TokenKind::from_code(code).ok_or_else(|| TextError::Vocabulary {
                reason: format!("token {id} has the unknown type {code}"),
            })
        };
        self.token_types.iter().enumerate().map(kind).collect()
    }
}

/// The families of `tokenizer.ggml.model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// `gpt2`.
    ByteLevel,
    /// `llama`.
    SentencePiece,
    /// `gemma4`: SentencePiece's text, but merges in place of scores.
    MergedPieces,
}

impl Family {
    /// The family of that name; others are refused by name.
    pub(super) fn of(model: &str) -> Result<Family, TextError> {
        Ok(match model {
            "gpt2" => Family::ByteLevel,
            "llama" => Family::SentencePiece,
            "gemma4" => Family::MergedPieces,
            other => return Err(TextError::UnsupportedModel { model: other.to_owned() }),
        })
    }
}

/// What a token is for: the codes of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text, reached by merges (code 1), or a single byte (code 6).
    Text,
    /// Structure: turn markers, BOS, EOS (code 3; also 2, the unknown token). Never part of decoded text,
    /// and text becomes one only through [`super::Specials::Recognize`] or the template.
    Control,
    /// A fixed string that is always one token, such as `<tool_call>` (code 4). Text both ways.
    UserDefined,
    /// Padding of the embedding table (code 5). Stands for nothing.
    Unused,
}

impl TokenKind {
    fn from_code(code: i32) -> Option<TokenKind> {
        Some(match code {
            1 | 6 => TokenKind::Text,
            2 | 3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            _ => return None,
        })
    }
}

/// GPT-2's stand-ins for bytes in token strings: printable Latin-1 characters for themselves, the others for
/// the code points from U+0100 in order
/// ([source](https://github.com/openai/gpt-2/blob/master/src/encoder.py), `bytes_to_unicode`).
pub(super) fn byte_chars() -> [char; 256] {
    let mut next_stand_in = '\u{100}'..;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => next_stand_in.next().unwrap_or_else(|| unreachable!("the range has no end")),
        }
    })
}

/// How the text tokens of a vocabulary write what they stand for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Spelling<'v> {
    /// [`byte_chars`].
    ByteLevel,
    /// `▁` for a blank, and a token for each single byte.
    SentencePiece(&'v [Option<u32>; 256]),
}

/// The bytes that each token adds to the text: `bytes[ends[id - 1]..ends[id]]`.
#[derive(Debug, Clone)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenBytes {
    pub(super) fn new(
        tokens: &[String],
        kinds: &[TokenKind],
        spelling: Spelling<'_>,
    ) -> TokenBytes {
        let mut table = TokenBytes { bytes: Vec::new(), ends: Vec::with_capacity(tokens.len()) };
        match spelling {
            Spelling::ByteLevel => {
                let byte_of: HashMap<char, u8> = byte_chars().into_iter().zip(0u8..=255).collect();
                for (token, kind) in tokens.iter().zip(kinds) {
                    let bytes: Option<Vec<u8>> =
                        token.chars().map(|c| byte_of.get(&c).copied()).collect();
                    // A token with a character that stands for no byte can only be meant literally.
                    let literal = *kind == TokenKind::UserDefined;
                    table.push(*kind, &bytes.filter(|_| !literal).unwrap_or(token.clone().into()));
                }
            }
            Spelling::SentencePiece(byte_tokens) => {
                let bytes = byte_tokens.iter().zip(0u8..=255);
                let byte_of: HashMap<u32, u8> =
                    bytes.filter_map(|(id, byte)| id.map(|id| (id, byte))).collect();
                for (id, (token, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
                    match byte_of.get(&id) {
                        Some(&byte) => table.push(*kind, &[byte]),
                        None => table.push(*kind, token.replace(BLANK, " ").as_bytes()),
                    }
                }
            }
        }
        table
    }

    /// Adds the next token, which writes these bytes if it is text.
    fn push(&mut self, kind: TokenKind, bytes: &[u8]) {
        match kind {
            TokenKind::Control | TokenKind::Unused => {}
            TokenKind::UserDefined | TokenKind::Text => self.bytes.extend_from_slice(bytes),
        }
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> Result<&[u8], TextError> {
        let index = id as usize;
        let out_of_range = TextError::TokenOutOfRange { id, vocab: self.len() };
        let &end = self.ends.get(index).ok_or(out_of_range)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Ok(&self.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_chars_are_gpt2s() {
        let chars = byte_chars();
        // Known from every GPT-2 vocabulary: Ġ is the space, Ċ the newline, ĉ the tab.
        assert_eq!((chars[0x20], chars[0x0A], chars[0x09]), ('Ġ', 'Ċ', 'ĉ'));
        assert_eq!(
            (chars[b'a' as usize], chars[0xC3], chars[0xAD], chars[0x7F]),
            ('a', 'Ã', 'Ń', 'ġ')
        );
        let distinct: std::collections::HashSet<char> = chars.into_iter().collect();
        assert_eq!(distinct.len(), 256);
    }

    #[test]
    fn tokens_stand_for_bytes_by_their_kind() {
        let tokens = ["Ġé", "Ã©", "é", "<ctl>", "日本", "[PAD]", "日"].map(str::to_owned);
        use TokenKind::*;
        let kinds = [Text, Text, UserDefined, Control, UserDefined, Unused, Text];
        let table = TokenBytes::new(&tokens, &kinds, Spelling::ByteLevel);
        let get = |id| table.get(id).unwrap();
        assert_eq!(get(0), [0x20, 0xE9]);
        assert_eq!(get(1), "é".as_bytes());
        assert_eq!(get(2), "é".as_bytes());
        assert_eq!(get(3), b"");
        assert_eq!(get(4), "日本".as_bytes());
        assert_eq!(get(5), b"");
        assert_eq!(get(6), "日".as_bytes());
        assert!(matches!(table.get(7), Err(TextError::TokenOutOfRange { id: 7, vocab: 7 })));
    }

    #[test]
    fn pieces_stand_for_blanks_and_bytes() {
        let tokens = ["▁a", "<0xE9>", "<0xE9>", "▁▁", "</s>"].map(str::to_owned);
        use TokenKind::*;
        let mut byte_tokens = [None; 256];
        byte_tokens[0xE9] = Some(1);
        let kinds = [Text, Text, UserDefined, UserDefined, Control];
        let table = TokenBytes::new(&tokens, &kinds, Spelling::SentencePiece(&byte_tokens));
        let get = |id| table.get(id).unwrap();
        assert_eq!((get(0), get(1), get(2)), (&b" a"[..], &[0xE9][..], &b"<0xE9>"[..]));
        assert_eq!((get(3), get(4)), (&b"  "[..], &b""[..]));
    }

    #[test]
    fn contradictions_are_named() {
        let source = VocabSource {
            tokens: vec!["a".into(), "b".into()],
            token_types: vec![1, 1],
            ..VocabSource::default()
        };
        assert_eq!(source.kinds().unwrap(), [TokenKind::Text; 2]);
        let error = |source: VocabSource| source.kinds().unwrap_err().to_string();
        assert!(
            error(VocabSource { token_types: vec![1], ..source.clone() })
                .ends_with("2 tokens, but 1 token type; fetch the model again")
        );
        assert!(
            error(VocabSource { token_types: vec![1, 9], ..source.clone() })
                .contains("token 1 has the unknown type 9")
        );
        assert!(
            error(VocabSource { eos: vec![0, 2], ..source.clone() })
                .contains("its EOS token has the id 2, and there are 2 tokens")
        );
        assert!(
            error(VocabSource { bos: Some(5), ..source }).contains("its BOS token has the id 5")
        );
    }
}
