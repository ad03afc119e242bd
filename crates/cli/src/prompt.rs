//! From flags to token ids: where the prompt comes from, how it is framed, and
//! what happens when it is too long.

use crate::exit::Ended;
use crate::output::counted;
use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tidekv::text::{
    ChatOptions, Message, Specials, TextError, TokenKind, Tokenizer, text_from_bytes,
};
use tidekv::{Backend, Engine};

/// The prompt and how it is presented to the model.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Prompt")]
#[command(group(clap::ArgGroup::new("source").required(true).multiple(false)))]
pub struct PromptFlags {
    /// Read the prompt from standard input
    #[arg(value_name = "-", value_parser = ["-"], hide_possible_values = true, help_heading = None::<&str>, group = "source")]
    pub stdin: Option<String>,
    /// Read the prompt from a file
    ///
    /// Given several times, the prompts are read together, so that each layer's weights are visited
    /// once for all of them, and answered together. Each is answered as if it were alone; --question,
    /// --system and --answer-prefix apply to each.
    #[arg(long, value_name = "FILE", group = "source")]
    pub prompt_file: Vec<PathBuf>,
    /// The prompt itself
    #[arg(long, value_name = "TEXT", group = "source")]
    pub prompt: Option<String>,
    /// Token ids, comma-separated, or @FILE with ids; nothing is added to them
    ///
    /// The answer is ids too where the model's tokenizer is missing or not supported.
    #[arg(long, value_name = "IDS|@FILE", group = "source")]
    pub prompt_ids: Option<String>,
    /// A question asked after the document, from which it is separated by an empty line
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_ids")]
    pub question: Option<String>,
    /// Frame the prompt with the model's chat template [default where the model has one]
    ///
    /// Nothing in the prompt can then act as a marker of the template.
    #[arg(long, conflicts_with_all = ["raw", "prompt_ids"])]
    pub chat: bool,
    /// Take the prompt as it is [default where the model has no chat template]
    ///
    /// Markers in it such as <|im_start|> are recognised.
    #[arg(long, conflicts_with = "prompt_ids")]
    pub raw: bool,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "prompt_ids"])]
    pub system: Option<String>,
    /// Opening words of the answer: the model goes on from them
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_ids")]
    pub answer_prefix: Option<String>,
    /// What to do with a prompt longer than the context
    ///
    /// A prompt that fits the context is never cut, even where it leaves the answer fewer than
    /// --max-tokens. A longer one is cut until it leaves that many, which must be fewer than the
    /// context has. A cut takes tokens of the document alone; the question and the template stay
    /// whole. How many were dropped is said on stderr and in the report.
    #[arg(long, default_value = "refuse", value_name = "HOW")]
    pub overflow: Overflow,
}

/// What happens to a prompt longer than the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub enum Overflow {
    /// An error with the counts.
    #[default]
    Refuse,
    /// Drop the middle of the document.
    Middle,
    /// Drop its beginning.
    Head,
    /// Drop its end.
    Tail,
}

/// What the prompt is made from: read and checked, not yet tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Token ids as they are.
    Ids(Vec<u32>),
    /// Text, to be framed.
    Document(String),
}

/// A prompt as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The ids.
    pub ids: Vec<u32>,
    /// Tokens of the document that were dropped because the user allowed it.
    pub dropped: usize,
    /// Tokens at the end that the user did not write: the template's, and the
    /// opening words of the answer. `None` where token ids were given.
    pub tail: Option<usize>,
}

impl PromptFlags {
    /// Reads the sources of all prompts. Needs no model, so that a mistyped name
    /// costs no wait for one.
    ///
    /// # Errors
    /// An unreadable or empty source, text that is not UTF-8, ids that are not
    /// numbers. What is wrong with a file names it.
    pub fn read(&self) -> anyhow::Result<Vec<Source>> {
        if let Some(ids) = &self.prompt_ids {
            return Ok(vec![self.not_empty(Source::Ids(read_ids(ids)?))?]);
        }
        if self.prompt_file.is_empty() {
            return Ok(vec![self.not_empty(Source::Document(self.document()?))?]);
        }
        let from_file = |path: &PathBuf| {
            let source = Source::Document(read_file(path)?);
            self.not_empty(source).with_context(|| path.display().to_string())
        };
        self.prompt_file.iter().map(from_file).collect()
    }

    fn not_empty(&self, source: Source) -> anyhow::Result<Source> {
        let empty = match &source {
            Source::Ids(ids) => ids.is_empty(),
            Source::Document(text) => text.is_empty() && self.question.is_none(),
        };
        if empty { Err(tidekv::Error::EmptyPrompt.into()) } else { Ok(source) }
    }

    /// Makes a prompt from its source; one that has to be cut leaves room for an
    /// answer of `max_tokens`.
    ///
    /// # Errors
    /// A missing template, a question that fills the context, or an answer that
    /// would leave no room for a prompt that has to be cut.
    pub fn tokens<B: Backend>(
        &self,
        source: Source,
        engine: &Engine<B>,
        max_tokens: usize,
    ) -> anyhow::Result<Prompt> {
        let context = engine.model().spec.shape.context;
        let fits = |n_tokens: usize| n_tokens <= context || self.overflow == Overflow::Refuse;
        let document = match source {
            Source::Ids(ids) if fits(ids.len()) => {
                return Ok(Prompt { ids, dropped: 0, tail: None });
            }
            Source::Ids(ids) => {
                let keep = room(context, max_tokens)?.min(ids.len());
                let dropped = ids.len() - keep;
                let (head, tail) = kept_parts(&ids, keep, self.overflow);
                return Ok(Prompt { ids: [head, tail].concat(), dropped, tail: None });
            }
            Source::Document(document) => document,
        };
        let ids = self.frame(engine, &document)?;
        let (ids, dropped) = match fits(ids.len()) {
            true => (ids, 0),
            false => self.cut(engine, &document, room(context, max_tokens)?)?,
        };
        let tail = Some(self.tail(engine, &ids)?);
        Ok(Prompt { ids, dropped, tail })
    }

    /// Tokens at the end of a prompt that are the same whatever the user wrote.
    fn tail<B: Backend>(&self, engine: &Engine<B>, ids: &[u32]) -> anyhow::Result<usize> {
        // A prompt may end in the one letter by chance, not in both.
        let mut tail = usize::MAX;
        for letter in ["a", "b"] {
            let flags = PromptFlags { question: None, ..self.clone() };
            let probe = flags.frame(engine, letter)?;
            let ends = ids.iter().rev().zip(probe.iter().rev());
            tail = tail.min(ends.take_while(|(a, b)| a == b).count());
        }
        Ok(tail)
    }

    /// Drops part of the document until the framed prompt has at most `room`
    /// tokens. Question and template stay whole.
    fn cut<B: Backend>(
        &self,
        engine: &Engine<B>,
        document: &str,
        room: usize,
    ) -> anyhow::Result<(Vec<u32>, usize)> {
        let tokenizer = engine.tokenizer()?;
        let specials = match self.uses_chat(engine)? {
            true => Specials::AsText,
            false => RAW_SPECIALS,
        };
        let all = tokenizer.encode_continuation(document, specials)?;
        let frame = self.frame(engine, "")?.len();
        // Text that is joined at the cut may become other tokens, so they are
        // counted anew and the cut is widened if need be.
        let mut keep = room.saturating_sub(frame).min(all.len());
        while keep > 0 {
            let text = kept_text(tokenizer, kept_parts(&all, keep, self.overflow))?;
            let ids = self.frame(engine, &text)?;
            if ids.len() <= room {
                return Ok((ids, all.len() - keep));
            }
            keep = keep.saturating_sub((ids.len() - room).max(1));
        }
        bail!(
            "no token of the document fits: question and template need {}, and the \
             context leaves {room} beside the answer; shorten the question or lower --max-tokens",
            counted(frame, "token")
        )
    }

    /// The document with its question, in the model's format.
    fn frame<B: Backend>(&self, engine: &Engine<B>, document: &str) -> anyhow::Result<Vec<u32>> {
        let text = match &self.question {
            Some(question) if document.is_empty() => question.clone(),
            Some(question) => format!("{document}\n\n{question}"),
            None => document.to_owned(),
        };
        let tokenizer = engine.tokenizer().context(
            "a prompt of text needs the model's tokenizer; --prompt-ids does without one",
        )?;
        let mut ids = match self.uses_chat(engine)? {
            false => tokenizer.encode(&text, RAW_SPECIALS)?,
            true => {
                let system = self.system.iter().map(|system| Message::new("system", system));
                let messages: Vec<Message> = system.chain([Message::new("user", text)]).collect();
                let template = engine.chat_template()?;
                let rendered = template.render(&messages, &ChatOptions::default());
                tokenizer.encode_chat(&rendered.context(WITHOUT_TEMPLATE)?)?
            }
        };
        if let Some(prefix) = &self.answer_prefix {
            ids.extend(tokenizer.encode_continuation(prefix, Specials::AsText)?);
        }
        Ok(ids)
    }

    fn uses_chat<B: Backend>(&self, engine: &Engine<B>) -> anyhow::Result<bool> {
        if self.raw {
            return Ok(false);
        }
        match engine.chat_template() {
            Ok(_) => Ok(true),
            Err(tidekv::Error::Text(TextError::NoChatTemplate))
                if !self.chat && self.system.is_none() =>
            {
                Ok(false)
            }
            Err(error) => Err(error).context(WITHOUT_TEMPLATE),
        }
    }

    fn document(&self) -> anyhow::Result<String> {
        match (&self.prompt, &self.stdin) {
            (Some(text), _) => Ok(text.clone()),
            (_, Some(_)) => read_text(Path::new(STDIN)),
            _ => bail!("no prompt: give --prompt-file FILE, --prompt TEXT, --prompt-ids IDS or -"),
        }
    }
}

/// What to do where a chat template fails.
const WITHOUT_TEMPLATE: &str = "the prompt cannot be framed as a chat; --raw does without that";

/// What markers are in a prompt that is taken as it is.
const RAW_SPECIALS: Specials = Specials::Recognize;

/// Tokens that a prompt is cut to.
fn room(context: usize, max_tokens: usize) -> anyhow::Result<usize> {
    match context.checked_sub(max_tokens).filter(|&room| room > 0) {
        Some(room) => Ok(room),
        None => Err(Ended::Usage(format!(
            "the prompt is longer than the context of {}, and --max-tokens {max_tokens} leaves no \
             room for what --overflow would keep of it; lower --max-tokens below {context}",
            counted(context, "token")
        ))
        .into()),
    }
}

/// The name that stands for standard input.
const STDIN: &str = "-";

/// The text of a file, or of standard input for `-`.
///
/// # Errors
/// An unreadable file, one too large for any context, bytes that are not UTF-8.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    if path == Path::new(STDIN) {
        let source = "standard input";
        return checked_text(read_at_most(std::io::stdin()).context(source)?, source);
    }
    read_file(path)
}

/// The text of a file, whatever its name.
///
/// # Errors
/// As [`read_text`].
pub fn read_file(path: &Path) -> anyhow::Result<String> {
    checked_text(read(path)?, &path.display().to_string())
}

/// The text without the byte order mark that some editors put in front of it.
fn checked_text(bytes: Vec<u8>, source: &str) -> anyhow::Result<String> {
    const BYTE_ORDER_MARK: char = '\u{feff}';
    text_from_bytes(&bytes).with_context(|| source.to_owned())?;
    // Checked above; this keeps the bytes where they are.
    let mut text = String::from_utf8(bytes)?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    Ok(text)
}

/// Most bytes that are read as a prompt: no context is as long, and a file taken
/// by mistake (a model, a device) should not fill the memory.
const MOST_BYTES: u64 = 256 << 20;

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = || format!("cannot read {}", path.display());
    read_at_most(File::open(path).with_context(name)?).with_context(name)
}

fn read_at_most(reader: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    let most = MOST_BYTES >> 20;
    ensure!(bytes.len() as u64 <= MOST_BYTES, "a prompt of more than {most} MiB is not one");
    Ok(bytes)
}

fn read_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    let list = match text.strip_prefix('@') {
        Some("") => {
            let reason = "--prompt-ids @ names no file; give @FILE, or ids such as 1,2,3";
            return Err(Ended::Usage(reason.to_owned()).into());
        }
        Some(path) => read_file(Path::new(path))?,
        None => text.to_owned(),
    };
    let list = list.replace(['[', ']'], " ");
    if list.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut ids = Vec::new();
    for (index, entry) in list.split(',').enumerate() {
        let before = ids.len();
        for word in entry.split_whitespace() {
            let id = word.parse();
            ids.push(id.with_context(|| format!("--prompt-ids: `{word}` is not a token id"))?);
        }
        ensure!(
            ids.len() > before,
            "--prompt-ids: entry {} of the list is empty; give an id there, or leave out the comma",
            index + 1
        );
    }
    Ok(ids)
}

/// The two ends of a document that are left when the part that `overflow` names
/// is dropped: `keep` tokens in all, of which there are as many.
fn kept_parts(ids: &[u32], keep: usize, overflow: Overflow) -> (&[u32], &[u32]) {
    let head = match overflow {
        Overflow::Refuse | Overflow::Tail => keep,
        Overflow::Head => 0,
        Overflow::Middle => keep.div_ceil(2),
    };
    (&ids[..head], &ids[ids.len() - (keep - head)..])
}

/// The text of both ends, markers included where they were recognised. A
/// character that the cut tore apart is left out.
fn kept_text(tokenizer: &Tokenizer, (head, tail): (&[u32], &[u32])) -> anyhow::Result<String> {
    const TORN: char = char::REPLACEMENT_CHARACTER;
    let (head, tail) = (written(tokenizer, head)?, written(tokenizer, tail)?);
    Ok([head.trim_end_matches(TORN), tail.trim_start_matches(TORN)].concat())
}

/// Text that is read as these ids again: [`Tokenizer::decode`] with the control
/// tokens, which it leaves out.
fn written(tokenizer: &Tokenizer, ids: &[u32]) -> anyhow::Result<String> {
    let mut stream = tokenizer.detokenize_stream();
    let mut text = String::new();
    for &id in ids {
        text += &stream.push(id)?.unwrap_or_default();
        if tokenizer.kind(id)? == TokenKind::Control {
            text += tokenizer.token(id)?;
        }
    }
    text += &stream.finish().unwrap_or_default();
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_may_be_separated_in_any_way_and_bad_ones_are_named() {
        assert_eq!(read_ids("1,2, 3\n4").unwrap(), [1, 2, 3, 4]);
        assert_eq!(read_ids("[5, 6]").unwrap(), [5, 6]);
        assert!(read_ids("").unwrap().is_empty());
        assert!(format!("{:#}", read_ids("1,-2").unwrap_err()).contains("`-2`"));
        assert!(read_ids("@/does/not/exist").is_err());
    }

    #[test]
    fn a_cut_keeps_the_ends_that_were_asked_for() {
        let ids = [0, 1, 2, 3, 4, 5, 6];
        let parts = |keep, overflow| kept_parts(&ids, keep, overflow);
        assert_eq!(parts(3, Overflow::Tail), (&ids[..3], &ids[7..]));
        assert_eq!(parts(3, Overflow::Head), (&ids[..0], &ids[4..]));
        assert_eq!(parts(3, Overflow::Middle), (&ids[..2], &ids[6..]));
        assert_eq!(parts(7, Overflow::Middle), (&ids[..4], &ids[4..]));
        assert_eq!(parts(0, Overflow::Middle), (&ids[..0], &ids[7..]));
    }

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let text = |bytes: &[u8]| checked_text(bytes.to_vec(), "a file").unwrap();
        assert_eq!(text(b"\xef\xbb\xbfOnce"), "Once");
        assert_eq!(text(b"\xef\xbb\xbf"), "");
        assert_eq!(text("a\u{feff}b".as_bytes()), "a\u{feff}b");
    }

    #[test]
    fn a_cut_needs_room_beside_the_answer() {
        assert_eq!(room(64, 4).unwrap(), 60);
        assert_eq!(room(64, 63).unwrap(), 1);
        for max_tokens in [64, 65, usize::MAX] {
            let error = room(64, max_tokens).unwrap_err().to_string();
            assert!(error.contains("of 64") && error.contains(&max_tokens.to_string()), "{error}");
        }
    }

    #[test]
    fn an_endless_source_is_refused() {
        let error = read_at_most(std::io::repeat(b'x')).unwrap_err();
        assert!(error.to_string().contains("256 MiB"), "{error}");
    }
}
