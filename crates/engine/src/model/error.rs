//! Why a well-formed file is not a model TideKV can run.

use super::Architecture;

/// Errors of reading a model from a file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The architecture is not supported.
    #[error("architecture `{found}`: not supported; supported: {supported}")]
    Architecture {
        /// Name in the file.
        found: String,
        /// Supported names.
        supported: String,
    },
    /// The model uses something the engine does not compute.
    #[error("{feature}: not supported")]
    Feature {
        /// What it is, as a user would name it.
        feature: String,
    },
    /// Weights that another library has quantised, in its own layout.
    #[error(
        "the weights are quantised by {quantisation}: not supported in a Hugging Face directory; \
         use a GGUF file of this model (GGUF's own quantisations are supported), or the directory \
         of the original that was quantised, in BF16, F16 or F32"
    )]
    Quantised {
        /// The method and its bits.
        quantisation: String,
    },
    /// A tensor that the engine would leave out.
    #[error(
        "tensor `{name}`{}: not supported in a model of the {architecture} architecture; leaving \
         it out would compute another model's answers, so the model is refused",
        feature.map(|feature| format!(" ({feature})")).unwrap_or_default()
    )]
    UnreadTensor {
        /// Tensor name.
        name: String,
        /// What it would be part of, as a user would name it, where that is known.
        feature: Option<&'static str>,
        /// Family of the model.
        architecture: Architecture,
    },
    /// A tensor the architecture needs is absent.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Tensor name.
        name: String,
    },
    /// A tensor has another shape than the header says.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?} (fastest dimension first)")]
    TensorShape {
        /// Tensor name.
        name: String,
        /// Shape in the file.
        found: Vec<u64>,
        /// Shape that the header implies.
        expected: Vec<u64>,
    },
    /// A tensor is stored in a type the backend cannot read.
    #[error("tensor `{name}` is stored as {found}: not supported; supported: {supported}")]
    TensorType {
        /// Tensor name.
        name: String,
        /// Type in the file.
        found: String,
        /// Supported types.
        supported: String,
    },
    /// A number in the header makes no sense.
    #[error("{key} = {value}: {reason}")]
    Value {
        /// Metadata key or field.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it, with the limit.
        reason: String,
    },
    /// A file beside the weights is missing or faulty.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A required metadata key is absent.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// Metadata key.
        key: String,
    },
}

impl ModelError {
    /// Whether something is missing or makes no sense, rather than not supported.
    pub fn is_damage(&self) -> bool {
        match self {
            ModelError::Architecture { .. }
            | ModelError::Feature { .. }
            | ModelError::Quantised { .. }
            | ModelError::UnreadTensor { .. }
            | ModelError::TensorType { .. } => false,
            ModelError::MissingTensor { .. }
            | ModelError::TensorShape { .. }
            | ModelError::Value { .. }
            | ModelError::File { .. }
            | ModelError::MissingKey { .. } => true,
        }
    }
}
