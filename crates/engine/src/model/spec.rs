//! A model as a value: the one forward pass reads this and nothing else.

use super::{RopeSpec, Shape};
use std::fmt;

/// Model families, by their name in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2/3, Mistral, SmolLM2 and others.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
}

impl Architecture {
    /// Every supported family.
    pub const ALL: [Architecture; 2] = [Architecture::Llama, Architecture::Qwen2];

    /// Name in `general.architecture`, also the prefix of its metadata keys.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the output projection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// The embedding table.
    Tied,
    /// An own matrix.
    Own,
}

/// What the forward pass needs to know about a model besides its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Family.
    pub architecture: Architecture,
    /// Name in the file, if it has one.
    pub name: Option<String>,
    /// Dimensions. `shape.context` is the context after RoPE scaling.
    pub shape: Shape,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeSpec,
    /// Output projection.
    pub head: HeadKind,
}
