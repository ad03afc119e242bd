//! What can go wrong in the library, with the numbers.

use crate::backend::BackendError;
use crate::memory::{Component, Refusal};
use crate::model::ModelError;
use crate::report::counted;
use crate::select::SelectError;
use crate::text::TextError;
use std::borrow::Cow;
use tidekv_format::FormatError;

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is damaged or not a model.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file is a model the engine does not support.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Tokenizer, template or text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The selector does not fit the budget or the prompt.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The memory plan does not fit; nothing was computed.
    #[error(transparent)]
    Refused(#[from] Box<Refusal>),
    /// An allocation beyond the limit was stopped.
    #[error(
        "{component} needs {bytes} bytes more; {total} in all would pass the limit of {limit} bytes"
    )]
    LimitReached {
        /// What for.
        component: Component,
        /// Bytes asked for.
        bytes: u64,
        /// Total with them.
        total: u64,
        /// The limit.
        limit: u64,
    },
    /// A batch without prompts.
    #[error("there is no prompt; give at least one")]
    EmptyBatch,
    /// What is wrong with one of several prompts.
    #[error("prompt {number} of {n_prompts}: {source}", number = index + 1)]
    OfPrompt {
        /// Which, counted from 0.
        index: usize,
        /// B.
        n_prompts: usize,
        /// What is wrong.
        source: Box<Error>,
    },
    /// What is wrong with some of several sessions that were to be fed together.
    #[error("{}", of_sessions(failed, *n_sessions))]
    OfSessions {
        /// Which, counted from 0, and what is wrong with each; not empty.
        failed: Vec<(usize, Error)>,
        /// Sessions in all.
        n_sessions: usize,
    },
    /// A session that cannot be fed together with the first.
    #[error("the session belongs to another engine; feed sessions of one engine together")]
    OtherEngine,
    /// A prompt without tokens.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A prompt longer than the context.
    #[error("the prompt has {}, {excess} more than the model's context of {context}; shorten it, choose a way to cut it (--overflow), or stretch the context (--rope-scaling)", counted(*tokens, "token"), excess = tokens - context)]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Largest prompt.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("token id {id} at index {index} is not in the vocabulary of {}", counted(*vocab, "token"))]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Its place in the prompt.
        index: usize,
        /// Number of tokens the model has.
        vocab: usize,
    },
    /// A setting that makes no sense.
    #[error("{setting} = {value}: {reason}")]
    Setting {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        reason: Cow<'static, str>,
    },
    /// Uncompressed K/V of more layers than the schedule has room for.
    #[error(
        "layer {layer} cannot be active: {} active, and the schedule has room for {room}",
        counted(*active, "layer")
    )]
    ActiveLayers {
        /// The layer.
        layer: usize,
        /// Active layers.
        active: usize,
        /// Allowed.
        room: usize,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// What is wrong with each.
fn of_sessions(failed: &[(usize, Error)], n_sessions: usize) -> String {
    let each = failed.iter().map(|(index, error)| {
        let number = index + 1;
        format!("session {number} of {n_sessions}: {error}")
    });
    each.collect::<Vec<_>>().join("; ")
}

impl Error {
    /// Whether the model's files are damaged, incomplete or contradict themselves. An error of sound
    /// files, of a model that is merely not supported too, is none.
    pub fn is_damage(&self) -> bool {
        match self {
            Error::Format(_) => true,
            Error::Model(error) => error.is_damage(),
            Error::Text(error) => error.is_damage(),
            _ => false,
        }
    }

    /// The error of one of `n_prompts` prompts. An only prompt needs no number, nor
    /// does what stops the whole batch: its memory, its files, its caller.
    pub(crate) fn of_prompt(self, index: usize, n_prompts: usize) -> Self {
        let of_one = matches!(
            self,
            Error::EmptyPrompt
                | Error::PromptTooLong { .. }
                | Error::TokenOutOfRange { .. }
                | Error::Select(_)
                | Error::Backend(BackendError::NonFinite { .. })
        );
        match of_one && n_prompts > 1 {
            true => Error::OfPrompt { index, n_prompts, source: Box::new(self) },
            false => self,
        }
    }
}
