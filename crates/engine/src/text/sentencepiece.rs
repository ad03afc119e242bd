//! SentencePiece's BPE: text as one run of characters, blanks written as `▁`.
//!
//! Of all neighbouring symbols whose join is a piece, the pair with the best
//! score merges first, the leftmost of equal ones
//! ([source](https://github.com/google/sentencepiece/blob/master/src/bpe_model.cc)).
//! Files for Hugging Face's library write the same vocabulary as ranked merges.
//! Both become [`Merges`] here.
//!
//! There are no words. But where no merge joins a symbol that ends in `x` with
//! one that begins with `y`, nothing merges across a border between `x` and
//! `y`: a *seam*. Text is cut at seams, exactly and in linear time, and most
//! runs between them are words in the ordinary sense.
//!
//! Why not the `tokenizers` crate: see [`super::merge`].

use super::error::TextError;
use super::merge::{Merge, Merges};
use super::pre::PreTokenizer;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// What stands for a blank in pieces: U+2581.
pub(super) const BLANK: char = '▁';

/// The longest piece, in bytes. Known vocabularies stay below 100; the work to find a piece's halves grows
/// with the square.
const MAX_PIECE_BYTES: usize = 512;

/// Whether text gets a blank in front, so that its first word looks like all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpacePrefix {
    /// It does not.
    Never,
    /// At the beginning of the prompt only, unless there is one.
    First,
    /// At the beginning and behind each fixed string, unless there is one.
    SectionsWithout,
    /// At the beginning and behind each fixed string, always: SentencePiece's own.
    Sections,
}

/// A vocabulary of pieces.
#[derive(Debug)]
pub(super) struct SentencePiece {
    /// Symbol of each character: its token, or a number behind all tokens for one that is only part of others.
    symbols: HashMap<char, u32>,
    merges: Merges,
    /// Last character of a left symbol and first one of a right symbol that merge.
    joints: HashSet<(char, char)>,
    /// Token of each byte of a character that is no symbol.
    byte_tokens: [Option<u32>; 256],
    /// Number of tokens; symbols from here on are none.
    n_tokens: u32,
    space_prefix: SpacePrefix,
    pre: PreTokenizer,
}

/// What [`SentencePiece`] is built from, whatever the file.
#[derive(Debug)]
pub(super) struct Pieces<'v> {
    /// Tokens that merging may produce, with their ids. Of two equal ones the first counts.
    pub(super) text: Vec<(&'v str, u32)>,
    /// Tokens of single bytes.
    pub(super) byte_tokens: [Option<u32>; 256],
    /// Number of tokens of the vocabulary.
    pub(super) n_tokens: u32,
    pub(super) space_prefix: SpacePrefix,
    pub(super) pre: PreTokenizer,
}

/// The byte that a token such as `<0x0A>` stands for.
pub(super) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if plain { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// `text` with blanks as pieces write them, and one in front if asked.
fn with_blanks(text: &str, prefix: bool) -> String {
    let mut written = String::with_capacity(text.len() + BLANK.len_utf8());
    if prefix {
        written.push(BLANK);
    }
    written.extend(text.chars().map(|c| if c == ' ' { BLANK } else { c }));
    written
}

impl SentencePiece {
    /// From scores, one per token: pieces merge from any two pieces or characters that join to them.
    pub(super) fn from_scores(pieces: Pieces<'_>, scores: &[f32]) -> Result<Self, TextError> {
        let damaged = |reason: String| TextError::Vocabulary { reason };
        let mut ranked = Vec::with_capacity(pieces.text.len());
        for &(piece, id) in &pieces.text {
            let score = scores.get(id as usize).copied().filter(|score| !score.is_nan());
            let score = score.ok_or_else(|| damaged(format!("token {id} has no score")))?;
            if piece.len() > MAX_PIECE_BYTES {
                let (len, limit) = (piece.len(), MAX_PIECE_BYTES);
                return Err(damaged(format!("token {id} has {len} bytes (at most {limit})")));
            }
            // Both zeros are the same score.
            ranked.push((score + 0.0, piece, id));
        }
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut model = Builder::new(&pieces);
        for c in pieces.text.iter().flat_map(|(piece, _)| piece.chars()) {
            model.character(c);
        }
        let (mut rank, mut last) = (0, None);
        for (score, piece, id) in ranked {
            if last.is_some_and(|last| last != score) {
                rank += 1;
            }
            last = Some(score);
            if model.ids.get(piece) != Some(&id) {
                continue;
            }
            for (border, _) in piece.char_indices().skip(1) {
                let (left, right) = piece.split_at(border);
                if let (Some(left_id), Some(right_id)) = (model.symbol(left), model.symbol(right)) {
                    model.merge((left, left_id), (right, right_id), Merge { rank, symbol: id });
                }
            }
        }
        Ok(model.finish(pieces))
    }

    /// From merges, best first.
    pub(super) fn from_merges<'m>(
        pieces: Pieces<'_>,
        merges: impl Iterator<Item = (&'m str, &'m str)>,
    ) -> Result<Self, TextError> {
        let mut model = Builder::new(&pieces);
        let mut joined = String::new();
        for (rank, (left, right)) in (0u32..).zip(merges) {
            joined.clear();
            joined.extend([left, right]);
            let known = |text: &str| {
                model.ids.get(text).copied().ok_or_else(|| TextError::Vocabulary {
                    reason: format!("merge {rank}, {left:?} and {right:?}: {text:?} is no token"),
                })
            };
            let (left_id, right_id, symbol) = (known(left)?, known(right)?, known(&joined)?);
            model.merge((left, left_id), (right, right_id), Merge { rank, symbol });
        }
        Ok(model.finish(pieces))
    }

    /// How blanks come in front of text.
    pub(super) fn space_prefix(&self) -> SpacePrefix {
        self.space_prefix
    }

    /// `text` as pieces are written: normalised, blanks marked, and one in front if it is to have one.
    /// `fresh`: a fixed string or nothing stands before it. `first`: nothing does.
    pub(super) fn written(&self, text: &str, Place { fresh, first }: Place) -> String {
        let has_one = text.starts_with([' ', BLANK]);
        let prefix = match self.space_prefix {
            SpacePrefix::Never => false,
            SpacePrefix::First => first && !has_one,
            SpacePrefix::SectionsWithout => fresh && !has_one,
            SpacePrefix::Sections => fresh,
        };
        with_blanks(&self.pre.normalize(text), prefix && !text.is_empty())
    }

    /// Gives the runs of `written` text, within which alone symbols merge, to `sink`.
    pub(super) fn runs<'t>(
        &self,
        written: &'t str,
        sink: &mut dyn FnMut(&'t str) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        self.pre.words(written, &mut |word: &'t str| {
            let mut start = 0;
            let mut previous = None;
            for (at, c) in word.char_indices() {
                if previous.is_some_and(|previous| !self.joints.contains(&(previous, c))) {
                    sink(&word[start..at])?;
                    start = at;
                }
                previous = Some(c);
            }
            if start < word.len() { sink(&word[start..]) } else { Ok(()) }
        })
    }

    /// Appends the ids of one run. `offset` is its place in the text, for messages.
    pub(super) fn encode_run(
        &self,
        run: &str,
        offset: usize,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        // A character that no piece has is a symbol that nothing merges with.
        let symbol = |c| self.symbols.get(&c).copied().unwrap_or(self.n_tokens);
        let mut left = Vec::new();
        let ended =
            self.merges.apply(run.chars().map(symbol), poll, |at, symbol| left.push((at, symbol)));
        if ended.is_break() {
            return Err(TextError::Cancelled { bytes: offset });
        }
        let mut characters = run.char_indices().enumerate();
        for (place, symbol) in left {
            if symbol < self.n_tokens {
                ids.push(symbol);
                continue;
            }
            // What is no token never merged: it is the one character at that place.
            let Some((_, (at, character))) = characters.find(|(at, _)| *at == place) else {
                continue;
            };
            self.encode_bytes(character, offset + at, ids)?;
        }
        Ok(())
    }

    fn encode_bytes(
        &self,
        character: char,
        offset: usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
            let no_token = TextError::NoTokenForByte { byte, character, offset };
            ids.push(self.byte_tokens[byte as usize].ok_or(no_token)?);
        }
        Ok(())
    }
}

/// Where a piece of text stands in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Nothing or a fixed string is in front of it.
    pub(super) fresh: bool,
    /// Nothing is.
    pub(super) first: bool,
}

/// A [`SentencePiece`] on the way.
struct Builder<'v> {
    ids: HashMap<&'v str, u32>,
    symbols: HashMap<char, u32>,
    merges: Merges,
    joints: HashSet<(char, char)>,
    /// Number of the next character that is no token.
    next: u32,
}

impl<'v> Builder<'v> {
    fn new(pieces: &Pieces<'v>) -> Builder<'v> {
        let mut ids = HashMap::with_capacity(pieces.text.len());
        let mut symbols = HashMap::new();
        for &(piece, id) in &pieces.text {
            ids.entry(piece).or_insert(id);
            let mut characters = piece.chars();
            if let (Some(c), None) = (characters.next(), characters.next()) {
                symbols.entry(c).or_insert(id);
            }
        }
        // `n_tokens` itself is the character that is in no piece.
        let next = pieces.n_tokens + 1;
        Builder { ids, symbols, merges: Merges::default(), joints: HashSet::new(), next }
    }

    /// Makes a character a symbol.
    fn character(&mut self, c: char) {
        self.symbols.entry(c).or_insert_with(|| {
            self.next += 1;
            self.next - 1
        });
    }

    /// The symbol that is this text: a piece or a character.
    fn symbol(&self, text: &str) -> Option<u32> {
        let mut characters = text.chars();
        match (characters.next(), characters.next()) {
            (Some(c), None) => self.symbols.get(&c).copied(),
            _ => self.ids.get(text).copied(),
        }
    }

    fn merge(&mut self, left: (&str, u32), right: (&str, u32), merge: Merge) {
        self.merges.insert(left.1, right.1, merge);
        self.joints.extend(left.0.chars().next_back().zip(right.0.chars().next()));
    }

    fn finish(self, pieces: Pieces<'_>) -> SentencePiece {
        SentencePiece {
            symbols: self.symbols,
            merges: self.merges,
            joints: self.joints,
            byte_tokens: pieces.byte_tokens,
            n_tokens: pieces.n_tokens,
            space_prefix: pieces.space_prefix,
            pre: pieces.pre,
        }
    }
}

#[cfg(test)]
mod tests;
