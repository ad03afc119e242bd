//! Pre-tokenizers: where text is cut into the words that BPE merges within.
//!
//! Most published patterns end in `\s+(?!\S)|\s+`: a run of blanks gives its
//! last one to the word behind it. A lookahead needs a backtracking engine,
//! which keeps one entry per blank: a megabyte of spaces overflows its stack.
//! So the lookahead is taken out of the pattern and done here, in
//! [`Stage::word_end`]; what is left is a regular language, and the automaton
//! that matches it is linear in time without any stack.
//!
//! Some families cut more than once: each [`Stage`] sees the pieces of the
//! stage before, one by one, and what its pattern does not match stays a
//! piece of its own.

use super::error::TextError;
use regex::Regex;
use std::borrow::Cow;
use tokenizers::NormalizedString;

pub(super) mod table;

/// The published endings, from which the lookahead is taken. Without `|\s+` a single blank is left over by
/// the pattern, which makes the same piece of it.
const LOOKAHEADS: [&str; 2] = [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)"];

/// Where to send each word.
pub(super) type Sink<'s, 't> = &'s mut dyn FnMut(&'t str) -> Result<(), TextError>;

/// Normaliser and word patterns of one tokenizer.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    nfc: bool,
    stages: Vec<Stage>,
}

impl PreTokenizer {
    /// From patterns in the order they cut. The error is the pattern that is not a regular language and what
    /// the compiler says about it.
    pub(super) fn new<'p>(
        nfc: bool,
        patterns: impl IntoIterator<Item = &'p str>,
    ) -> Result<PreTokenizer, String> {
        let stages = patterns.into_iter().map(Stage::new).collect::<Result<_, _>>()?;
        Ok(PreTokenizer { nfc, stages })
    }

    /// The text in the form the vocabulary was trained on: NFC for some, as it is for the others.
    pub(super) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.nfc || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        // The crate's normaliser, because its Unicode version is the one that reference ids come from.
        let mut normalized = NormalizedString::from(text);
        normalized.nfc();
        Cow::Owned(normalized.get().to_owned())
    }

    /// Gives the words of a normalised text to `sink`, in order; together they are the text.
    pub(super) fn words<'t>(&self, text: &'t str, sink: Sink<'_, 't>) -> Result<(), TextError> {
        cut(&self.stages, text, sink)
    }
}

/// Cuts `text` by the first stage and its pieces by the others. Nests as deep as there are stages.
fn cut<'t>(stages: &[Stage], text: &'t str, sink: Sink<'_, 't>) -> Result<(), TextError> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((stage, rest)) = stages.split_first() else { return sink(text) };
    let mut at = 0;
    while let Some((start, end)) = stage.next_match(text, at) {
        cut(rest, &text[at..start], sink)?;
        cut(rest, &text[start..end], sink)?;
        at = end;
    }
    cut(rest, &text[at..], sink)
}

/// One pattern.
#[derive(Debug)]
struct Stage {
    /// Without lookahead.
    pattern: Regex,
    /// The alternatives before the blanks, at the beginning of a text; where the pattern had the lookahead.
    before_blanks: Option<Regex>,
}

impl Stage {
    fn new(published: &str) -> Result<Stage, String> {
        let head = LOOKAHEADS.iter().find_map(|ending| published.strip_suffix(ending));
        let compile = |pattern: &str| {
            Regex::new(pattern).map_err(|error| format!("pattern {published:?}: {error}"))
        };
        Ok(match head {
            Some(head) => Stage {
                pattern: compile(&format!(r"{head}|\s+"))?,
                before_blanks: Some(compile(&format!(r"\A(?:{head})"))?),
            },
            None => Stage { pattern: compile(published)?, before_blanks: None },
        })
    }

    /// The first match that begins at byte `at` of `text` or behind it and is not empty.
    fn next_match(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        let mut from = at;
        while from < text.len() {
            let found = self.pattern.find_at(text, from)?;
            if !found.is_empty() {
                return Some((found.start(), self.word_end(text, found.start(), found.end())));
            }
            from = found.end() + text[found.end()..].chars().next().map_or(1, char::len_utf8);
        }
        None
    }

    /// End of the word that the pattern found in `text` from `start` to `end`: a run of blanks with something
    /// behind it leaves its last blank to that.
    fn word_end(&self, text: &str, start: usize, end: usize) -> usize {
        let word = &text[start..end];
        let Some(before_blanks) = &self.before_blanks else { return end };
        let Some(last) = word.chars().next_back() else { return end };
        let alone = last.len_utf8() == word.len();
        if end == text.len() || alone || !word.chars().all(char::is_whitespace) {
            return end;
        }
        // Blanks that another alternative took, such as `\s*[\r\n]+`, are a word as they are.
        if before_blanks.is_match(&text[start..]) { end } else { end - last.len_utf8() }
    }
}

#[cfg(test)]
mod tests;
