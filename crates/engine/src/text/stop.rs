//! Stop strings: where generated text ends before the model says so.

use super::error::TextError;

/// Cuts a stream of text at the first stop string that becomes complete.
///
/// Text that may be the beginning of a stop string is held back until it is known not to be, so no part of
/// one is ever given out. Where the stream is cut does not depend on how it came in pieces: the stop string
/// that *ends* first wins, and of those that end together the longest.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What a [`StopMatcher`] knows after some text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopStep {
    /// Text that is safe to give out, perhaps none; more may come.
    Continue(String),
    /// A stop string is complete. The text before it, perhaps none; nothing is to follow.
    Stopped(String),
}

impl StopMatcher {
    /// A matcher for these stop strings; without any, it passes everything on at once.
    ///
    /// # Errors
    /// [`TextError::EmptyStopString`].
    pub fn new(stops: Vec<String>) -> Result<StopMatcher, TextError> {
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(TextError::EmptyStopString { index }),
            None => Ok(StopMatcher { stops, held: String::new() }),
        }
    }

    /// Takes the next piece of text. After [`StopStep::Stopped`] the matcher is as new.
    pub fn push(&mut self, piece: &str) -> StopStep {
        self.held.push_str(piece);
        if let Some(start) = self.first_stop() {
            self.held.truncate(start);
            return StopStep::Stopped(std::mem::take(&mut self.held));
        }
        let hold = self.longest_beginning();
        let text = self.held.drain(..self.held.len() - hold).collect();
        StopStep::Continue(text)
    }

    /// Ends the stream: what was held back was no stop string.
    pub fn finish(self) -> String {
        self.held
    }

    /// Start of the stop string that ends first in the held text; of several, the one that starts first.
    fn first_stop(&self) -> Option<usize> {
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop).map(|start| (start + stop.len(), start)));
        found.min().map(|(_, start)| start)
    }

    /// Bytes at the end of the held text that begin a stop string, at most.
    fn longest_beginning(&self) -> usize {
        let longest_stop = self.stops.iter().map(String::len).max().unwrap_or(0);
        let candidates = self.held.char_indices().map(|(start, _)| &self.held[start..]);
        candidates
            .skip_while(|end| end.len() >= longest_stop)
            .find(|end| self.stops.iter().any(|stop| stop.starts_with(end)))
            .map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect()).unwrap()
    }

    /// Everything given out, and whether it stopped; asserts that no push gives out part of a stop string.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = matcher(stops);
        let mut out = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                StopStep::Continue(text) => out += &text,
                StopStep::Stopped(text) => return (out + &text, true),
            }
        }
        (out + &matcher.finish(), false)
    }

    #[test]
    fn a_beginning_is_held_back_and_given_out_when_it_was_none() {
        let mut m = matcher(&["\n\nUser:"]);
        assert_eq!(m.push("Hi\n"), StopStep::Continue("Hi".into()));
        assert_eq!(m.push("\nUs"), StopStep::Continue(String::new()));
        assert_eq!(m.push("e it\n\n"), StopStep::Continue("\n\nUse it".into()));
        assert_eq!(m.push("User: x"), StopStep::Stopped(String::new()));
        assert_eq!(m.finish(), "");
        assert_eq!(run(&["END"], &["to the EN"]), ("to the EN".into(), false));
    }

    #[test]
    fn the_stop_that_ends_first_wins_whatever_the_pieces() {
        for pieces in [&["xabcd"][..], &["xab", "cd"], &["x", "a", "b", "c", "d"]] {
            assert_eq!(run(&["abcd", "bc"], pieces), ("xa".into(), true), "{pieces:?}");
            assert_eq!(run(&["bc", "abc"], pieces), ("x".into(), true), "{pieces:?}");
        }
    }

    #[test]
    fn empty_lists_pass_and_empty_strings_are_refused() {
        assert_eq!(run(&[], &["a", "é"]), ("aé".into(), false));
        let message = StopMatcher::new(vec!["a".into(), String::new()]).unwrap_err().to_string();
        assert!(message.starts_with("stop string 1 is empty"), "{message}");
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_nothing_leaks(
            text in "[abé]{0,20}", stops in prop::collection::vec("[abé]{1,4}", 0..4), size in 1usize..4,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, stopped) = run(&stops, &pieces);
            prop_assert_eq!((out.clone(), stopped), run(&stops, &[&text]));
            prop_assert!(text.starts_with(&out));
            prop_assert!(!stops.iter().any(|stop| out.contains(stop)));
            prop_assert_eq!(stopped, stops.iter().any(|stop| text.contains(stop)));
            prop_assert!(stopped || out == text);
        }
    }
}
