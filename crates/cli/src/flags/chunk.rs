//! `--chunk`: a size, or the one that suits the machine.

use super::positive;
use serde::Serialize;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use tidekv::config::DEFAULT_CHUNK;
use tidekv::memory::ChunkChoice;

/// How many tokens pass through a layer at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkFlag {
    /// As many as is said.
    Tokens(NonZeroUsize),
    /// What suits the machine and its limit.
    Auto,
}

impl ChunkFlag {
    /// C, or what it is as long as it has not been chosen.
    pub fn tokens(self) -> NonZeroUsize {
        match self {
            ChunkFlag::Tokens(tokens) => tokens,
            ChunkFlag::Auto => DEFAULT_CHUNK,
        }
    }
}

impl FromStr for ChunkFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(ChunkFlag::Auto),
            _ if text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                Err(format!("`{text}` is neither auto nor a count such as 512 or 2k"))
            }
            _ => positive(text).map(ChunkFlag::Tokens),
        }
    }
}

/// What `--chunk auto` chose.
#[derive(Debug, Clone, Serialize)]
pub struct ChosenChunk {
    /// C.
    pub chunk: NonZeroUsize,
    /// What decided.
    pub reason: String,
}

impl From<ChunkChoice> for ChosenChunk {
    fn from(ChunkChoice { chunk, reason }: ChunkChoice) -> Self {
        ChosenChunk { chunk, reason: reason.to_string() }
    }
}

impl fmt::Display for ChosenChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunks of {} tokens: {}", self.chunk, self.reason)
    }
}
