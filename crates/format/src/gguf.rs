//! A GGUF file on disk: a checked header over a memory map.

mod cursor;
mod header;
mod metadata;
mod split;

use std::fmt;
use std::path::Path;

use crate::error::{FormatError, SplitFault};
use crate::layout::TensorInfo;
use crate::mmap::MappedFile;

pub use header::{GgufHeader, parse_header};
pub use metadata::{Array, Metadata, Value};
pub use split::GgufModel;

use header::MAGIC;
use split::Part;

/// An open model file. Cheap to open and to hold: tensor bytes stay in the file and are read by the
/// system when they are used.
pub struct GgufFile {
    mapped: MappedFile,
    header: GgufHeader,
}

impl GgufFile {
    /// Maps `path` and checks its header against its length. No tensor byte is read.
    ///
    /// # Errors
    ///
    /// Everything that [`parse_header`] refuses; [`FormatError::Split`] for one part of a split
    /// model, which [`GgufModel`] opens, and for parts that were joined byte by byte.
    pub fn open(path: &Path) -> Result<GgufFile, FormatError> {
        let file = GgufFile::open_part(path)?;
        match Part::of(file.metadata())? {
            None => Ok(file),
            Some(Part { number, count, .. }) => {
                Err(FormatError::Split(SplitFault::IsPart { part: number, count }))
            }
        }
    }

    /// Like [`GgufFile::open`], for a file that may be a part of a split model.
    fn open_part(path: &Path) -> Result<GgufFile, FormatError> {
        let mapped = MappedFile::open(path)?;
        let header = parse_header(mapped.bytes(), mapped.len())?;
        refuse_concatenated(&header, &mapped)?;
        Ok(GgufFile { mapped, header })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        self.mapped.path()
    }

    /// Length of the file, bytes.
    pub fn file_len(&self) -> u64 {
        self.mapped.len()
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
        self.mapped.tensor_bytes(tensor)
    }

    /// Refuses with [`FormatError::Changed`] if the file's length or modification time differ from
    /// those at opening. Costs one system call; call it before work that trusts the weights.
    pub fn verify_unchanged(&self) -> Result<(), FormatError> {
        self.mapped.verify_unchanged()
    }
}

/// Refuses a file behind whose last tensor another GGUF file begins.
fn refuse_concatenated(header: &GgufHeader, mapped: &MappedFile) -> Result<(), FormatError> {
    let begins_at = |&at: &u64| {
        let rest = usize::try_from(at).ok().and_then(|at| mapped.bytes().get(at..));
        rest.is_some_and(|rest| rest.starts_with(MAGIC))
    };
    match header.ends().iter().find(|at| begins_at(at)) {
        None => Ok(()),
        Some(&at) => {
            Err(FormatError::Split(SplitFault::Concatenated { at, file_len: mapped.len() }))
        }
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
