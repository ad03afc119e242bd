//! The crate's one error. Every variant carries the name and the numbers that a user needs to tell
//! a bad download from an unsupported file, and says what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::looks_like::LooksLike;

/// Why a file cannot be used as a model. The path is named only where the operating system failed:
/// the caller knows which file it asked for.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The operating system refused to open, stat or map the file.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Shorter than the fixed part of a GGUF header, and nothing else either.
    #[error(
        "not a model: the file has {actual} bytes and a GGUF header alone has {needed} (an interrupted download? fetch the file again)"
    )]
    TooShort {
        /// Bytes in the file.
        actual: u64,
        /// Bytes of the fixed part of the header.
        needed: u64,
    },
    /// Not a GGUF file this reader can read; what it is instead, as far as its first bytes tell.
    #[error("not a GGUF model: {0}")]
    NotGguf(LooksLike),
    /// GGUF, but a version with another layout.
    #[error("GGUF version {version} is not supported (versions 2 and 3 are): {}", version_advice(*version))]
    UnsupportedVersion {
        /// The version the file states.
        version: u32,
    },
    /// The file ends before its header or a tensor does.
    #[error("truncated: expected {}{} bytes, have {}: {missing} (an interrupted download? fetch the file again)",
        missing.at_least(), Grouped(*expected), Grouped(*actual))]
    Truncated {
        /// Bytes the file should have; a lower bound when the header itself is cut off.
        expected: u64,
        /// Bytes it has.
        actual: u64,
        /// What is cut off.
        missing: CutOff,
    },
    /// A count or length above the cap of [`limits`](crate::limits): damaged or hostile.
    #[error("{at}: {limit} {} is above the limit of {} (the file is damaged or not a model)",
        Grouped(*value), Grouped(limit.max()))]
    TooLarge {
        /// The key or tensor being read.
        at: String,
        /// Which cap.
        limit: Limit,
        /// What the file states.
        value: u64,
    },
    /// A size that does not fit 64 bits.
    #[error(
        "tensor `{tensor}`: size or offset overflows 64 bits (shape {shape:?}, offset {offset}): the file is damaged"
    )]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its shape, fastest dimension first.
        shape: Vec<u64>,
        /// Its offset in the data section.
        offset: u64,
    },
    /// A metadata key or tensor name that appears twice.
    #[error("{table} `{name}` appears twice: the file is damaged or was merged wrongly")]
    Duplicate {
        /// Which table.
        table: Table,
        /// The name.
        name: String,
    },
    /// A string that is not UTF-8.
    #[error("{at}: not valid UTF-8 at byte {offset} of the file")]
    BadUtf8 {
        /// The key or table entry being read.
        at: String,
        /// Absolute position of the first offending byte.
        offset: u64,
    },
    /// A metadata value type that GGUF does not define.
    #[error(
        "metadata `{key}`: unknown value type {id} (GGUF defines 0 to 12): the file is damaged or newer than this reader"
    )]
    BadValueType {
        /// The key.
        key: String,
        /// The stated type.
        id: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata `{key}`: {value} is not a boolean (0 or 1): the file is damaged")]
    BadBool {
        /// The key.
        key: String,
        /// The byte found.
        value: u8,
    },
    /// A metadata value of another type, or outside the range, than its key needs.
    #[error("metadata `{key}`: expected {expected}, found {found}")]
    BadMetadata {
        /// The key.
        key: String,
        /// What the reader of the key needs.
        expected: &'static str,
        /// The type or value in the file.
        found: String,
    },
    /// A tensor whose place or shape contradicts its type or its neighbours.
    #[error("tensor `{tensor}`: {fault}: the file is damaged")]
    BadLayout {
        /// The tensor.
        tensor: String,
        /// The contradiction.
        fault: LayoutFault,
    },
    /// One shard of a model split into several files.
    #[error(
        "shard {shard} of {count}: split models are not supported yet (join the shards with `llama-gguf-split --merge`)"
    )]
    Split {
        /// This file's number, from 1.
        shard: u64,
        /// How many files the model has.
        count: u64,
    },
    /// The file on disk is no longer the one whose header was checked.
    #[error("{} changed while it was in use ({} bytes when opened, {} now): close it and load it again",
        path.display(), Grouped(*opened), Grouped(*now))]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        opened: u64,
        /// Its length now; equal if only the modification time differs.
        now: u64,
    },
}

fn version_advice(version: u32) -> &'static str {
    if version < 2 {
        "the file is from 2023: convert the model again with a current converter"
    } else {
        "the file is newer than this reader, or damaged"
    }
}

/// Which part of a truncated file is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CutOff {
    /// The header; the text says which entry was being read.
    Header(String),
    /// Tensor data; the first tensor, in file order, that is not whole.
    Tensor(String),
}

impl CutOff {
    /// Where the header is cut off, the size of the rest is unknown.
    fn at_least(&self) -> &'static str {
        match self {
            CutOff::Header(_) => "at least ",
            CutOff::Tensor(_) => "",
        }
    }
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutOff::Header(at) => write!(f, "the header ends inside {at}"),
            CutOff::Tensor(name) => write!(f, "tensor `{name}` is cut off"),
        }
    }
}

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
            Limit::Dims => "number of dimensions",
        })
    }
}

/// The two tables of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Key and value pairs.
    Metadata,
    /// Tensor names.
    Tensors,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Table::Metadata => "metadata key",
            Table::Tensors => "tensor",
        })
    }
}

/// What is wrong with a tensor's place or shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayoutFault {
    /// The offset in the data section is not a multiple of the file's alignment.
    Misaligned {
        /// Offset in the data section, bytes.
        offset: u64,
        /// Alignment, bytes.
        alignment: u64,
    },
    /// It begins before another tensor has ended.
    Overlaps {
        /// The tensor that begins earlier.
        other: String,
        /// Bytes in common.
        bytes: u64,
    },
    /// A row is not a whole number of quantisation blocks.
    RaggedRow {
        /// Elements of the fastest dimension.
        row: u64,
        /// Elements of a block.
        block: u64,
    },
}

impl fmt::Display for LayoutFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutFault::Misaligned { offset, alignment } => {
                write!(f, "offset {offset} is not a multiple of the alignment {alignment}")
            }
            LayoutFault::Overlaps { other, bytes } => {
                write!(f, "overlaps tensor `{other}` by {} bytes", Grouped(*bytes))
            }
            LayoutFault::RaggedRow { row, block } => {
                write!(f, "rows of {row} elements are not whole blocks of {block}")
            }
        }
    }
}

/// Prints 491400064 as 491,400,064: byte counts are compared by eye.
struct Grouped(u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (491_400_064, "491,400,064")] {
            assert_eq!(Grouped(n).to_string(), text);
        }
    }

    #[test]
    fn truncation_names_both_sizes_and_the_tensor() {
        let error = FormatError::Truncated {
            expected: 491_400_064,
            actual: 300_000_000,
            missing: CutOff::Tensor("blk.9.ffn_up.weight".into()),
        };
        let text = error.to_string();
        assert!(text.starts_with("truncated: expected 491,400,064 bytes, have 300,000,000: tensor `blk.9.ffn_up.weight`"), "{text}");
    }
}
