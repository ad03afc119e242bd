//! The caps as errors name them.

use std::fmt;

use super::FormatError;

/// The caps of [`limits`](crate::limits), as named in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is documented at its constant")]
pub enum Limit {
    HeaderBytes,
    MetadataEntries,
    Tensors,
    KeyBytes,
    TensorNameBytes,
    StringBytes,
    ArrayLen,
    ArrayDepth,
    Dims,
    ModelTensors,
    Files,
    SafetensorsHeaderBytes,
    SafetensorsDims,
    DtypeBytes,
    IndexBytes,
    FileNameBytes,
}

impl Limit {
    /// The cap itself, in the unit its name says.
    pub fn max(self) -> u64 {
        use crate::limits::*;
        match self {
            Limit::HeaderBytes => MAX_HEADER_BYTES,
            Limit::MetadataEntries => MAX_METADATA_ENTRIES,
            Limit::Tensors => MAX_TENSORS,
            Limit::KeyBytes => MAX_KEY_BYTES,
            Limit::TensorNameBytes => MAX_TENSOR_NAME_BYTES,
            Limit::StringBytes => MAX_STRING_BYTES,
            Limit::ArrayLen => MAX_ARRAY_LEN,
            Limit::ArrayDepth => MAX_ARRAY_DEPTH,
            Limit::Dims => MAX_DIMS,
            Limit::ModelTensors => MAX_MODEL_TENSORS,
            Limit::Files => MAX_FILES,
            Limit::SafetensorsHeaderBytes => MAX_SAFETENSORS_HEADER_BYTES,
            Limit::SafetensorsDims => MAX_SAFETENSORS_DIMS,
            Limit::DtypeBytes => MAX_DTYPE_BYTES,
            Limit::IndexBytes => MAX_INDEX_BYTES,
            Limit::FileNameBytes => MAX_FILE_NAME_BYTES,
        }
    }

    /// Refuses `value` above the cap; `at` names what was being read.
    pub(crate) fn check(self, value: u64, at: impl FnOnce() -> String) -> Result<(), FormatError> {
        if value <= self.max() {
            return Ok(());
        }
        Err(FormatError::TooLarge { at: at(), limit: self, value })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::HeaderBytes => "header size in bytes",
            Limit::MetadataEntries => "number of metadata entries",
            Limit::Tensors => "number of tensors",
            Limit::KeyBytes => "key length in bytes",
            Limit::TensorNameBytes => "tensor name length in bytes",
            Limit::StringBytes => "string length in bytes",
            Limit::ArrayLen => "array length",
            Limit::ArrayDepth => "array nesting depth",
            Limit::Dims | Limit::SafetensorsDims => "number of dimensions",
            Limit::ModelTensors => "number of tensors in all files",
            Limit::Files => "number of files",
            Limit::SafetensorsHeaderBytes => "header size in bytes",
            Limit::DtypeBytes => "length of an element type's name in bytes",
            Limit::IndexBytes => "size of the index in bytes",
            Limit::FileNameBytes => "file name length in bytes",
        })
    }
}
