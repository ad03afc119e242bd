//! Fixed strings that are one token each, found in text.

use super::error::TextError;
use super::vocab::TokenKind;
use aho_corasick::{AhoCorasick, MatchKind};

/// A set of fixed strings with their ids. The leftmost is found first, of those the longest.
#[derive(Debug)]
pub(super) struct Markers {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

/// Part of a text that [`Markers`] went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    Plain(&'t str),
    Marker(u32),
}

impl Markers {
    /// The tokens of these kinds, as text writes them. A control token of one character is left out: the
    /// guard of chat messages ([`super::chat`]) works between two.
    pub(super) fn new<T: AsRef<str>>(
        tokens: &[T],
        kinds: &[TokenKind],
        wanted: &[TokenKind],
    ) -> Result<Markers, TextError> {
        let least = |kind: &TokenKind| if *kind == TokenKind::Control { 2 } else { 1 };
        let chosen: Vec<(u32, &str)> = (0u32..)
            .zip(tokens.iter().map(AsRef::as_ref).zip(kinds))
            .filter(|(_, (token, kind))| {
                wanted.contains(kind) && token.chars().take(2).count() >= least(kind)
            })
            .map(|(id, (token, _))| (id, token))
            .collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(chosen.iter().map(|(_, token)| token))
            .map_err(|error| TextError::Vocabulary {
                reason: format!("its special tokens: {error}"),
            })?;
        Ok(Markers { finder, ids: chosen.into_iter().map(|(id, _)| id).collect() })
    }

    /// The text in pieces, in order; plain pieces are not empty.
    pub(super) fn pieces<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Piece<'t>> {
        let mut at = 0;
        let found = self
            .finder
            .find_iter(text)
            .map(|m| (m.start(), m.end(), Some(self.ids[m.pattern().as_usize()])));
        let end = std::iter::once((text.len(), text.len(), None));
        found.chain(end).flat_map(move |(start, end, id)| {
            let plain = (at < start).then(|| Piece::Plain(&text[at..start]));
            at = end;
            plain.into_iter().chain(id.map(Piece::Marker))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_the_leftmost_is_found() {
        let tokens = ["<a>", "x", "<a><b>", "<pad>", "<b>"];
        use TokenKind::*;
        let kinds = [Control, Control, UserDefined, Unused, Control];
        let markers = Markers::new(&tokens, &kinds, &[Control, UserDefined]).unwrap();
        let pieces = |text| markers.pieces(text).collect::<Vec<_>>();
        assert_eq!(pieces("<a><b>"), [Piece::Marker(2)]);
        assert_eq!(
            pieces("x<a>é<b><pad>"),
            [
                Piece::Plain("x"),
                Piece::Marker(0),
                Piece::Plain("é"),
                Piece::Marker(4),
                Piece::Plain("<pad>")
            ]
        );
        assert_eq!(pieces(""), []);
        let none = Markers::new(&tokens, &kinds, &[]).unwrap();
        assert_eq!(none.pieces("<a>").collect::<Vec<_>>(), [Piece::Plain("<a>")]);
    }

    #[test]
    fn one_character_can_be_user_defined_and_nothing_cannot() {
        use TokenKind::*;
        let tokens = ["\n", "\n\n", ""];
        let markers = Markers::new(&tokens, &[UserDefined; 3], &[UserDefined]).unwrap();
        let pieces: Vec<_> = markers.pieces("a\n\n\n").collect();
        assert_eq!(pieces, [Piece::Plain("a"), Piece::Marker(1), Piece::Marker(0)]);
    }
}
