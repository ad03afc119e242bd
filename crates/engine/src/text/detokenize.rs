//! Token ids to text, one by one.

use super::error::TextError;
use super::tokenizer::Tokenizer;

/// Bytes to text without ever splitting a character.
///
/// The pieces together equal [`String::from_utf8_lossy`] of all bytes: one U+FFFD for each maximal beginning
/// of a character that does not go on.
#[derive(Debug, Clone, Default)]
pub(super) struct Utf8Decoder {
    /// Beginning of a character; at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl Utf8Decoder {
    /// Appends to `text` what is complete.
    pub(super) fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        loop {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    done += valid.len();
                    break;
                }
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    done += valid.len();
                    let Some(invalid) = error.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += invalid;
                }
            }
        }
        self.pending.drain(..done);
    }

    /// Appends U+FFFD for a character that did not come to its end.
    pub(super) fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Text of a token stream, as it comes. The pieces together are [`Tokenizer::decode`] of all ids, wherever
/// the stream ends.
#[derive(Debug, Clone)]
pub struct DetokenizeStream<'t> {
    tokenizer: &'t Tokenizer,
    decoder: Utf8Decoder,
    /// Whether nothing was pushed yet.
    first: bool,
    /// Whether a blank at the beginning of the next token was put there by encoding.
    drop_blank: bool,
}

impl<'t> DetokenizeStream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> DetokenizeStream<'t> {
        DetokenizeStream {
            tokenizer,
            decoder: Utf8Decoder::default(),
            first: true,
            drop_blank: false,
        }
    }

    /// Takes the next token. `None`: it completed no character.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, TextError> {
        let mut text = String::new();
        self.push_to(id, &mut text)?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Ends the stream: U+FFFD if it ended inside a character.
    pub fn finish(mut self) -> Option<String> {
        let mut text = String::new();
        self.finish_to(&mut text);
        Some(text).filter(|text| !text.is_empty())
    }

    /// Takes the next token and appends the characters it completed.
    pub(super) fn push_to(&mut self, id: u32, text: &mut String) -> Result<(), TextError> {
        let bytes = self.tokenizer.token_bytes(id)?;
        let fixed = self.tokenizer.blank_follows(id, self.first);
        // What is fixed is written as it is; of text the blank goes that is not the writer's.
        let bytes = match bytes.split_first() {
            Some((b' ', rest)) if self.drop_blank && !fixed => rest,
            _ => bytes,
        };
        self.decoder.push(bytes, text);
        self.first = false;
        self.drop_blank = fixed;
        Ok(())
    }

    pub(super) fn finish_to(&mut self, text: &mut String) {
        self.decoder.finish(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> String {
        let (mut decoder, mut text) = (Utf8Decoder::default(), String::new());
        for piece in pieces {
            decoder.push(piece, &mut text);
            assert!(decoder.pending.len() <= 3);
        }
        decoder.finish(&mut text);
        text
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let (mut decoder, mut text) = (Utf8Decoder::default(), String::new());
        for &byte in &"🚀".as_bytes()[..3] {
            decoder.push(&[byte], &mut text);
            assert_eq!(text, "");
        }
        decoder.push(&"🚀".as_bytes()[3..], &mut text);
        assert_eq!(text, "🚀");
    }

    #[test]
    fn broken_characters_become_one_replacement() {
        assert_eq!(decode(&[b"a\xF0\x9F", b"\x9A"]), "a\u{FFFD}");
        assert_eq!(decode(&[b"\xF0\x9F", b"b"]), "\u{FFFD}b");
        assert_eq!(decode(&[b"\xFF", b"\xC0\x80"]), "\u{FFFD}\u{FFFD}\u{FFFD}");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_lossy_text(
            bytes in prop::collection::vec(prop_oneof![Just(b'a'), 0x80u8..0xC0, 0xC0u8..=0xFF, Just(0xF0), Just(0x9F)], 0..24),
            size in 1usize..5,
        ) {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            prop_assert_eq!(decode(&pieces), String::from_utf8_lossy(&bytes));
        }
    }
}
