//! Chat templates, and the guard that keeps message text apart from markers.
//!
//! A template renders one string in which its own `<|im_end|>` and a user's
//! look the same. Segments or placeholders would tell them apart, but
//! templates look into messages (`content | trim`,
//! `content.startswith(...)`), and tokens may span the border between message
//! and template. So the messages stay in place, and a *guard* character that
//! no message contains is put between two characters of every message where a
//! control token could begin or end:
//!
//! - between the first two and between the last two characters of a control
//!   token (`<|` and `|>`), wherever they stand in a message, and
//! - behind a first and in front of a last character at the borders of the
//!   message, blanks aside, because a template may trim it and put other text
//!   there.
//!
//! A control token in the rendered string then has both ends in the
//! template's own text: a message that supplied two characters of an end has
//! the guard between them, and one that supplied a single character has it at
//! its border. The guard is taken out *after* the string was cut at its
//! control tokens and *before* the pieces are normalised and cut into words.
//! A message without such characters is rendered unchanged, and in any case
//! the pieces are those of the string without guard: words and merges across
//! message borders come out as in training.
//!
//! What is left to the template: roles are pasted into markers by some
//! (`<|user|>`), so a role must be a plain name; and a template that puts the
//! two ends of a marker around message text means it.

use super::error::TextError;
use super::jinja;
use std::borrow::Cow;
use std::collections::HashSet;
use std::time::SystemTime;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said; never more than text.
    pub content: String,
}

impl Message {
    /// A message from `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// Whether the rendered text ends with the beginning of the model's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// It does: the model is to answer.
    Add,
    /// It does not: the messages as they are.
    Omit,
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Copy)]
pub struct ChatOptions {
    /// `add_generation_prompt`.
    pub generation_prompt: GenerationPrompt,
    /// The time that `strftime_now` formats, in UTC. Some templates write the date into the system message:
    /// fix it where runs must repeat.
    pub now: SystemTime,
}

impl Default for ChatOptions {
    /// For an answer, now.
    fn default() -> ChatOptions {
        ChatOptions { generation_prompt: GenerationPrompt::Add, now: SystemTime::now() }
    }
}

/// A compiled chat template; see [`super::Tokenizer::chat_template`].
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    borders: MarkerBorders,
}

impl ChatTemplate {
    /// Compiles `source`; `controls` are the control tokens that messages must not spell.
    pub(super) fn new<'c>(
        source: String,
        controls: impl Iterator<Item = &'c str>,
    ) -> Result<ChatTemplate, TextError> {
        jinja::check(&source)?;
        Ok(ChatTemplate { source, bos: None, eos: None, borders: MarkerBorders::new(controls) })
    }

    /// Sets what the template sees as `bos_token` and `eos_token`.
    pub(super) fn with_markers(self, bos: Option<String>, eos: Option<String>) -> ChatTemplate {
        ChatTemplate { bos, eos, ..self }
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the messages.
    ///
    /// # Errors
    /// A role that is no plain name, a template that fails or asks for what it may not,
    /// messages that use every character a guard could be, or a template that leaves out
    /// what the system or the user says. Blanks around a message do not count: templates
    /// may trim them. What others say may be shortened, as templates do with an
    /// assistant's thoughts.
    pub fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<RenderedChat, TextError> {
        for (index, Message { role, .. }) in messages.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            if role.is_empty() || !role.chars().all(plain) {
                return Err(TextError::BadRole { role: role.clone(), index });
            }
        }
        let guard = unused_noncharacter(messages, &self.source)?;
        let guarded = messages.iter().map(|message| {
            Message::new(message.role.as_str(), self.borders.guard(&message.content, guard))
        });
        let request = jinja::Request {
            source: &self.source,
            messages: guarded.collect(),
            bos: self.bos.as_deref(),
            eos: self.eos.as_deref(),
            options,
        };
        let rendered = RenderedChat { guarded: jinja::render(request)?, guard };
        let text = rendered.unguarded(&rendered.guarded);
        let left_out = |message: &Message| {
            let whole = matches!(message.role.as_str(), "system" | "user");
            whole && !text.contains(message.content.trim())
        };
        match messages.iter().position(left_out) {
            None => Ok(rendered),
            Some(index) => {
                let role = messages[index].role.clone();
                Err(TextError::MessageLeftOut { index, role })
            }
        }
    }
}

/// A rendered chat that still knows which markers are the template's. Give it to
/// [`super::Tokenizer::encode_chat`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    guarded: String,
    guard: char,
}

impl RenderedChat {
    /// The rendered text. It does not tell whose its markers are: for display, not for encoding.
    pub fn text(&self) -> String {
        self.unguarded(&self.guarded).into_owned()
    }

    pub(super) fn guarded(&self) -> &str {
        &self.guarded
    }

    /// `part` of the guarded text without the guard.
    pub(super) fn unguarded<'t>(&self, part: &'t str) -> Cow<'t, str> {
        if part.contains(self.guard) {
            Cow::Owned(part.replace(self.guard, ""))
        } else {
            Cow::Borrowed(part)
        }
    }
}

/// A noncharacter that is in none of the texts. Unicode sets U+FDD0 to U+FDEF aside for internal use.
fn unused_noncharacter(messages: &[Message], template: &str) -> Result<char, TextError> {
    let texts = messages.iter().map(|message| message.content.as_str()).chain([template]);
    let used: HashSet<char> =
        texts.flat_map(str::chars).filter(|c| ('\u{FDD0}'..='\u{FDEF}').contains(c)).collect();
    ('\u{FDD0}'..='\u{FDEF}').find(|c| !used.contains(c)).ok_or(TextError::NoncharactersUsedUp)
}

/// How control tokens begin and end.
#[derive(Debug, Clone, Default)]
struct MarkerBorders {
    /// First two and last two characters.
    pairs: HashSet<(char, char)>,
    first: HashSet<char>,
    last: HashSet<char>,
}

impl MarkerBorders {
    fn new<'c>(controls: impl Iterator<Item = &'c str>) -> MarkerBorders {
        let mut borders = MarkerBorders::default();
        for control in controls {
            let (mut ahead, mut back) = (control.chars(), control.chars().rev());
            // Tokens of one character are never recognised, see `Markers::new`.
            if let (Some(first), Some(second), Some(last), Some(before)) =
                (ahead.next(), ahead.next(), back.next(), back.next())
            {
                borders.pairs.extend([(first, second), (before, last)]);
                borders.first.insert(first);
                borders.last.insert(last);
            }
        }
        borders
    }

    /// `content` with the guard where a control token could begin or end; see the module documentation.
    fn guard(&self, content: &str, guard: char) -> String {
        let mut guarded = String::with_capacity(content.len());
        let mut previous: Option<char> = None;
        for c in content.chars() {
            if self.separates(previous, Some(c)) {
                guarded.push(guard);
            }
            guarded.push(c);
            previous = Some(c);
        }
        if self.separates(previous, None) {
            guarded.push(guard);
        }
        guarded
    }

    /// Whether a control token could begin with `left` or end with `right`; `None` is a border of the message.
    fn separates(&self, left: Option<char>, right: Option<char>) -> bool {
        let border = |c: Option<char>| c.is_none_or(char::is_whitespace);
        let pair = left.zip(right).is_some_and(|pair| self.pairs.contains(&pair));
        pair || (border(right) && left.is_some_and(|c| self.first.contains(&c)))
            || (border(left) && right.is_some_and(|c| self.last.contains(&c)))
    }
}

#[cfg(test)]
mod tests;
