//! Output: JSON to a file or stdout, tables, and text that may meet a closed
//! pipe.

use crate::exit::Ended;
use crate::files::{check_output, same_file, write_file};
use anyhow::Context;
use clap::builder::{OsStringValueParser, TryMapValueParser, TypedValueParser, ValueParserFactory};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
pub use tidekv::report::counted;

/// Where `--json` writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonTarget {
    /// Stdout, which then carries the object alone.
    Stdout,
    /// A file, which appears whole or not at all.
    File(PathBuf),
}

impl TryFrom<OsString> for JsonTarget {
    type Error = &'static str;

    fn try_from(name: OsString) -> Result<Self, Self::Error> {
        match name.to_str() {
            Some("") => Err("give a file, or - for standard output"),
            Some("-") => Ok(JsonTarget::Stdout),
            _ => Ok(JsonTarget::File(PathBuf::from(name))),
        }
    }
}

impl ValueParserFactory for JsonTarget {
    type Parser =
        TryMapValueParser<OsStringValueParser, fn(OsString) -> Result<Self, &'static str>>;

    fn value_parser() -> Self::Parser {
        OsStringValueParser::new().try_map(JsonTarget::try_from)
    }
}

impl JsonTarget {
    /// Checks early that the target can be written, so that a long run is not
    /// lost for a mistyped path, and that it is none of the `inputs`.
    ///
    /// # Errors
    /// The directory does not exist or takes no files, or the file is one that is read.
    pub fn check(&self, inputs: &[&Path]) -> anyhow::Result<()> {
        match self {
            JsonTarget::Stdout => Ok(()),
            JsonTarget::File(path) => check_output(path, inputs),
        }
    }

    /// Checks that another output does not go into the same file.
    ///
    /// # Errors
    /// It does; `flag` is its name.
    pub fn check_distinct(&self, flag: &str, other: &Path) -> anyhow::Result<()> {
        match self {
            JsonTarget::File(path) if same_file(path, other) => Err(Ended::Usage(format!(
                "--json and {flag} name the same file, {}; give each its own",
                path.display()
            ))
            .into()),
            _ => Ok(()),
        }
    }

    /// Writes one object.
    ///
    /// # Errors
    /// What the system says; an existing file is then unchanged.
    pub fn write(&self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut text = unsteering(&serde_json::to_string_pretty(value)?);
        text.push('\n');
        match self {
            JsonTarget::Stdout => print_text(&text),
            JsonTarget::File(path) => write_file(path, text.as_bytes()),
        }
    }
}

/// The same JSON, with what [`printable`] escapes written as JSON's escapes. serde_json
/// does so below U+0020; such characters stand in strings only, but for line ends.
fn unsteering(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match deceives(c) && c != '\n' {
            true => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    shown.push_str(&format!("\\u{unit:04x}"));
                }
            }
            false => shown.push(c),
        }
    }
    shown
}

/// Says a line on stderr, [`printable`]: whatever it quotes, it stays one line. Nobody may be
/// listening, which is no reason to fail.
pub fn note(line: &str) {
    say(&(printable(line) + "\n"));
}

/// Says several lines on stderr, [`escaped`]; what they quote is [`printable`] already.
pub fn note_lines(text: &str) {
    say(&escaped(text));
}

/// Writes a line over the one that was written so before; an empty one removes it. For a terminal.
pub fn rewrite_line(line: &str) {
    say(&rewritten(line));
}

fn rewritten(line: &str) -> String {
    format!("\r\x1b[2K{}", printable(line))
}

fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

/// Prints to stdout at once; a closed pipe is an error, not a panic.
///
/// # Errors
/// What the system says.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to standard output")
}

/// Prints what is said about a model to stdout, [`escaped`].
///
/// # Errors
/// As [`print_text`].
pub fn print_report(text: &str) -> anyhow::Result<()> {
    print_text(&escaped(text))
}

/// Text for stdout beside files that are still to be written. A reader that has gone or a full disk
/// ends a command that owes nothing else; otherwise the failure is kept until the files are there.
pub struct Printer {
    quiet: bool,
    owes_files: bool,
    failed: Option<anyhow::Error>,
}

impl Printer {
    /// Prints nothing where JSON is to be alone on stdout. `files` are further files that the command
    /// writes.
    pub fn beside(json: Option<&JsonTarget>, files: &[&Path]) -> Self {
        let quiet = json == Some(&JsonTarget::Stdout);
        Printer { quiet, owes_files: json.is_some() || !files.is_empty(), failed: None }
    }

    /// Prints at once.
    ///
    /// # Errors
    /// What the system says, if no file would be lost.
    pub fn print(&mut self, text: &str) -> anyhow::Result<()> {
        if self.quiet || self.failed.is_some() {
            return Ok(());
        }
        match print_text(text) {
            Err(error) if self.owes_files => {
                self.failed = Some(error);
                Ok(())
            }
            printed => printed,
        }
    }

    /// What was kept.
    ///
    /// # Errors
    /// The first failure to print.
    pub fn finish(self) -> anyhow::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

/// Most characters of a foreign text that are shown.
const MOST_SHOWN: usize = 200;

/// Text that nobody vouches for, such as names of files and what is in them, fit for a terminal: one
/// line in which nothing moves the cursor, turns the direction of writing or is not to be seen; such
/// characters are written out. What is printable already stays as it is.
pub fn printable(text: &str) -> String {
    written_out(text, deceives)
}

/// [`printable`], of a path.
pub fn printable_path(path: impl AsRef<Path>) -> String {
    printable(&path.as_ref().to_string_lossy())
}

/// As [`printable`], of at most 200 characters of a text that may be of any length.
pub fn excerpt(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

/// As [`printable`], of a sentence that may quote such a text, in lines of `width`
/// characters where its words allow.
pub fn wrapped(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in printable(sentence).split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += length;
        }
    }
    lines
}

/// Lines of our own, fit for a terminal whatever they quote: as [`printable`], but for line ends and
/// tabs. What is quoted should be printable before, or it could begin a line.
pub fn escaped(text: &str) -> String {
    written_out(text, |c| deceives(c) && !matches!(c, '\n' | '\t'))
}

fn written_out(text: &str, odd: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match odd(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Whether a character moves the cursor, gives the terminal orders, ends a line, turns the direction
/// of writing or cannot be seen: controls, the line and paragraph separators, and what Unicode calls
/// default ignorable (`Default_Ignorable_Code_Point`), with the annotation marks beside them.
fn deceives(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Zero-width spaces and joiners, marks, separators, embeddings and overrides, isolates.
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}'
            // Soft hyphen, joiners, fillers and vowels without a form, byte order mark.
            | '\u{ad}' | '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            // Variation selectors, controls of shorthand and music, tags.
            | '\u{fe00}'..='\u{fe0f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Rows of cells, made [`printable`], as aligned columns: the first to the left, the others to the
/// right.
pub fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => text.push_str(&format!("  {cell:<width$}")),
                _ => text.push_str(&format!("  {cell:>width$}")),
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(printable("Qwen2.5 \"7B\" é 名"), "Qwen2.5 \"7B\" é 名");
        assert_eq!(printable("a\x1b[2Jb\r\nc\u{202e}d"), "a\\u{1b}[2Jb\\r\\nc\\u{202e}d");
        let long = "é".repeat(9999);
        assert_eq!(printable(&long), long);
    }

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        for (text, shown) in [
            ("a\u{200b}\u{200d}\u{2060}b", "a\\u{200b}\\u{200d}\\u{2060}b"),
            ("\u{feff}a\u{ad}\u{34f}\u{3164}", "\\u{feff}a\\u{ad}\\u{34f}\\u{3164}"),
            ("a\u{e0041}\u{e0001}\u{e01ef}", "a\\u{e0041}\\u{e0001}\\u{e01ef}"),
            ("\u{2066}a\u{2028}\tb\u{fe0f}", "\\u{2066}a\\u{2028}\\tb\\u{fe0f}"),
        ] {
            assert_eq!(printable(text), shown);
            assert_eq!(printable(&printable(text)), shown);
        }
        // What stands beside them can be seen.
        let seen = "\u{200a}\u{2010}\u{2027}\u{2030}\u{ae}\u{e000}\u{fffd}\u{f0000}";
        assert_eq!(printable(seen), seen);
    }

    #[test]
    fn excerpts_are_cut_and_say_so() {
        assert_eq!(excerpt(&"x".repeat(MOST_SHOWN)), "x".repeat(MOST_SHOWN));
        assert_eq!(excerpt(&"é".repeat(9999)), "é".repeat(MOST_SHOWN) + "…");
        assert_eq!(excerpt("a\nb"), "a\\nb");
    }

    #[test]
    fn lines_are_kept_and_orders_to_the_terminal_are_not() {
        assert_eq!(escaped("a\n\tb é"), "a\n\tb é");
        assert_eq!(escaped("a\x1b[2J\r\u{9b}\nb\u{202e}"), "a\\u{1b}[2J\\r\\u{9b}\nb\\u{202e}");
    }

    #[test]
    fn a_line_that_is_rewritten_gives_the_only_orders() {
        assert_eq!(rewritten("a\x1b[2J\nb"), "\r\x1b[2Ka\\u{1b}[2J\\nb");
        assert_eq!(rewritten(""), "\r\x1b[2K");
    }

    #[test]
    fn json_means_the_same_without_steering() {
        let name = "a\x1b\u{7f}\u{9b}\u{61c}\u{200f}\u{2028}\u{202e}\u{2066}\u{e0041}é名\"\\\n";
        let text = unsteering(&serde_json::to_string_pretty(&[name]).unwrap());
        assert!(text.chars().all(|c| c == '\n' || !deceives(c)), "{text}");
        assert!(
            text.contains("\\u009b\\u061c")
                && text.contains("\\udb40\\udc41")
                && text.contains("é名"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<[String; 1]>(&text).unwrap(), [name]);
    }

    #[test]
    fn sentences_are_wrapped_between_words_and_lose_none() {
        let sentence = "one two three fourfourfour five";
        assert_eq!(wrapped(sentence, 9), ["one two", "three", "fourfourfour", "five"]);
        assert_eq!(wrapped(sentence, 99), [sentence]);
        let long = "word ".repeat(200);
        assert_eq!(wrapped(long.trim(), 80).join(" "), long.trim());
        assert_eq!(wrapped("", 80), [""]);
        assert_eq!(wrapped("a\nb\u{202e}", 80), ["a\\nb\\u{202e}"]);
        let endless = "x".repeat(9999);
        assert_eq!(wrapped(&endless, 80), [endless]);
    }

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["a", "10"]), row(["long", "9"])]);
        assert_eq!(text, "  a     10\n  long   9\n");
        assert_eq!(
            table(&[row(["a\nb", "1"]), row(["c", "\u{200b}"])]),
            "  a\\nb         1\n  c     \\u{200b}\n"
        );
    }
}
