//! A GGUF file on disk: a checked header over a memory map.

use std::fmt;
use std::path::Path;

use crate::error::FormatError;
use crate::header::{GgufHeader, parse_header};
use crate::layout::TensorInfo;
use crate::metadata::Metadata;
use crate::mmap::MappedFile;

/// An open model file. Cheap to open and to hold: tensor bytes stay in the file and are read by the
/// system when they are used.
pub struct GgufFile {
    mapped: MappedFile,
    header: GgufHeader,
}

impl GgufFile {
    /// Maps `path` and checks its header against its length. No tensor byte is read.
    pub fn open(path: &Path) -> Result<GgufFile, FormatError> {
        let mapped = MappedFile::open(path)?;
        let bytes = mapped.bytes();
        let header = parse_header(bytes, bytes.len() as u64)?;
        Ok(GgufFile { mapped, header })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        self.mapped.path()
    }

    /// Length of the file, bytes.
    pub fn file_len(&self) -> u64 {
        self.mapped.bytes().len() as u64
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version()
    }

    /// The key-value part.
    pub fn metadata(&self) -> &Metadata {
        self.header.metadata()
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.header.tensors()
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensor(name)
    }

    /// The data of a tensor of this file: exactly `n_bytes` of it, or, if its type is unknown,
    /// everything up to the next tensor or the end of the file.
    ///
    /// # Panics
    ///
    /// If `tensor` comes from another file and does not lie in this one.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        let range = usize::try_from(tensor.offset).ok().zip(usize::try_from(tensor.end).ok());
        range
            .and_then(|(start, end)| self.mapped.bytes().get(start..end))
            .unwrap_or_else(|| panic!("tensor `{}` is not of this file", tensor.name))
    }

    /// Refuses with [`FormatError::Changed`] if the file's length or modification time differ from
    /// those at opening. Costs one system call; call it before work that trusts the weights.
    pub fn verify_unchanged(&self) -> Result<(), FormatError> {
        self.mapped.verify_unchanged()
    }
}

impl fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufFile")
            .field("path", &self.path())
            .field("version", &self.version())
            .field("metadata_entries", &self.metadata().len())
            .field("tensors", &self.tensors().len())
            .finish_non_exhaustive()
    }
}
