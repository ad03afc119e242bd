//! Pre-tokenizers: where text is cut into the words that BPE merges within.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of blanks gives its
//! last one to the word behind it. A lookahead needs a backtracking engine,
//! which keeps one entry per blank: a megabyte of spaces overflows its stack.
//! So the lookahead is taken out of the pattern and done here, in
//! [`Words::next`]; what is left is a regular language, and the automaton
//! that matches it is linear in time without any stack.

use super::error::TextError;
use regex::Regex;
use std::borrow::Cow;
use tokenizers::NormalizedString;

/// `\s+(?!\S)|\s+` without its lookahead; see the module documentation.
const BLANKS: &str = r"\s+";

/// GPT-2's pattern up to the blanks
/// ([source](https://github.com/openai/gpt-2/blob/master/src/encoder.py), `self.pat`).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

/// Qwen2's pattern up to the blanks
/// ([source](https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct/blob/main/tokenizer.json), `pre_tokenizer`).
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";

/// Llama 3's pattern up to the blanks: Qwen2's with up to three digits together
/// ([source](https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py), `pat_str`).
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";

/// A pre-tokenizer, as `tokenizer.ggml.pre` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PreKind {
    Gpt2,
    Smollm,
    Qwen2,
    Llama3,
}

/// Names in GGUF files, as llama.cpp's converter writes them.
const NAMES: [(&str, PreKind); 6] = [
    ("gpt-2", PreKind::Gpt2),
    ("smollm", PreKind::Smollm),
    ("qwen2", PreKind::Qwen2),
    ("llama-bpe", PreKind::Llama3),
    ("llama3", PreKind::Llama3),
    ("llama-v3", PreKind::Llama3),
];

impl PreKind {
    /// The pre-tokenizer of that name. `default`, which converters wrote when they did not know, is not one.
    pub(super) fn from_name(name: &str) -> Result<PreKind, TextError> {
        match NAMES.iter().find(|(known, _)| *known == name) {
            Some(&(_, kind)) => Ok(kind),
            None => Err(TextError::UnsupportedPre {
                pre: name.to_owned(),
                known: NAMES.map(|(known, _)| known).join(", "),
            }),
        }
    }

    /// Whether a word that is a token is that token, whatever the merges make of it. Llama 3's vocabulary
    /// has tokens that its merges do not reach.
    pub(super) fn whole_words_first(self) -> bool {
        self == PreKind::Llama3
    }

    /// Whether prompts begin with BOS when the file has no `tokenizer.ggml.add_bos_token`.
    pub(super) fn adds_bos_by_default(self) -> bool {
        self == PreKind::Llama3
    }
}

/// Normaliser and word pattern of one kind.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    kind: PreKind,
    pattern: Regex,
}

impl PreTokenizer {
    pub(super) fn new(kind: PreKind) -> PreTokenizer {
        let words = match kind {
            PreKind::Gpt2 | PreKind::Smollm => GPT2,
            PreKind::Qwen2 => QWEN2,
            PreKind::Llama3 => LLAMA3,
        };
        let pattern = Regex::new(&format!("{words}|{BLANKS}"));
        PreTokenizer {
            kind,
            pattern: pattern.unwrap_or_else(|e| panic!("a constant pattern: {e}")),
        }
    }

    /// The text in the form the vocabulary was trained on: NFC for Qwen2, as it is for the others.
    pub(super) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.kind != PreKind::Qwen2 || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        // The crate's normaliser, because its Unicode version is the one that reference ids come from.
        let mut normalized = NormalizedString::from(text);
        normalized.nfc();
        Cow::Owned(normalized.get().to_owned())
    }

    /// The words of a normalised text, in order; together they are the text.
    pub(super) fn words<'t>(&'t self, text: &'t str) -> Words<'t> {
        Words { pre: self, rest: text, section: "", at: 0 }
    }

    /// Splits off the longest beginning that the pattern is to see alone: SmolLM cuts at every digit first.
    fn section<'t>(&self, text: &'t str) -> (&'t str, &'t str) {
        if self.kind != PreKind::Smollm {
            return (text, "");
        }
        let first_len = text.chars().next().map_or(0, char::len_utf8);
        let end = match text.find(char::is_numeric) {
            Some(0) => first_len,
            Some(digit) => digit,
            None => text.len(),
        };
        text.split_at(end)
    }

    /// End of the word that begins at byte `at` of `section`.
    fn word_end(&self, section: &str, at: usize) -> usize {
        // Every character is in some alternative, so the match is there and begins at `at`.
        let end = self.pattern.find_at(section, at).map_or(section.len(), |word| word.end());
        let word = &section[at..end];
        let Some(last) = word.chars().next_back().filter(|c| c.is_whitespace()) else {
            return end;
        };
        // Only BLANKS ends in a blank, except that line ends may close other words where the pattern has
        // them apart; a run that BLANKS matched has none there, or `\s*[\r\n]+` had come first.
        let line_ends_apart = matches!(self.kind, PreKind::Qwen2 | PreKind::Llama3);
        let lookahead_holds = end == section.len();
        let last_start = end - last.len_utf8();
        if (line_ends_apart && matches!(last, '\r' | '\n')) || lookahead_holds || last_start == at {
            return end;
        }
        last_start
    }
}

/// Iterator over the words of a text.
pub(super) struct Words<'t> {
    pre: &'t PreTokenizer,
    /// What comes after the section.
    rest: &'t str,
    section: &'t str,
    at: usize,
}

impl<'t> Iterator for Words<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        if self.at == self.section.len() {
            if self.rest.is_empty() {
                return None;
            }
            (self.section, self.rest) = self.pre.section(self.rest);
            self.at = 0;
        }
        let start = self.at;
        self.at = self.pre.word_end(self.section, start);
        Some(&self.section[start..self.at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    const KINDS: [PreKind; 4] = [PreKind::Gpt2, PreKind::Smollm, PreKind::Qwen2, PreKind::Llama3];

    fn words(kind: PreKind, text: &str) -> Vec<String> {
        static COMPILED: LazyLock<[PreTokenizer; 4]> =
            LazyLock::new(|| KINDS.map(PreTokenizer::new));
        COMPILED[kind as usize].words(text).map(str::to_owned).collect()
    }

    /// The published pattern, lookahead included, in a backtracking engine; digits first for SmolLM.
    fn words_by_lookahead(kind: PreKind, text: &str) -> Vec<String> {
        static COMPILED: LazyLock<[fancy_regex::Regex; 4]> = LazyLock::new(|| {
            [GPT2, GPT2, QWEN2, LLAMA3]
                .map(|head| fancy_regex::Regex::new(&format!(r"{head}|\s+(?!\S)|\s+")).unwrap())
        });
        let mut sections = vec![String::new()];
        for c in text.chars() {
            if kind == PreKind::Smollm && c.is_numeric() {
                sections.extend([c.to_string(), String::new()]);
            } else {
                sections.last_mut().unwrap().push(c);
            }
        }
        let found = &COMPILED[kind as usize];
        sections
            .iter()
            .flat_map(|section| found.find_iter(section))
            .map(|m| m.unwrap().as_str().to_owned())
            .collect()
    }

    #[test]
    fn blanks_give_their_last_to_the_word_behind() {
        assert_eq!(words(PreKind::Gpt2, "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words(PreKind::Gpt2, "a\n\n\tb"), ["a", "\n\n", "\t", "b"]);
        assert_eq!(words(PreKind::Qwen2, "a \n \n  b."), ["a", " \n \n", " ", " b", "."]);
        assert_eq!(words(PreKind::Qwen2, "x = {\n\n"), ["x", " =", " {\n\n"]);
    }

    #[test]
    fn digits_group_by_kind() {
        assert_eq!(words(PreKind::Gpt2, " 1234"), [" 1234"]);
        assert_eq!(words(PreKind::Smollm, "a  12"), ["a", "  ", "1", "2"]);
        assert_eq!(words(PreKind::Qwen2, "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words(PreKind::Llama3, "12345"), ["123", "45"]);
    }

    #[test]
    fn nfc_is_qwens_only() {
        for kind in KINDS {
            let expected = if kind == PreKind::Qwen2 { "\u{e9}" } else { "e\u{301}" };
            let pre = PreTokenizer::new(kind);
            assert_eq!(pre.normalize("e\u{301}"), expected, "{kind:?}");
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_known() {
        assert_eq!(PreKind::from_name("llama-v3").unwrap(), PreKind::Llama3);
        let message = PreKind::from_name("default").unwrap_err().to_string();
        assert!(
            message.starts_with(
                "pre-tokenizer `default` is not supported (supported: gpt-2, smollm, qwen2,"
            ),
            "{message}"
        );
    }

    #[test]
    fn every_character_alone_is_cut_as_published() {
        for kind in KINDS {
            // Both engines have the same character tables: blanks and the scripts in use are enough.
            let dense =
                |c: &char| c.is_whitespace() || u32::from(*c) < 0x3100 || u32::from(*c) % 61 == 0;
            for c in ('\0'..=char::MAX).filter(dense) {
                let text = format!("a{c}{c}b");
                assert_eq!(words(kind, &text), words_by_lookahead(kind, &text), "{kind:?} {c:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn words_are_those_of_the_published_pattern(text in r"([ \t\r\n\u{a0}\u{3000}]{0,3}[a-bé日'’sS1२.<_-]{0,2}){0,12}") {
            for kind in KINDS {
                let ours = words(kind, &text);
                prop_assert_eq!(ours.concat(), text.as_str());
                prop_assert_eq!(ours, words_by_lookahead(kind, &text));
            }
        }
    }
}
