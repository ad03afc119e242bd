//! From flags to token ids: where the prompt comes from, how it is framed, and
//! what happens when it is too long.

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use std::io::Read;
use std::path::{Path, PathBuf};
use tidekv::text::{ChatOptions, Message, Specials, Tokenizer, text_from_bytes};
use tidekv::{Backend, Engine};

/// The prompt and how it is presented to the model.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Prompt")]
pub struct PromptFlags {
    /// `-` reads the prompt from standard input
    #[arg(value_name = "-", value_parser = ["-"])]
    pub stdin: Option<String>,
    /// Read the prompt from a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stdin", "prompt", "prompt_ids"])]
    pub prompt_file: Option<PathBuf>,
    /// The prompt itself
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["stdin", "prompt_ids"])]
    pub prompt: Option<String>,
    /// Token ids, comma-separated, or @FILE with ids; nothing is added to them
    #[arg(long, value_name = "IDS", conflicts_with = "stdin")]
    pub prompt_ids: Option<String>,
    /// A question asked after the document
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_ids")]
    pub question: Option<String>,
    /// Frame the prompt with the model's chat template [default where the model has one]
    #[arg(long, conflicts_with_all = ["raw", "prompt_ids"])]
    pub chat: bool,
    /// Take the prompt as it is; markers such as <|im_start|> are recognised
    #[arg(long)]
    pub raw: bool,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "prompt_ids"])]
    pub system: Option<String>,
    /// Opening words of the answer
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_ids")]
    pub answer_prefix: Option<String>,
    /// A prompt longer than the context: refuse it, or drop the document's middle, head or tail
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

/// A prompt as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The ids.
    pub ids: Vec<u32>,
    /// Tokens of the document that were dropped because the user allowed it.
    pub dropped: usize,
}

impl PromptFlags {
    /// Builds the prompt; `room` is the number of tokens an overflowing document
    /// is cut to.
    ///
    /// # Errors
    /// No or an unreadable source, text that is not UTF-8, a missing template.
    pub fn build<B: Backend>(&self, engine: &Engine<B>, room: usize) -> anyhow::Result<Prompt> {
        if let Some(ids) = &self.prompt_ids {
            return Ok(Prompt { ids: read_ids(ids)?, dropped: 0 });
        }
        let document = self.document()?;
        if document.is_empty() && self.question.is_none() {
            return Err(tidekv::Error::EmptyPrompt.into());
        }
        let ids = self.frame(engine, &document)?;
        let context = engine.model().spec.shape.context;
        if ids.len() <= context || self.overflow == Overflow::Refuse {
            return Ok(Prompt { ids, dropped: 0 });
        }
        self.cut(engine, &document, room)
    }

    /// Drops part of the document until the framed prompt has at most `room`
    /// tokens. Question and template stay whole.
    fn cut<B: Backend>(
        &self,
        engine: &Engine<B>,
        document: &str,
        room: usize,
    ) -> anyhow::Result<Prompt> {
        let tokenizer = engine.tokenizer();
        let all = tokenizer.encode_continuation(document, Specials::AsText)?;
        let frame = self.frame(engine, "")?.len();
        // The cut is made between tokens and may tear a character or join
        // others, so the count is taken anew and the cut widened if needed.
        let mut keep = room.saturating_sub(frame).min(all.len());
        while keep > 0 {
            let text = cut_tokens(tokenizer, &all, keep, self.overflow)?;
            let ids = self.frame(engine, &text)?;
            if ids.len() <= room {
                return Ok(Prompt { ids, dropped: all.len() - keep });
            }
            keep = keep.saturating_sub((ids.len() - room).max(1));
        }
        bail!("the question and the template alone fill the context; shorten the question")
    }

    /// The document with its question, in the model's format.
    fn frame<B: Backend>(&self, engine: &Engine<B>, document: &str) -> anyhow::Result<Vec<u32>> {
        let text = match &self.question {
            Some(question) if document.is_empty() => question.clone(),
            Some(question) => format!("{document}\n\n{question}"),
            None => document.to_owned(),
        };
        let tokenizer = engine.tokenizer();
        let mut ids = match self.uses_chat(engine)? {
            false => tokenizer.encode(&text, Specials::Recognize)?,
            true => {
                let system = self.system.iter().map(|system| Message::new("system", system));
                let messages: Vec<Message> = system.chain([Message::new("user", text)]).collect();
                let template = engine.chat_template()?;
                let rendered = template.render(&messages, &ChatOptions::default())?;
                tokenizer.encode_chat(&rendered)?
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
            Err(error) if self.chat || self.system.is_some() => Err(error.into()),
            Err(tidekv::Error::Text(tidekv::text::TextError::NoChatTemplate)) => Ok(false),
            Err(error) => Err(error).context("use --raw to do without the template"),
        }
    }

    fn document(&self) -> anyhow::Result<String> {
        let (bytes, source) = match (&self.prompt_file, &self.prompt, &self.stdin) {
            (Some(path), _, _) => (read(path)?, path.display().to_string()),
            (_, Some(text), _) => (text.clone().into_bytes(), "--prompt".to_owned()),
            (_, _, Some(_)) => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).context("standard input")?;
                (bytes, "standard input".to_owned())
            }
            _ if self.question.is_some() => return Ok(String::new()),
            _ => bail!("no prompt: give --prompt-file FILE, --prompt TEXT, --prompt-ids IDS or -"),
        };
        Ok(text_from_bytes(&bytes).context(source)?.to_owned())
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    let list = match text.strip_prefix('@') {
        Some(path) => text_from_bytes(&read(Path::new(path))?).context(path.to_owned())?.to_owned(),
        None => text.to_owned(),
    };
    let words = list.split(|c: char| c == ',' || c.is_whitespace() || c == '[' || c == ']');
    words
        .filter(|word| !word.is_empty())
        .map(|word| {
            word.parse().with_context(|| format!("--prompt-ids: `{word}` is not a token id"))
        })
        .collect()
}

/// `keep` of the tokens, with the part that `overflow` names left out.
fn cut_tokens(
    tokenizer: &Tokenizer,
    ids: &[u32],
    keep: usize,
    overflow: Overflow,
) -> anyhow::Result<String> {
    let last = ids.len() - keep;
    Ok(match overflow {
        Overflow::Refuse | Overflow::Tail => tokenizer.decode(&ids[..keep])?,
        Overflow::Head => tokenizer.decode(&ids[last..])?,
        Overflow::Middle => {
            let head = keep.div_ceil(2);
            tokenizer.decode(&ids[..head])? + &tokenizer.decode(&ids[last + head..])?
        }
    })
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
}
